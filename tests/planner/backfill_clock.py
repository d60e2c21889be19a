"""A clock for planned starts: gangs arrive and run, each plan gets the planned starts of the last one, as in a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from queuectl.domain.fleet import Node
from queuectl.domain.plan import Plan, ScheduledGang
from queuectl.domain.quantity import GPU
from queuectl.domain.queues import (
    Backfill,
    BackfillOrder,
    ClusterQueue,
    Cohort,
    QueueingStrategy,
    WithinClusterQueue,
)
from queuectl.domain.snapshot import Admitted, CapacityLease, Pending, PlannedStart, Snapshot
from queuectl.domain.workload import Duration, Placement, Workload
from queuectl.planner import plan
from queuectl.planner.verify import verify
from tests.planner.build import NOW, gang, podset, queue, world


def line(
    planned_starts: int = 1,
    order: BackfillOrder = BackfillOrder.QUEUE,
    within: WithinClusterQueue = WithinClusterQueue.NEVER,
    delay: float | None = 0.0,
) -> ClusterQueue:
    """The ClusterQueue ``main`` with the strategy Backfill."""
    made = queue(strategy=QueueingStrategy.BACKFILL, within=within)
    return replace(made, backfill=Backfill(planned_starts, order, delay))


def member(
    name: str, gpu: int, *, lends: int | None = None, borrows: int | None = None
) -> ClusterQueue:
    """A ClusterQueue of the cohort ``all``."""
    made = queue(name, gpu=gpu, strategy=QueueingStrategy.BACKFILL)
    made = replace(made, cohort="all", backfill=Backfill(1, BackfillOrder.QUEUE, 0.0))
    (group,) = made.groups
    (quotas,) = group.flavors
    quotas = replace(
        quotas,
        lending={} if lends is None else {GPU: lends},
        borrowing={} if borrows is None else {GPU: borrows},
    )
    return replace(made, groups=(replace(group, flavors=(quotas,)),))


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
    least: int | None = None,
    of: str = "main",
) -> Workload:
    """A gang of equal pods that runs for a few seconds; None = it is unknown. ``least``: pods that are enough for its start."""
    pods_of = podset(count=pods, gpu=gpu, required=required, preferred=preferred)
    pods_of = replace(pods_of, min_count=least)
    made = gang(uid, pods_of, queued_at=queued_at, priority=priority, queue=of)
    return replace(made, duration=None if seconds is None else Duration(seconds, enforced))


@dataclass(frozen=True, slots=True)
class Arrival:
    """A gang, and what happens: when it comes, and how long it runs."""

    at: float
    workload: Workload
    runs: float


@dataclass(eq=False)
class Clock:
    """One cluster, cycle by cycle. A victim stops at once, and queues again at its place.

    Attributes:
        others: ClusterQueues alongside ``queue``.
        expects: seconds after its expected end at which a gang is expected to end then, each time.
        plans: of each cycle, with its time.
        started: by uid, when each gang started last.
    """

    nodes: Sequence[Node]
    arrivals: Sequence[Arrival]
    queue: ClusterQueue
    expects: float = 10.0
    others: Sequence[ClusterQueue] = ()
    cohorts: Mapping[str, Cohort] = field(default_factory=dict)
    plans: list[tuple[float, Snapshot, Plan]] = field(default_factory=list)
    started: dict[str, float] = field(default_factory=dict)
    placed: dict[str, Placement] = field(default_factory=dict)
    promised: dict[str, PlannedStart] = field(default_factory=dict)
    leases: dict[str, CapacityLease] = field(default_factory=dict)
    slips: list[ScheduledGang] = field(default_factory=list)

    def run(self, until: float) -> None:
        """Plan at each arrival and each end, and at each time at which an expected end passes."""
        now = 0.0
        while now <= until:
            while self._cycle(now):
                pass
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

    def _cycle(self, now: float) -> bool:
        """Plan once. Returns whether gangs were evicted, so that another plan follows at once."""
        snapshot = self._snapshot(now)
        made = plan(snapshot)
        assert not verify(snapshot, made)
        self.plans.append((now, snapshot, made))
        for admission in made.admitted:
            self.started[admission.uid] = now
            self.placed[admission.uid] = admission.placement
        for preemption in made.preempted:
            del self.started[preemption.victim]
        self.promised = {p.uid: p.start for p in made.planned}
        self.leases = {r.uid: r.lease for r in made.pending if r.lease is not None}
        self.slips += [p for p in made.planned if p.slip is not None]
        return bool(made.preempted)

    def _snapshot(self, now: float) -> Snapshot:
        pending, admitted = [], []
        for arrival in self.arrivals:
            workload = arrival.workload
            uid = workload.uid
            if arrival.at > now:
                continue
            if uid not in self.started:
                waits = Pending(
                    workload, lease=self.leases.get(uid), planned_start=self.promised.get(uid)
                )
                pending.append(waits)
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
        made = world(self.nodes, pending, admitted, self.queue, *self.others)
        return replace(made, now=NOW + now, config=replace(made.config, cohorts=self.cohorts))
