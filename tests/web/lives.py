"""Lives of jobs for the page of a job: one that was evicted and waits again, and those that finished, failed and were deleted.

They also give utilization over time, checkpoints, run times and dependencies to the sample.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import sin
from typing import Any

from queuectl.domain.accounting import HOUR
from queuectl.domain.estimates import ExpectedRunTime, RunTimeSource
from queuectl.domain.gates import Dependency, JobName
from queuectl.domain.jobs import JobOutcome
from queuectl.domain.ledger import Entry, State
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.related_jobs import PresentJob, RelatedJobs, related_jobs
from queuectl.domain.use_curve import UseCurve, UseSpan
from queuectl.domain.workload import Placement
from tests.doubles.store import MemoryDatabase
from tests.support.gpu_seconds import GpuSeconds
from tests.web.records import PRICE, line_of, subject_of

DONE, FAILED, DELETED, REQUEUED = "life-done", "life-failed", "life-deleted", "wait-00002"
ENDS = {
    DONE: Reason(Code.SUCCEEDED, ""),
    FAILED: Reason(Code.FAILED, "Job has reached the specified backoff limit"),
    DELETED: Reason(Code.DELETED, "the job was deleted while it ran"),
}
_RUN = 6 * 3600.0
_EVICTED_AFTER = 0.4  # of the run


def keep_lives(database: MemoryDatabase, now: float) -> None:
    """Add the lives, with their hours and curves, to a sample that has its records."""
    running = [entry for entry in database.entries.values() if entry.placement is not None]
    for entry in running:
        if entry.started_at is not None:
            draw(database, entry, [(entry.started_at, now)])
    placements = [e.placement for e in running if e.placement is not None and e.pods in (2, 4)]
    model = database.entries["aside-4"]
    for number, (uid, reason) in enumerate(ENDS.items()):
        entry = replace(
            model,
            uid=uid,
            name=f"tts-{uid.removeprefix('life-')}",
            reason=reason,
            attempt=2,
            evictions=1,
            past_seconds=_RUN * 0.9,
            queued_at=now - 9 * 3600,
            finished_at=now - 300.0,
            started_at=None,
        )
        database.entries[uid] = entry
        first, second = (placements[(2 * number + at) % len(placements)] for at in range(2))
        spans = _append(database, entry, (first, second), now - 300.0, ended=True)
        _account(database, entry, spans)
        draw(database, entry, spans)
    begin = now - 2 * _RUN
    again = replace(
        database.entries[REQUEUED],
        attempt=1,
        evictions=1,
        past_seconds=_RUN * _EVICTED_AFTER,
        queued_at=begin - 600.0,
    )
    database.entries[REQUEUED] = again
    for place, line in enumerate(database.history):
        if line.uid == REQUEUED:
            database.history[place] = replace(line, at=begin - 600.0)
    spans = _append(database, again, placements[:1], begin + _RUN, ended=False)
    _account(database, again, spans)
    draw(database, again, spans)


def _append(
    database: MemoryDatabase,
    entry: Entry,
    placements: Sequence[Placement],
    until: float,
    *,
    ended: bool,
) -> list[tuple[float, float]]:
    """Steps of a life, the last at ``until``. Returns the times in which it held nodes."""
    spans, at = [], until - _RUN
    begin = at
    steps: list[Any] = []
    for attempt, placement in enumerate(placements, 1):
        last = ended and attempt == len(placements)
        leaves = until if last else begin + _RUN * _EVICTED_AFTER
        admitted = Reason(Code.ADMITTED, f"admitted as attempt {attempt}")
        steps.append((at, attempt, State.PENDING, State.STARTING, admitted, placement))
        ready = Reason(Code.PODS_READY, f"all {entry.pods} pods are ready")
        steps.append((at + 40, attempt, State.STARTING, State.RUNNING, ready, None))
        if last:
            steps.append((leaves, attempt, State.RUNNING, State.FINISHED, entry.reason, None))
        else:
            why = Reason(
                Code.PREEMPTED,
                "preempted for team-vision/urgent; this loses 5400 GPU-seconds of work",
            )
            steps.append((leaves, attempt, State.RUNNING, State.EVICTING, why, None))
            steps.append((leaves + 30, attempt, State.EVICTING, State.PENDING, why, None))
        spans.append((at, leaves))
        at = leaves + 1800.0
    number = database.history[-1].id
    for when, attempt, before, after, reason, placement in steps:
        number += 1
        line = line_of(number, when, entry, before, after, reason, attempt)
        database.history.append(replace(line, placement=placement))
    return spans


def _account(database: MemoryDatabase, entry: Entry, spans: Iterable[tuple[float, float]]) -> None:
    subject = subject_of(entry)
    database.usage.subjects[subject.id] = subject
    for begin, end in spans:
        seconds = (end - begin) * float(entry.gpus)
        used = GpuSeconds(allocated=seconds, used=seconds * 0.7, cost=PRICE * seconds / HOUR)
        key = (int(begin // HOUR) * HOUR, subject.id, "h100", "on-demand")
        database.usage.hours[key] = used.units()


def draw(database: MemoryDatabase, entry: Entry, spans: Iterable[tuple[float, float]]) -> None:
    """Utilization over time: it swings, and the first twentieth of the run is not measured."""
    listed = list(spans)
    rng = random.Random(entry.uid)
    level = rng.uniform(0.35, 0.85)
    curve = UseCurve(listed[0][0])
    for begin, end in listed:
        step = (end - begin) / 80
        for number in range(80):
            at = begin + number * step
            share = level + 0.12 * sin(number / 5) + rng.uniform(-0.04, 0.04)
            known = None if number < 4 else min(max(share, 0.0), 1.0)
            curve.add([UseSpan(at, at + step, float(entry.gpus), known)])
    database.usage.curves[entry.uid] = (curve.begins, curve.spacing, curve.content)


def run_times(entries: Iterable[Entry], now: float) -> dict[str, ExpectedRunTime]:
    """Of running gangs: a limit, a learned run time, none, or one that is exceeded."""
    found = {}
    for number, entry in enumerate(entries):
        elapsed = entry.executed(now)
        if number % 4 == 0:
            found[entry.uid] = ExpectedRunTime(
                RunTimeSource.LEARNED, elapsed * 1.6, 0.8, elapsed * 1.3, 24, 900.0
            )
        elif number % 4 == 1:
            found[entry.uid] = ExpectedRunTime(RunTimeSource.LIMIT, elapsed + 7200.0)
        elif number % 4 == 2:
            found[entry.uid] = ExpectedRunTime(RunTimeSource.STATED, elapsed * 0.8)
    return found


def dependencies(entries: Sequence[Entry]) -> dict[str, RelatedJobs]:
    """A chain before the first gang, and three jobs after it."""
    own = entries[0]
    kind, namespace = own.kind, own.namespace
    gates = {
        JobName.of(kind, namespace, own.name): [Dependency("Job", "prepare-data"), Dependency("Job", "lost-job")],
        JobName.of("Job", namespace, "prepare-data"): [Dependency("Job", "download")],
        **{
            JobName.of("Job", namespace, f"evaluate-{n}"): [Dependency(kind, own.name)]
            for n in range(3)
        },
    }  # fmt: skip
    after = {JobName.of(kind, namespace, own.name): [
        (JobName.of("Job", namespace, f"evaluate-{n}"), f"Job/evaluate-{n}") for n in range(3)
    ]}  # fmt: skip
    states = {
        "prepare-data": PresentJob(DONE, None, JobOutcome.SUCCEEDED),
        "download": PresentJob("", None, JobOutcome.SUCCEEDED),
        "evaluate-0": PresentJob("wait-00003", State.HELD, None),
        "evaluate-1": PresentJob("wait-00004", State.PENDING, None),
        "evaluate-2": PresentJob("", None, None),
    }
    found = related_jobs(
        JobName.of(kind, namespace, own.name),
        f"{kind}/{own.name}",
        lambda name: gates.get(name, []),
        lambda name: after.get(name, []),
        lambda name: states.get(name.name),
    )
    return {own.uid: found} if found is not None else {}
