"""Whether a gang would fit if pods could be cut in pieces and spread over the like nodes of one lowest domain.

That is what is left of a gang when the shape of its pods does not count: nodes that no rule and no topology level tells apart
become one large node. Gangs before it stay where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from queuectl.domain.fleet import Fleet, Node
from queuectl.domain.quantity import Resources
from queuectl.domain.snapshot import Snapshot
from queuectl.planner.capacity.state import State
from queuectl.planner.placement.feasible import place
from queuectl.planner.problem.problem import Problem, survey
from queuectl.planner.problem.request import GangRequest, request_of
from queuectl.planner.problem.topology import Ints
from queuectl.planner.solver.solver import Solver, Status


def fits_in_pieces(state: State, request: GangRequest, solver: Solver, *, well: bool) -> bool:
    """Whether the demand fits the ledger's free capacity in pieces. A search that ends open counts as no.

    Args:
        state: what is free.
        request: the gang.
        solver: limits.
        well: whether every node counts as healthy.
    """
    if not request.units:
        return True
    nodes = _merged(state, _alike(request))
    return place_on(nodes, state.problem, request, solver, well=well) is Status.FOUND


def place_on(
    nodes: Sequence[Node], problem: Problem, request: GangRequest, solver: Solver, *, well: bool
) -> Status:
    """Whether a demand fits these nodes, all of them empty, quota and order left aside."""
    if not nodes:
        return Status.REFUTED  # an empty fleet would mean that nodes do not matter
    snapshot = problem.snapshot
    fleet = Fleet(tuple(sorted(nodes, key=lambda n: n.name)))
    alone = Snapshot(snapshot.now, fleet, snapshot.config, limits=snapshot.limits)
    small = survey(alone, problem.cache)
    queue = snapshot.config.cluster_queues.get(request.queue or "")
    pending = replace(request.pending, excluded=frozenset())
    asked = request_of(small, pending, queue, request.flavors, lasting=well)
    return place(asked, small.index.allocatable, solver).status


def _alike(request: GangRequest) -> Ints:
    """A number per node: equal for nodes nothing of the demand tells apart, -1 for nodes it cannot use."""
    shapes = [p.shape for p in request.pods]
    trees = {id(u.tree): u.tree for u in request.units}.values()
    columns = [shape.eligible.astype(np.int64) for shape in dict.fromkeys(shapes)]
    columns += [tree.domain[-1] for tree in trees if tree.depth]  # the finest tells the others
    usable = np.logical_or.reduce([shape.eligible for shape in shapes])
    group = np.zeros(len(usable), dtype=np.int64)
    for column in columns:
        paired = group * (int(column.max(initial=0)) + 2) + column + 1
        _, group = np.unique(paired, return_inverse=True)
    return np.where(usable, group, -1)


def _merged(state: State, groups: Ints) -> list[Node]:
    """One node per group, with the free capacity of all of its nodes."""
    index = state.problem.index
    free = np.maximum(state.free(), 0)
    made = []
    for group in np.unique(groups[groups >= 0]).tolist():
        members = np.flatnonzero(groups == group)
        amounts = free[:, members].sum(axis=1).tolist()
        first = index.nodes[int(members[0])]
        room = Resources(zip(index.resources, amounts, strict=True))
        made.append(replace(first, allocatable=room))
    return made
