"""The part of a GPU that a device of a ResourceSlice is.

These devices are GPUs: those of drivers whose names begin with ``gpu.``, and those of a DeviceClass whose charged resource is a GPU. A
weight that the configuration gives that resource is the size of each of its devices. Otherwise the attributes of the device state it.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from queuectl.devices.matching import Matching, NotMatched
from queuectl.devices.needs import consumed
from queuectl.devices.requests import DeviceClasses
from queuectl.domain.devices import Device, DeviceKind, DeviceOption, NodeDevices
from queuectl.domain.gpus import GpuWeights, amd_part, mig_part

GPU_DRIVER: Final = "gpu."
_NONE: Final = Fraction()
_AMD: Final = "gpu.amd.com"


class DeviceGpus:
    """The GPUs of devices and of requests for devices, on the nodes that publish them."""

    def __init__(self, classes: DeviceClasses, weights: GpuWeights, matching: Matching) -> None:
        self._classes = classes
        self._weights = weights
        self._matching = matching
        self._kinds: dict[int, tuple[DeviceKind, Fraction]] = {}
        self._options: dict[tuple[int, DeviceOption], tuple[NodeDevices, Fraction | None]] = {}

    def of(self, device: Device) -> Fraction:
        """GPUs of a device; 0 if it is no GPU."""
        known = self._kinds.get(id(device.kind))
        if known is None:
            known = self._kinds[id(device.kind)] = device.kind, self._of_kind(device.kind)
        return known[1]

    def on_node(self, node: NodeDevices) -> tuple[Fraction, Fraction]:
        """Physical GPUs behind the devices of a node, and those of them that a taint takes out of use.

        Devices that consume the same counters are different divisions of one GPU, so the largest of them counts.
        """
        whole, tainted = _NONE, _NONE
        divided: dict[tuple[str, str, str], Fraction] = {}
        for device in node.devices:
            gpus = self.of(device)
            if device.consumes:
                key = (device.id.driver, device.id.pool, device.consumes[0][0][0])
                divided[key] = max(divided.get(key, _NONE), gpus)
            else:
                whole += gpus
                tainted += gpus if any(t.effect != "None" for t in device.kind.taints) else _NONE
        return sum(divided.values(), whole), tainted

    def requested(self, option: DeviceOption, node: NodeDevices) -> Fraction | None:
        """GPUs that an option gets on a node; None if it selects no device there. Of devices of several sizes the largest counts."""
        key = (id(node), option)
        known = self._options.get(key)
        if known is None:
            known = self._options[key] = node, self._requested(option, node)
        return known[1]

    def by_name(self, option: DeviceOption) -> Fraction:
        """GPUs of an option that selects no known device: as the name of the charged resource, or of the class, states it."""
        each = self._weights.of(self._classes.charged(option.device_class))
        if not each and option.device_class.startswith(GPU_DRIVER):
            each = Fraction(1)
        return each * (option.count or 1)

    def _requested(self, option: DeviceOption, node: NodeDevices) -> Fraction | None:
        try:
            selected = self._matching(option, node)
        except NotMatched:
            return None
        sizes = [self._share(node.devices[at], option) for at in selected]
        if not sizes:
            return None
        return sum(sizes, _NONE) if option.count is None else max(sizes) * option.count

    def _share(self, device: Device, option: DeviceOption) -> Fraction:
        """The part of a shared device is the largest part of one of its capacities."""
        gpus = self.of(device)
        if not device.kind.shared or not gpus:
            return gpus
        amounts = consumed(device, option) or ()
        totals = (total for _, total in device.kind.capacity)
        parts = [amount / total for amount, total in zip(amounts, totals, strict=False) if total]
        return gpus * max(parts, default=Fraction(1))

    def _of_kind(self, kind: DeviceKind) -> Fraction:
        charged = [
            self._classes.charged(name)
            for name in sorted(self._matching.classes)
            if self._matching.selects(DeviceOption(name), kind)
        ]
        given = dict(self._weights.configured)
        for resource in charged:
            if resource in given:
                return given[resource]
        if kind.driver.startswith(GPU_DRIVER) or any(map(self._weights.of, charged)):
            return _part(kind)
        return _NONE


def _part(kind: DeviceKind) -> Fraction:
    """By the attributes that the drivers of NVIDIA and AMD publish."""
    values = {name.rpartition("/")[2]: value for name, value in kind.attributes}
    product = str(values.get("productName", ""))
    if kind.driver == _AMD:
        return amd_part(str(values.get("partitionProfile", "")), product)
    return mig_part(str(values.get("profile", "")), product) or Fraction(1)
