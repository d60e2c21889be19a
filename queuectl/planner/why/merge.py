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
from queuectl.planner.arena import Arena, survey
from queuectl.planner.asking import demand_of
from queuectl.planner.decide import place
from queuectl.planner.demand import Demand
from queuectl.planner.ledger import Ledger
from queuectl.planner.solve import Solver, Status
from queuectl.planner.topology import Ints


def fits_in_pieces(ledger: Ledger, demand: Demand, solver: Solver, *, well: bool) -> bool:
    """Whether the demand fits the ledger's free capacity in pieces. A search that ends open counts as no.

    Args:
        ledger: what is free.
        demand: the gang.
        solver: limits.
        well: whether every node counts as healthy.
    """
    if not demand.units:
        return True
    nodes = _merged(ledger, _alike(demand))
    return place_on(nodes, ledger.arena, demand, solver, well=well) is Status.FOUND


def place_on(
    nodes: Sequence[Node], arena: Arena, demand: Demand, solver: Solver, *, well: bool
) -> Status:
    """Whether a demand fits these nodes, all of them empty, quota and order left aside."""
    if not nodes:
        return Status.REFUTED  # an empty fleet would mean that nodes do not matter
    snapshot = arena.snapshot
    fleet = Fleet(tuple(sorted(nodes, key=lambda n: n.name)))
    alone = Snapshot(snapshot.now, fleet, snapshot.config, limits=snapshot.limits)
    small = survey(alone, arena.cache)
    queue = snapshot.config.cluster_queues.get(demand.queue or "")
    pending = replace(demand.pending, excluded=frozenset())
    asked = demand_of(small, pending, queue, demand.flavors, lasting=well)
    return place(asked, small.index.allocatable, solver).status


def _alike(demand: Demand) -> Ints:
    """A number per node: equal for nodes nothing of the demand tells apart, -1 for nodes it cannot use."""
    shapes = [p.shape for p in demand.pods]
    trees = {id(u.tree): u.tree for u in demand.units}.values()
    columns = [shape.eligible.astype(np.int64) for shape in dict.fromkeys(shapes)]
    columns += [tree.domain[-1] for tree in trees if tree.depth]  # the finest tells the others
    usable = np.logical_or.reduce([shape.eligible for shape in shapes])
    group = np.zeros(len(usable), dtype=np.int64)
    for column in columns:
        paired = group * (int(column.max(initial=0)) + 2) + column + 1
        _, group = np.unique(paired, return_inverse=True)
    return np.where(usable, group, -1)


def _merged(ledger: Ledger, groups: Ints) -> list[Node]:
    """One node per group, with the free capacity of all of its nodes."""
    index = ledger.arena.index
    free = np.maximum(ledger.free(), 0)
    made = []
    for group in np.unique(groups[groups >= 0]).tolist():
        members = np.flatnonzero(groups == group)
        amounts = free[:, members].sum(axis=1).tolist()
        first = index.nodes[int(members[0])]
        room = Resources(zip(index.resources, amounts, strict=True))
        made.append(replace(first, allocatable=room))
    return made
