"""How much of the capacity of a device an allocation consumes, by the rules of kube-scheduler."""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import TypeAlias

from queuectl.domain.devices import CapacityPolicy, Device, DeviceOption

Share: TypeAlias = tuple[Fraction, ...]
"""Amounts of the capacities of a device, in their order."""


def consumed(device: Device, option: DeviceOption) -> Share | None:
    """The amount that an allocation consumes of each capacity; None where the device cannot serve it."""
    if not device.kind.capacity:
        return None if option.capacity else ()
    capacity = dict(device.kind.capacity)
    asked = dict(option.capacity)
    if not asked.keys() <= capacity.keys():
        return None
    policies = dict(device.kind.policies)
    amounts = []
    for name, value in capacity.items():
        policy = policies.get(name)
        amount = _rounded(value, asked.get(name), policy)
        if amount > value or (policy is not None and _violates(amount, policy)):
            return None
        amounts.append(amount)
    return tuple(amounts)


def _rounded(value: Fraction, asked: Fraction | None, policy: CapacityPolicy | None) -> Fraction:
    if asked is None:
        return policy.default if policy is not None and policy.default is not None else value
    if policy is None:
        return asked
    if policy.least is not None:
        if asked <= policy.least:
            return policy.least
        if policy.step is None:
            return asked
        least, step = ceil(policy.least), ceil(policy.step)
        return Fraction(least - (least - ceil(asked)) // step * step)
    return next((each for each in policy.values if asked <= each), asked)


def _violates(amount: Fraction, policy: CapacityPolicy) -> bool:
    if amount == policy.default:
        return False
    if policy.most is not None and amount > policy.most:
        return True
    if policy.step is not None:
        return (ceil(amount) - ceil(policy.least or 0)) % ceil(policy.step) != 0
    return bool(policy.values) and amount not in policy.values
