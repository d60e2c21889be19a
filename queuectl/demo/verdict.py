"""Checks of the scenario, beyond the audit: the victim, the finished gangs, and the reason of the gang that never fits.

The checks use the recording of the API server. Two facts come from queuectl, because the cluster does not have them: the reason
of the gang that never fits, and the gangs that queuectl classified as idle.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from queuectl.demo.audit import AuditFinding
from queuectl.demo.recorder import Recording, Replay, place_of
from queuectl.demo.scenario import Expected, Gang, SubmissionPhase
from queuectl.domain.jobs import JobOutcome, JobRecord
from queuectl.domain.plan import PreemptionReason
from queuectl.domain.reasons import Code
from queuectl.domain.utilization import UseState
from queuectl.localcluster.prometheus import EXPORTERS_JOB

_CONTAINED: Final = re.compile(
    r'^queuectl_contained_errors_total{boundary="(\w+)"} (\S+)', re.MULTILINE
)


@dataclass(slots=True)
class Attempt:
    """One start of a job: when its first pod lost its gates, and when its last pod released its node."""

    opened_at: float
    opened: int
    freed_at: float = 0.0
    freed: int = 0
    nodes: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class JobHistory:
    """One job: its attempts by number, and its last record."""

    job: JobRecord
    attempts: Mapping[int, Attempt]


def histories(
    recording: Recording,
) -> tuple[dict[str, JobHistory], Mapping[str, Mapping[str, str]]]:
    """The history of each job by ``namespace/name``, and the labels of each node."""
    replay = Replay(recording)
    attempts: dict[tuple[str, int], Attempt] = {}
    for step in replay.steps():
        pod = step.after or step.before
        if pod is None or pod.owner not in replay.observed.jobs:
            continue
        key = (pod.owner, pod.attempt)
        held = step.before is not None and place_of(step.before) is not None
        holds = step.after is not None and place_of(step.after) is not None
        if holds:
            attempt = attempts.setdefault(key, Attempt(step.at, step.version))
            attempt.nodes |= {pod.node} if pod.node else set()
        elif held:
            attempts[key].freed_at, attempts[key].freed = step.at, step.version
    found = {
        f"{job.namespace}/{job.name}": JobHistory(
            job, {number: one for (owner, number), one in attempts.items() if owner == uid}
        )
        for uid, job in replay.observed.jobs.items()
    }
    return found, {name: node.labels for name, node in replay.observed.nodes.items()}


def verdict(
    gangs: Sequence[Gang], recording: Recording, explained: Mapping[str, Mapping[str, Any]]
) -> list[AuditFinding]:
    """Check the run.

    Args:
        gangs: the gangs of the scenario.
        recording: the recording of the run.
        explained: the answer of `/explain` for each gang that can never fit, by ``namespace/name``.
    """
    found, labels = histories(recording)
    missing = [gang.ref for gang in gangs if gang.ref not in found]
    if missing:
        return [AuditFinding("every gang is in the recording", f"{len(found)}", tuple(missing))]
    return [
        _placed(gangs, found, labels),
        _victim(gangs, found),
        _finished(gangs, found),
        _never(gangs, found, explained),
    ]


def measured(gangs: Sequence[Gang], uses: Mapping[str, Collection[UseState]]) -> AuditFinding:
    """Whether the gang with idle GPUs was classified as idle, and no other gang.

    Args:
        gangs: the gangs of the scenario.
        uses: the states of GPU use of each gang, by ``namespace/name``.
    """
    idle = {ref for ref, states in uses.items() if UseState.IDLE in states}
    expected = {gang.ref for gang in gangs if gang.expected is Expected.IS_PREEMPTED}
    problems = (
        *(f"{ref} was never classified as idle" for ref in sorted(expected - idle)),
        *(f"{ref} was classified as idle" for ref in sorted(idle - expected)),
    )
    known = sum(not {UseState.ACTIVE, UseState.IDLE}.isdisjoint(one) for one in uses.values())
    numbers = f"{known} of {len(uses)} gangs ran long enough for a measurement"
    return AuditFinding("only gangs with idle GPUs were classified as idle", numbers, problems)


def scraped(query: Callable[[str], Sequence[Mapping[str, Any]]], exporters: int) -> AuditFinding:
    """Whether Prometheus reached the exporter of every node.

    Args:
        query: returns the samples of an instant query.
        exporters: the number of exporters.
    """
    up = f'up{{job="{EXPORTERS_JOB}"}}[1h]'
    reached, answered, failed = (
        sum(int(float(sample["value"][1])) for sample in query(expression))
        for expression in (
            f"count(max_over_time({up}) == 1)",
            f"sum(sum_over_time({up}))",
            f"sum(count_over_time({up}) - sum_over_time({up}))",
        )
    )
    numbers = f"{reached} of {exporters} GPU exporters; {answered} scrapes, {failed} failed"
    problems = (
        () if reached == exporters else (f"{exporters - reached} exporters were never reached",)
    )
    return AuditFinding("Prometheus scraped the GPU exporter of every node", numbers, problems)


def reclaimed(gangs: Sequence[Gang], reasons: Mapping[str, Collection[str]]) -> AuditFinding:
    """Whether the victim was preempted for its idle GPUs, and no other gang was preempted.

    Args:
        gangs: the gangs of the scenario.
        reasons: the reasons of each gang's preemptions, by ``namespace/name``.
    """
    expected = {gang.ref for gang in gangs if gang.expected is Expected.IS_PREEMPTED}
    problems = []
    for gang in gangs:
        wanted = {PreemptionReason.IDLE.value} if gang.ref in expected else set()
        if (found := set(reasons.get(gang.ref, ()))) != wanted:
            problems.append(f"{gang.ref} was preempted for {sorted(found) or 'nothing'}")
    numbers = f"{', '.join(sorted(expected))}: {PreemptionReason.IDLE.value}"
    return AuditFinding("the reason of the preemption was idle GPUs", numbers, tuple(problems))


def contained_errors(metrics: str) -> dict[str, int]:
    """How many errors were contained at each boundary, by the metrics of a controller."""
    return {boundary: round(float(count)) for boundary, count in _CONTAINED.findall(metrics)}


def contained(metrics: str) -> AuditFinding:
    """Whether each object was handled without an internal error of queuectl.

    Args:
        metrics: of the controller, in the text format.
    """
    counts = contained_errors(metrics)
    problems = [f"{count} errors at the boundary {one}" for one, count in counts.items() if count]
    if not counts:
        problems = ["the controller does not count them"]
    numbers = f"0 internal errors at {len(counts)} boundaries"
    return AuditFinding("queuectl has set no object aside", numbers, tuple(problems))


def _placed(
    gangs: Sequence[Gang],
    histories: Mapping[str, JobHistory],
    labels: Mapping[str, Mapping[str, str]],
) -> AuditFinding:
    """Placements, compared with the scenario and not with the topology requests of the objects."""
    problems = []
    bound = [gang for gang in gangs if gang.within and gang.expected is not Expected.NEVER_FITS]
    for gang in bound:
        for number, attempt in histories[gang.ref].attempts.items():
            domains = {labels[node].get(gang.within or "", "none") for node in attempt.nodes}
            if len(domains) != 1:
                problems.append(f"{gang.ref}: attempt {number} was in {sorted(domains)}")
    names = ", ".join(gang.name for gang in bound)
    return AuditFinding("gangs that require one rack or block were in one", names, tuple(problems))


def _victim(gangs: Sequence[Gang], histories: Mapping[str, JobHistory]) -> AuditFinding:
    [victim] = [gang for gang in gangs if gang.expected is Expected.IS_PREEMPTED]
    [urgent] = [gang for gang in gangs if gang.phase is SubmissionPhase.URGENT]
    problems = [
        f"{gang.ref} was started {len(histories[gang.ref].attempts)} times"
        for gang in gangs
        if len(histories[gang.ref].attempts) != _starts(gang)
    ]
    numbers = ""
    if not problems:
        first, winner = histories[victim.ref].attempts[1], histories[urgent.ref].attempts[1]
        numbers = (
            f"{victim.name} ended {winner.opened_at - first.freed_at:.1f} s before {urgent.name} started, "
            "and ran again later"
        )
        if first.freed >= winner.opened:
            problems = [f"{urgent.ref} started before the last pod of {victim.ref} had ended"]
    return AuditFinding("only the idle gang was preempted", numbers, tuple(problems))


def _starts(gang: Gang) -> int:
    return {Expected.FINISHES: 1, Expected.IS_PREEMPTED: 2, Expected.NEVER_FITS: 0}[gang.expected]


def _finished(gangs: Sequence[Gang], histories: Mapping[str, JobHistory]) -> AuditFinding:
    expected = [gang for gang in gangs if gang.expected is not Expected.NEVER_FITS]
    problems = tuple(
        f"{gang.ref}: {histories[gang.ref].job.outcome or 'not finished'}"
        for gang in expected
        if histories[gang.ref].job.outcome is not JobOutcome.SUCCEEDED
    )
    numbers = f"{len(expected) - len(problems)} of {len(expected)} jobs succeeded"
    return AuditFinding("each gang that can run has finished", numbers, problems)


def _never(
    gangs: Sequence[Gang],
    histories: Mapping[str, JobHistory],
    explained: Mapping[str, Mapping[str, Any]],
) -> AuditFinding:
    problems, sentences = [], []
    for gang in (one for one in gangs if one.expected is Expected.NEVER_FITS):
        answer = explained.get(gang.ref, {})
        sentences.append(f"{gang.name}: {answer.get('code')}: {answer.get('message')}")
        if not histories[gang.ref].job.suspended or answer.get("code") != Code.SHAPE_NEVER_FITS:
            problems.append(f"{gang.ref} is not pending with the reason {Code.SHAPE_NEVER_FITS}")
    return AuditFinding(
        "the gang that can never fit is pending, with its reason",
        "; ".join(sentences),
        tuple(problems),
    )
