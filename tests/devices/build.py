"""Small nodes with devices, and requests for them."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from queuectl.domain.devices import (
    AttributeValue,
    CapacityPolicy,
    ClaimSpec,
    Device,
    DeviceConstraint,
    DeviceId,
    DeviceKind,
    DeviceOption,
    DeviceRequest,
    DeviceTaint,
    NodeDevices,
    PodDevices,
)

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
    """The class ``any`` selects each device, ``a|b`` two types; selectors name attributes that the device has."""
    values = dict(one.kind.attributes)
    wanted = option.device_class.split("|")
    return (option.device_class == "any" or values[TYPE] in wanted) and all(
        f"{DRIVER}/{name}" in values for name in option.selectors
    )


def matching(option: DeviceOption, on: NodeDevices) -> list[int]:
    return [i for i, one in enumerate(on.devices) if selected(option, one)]
