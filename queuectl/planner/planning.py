"""From a snapshot to a plan: arena, repairs, walk, the confirming solve, and the answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from queuectl.domain.plan import Plan, Proof, Refusal
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.planner import explain
from queuectl.planner.ahead import look_ahead
from queuectl.planner.answer import answer
from queuectl.planner.arena import Arena, survey
from queuectl.planner.balance import uneven
from queuectl.planner.batch import Walk
from queuectl.planner.cache import PlannerCache
from queuectl.planner.classes import Classes
from queuectl.planner.decide import confirm, draw_together
from queuectl.planner.leases import standing_leases
from queuectl.planner.ledger import open_ledger
from queuectl.planner.mending.giveway import Mending
from queuectl.planner.mending.repair import Repaired
from queuectl.planner.moving.defragment import defragment
from queuectl.planner.packing.unpack import Answer
from queuectl.planner.queueing.lines import Lines, lines_of
from queuectl.planner.queueing.order import StrictOrder
from queuectl.planner.queueing.turns import Turns
from queuectl.planner.solve import Solver, Status, StopSignal
from queuectl.planner.tidying.tidy import tidy
from queuectl.planner.victims.dryrun import dry_run


def plan(
    snapshot: Snapshot, stop: StopSignal | None = None, cache: PlannerCache | None = None
) -> Plan:
    """Decide one cycle: who starts where, who leaves, and why everybody else waits.

    Pure and deterministic: the same snapshot gives the same plan, byte for byte, unless it was cut (``Plan.cut``).

    Args:
        snapshot: everything the cycle may look at.
        stop: lets another thread end it early; the plan is then cut.
        cache: of earlier calls; the plan does not depend on it.
    """
    cycle = begin(survey(snapshot, cache), stop)
    look_ahead(cycle.walk, cycle.in_order)
    for pending in Turns(cycle.walk, cycle.lines):
        cycle.walk.strict.come_to(pending)
        cycle.look(pending)
    cleared = defragment(cycle.walk, cycle.in_order)
    draw_together(cycle.walk.ledger, cycle.walk.moved)
    tidied = tidy(cycle.walk.ledger, list(cycle.walk.starting.values()), cycle.walk.solver)
    repairs = _confirm(cycle.walk, cycle.mending.repaired, cycle.in_order)
    made = answer(cycle.walk, repairs, cycle.in_order, tidied=tidied)
    stats = {**made.stats, "rooms_sought": cleared.sought}
    returning = cycle.walk.leases.returning
    made = replace(made, moved=cleared.moves, returning=returning, stats=stats)
    aside = Solver(snapshot.limits, cycle.walk.solver.stop)
    spared = tuple(dry_run(cycle.walk, cycle.in_order, aside))
    made = replace(made, spared=spared, alarms=(*made.alarms, *aside.alarms))
    return replace(made, uneven=tuple(uneven(cycle.walk.arena, made)))


@dataclass(frozen=True, slots=True)
class Cycle:
    """A walk about to begin: broken gangs are repaired, standing leases taken off, nobody has been looked at."""

    walk: Walk
    mending: Mending
    lines: Lines

    @property
    def in_order(self) -> Sequence[Pending]:
        """All pending gangs: priority, time queued, uid."""
        return self.lines.in_order

    def look(self, pending: Pending) -> None:
        """Decide the gang whose turn it is; broken gangs that gave way to it are repaired again."""
        self.walk.look(pending)
        self.mending.resume()


def begin(arena: Arena, stop: StopSignal | None = None) -> Cycle:
    """Everything that comes before the first pending gang."""
    snapshot = arena.snapshot
    solver = Solver(snapshot.limits, stop or StopSignal())
    ledger = open_ledger(arena)
    lines = lines_of(snapshot, arena.cache)
    leases = standing_leases(arena, ledger, lines.in_order)
    walk = Walk(arena, ledger, solver, leases, Classes(arena, lines.kinds), StrictOrder(arena))
    return Cycle(walk, Mending(walk), lines)


def turns(cycle: Cycle) -> Iterator[Pending]:
    """Each pending gang at a turn of its own: it is looked at when the next one is asked for."""
    walk = cycle.walk
    for pending in Turns(walk, cycle.lines, singly=True):
        walk.strict.come_to(pending)
        yield pending
        cycle.look(pending)


def _confirm(walk: Walk, repairs: list[Repaired], in_order: Sequence[Pending]) -> list[Repaired]:
    """Admit only what CP-SAT holds a solution for; without one nothing starts and every starter is undecided."""
    stopped = walk.solver.stop.stopped
    confirmed = Answer(Status.UNKNOWN) if stopped else confirm(walk.ledger, walk.solver)
    if confirmed.status is Status.FOUND:
        for kept, spots in zip(walk.ledger.kept, confirmed.spots, strict=True):
            if any(new is not old for new, old in zip(spots, kept.spots, strict=True)):
                walk.ledger.move(kept, spots)
        return repairs
    alarm = confirmed.alarm
    if confirmed.status is Status.REFUTED:
        alarm = "the solver refuted a placement that was verified node by node"
        walk.solver.alarms.append(alarm)
    for pending in in_order:
        uid = pending.workload.uid
        if walk.starting.pop(uid, None) is not None:
            why = explain.undecided(pending.budget, alarm)
            walk.refused[uid] = Refusal(uid, (why.reason,), pending.lease, Proof.UNDECIDED)
    walk.undecided = True
    return []
