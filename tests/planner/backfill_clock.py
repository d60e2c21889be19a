"""A clock for planned starts: gangs arrive and run, each plan gets the planned starts of the last one, as in a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from queuectl.domain.fleet import Node
from queuectl.domain.plan import Plan, Planned
from queuectl.domain.queues import (
    Backfill,
    BackfillOrder,
    ClusterQueue,
    QueueingStrategy,
    WithinClusterQueue,
)
from queuectl.domain.snapshot import Admitted, Pending, PlannedStart, Snapshot
from queuectl.domain.workload import Duration, Placement, Workload
from queuectl.planner import plan
from queuectl.planner.verify import verify
from tests.planner.build import NOW, gang, podset, queue, world


def line(
    planned_starts: int = 1,
    order: BackfillOrder = BackfillOrder.QUEUE,
    within: WithinClusterQueue = WithinClusterQueue.NEVER,
    delay: float = 0.0,
) -> ClusterQueue:
    """The ClusterQueue ``main`` with the strategy Backfill."""
    made = queue(strategy=QueueingStrategy.BACKFILL, within=within)
    return replace(made, backfill=Backfill(planned_starts, order, delay))


def job(
    uid: str,
    pods: int,
    seconds: float | None,
    *,
    queued_at: float = 0.0,
    priority: int = 0,
    enforced: bool = True,
    required: str | None = None,
    preferred: str | None = None,
    gpu: int = 1,
) -> Workload:
    """A gang of equal pods that runs for some seconds; None = it is unknown."""
    made = gang(
        uid,
        podset(count=pods, gpu=gpu, required=required, preferred=preferred),
        queued_at=queued_at,
        priority=priority,
    )
    return replace(made, duration=None if seconds is None else Duration(seconds, enforced))


@dataclass(frozen=True, slots=True)
class Arrival:
    """A gang, and what happens: when it comes, and how long it runs."""

    at: float
    workload: Workload
    runs: float


@dataclass(eq=False)
class Clock:
    """One cluster, cycle by cycle.

    Attributes:
        plans: of each cycle, with its time.
        started: by uid, when each gang started.
        expects: seconds after its expected end at which a gang is expected to end then, each time.
    """

    nodes: Sequence[Node]
    arrivals: Sequence[Arrival]
    queue: ClusterQueue
    expects: float = 10.0
    plans: list[tuple[float, Snapshot, Plan]] = field(default_factory=list)
    started: dict[str, float] = field(default_factory=dict)
    placed: dict[str, Placement] = field(default_factory=dict)
    promised: dict[str, PlannedStart] = field(default_factory=dict)
    slips: list[Planned] = field(default_factory=list)

    def run(self, until: float) -> None:
        """Plan at each arrival and each end, and at each time at which an expected end passes."""
        now = 0.0
        while now <= until:
            self._cycle(now)
            later = [t for t in self._events(now) if t > now]
            if not later:
                return
            now = min(later)

    def _events(self, now: float) -> Iterator[float]:
        for arrival in self.arrivals:
            uid = arrival.workload.uid
            yield arrival.at
            if uid in self.started and self.started[uid] + arrival.runs > now:
                yield self.started[uid] + arrival.runs
                if (end := self._expected(arrival, now)) is not None:
                    yield end

    def _expected(self, arrival: Arrival, now: float) -> float | None:
        """When a running gang is expected to end: later each time that it has not ended by then."""
        duration = arrival.workload.duration
        if duration is None:
            return None
        end = self.started[arrival.workload.uid] + duration.seconds
        while end <= now:
            end += self.expects
        return end

    def _cycle(self, now: float) -> None:
        snapshot = self._snapshot(now)
        made = plan(snapshot)
        assert not verify(snapshot, made)
        self.plans.append((now, snapshot, made))
        for admission in made.admitted:
            self.started[admission.uid] = now
            self.placed[admission.uid] = admission.placement
        self.promised = {p.uid: p.start for p in made.planned}
        self.slips += [p for p in made.planned if p.slip is not None]

    def _snapshot(self, now: float) -> Snapshot:
        pending, admitted = [], []
        for arrival in self.arrivals:
            workload = arrival.workload
            uid = workload.uid
            if arrival.at > now:
                continue
            if uid not in self.started:
                pending.append(Pending(workload, planned_start=self.promised.get(uid)))
            elif self.started[uid] + arrival.runs > now:
                end = self._expected(arrival, now)
                admitted.append(
                    Admitted(
                        workload,
                        self.placed[uid],
                        started_at=NOW + self.started[uid],
                        ends_at=None if end is None else NOW + end,
                        end_enforced=workload.duration is not None and workload.duration.enforced,
                    )
                )
        return replace(world(self.nodes, pending, admitted, self.queue), now=NOW + now)
