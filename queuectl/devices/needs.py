"""Atoms on one node, as numbers: which devices each can take, what it consumes of them, and what the devices in use leave.

Devices are bits of an integer, in the order of ``NodeDevices.devices``. The rules follow kube-scheduler's allocator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil
from typing import Any, Final, TypeAlias

from queuectl.devices.numa_devices import NUMA_CLASSES, numa_label
from queuectl.domain.devices import (
    MOST_RESULTS,
    MOST_SELECTOR_BYTES,
    CapacityPolicy,
    ClaimSpec,
    Device,
    DeviceConstraint,
    DeviceOption,
    DeviceRequest,
    PodDevices,
)

# ---- Capacity that an allocation consumes

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


def _rounded(
    amount: Fraction, requested: Fraction | None, policy: CapacityPolicy | None
) -> Fraction:
    if requested is None:
        return policy.default if policy is not None and policy.default is not None else amount
    if policy is None:
        return requested
    if policy.least is not None:
        if requested <= policy.least:
            return policy.least
        if policy.step is None:
            return requested
        least, step = ceil(policy.least), ceil(policy.step)
        return Fraction(least - (least - ceil(requested)) // step * step)
    return next((each for each in policy.valid_values if requested <= each), requested)


def _violates(amount: Fraction, policy: CapacityPolicy) -> bool:
    if amount == policy.default:
        return False
    if policy.most is not None and amount > policy.most:
        return True
    if policy.step is not None:
        return (ceil(amount) - ceil(policy.least or 0)) % ceil(policy.step) != 0
    return bool(policy.valid_values) and amount not in policy.valid_values


# ---- Needs of atoms on one node

ABSENT: Final = -1


@dataclass(frozen=True, slots=True)
class Choice:
    """One option of a request.

    Attributes:
        devices: bits of the devices that it can take.
        count: number of devices.
        every: it takes all of ``devices`` (``allocationMode: All``).
        shares: device to the amounts that it consumes, for shared devices.
        constraints: numbers of the constraints that cover it.
    """

    devices: int
    count: int
    every: bool = False
    shares: tuple[tuple[int, Share], ...] = ()
    constraints: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AttributeConstraint:
    """``attribute``: a row of ``NodeNeeds.attribute_values``. ``loose``: kube-scheduler can accept equal values in spite of ``distinct``."""

    attribute: int
    distinct: bool
    loose: bool = False


@dataclass(frozen=True, slots=True)
class Need:
    """An atom on the node: of each request one choice."""

    requests: tuple[tuple[Choice, ...], ...]
    constraints: tuple[AttributeConstraint, ...] = ()

    @property
    def devices(self) -> int:
        """All devices that it can take."""
        bits = 0
        for choices in self.requests:
            for choice in choices:
                bits |= choice.devices
        return bits

    @property
    def counted(self) -> bool:
        """Whether the number of its devices is fixed, and no other pod shares them."""
        return all(len(choices) == 1 and not choices[0].shares for choices in self.requests)


@dataclass(frozen=True, slots=True)
class NodeNeeds:
    """Atoms on one node. Nodes with equal ones have equal rows.

    Attributes:
        needs: per atom; a sentence where the node cannot serve it.
        attribute_values: per attribute of a constraint and device, a number for its value; ``ABSENT`` without one.
        counters: amounts that are left.
        consumes: per device, (counter, amount).
        left: per device, the amounts that are left of a shared device; None for others.
        mixed: two atoms that one pod cannot have: kube-scheduler would mix up the counters of their devices.
    """

    needs: tuple[Need | str, ...]
    attribute_values: tuple[tuple[int, ...], ...] = ()
    counters: tuple[int, ...] = ()
    consumes: tuple[tuple[tuple[int, int], ...], ...] = ()
    left: tuple[Share | None, ...] = ()
    mixed: frozenset[tuple[int, int]] = frozenset()


# ---- Devices in use

Shares: TypeAlias = tuple[tuple[Any, ...] | None, ...]


@dataclass(frozen=True, slots=True)
class DeviceState:
    """Devices of a node in use: ``used`` as bits, and per device what is left of a shared one."""

    used: int
    left: Shares


@dataclass(frozen=True, slots=True)
class Partial:
    """A state in the middle of an atom: the devices of the request so far, and the values that constraints have seen."""

    state: DeviceState
    picked: int = 0
    chosen_values: tuple[frozenset[int], ...] = ()


@dataclass(eq=False)
class Stock:
    """The counters of a node."""

    node: NodeNeeds
    _known: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._counted = sum(1 << i for i, consumed in enumerate(self.node.consumes) if consumed)

    def enough(self, used: int, device: int) -> bool:
        """Whether one more device can be used together with these."""
        consumed = self.node.consumes[device]
        if not consumed:
            return True
        rest = self.unused(used)
        return all(rest[counter] >= amount for counter, amount in consumed)

    def unused(self, used: int) -> tuple[int, ...]:
        """Counters that these devices leave."""
        used &= self._counted
        known = self._known.get(used)
        if known is None:
            rest = list(self.node.counters)
            for device in bits_of(used):
                for counter, amount in self.node.consumes[device]:
                    rest[counter] -= amount
            known = self._known[used] = tuple(rest)
        return known


def bits_of(bits: int) -> Iterator[int]:
    """The devices in a bit mask, in their order."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


# ---- Atoms of the requests of a pod
#
# Constraints hold inside one claim. So a request that no constraint covers is independent, and a request for ``k`` devices is ``k`` requests
# for one. A pod fits for each order and choice if its atoms, one after the other, do: kube-scheduler searches through all
# choices for a pod.


@dataclass(frozen=True, slots=True)
class Atom:
    """One part of the requests of a pod.

    Attributes:
        claim: its requests, named by number, and the constraints on them.
        resource: the extended resource that it stands for. A node whose device plugin publishes the resource serves it from there.
        several: it is one of several devices of a request, which must differ.
        most: number of devices that its claim can have in addition to its other requests; 0 = its other requests are too many.
    """

    claim: ClaimSpec
    resource: str | None = None
    several: bool = False
    most: int = MOST_RESULTS

    @property
    def admin(self) -> bool:
        """Whether it has access for administration: it takes no device from others."""
        return any(option.admin for option in self.options)

    @property
    def single(self) -> bool:
        """Whether it is one device of one option, without constraints."""
        first = self.claim.requests[0]
        one = len(self.claim.requests) == len(first.options) == first.options[0].count == 1
        return one and not self.claim.constraints

    @property
    def options(self) -> Iterator[DeviceOption]:
        """Of all requests."""
        return (option for request in self.claim.requests for option in request.options)

    @property
    def label(self) -> str:
        """Its classes and constraints in short form: ``gpu.example.com``, ``2 gpu.example.com of one pcieRoot``."""
        requests = " + ".join(map(_label, self.claim.requests))
        for constraint in self.claim.constraints:
            name = constraint.attribute.rpartition("/")[2]
            requests += f" of different {name}" if constraint.distinct else f" of one {name}"
        return requests


def _label(request: DeviceRequest) -> str:
    return " or ".join(dict.fromkeys(map(_option_label, request.options)))


def _option_label(option: DeviceOption) -> str:
    if option.device_class in NUMA_CLASSES:
        return numa_label(option)
    number = {None: "all ", 1: ""}.get(option.count, f"{option.count} ")
    where = " and ".join(option.selectors)
    return f"{number}{option.device_class}{f' where {where}' if where else ''}"


@dataclass(frozen=True, slots=True)
class Atoms:
    """The requests of one pod. ``refusal``: why they are not supported; then ``counts`` is empty."""

    counts: Mapping[Atom, int]
    refusal: str | None = None


def unit(option: DeviceOption, resource: str | None = None) -> Atom:
    """One device of an option."""
    request = DeviceRequest("0", (replace(option, count=1),))
    several = option.count is not None and option.count > 1
    return Atom(ClaimSpec((request,)), resource, several)


def atoms_of(devices: PodDevices) -> Atoms:
    """The atoms of a pod, without those of claims that it shares."""
    options = [o for claim in devices.claims for r in claim.requests for o in r.options]
    admin = {option.admin for option in options}
    if len(admin) > 1:
        return Atoms({}, "requests for administration together with other requests for devices")
    size = sum(len(s.encode()) for s in {s for option in options for s in option.selectors})
    if size > MOST_SELECTOR_BYTES:
        return Atoms(
            {},
            f"selectors of {size} bytes in the claims of a pod, at most {MOST_SELECTOR_BYTES} are possible",
        )
    counts: Counter[Atom] = Counter()
    for claim in devices.claims:
        if admin == {True}:
            if claim.constraints:
                return Atoms({}, "constraints on requests for administration")
            counts[Atom(_numbered(claim.requests, ()))] += 1
            continue
        least = sum(_largest(request) for request in claim.requests)
        if least > MOST_RESULTS:
            return Atoms({}, f"{least} devices in one claim, at most {MOST_RESULTS} are possible")
        counts.update(_parts(claim))
    return Atoms(counts)


def _largest(request: DeviceRequest) -> int:
    return max(1 if option.count is None else option.count for option in request.options)


def _parts(claim: ClaimSpec) -> Iterator[Atom]:
    """The requests of a claim in groups that constraints, or the limit of its devices, connect; each other request alone."""
    total = sum(_largest(request) for request in claim.requests)
    for requests, constraints in _connected(claim):
        option = requests[0].options[0]
        single = len(requests) == 1 and len(requests[0].options) == 1
        if single and not constraints and option.count is not None:
            yield from [unit(option)] * option.count
        else:
            most = MOST_RESULTS - total + sum(_largest(request) for request in requests)
            yield Atom(_numbered(requests, constraints), most=most)


def _connected(
    claim: ClaimSpec,
) -> Iterator[tuple[tuple[DeviceRequest, ...], tuple[DeviceConstraint, ...]]]:
    left = list(range(len(claim.requests)))
    # Only a node shows how many devices such requests get, and the limit is for all of them together.
    every = {i for i in left if any(o.count is None for o in claim.requests[i].options)}
    while left:
        group, constraints = {left[0]}, set[int]()
        grown = True
        while grown:
            grown = False
            for number, constraint in enumerate(claim.constraints):
                covered = {i for i, r in enumerate(claim.requests) if _covers(constraint, r)}
                if number not in constraints and covered & group:
                    constraints.add(number)
                    group |= covered
                    grown = True
            if group & every and not every <= group:
                group |= every
                grown = True
        left = [number for number in left if number not in group]
        yield (
            tuple(claim.requests[number] for number in sorted(group)),
            tuple(claim.constraints[number] for number in sorted(constraints)),
        )


def _covers(constraint: DeviceConstraint, request: DeviceRequest) -> bool:
    names = {request.name, *(f"{request.name}/{name}" for name in request.subrequests)}
    return not constraint.requests or not names.isdisjoint(constraint.requests)


def _numbered(
    requests: tuple[DeviceRequest, ...], constraints: tuple[DeviceConstraint, ...]
) -> ClaimSpec:
    """The same with numbers as names, so that claims that differ only in names are equal."""
    names: dict[str, str] = {}
    for number, request in enumerate(requests):
        names[request.name] = str(number)
        names |= {
            f"{request.name}/{name}": f"{number}/{i}" for i, name in enumerate(request.subrequests)
        }
    return ClaimSpec(
        tuple(
            DeviceRequest(
                str(number), request.options, tuple(map(str, range(len(request.subrequests))))
            )
            for number, request in enumerate(requests)
        ),
        tuple(
            replace(c, requests=tuple(sorted(names[name] for name in c.requests if name in names)))
            for c in constraints
        ),
    )
