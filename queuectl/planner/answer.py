"""From a finished walk to the plan: who starts where, who leaves, who waits, and how sure each answer is.

Each answer carries a proof of its own:

- ``optimal``: proved. The gang starts, and so does everybody looked at before who can; or it does not fit beside them,
  however they are placed; or these are the least victims.
- ``feasible``: it holds, but a better one is not ruled out: victims not proved to be the least, fewer pods than might
  have fitted, or a gang looked at before is undecided and could have taken the place.
- ``undecided``: a limit ended the search, or it was not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from queuectl.domain.plan import Admission, Plan, Proof, Refusal
from queuectl.domain.snapshot import Pending
from queuectl.planner.batch import Walk
from queuectl.planner.mending.repair import Repaired
from queuectl.planner.placing import placement_of
from queuectl.planner.queueing.order import place


def answer(
    walk: Walk, repairs: Sequence[Repaired], in_order: Sequence[Pending], **stats: float
) -> Plan:
    """The plan of a walk; ``stats`` are told beside the walk's own."""
    arena = walk.arena
    starting = sorted(walk.starting.values(), key=lambda k: place(k.demand.pending.workload))
    started = [
        Admission(
            kept.demand.pending.workload.uid,
            placement_of(arena, kept.demand, kept.spots),
            proof=_sure(walk, kept.demand.pending.workload.uid),
        )
        for kept in starting
    ]
    refused = map(walk.refused.get, (p.workload.uid for p in in_order))
    waiting = [r if r.lease is None else _waits(walk, r) for r in refused if r is not None]
    pending = (*walk.mending, *waiting)
    sure = {refusal.uid: refusal.proof for refusal in pending if refusal.lease is not None}
    return Plan(
        admitted=(*(r.admission(arena) for r in repairs), *started),
        preempted=tuple(replace(p, proof=sure[p.preemptor]) for p in walk.preempted),
        evicted=tuple(walk.evicted),
        pending=pending,
        proof=_whole(walk),
        cut=walk.solver.ended(),
        stats=_stats(walk) | stats,
        alarms=tuple(walk.solver.alarms),
    )


def _sure(walk: Walk, uid: str) -> Proof:
    """Of a gang that starts, or waits for its victims."""
    return Proof.FEASIBLE if uid in walk.doubted else Proof.OPTIMAL


def _waits(walk: Walk, refusal: Refusal) -> Refusal:
    if refusal.proof is Proof.UNDECIDED:
        return refusal
    return replace(refusal, proof=_sure(walk, refusal.uid))


def _whole(walk: Walk) -> Proof:
    if walk.undecided:
        return Proof.UNDECIDED
    return Proof.FEASIBLE if walk.unproved else Proof.OPTIMAL


def _stats(walk: Walk) -> dict[str, float]:
    solver = walk.solver
    return {
        "nodes": walk.arena.size,
        "looked_at": len(walk.arena.snapshot.pending),
        "solves": solver.calls,
        "solver_unknown": solver.unknown,
        "solver_alarms": len(solver.alarms),
        "deterministic_time": solver.deterministic_time,
        "replaced": walk.moves,
    }
