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
from queuectl.planner.capacity.placements import placement_of
from queuectl.planner.cycle.cycle import AdmissionCycle
from queuectl.planner.order.queue_order import place
from queuectl.planner.repair.repair import Repaired


def make_plan(
    cycle: AdmissionCycle, repairs: Sequence[Repaired], in_order: Sequence[Pending], **stats: float
) -> Plan:
    """The plan of a cycle; ``stats`` are added to those of the cycle."""
    problem = cycle.problem
    starting = sorted(cycle.starting.values(), key=lambda k: place(k.request.pending.workload))
    started = [
        Admission(
            admission.request.pending.workload.uid,
            placement_of(problem, admission.request, admission.node_counts),
            proof=_sure(cycle, admission.request.pending.workload.uid),
        )
        for admission in starting
    ]
    refused = map(cycle.refused.get, (p.workload.uid for p in in_order))
    waiting = [r if r.lease is None else _waits(cycle, r) for r in refused if r is not None]
    pending = (*cycle.waiting_repairs, *waiting)
    sure = {refusal.uid: refusal.proof for refusal in pending if refusal.lease is not None}
    return Plan(
        admitted=(*(r.admission(problem) for r in repairs), *started),
        preempted=tuple(replace(p, proof=sure[p.preemptor]) for p in cycle.preempted),
        evicted=tuple(cycle.evicted),
        pending=pending,
        proof=_whole(cycle),
        cut=cycle.solver.ended(),
        stats=_stats(cycle) | stats,
        alarms=tuple(cycle.solver.alarms),
    )


def _sure(cycle: AdmissionCycle, uid: str) -> Proof:
    """Of a gang that starts, or waits for its victims."""
    return Proof.FEASIBLE if uid in cycle.doubtful else Proof.OPTIMAL


def _waits(cycle: AdmissionCycle, refusal: Refusal) -> Refusal:
    if refusal.proof is Proof.UNDECIDED:
        return refusal
    return replace(refusal, proof=_sure(cycle, refusal.uid))


def _whole(cycle: AdmissionCycle) -> Proof:
    if cycle.undecided:
        return Proof.UNDECIDED
    return Proof.FEASIBLE if cycle.unproved else Proof.OPTIMAL


def _stats(cycle: AdmissionCycle) -> dict[str, float]:
    solver = cycle.solver
    return {
        "nodes": cycle.problem.size,
        "looked_at": len(cycle.problem.snapshot.pending),
        "solves": solver.calls,
        "solver_unknown": solver.unknown,
        "solver_alarms": len(solver.alarms),
        "deterministic_time": solver.deterministic_time,
        "replaced": cycle.moves,
    }
