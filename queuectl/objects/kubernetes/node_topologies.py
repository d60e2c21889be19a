"""NodeResourceTopology objects to records.

Agents such as node-feature-discovery publish them. ``available`` is not read (see :mod:`queuectl.devices.numa`), so that its changes
do not start a plan.
"""

from __future__ import annotations

from typing import Final

import msgspec

from queuectl.domain.devices import CONTAINER, POD, SINGLE_NUMA_NODE, NodeZones
from queuectl.domain.records import NodeTopologyRecord
from queuectl.objects.errors import under
from queuectl.objects.kubernetes.nodes import version_of
from queuectl.objects.kubernetes.requests import read_vector
from queuectl.objects.kubernetes.wire import LabeledMeta, Quantity, Wire

API_VERSION: Final = "topology.node.k8s.io/v1alpha2"
KIND: Final = "NodeResourceTopology"

_NUMA_NODE: Final = "Node"  # a type of zones; others are sockets or caches
_POLICY: Final = "topologyManagerPolicy"
_SCOPE: Final = "topologyManagerScope"
_OLD_POLICIES: Final = {
    "SingleNUMANodePodLevel": (SINGLE_NUMA_NODE, POD),
    "SingleNUMANodeContainerLevel": (SINGLE_NUMA_NODE, CONTAINER),
}
"""Values of the deprecated field ``topologyPolicies`` that enforce one NUMA node."""


class ZoneResource(Wire):
    name: str = ""
    allocatable: Quantity = 0


class Zone(Wire):
    name: str = ""
    type: str = ""
    resources: list[ZoneResource] | None = None


class TopologyAttribute(Wire):
    name: str = ""
    value: str = ""


class WireNodeTopology(Wire):
    metadata: LabeledMeta = msgspec.field(default_factory=LabeledMeta)
    zones: list[Zone] | None = None
    attributes: list[TopologyAttribute] | None = None
    topology_policies: list[str] | None = None


def read_node_topology(wire: WireNodeTopology) -> NodeTopologyRecord:
    """The NUMA nodes of the node that has the name of the object.

    Raises:
        MalformedError: naming field and value; the API server refuses it.
    """
    zones = []
    for number, zone in enumerate(wire.zones or ()):
        if zone.type == _NUMA_NODE:
            amounts = {one.name: one.allocatable for one in zone.resources or ()}
            with under(f"zones[{number}].resources"):
                zones.append((zone.name, read_vector(amounts, round_up=False)))
    zones.sort(key=lambda zone: zone[0])
    policy, scope = _kubelet(wire)
    content = NodeZones(tuple(amounts for _, amounts in zones), policy, scope)
    meta = wire.metadata
    return NodeTopologyRecord(meta.name, version_of(meta.resource_version), content)


def _kubelet(wire: WireNodeTopology) -> tuple[str, str]:
    """Policy and scope of the topology manager; attributes replace the deprecated field."""
    old = next(iter(wire.topology_policies or ()), "")
    policy, scope = _OLD_POLICIES.get(old, (old or "none", CONTAINER))
    named = {one.name: one.value for one in wire.attributes or ()}
    return named.get(_POLICY, policy), named.get(_SCOPE, scope)
