"""How long gangs of the ledger run: the ends that planning assumes, and how good they were.

An expectation is kept until it is due again, so that a snapshot does not change with each gang that finishes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, inf
from typing import Final

from queuectl.domain.estimates import RunTimeSource
from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import Entry, EntryChange, State
from queuectl.domain.past_jobs import FinishedRun, GangProfile
from queuectl.domain.queues import QueueConfig
from queuectl.domain.workload import Duration
from queuectl.durations.expectations import (
    MEDIAN,
    Expectation,
    RunTimeEstimator,
    RunTimeSample,
    Stated,
    planned,
)
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror

# Seconds after which the run time of a pending or unknown gang is estimated again.
_AGAIN: Final = 600.0

_Known = tuple[GangProfile, Stated, float, float | None]
"""The input of an expectation: the gang, what is stated, the quantile, and of a live gang its begin."""


@dataclass(frozen=True, slots=True)
class RunError:
    """A finished run, and what was expected at its start.

    Attributes:
        source: of the run time that planning assumed.
        seconds: the difference to the run time that was stated, or to the median of those that were learned.
        within: the run ended within the time that planning assumed.
    """

    source: RunTimeSource
    seconds: float
    within: bool


def work_of(entry: Entry) -> GangProfile:
    """The properties of a gang of the ledger by which gangs are similar."""
    shape = (entry.pods, ceil(entry.gpus))
    return GangProfile(
        entry.cluster_queue, entry.namespace, entry.queue, entry.user, entry.name, *shape
    )


def stated_of(entry: Entry, job: JobRecord | None, config: QueueConfig) -> Stated:
    """The statements of job and ClusterQueue. For a gang that was started, the limit at its start counts."""
    stated = job.max_execution if job is not None else None
    if entry.planned is not None or not entry.state.waiting:
        limit = entry.execution_limit(stated)
    else:
        queue = config.cluster_queues.get(entry.cluster_queue)
        limit = queue.execution.limit(stated) if queue is not None else stated
    return Stated(limit, job.expected_duration if job is not None else None)


@dataclass(frozen=True, slots=True)
class _Kept:
    """An expectation, what it depends on, and the unix seconds at which it was estimated and is estimated again."""

    entry: Entry
    job: JobRecord
    config: QueueConfig
    known: _Known
    at: float
    due: float
    found: Expectation | None

    def holds(self, entry: Entry, job: JobRecord, config: QueueConfig) -> bool:
        """Whether nothing that it can depend on has changed."""
        return self.entry is entry and self.job is job and self.config is config

    def is_due(self, now: float) -> bool:
        """Whether it is to be estimated again, also after a clock was set back."""
        return not self.at <= now < self.due


class LearnedDurations:
    """The run times of one leader, learned from the runs that finish.

    Attributes:
        learned: how often the runs of earlier leaders were read. Expectations can then be due earlier than before.
    """

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self.learned = 0
        self.estimator = RunTimeEstimator()
        self._kept: dict[str, _Kept] = {}
        self._started: dict[str, tuple[Expectation, float]] = {}  # and what errors count from
        self._errors: dict[str, RunTimeSample] = {}

    def learn(self, runs: Iterable[FinishedRun]) -> None:
        """Learn from runs that finished before this leader, oldest first. Unknown run times are estimated again."""
        for run in runs:
            self.estimator.add(run)
        self._kept = {uid: kept for uid, kept in self._kept.items() if kept.found is not None}
        self.learned += 1

    def due_at(self, uid: str) -> float:
        """The unix seconds at which the expectation of a gang is to be estimated again, although nothing else has changed."""
        kept = self._kept.get(uid)
        return kept.due if kept is not None else -inf

    def attempt(
        self, entry: Entry, job: JobRecord, config: QueueConfig, now: float
    ) -> Duration | None:
        """The attempt of a pending gang that starts at ``now``; None = unknown."""
        found = self._expectation(entry, job, config, now)
        return found.attempt(entry.past_seconds) if found is not None else None

    def remaining(
        self, entry: Entry, job: JobRecord, config: QueueConfig, now: float
    ) -> Duration | None:
        """How long a live gang continues, in whole minutes so that it does not differ in each snapshot; None = unknown."""
        found = self._expectation(entry, job, config, now)
        if found is None:
            return None
        left = found.attempt(now - _began(entry))
        longest = None if left.longest is None else _whole_minutes(left.longest)
        return Duration(_whole_minutes(left.seconds), left.enforced, longest)

    def at_start(self, entry: Entry, job: JobRecord, config: QueueConfig) -> Duration | None:
        """The attempt of a gang as it is expected when the attempt starts, even if it has run for some time; None = unknown."""
        work, stated, part, _ = _known(entry, job, config)
        found = planned(work, stated, entry.past_seconds, part, self.estimator)
        return found.attempt(entry.past_seconds) if found is not None else None

    def end(
        self, entry: Entry, job: JobRecord, config: QueueConfig, now: float
    ) -> tuple[float | None, bool]:
        """When a live gang leaves, in unix seconds, and whether the controller ends it then."""
        found = self._expectation(entry, job, config, now)
        if found is None:
            return None, False
        return _began(entry) + found.seconds, found.source is RunTimeSource.LIMIT

    def note(self, changes: Iterable[EntryChange], config: QueueConfig) -> list[RunError]:
        """Apply committed changes: learn from each run that finished.

        Returns:
            The errors of what was expected of these runs.
        """
        errors = []
        for change in changes:
            entry = change.after
            if entry.state is State.STARTING and entry.uid not in self._started:
                self._expect(entry, config)
            if entry.state is not State.FINISHED:
                continue
            self.forget(entry.uid)
            first = self._started.pop(entry.uid, None)
            if not entry.attempt:
                continue
            self.estimator.add(FinishedRun(work_of(entry), entry.past_seconds))
            if first is not None:
                expected, usual = first
                within = entry.past_seconds <= expected.seconds
                seconds = abs(entry.past_seconds - usual)
                errors.append(RunError(expected.source, seconds, within))
                if expected.source is RunTimeSource.LEARNED:
                    known = self._errors.get(entry.cluster_queue, RunTimeSample())
                    self._errors[entry.cluster_queue] = known.with_run(seconds)
        return errors

    def errors(self) -> dict[str, float]:
        """ClusterQueue to the median error of its last learned run times, in seconds."""
        found = ((name, sample.quantile(MEDIAN)) for name, sample in self._errors.items())
        return {name: error for name, error in found if error is not None}

    def forget(self, uid: str) -> None:
        """Forget what is expected of a workload that has left the ledger. A process that is not the leader notes no changes."""
        self._kept.pop(uid, None)

    def keep_only(self, ledger: Ledger) -> None:
        """Forget the workloads that have left the ledger, after it was read again."""
        self._kept = {uid: kept for uid, kept in self._kept.items() if ledger.get(uid)}
        self._started = {uid: first for uid, first in self._started.items() if ledger.get(uid)}

    def _expectation(
        self, entry: Entry, job: JobRecord, config: QueueConfig, now: float
    ) -> Expectation | None:
        last = self._kept.get(entry.uid)
        current = last if last is not None and not last.is_due(now) else None
        if current is not None and current.holds(entry, job, config):
            return current.found
        known = _known(entry, job, config)
        if current is not None and current.known == known:
            found, at, due = current.found, current.at, current.due
        else:
            work, stated, part, _ = known
            found = planned(work, stated, entry.executed(now), part, self.estimator)
            at, due = now, _due(entry, found, now)
            if last is not None and last.known == known and not entry.state.live:
                found = _unless_other(last.found, found)
        self._kept[entry.uid] = _Kept(entry, job, config, known, at, due, found)
        return found

    def _expect(self, entry: Entry, config: QueueConfig) -> None:
        """Keep what is expected at the first start of a gang."""
        if entry.past_seconds > 0.0:
            return
        job = self._mirror.jobs.get(entry.uid)
        work, stated, part, _ = _known(entry, job, config)
        expected = planned(work, stated, 0.0, part, self.estimator)
        if expected is None:
            return
        usual = expected.seconds
        if expected.source is RunTimeSource.LEARNED:
            usual = self.estimator.total(work, MEDIAN) or usual
        self._started[entry.uid] = (expected, usual)


def _known(entry: Entry, job: JobRecord | None, config: QueueConfig) -> _Known:
    began = _began(entry) if entry.state.live else None
    return work_of(entry), stated_of(entry, job, config), config.rules.duration_quantile, began


def _unless_other(before: Expectation | None, now: Expectation | None) -> Expectation | None:
    """The earlier expectation of a pending gang, unless the new one differs by more than a tenth."""
    if before is None or now is None or before.source is not now.source:
        return now
    return before if abs(now.seconds - before.seconds) <= before.seconds / 10 else now


def _due(entry: Entry, expectation: Expectation | None, now: float) -> float:
    if expectation is None:
        return now + _AGAIN
    if expectation.source is RunTimeSource.LIMIT:
        return inf
    return _began(entry) + expectation.until if entry.state.live else now + _AGAIN


def _whole_minutes(seconds: float) -> float:
    """Rounded up, and at least one minute."""
    return max(ceil(seconds / 60), 1) * 60.0


def _began(entry: Entry) -> float:
    """When a live gang would have begun if its earlier attempts had preceded this one without a pause."""
    return (entry.started_at if entry.started_at is not None else entry.since) - entry.past_seconds
