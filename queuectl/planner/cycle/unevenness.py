"""Podsets that asked to be spread evenly and are not: told in the plan, so that balance is never lost in silence.

Balance is a preference. Where no domain that holds a podset can hold it evenly, or where it gave way to the start of another
gang, it starts all the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from queuectl.domain.plan import Plan
from queuectl.domain.snapshot import Pending
from queuectl.domain.workload import Placement, Workload
from queuectl.planner.model.counts import Counts
from queuectl.planner.placement.several import levels_to_try
from queuectl.planner.problem.partial import as_placed
from queuectl.planner.problem.problem import Problem
from queuectl.planner.problem.request import ANYWHERE, Pods, PodSetGroup, request_of
from queuectl.planner.problem.topology import Ints


def asks(workload: Workload) -> bool:
    """Whether some podset is to be spread evenly."""
    return any(p.topology is not None and p.topology.balanced for p in workload.podsets)


def uneven(problem: Problem, plan: Plan) -> Iterator[tuple[str, str]]:
    """(uid, podset) of what a plan places unevenly although evenly was asked for."""
    snapshot = problem.snapshot
    placements = [(a.uid, a.placement) for a in plan.admitted]
    placements += [(r.uid, r.lease.placement) for r in plan.pending if r.lease is not None]
    placements += [(m.uid, m.placement) for m in plan.moved]
    leases = {a.workload.uid: a.lease for a in snapshot.admitted} if plan.returning else {}
    for uid in plan.returning:
        if (lease := leases.get(uid)) is not None:
            placements.append((uid, lease.placement))
    placements = [(uid, placement) for uid, placement in placements if _on_nodes(placement)]
    placed = {uid for uid, _ in placements}
    if not placed:
        return
    known = {p.workload.uid: p.workload for p in snapshot.pending if p.workload.uid in placed}
    if len(known) < len(placed):  # only then running gangs are looked through
        known |= {a.workload.uid: a.workload for a in snapshot.admitted if a.workload.uid in placed}
    for uid, placement in placements:
        if asks(known[uid]):
            yield from ((uid, name) for name in _uneven(problem, known[uid], placement))


def _on_nodes(placement: Placement) -> bool:
    return any(podset.nodes for podset in placement.podsets)


def _uneven(problem: Problem, workload: Workload, placement: Placement) -> Iterator[str]:
    pending = as_placed(Pending(workload), placement)
    placed = [placement.of(podset.name) for podset in workload.podsets]
    flavors = tuple(dict(p.flavors) if p is not None else {} for p in placed)
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
    """The finest level, of those the podset group prefers or requires, at which it stands in one domain."""
    tree = podset_group.tree
    for level in levels_to_try(podset_group):
        if level == ANYWHERE:
            break
        if len(nodes if level == tree.depth else np.unique(tree.domain[level][nodes])) <= 1:
            return level
    return ANYWHERE


def _even(podset_group: PodSetGroup, level: int, pods: Pods, per_node: Ints) -> bool:
    tree, below = podset_group.tree, level + 1
    if level == tree.depth:
        return True
    sums = per_node if below == tree.depth else tree.sums(below, per_node)
    used = sums[sums > 0]
    grain = Counts(tree, per_node, pods.slices).grains[below] * pods.size
    return bool((used % grain == 0).all() and (used.max() - used.min() <= grain))
