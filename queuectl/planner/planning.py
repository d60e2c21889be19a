"""From a snapshot to a plan: arena, repairs, walk, the confirming solve, and the answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from queuectl.domain.plan import Plan, Proof, Refusal
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.planner import explain
from queuectl.planner.answer import answer
from queuectl.planner.arena import Arena, survey
from queuectl.planner.batch import Walk
from queuectl.planner.classes import Classes
from queuectl.planner.decide import confirm
from queuectl.planner.defragment import defragment
from queuectl.planner.leases import standing_leases
from queuectl.planner.ledger import open_ledger
from queuectl.planner.order import StrictOrder, queue_order
from queuectl.planner.repair import Awaiting, Repaired, repair, repair_order
from queuectl.planner.solve import Solver, Status, StopSignal
from queuectl.planner.tidy import tidy
from queuectl.planner.turns import Turns
from queuectl.planner.unpack import Answer


def plan(snapshot: Snapshot, stop: StopSignal | None = None) -> Plan:
    """Decide one cycle: who starts where, who leaves, and why everybody else waits.

    Pure and deterministic: the same snapshot gives the same plan, byte for byte, unless it was cut (``Plan.cut``).

    Args:
        snapshot: everything the cycle may look at.
        stop: lets another thread end it early; the plan is then cut.
    """
    cycle = begin(snapshot, stop)
    for _ in turns(cycle):
        pass
    cleared = defragment(cycle.walk, cycle.in_order)
    tidied = tidy(cycle.walk.ledger, list(cycle.walk.starting.values()), cycle.walk.solver)
    repairs = _confirm(cycle.walk, cycle.repairs, cycle.in_order)
    made = answer(cycle.walk, repairs, cycle.in_order, tidied=tidied)
    stats = {**made.stats, "rooms_sought": cleared.sought}
    returning = cycle.walk.leases.returning
    return replace(made, moved=cleared.moves, returning=returning, stats=stats)


@dataclass(frozen=True, slots=True)
class Cycle:
    """A walk about to begin: broken gangs are repaired, standing leases taken off, nobody has been looked at."""

    walk: Walk
    repairs: list[Repaired]
    in_order: list[Pending]


def begin(snapshot: Snapshot, stop: StopSignal | None = None, arena: Arena | None = None) -> Cycle:
    """Everything that comes before the first pending gang; ``arena``: of the snapshot, if it is known already."""
    solver = Solver(snapshot.limits, stop or StopSignal())
    arena = arena or survey(snapshot)
    ledger = open_ledger(arena)
    in_order = queue_order(snapshot.pending)
    leases = standing_leases(arena, ledger, in_order)
    walk = Walk(arena, ledger, solver, leases, Classes(arena), StrictOrder(arena))
    return Cycle(walk, _repair_all(walk), in_order)


def turns(cycle: Cycle) -> Iterator[Pending]:
    """Each pending gang at its turn: it is looked at when the next one is asked for."""
    walk = cycle.walk
    for pending in Turns(walk.classes, walk.ledger).of(cycle.in_order):
        walk.strict.come_to(pending)
        yield pending
        walk.look(pending)


def _repair_all(walk: Walk) -> list[Repaired]:
    repairs = []
    for gang in repair_order(walk.arena.usage.broken):
        done = repair(walk.arena, walk.ledger, gang, walk.solver)
        if done is None:
            walk.undecided = True
        elif isinstance(done, Repaired):
            repairs.append(done)
        elif isinstance(done, Awaiting):
            walk.preempted.extend(done.victims)
            walk.unproved |= done.proof is not Proof.OPTIMAL
            walk.mending.append(done.refusal(walk.arena))
        else:
            walk.evicted.append(done)
    return repairs


def _confirm(walk: Walk, repairs: list[Repaired], in_order: list[Pending]) -> list[Repaired]:
    """Admit only what CP-SAT holds a solution for; without one nothing starts and every starter is undecided."""
    stopped = walk.solver.stop.stopped
    confirmed = Answer(Status.UNKNOWN) if stopped else confirm(walk.ledger, walk.solver)
    if confirmed.status is Status.FOUND:
        for kept, spots in zip(walk.ledger.kept, confirmed.spots, strict=True):
            kept.spots = spots
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
