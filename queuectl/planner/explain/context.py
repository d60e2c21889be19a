"""A pending gang at its turn in a cycle, and what others hold at that moment, by kind of holder.

The cycle has not decided the gang yet. Capacity and quota are kept in parts, so that each part can be left out by itself;
leaving one out never makes less room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, TypeVar

import numpy as np

from queuectl.domain.diagnosis import Limit
from queuectl.domain.plan import Refusal
from queuectl.domain.queues import ClusterQueue, QueueConfig
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import Workload
from queuectl.planner.capacity.node_counts import Reservation
from queuectl.planner.capacity.reservations import reservation_of
from queuectl.planner.capacity.state import Instant, State, open_state
from queuectl.planner.cycle.cycle import AdmissionCycle
from queuectl.planner.explain.replay import is_refused
from queuectl.planner.problem.partial import admissible, shrinks, with_counts
from queuectl.planner.problem.problem import Problem
from queuectl.planner.problem.topology import Ints
from queuectl.planner.quota.tree import QuotaRow, QuotaUse, use_of
from queuectl.planner.search.gang_classes import GangClasses
from queuectl.planner.solver.solver import Solver

T = TypeVar("T")

HOLDERS: Final = frozenset({Limit.RUNNING, Limit.LEASE, Limit.ORDER})

# Gangs that are refused for another reason than these want nothing of what is added or freed.
_WANTING: Final = frozenset(
    {
        Code.WAITING_FOR_QUOTA,
        Code.EXCEEDS_MAX_QUOTA,
        Code.NO_MATCHING_FLAVOR,
        Code.TOPOLOGY_PLACEMENT_FAILED,
        Code.SHAPE_NEVER_FITS,
        Code.WAITING_FOR_PREEMPTED,
        Code.WAITING_TO_RECLAIM,
        Code.WAITING_IN_ORDER,
        Code.PENDING_EVALUATION,
        Code.UNDECIDED,
    }
)


@dataclass(frozen=True, eq=False, slots=True)
class Holdings:
    """What one kind of holder uses of nodes, (R, N), and of quota, at both instants of a state.

    ``reservations`` are owed a part of what is free now.
    """

    now: Ints
    later: Ints
    quota_now: Counter[QuotaRow]
    quota_later: Counter[QuotaRow]
    reservations: tuple[Reservation, ...] = ()

    def equals(self, other: Holdings) -> bool:
        """Whether it is the same amounts of the same nodes and quotas."""
        return (
            self.quota_now == other.quota_now
            and self.quota_later == other.quota_later
            and self.reservations == other.reservations
            and np.array_equal(self.now, other.now)
            and np.array_equal(self.later, other.later)
        )

    def less(self, *parts: Holdings) -> Holdings:
        """What is left of it without these parts."""
        now, later = self.now - sum(p.now for p in parts), self.later - sum(p.later for p in parts)
        quota_now, quota_later = Counter(self.quota_now), Counter(self.quota_later)
        for part in parts:
            quota_now.subtract(part.quota_now)
            quota_later.subtract(part.quota_later)
        known = [reservation for part in parts for reservation in part.reservations]
        others = tuple(r for r in self.reservations if r not in known)
        return Holdings(now, later, +quota_now, +quota_later, others)


@dataclass(frozen=True, eq=False)
class Context:
    """A gang at its turn.

    Attributes:
        cycle: up to the gang.
        pending: the gang, or the least of it that may start; its own reservation, if any, is released.
        queue: its ClusterQueue, None when it has no quota.
        solver: for the questions about the gang; it has counters of its own.
        held: by kind of holder.
        wanted: whether a gang before it, or one being repaired, would take of what is added or freed.
        head: of all gangs behind which StrictFIFO keeps it, the one with the highest priority; None = under some choice of
            flavors no gang holds it back.
        refused: it is known already that it does not fit.
        kept: gangs that start, moves among them and evictions, up to the gang.
        classes: what gangs request, by problem; of all turns of the cycle.
        found: answers that hold for every gang that comes to the same holdings.
        answered: whether the gang fits under the relaxations that were tried.
    """

    cycle: AdmissionCycle
    pending: Pending
    queue: ClusterQueue | None
    solver: Solver
    held: Mapping[Limit, Holdings]
    wanted: bool
    head: Workload | None
    refused: bool
    kept: tuple[int, ...]
    classes: dict[Problem, GangClasses] = field(default_factory=dict)
    found: dict[Hashable, Any] = field(default_factory=dict)
    answered: dict[Hashable, Any] = field(default_factory=dict)

    @property
    def problem(self) -> Problem:
        return self.cycle.problem

    @property
    def snapshot(self) -> Snapshot:
        return self.cycle.problem.snapshot

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
        gone = {gang.workload.uid for gang in _evicted(self.cycle)}
        admitted = self.snapshot.admitted
        return tuple(g for g in admitted if not g.leaving and g.workload.uid not in gone)

    @cached_property
    def movable(self) -> bool:
        """Whether a gang that starts before it could as well start elsewhere."""
        return any(not kept.fixed for kept in self.cycle.state.kept)

    def queue_of(self, gang: Admitted) -> ClusterQueue | None:
        """The ClusterQueue of a running gang."""
        return self.snapshot.config.cluster_queue_of(gang.workload.namespace, gang.workload.queue)

    def classes_of(self, problem: Problem) -> GangClasses:
        """What gangs request of a problem, perhaps with other queues."""
        return self.classes.setdefault(problem, GangClasses(problem))

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What ``make`` returns; it is called once for all gangs that come to the same holdings, unless it was cut."""
        if key in self.found:
            known: T = self.found[key]
            return known
        made = make()
        if not self.solver.cut:
            self.found[key] = made
        return made

    def state(self, holders: frozenset[Limit], config: QueueConfig) -> State:
        """The state with these holders alone, under a (perhaps changed) configuration; to be read, not changed."""
        return self.once((holders, config), lambda: self.fresh_state(holders, config))

    def fresh_state(
        self, holders: frozenset[Limit], config: QueueConfig, gone: Iterable[Admitted] = ()
    ) -> State:
        """The same, to be changed; what reservations are owed is counted as if ``gone`` had left."""
        problem, parts = self.problem, [self.held[limit] for limit in HOLDERS & holders]
        if config is not self.snapshot.config:
            problem = replace(problem, snapshot=replace(self.snapshot, config=config))
        free = problem.index.allocatable
        quota_now, quota_later = Counter[QuotaRow](), Counter[QuotaRow]()
        for part in parts:
            quota_now.update(part.quota_now)
            quota_later.update(part.quota_later)
        state = State(
            problem,
            (
                Instant(free - sum(p.now for p in parts), use_of(problem.pools, quota_now)),
                Instant(free - sum(p.later for p in parts), use_of(problem.pools, quota_later)),
            ),
        )
        state.gone.update(gang.workload.uid for gang in _evicted(self.cycle))
        out = {gang.workload.uid for gang in gone}

        def owe(limit: Limit) -> None:
            for known in self.held[limit].reservations if limit in holders else ():
                there = known.victims if Limit.RUNNING in holders else ()
                still = [gang for gang in there if gang.workload.uid not in out]
                state.owe(reservation_of(problem, known.request, known.node_counts, still))

        owe(Limit.LEASE)
        for kept in self.cycle.state.kept if Limit.ORDER in holders else ():
            state.keep(kept)
        owe(Limit.ORDER)
        return state


def context_of(cycle: AdmissionCycle, pending: Pending, before: Context | None = None) -> Context:
    """The turn of the gang that the cycle has come to; ``before``: an earlier turn of the cycle, to share its work."""
    config, uid = cycle.problem.snapshot.config, pending.workload.uid
    least = replace(pending, lease=None)
    if shrinks(pending.workload):  # whatever lets the gang start at all lets the least of it start
        least = with_counts(least, [admissible(p)[0] for p in least.workload.podsets])
    queue = config.cluster_queue_of(pending.workload.namespace, pending.workload.queue)
    made = Context(
        cycle,
        least,
        queue,
        Solver(cycle.problem.snapshot.limits, cycle.solver.stop),
        _holdings(cycle, uid),
        _varies(cycle) or any(map(_wants, cycle.refused.values())),
        _head(cycle, least, queue),
        is_refused(cycle, uid),
        (len(cycle.state.kept), cycle.moves, len(cycle.preempted), len(cycle.evicted)),
    )
    if before is None:
        return made
    same = before.kept == made.kept and all(
        holdings.equals(before.held[limit]) for limit, holdings in made.held.items()
    )
    return replace(made, classes=before.classes, found=before.found if same else {})


def _holdings(cycle: AdmissionCycle, uid: str) -> dict[Limit, Holdings]:
    """By kind of holder, what is held at the turn of this gang; its own reservation, if any, is released."""
    problem = cycle.problem
    reserved, own, kept = (_empty(problem) for _ in range(3))
    running = open_state(problem)
    for gang in _evicted(cycle):
        running.evict(gang)
    for name, request, node_counts in cycle.leases.held():
        part = own if name == uid else reserved
        part.hold(request, node_counts)
        if name in cycle.state.reservations:
            part.reservations[name] = cycle.state.reservations[name]
    for gang_kept in cycle.state.kept:
        kept.keep(gang_kept)
    parts = [_held_in(state) for state in (running, reserved, own, kept)]
    order = _held_in(cycle.state).less(*parts)
    return {Limit.RUNNING: parts[0], Limit.LEASE: parts[1], Limit.ORDER: order}


def _empty(problem: Problem) -> State:
    free = problem.index.allocatable.copy()
    return State(
        problem, [Instant(free, QuotaUse(problem.pools)), Instant(free, QuotaUse(problem.pools))]
    )


def _held_in(state: State) -> Holdings:
    """All that is held in a state."""
    offered = state.problem.index.allocatable
    now, later = state.now, state.later
    return Holdings(
        offered - now.free,
        offered - later.free,
        _rows(now.quota),
        _rows(later.quota),
        tuple(state.reservations.values()),
    )


def _rows(use: QuotaUse) -> Counter[QuotaRow]:
    """What each ClusterQueue itself uses."""
    used = ((name, use.used.get(pool, {})) for name, pool in use.pools.items())
    return Counter({(name, *row): amount for name, rows in used for row, amount in rows.items()})


def _evicted(cycle: AdmissionCycle) -> list[Admitted]:
    """Running gangs that this cycle evicts for those before."""
    gone = {v.victim for v in cycle.preempted} | {e.uid for e in cycle.evicted}
    admitted = cycle.problem.snapshot.admitted if gone else ()
    return [gang for gang in admitted if gang.workload.uid in gone and not gang.leaving]


def _head(cycle: AdmissionCycle, pending: Pending, queue: ClusterQueue | None) -> Workload | None:
    choices = [choice for choice, _ in cycle.classes.of(pending, queue).requests]
    if not choices or any(cycle.heads.ahead(queue, choice) is None for choice in choices):
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


def _wants(refusal: Refusal) -> bool:
    """Whether a gang that was refused for this would take of what is added."""
    return refusal.reasons[0].code in _WANTING


def _varies(cycle: AdmissionCycle) -> bool:
    """Whether a gang that starts, or is repaired, can do so elsewhere or in another flavor after a change."""
    queues = cycle.problem.snapshot.config.cluster_queues
    named = {kept.request.queue for kept in cycle.state.kept} - {None}
    return bool(cycle.problem.usage.broken) or any(
        len(group.flavors) > 1 for name in named if name for group in queues[name].groups
    )
