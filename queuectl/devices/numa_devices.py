"""The NUMA nodes of a node as shared devices: a pod consumes a part of one of them, and the kubelet chooses which.

The kubelet aligns all Guaranteed pods of a node, and which NUMA node they get is not known. Pods that do not request one NUMA node
are not counted by it: they can have shapes without number. So a node that aligns has pods of one sort: those that request it, or
others. One more device stands for the others. A counter that all these devices consume keeps it apart from the NUMA nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from queuectl.domain.devices import (
    ONE_NUMA_NODE,
    OTHER_PODS,
    POD,
    AllocatedDevice,
    CapacityPolicy,
    ClaimSpec,
    Device,
    DeviceId,
    DeviceKind,
    DeviceOption,
    DeviceRequest,
    NodeDevices,
    NodeZones,
    of_one_numa_node,
)
from queuectl.domain.quantity import PODS, Resources, format_quantity
from queuectl.domain.request_rules import PodNeeds

NUMA_DRIVER: Final = "topology.node.k8s.io"
_ANY_SCOPE: Final = ONE_NUMA_NODE
_POD_SCOPE: Final = f"{ONE_NUMA_NODE} for all containers"
NUMA_CLASSES: Final = frozenset({_ANY_SCOPE, _POD_SCOPE, OTHER_PODS})
"""They replace DeviceClasses; no object can have such a name."""

SERVES: Final = "serves"
"""The attribute with the classes for which a device is requested."""
_COUNTER: Final = ("NUMA nodes", "NUMA nodes")
_UNLIMITED: Final = Fraction(1 << 62)
_NOTHING: Final = CapacityPolicy(default=Fraction(0))
_OTHERS: Final = DeviceId(NUMA_DRIVER, "", OTHER_PODS)
_KIND_OF_OTHERS: Final = DeviceKind(
    NUMA_DRIVER, ((SERVES, (OTHER_PODS,)),), ((PODS, _UNLIMITED),), shared=True
)
_ONE: Final = ((PODS, Fraction(1)),)
HELD_BY_OTHERS: Final = AllocatedDevice(_OTHERS, OTHER_PODS, share=_ONE)
"""Held on a node that has a pod which no gang counts, and to which the kubelet gives a part of its NUMA nodes."""
CLAIM_OF_OTHERS: Final = ClaimSpec(
    (DeviceRequest(OTHER_PODS, (DeviceOption(OTHER_PODS, capacity=_ONE),)),)
)
"""Of a pod that does not request one NUMA node, and to which the kubelet gives a part of some."""
_WITHOUT_ZONES: Final = NodeDevices((Device(_OTHERS, _KIND_OF_OTHERS),))


def serves(kind: DeviceKind, option: DeviceOption) -> bool:
    """Whether a device is one that an option requests; one of them is a NUMA node, or stands for other pods."""
    served = dict(kind.attributes).get(SERVES)
    return (
        kind.driver == NUMA_DRIVER and isinstance(served, tuple) and option.device_class in served
    )


def numa_label(option: DeviceOption) -> str:
    """``one NUMA node with 4 cpu and 16Gi memory``."""
    if option.device_class == OTHER_PODS:
        return OTHER_PODS
    parts = [f"{format_quantity(name, int(value))} {name}" for name, value in option.capacity]
    return f"{option.device_class} with {' and '.join(parts)}"


def claim_of(needs: PodNeeds) -> ClaimSpec:
    """The claim of a pod on one NUMA node. With several containers, only a kubelet that chooses for the pod gives them the same."""
    alone = len(needs.all_containers) == 1
    asked = tuple((name, Fraction(v)) for name, v in sorted(of_one_numa_node(needs).items()))
    name = _ANY_SCOPE if alone else _POD_SCOPE
    return ClaimSpec((DeviceRequest(name, (DeviceOption(name, capacity=asked),)),))


@dataclass(eq=False)
class NumaDevices:
    """Makes the devices; equal kinds are one object.

    ``resources``: the resources that pods request from one NUMA node.
    """

    resources: frozenset[str]
    _kinds: dict[tuple[Resources, str, frozenset[str]], DeviceKind] = field(default_factory=dict)

    def nodes(
        self,
        names: Iterable[str],
        devices: Mapping[str, NodeDevices],
        zones: Mapping[str, NodeZones],
    ) -> dict[str, NodeDevices]:
        """The devices of each node, with its NUMA nodes."""
        return {name: self._node(devices.get(name), zones.get(name)) for name in names}

    def _node(self, own: NodeDevices | None, zones: NodeZones | None) -> NodeDevices:
        if zones is None or not zones.aligns:
            if own is None:
                return _WITHOUT_ZONES
            return _with(own, _WITHOUT_ZONES)
        number = len(zones.zones)
        more = [Device(_OTHERS, _KIND_OF_OTHERS, ((_COUNTER, number),))]
        for at, zone in enumerate(zones.zones):
            device = DeviceId(NUMA_DRIVER, "", f"node-{at:03d}")
            more.append(Device(device, self._kind(zone, zones), ((_COUNTER, 1),)))
        counters = (((NUMA_DRIVER, "", *_COUNTER), number),)
        return _with(own or NodeDevices(), NodeDevices(tuple(more), counters))

    def _kind(self, zone: Resources, zones: NodeZones) -> DeviceKind:
        """A resource that no NUMA node of a node has is not bound to any: the kubelet takes it from the node."""
        free = frozenset(_unbound(self.resources, zones.zones))
        key = (zone, zones.scope, free)
        if key not in self._kinds:
            amounts = {name: Fraction(zone[name]) for name in self.resources - free}
            amounts |= dict.fromkeys(free, _UNLIMITED)
            capacity = tuple(sorted(amounts.items()))
            served = (_ANY_SCOPE, _POD_SCOPE) if zones.scope == POD else (_ANY_SCOPE,)
            self._kinds[key] = DeviceKind(
                NUMA_DRIVER,
                ((SERVES, served),),
                capacity,
                shared=True,
                policies=tuple((name, _NOTHING) for name, _ in capacity),
            )
        return self._kinds[key]


def _unbound(resources: Collection[str], zones: Iterable[Resources]) -> Iterator[str]:
    published = {name for zone in zones for name in zone}
    return (name for name in resources if "/" in name and name not in published)


def _with(own: NodeDevices, more: NodeDevices) -> NodeDevices:
    devices = sorted((*own.devices, *more.devices), key=lambda device: device.id)
    return NodeDevices(
        tuple(devices),
        tuple(sorted((*own.counters, *more.counters))),
        own.unsupported,
        own.left_out,
        own.evaluated,
    )
