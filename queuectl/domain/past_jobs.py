"""Workloads of the past: as jobs of a trace, and how long gangs with equal properties ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from queuectl.domain.ledger import Entry

# ---- Similar gangs, and how long they ran


@dataclass(frozen=True, slots=True)
class GangProfile:
    """The properties by which gangs are similar. An empty text or 0 = not known.

    Attributes:
        cluster_queue: the ClusterQueue that the gang is charged to.
        namespace: of the gang and its LocalQueue.
        queue: its LocalQueue.
        user: its user.
        name: of its object.
        pods: of all podsets.
        gpus: of all pods.
    """

    cluster_queue: str = ""
    namespace: str = ""
    queue: str = ""
    user: str = ""
    name: str = ""
    pods: int = 0
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A finished gang, and the seconds for which it held its nodes, all attempts together."""

    work: GangProfile
    seconds: float


# ---- Workloads as jobs of a trace


@dataclass(frozen=True, slots=True)
class UsedHour:
    """One hour of one workload, in GPU-seconds.

    Attributes:
        hour: its start, in unix seconds.
        allocated: held by the gang.
        used: measured as used.
        unknown: of ``allocated``, what was not measured.
    """

    hour: int
    allocated: float
    used: float
    unknown: float


@dataclass(frozen=True, slots=True)
class RecordedWorkload:
    """A workload that held GPUs or pods.

    Attributes:
        entry: its row of the ledger.
        lost: GPU-seconds of work that evictions in the period cost.
        hours: of the usage ledger until the end of the period, oldest first; none if they are deleted already. All hours before
            the period are one.
        complete: whether the usage ledger has the whole period.
    """

    entry: Entry
    lost: float
    hours: Sequence[UsedHour] = ()
    complete: bool = False


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """A job of a trace. Times are in seconds.

    Attributes:
        submit: after the begin of the trace. A job that was there at the begin has 0.
        duration: of its work after the begin, without the work that evictions lost.
        finished: whether it has ended. Otherwise it worked this long until the end of the trace.
        utilization: from this many seconds of work on, 0 to 1: measured GPU utilization, by hour.
    """

    entry: Entry
    submit: float
    duration: float
    finished: bool
    utilization: tuple[tuple[float, float], ...]

    @property
    def gpus_per_pod(self) -> int:
        """GPUs of each pod, rounded up."""
        return ceil(self.entry.gpus / self.entry.pods) if self.entry.pods else 0


def recorded_job(recorded: RecordedWorkload, since: float, until: float) -> RecordedJob | None:
    """The part of a workload between two full hours (unix seconds); None if it did not run between them."""
    entry, gpus = recorded.entry, float(recorded.entry.gpus)
    finished = entry.finished_at if entry.finished_at is not None else until
    hours = [one for one in recorded.hours if since <= one.hour < until]
    if gpus and recorded.complete and recorded.hours:
        worked = sum(one.allocated for one in hours) / gpus
    else:
        before = sum(one.allocated for one in recorded.hours if one.hour < since)
        worked = entry.executed(until) - max(finished - until, 0.0)
        worked -= before / gpus if gpus else 0.0
    if worked <= 0:
        return None
    worked -= recorded.lost / gpus if gpus else 0.0
    begin = max(entry.queued_at, since)
    worked = min(max(worked, 1.0), max(min(finished, until) - begin, 1.0))
    return RecordedJob(
        entry,
        begin - since,
        worked,
        entry.finished_at is not None and entry.finished_at <= until,
        _utilization(hours, gpus),
    )


def _utilization(hours: Sequence[UsedHour], gpus: float) -> tuple[tuple[float, float], ...]:
    """Hours without a measurement continue the one before."""
    curve: list[tuple[float, float]] = []
    at = 0.0
    for one in hours:
        measured = one.allocated - one.unknown
        if measured > 0:
            share = min(one.used / measured, 1.0)
            if not curve or curve[-1][1] != share:
                curve.append((at, share))
        at += one.allocated / gpus if gpus else 0.0
    return tuple(curve)
