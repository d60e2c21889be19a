"""Taints that take devices out of placement: those of ResourceSlices, and those of DeviceTaintRules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from operator import is_
from typing import Final

from queuectl.domain.devices import (
    Device,
    DeviceEffect,
    DeviceInventory,
    DeviceKind,
    DeviceTaint,
    DeviceTaintRule,
    DeviceToleration,
    NodeDevices,
)
from queuectl.domain.pool_slices import PoolSlice, PublishedDevice

_MOST_KINDS: Final = 1 << 14


class TaintedSlices:
    """ResourceSlices with the taints of DeviceTaintRules. Unchanged ones are the same objects from one revision to the next."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[tuple[object, ...], PoolSlice]] = {}

    def of(
        self, slices: Iterable[PoolSlice], rules: Sequence[DeviceTaintRule]
    ) -> Iterator[PoolSlice]:
        """The slices, each with the taints of the rules that select its devices.

        Args:
            slices: as published.
            rules: of the cluster, in a fixed order.
        """
        made = {}
        for one in slices:
            own = [rule for rule in rules if _reaches(rule, one)]
            if not own:
                yield one
                continue
            key, known = (one, *own), self._made.get(one.name)
            if known is None or len(known[0]) != len(key) or not all(map(is_, known[0], key)):
                devices = tuple(_tainted(device, own) for device in one.devices)
                known = key, replace(one, devices=devices)
            made[one.name] = known
            yield known[1]
        self._made = made


def _reaches(rule: DeviceTaintRule, one: PoolSlice) -> bool:
    return rule.driver in (None, one.driver) and rule.pool in (None, one.pool)


def _tainted(device: PublishedDevice, rules: Iterable[DeviceTaintRule]) -> PublishedDevice:
    taints = tuple(rule.taint for rule in rules if rule.device in (None, device.name))
    return replace(device, kind=_kind(device.kind, taints)) if taints else device


@lru_cache(maxsize=_MOST_KINDS)
def _kind(kind: DeviceKind, taints: tuple[DeviceTaint, ...]) -> DeviceKind:
    """Equal kinds are one object."""
    return replace(kind, taints=(*kind.taints, *taints))


def out_of_placement(inventory: DeviceInventory) -> Mapping[str, tuple[Device, ...]]:
    """The devices with a taint that has an effect, by node."""
    found = {}
    for name, node in inventory.nodes.items():
        devices = tuple(d for d in node.devices if d.kind.taints and any(effective(d)))
        if devices:
            found[name] = devices
    return found


def effective(device: Device) -> Iterator[DeviceTaint]:
    """The taints of a device that do more than inform."""
    return (taint for taint in device.kind.taints if taint.effect is not DeviceEffect.NONE)


def without_taints(node: NodeDevices) -> NodeDevices:
    """The devices of a node without taints that have an effect; itself where no device has one."""
    if not any(device.kind.taints and any(effective(device)) for device in node.devices):
        return node
    devices = (replace(device, kind=_untainted(device.kind)) for device in node.devices)
    return replace(node, devices=tuple(devices))


@lru_cache(maxsize=_MOST_KINDS)
def _untainted(kind: DeviceKind) -> DeviceKind:
    """Equal kinds are one object."""
    return replace(kind, taints=())


def endures(tolerations: Iterable[DeviceToleration], taint: DeviceTaint) -> bool:
    """Whether a pod keeps a device with this taint for as long as it runs.

    A toleration of ``NoExecute`` needs this effect, as in the controller of Kubernetes that deletes the pods.
    """
    return any(
        toleration.tolerates(taint)
        and (
            taint.effect is not DeviceEffect.NO_EXECUTE
            or (toleration.effect is DeviceEffect.NO_EXECUTE and toleration.seconds is None)
        )
        for toleration in tolerations
    )
