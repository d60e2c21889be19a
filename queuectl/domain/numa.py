"""NUMA nodes, as NodeResourceTopology objects publish them, and pods that need all they use from one NUMA node.

The kubelet chooses the NUMA node of a pod, and it enforces the choice only with the policy ``single-numa-node`` of its topology
manager. It gives a pod CPUs and memory of its own only if the pod is Guaranteed and requests whole CPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from queuectl.domain.needs import ContainerNeeds, PodNeeds, together
from queuectl.domain.quantity import CPU, MEMORY, Resources

SINGLE_NUMA_NODE: Final = "single-numa-node"
"""The policy of the kubelet that enforces one NUMA node, and the value of the annotation that requests it."""
ONE_NUMA_NODE: Final = "one NUMA node"
OTHER_PODS: Final = "other Guaranteed pods"
"""Beginnings of the names of device rows."""
POD: Final = "pod"
CONTAINER: Final = "container"
_CPU_UNITS: Final = 1000  # millicores of one CPU
_GUARANTEED: Final = (CPU, MEMORY)


@dataclass(frozen=True, slots=True)
class NodeZones:
    """The NUMA nodes of one node.

    Attributes:
        zones: allocatable amounts of each, in the order of their names.
        policy: of the topology manager.
        scope: of the topology manager: it chooses a NUMA node for each ``pod``, or for each ``container``.
    """

    zones: tuple[Resources, ...] = ()
    policy: str = "none"
    scope: str = CONTAINER

    @property
    def aligns(self) -> bool:
        """Whether its kubelet enforces one NUMA node."""
        return self.policy == SINGLE_NUMA_NODE and bool(self.zones)

    def devices(self) -> frozenset[str]:
        """The extended resources of its NUMA nodes."""
        return frozenset(name for zone in self.zones for name in zone if "/" in name)


def not_aligned(needs: PodNeeds) -> str | None:
    """Why a kubelet gives such a pod no CPUs and memory of one NUMA node; None = it does."""
    if needs.requests or needs.limits:
        return "it sets resources for the pod as a whole"
    for field, containers in (("containers", needs.containers), ("initContainers", needs.init)):
        for number, container in enumerate(containers):
            where = f"{field}[{number}].resources"
            for name in _GUARANTEED:
                if not _guaranteed(container, name):
                    return f"{where}: the limit of {name} is not set, or differs from the request"
            if dict(container.limits)[CPU] % _CPU_UNITS:
                return f"{where}: {dict(container.limits)[CPU]}m is not a whole number of CPUs"
    return None if needs.containers else "it has no containers"


def _guaranteed(container: ContainerNeeds, name: str) -> bool:
    limit = dict(container.limits).get(name, 0)
    return limit > 0 and container.effective_requests[name] == limit


def of_one_numa_node(needs: PodNeeds) -> dict[str, int]:
    """The amounts that the kubelet takes from one NUMA node. Overhead and volumes are not among them."""
    asked = together(needs, lambda container: container.effective_requests)
    return {name: value for name, value in asked.items() if value and name != "ephemeral-storage"}
