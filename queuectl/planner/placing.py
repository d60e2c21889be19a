"""Between spots (node indexes and counts) and placements (node names, in topology order)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from queuectl.domain.workload import Placement, PodSetPlacement
from queuectl.planner.arena import Arena
from queuectl.planner.demand import Demand
from queuectl.planner.ledger import Spots
from queuectl.planner.topology import Tree


def placement_of(
    arena: Arena,
    demand: Demand,
    spots: Spots,
    staying: Mapping[str, Mapping[str, int]] | None = None,
) -> Placement:
    """The placement of a gang: nodes of each podset in topology order, so that neighbouring ranks are neighbours.

    Args:
        arena: of the snapshot.
        demand: the gang under its flavors.
        spots: where the pods of the demand go.
        staying: podset to node to pods that stay where they are (a repair).
    """
    slots: list[dict[str, int]] = [
        dict((staying or {}).get(podset.name, {})) for podset in demand.pending.workload.podsets
    ]
    for pods, (nodes, counts) in zip(demand.pods, spots, strict=True):
        row = slots[pods.podset]
        for node, count in zip(nodes.tolist(), counts.tolist(), strict=True):
            name = arena.index.nodes[node].name
            row[name] = row.get(name, 0) + count
    trees = {p.podset: unit.tree for unit in demand.units for p in unit.pods}
    fallback = demand.units[0].tree if demand.units else None
    return Placement(
        tuple(
            PodSetPlacement(
                podset.name,
                tuple((n, row[n]) for n in _ranked(arena, trees.get(number, fallback), row)),
                dict(demand.flavors[number]),
            )
            for number, (podset, row) in enumerate(
                zip(demand.pending.workload.podsets, slots, strict=True)
            )
        )
    )


def _ranked(arena: Arena, tree: Tree | None, names: Mapping[str, int]) -> list[str]:
    def place(name: str) -> tuple[int, str]:
        at = arena.index.position.get(name)
        return (0 if tree is None or at is None else int(tree.position[at])), name

    return sorted(names, key=place)


def spots_of(arena: Arena, demand: Demand, placement: Placement) -> Spots | None:
    """The spots of a placement made earlier; None when it is not whole or on a node the gang may no longer use."""
    spots = []
    for pods in demand.pods:
        placed = placement.of(demand.pending.workload.podsets[pods.podset].name)
        if placed is None or placed.count != pods.count:
            return None
        known = [arena.index.position.get(name) for name, _ in placed.nodes]
        nodes = np.array([at for at in known if at is not None], dtype=np.int64)
        if len(nodes) < len(known) or not pods.shape.eligible[nodes].all():
            return None
        spots.append((nodes, np.array([count for _, count in placed.nodes], dtype=np.int64)))
    return tuple(spots)
