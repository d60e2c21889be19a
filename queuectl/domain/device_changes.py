"""A change of devices that lets a pending gang start, as data that can be applied to a snapshot without device rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

from queuectl.domain.devices import Device, DeviceId, DeviceTaint
from queuectl.domain.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class TaintedDevice:
    """A device of a node with taints that a gang does not tolerate."""

    node: str
    device: DeviceId
    taints: tuple[DeviceTaint, ...]


@dataclass(frozen=True, slots=True)
class RemoveTaints:
    """These devices do not have these taints."""

    devices: tuple[TaintedDevice, ...]

    def apply(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot without the taints."""
        gone: dict[str, dict[DeviceId, tuple[DeviceTaint, ...]]] = {}
        for one in self.devices:
            gone.setdefault(one.node, {})[one.device] = one.taints
        nodes = dict(snapshot.devices.nodes)
        for name, taints in gone.items():
            devices = tuple(_without(d, taints.get(d.id, ())) for d in nodes[name].devices)
            nodes[name] = replace(nodes[name], devices=devices)
        return replace(snapshot, devices=replace(snapshot.devices, nodes=nodes))


def _without(device: Device, taints: tuple[DeviceTaint, ...]) -> Device:
    if not taints:
        return device
    left = tuple(taint for taint in device.kind.taints if taint not in taints)
    return replace(device, kind=replace(device.kind, taints=left))
