"""Small nodes with devices, and requests for them."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from queuectl.devices.matching import Matching
from queuectl.domain.devices import (
    AttributeValue,
    CapacityPolicy,
    ClaimSpec,
    Device,
    DeviceClass,
    DeviceConstraint,
    DeviceId,
    DeviceKind,
    DeviceOption,
    DeviceRequest,
    DeviceTaint,
    NodeDevices,
    PodDevices,
)
from queuectl.domain.quantity import GPU

DRIVER, POOL = "gpu.example.com", "pool"
TYPE, ROOT = f"{DRIVER}/type", f"{DRIVER}/root"


def device(
    name: str,
    kind: str = "gpu",
    *,
    root: str | None = None,
    consumes: dict[str, int] | None = None,
    memory: int | None = None,
    shared: bool = False,
    policy: CapacityPolicy | None = None,
    taints: Sequence[DeviceTaint] = (),
    **attributes: AttributeValue,
) -> Device:
    """A device of a type; ``root``: its PCIe root; ``consumes``: of the counters of set ``set``."""
    values: dict[str, AttributeValue] = {TYPE: kind}
    values |= {f"{DRIVER}/{key}": value for key, value in attributes.items()}
    if root is not None:
        values[ROOT] = root
    capacity = ((f"{DRIVER}/memory", Fraction(memory)),) if memory is not None else ()
    policies = ((f"{DRIVER}/memory", policy),) if policy is not None else ()
    made = DeviceKind(
        DRIVER, tuple(sorted(values.items())), capacity, tuple(taints), shared, policies
    )
    used = tuple((("set", counter), n) for counter, n in sorted((consumes or {}).items()))
    return Device(DeviceId(DRIVER, POOL, name), made, used)


def node(*devices: Device, **counters: int) -> NodeDevices:
    amounts = tuple(((DRIVER, POOL, "set", name), n) for name, n in sorted(counters.items()))
    return NodeDevices(tuple(sorted(devices, key=lambda d: d.id)), amounts)


def option(kind: str = "gpu", count: int | None = 1, **more: Any) -> DeviceOption:
    """Devices of a type: the class has its name."""
    return DeviceOption(kind, count=count, **more)


def request(name: str, *options: DeviceOption) -> DeviceRequest:
    names = tuple(f"s{i}" for i in range(len(options))) if len(options) > 1 else ()
    return DeviceRequest(name, options, names)


def pod(
    *requests: DeviceRequest | DeviceOption, match: str | None = None, distinct: str | None = None
) -> PodDevices:
    """One claim with these requests."""
    made = tuple(
        request(f"r{i}", r) if isinstance(r, DeviceOption) else r for i, r in enumerate(requests)
    )
    constraints = []
    if match is not None:
        constraints.append(DeviceConstraint((), match))
    if distinct is not None:
        constraints.append(DeviceConstraint((), distinct, distinct=True))
    return PodDevices((ClaimSpec(made, tuple(constraints)),))


def selected(option: DeviceOption, one: Device) -> bool:
    """The devices that the selectors of the classes below select."""
    values = dict(one.kind.attributes)
    return option.device_class in ("any", values[TYPE]) and (
        option.selectors != (HAS_ROOT,) or ROOT in values
    )


def _typed(name: str) -> str:
    return f'device.attributes["{DRIVER}"].type == "{name}"'


CLASSES = {
    "gpu": DeviceClass("gpu", (_typed("gpu"),), extended_resource=GPU),
    "nic": DeviceClass("nic", (_typed("nic"),)),
    "old": DeviceClass("old", (_typed("old"),)),
    "part": DeviceClass("part", (_typed("part"),)),
    "any": DeviceClass("any"),
}
HAS_ROOT = f'"root" in device.attributes["{DRIVER}"]'
matching = Matching(CLASSES)
