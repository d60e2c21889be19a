"""The devices that are held by claims whose pods fill no slot of a gang.

A slot of a gang counts with the request of its podset, whether or not kube-scheduler has allocated devices for its pod. Each other
allocation takes its devices off the node: those of unmanaged pods, of pods of older attempts, of named claims, and of pods that have
ended while their claims are not released yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from queuectl.domain.devices import (
    AllocatedDevice,
    ClaimSpec,
    DeviceClass,
    DeviceId,
    DeviceInventory,
)
from queuectl.domain.records import ClaimRecord
from queuectl.domain.workload import PodShape
from queuectl.state.devices import DeviceMirror, backed_resources

SlotShape = Callable[[str], PodShape | None]
"""The request of the slot that the pod with a uid fills; None if it fills none."""


class DeviceUse:
    """Updated with each pod and each claim."""

    def __init__(self, devices: DeviceMirror, slot: SlotShape) -> None:
        self._devices = devices
        self._slot = slot
        self._taken: dict[str, tuple[AllocatedDevice, ...]] = {}
        self._by_node: dict[str, tuple[AllocatedDevice, ...]] | None = {}
        self._nodes: dict[DeviceId, str] = {}
        self._inventory: DeviceInventory | None = None
        self._shared: frozenset[str] = frozenset()

    def refresh(self, holders: Iterable[str]) -> bool:
        """Judge the claims of these pods, and these claims of no pod, again (by uid, with deleted ones).

        Returns:
            Whether the held devices changed.
        """
        changed = False
        for holder in holders:
            claims = self._devices.claims_of(holder)
            held = tuple(_held(claims, self._slot(holder), self._devices)) if claims else ()
            if held != self._taken.get(holder, ()):
                self._by_node, changed = None, True
                if held:
                    self._taken[holder] = held
                else:
                    del self._taken[holder]
        return changed

    def by_node(
        self, inventory: DeviceInventory, shared: frozenset[str] = frozenset()
    ) -> Mapping[str, tuple[AllocatedDevice, ...]]:
        """Node name to the devices; the same object until one of them changes.

        Args:
            inventory: devices that it does not list are left out.
            shared: uids of claims that running gangs share; they count with these gangs.
        """
        if inventory is not self._inventory or shared != self._shared:
            self._inventory, self._shared, self._by_node = inventory, shared, None
            self._nodes = {
                device.id: name for name, own in inventory.nodes.items() for device in own.devices
            }
        if self._by_node is None:
            found: dict[str, list[AllocatedDevice]] = {}
            for holder in sorted(self._taken.keys() - shared):
                for device in self._taken[holder]:
                    node = self._nodes.get(device.id)
                    if node is not None:
                        found.setdefault(node, []).append(device)
            self._by_node = {node: tuple(devices) for node, devices in found.items()}
        return self._by_node


def _held(
    claims: Iterable[ClaimRecord], slot: PodShape | None, devices: DeviceMirror
) -> Iterable[AllocatedDevice]:
    for record in claims:
        claim = record.content
        if slot is None or not _requested(claim.spec, slot, devices.classes):
            yield from claim.allocated or ()


def _requested(spec: ClaimSpec, slot: PodShape, classes: Mapping[str, DeviceClass]) -> bool:
    """Whether the request of the slot includes the claim: a claim of its pod, or one that kube-scheduler made for an extended resource."""
    if slot.devices is not None and spec in slot.devices.claims:
        return True
    return bool(spec.requests) and all(
        _backs(classes.get(option.device_class), slot)
        for request in spec.requests
        for option in request.options
    )


def _backs(known: DeviceClass | None, slot: PodShape) -> bool:
    return known is not None and any(name in slot.requests for name in backed_resources(known))
