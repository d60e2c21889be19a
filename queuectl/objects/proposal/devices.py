"""Devices of ResourceSlices as resources of the nodes, for a proposal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from queuectl.devices.charges import offers, selected
from queuectl.domain.devices import DeviceInventory
from queuectl.domain.fleet import Node
from queuectl.domain.quantity import Resources


def with_devices(
    nodes: Sequence[Node], inventory: DeviceInventory, published: Mapping[str, int]
) -> tuple[list[Node], dict[str, int]]:
    """The nodes with the devices that a DeviceClass selects as resources, and the number of the others.

    Args:
        nodes: of the cluster.
        inventory: their devices, and the classes.
        published: driver to the number of its devices.

    Returns:
        The nodes, and the driver to the number of its devices that no class selects.
    """
    remaining = Counter(published)
    remaining.subtract(selected(inventory))
    resources = offers(inventory)
    return (
        [_offering(node, resources.get(node.name, {})) for node in nodes],
        {driver: number for driver, number in remaining.items() if number > 0},
    )


def _offering(node: Node, devices: Mapping[str, int]) -> Node:
    return replace(node, allocatable=node.allocatable + Resources(devices)) if devices else node
