"""From a finished cycle to the plan: which gangs start where, which are evicted, which wait, and how sure each answer is.

Each answer carries a proof of its own:

- ``optimal``: proved. The gang starts, and so does each gang considered before it that can; or it does not fit beside them,
  wherever they are placed; or these are the least victims.
- ``feasible``: it holds, but a better answer is not ruled out: victims that are not proved to be the least, fewer pods than perhaps
  fit, or a gang considered before is undecided and could have taken the place.
- ``undecided``: a limit ended the search, or the gang was not considered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from queuectl.domain.plan import Admission, Plan, Proof, Refusal
from queuectl.domain.snapshot import Pending
from queuectl.domain.workload import Placement, Workload
from queuectl.planner.capacity.node_counts import placement_of
from queuectl.planner.cycle.cycle import AdmissionCycle
from queuectl.planner.model.counts import ShapeCounts
from queuectl.planner.order.queue_order import place
from queuectl.planner.placement.greedy import levels_to_try
from queuectl.planner.problem.flavors import flavors_of
from queuectl.planner.problem.fleet import Ints
from queuectl.planner.problem.problem import Problem
from queuectl.planner.problem.request import (
    ANYWHERE,
    PodSetGroup,
    ShapePods,
    as_placed,
    request_of,
)
from queuectl.planner.repair import Repaired


def make_plan(
    cycle: AdmissionCycle, repairs: Sequence[Repaired], in_order: Sequence[Pending], **stats: float
) -> Plan:
    """The plan of a cycle; ``stats`` are added to those of the cycle."""
    problem = cycle.problem
    starting = sorted(cycle.starting.values(), key=lambda k: place(k.request.pending.workload))
    answers = cycle.refused | {uid: hold.refusal(problem) for uid, hold in cycle.holds.items()}
    started = [
        Admission(uid, placement_of(problem, k.request, k.node_counts), proof=_sure(cycle, uid))
        for k in starting
        if (uid := k.request.pending.workload.uid) not in cycle.holds
    ]
    refused = map(answers.get, (p.workload.uid for p in in_order))
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
    """The proof of a gang that starts, or waits for its victims."""
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


# Balance.


def uneven(problem: Problem, plan: Plan) -> Iterator[tuple[str, str]]:
    """(uid, podset) of each podset that is placed unevenly, although it asks for an even spread.

    Balance is a preference: a podset starts unevenly where no domain holds it evenly, or where the start of another gang needs
    the even place.
    """
    snapshot = problem.snapshot
    placements = [(a.uid, a.placement) for a in plan.admitted]
    placements += [(r.uid, r.lease.placement) for r in plan.pending if r.lease is not None]
    placements += [(m.uid, m.placement) for m in plan.moved]
    leases = {a.workload.uid: a.lease for a in snapshot.admitted} if plan.returning else {}
    for uid in plan.returning:
        if (lease := leases.get(uid)) is not None:
            placements.append((uid, lease.placement))
    placements = [(uid, placement) for uid, placement in placements if placement.on_nodes]
    placed = {uid for uid, _ in placements}
    if not placed:
        return
    known = {p.workload.uid: p.workload for p in snapshot.pending if p.workload.uid in placed}
    if len(known) < len(placed):  # otherwise no running gang is looked up
        known |= {a.workload.uid: a.workload for a in snapshot.admitted if a.workload.uid in placed}
    for uid, placement in placements:
        if any(p.topology is not None and p.topology.balanced for p in known[uid].podsets):
            yield from ((uid, name) for name in _uneven(problem, known[uid], placement))


def _uneven(problem: Problem, workload: Workload, placement: Placement) -> Iterator[str]:
    pending = as_placed(Pending(workload), placement)
    flavors = flavors_of(workload, placement)
    request = request_of(problem, pending, None, flavors, lasting=True)
    for podset_group in request.podset_groups:
        rows = {
            pods.podset: _per_node(problem, placement, workload.podsets[pods.podset].name)
            for pods in podset_group.pods
        }
        level = _level(podset_group, np.flatnonzero(sum(rows.values())))
        for pods in podset_group.pods:
            if pods.balanced and not _even(podset_group, level, pods, rows[pods.podset]):
                yield workload.podsets[pods.podset].name


def _per_node(problem: Problem, placement: Placement, podset: str) -> Ints:
    row = np.zeros(problem.size, dtype=np.int64)
    placed = placement.of(podset)
    for name, count in placed.nodes if placed is not None else ():
        if name in problem.index.position:
            row[problem.index.position[name]] += count
    return row


def _level(podset_group: PodSetGroup, nodes: Ints) -> int:
    """The finest level, of those the podset group prefers or requires, at which it is in one domain."""
    tree = podset_group.tree
    for level in levels_to_try(podset_group):
        if level == ANYWHERE:
            break
        if len(nodes if level == tree.depth else np.unique(tree.domain[level][nodes])) <= 1:
            return level
    return ANYWHERE


def _even(podset_group: PodSetGroup, level: int, pods: ShapePods, per_node: Ints) -> bool:
    tree, below = podset_group.tree, level + 1
    if level == tree.depth:
        return True
    sums = per_node if below == tree.depth else tree.sums(below, per_node)
    used = sums[sums > 0]
    grain = ShapeCounts(tree, per_node, pods.slices).grains[below] * pods.size
    return bool((used % grain == 0).all() and (used.max() - used.min() <= grain))
