"""Warnings about devices of files that no plan uses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from queuectl.domain.devices import DeviceInventory
from queuectl.domain.records import ClaimRecord
from queuectl.domain.words import counted


def left_out(devices: DeviceInventory) -> Iterator[str]:
    """One warning for each sentence about devices that are left out, with the nodes."""
    nodes: dict[str, list[str]] = defaultdict(list)
    for node, all_ in devices.nodes.items():
        for sentence in all_.unsupported:
            nodes[sentence].append(node)
    for sentence, names in nodes.items():
        first, *others = names
        where = (
            f"Node {first} and {counted(len(others), 'other Node')}" if others else f"Node {first}"
        )
        yield f"{where}: {sentence}"


def strangers(devices: DeviceInventory, claims: Iterable[ClaimRecord]) -> Iterator[str]:
    """One warning for each device of a claim that no node of the input has."""
    known = {device.id for all_ in devices.nodes.values() for device in all_.devices}
    for record in sorted(claims, key=lambda one: (one.namespace, one.content.name)):
        for one in record.content.allocated or ():
            if one.id not in known:
                where = f"ResourceClaim {record.namespace}/{record.content.name}"
                yield f"{where}: device {one.id} is on no node of the input"
