"""One pending gang at its turn: what everybody else holds at that moment, kept apart by who holds it.

The walk has come to the gang and has not looked at it yet. What others hold of nodes and of quota is kept in parts
(:mod:`queuectl.planner.explain.held`), so that each can be left out by itself.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from queuectl.domain.diagnosis import Limit
from queuectl.domain.plan import Refusal
from queuectl.domain.queues import ClusterQueue, QueueConfig
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import Workload
from queuectl.planner.capacity.reservations import reservation_of
from queuectl.planner.capacity.state import State
from queuectl.planner.cycle.cycle import AdmissionCycle
from queuectl.planner.explain.held import HOLDERS, Held, books_of, evicted, held_before
from queuectl.planner.explain.known import Known, is_refused, of_cycle
from queuectl.planner.explain.loosen import any_flavor
from queuectl.planner.placement.feasible import Decision
from queuectl.planner.preempt.roster import Bench
from queuectl.planner.preempt.search import Found
from queuectl.planner.problem.partial import admissible, shrinks, with_counts
from queuectl.planner.problem.problem import Problem
from queuectl.planner.search.classes import GangClasses
from queuectl.planner.solver.solver import Solver

# Reasons of gangs that would take what others get.
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


@dataclass(eq=False, slots=True)
class Shared:
    """Work done for one gang that holds for every gang that comes to the same books.

    Attributes:
        states: by holders and configuration.
        places: searches for a place, by what was asked, of whose books.
        exits: searches for the least set of gangs to end, by what was asked.
        kept: gangs that start, moves among them and exits, up to the turn it is of.
    """

    kept: tuple[int, ...]
    states: dict[tuple[frozenset[Limit], QueueConfig], State] = field(default_factory=dict)
    places: dict[Hashable, Decision] = field(default_factory=dict)
    exits: dict[Hashable, tuple[Bench, Found]] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Window:
    """Work done for one gang that holds for every gang of the same walk.

    Attributes:
        classes: what gangs ask, by the arena they ask it of.
        everyone: all gangs that stay, and the search for whom to end among them prepared.
    """

    classes: dict[Problem, GangClasses] = field(default_factory=dict)
    everyone: tuple[tuple[Admitted, ...], Bench] | None = None

    def classes_of(self, problem: Problem) -> GangClasses:
        """Of a snapshot, perhaps with its queues changed."""
        return self.classes.setdefault(problem, GangClasses(problem))


@dataclass(frozen=True, eq=False)
class Turn:
    """A gang and the world at its turn.

    Attributes:
        cycle: up to the gang.
        pending: the gang, or the least of it that may start; its own lease, if any, is given back.
        queue: its ClusterQueue, None when it has no quota.
        solver: for the questions asked about it; its counters are its own.
        held: by kind of holder.
        restless: whether a gang before it in line, or one being repaired, would like more than it got.
        head: of all gangs that StrictFIFO keeps it behind, the one with the highest priority; None = it is held back by
            none, under some choice of flavors at least.
        refused: it is known already that it does not fit.
        shared: with the turn before, where nothing was taken or given back in between.
        window: shared by all turns of the walk.
        answered: whether it fits in the worlds that were asked about (see queuectl.planner.explain.trial).
    """

    cycle: AdmissionCycle
    pending: Pending
    queue: ClusterQueue | None
    solver: Solver
    held: dict[Limit, Held]
    restless: bool
    head: Workload | None
    refused: bool
    shared: Shared
    window: Window
    answered: dict[Hashable, Any] = field(default_factory=dict, init=False)

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
    def staying(self) -> tuple[Admitted, ...]:
        """Running gangs that neither leave already nor are taken down for those before it."""
        gone = {g.workload.uid for g in evicted(self.cycle)}
        admitted = self.snapshot.admitted
        return tuple(g for g in admitted if not g.leaving and g.workload.uid not in gone)

    @cached_property
    def movable(self) -> bool:
        """Whether somebody who starts before it could as well start elsewhere."""
        return any(not kept.fixed for kept in self.cycle.state.kept)

    @cached_property
    def any_flavor(self) -> QueueConfig:
        """The configuration in which flavors do not count."""
        return any_flavor(self.problem, self.queue, self.pending.workload)

    @cached_property
    def before(self) -> Known:
        """Where those before it start."""
        return of_cycle(self.cycle)

    def state(self, holders: frozenset[Limit], config: QueueConfig) -> State:
        """The books with only these holders in them, under a (perhaps changed) configuration; to be read, not changed."""
        states = self.shared.states
        known = states.get((holders, config))
        if known is None:
            known = states[holders, config] = self.fresh_ledger(holders, config)
        return known

    def fresh_ledger(
        self, holders: frozenset[Limit], config: QueueConfig, gone: Iterable[Admitted] = ()
    ) -> State:
        """The same, to be changed; of what leases are owed, as if ``gone`` had left."""
        out = {gang.workload.uid for gang in gone}

        def credit(limit: Limit) -> None:
            for known in self.held[limit].owed if limit in holders else ():
                there = known.victims if Limit.RUNNING in holders else ()
                still = [gang for gang in there if gang.workload.uid not in out]
                state.owe(reservation_of(state.problem, known.request, known.node_counts, still))

        state = books_of(self.problem, config, [self.held[h] for h in sorted(HOLDERS & holders)])
        state.gone.update(g.workload.uid for g in evicted(self.cycle))
        credit(Limit.LEASE)
        if Limit.ORDER in holders:
            for kept in self.cycle.state.kept:
                state.keep(kept)
        credit(Limit.ORDER)
        return state


def turn_of(cycle: AdmissionCycle, pending: Pending, before: Turn | None = None) -> Turn:
    """The turn of the gang that the walk has come to; ``before``: one that it came to earlier, to share its work."""
    snapshot = cycle.problem.snapshot
    workload = pending.workload
    queue = snapshot.config.cluster_queue_of(workload.namespace, workload.queue)
    held = held_before(cycle, pending)
    solver = Solver(snapshot.limits, cycle.solver.stop)
    least = least_of(pending)
    refused = is_refused(cycle, workload.uid)
    shared = _shared(cycle, held, before)
    window = before.window if before is not None else Window()
    head = _head(cycle, least, queue)
    return Turn(cycle, least, queue, solver, held, restless(cycle), head, refused, shared, window)


def _shared(cycle: AdmissionCycle, held: Mapping[Limit, Held], before: Turn | None) -> Shared:
    kept = (len(cycle.state.kept), cycle.moves, len(cycle.preempted), len(cycle.evicted))
    if before is None or before.shared.kept != kept:
        return Shared(kept)
    same = all(held[limit].equals(before.held[limit]) for limit in HOLDERS)
    return before.shared if same else Shared(kept)


def _head(cycle: AdmissionCycle, pending: Pending, queue: ClusterQueue | None) -> Workload | None:
    choices = [choice for choice, _ in cycle.classes.of(pending, queue).requests]
    if not choices or any(cycle.heads.ahead(queue, choice) is None for choice in choices):
        return None
    heads = {head.ref for head in cycle.heads.heads[queue.name if queue is not None else ""]}
    snapshot = cycle.problem.snapshot
    waiting = [p.workload for p in snapshot.pending] + [a.workload for a in snapshot.admitted]
    return max(
        (w for w in waiting if w.ref in heads and w.uid != pending.workload.uid),
        key=lambda w: w.priority,
        default=None,
    )


def least_of(pending: Pending) -> Pending:
    """The least of it that may start: whatever lets the gang start at all lets this start."""
    pending = replace(pending, lease=None)
    if not shrinks(pending.workload):
        return pending
    return with_counts(pending, [admissible(p)[0] for p in pending.workload.podsets])


def restless(cycle: AdmissionCycle) -> bool:
    """Whether somebody before it would take of what is added: it waits, is repaired, or has a flavor it likes less."""
    return unsteady(cycle) or any(map(wants, cycle.refused.values()))


def wants(refusal: Refusal) -> bool:
    """Whether a gang that was told this would take of what is added."""
    return refusal.reasons[0].code in _WANTING


def unsteady(cycle: AdmissionCycle) -> bool:
    """Whether somebody who starts, or runs on, may do so elsewhere or otherwise after a change."""
    if cycle.problem.usage.broken:
        return True
    queues = cycle.problem.snapshot.config.cluster_queues
    named = {kept.request.queue for kept in cycle.state.kept} - {None}
    return any(
        len(g.flavors) > 1 for name in sorted(n for n in named if n) for g in queues[name].groups
    )
