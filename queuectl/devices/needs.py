"""Atoms on one node, as numbers: which devices each can take, and what it consumes of them.

Devices are bits of an integer, in the order of ``NodeDevices.devices``. The rules are those of kube-scheduler's allocator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Final, TypeAlias

from queuectl.devices.atoms import Atom
from queuectl.devices.matching import NotMatched
from queuectl.domain.devices import (
    AllocatedDevice,
    CapacityPolicy,
    Device,
    DeviceConstraint,
    DeviceEffect,
    DeviceId,
    DeviceOption,
    DeviceTaint,
    NodeDevices,
)

Selects: TypeAlias = Callable[[DeviceOption, NodeDevices], Sequence[int]]
"""The devices of a node, by position, that the class and the selectors of an option select. Taints and capacity do not count.

It raises :class:`NotMatched` where the node cannot serve the option.
"""

Share: TypeAlias = tuple[Fraction, ...]  # amounts of a device's capacities, in their order
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
class Constraint:
    """``attribute``: a row of ``NodeNeeds.values``. ``loose``: kube-scheduler can accept equal values in spite of ``distinct``."""

    attribute: int
    distinct: bool
    loose: bool = False


@dataclass(frozen=True, slots=True)
class Need:
    """An atom on the node: of each request one choice."""

    requests: tuple[tuple[Choice, ...], ...]
    constraints: tuple[Constraint, ...] = ()

    @property
    def devices(self) -> int:
        """All devices that it can take."""
        bits = 0
        for choices in self.requests:
            for choice in choices:
                bits |= choice.devices
        return bits

    @property
    def plain(self) -> bool:
        """Whether it is one device of a set, whichever."""
        if not self.requests:
            return False
        first = self.requests[0][0]
        return len(self.requests) == len(self.requests[0]) == first.count == 1 and not (
            self.constraints or first.every or first.shares
        )

    @property
    def counted(self) -> bool:
        """Whether the number of its devices is fixed, and no other pod shares them."""
        return all(len(choices) == 1 and not choices[0].shares for choices in self.requests)


@dataclass(frozen=True, slots=True)
class NodeNeeds:
    """Atoms on one node. Nodes with equal ones have equal rows.

    Attributes:
        needs: per atom; a sentence where the node cannot serve it.
        values: per attribute of a constraint and device, a number for its value; ``ABSENT`` without one.
        counters: amounts that are left.
        consumes: per device, (counter, amount).
        left: per device, the amounts that are left of a shared device; None for others.
    """

    needs: tuple[Need | str, ...]
    values: tuple[tuple[int, ...], ...] = ()
    counters: tuple[int, ...] = ()
    consumes: tuple[tuple[tuple[int, int], ...], ...] = ()
    left: tuple[Share | None, ...] = ()


class _Unusable(Exception):
    """The node cannot serve an atom."""


def needs_of(
    node: NodeDevices, held: Sequence[AllocatedDevice], atoms: Sequence[Atom], selects: Selects
) -> NodeNeeds:
    """Atoms on a node.

    Args:
        node: its devices.
        held: devices that claims of other pods hold.
        atoms: without those for administration that the node serves anyway.
        selects: the devices that an option selects.
    """
    return _Reader(node, held, selects).read(atoms)


@dataclass(frozen=True, slots=True)
class _Found:
    """Devices that an option can take. ``prevented``: it selects one that it cannot take; ``shared``: or one that is shared."""

    bits: int
    shares: tuple[tuple[int, Share], ...]
    prevented: bool
    shared: bool


class _Reader:
    def __init__(
        self, node: NodeDevices, held: Sequence[AllocatedDevice], selects: Selects
    ) -> None:
        self.node = node
        self.selects = selects
        at = {device.id: number for number, device in enumerate(node.devices)}
        self.taken = {at[one.id] for one in held if one.id in at and not one.admin}
        self.consumed: dict[DeviceId, dict[str, Fraction]] = {}
        for one in held:
            if not one.admin:
                row = self.consumed.setdefault(one.id, {})
                for name, amount in one.share:
                    row[name] = row.get(name, Fraction(0)) + amount
        self.attributes: dict[str, int] = {}
        self.found: dict[tuple[object, ...], _Found] = {}
        self._count()

    def _count(self) -> None:
        """Counters that are left, and devices that no counter is left for."""
        self.counters = dict(self.node.counters)
        for number in self.taken:
            for key, amount in self._consumes(number):
                self.counters[key] = self.counters.get(key, 0) - amount
        exhausted = {key[:2] for key, amount in self.counters.items() if amount < 0}
        self.blocked = {
            number
            for number, device in enumerate(self.node.devices)
            if device.consumes and (device.id.driver, device.id.pool) in exhausted
        }

    def _consumes(self, number: int) -> Iterator[tuple[tuple[str, str, str, str], int]]:
        device = self.node.devices[number]
        for (counter_set, counter), amount in device.consumes:
            yield (device.id.driver, device.id.pool, counter_set, counter), amount

    def read(self, atoms: Sequence[Atom]) -> NodeNeeds:
        needs: list[Need | str] = []
        for atom in atoms:
            try:
                needs.append(self._need(atom))
            except (_Unusable, NotMatched) as why:
                needs.append(str(why))
        used = 0
        for need in needs:
            used |= need.devices if isinstance(need, Need) else 0
        asked = [number for number in range(len(self.node.devices)) if used >> number & 1]
        names = self._binding(asked)
        column = {key: number for number, key in enumerate(names)}
        consumes: list[tuple[tuple[int, int], ...]] = [()] * len(self.node.devices)
        for number in asked:
            if number not in self.taken:
                consumes[number] = tuple(
                    (column[key], amount) for key, amount in self._consumes(number) if key in column
                )
        return NodeNeeds(
            tuple(needs),
            tuple(self._values(attribute, used) for attribute in self.attributes),
            tuple(self.counters[key] for key in names),
            tuple(consumes),
            tuple(
                self._left(device) if device.kind.shared and used >> number & 1 else None
                for number, device in enumerate(self.node.devices)
            ),
        )

    def _binding(self, asked: Sequence[int]) -> list[tuple[str, str, str, str]]:
        """Counters that can be too small for all devices that are asked for."""
        most: dict[tuple[str, str, str, str], int] = {}
        for number in asked:
            if number not in self.taken:
                for key, amount in self._consumes(number):
                    most[key] = most.get(key, 0) + amount
        return sorted(key for key, amount in most.items() if amount > self.counters.get(key, 0))

    def _values(self, attribute: str, used: int) -> tuple[int, ...]:
        numbers: dict[object, int] = {}
        values = []
        for number, device in enumerate(self.node.devices):
            value = _value(device, attribute) if used >> number & 1 else None
            key = (type(value), value)
            values.append(ABSENT if value is None else numbers.setdefault(key, len(numbers)))
        return tuple(values)

    def _left(self, device: Device) -> Share:
        consumed = self.consumed.get(device.id, {})
        return tuple(
            amount - consumed.get(name, Fraction(0)) for name, amount in device.kind.capacity
        )

    # One atom.

    def _need(self, atom: Atom) -> Need:
        if atom.admin:
            return self._admin(atom)
        constraints = tuple(self._constraint(c, atom) for c in atom.claim.constraints)
        requests = []
        for number, request in enumerate(atom.claim.requests):
            choices = []
            for at, option in enumerate(request.options):
                covering = tuple(
                    i
                    for i, c in enumerate(atom.claim.constraints)
                    if not c.requests or {str(number), f"{number}/{at}"} & set(c.requests)
                )
                choices.append(self._choice(atom, option, covering))
            requests.append(tuple(choices))
        need = Need(tuple(requests), constraints)
        self._judge_constraints(atom, need)
        return need

    def _constraint(self, constraint: DeviceConstraint, atom: Atom) -> Constraint:
        row = self.attributes.setdefault(constraint.attribute, len(self.attributes))
        loose = constraint.distinct and any(option.count != 1 for option in atom.options)
        return Constraint(row, constraint.distinct, loose)

    def _choice(self, atom: Atom, option: DeviceOption, covering: tuple[int, ...]) -> Choice:
        found = self._found(option)
        if found.shared and (option.count is None or atom.several):
            raise _Unusable("one request is for several devices, and some of them are shared")
        if option.count is not None:
            return Choice(found.bits, option.count, False, found.shares, covering)
        number = found.bits.bit_count()
        if number > atom.most:
            raise _Unusable(f"a claim can have at most {atom.most} devices")
        return Choice(0 if found.prevented else found.bits, max(1, number), True, (), covering)

    def _found(self, option: DeviceOption) -> _Found:
        """The devices that an option can take."""
        key = (*(option.device_class, option.selectors), *(option.tolerations, option.capacity))
        # Without a count the selection can also fail because of devices that are left out.
        known = self.found.get((*key, option.count is None))
        if known is None:
            known = self.found[(*key, option.count is None)] = self._find(option)
        return known

    def _find(self, option: DeviceOption) -> _Found:
        bits, shares, prevented, shared = 0, [], False, False
        for number in self.selects(option, self.node):
            device = self.node.devices[number]
            amounts = _consumed(device, option)
            if amounts is None:
                continue
            shared |= device.kind.shared
            if number in self.blocked or not all(_tolerated(t, option) for t in device.kind.taints):
                prevented = True
            elif device.kind.shared:
                shares.append((number, amounts))
                bits |= 1 << number
            elif number in self.taken:
                prevented = True
            else:
                bits |= 1 << number
        return _Found(bits, tuple(shares), prevented, shared)

    def _judge_constraints(self, atom: Atom, need: Need) -> None:
        """Constraints that kube-scheduler answers with an error, or compares in another way, are not supported."""
        for number, constraint in enumerate(atom.claim.constraints):
            covered = [c for choices in need.requests for c in choices if number in c.constraints]
            bits = 0
            for choice in covered:
                bits |= choice.devices
            devices = [d for i, d in enumerate(self.node.devices) if bits >> i & 1]
            values = [_value(device, constraint.attribute) for device in devices]
            if any(isinstance(value, tuple) for value in values):
                raise _Unusable(f"attribute {constraint.attribute} is a list")
            if any(choice.every for choice in covered):
                same = len(set(map(repr, values))) <= 1 and None not in values
                if constraint.distinct or not same:
                    raise _Unusable("all devices are requested with a constraint")

    def _admin(self, atom: Atom) -> Need:
        """Access for administration needs enough devices, whether others use them or not. The need is empty then."""
        sets = []
        for request in atom.claim.requests:
            if len(request.options) > 1:
                raise _Unusable("alternatives of requests for administration")
            option = request.options[0]
            selected = [self.node.devices[i] for i in self.selects(option, self.node)]
            if any(device.kind.shared or device.consumes for device in selected):
                raise _Unusable("administration of shared or partitioned devices")
            fitting = [
                d
                for d in selected
                if _consumed(d, option) is not None
                and all(_tolerated(t, option) for t in d.kind.taints)
            ]
            if option.count is None and len(fitting) < len(selected):
                raise _Unusable("a device has a taint")
            sets.append(
                ({d.id for d in fitting}, len(fitting) if option.count is None else option.count)
            )
        for ids, count in sets:
            beside = sum(number for other, number in sets if ids & other)
            if not ids or len(ids) < max(1, count, beside):
                raise _Unusable("too few devices")
        return Need(())


def _value(device: Device, attribute: str) -> object:
    return dict(device.kind.attributes).get(attribute)


def _tolerated(taint: DeviceTaint, option: DeviceOption) -> bool:
    return taint.effect is DeviceEffect.NONE or any(t.tolerates(taint) for t in option.tolerations)


def _consumed(device: Device, option: DeviceOption) -> Share | None:
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
