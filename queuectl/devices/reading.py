"""Atoms on one node: which devices each can take, by the rules of kube-scheduler's allocator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from operator import or_
from typing import Final, TypeAlias

from queuectl.devices.matching import NotMatched
from queuectl.devices.needs import (
    ABSENT,
    Atom,
    AttributeConstraint,
    Choice,
    Need,
    NodeNeeds,
    Share,
    consumed,
)
from queuectl.devices.pools import endures
from queuectl.devices.shared import MIXED, Rivals, Touched, drivers_mixed, mixed_pairs
from queuectl.domain.devices import (
    MOST_RESULTS,
    AllocatedDevice,
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


_TOO_MANY: Final = f"a claim can have at most {MOST_RESULTS} devices"


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
    """Devices that an option can take.

    Attributes:
        bits: these devices.
        selected: the same with those that it selects and cannot take, for example because of a taint.
        prevented: there are such devices.
        shared: some of the selected devices are shared.
    """

    bits: int
    selected: int
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
        self.rivals = Rivals(node)
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
        touched: list[Touched] = []
        for atom in atoms:
            pools: Touched = frozenset()
            try:
                own = self._need(atom)
                pools = self._pools(atom)
                needs.append(own)
            except (_Unusable, NotMatched) as why:
                needs.append(str(why))
            touched.append(pools)
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
            frozenset(mixed_pairs(touched)),
        )

    def _binding(self, devices: Sequence[int]) -> list[tuple[str, str, str, str]]:
        """Counters that can be too small for all devices that are asked for."""
        most: dict[tuple[str, str, str, str], int] = {}
        for number in devices:
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
        if sum(max(choice.count for choice in choices) for choices in requests) > atom.most:
            raise _Unusable(_TOO_MANY)
        need = Need(tuple(requests), constraints)
        self._judge_constraints(atom, need)
        return need

    def _constraint(self, constraint: DeviceConstraint, atom: Atom) -> AttributeConstraint:
        row = self.attributes.setdefault(constraint.attribute, len(self.attributes))
        loose = constraint.distinct and any(option.count != 1 for option in atom.options)
        return AttributeConstraint(row, constraint.distinct, loose)

    def _choice(self, atom: Atom, option: DeviceOption, covering: tuple[int, ...]) -> Choice:
        found = self._found(option)
        if found.shared and (option.count is None or atom.several):
            raise _Unusable("one request is for several devices, and some of them are shared")
        if option.count is not None:
            return Choice(found.bits, option.count, False, found.shares, covering)
        number = found.bits.bit_count()
        return Choice(0 if found.prevented else found.bits, max(1, number), True, (), covering)

    def _found(self, option: DeviceOption) -> _Found:
        """The devices that an option can take."""
        key = (*(option.device_class, option.selectors), *(option.tolerations, option.capacity))
        # Without a count the selection can also fail because of devices that are left out.
        known = self.found.get((*key, option.count is None))
        if known is None:
            known = self.found[(*key, option.count is None)] = self._find(option)
        return known

    def _pools(self, atom: Atom) -> Touched:
        """The pools of the devices that it selects, as far as they can be mixed up."""
        if atom.admin:
            return frozenset()
        touched = self.rivals.touched(reduce(or_, (self._found(o).selected for o in atom.options)))
        drivers = drivers_mixed(touched)
        if drivers:
            raise _Unusable(MIXED.format(" and ".join(drivers)))
        return touched

    def _find(self, option: DeviceOption) -> _Found:
        bits, selected, shares, prevented, shared = 0, 0, [], False, False
        for number in self.selects(option, self.node):
            device = self.node.devices[number]
            amounts = consumed(device, option)
            if amounts is None:
                continue
            selected |= 1 << number
            shared |= device.kind.shared
            if number in self.blocked or not all(_tolerated(t, option) for t in device.kind.taints):
                prevented = True
                continue
            if device.kind.shared or number not in self.taken:
                _check_for_long(device, option)
            if device.kind.shared:
                shares.append((number, amounts))
                bits |= 1 << number
            elif number in self.taken:
                prevented = True
            else:
                bits |= 1 << number
        return _Found(bits, selected, tuple(shares), prevented, shared)

    def _judge_constraints(self, atom: Atom, need: Need) -> None:
        """Constraints that kube-scheduler answers with an error, or compares in another way, are not supported."""
        for number, constraint in enumerate(atom.claim.constraints):
            bits, every = 0, False
            for request, choices in zip(atom.claim.requests, need.requests, strict=True):
                for option, choice in zip(request.options, choices, strict=True):
                    if number in choice.constraints:
                        bits |= self._found(option).selected
                        every |= choice.every
            devices = [d for i, d in enumerate(self.node.devices) if bits >> i & 1]
            values = [_value(device, constraint.attribute) for device in devices]
            if any(isinstance(value, tuple) for value in values):
                raise _Unusable(f"attribute {constraint.attribute} is a list")
            if every:
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
                if consumed(d, option) is not None
                and all(_tolerated(t, option) for t in d.kind.taints)
            ]
            if option.count is None and len(fitting) < len(selected):
                raise _Unusable("a device has a taint")
            sets.append(
                ({d.id for d in fitting}, len(fitting) if option.count is None else option.count)
            )
        if sum(count for _, count in sets) > MOST_RESULTS:
            raise _Unusable(_TOO_MANY)
        for ids, count in sets:
            beside = sum(number for other, number in sets if ids & other)
            if not ids or len(ids) < max(1, count, beside):
                raise _Unusable("too few devices")
        return Need(())


def _value(device: Device, attribute: str) -> object:
    return dict(device.kind.attributes).get(attribute)


def _tolerated(taint: DeviceTaint, option: DeviceOption) -> bool:
    return taint.effect is DeviceEffect.NONE or any(t.tolerates(taint) for t in option.tolerations)


def _check_for_long(device: Device, option: DeviceOption) -> None:
    """kube-scheduler can choose a device that a request tolerates for some time, and Kubernetes then deletes the pod."""
    for taint in device.kind.taints:
        if taint.effect is DeviceEffect.NO_EXECUTE and not endures(option.tolerations, taint):
            text = f"a device of driver {device.id.driver} has the taint {taint}, which the request tolerates"
            raise _Unusable(f"{text} for a limited time only, or without effect NoExecute")
