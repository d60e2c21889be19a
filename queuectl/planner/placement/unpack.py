"""From a solution of M1 to placements: pods on nodes, then pods to units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from queuectl.planner.capacity.node_counts import NodeCounts
from queuectl.planner.placement.cells import Cells, Class
from queuectl.planner.placement.model import Built
from queuectl.planner.placement.pack import add_exact, greedy
from queuectl.planner.problem.request import ANYWHERE
from queuectl.planner.problem.topology import Ints
from queuectl.planner.solver.solver import Model, Outcome, Solver, Status

Packing: TypeAlias = dict[int, dict[int, Ints]]  # cell -> kind -> pods per node of the cell


@dataclass(frozen=True, slots=True)
class Answer:
    """Of one joint question. ``node_counts`` per unit in order when FOUND; ``domains`` chosen for their required levels."""

    status: Status
    node_counts: tuple[NodeCounts, ...] = ()
    domains: tuple[int, ...] = ()
    alarm: str = ""


def pack_all(
    built: Built, values: Sequence[int], solver: Solver, budget: int
) -> tuple[Packing, set[int] | Outcome]:
    """Pods per node of every cell; with the cells that have no packing, or the outcome that ended it."""
    packing: Packing = {}
    failed: set[int] = set()
    for cell, nodes in enumerate(built.cells.members):
        kinds = [k for k in built.kinds_in(cell) if values[built.pods[k][cell]]]
        if not kinds:
            continue
        counts = [values[built.pods[k][cell]] for k in kinds]
        if cell in built.exact:
            of_cell = built.kinds_in(cell)
            placed = built.exact[cell].read(values, [values[built.pods[k][cell]] for k in of_cell])
            packing[cell] = {k: placed[of_cell.index(k)] for k in kinds}
            continue
        vectors = [built.cells.kinds[k][0].vector for k in kinds]
        packed = _pack_cell(built.cells.free[:, nodes], vectors, counts, solver, budget)
        if isinstance(packed, Outcome):
            if packed.status is not Status.REFUTED:
                return packing, packed
            failed.add(cell)
        else:
            packing[cell] = dict(zip(kinds, packed, strict=True))
    return packing, failed


def _pack_cell(
    free: Ints, vectors: Sequence[Ints], counts: Sequence[int], solver: Solver, budget: int
) -> Ints | Outcome:
    """Greedily, else by the solver; REFUTED when these counts have no packing."""
    placed = greedy(free, vectors, counts)
    if placed is not None:
        return placed
    model = Model()
    totals = [model.var(count, count) for count in counts]
    exact = add_exact(model, free, vectors, totals)
    outcome = solver.solve(model, budget)
    if outcome.status is not Status.FOUND:
        return outcome
    return exact.read(outcome.values, counts)


def hand_out(built: Built, values: Sequence[int], packing: Packing) -> Answer:
    """Give the packed pods to the units, finest required level first: what they leave is enough for the coarser."""
    cells = built.cells
    left = [np.zeros(cells.free.shape[1], dtype=np.int64) for _ in cells.kinds]
    for cell, by_kind in packing.items():
        for kind, placed in by_kind.items():
            left[kind][cells.members[cell]] = placed
    node_counts: dict[int, NodeCounts] = {}
    domains = [ANYWHERE] * len(cells.units)
    for number in sorted(range(len(cells.classes)), key=lambda i: -cells.classes[i].level):
        c = cells.classes[number]
        places = [d for d, v in built.units[number].items() for _ in range(values[v])]
        for at, unit in enumerate(c.units):
            if c.level != ANYWHERE:
                domains[unit] = places[at]
            nodes = _nodes(cells, c, domains[unit])
            taken = tuple(_take(left[kind], nodes, count) for kind, count in c.pods)
            node_counts[unit] = _as_placed(cells, unit, taken)
    return Answer(
        Status.FOUND, tuple(node_counts[i] for i in range(len(cells.units))), tuple(domains)
    )


def _nodes(cells: Cells, c: Class, domain: int) -> Ints:
    tree = cells.trees[c.tree]
    return tree.order if c.level == ANYWHERE else tree.nodes_in(c.level, domain)


def _take(left: Ints, nodes: Ints, count: int) -> tuple[Ints, Ints]:
    """``count`` pods from the first of ``nodes`` that have any."""
    there = left[nodes]
    with_pods = there.nonzero()[0]
    room = there[with_pods].cumsum()
    last = int(room.searchsorted(count))
    used, shares = nodes[with_pods[: last + 1]], there[with_pods[: last + 1]]
    shares[last] -= room[last] - count
    left[used] -= shares
    return used, shares


def _as_placed(cells: Cells, unit: int, taken: NodeCounts) -> NodeCounts:
    asked = cells.units[unit]
    if not asked.on_one_node:
        return taken
    node = taken[0][0]
    return tuple((node, np.array([p.count], dtype=np.int64)) for p in asked.pods)
