"""Conditions of one device, for the check of devices: constraints, taints, and the amounts that an allocation consumes."""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import TypeAlias

from queuectl.domain.devices import (
    CapacityPolicy,
    ClaimSpec,
    Device,
    DeviceConstraint,
    DeviceEffect,
    DeviceOption,
)

Values: TypeAlias = tuple[tuple[object, ...], ...]
"""Per constraint of a claim, the values of its devices."""


def values_with(
    claim: ClaimSpec, request: str, option: str, values: Values, device: Device
) -> Values | None:
    """The values of constraints with one device more; None where one of them forbids it."""
    after = []
    for constraint, known in zip(claim.constraints, values, strict=True):
        if constraint.requests and not {request, option} & set(constraint.requests):
            after.append(known)
            continue
        value = _value(constraint, device)
        if value is None or (known and (value in known) is constraint.distinct):
            return None
        after.append((*known, value))
    return tuple(after)


def _value(constraint: DeviceConstraint, device: Device) -> object:
    value = dict(device.kind.attributes).get(constraint.attribute)
    return None if value is None or isinstance(value, tuple) else (type(value).__name__, value)


def tolerates(option: DeviceOption, device: Device) -> bool:
    """Whether a request can use the device in spite of its taints."""
    return all(
        taint.effect is DeviceEffect.NONE or any(t.tolerates(taint) for t in option.tolerations)
        for taint in device.kind.taints
    )


def keeps(option: DeviceOption, device: Device) -> bool:
    """Whether a pod keeps the device: each ``NoExecute`` taint has a toleration of this effect without a limit of time."""
    for taint in device.kind.taints:
        if taint.effect is DeviceEffect.NO_EXECUTE and not any(
            t.effect is DeviceEffect.NO_EXECUTE and t.seconds is None and t.tolerates(taint)
            for t in option.tolerations
        ):
            return False
    return True


def amount_consumed(
    value: Fraction, asked: Fraction | None, policy: CapacityPolicy
) -> Fraction | None:
    """The amount that is consumed of one capacity; None if the policy forbids it."""
    if asked is None:
        amount = value if policy.default is None else policy.default
        return amount if amount <= value else None
    if policy.values:
        larger = [each for each in policy.values if each >= asked]
        return larger[0] if larger and larger[0] <= value else None
    amount = asked
    if policy.least is not None:
        steps = ceil((ceil(asked) - ceil(policy.least)) / ceil(policy.step)) if policy.step else 0
        amount = policy.least
        if asked > policy.least:
            amount = policy.least + steps * ceil(policy.step) if policy.step else asked
    if amount > value or (policy.most is not None and amount > policy.most):
        return None
    return amount
