"""Between placements and values of the model's variables: a hint, and from a solution pods on nodes, then pods to podset groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from queuectl.planner.capacity.node_counts import NodeCounts
from queuectl.planner.model.builder import ModelBuilder
from queuectl.planner.model.classes import GroupClass, PlacementClasses
from queuectl.planner.model.patterns import add_exact, greedy
from queuectl.planner.problem.request import ANYWHERE
from queuectl.planner.problem.topology import Ints
from queuectl.planner.solver.solver import Model, Solution, Solver, Status

Packing: TypeAlias = dict[int, dict[int, Ints]]  # node class -> pod class -> pods per node


@dataclass(frozen=True, slots=True)
class Placed:
    """The answer to one model. When FOUND, ``node_counts`` and the ``domains`` of their required levels, per podset group in order."""

    status: Status
    node_counts: tuple[NodeCounts, ...] = ()
    domains: tuple[int, ...] = ()
    alarm: str = ""


def values_of(built: ModelBuilder, node_counts: Sequence[NodeCounts]) -> list[int]:
    """The values that all variables take under a placement of the podset groups, where no gang leaves."""
    classes, values = built.classes, [0] * len(built.model.bounds)
    for group, row in zip(classes.groups, built.podset_groups, strict=True):
        for podset_group in group.podset_groups:
            placed = node_counts[podset_group]
            if classes.podset_groups[podset_group].on_one_node:
                placed = ((placed[0][0][:1], np.ones(1, dtype=np.int64)),)
            for (number, _), (nodes, counts) in zip(group.pods, placed, strict=True):
                for node, count in zip(nodes.tolist(), counts.tolist(), strict=True):
                    node_class = classes.class_of(node)
                    assert node_class is not None
                    values[built.pods[number][node_class]] += count
            if group.level != ANYWHERE:
                domain = classes.trees[group.tree].domain[group.level]
                values[row[int(domain[placed[0][0][0]])]] += 1
    for variable, others, coeffs, size in built.derived:
        values[variable] = sum(k * values[v] for v, k in zip(others, coeffs, strict=True)) // size
    return values


def pack_all(
    built: ModelBuilder, values: Sequence[int], solver: Solver, budget: int = 0
) -> tuple[Packing, set[int] | Solution]:
    """Pods per node of every class; with the node classes that have no packing, or the outcome that ended it."""
    packing: Packing = {}
    failed: set[int] = set()
    for node_class, nodes in enumerate(built.classes.members):
        there = built.pod_classes_in(node_class)
        totals = [values[built.pods[number][node_class]] for number in there]
        asked = [number for number, count in zip(there, totals, strict=True) if count]
        if not asked:
            continue
        if node_class in built.patterns:
            placed = built.patterns[node_class].read(values, totals)
            packing[node_class] = {number: placed[there.index(number)] for number in asked}
            continue
        vectors = [built.classes.pods[number][0].vector for number in asked]
        counts = [count for count in totals if count]
        packed = _pack(built.classes.free[:, nodes], vectors, counts, solver, budget)
        if isinstance(packed, Solution):
            if packed.status is not Status.REFUTED:
                return packing, packed
            failed.add(node_class)
        else:
            packing[node_class] = dict(zip(asked, packed, strict=True))
    return packing, failed


def _pack(
    free: Ints, vectors: Sequence[Ints], counts: Sequence[int], solver: Solver, budget: int
) -> Ints | Solution:
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


def hand_out(built: ModelBuilder, values: Sequence[int], packing: Packing) -> Placed:
    """Give the packed pods to the podset groups, finest required level first: what they leave is enough for the coarser."""
    classes = built.classes
    left = [np.zeros(classes.free.shape[1], dtype=np.int64) for _ in classes.pods]
    for node_class, by_pod_class in packing.items():
        for number, placed in by_pod_class.items():
            left[number][classes.members[node_class]] = placed
    node_counts: dict[int, NodeCounts] = {}
    domains = [ANYWHERE] * len(classes.podset_groups)
    for at in sorted(range(len(classes.groups)), key=lambda at: -classes.groups[at].level):
        group = classes.groups[at]
        chosen = [d for d, v in built.podset_groups[at].items() for _ in range(values[v])]
        for place, podset_group in enumerate(group.podset_groups):
            if group.level != ANYWHERE:
                domains[podset_group] = chosen[place]
            nodes = _nodes(classes, group, domains[podset_group])
            taken = tuple(_take(left[number], nodes, count) for number, count in group.pods)
            node_counts[podset_group] = _as_placed(classes, podset_group, taken)
    in_order = tuple(
        node_counts[podset_group] for podset_group in range(len(classes.podset_groups))
    )
    return Placed(Status.FOUND, in_order, tuple(domains))


def _nodes(classes: PlacementClasses, group: GroupClass, domain: int) -> Ints:
    tree = classes.trees[group.tree]
    return tree.order if group.level == ANYWHERE else tree.nodes_in(group.level, domain)


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


def _as_placed(classes: PlacementClasses, podset_group: int, taken: NodeCounts) -> NodeCounts:
    asked = classes.podset_groups[podset_group]
    if not asked.on_one_node:
        return taken
    node = taken[0][0]
    return tuple((node, np.array([p.count], dtype=np.int64)) for p in asked.pods)
