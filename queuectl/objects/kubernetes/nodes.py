"""Nodes, their topologies, Namespaces and PriorityClasses as records.

NodeResourceTopology objects come from agents such as node-feature-discovery. ``available`` is not read (see
:mod:`queuectl.devices.numa`), so that its changes do not start a plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from sys import intern
from typing import Final

import msgspec

from queuectl.domain.devices import CONTAINER, POD, SINGLE_NUMA_NODE, NodeZones
from queuectl.domain.fleet import HOSTNAME, Effect, Node, Taint, is_passing
from queuectl.domain.quantity import NOTHING, Resources
from queuectl.domain.queues import QueueConfig
from queuectl.domain.records import (
    NamespaceRecord,
    NodeRecord,
    NodeTopologyRecord,
    PriorityClassRecord,
)
from queuectl.domain.rules import AdmissionPlugin
from queuectl.domain.words import counted
from queuectl.objects.errors import MalformedError, under
from queuectl.objects.kubernetes.mig_reconfiguration import read_mig_reconfiguration
from queuectl.objects.kubernetes.requests import read_vector
from queuectl.objects.kubernetes.wire import (
    LabeledMeta,
    NamespaceMeta,
    NodeStatus,
    Quantity,
    Wire,
    WireNamespace,
    WireNode,
    WirePriorityClass,
    WireTaint,
)
from queuectl.objects.times import time_or_none

# ---- Nodes, Namespaces and PriorityClasses

DEFAULT_PODS: Final = 110  # kubelet's
# Values above are Kubernetes' own classes, system-node-critical for one.
_HIGHEST_OF_USERS: Final = 1_000_000_000
_OF_KUBELET: Final = frozenset(
    {"Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"}
)
_EFFECTS = {effect.value: effect for effect in Effect}


def version_of(text: str) -> int:
    """A resourceVersion as integer; 0 for none."""
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 20 else 0


def _read_labels(labels: dict[str, str] | None) -> dict[str, str]:
    """With interned keys and values: most repeat on thousands of nodes."""
    return {intern(key): intern(value) for key, value in (labels or {}).items()}


def read_taints(taints: list[WireTaint] | None, path: str) -> tuple[Taint, ...]:
    """Taints of a node or flavor.

    Raises:
        RequestError: an effect does not exist in Kubernetes.
    """
    read = []
    for i, taint in enumerate(taints or ()):
        effect = _EFFECTS.get(taint.effect)
        if effect is None:
            raise MalformedError(
                f"{path}[{i}].effect: {taint.effect!r} is not one of {', '.join(_EFFECTS)}"
            )
        read.append(Taint(intern(taint.key), effect, intern(taint.value or "")))
    return tuple(read)


def _ready(status: NodeStatus) -> bool:
    """The Ready condition. For a node without one, only its taints count, as in kube-scheduler."""
    return all(c.status == "True" for c in status.conditions or () if c.type == "Ready")


def read_node(wire: WireNode) -> NodeRecord:
    """Project a Node.

    Raises:
        RequestError: a quantity or a taint is malformed; the API server refuses such nodes.
    """
    spec, status, meta = wire.spec, wire.status or NodeStatus(), wire.metadata
    noted = meta.annotations.mig_reconfiguration if meta.annotations is not None else None
    amounts = status.allocatable if status.allocatable is not None else status.capacity
    where = "status.allocatable" if status.allocatable is not None else "status.capacity"
    with under(where):
        allocatable = read_vector(amounts, round_up=False)
    with under("status.capacity"):
        capacity = read_vector(status.capacity, round_up=False)
    node = Node(
        name=intern(meta.name),
        labels=_read_labels(meta.labels),
        allocatable=allocatable,
        taints=read_taints(spec.taints, "spec.taints") if spec is not None else (),
        ready=_ready(status),
        unschedulable=bool(spec and spec.unschedulable),
        failed=_failed(capacity, allocatable),
        mig=read_mig_reconfiguration(noted) if noted is not None else None,
        out_since=_out_since(wire),
    )
    return NodeRecord(
        node,
        version_of(meta.resource_version),
        _conditions(status),
        cordoned=node.unschedulable,
        uid=meta.uid,
    )


def _out_since(wire: WireNode) -> float | None:
    """The unix seconds since when the node is not ready, or has a taint that passes; None = neither, or without a time."""
    status, spec = wire.status, wire.spec
    conditions = (status.conditions or ()) if status is not None else ()
    times = [c.last_transition_time for c in conditions if c.type == "Ready" and c.status != "True"]
    times += [
        t.time_added for t in (spec.taints or () if spec is not None else ()) if is_passing(t.key)
    ]
    return min(filter(None, map(time_or_none, times)), default=None)


def _conditions(status: NodeStatus) -> tuple[tuple[str, str, str], ...]:
    """Conditions of other programs, without the times of heartbeats."""
    return tuple(
        (intern(c.type), intern(c.status), intern(c.reason or ""))
        for c in status.conditions or ()
        if c.type not in _OF_KUBELET
    )


def _failed(capacity: Resources, allocatable: Resources) -> Resources:
    """Devices that are in the capacity and not allocatable. The kubelet reserves none, as it does CPU and memory."""
    missing = {
        name: amount - allocatable[name]
        for name, amount in capacity.items()
        if "/" in name and amount > allocatable[name]
    }
    return Resources(missing) if missing else NOTHING


def _sorted_labels(meta: NamespaceMeta) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(_read_labels(meta.labels).items()))


def read_namespace(wire: WireNamespace) -> NamespaceRecord:
    """Project a Namespace."""
    meta, noted = wire.metadata, wire.metadata.annotations
    texts = {
        AdmissionPlugin.POD_NODE_SELECTOR: noted.pod_node_selector if noted else None,
        AdmissionPlugin.ORIGIN_POD_NODE_ENVIRONMENT: noted.openshift if noted else None,
    }
    selectors = ((plugin, _selector(text)) for plugin, text in texts.items() if text)
    return NamespaceRecord(
        intern(meta.name),
        version_of(meta.resource_version),
        _sorted_labels(meta),
        tuple(selectors),
        deleting=meta.deletion_timestamp is not None,
    )


def _selector(text: str) -> tuple[tuple[str, str], ...]:
    """Labels of nodes, as in ``a=b,c=d``. Parts without a value select nothing."""
    parts = (part.partition("=") for part in text.split(","))
    return tuple(sorted((key.strip(), value.strip()) for key, is_, value in parts if is_))


def read_priority_class(wire: WirePriorityClass) -> PriorityClassRecord:
    """Project a PriorityClass."""
    meta = wire.metadata
    return PriorityClassRecord(
        intern(meta.name),
        version_of(meta.resource_version),
        wire.value,
        bool(wire.global_default),
        wire.preemption_policy != "Never",
    )


def priority_values(records: Iterable[PriorityClassRecord]) -> dict[str, int]:
    """By name; under "" what pods without a class get: of several defaults the least, as the API server does.

    Classes of the system are left out: pods of each tenant can name them, so they do not show the importance of a gang.
    """
    return {name: record.value for name, record in _by_name(records).items()}


def never_preempting(records: Iterable[PriorityClassRecord]) -> frozenset[str]:
    """The names of the classes whose pods evict no others; "" among them stands for pods without a class."""
    return frozenset(name for name, record in _by_name(records).items() if not record.preempts)


def _by_name(records: Iterable[PriorityClassRecord]) -> dict[str, PriorityClassRecord]:
    listed = [record for record in records if record.value <= _HIGHEST_OF_USERS]
    by_name = {record.name: record for record in listed}
    defaults = [record for record in listed if record.default]
    return by_name | ({"": min(defaults, key=lambda one: one.value)} if defaults else {})


def assumed_slots(addresses: Sequence[str]) -> Iterator[str]:
    """One warning for all Nodes without a pod limit, so that it does not hide other warnings."""
    if addresses:
        first, *others = addresses
        who = f"{first} and {counted(len(others), 'other Node')}" if others else first
        yield f"{who}: status.allocatable.pods: missing, {DEFAULT_PODS} assumed"


def with_hostnames(nodes: Sequence[Node], queues: QueueConfig) -> list[Node]:
    """With the hostname label, which kubelet sets and files often omit.

    A node that has other levels of a Topology with this label does not get it, as in Kueue. Like each node without a level,
    it is in no domain.
    """

    def named(node: Node) -> Node:
        if HOSTNAME in node.labels or lacks_hostname(node, queues) is not None:
            return node
        return replace(node, labels=_read_labels({**node.labels, HOSTNAME: node.name}))

    return list(map(named, nodes))


def lacks_hostname(node: Node, queues: QueueConfig) -> str | None:
    """A Topology with other levels of a node, and with a hostname label that the node does not have."""
    for topology in queues.topologies.values():
        labeled = any(level in node.labels for level in topology.levels)
        if HOSTNAME in topology.levels and HOSTNAME not in node.labels and labeled:
            return topology.name
    return None


# ---- Topologies of nodes

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
