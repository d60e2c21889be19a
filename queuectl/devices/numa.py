"""Gangs whose pods request one NUMA node: a snapshot with claims on NUMA nodes, as if NUMA nodes were devices.

The amounts that NodeResourceTopology objects publish as available are not read. They are older than the last pods by seconds
or minutes, and nothing in the object states how old they are. So each NUMA node counts with what it can allocate, and each pod
of a gang takes its part from the NUMA node that is worst for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from queuectl.devices.cluster import ChangedGangs, Gang
from queuectl.devices.numa_devices import (
    CLAIM_OF_OTHERS,
    HELD_BY_OTHERS,
    NumaDevices,
    claim_of,
)
from queuectl.domain.devices import (
    POD,
    SINGLE_NUMA_NODE,
    AllocatedDevice,
    ClaimSpec,
    DeviceInventory,
    NodeZones,
    PodDevices,
    not_aligned,
    of_one_numa_node,
)
from queuectl.domain.fleet import Fleet
from queuectl.domain.quantity import CPU, MEMORY, Resources
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.words import counted
from queuectl.domain.workload import PodSet, Workload


def with_numa_nodes_of_others(
    held: Mapping[str, tuple[AllocatedDevice, ...]],
    devices: DeviceInventory,
    other_pods: Mapping[str, Resources],
    with_guaranteed: Callable[[Collection[str]], Iterable[str]],
) -> Mapping[str, tuple[AllocatedDevice, ...]]:
    """The devices that are held for no gang, with parts of NUMA nodes.

    Args:
        held: by node; the same object is returned if no node publishes its NUMA nodes.
        devices: with the NUMA nodes.
        other_pods: node to the requests of its pods that fill no slot of a gang.
        with_guaranteed: those of some nodes with such a pod of the QoS class Guaranteed.
    """
    if not devices.zones:
        return held
    found = set(with_guaranteed(devices.zones))
    for name, zones in devices.zones.items():
        used = other_pods.get(name)
        if used is not None and any(used[resource] for resource in zones.devices()):
            found.add(name)
    return {**held, **{name: (*held.get(name, ()), HELD_BY_OTHERS) for name in sorted(found)}}


@dataclass(eq=False)
class NumaNodes:
    """Everything that is kept from one snapshot to the next."""

    _inventory: tuple[Fleet, DeviceInventory, frozenset[str], DeviceInventory] | None = None
    _makes: NumaDevices = field(default_factory=lambda: NumaDevices(frozenset()))
    _claiming: _Claiming | None = None
    _gangs: ChangedGangs = field(default_factory=ChangedGangs)

    def added(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with claims on NUMA nodes; the same object if no gang requests one NUMA node."""
        gangs: tuple[Pending | Admitted, ...] = (*snapshot.admitted, *snapshot.pending)
        podsets = [p for gang in gangs for p in gang.workload.podsets if p.one_numa_node]
        if not podsets:
            return snapshot
        needs = {podset.needs for podset in podsets if podset.needs is not None}
        asked = frozenset(name for each in needs for name in of_one_numa_node(each))
        claiming = self._claiming
        if claiming is None or snapshot.devices.zones is not claiming.zones:
            claiming = self._claiming = _Claiming(snapshot.devices.zones)
            self._gangs = ChangedGangs()
        pending, admitted = self._gangs.of(snapshot, claiming.gang)
        self._gangs.forget_others(snapshot)
        return replace(
            snapshot,
            devices=self._devices(snapshot.fleet, snapshot.devices, asked),
            pending=pending,
            admitted=admitted,
        )

    def _devices(
        self, fleet: Fleet, inventory: DeviceInventory, resources: frozenset[str]
    ) -> DeviceInventory:
        last = self._inventory
        if last is None or last[:3] != (fleet, inventory, resources):
            if self._makes.resources != resources:
                self._makes = NumaDevices(resources)
            nodes = self._makes.nodes(fleet.by_name, inventory.nodes, inventory.zones)
            recovered = self._makes.nodes(inventory.recovered, inventory.recovered, inventory.zones)
            made = replace(inventory, nodes=nodes, recovered=recovered)
            last = self._inventory = fleet, inventory, resources, made
        return last[3]


class _Claiming:
    """Adds claims to gangs, for the NUMA nodes that are published."""

    def __init__(self, zones: Mapping[str, NodeZones]) -> None:
        self.zones = zones
        self._aligning = [each for each in zones.values() if each.aligns]
        self._devices = frozenset[str]().union(*(each.devices() for each in self._aligning))

    def gang(self, gang: Gang, /) -> Gang:
        podsets = tuple(map(self._podset, gang.workload.podsets))
        if podsets == gang.workload.podsets:
            return gang
        changed = replace(gang, workload=replace(gang.workload, podsets=podsets))
        if isinstance(changed, Pending):
            blocked = changed.blocked or self._refusal(gang.workload)
            changed = replace(changed, blocked=blocked)
        return changed

    def _podset(self, podset: PodSet) -> PodSet:
        claim = self._claim(podset)
        if claim is None:
            return podset
        devices = podset.shape.devices or PodDevices()
        devices = replace(devices, claims=(*devices.claims, claim))
        return replace(podset, shape=replace(podset.shape, devices=devices))

    def _claim(self, podset: PodSet) -> ClaimSpec | None:
        if podset.one_numa_node and podset.needs is not None:
            return claim_of(podset.needs)
        requests = podset.shape.requests
        # A pod is Guaranteed only if the sums are equal.
        guaranteed = all(0 < requests[n] == podset.limits[n] for n in (CPU, MEMORY))
        if guaranteed or any(requests[name] for name in self._devices):
            return CLAIM_OF_OTHERS
        return None

    def _refusal(self, workload: Workload) -> Reason | None:
        """Why no kubelet gives each pod one NUMA node."""
        for podset in workload.podsets:
            why = self._why(podset) if podset.one_numa_node else None
            if why is not None:
                text = f"podset {podset.name} requests one NUMA node for each pod: {why}"
                return Reason(Code.UNSUPPORTED, text, {"numa": why})
        return None

    def _why(self, podset: PodSet) -> str | None:
        if podset.needs is None or (why := not_aligned(podset.needs)) is not None:
            why = why if podset.needs is not None else "its containers are not known"
            return f"the kubelet aligns only Guaranteed pods with whole CPUs, and {why}"
        if not self.zones:
            return "no node has a NodeResourceTopology object"
        if not self._aligning:
            found = ", ".join(sorted({each.policy for each in self.zones.values()}))
            objects = counted(len(self.zones), "NodeResourceTopology object")
            return f"topologyManagerPolicy is {found} in {objects}, not {SINGLE_NUMA_NODE}"
        if len(podset.needs.all_containers) > 1 and not any(z.scope == POD for z in self._aligning):
            return f"its pods have several containers, and topologyManagerScope is {POD} on no node"
        return None
