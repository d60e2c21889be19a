"""Allocations of the claims of one pod on one node, for the check of devices: a plain search without shortcuts.

Devices that are alike for all claims are one kind of device, of which a number is in use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from random import Random
from typing import Final, TypeAlias

from queuectl.domain.devices import (
    AllocatedDevice,
    CapacityPolicy,
    ClaimSpec,
    Device,
    DeviceId,
    DeviceOption,
    DeviceRequest,
    NodeDevices,
)
from queuectl.domain.errors import QueuectlError
from queuectl.planner.verify.one_device import (
    Values,
    amount_consumed,
    keeps,
    tolerates,
    values_with,
)

Selects: TypeAlias = Callable[[DeviceOption, NodeDevices], Sequence[int]]
Amounts: TypeAlias = tuple[Fraction, ...]
Used: TypeAlias = tuple[Amounts | None, ...]
"""Per device, what is consumed of it; None = it is free. Nothing is consumed of a device that is not shared."""

MOST_STEPS: Final = 20_000


class TooMany(Exception):
    """The search has taken too many steps."""


class Node:
    """The devices of a node. ``free``: the state in which only other pods hold devices."""

    def __init__(
        self, devices: NodeDevices, held: Sequence[AllocatedDevice], selects: Selects
    ) -> None:
        self._devices = devices
        self._selects = selects
        self._selected: dict[DeviceOption, tuple[int, ...]] = {}
        self._known: dict[tuple[Used, tuple[ClaimSpec, ...]], set[Used]] = {}
        self._steps = MOST_STEPS
        self._alike: list[list[int]] = []
        used: list[Amounts | None] = [None] * len(devices.devices)
        for at, device in enumerate(devices.devices):
            for one in held:
                if one.id == device.id and not one.admin:
                    share = dict(one.share)
                    before = used[at] or (Fraction(0),) * len(device.kind.capacity)
                    used[at] = tuple(
                        b + share.get(name, 0)
                        for b, (name, _) in zip(before, device.kind.capacity, strict=True)
                    )
        self.free: Used = tuple(used)

    def selected(self, option: DeviceOption) -> tuple[int, ...]:
        """The devices that an option selects."""
        if option not in self._selected:
            try:
                self._selected[option] = tuple(self._selects(option, self._devices))
            except QueuectlError:
                self._selected[option] = ()  # the node cannot serve it
        return self._selected[option]

    def passing(self, option: DeviceOption) -> Iterator[DeviceId]:
        """The devices that the option can take, but that the pod can lose later because of a taint."""
        for at in self.selected(option) if option.tolerations else ():
            device = self._devices.devices[at]
            if not keeps(option, device) and self._take(self.free, at, option) is not None:
                yield device.id

    def results(self, state: Used, pod: tuple[ClaimSpec, ...]) -> set[Used]:
        """All states that the pod can leave; empty if it cannot be allocated.

        Raises:
            TooMany: there are too many.
        """
        key = (state, pod)
        if key not in self._known:
            found = self._claims(state, pod, 0)
            self._known[key] = {self._sorted(one) for one in found}
        return self._known[key]

    def any_result(self, state: Used, pod: tuple[ClaimSpec, ...], random: Random) -> Used | None:
        """One state that the pod can leave, with devices tried in random order."""
        order = list(range(len(state)))
        random.shuffle(order)
        self._steps = MOST_STEPS
        try:
            return next(self._claims(state, pod, 0, order), None)
        except TooMany:
            return state

    def _claims(
        self, state: Used, pod: tuple[ClaimSpec, ...], at: int, order: list[int] | None = None
    ) -> Iterator[Used]:
        if at == len(pod):
            yield state
            return
        values: Values = ((),) * len(pod[at].constraints)
        for after in self._requests(state, pod[at], 0, values, order):
            yield from self._claims(after, pod, at + 1, order)

    def _requests(
        self, state: Used, claim: ClaimSpec, at: int, values: Values, order: list[int] | None
    ) -> Iterator[Used]:
        if at == len(claim.requests):
            yield state
            return
        request = claim.requests[at]
        for number, option in enumerate(request.options):
            name = f"{request.name}/{request.subrequests[number]}" if request.subrequests else ""
            found = False
            for after, seen in self._option(state, claim, request, name, option, values, order):
                for result in self._requests(after, claim, at + 1, seen, order):
                    found = True
                    yield result
            if found:
                return

    def _option(
        self,
        state: Used,
        claim: ClaimSpec,
        request: DeviceRequest,
        name: str,
        option: DeviceOption,
        values: Values,
        order: list[int] | None,
    ) -> Iterator[tuple[Used, Values]]:
        """The states after a request by one of its options."""
        if option.admin:
            yield state, values
            return
        selected = [at for at in self.selected(option) if self._amounts(at, option) is not None]
        number = len(selected) if option.count is None else option.count
        candidates = [at for at in order if at in selected] if order is not None else selected

        def further(
            state: Used, values: Values, first: int, left: int
        ) -> Iterator[tuple[Used, Values]]:
            if not left:
                yield state, values
                return
            for i in range(first, len(candidates) - left + 1):
                self._steps -= 1
                if self._steps < 0:
                    raise TooMany
                after = self._take(state, candidates[i], option)
                seen = values_with(
                    claim, request.name, name, values, self._devices.devices[candidates[i]]
                )
                if after is not None and seen is not None:
                    yield from further(after, seen, i + 1, left - 1)

        if number:
            yield from further(state, values, 0, number)

    def _take(self, state: Used, at: int, option: DeviceOption) -> Used | None:
        device, used, amounts = self._devices.devices[at], state[at], self._amounts(at, option)
        shared = device.kind.shared
        if amounts is None or (used is not None and not shared) or not tolerates(option, device):
            return None
        if used is None and not self._counters(state, device):
            return None
        total = amounts
        if used is not None:
            total = tuple(a + b for a, b in zip(amounts, used, strict=True))
        if any(a > value for a, (_, value) in zip(total, device.kind.capacity, strict=True)):
            return None
        return (*state[:at], total if shared else (), *state[at + 1 :])

    def _counters(self, state: Used, device: Device) -> bool:
        """Whether the counters of its pool are enough for one device more."""
        pool = (device.id.driver, device.id.pool)
        left = {key: amount for key, amount in self._devices.counters if key[:2] == pool}
        used = [
            d
            for d, amounts in zip(self._devices.devices, state, strict=True)
            if amounts is not None
        ]
        for one in (*used, device) if device.consumes else ():
            if (one.id.driver, one.id.pool) == pool:
                for (counter_set, counter), amount in one.consumes:
                    left[*pool, counter_set, counter] -= amount
        return all(amount >= 0 for amount in left.values())

    def _amounts(self, at: int, option: DeviceOption) -> Amounts | None:
        """The amounts that an allocation consumes; None where the device does not have them."""
        device = self._devices.devices[at]
        asked, policies = dict(option.capacity), dict(device.kind.policies)
        if not asked.keys() <= dict(device.kind.capacity).keys():
            return None
        amounts = tuple(
            amount_consumed(value, asked.get(name), policies.get(name) or CapacityPolicy())
            for name, value in device.kind.capacity
        )
        return tuple(a for a in amounts if a is not None) if None not in amounts else None

    def distinguish(self, pods: Iterable[tuple[ClaimSpec, ...]]) -> object:
        """Find the devices that are alike for these pods. Nodes with equal results are equal for them."""
        claims = [claim for pod in pods for claim in pod]
        options = [o for claim in claims for request in claim.requests for o in request.options]
        attributes = sorted({c.attribute for claim in claims for c in claim.constraints})
        pools: dict[tuple[str, str], int] = {}
        values: dict[tuple[str, object], int] = {}
        keys: list[object] = []
        for at, device in enumerate(self._devices.devices):
            own = dict(device.kind.attributes)
            kind = (
                device.kind.capacity,
                device.kind.taints,
                device.kind.shared,
                device.kind.policies,
            )
            seen = (repr(own.get(name)) if name in own else None for name in attributes)
            keys.append(
                (
                    tuple(at in self.selected(option) for option in options),
                    tuple(
                        value and values.setdefault((name, value), len(values))
                        for name, value in zip(attributes, seen, strict=True)
                    ),
                    kind,
                    pools.setdefault((device.id.driver, device.id.pool), len(pools)),
                    device.consumes,
                    self.free[at],
                )
            )
        alike: dict[object, list[int]] = {}
        for at, key in enumerate(keys):
            alike.setdefault(key, []).append(at)
        self._alike = list(alike.values())
        counters = (
            (pools[key[:2]], *key[2:], n) for key, n in self._devices.counters if key[:2] in pools
        )
        return (tuple(keys), tuple(counters))

    def _sorted(self, state: Used) -> Used:
        """The state with devices that are alike in a fixed order."""
        fixed = list(state)
        for places in self._alike:
            amounts = sorted((state[at] for at in places), key=lambda one: (one is None, one or ()))
            for at, amount in zip(places, amounts, strict=True):
                fixed[at] = amount
        return tuple(fixed)
