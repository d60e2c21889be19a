"""The resources that no Reservation can keep by amount: those that only devices of ResourceSlices provide."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from queuectl.devices.requests import Classes
from queuectl.domain.devices import DeviceClass
from queuectl.domain.fleet import Node


def device_resources(
    classes: Mapping[str, DeviceClass], mapped: tuple[tuple[str, str], ...], nodes: Iterable[Node]
) -> frozenset[str]:
    """The resources that request devices, or are charged for them, and that no node has itself.

    Args:
        classes: DeviceClasses by name.
        mapped: DeviceClass and the resource that the Configuration charges for its devices.
        nodes: of the cluster.
    """
    of_devices = Classes(classes, mapped).every_resource
    if not of_devices:
        return of_devices
    return of_devices - {
        name for node in nodes for name, amount in node.allocatable.items() if amount
    }
