"""Nodes summed up by the flavors that they have and the model of their GPUs, as ``sinfo -s`` sums up partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from queuectl.domain.cluster_map import NodeOccupancy
from queuectl.domain.queues import QueueConfig
from queuectl.objects.proposal.labels import LABELS

_PRODUCTS: Final = tuple(dict.fromkeys(key for each in LABELS.values() for key in each.products))


@dataclass(slots=True)
class NodeSum:
    """The nodes of one group.

    Attributes:
        gpus: that pods can hold, on all nodes.
        used: held by pods.
        free: free on nodes that take pods.
        closed: nodes that are cordoned or unhealthy, and ready.
        down: nodes that are not ready.
    """

    nodes: int = 0
    gpus: Fraction = Fraction()
    used: Fraction = Fraction()
    free: Fraction = Fraction()
    closed: int = 0
    down: int = 0


NodeGroup = tuple[tuple[str, ...], str]
"""The names of the ResourceFlavors whose labels a node has, and the model of its GPUs; empty = none is known."""


def node_sums(
    occupancies: Iterable[NodeOccupancy], config: QueueConfig
) -> Mapping[NodeGroup, NodeSum]:
    """The nodes of each group, by name. A node is in one group, so the sums of all groups are those of the cluster."""
    flavors = sorted(config.flavors.values(), key=lambda flavor: flavor.name)
    sums: dict[NodeGroup, NodeSum] = {}
    for occupancy in occupancies:
        node = occupancy.node
        names = tuple(f.name for f in flavors if f.node_labels and node.has_labels(f.node_labels))
        group = sums.setdefault((names, _model(node.labels)), NodeSum())
        group.nodes += 1
        group.gpus += occupancy.gpus
        group.used += occupancy.gpus - occupancy.free_gpus
        if not node.ready:
            group.down += 1
        elif node.unschedulable:
            group.closed += 1
        else:
            group.free += occupancy.free_gpus
    return dict(sorted(sums.items()))


def _model(labels: Mapping[str, str]) -> str:
    return next((labels[key] for key in _PRODUCTS if key in labels), "")
