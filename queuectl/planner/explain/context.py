"""A pending gang when the cycle considers it, and what others hold at that moment, by kind of holder.

The cycle has not decided the gang yet. Capacity and quota are kept in parts, so that each part can be left out by itself;
leaving one out never makes less room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any, Final, TypeVar

from queuectl.domain.diagnosis import Limit
from queuectl.domain.queues import ClusterQueue, QueueConfig
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import Workload
from queuectl.planner.capacity.node_counts import Reservation
from queuectl.planner.capacity.reservations import RoomAfter
from queuectl.planner.capacity.state import CycleState, HeldCapacity, Instant, open_state
from queuectl.planner.cycle.cycle import AdmissionCycle
from queuectl.planner.explain.fix_checks import FixChecks
from queuectl.planner.problem.fleet import Ints
from queuectl.planner.problem.problem import Problem
from queuectl.planner.problem.request import admissible, shrinks, with_counts
from queuectl.planner.quota import QuotaRow, QuotaUse, use_of
from queuectl.planner.solver import Solver

T = TypeVar("T")

HOLDERS: Final = frozenset({Limit.RUNNING, Limit.LEASE, Limit.ORDER})


@dataclass(frozen=True, eq=False, slots=True)
class HolderUse:
    """The use of one kind of holder, of nodes, (R, N), and of quota, at each instant of a state.

    ``reservations`` have a part of the free capacity kept for them now.
    """

    nodes: Sequence[Ints]
    quota: Sequence[Counter[QuotaRow]]
    reservations: tuple[Reservation, ...] = ()

    def less(self, *parts: HolderUse) -> HolderUse:
        """The remaining use without these parts."""
        nodes = [used - sum(p.nodes[at] for p in parts) for at, used in enumerate(self.nodes)]
        quota = list(map(Counter, self.quota))
        for part in parts:
            for rows, less in zip(quota, part.quota, strict=True):
                rows.subtract(less)
        known = {id(reservation) for part in parts for reservation in part.reservations}
        others = tuple(r for r in self.reservations if id(r) not in known)
        return HolderUse(nodes, [+rows for rows in quota], others)


@dataclass(frozen=True, eq=False)
class GangContext:
    """A gang when the cycle considers it.

    Attributes:
        cycle: up to the gang.
        pending: the gang, or the least of it that may start; its own reservation, if any, is released.
        queue: its ClusterQueue, None when it has no quota.
        solver: for the questions about the gang; it has its own counters.
        held: by kind of holder.
        head: of all gangs behind which StrictFIFO keeps it, the one with the highest priority; None = under some choice of
            flavors no gang holds it back.
        checks: plans of changed snapshots, up to the gang.
        stated: the reasons of the plan, where it proves that the gang does not start.
        answers: answers to what was asked about it.
    """

    cycle: AdmissionCycle
    pending: Pending
    queue: ClusterQueue | None
    solver: Solver
    held: Mapping[Limit, HolderUse]
    head: Workload | None
    checks: FixChecks
    stated: tuple[Reason, ...]
    answers: dict[Hashable, Any] = field(default_factory=dict)

    @property
    def problem(self) -> Problem:
        return self.cycle.problem

    @property
    def snapshot(self) -> Snapshot:
        return self.cycle.problem.snapshot

    @property
    def of_order(self) -> Reason | None:
        """The stated reason, if it is the only constraint: a planned start, or the order in which an elastic gang grows."""
        alone = {Code.WOULD_DELAY}
        if self.pending.workload.grows:
            alone.add(Code.WAITING_IN_ORDER)
        return next((reason for reason in self.stated if reason.code in alone), None)

    @property
    def uid(self) -> str:
        return self.pending.workload.uid

    @cached_property
    def refs(self) -> Mapping[str, str]:
        """Namespace and name of every gang, by uid."""
        return {workload.uid: workload.ref for workload in _workloads(self.snapshot)}

    @cached_property
    def leaving(self) -> tuple[Admitted, ...]:
        """Running gangs that were being evicted when the cycle began."""
        return tuple(gang for gang in self.snapshot.admitted if gang.leaving)

    @cached_property
    def staying(self) -> tuple[Admitted, ...]:
        """Running gangs that are neither being evicted nor victims of this cycle."""
        gone = {gang.workload.uid for gang in evicted_by(self.cycle)}
        admitted = self.snapshot.admitted
        return tuple(g for g in admitted if not g.leaving and g.workload.uid not in gone)

    @cached_property
    def strangers(self) -> tuple[Admitted, ...]:
        """Those of them that are not of the elastic gang that it extends."""
        growth = self.pending.workload.growth
        if growth is None:
            return self.staying
        others = ((gang, gang.workload.growth) for gang in self.staying)
        return tuple(
            gang
            for gang, own in others
            if growth.base not in (gang.workload.uid, own.base if own is not None else "")
        )

    @cached_property
    def movable(self) -> bool:
        """Whether a gang that starts before it could as well start elsewhere."""
        return any(not admission.fixed for admission in self.cycle.state.admissions)

    def queue_of(self, gang: Admitted) -> ClusterQueue | None:
        """The ClusterQueue of a running gang."""
        return self.snapshot.queue_of(gang.workload)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """The result of ``make``; it is called once, unless it was cut."""
        known: T = self.answers[key] if key in self.answers else make()
        if not self.solver.cut:
            self.answers[key] = known
        return known

    def state(self, holders: frozenset[Limit], config: QueueConfig) -> CycleState:
        """The state with these holders alone, under a (perhaps changed) configuration; to be read, not changed."""
        return self.once((holders, config), lambda: self.fresh_state(holders, config))

    def fresh_state(
        self, holders: frozenset[Limit], config: QueueConfig, gone: Iterable[Admitted] = ()
    ) -> CycleState:
        """The same, to be changed; the kept parts of reservations are counted as if ``gone`` had left."""
        problem, parts = self.problem, [self.held[limit] for limit in HOLDERS & holders]
        if config is not self.snapshot.config:
            problem = replace(problem, snapshot=replace(self.snapshot, config=config))
        instants = []
        for at in range(len(self.cycle.state.instants)):
            quota = sum((part.quota[at] for part in parts), Counter[QuotaRow]())
            free = problem.index.allocatable - sum(part.nodes[at] for part in parts)
            instants.append(Instant(free, use_of(problem.pools, quota)))
        state = CycleState(problem, instants)
        state.evicted.update(gang.workload.uid for gang in evicted_by(self.cycle))
        if Limit.ORDER in holders:
            state.admissions.extend(self.cycle.state.admissions)
            state.turns |= self.cycle.state.turns
        out = {gang.workload.uid for gang in gone}
        for known in chain.from_iterable(part.reservations for part in parts):
            there = known.victims if Limit.RUNNING in holders else ()
            still = [gang for gang in there if gang.workload.uid not in out]
            state.keep(RoomAfter(state, known.request, known.node_counts).reservation(still))
        return state


def context_of(
    cycle: AdmissionCycle, pending: Pending, checks: FixChecks, stated: tuple[Reason, ...] = ()
) -> GangContext:
    """The context of the gang that the cycle considers; ``stated``: the reasons for which it is known not to fit."""
    least = least_of(pending)
    queue = cycle.problem.snapshot.queue_of(pending.workload)
    return GangContext(
        cycle,
        least,
        queue,
        Solver(cycle.problem.snapshot.limits, cycle.solver.stop),
        _holdings(cycle, pending.workload.uid),
        _head(cycle, least, queue),
        checks,
        stated,
    )


def least_of(pending: Pending) -> Pending:
    """The least of a gang that may start, without its reservation: whatever lets the gang start at all lets this start."""
    least = replace(pending, lease=None)
    if not shrinks(pending.workload):
        return least
    return with_counts(least, [admissible(p)[0] for p in least.workload.podsets])


def _holdings(cycle: AdmissionCycle, uid: str) -> dict[Limit, HolderUse]:
    """By kind of holder, the use when this gang is considered; its own reservation, if any, is released."""
    running = cycle.problem.once(_running)
    if evicted := evicted_by(cycle):
        state = open_state(cycle.problem)
        for gang in evicted:
            state.evict(gang)
        running = _held_in(state)
    own, leased = _leased(cycle, lambda u: u == uid), _leased(cycle, lambda u: u != uid)
    order = _held_in(cycle.state).less(running, leased, own)
    return {Limit.RUNNING: running, Limit.LEASE: leased, Limit.ORDER: order}


def _running(problem: Problem) -> HolderUse:
    """The use of gangs that run when the cycle begins."""
    return _held_in(open_state(problem))


def _leased(cycle: AdmissionCycle, counts: Callable[[str], bool]) -> HolderUse:
    """The use of the leases of the gangs that count, by uid."""
    problem, free = cycle.problem, cycle.problem.index.allocatable.copy()
    state = CycleState(
        problem, [Instant(free, QuotaUse(problem.pools)) for _ in cycle.state.instants]
    )
    for uid, request, node_counts in cycle.leases.held():
        if counts(uid):
            state.hold(HeldCapacity(request, node_counts))
            if uid in cycle.state.reservations:
                state.reservations[uid] = cycle.state.reservations[uid]
    return _held_in(state)


def _held_in(state: CycleState) -> HolderUse:
    """All that is held in a state."""
    nodes = [state.problem.index.allocatable - instant.free for instant in state.instants]
    quota = [
        Counter(
            {
                (name, *row): amount
                for name, pool in instant.quota.pools.items()
                for row, amount in instant.quota.used.get(pool, {}).items()
            }
        )
        for instant in state.instants
    ]
    return HolderUse(nodes, quota, tuple(state.reservations.values()))


def evicted_by(cycle: AdmissionCycle) -> list[Admitted]:
    """Running gangs that this cycle evicts for those before."""
    gone = {v.victim for v in cycle.preempted} | {e.uid for e in cycle.evicted}
    evicted = cycle.problem.snapshot.admitted_of(gone) if gone else ()
    return [gang for gang in evicted if not gang.leaving]


def _head(cycle: AdmissionCycle, pending: Pending, queue: ClusterQueue | None) -> Workload | None:
    if cycle.heads.ahead_of_all(queue, cycle.classes.of(pending, queue).options) is None:
        return None
    heads = {head.ref for head in cycle.heads.heads[queue.name if queue is not None else ""]}
    workloads = _workloads(cycle.problem.snapshot)
    return max(
        (w for w in workloads if w.ref in heads and w.uid != pending.workload.uid),
        key=lambda w: w.priority,
        default=None,
    )


def _workloads(snapshot: Snapshot) -> Iterator[Workload]:
    yield from (gang.workload for gang in snapshot.pending)
    yield from (gang.workload for gang in snapshot.admitted)
