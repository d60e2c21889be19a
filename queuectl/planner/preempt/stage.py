"""The nodes that one gang could use once candidates have left, cut out of the fleet: trying who must leave touches no others."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from queuectl.planner.capacity.node_counts import NodeCounts
from queuectl.planner.placement.several import find, on_fleet, on_nodes
from queuectl.planner.preempt.roster import Bench, Rows
from queuectl.planner.problem.problem import caps
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.problem.topology import Ints, Mask


@dataclass(frozen=True, eq=False, slots=True)
class Stage:
    """Some nodes in topology order, n of them.

    Attributes:
        nodes: their indexes in the fleet. Shape (n,).
        request: the gang, as if there were no other nodes.
        free: (R, n) before anybody is evicted.
        bench: the candidates, with what they hold of these nodes.
    """

    nodes: Ints
    request: GangRequest
    free: Ints
    bench: Bench

    def fits(self, victims: Mask) -> bool:
        """Whether a placement is found once these candidates (C,) have left; no proves nothing."""
        free = self._after(victims)
        return find(self.request, free, lambda shape: caps(free, shape), narrow=False) is not None

    def place(self, victims: Mask) -> NodeCounts | None:
        """Where the gang runs then, drawn together, by nodes of the fleet; None when nothing is found."""
        free = self._after(victims)
        found = find(self.request, free, lambda shape: caps(free, shape))
        return None if found is None else on_fleet(self.nodes, found)

    def _after(self, victims: Mask) -> Ints:
        return self.free + self.bench.freed(len(self.nodes), victims)


def stage_of(request: GangRequest, free: Ints, bench: Bench, useful: Mask) -> Stage:
    """Cut out the useful nodes (N,); all of the fleet where the gang's units see it by different topologies."""
    tree = request.units[0].tree
    if any(unit.tree is not tree for unit in request.units):
        return Stage(np.arange(free.shape[1]), request, free, bench)
    nodes = tree.order[useful[tree.order]]
    number = np.full(free.shape[1], -1, dtype=np.int64)
    number[nodes] = np.arange(len(nodes))
    rows = bench.rows.select(number[bench.rows.node] >= 0)
    here = Rows(rows.gang, number[rows.node], rows.use)
    return Stage(nodes, on_nodes(request, nodes), free[:, nodes], replace(bench, rows=here))
