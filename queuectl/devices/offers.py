"""The devices of each node by the resource that a queue is charged for them, for a proposal of quota."""

from __future__ import annotations

from collections import Counter

from queuectl.devices.matching import Matching, NotMatched
from queuectl.devices.requests import Classes
from queuectl.domain.devices import DeviceInventory, DeviceOption, NodeDevices


def offers(inventory: DeviceInventory) -> dict[str, dict[str, int]]:
    """Node name to each charged resource and the number of devices that pods can hold at a time.

    A device that a taint takes out of use does not count.
    """
    classes, matching = Classes(inventory.classes, ()), Matching(inventory.classes)
    found: dict[str, dict[str, int]] = {}
    for name, node in inventory.nodes.items():
        at: dict[str, set[int]] = {}
        for device_class in sorted(inventory.classes):
            try:
                positions = matching(DeviceOption(device_class), node)
            except NotMatched:
                continue
            at.setdefault(classes.charged(device_class), set()).update(positions)
        counts = {resource: _at_a_time(node, own) for resource, own in sorted(at.items())}
        found[name] = {resource: count for resource, count in counts.items() if count}
    return {name: own for name, own in found.items() if own}


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
