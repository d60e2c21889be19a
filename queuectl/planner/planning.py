"""From a snapshot to a plan: arena, repairs, walk, the confirming solve, and the answer."""

from __future__ import annotations

from queuectl.domain.plan import Admission, Plan, Proof, Refusal
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.planner import explain
from queuectl.planner.arena import Arena, survey
from queuectl.planner.batch import Walk
from queuectl.planner.classes import Classes
from queuectl.planner.decide import confirm
from queuectl.planner.leases import standing_leases
from queuectl.planner.ledger import open_ledger
from queuectl.planner.order import StrictOrder, place, queue_order
from queuectl.planner.placing import placement_of
from queuectl.planner.repair import Repaired, repair, repair_order
from queuectl.planner.solve import Solver, Status, StopSignal


def plan(snapshot: Snapshot, stop: StopSignal | None = None) -> Plan:
    """Decide one cycle: who starts where, who leaves, and why everybody else waits.

    Pure and deterministic: the same snapshot gives the same plan, byte for byte, unless it was cut (``Plan.cut``).

    Args:
        snapshot: everything the cycle may look at.
        stop: lets another thread end it early; the plan is then cut.
    """
    solver = Solver(snapshot.limits, stop or StopSignal())
    arena = survey(snapshot)
    ledger = open_ledger(arena)
    in_order = queue_order(snapshot.pending)
    leases = standing_leases(arena, ledger, in_order)
    walk = Walk(arena, ledger, solver, leases, Classes(arena), StrictOrder(arena))
    repairs = _repair_all(walk)
    returning = sorted(
        (gang for gang in snapshot.admitted if gang.returns), key=lambda gang: place(gang.workload)
    )
    for pending in in_order:
        while returning and place(returning[0].workload) < place(pending.workload):
            walk.strict.keep_place(returning.pop(0))
        walk.look(pending)
    repairs = _confirm(walk, repairs, in_order)
    return _answer(walk, repairs, in_order)


def _repair_all(walk: Walk) -> list[Repaired]:
    repairs = []
    for gang in repair_order(walk.arena.usage.broken):
        done = repair(walk.arena, walk.ledger, gang, walk.solver)
        if done is None:
            walk.undecided = True
        elif isinstance(done, Repaired):
            repairs.append(done)
        else:
            walk.evicted.append(done)
    return repairs


def _confirm(walk: Walk, repairs: list[Repaired], in_order: list[Pending]) -> list[Repaired]:
    """Admit only what CP-SAT holds a solution for; without one nothing starts and every starter is undecided."""
    answer = confirm(walk.ledger, walk.solver)
    if answer.status is Status.FOUND:
        for kept, spots in zip(walk.ledger.kept, answer.spots, strict=True):
            kept.spots = spots
        return repairs
    alarm = answer.alarm
    if answer.status is Status.REFUTED:
        alarm = "the solver refuted a placement that was verified node by node"
        walk.solver.alarms.append(alarm)
    for pending in in_order:
        uid = pending.workload.uid
        if walk.starting.pop(uid, None) is not None:
            why = explain.undecided(pending.budget, alarm)
            walk.refused[uid] = Refusal(uid, (why.reason,), pending.lease, (), Proof.UNDECIDED)
    walk.undecided = True
    return []


def _answer(walk: Walk, repairs: list[Repaired], in_order: list[Pending]) -> Plan:
    arena = walk.arena
    started = [
        Admission(uid, placement_of(arena, walk.starting[uid].demand, walk.starting[uid].spots))
        for p in in_order
        if (uid := p.workload.uid) in walk.starting
    ]
    return Plan(
        admitted=(*(r.admission(arena) for r in repairs), *started),
        preempted=tuple(walk.preempted),
        evicted=tuple(walk.evicted),
        pending=tuple(
            walk.refused[p.workload.uid] for p in in_order if p.workload.uid in walk.refused
        ),
        proof=_proof(walk),
        cut=walk.solver.cut or walk.solver.stop.stopped,
        stats=_stats(walk, arena),
    )


def _proof(walk: Walk) -> Proof:
    if walk.undecided:
        return Proof.UNDECIDED
    return Proof.FEASIBLE if walk.unproved else Proof.OPTIMAL


def _stats(walk: Walk, arena: Arena) -> dict[str, float]:
    solver = walk.solver
    return {
        "nodes": arena.size,
        "looked_at": len(arena.snapshot.pending),
        "solves": solver.calls,
        "solver_unknown": solver.unknown,
        "solver_alarms": len(solver.alarms),
        "deterministic_time": solver.deterministic_time,
        "replaced": walk.moves,
    }
