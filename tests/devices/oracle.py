"""kube-scheduler's allocator for one pod, written down from its source, and brute force over all orders of pods and devices.

It shares no code with ``queuectl.devices``. Devices are few: each order of them is tried for each pod.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from itertools import permutations

from queuectl.domain.devices import (
    ClaimSpec,
    Device,
    DeviceConstraint,
    DeviceEffect,
    DeviceOption,
    DeviceRequest,
    NodeDevices,
    PodDevices,
)

Selected = Callable[[DeviceOption, Device], bool]
Held = frozenset[tuple[str, tuple[Fraction, ...]]]
"""Devices in use by name, with what is consumed of a shared one; others have no amounts."""


class Stop(Exception):
    """The allocator ends with an error: the pod is not scheduled."""


@dataclass
class _Constraint:
    spec: DeviceConstraint
    values: dict[str, object] = field(default_factory=dict)
    value: object = None
    number: int = 0

    def covers(self, request: DeviceRequest, name: str | None) -> bool:
        names = self.spec.requests
        return not names or request.name in names or f"{request.name}/{name}" in names

    def add(self, request: DeviceRequest, name: str | None, device: Device) -> bool:
        if not self.covers(request, name):
            return True
        value = dict(device.kind.attributes).get(self.spec.attribute)
        if value is None:
            return False
        if self.number == 0:
            self.values[request.name] = self.value = value
        elif self.spec.distinct:
            if value in self.values.values():
                return False
            self.values[request.name] = value
        elif value != self.value:
            return False
        self.number += 1
        return True

    def remove(self, request: DeviceRequest, name: str | None) -> None:
        if self.covers(request, name):
            self.values.pop(request.name, None)
            self.number -= 1


@dataclass
class Allocator:
    """One search for one pod. ``held``: name to the amounts that are consumed."""

    devices: tuple[Device, ...]
    counters: dict[tuple[str, str, str, str], int]
    held: dict[str, tuple[Fraction, ...]]
    selected: Selected
    claims: tuple[ClaimSpec, ...]
    result: list[int] = field(default_factory=list)
    admins: list[tuple[int, str]] = field(default_factory=list)
    every: dict[DeviceOption, list[Device]] = field(default_factory=dict)
    before: set[str] = field(default_factory=set)
    constraints: list[list[_Constraint]] = field(default_factory=list)

    def search(self) -> dict[str, tuple[Fraction, ...]] | None:
        self.constraints = [[_Constraint(c) for c in claim.constraints] for claim in self.claims]
        self.before = set(self.held)
        self.result = [0] * len(self.claims)
        for claim in self.claims:
            for request in claim.requests:
                for option in request.options:
                    self._all(option)
        return self.held if self._request(0, 0) else None

    def _request(self, c: int, r: int) -> bool:
        if c == len(self.claims):
            return True
        requests = self.claims[c].requests
        if r == len(requests):
            return self._request(c + 1, 0)
        request = requests[r]
        for at, option in enumerate(request.options):
            name = request.subrequests[at] if request.subrequests else None
            if self._devices(c, r, option, name, 0, 0):
                return True
        return False

    def _devices(
        self, c: int, r: int, option: DeviceOption, name: str | None, n: int, start: int
    ) -> bool:
        every = self._all(option) if option.count is None else []
        number = len(every) if option.count is None else option.count
        if option.count is None and not every:
            return False
        if n == number:
            return self._request(c, r + 1)
        if self.result[c] + number - n > 32:
            return False
        if option.count is None:
            undo = self._take(c, r, option, name, every[n], must=True)
            if undo is None:
                return False
            if self._devices(c, r, option, name, n + 1, 0):
                return True
            undo()
            return False
        for at in range(start, len(self.devices)):
            device = self.devices[at]
            if not self.selected(option, device) or not self._room(option, device):
                continue
            undo = self._take(c, r, option, name, device, must=False)
            if undo is not None:
                if self._devices(c, r, option, name, n + 1, at + 1):
                    return True
                undo()
        return False

    def _all(self, option: DeviceOption) -> list[Device]:
        """The devices of a request for all; kube-scheduler determines them before it allocates any."""
        if option not in self.every:
            self.every[option] = [
                d for d in self.devices if self.selected(option, d) and self._room(option, d)
            ]
        return self.every[option]

    def _room(self, option: DeviceOption, device: Device) -> bool:
        amounts = self._amounts(option, device)
        if amounts is None:
            return False
        held = self.held.get(device.id.name) or (Fraction(0),) * len(amounts)
        if not device.kind.shared:
            held = (Fraction(0),) * len(amounts)
        total = (a + b for a, b in zip(amounts, held, strict=True))
        return all(t <= value for t, (_, value) in zip(total, device.kind.capacity, strict=True))

    def _amounts(self, option: DeviceOption, device: Device) -> tuple[Fraction, ...] | None:
        asked = dict(option.capacity)
        if not set(asked) <= {name for name, _ in device.kind.capacity}:
            return None
        policies = dict(device.kind.policies)
        amounts = []
        for name, value in device.kind.capacity:
            policy = policies.get(name)
            amount = asked.get(name, policy.default if policy and policy.default else value)
            if policy is not None and name in asked and policy.valid_values:
                amount = next((v for v in policy.valid_values if amount <= v), amount)
                if amount not in policy.valid_values:
                    return None
            amounts.append(amount)
        return tuple(amounts)

    def _take(
        self, c: int, r: int, option: DeviceOption, name: str | None, device: Device, must: bool
    ) -> Callable[[], None] | None:
        key, shared = device.id.name, device.kind.shared
        if not self._free(c, option, device):
            return None
        added = self._constrained(c, self.claims[c].requests[r], name, device)
        if added is None and must:
            raise Stop
        if added is None:
            return None
        request = self.claims[c].requests[r]
        if not self._room(option, device):
            for one in added:
                one.remove(request, name)
            return None
        before = self.held.get(key)
        if option.admin:
            self.admins.append((c, key))
        else:
            amounts = self._amounts(option, device) or ()
            held = before or (Fraction(0),) * len(amounts)
            self.held[key] = (
                tuple(a + b for a, b in zip(amounts, held, strict=True)) if shared else ()
            )
        self.result[c] += 1

        def undo() -> None:
            self.result[c] -= 1
            if option.admin:
                self.admins.remove((c, key))
            elif before is None:
                del self.held[key]
            else:
                self.held[key] = before
            for one in added:
                one.remove(request, name)

        return undo

    def _free(self, c: int, option: DeviceOption, device: Device) -> bool:
        key, shared = device.id.name, device.kind.shared
        ours = any(key == name for _, name in self.admins)
        if option.admin:
            new = key in self.held and key not in self.before
            if not shared and ((c, key) in self.admins or new):
                return False
        elif not shared and (key in self.held or ours):
            return False
        if device.consumes and not (shared and key in self.held) and not self._counters(device):
            return False
        return all(
            taint.effect is DeviceEffect.NONE or any(t.tolerates(taint) for t in option.tolerations)
            for taint in device.kind.taints
        )

    def _constrained(
        self, c: int, request: DeviceRequest, name: str | None, device: Device
    ) -> list[_Constraint] | None:
        """The constraints that accepted the device; None if one does not."""
        added: list[_Constraint] = []
        for constraint in self.constraints[c]:
            if not constraint.add(request, name, device):
                for one in added:
                    one.remove(request, name)
                return None
            added.append(constraint)
        return added

    def _counters(self, device: Device) -> bool:
        used = dict.fromkeys(self.counters, 0)
        for one in self.devices:
            if one.id.name in self.held or one is device:
                for (counter_set, counter), amount in one.consumes:
                    used[one.id.driver, one.id.pool, counter_set, counter] += amount
        return all(used[key] <= amount for key, amount in self.counters.items())


def results(
    node: NodeDevices, held: Held, pod: PodDevices, selected: Selected
) -> Iterator[Held | None]:
    """The result for each order of the devices; None = the pod is not scheduled."""
    for order in permutations(node.devices):
        search = Allocator(order, dict(node.counters), dict(held), selected, pod.claims)
        try:
            found = search.search()
        except Stop:
            found = None
        yield None if found is None else frozenset(found.items())


def robust(node: NodeDevices, pods: tuple[PodDevices, ...], selected: Selected) -> bool:
    """Whether each order of the pods, and each choice of their devices, lets all of them be scheduled."""

    @cache
    def after(held: Held, pod: PodDevices) -> frozenset[Held | None]:
        return frozenset(results(node, held, pod, selected))

    @cache
    def sure(held: Held, left: tuple[tuple[PodDevices, int], ...]) -> bool:
        for at, (pod, number) in enumerate(left):
            if number:
                rest = (*left[:at], (pod, number - 1), *left[at + 1 :])
                if any(h is None or not sure(h, rest) for h in after(held, pod)):
                    return False
        return True

    kinds = tuple((pod, pods.count(pod)) for pod in dict.fromkeys(pods))
    return sure(frozenset(), kinds)
