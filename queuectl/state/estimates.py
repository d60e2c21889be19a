"""The input of estimates from the ledger, the current expected starts, and how good the first estimate of each gang was."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from queuectl.domain.estimates import (
    NO_ESTIMATES,
    Arrival,
    ExpectedRunTime,
    ExpectedStart,
    ExpectedStarts,
    RunTimeSource,
)
from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import Entry, EntryChange, State
from queuectl.domain.queries import IN_QUEUE_ORDER, in_queue_order
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Snapshot
from queuectl.durations.expectations import (
    MEDIAN,
    RunTimeEstimator,
    RunTimes,
    planned,
    possible_runs,
)
from queuectl.state.durations import LearnedDurations, stated_of, work_of
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror


@dataclass(frozen=True, slots=True)
class EstimateInput:
    """A copy for another thread.

    Attributes:
        snapshot: with the pending gangs that have a place in queue order.
        gangs: rows and jobs of its gangs, by uid.
        errors: ClusterQueue to the median error of learned run times, in seconds.
    """

    snapshot: Snapshot
    gangs: Mapping[str, tuple[Entry, JobRecord | None]]
    estimator: RunTimeEstimator
    errors: Mapping[str, float]

    def runs(self, uids: Iterable[str]) -> dict[str, RunTimes | None]:
        """The possible run times of gangs, by uid; None = unknown. It takes long for thousands of gangs."""
        return {uid: self._runs(*self.gangs[uid]) if uid in self.gangs else None for uid in uids}

    def run_times(self, uids: Iterable[str]) -> dict[str, ExpectedRunTime]:
        """The run times that planning assumes for gangs, by uid, without those that are unknown."""
        found = ((uid, self._run_time(*self.gangs[uid])) for uid in uids if uid in self.gangs)
        return {uid: run_time for uid, run_time in found if run_time is not None}

    def _run_time(self, entry: Entry, job: JobRecord | None) -> ExpectedRunTime | None:
        config, elapsed = self.snapshot.config, entry.executed(self.snapshot.now)
        work, part = work_of(entry), config.rules.duration_quantile
        found = planned(work, stated_of(entry, job, config), elapsed, part, self.estimator)
        if found is None:
            return None
        learned = found.source is RunTimeSource.LEARNED
        return ExpectedRunTime(
            found.source,
            found.seconds,
            part if learned else None,
            self.estimator.total(work, MEDIAN, elapsed),
            len(self.estimator.longer(work, elapsed)),
            self.errors.get(entry.cluster_queue) if learned else None,
        )

    def _runs(self, entry: Entry, job: JobRecord | None) -> RunTimes | None:
        stated = stated_of(entry, job, self.snapshot.config)
        elapsed = entry.executed(self.snapshot.now)
        return possible_runs(work_of(entry), stated, elapsed, self.estimator, entry.queued_at)


@dataclass(frozen=True, slots=True)
class EstimateError:
    """The error of the first estimate of a gang that has started.

    Attributes:
        seconds: between the median and the start, earlier or later.
    """

    cluster_queue: str
    seconds: float
    arrival: Arrival


class Estimates:
    """The estimates of one leader.

    Attributes:
        now: the newest, of gangs that have been pending since.
    """

    def __init__(self, mirror: Mirror, durations: LearnedDurations) -> None:
        self._mirror = mirror
        self._durations = durations
        self._first: dict[str, ExpectedStart] = {}  # the first estimate of each pending gang
        # The gangs that were pending at the last estimate.
        self._asked: frozenset[str] = frozenset()
        self.now: ExpectedStarts = NO_ESTIMATES

    def current(self, ledger: Ledger, snapshot: Snapshot) -> EstimateInput:
        """The input of an estimate, from the snapshot that would be planned now."""
        self._asked = frozenset(ledger.uids(*IN_QUEUE_ORDER))
        entries = {uid: entry for uid in _uids(snapshot) if (entry := ledger.get(uid)) is not None}
        waiting = [gang for gang in snapshot.pending if in_queue_order(entries[gang.workload.uid])]
        jobs = self._mirror.jobs
        gangs = {uid: (entry, jobs.get(uid)) for uid, entry in entries.items()}
        snapshot = replace(snapshot, pending=tuple(waiting))
        return EstimateInput(snapshot, gangs, self._durations.estimator, self._durations.errors())

    def lack(self, ledger: Ledger) -> bool:
        """Whether a gang is pending that was not at the last estimate. One that was not planned yet possibly starts at once."""
        new = (ledger.get(uid) for uid in ledger.uids(*IN_QUEUE_ORDER) if uid not in self._asked)
        return any(entry is not None and entry.reason.code is not Code.QUEUED for entry in new)

    def replace(self, starts: ExpectedStarts, ledger: Ledger) -> list[tuple[str, float]]:
        """Replace the estimates.

        Returns:
            ClusterQueue and median of each gang without an earlier estimate.
        """
        waiting = set(ledger.uids(*IN_QUEUE_ORDER))
        self.now = replace(starts, by_uid=_only(starts.by_uid, waiting))
        new = []
        for uid in self.now.by_uid.keys() - self._first.keys():
            self._first[uid] = starts.by_uid[uid]
            if (entry := ledger.get(uid)) is not None:
                new.append((entry.cluster_queue, starts.by_uid[uid].median))
        return new

    def forget(self, ledger: Ledger) -> None:
        """Forget the estimates of gangs that are no longer pending, after the ledger was read again."""
        waiting = set(ledger.uids(*IN_QUEUE_ORDER))
        self._first = _only(self._first, waiting)
        self.now = replace(self.now, by_uid=_only(self.now.by_uid, waiting))

    def note(self, changes: Iterable[EntryChange]) -> list[EstimateError]:
        """Apply committed changes. Returns the error of each gang that starts and had an estimate."""
        errors = []
        gone = set()
        for change in changes:
            after = change.after
            if after.state in IN_QUEUE_ORDER:
                continue
            gone.add(after.uid)
            first = self._first.pop(after.uid, None)
            if first is not None and after.state is State.STARTING:
                seconds = abs(change.at - first.median)
                errors.append(
                    EstimateError(after.cluster_queue, seconds, arrival(first, change.at))
                )
        if not gone.isdisjoint(self.now.by_uid):
            self.now = replace(
                self.now, by_uid=_only(self.now.by_uid, self.now.by_uid.keys() - gone)
            )
        return errors


def _only(starts: Mapping[str, ExpectedStart], uids: Collection[str]) -> dict[str, ExpectedStart]:
    return {uid: start for uid, start in starts.items() if uid in uids}


def arrival(first: ExpectedStart, at: float) -> Arrival:
    """A start compared with an estimate. ``at``: unix seconds."""
    if at <= first.median:
        return Arrival.BY_MEDIAN
    return Arrival.BY_P90 if first.p90 is None or at <= first.p90 else Arrival.LATER


def _uids(snapshot: Snapshot) -> Iterator[str]:
    yield from (gang.workload.uid for gang in snapshot.pending)
    yield from (gang.workload.uid for gang in snapshot.admitted)
