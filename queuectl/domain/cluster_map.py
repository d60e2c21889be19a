"""The cluster map: nodes with their gangs, and the free capacity of domains.

GPUs are counted by weight on their node, as in the usage ledger: an instance of a GPU is an exact part of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from queuectl.domain.fleet import Node
from queuectl.domain.quantity import Resources
from queuectl.domain.utilization import GangUse
from queuectl.domain.workload import Workload


@dataclass(frozen=True, slots=True)
class GangOnMap:
    """A gang that holds capacity.

    Attributes:
        cluster_queue: "" when its LocalQueue leads nowhere.
        gpus, pods: that it holds, on nodes that are there.
        leaving: it is being evicted.
        use: what it does with its GPUs, None = not measured.
    """

    workload: Workload
    cluster_queue: str
    gpus: Fraction
    pods: int
    leaving: bool
    use: GangUse | None

    @property
    def utilization(self) -> float | None:
        """0..1, mean over its GPUs; None = unknown."""
        return self.use.utilization if self.use is not None else None


@dataclass(frozen=True, slots=True)
class GangOnNode:
    """A gang on one node; ``gang`` is its place in :attr:`ClusterMap.gangs`."""

    gang: int
    pods: int
    gpus: Fraction


def utilization_of(tenants: Iterable[GangOnNode], gangs: Sequence[GangOnMap]) -> float | None:
    """0..1, of the GPUs these hold and of which it is known; None = of none."""
    known = [(t.gpus, u) for t in tenants if (u := gangs[t.gang].utilization) is not None]
    weight = sum(gpus for gpus, _ in known)
    return sum(float(gpus) * u for gpus, u in known) / float(weight) if weight else None


@dataclass(frozen=True, slots=True)
class NodeOccupancy:
    """One node and who is on it.

    Attributes:
        free: capacity that no pod holds; it does not matter whether the node accepts pods now.
        gpus, free_gpus: all GPUs of the node that pods can hold, and the free ones.
        failed_gpus: the others, which its device plugin reports as unhealthy.
        tainted: (device, taint) for each taint that takes a device of it out of placement, in words.
        fragmented: free GPUs of it that the next pod is expected not to be able to use.
        tenants: gangs, the largest first.
        other_pods: held by pods that are of no gang.
    """

    node: Node
    free: Resources
    gpus: Fraction
    free_gpus: Fraction
    failed_gpus: Fraction
    tainted: tuple[tuple[str, str], ...]
    fragmented: Fraction
    tenants: tuple[GangOnNode, ...]
    other_pods: Resources

    @property
    def open(self) -> bool:
        """Whether it takes pods."""
        return self.node.ready and not self.node.unschedulable


@dataclass(frozen=True, slots=True)
class MapDomain:
    """Nodes that share one value of a topology level.

    Attributes:
        path: label values from the coarsest level to its own.
        nodes, open: how many nodes it has, and how many of them take pods.
        gpus: of all its nodes.
        free: free GPUs on nodes that accept pods; ``fragmented`` of them the next pod is expected not to be
            able to use.
        largest: name and free GPUs of the node that has most of them free; None = no node takes pods.
        gangs: how many have pods in it.
        utilization: 0..1, of the GPUs that gangs hold in it and of which it is known; None = of none.
    """

    path: tuple[str, ...]
    nodes: int
    open: int
    gpus: Fraction
    free: Fraction
    fragmented: Fraction
    largest: tuple[str, Fraction] | None
    gangs: int
    utilization: float | None


@dataclass(frozen=True, slots=True)
class TopologyLevel:
    """One level of a topology. ``of``: per node, the place of its domain in ``domains``; -1 = it is in none."""

    label: str
    domains: tuple[MapDomain, ...]
    of: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopologyLayout:
    """One topology, its levels coarse to fine, single nodes left out."""

    name: str
    levels: tuple[TopologyLevel, ...]


@dataclass(frozen=True, slots=True)
class ClusterMap:
    """Everything at one time (unix seconds). ``occupancies`` are in the order of names."""

    at: float
    gangs: tuple[GangOnMap, ...]
    occupancies: tuple[NodeOccupancy, ...]
    layouts: tuple[TopologyLayout, ...]
