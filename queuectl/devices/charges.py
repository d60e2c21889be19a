"""The resources that queues are charged for devices: those of a gang, and those of the nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from queuectl.devices.matching import Matching, NotMatched
from queuectl.devices.requests import DeviceClasses, lowered_shape
from queuectl.devices.shared import ClaimKey, with_shared_claims
from queuectl.domain.devices import DeviceClass, DeviceInventory, DeviceOption, NodeDevices
from queuectl.domain.fleet import Node
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.domain.workload import PodSet, Workload

# ---- The charges of one gang


def with_charges(workload: Workload, classes: DeviceClasses) -> Workload:
    """The gang with the resources that are charged for its devices among its requests."""
    podsets = tuple(_charged(podset, classes) for podset in workload.podsets)
    return replace(workload, podsets=podsets) if podsets != workload.podsets else workload


def charged_gang(
    gang: Admitted, snapshot: Snapshot, classes: DeviceClasses, elsewhere: Collection[ClaimKey] = ()
) -> Admitted:
    """The same for a gang that holds capacity, with podsets for the claims that its pods share.

    Args:
        gang: as its users know it.
        snapshot: without gangs.
        classes: of devices.
        elsewhere: claims that count for other gangs.
    """
    if any(podset.shared_claims for podset in gang.workload.podsets):
        gang = with_shared_claims(replace(snapshot, admitted=(gang,)), classes, elsewhere).admitted[
            0
        ]
    return replace(gang, workload=with_charges(gang.workload, classes))


def _charged(podset: PodSet, classes: DeviceClasses) -> PodSet:
    request = classes.request_of(podset.shape)
    if request is None:
        return podset
    return replace(podset, shape=lowered_shape(podset.shape, classes.requested(request), {}, {}))


# ---- Resources that no Reservation can keep by amount


def device_resources(
    classes: Mapping[str, DeviceClass], mapped: tuple[tuple[str, str], ...], nodes: Iterable[Node]
) -> frozenset[str]:
    """The resources that request devices, or are charged for them, and that no node has itself.

    Args:
        classes: DeviceClasses by name.
        mapped: DeviceClass and the resource that the Configuration charges for its devices.
        nodes: of the cluster.
    """
    of_devices = DeviceClasses(classes, mapped).every_resource
    if not of_devices:
        return of_devices
    return of_devices - {
        name for node in nodes for name, amount in node.allocatable.items() if amount
    }


# ---- Devices of each node by charged resource


def offers(inventory: DeviceInventory) -> dict[str, dict[str, int]]:
    """Node name to each charged resource and the number of devices that pods can hold at a time.

    A device that a taint takes out of use does not count.
    """
    classes, matching = DeviceClasses(inventory.classes, ()), Matching(inventory.classes)
    by_node: dict[str, dict[str, int]] = {}
    for name, node in inventory.nodes.items():
        at: dict[str, set[int]] = {}
        for device_class in sorted(inventory.classes):
            try:
                positions = matching(DeviceOption(device_class), node)
            except NotMatched:
                continue
            at.setdefault(classes.charged(device_class), set()).update(positions)
        counts = {resource: _at_a_time(node, own) for resource, own in sorted(at.items())}
        by_node[name] = {resource: count for resource, count in counts.items() if count}
    return {name: own for name, own in by_node.items() if own}


def selected(inventory: DeviceInventory) -> dict[str, int]:
    """Driver to the number of its devices that a DeviceClass selects."""
    matching = Matching(inventory.classes)
    options = [DeviceOption(name) for name in sorted(inventory.classes)]
    return Counter(
        device.id.driver
        for node in inventory.nodes.values()
        for device in node.devices
        if any(matching.selects(option, device.kind) for option in options)
    )


def _at_a_time(node: NodeDevices, positions: set[int]) -> int:
    """Devices that share counters are different divisions of one: those that take the least count first."""
    devices = [node.devices[at] for at in sorted(positions)]
    usable = [d for d in devices if not any(t.effect != "None" for t in d.kind.taints)]
    left = dict(node.counters)
    count = 0
    for device in sorted(usable, key=lambda one: sum(n for _, n in one.consumes)):
        needs = {(device.id.driver, device.id.pool, *key): n for key, n in device.consumes}
        if all(left.get(key, 0) >= n for key, n in needs.items()):
            count += 1
            for key, n in needs.items():
                left[key] -= n
    return count
