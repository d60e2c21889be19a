"""Nodes whose devices are the same for all requests, as one object.

Devices of such nodes differ in their names, in the names of their pools, and in attributes like a UUID. The allocator reads no
names, and requests read few attributes. The results for one of these nodes hold for all of them, and are computed once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from queuectl.devices.matching import Matching
from queuectl.devices.needs import Atom
from queuectl.domain.devices import (
    AllocatedDevice,
    AttributeValue,
    Device,
    DeviceId,
    DeviceKind,
    DeviceOption,
    NodeDevices,
)

Attributes: TypeAlias = tuple[tuple[str, AttributeValue], ...]
_Numbers: TypeAlias = dict[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class Read:
    """The attributes that requests read.

    Attributes:
        selected: by selectors; names without domains, None = all.
        compared: by constraints; qualified names.
    """

    selected: frozenset[str] | None = frozenset()
    compared: frozenset[str] = frozenset()

    def with_value(self, name: str) -> bool:
        """Whether selectors read a qualified attribute."""
        return self.selected is None or name.rpartition("/")[2] in self.selected

    def __or__(self, other: Read) -> Read:
        selected = (
            None
            if self.selected is None or other.selected is None
            else self.selected | other.selected
        )
        return Read(selected, self.compared | other.compared)


NOTHING_READ: Final = Read()


def read_by(atoms: Iterable[Atom], matching: Matching) -> Read:
    """The attributes that atoms read."""
    read = NOTHING_READ
    for atom in atoms:
        read |= Read(compared=frozenset(c.attribute for c in atom.claim.constraints))
        for option in atom.options:
            read |= Read(matching.attributes(option))
    return read


class AlikeNodes:
    """Nodes for requests that read the same attributes."""

    def __init__(self, matching: Matching, read: Read) -> None:
        self.read = read
        self._matching = matching
        self._places: dict[tuple[str, ...], tuple[tuple[int, bool], ...]] = {}
        self._kinds: dict[tuple[object, ...], DeviceKind] = {}
        self._nodes: dict[tuple[object, ...], NodeDevices] = {}
        self._known: dict[int, tuple[NodeDevices, NodeDevices]] = {}

    def of(self, devices: NodeDevices) -> NodeDevices:
        """The devices in their order, with names and attributes that alike nodes share: one object for all of them."""
        known = self._known.get(id(devices))
        if known is None:
            known = self._known[id(devices)] = devices, self._shared(devices)
        return known[1]

    def selects(self, option: DeviceOption, devices: NodeDevices) -> Sequence[int]:
        """As :class:`Matching`."""
        if self.read | Read(self._matching.attributes(option)) == self.read:
            devices = self.of(devices)
        return self._matching(option, devices)

    def held(
        self, devices: NodeDevices, held: Iterable[AllocatedDevice]
    ) -> tuple[AllocatedDevice, ...]:
        """Allocated devices of a node, with their names in :meth:`of`."""
        shared = self.of(devices).devices
        names = {own.id: other.id for own, other in zip(devices.devices, shared, strict=True)}
        return tuple(replace(one, id=names[one.id]) for one in held if one.id in names)

    def keep(self, nodes: Iterable[NodeDevices]) -> None:
        """Forget the nodes that no longer exist."""
        alive = {id(devices) for devices in nodes}
        self._known = {key: known for key, known in self._known.items() if key in alive}
        if len(self._nodes) > len(self._known):
            used = {id(shared) for _, shared in self._known.values()}
            self._nodes = {key: each for key, each in self._nodes.items() if id(each) in used}
            kinds = {id(kind) for each in self._nodes.values() for kind in _kinds(each)}
            self._kinds = {key: kind for key, kind in self._kinds.items() if id(kind) in kinds}

    def _shared(self, devices: NodeDevices) -> NodeDevices:
        numbers: _Numbers = {}
        pools: dict[str, str] = {}  # drivers can have pools of one name
        parts = []
        for device in devices.devices:
            identity = device.id
            pool = pools.setdefault(identity.pool, str(len(pools)))
            kind = self._kind(device.kind, numbers)
            parts.append((identity.driver, pool, id(kind), device.consumes))
        counters = tuple(
            [
                ((driver, pools.setdefault(pool, str(len(pools))), name, counter), amount)
                for (driver, pool, name, counter), amount in devices.counters
            ]
        )
        left_out = tuple(dict.fromkeys(self._kind(kind, {}) for kind in devices.left_out))
        evaluated = tuple(dict.fromkeys(self._kind(kind, {}) for kind in devices.evaluated))
        rest = (tuple(map(id, left_out)), tuple(map(id, evaluated)))
        key = (tuple(parts), counters, devices.unsupported, rest)
        last = self._nodes.get(key)
        if last is None:
            numbers = {}
            made = tuple(
                Device(
                    DeviceId(driver, pool, str(at)),
                    self._kind(device.kind, numbers),
                    device.consumes,
                )
                for at, ((driver, pool, *_), device) in enumerate(
                    zip(parts, devices.devices, strict=True)
                )
            )
            last = NodeDevices(made, counters, devices.unsupported, left_out, evaluated)
            self._nodes[key] = last
        return last

    def _kind(self, kind: DeviceKind, numbers: _Numbers) -> DeviceKind:
        """With the attributes that are read, and numbers for values that are only compared."""
        own = kind.attributes
        names = tuple([name for name, _ in own])
        places = self._places.get(names)
        if places is None:
            places = self._places[names] = tuple(self._read_of(names))
        attributes = tuple(
            [own[at] if with_value else _compared(own[at], numbers) for at, with_value in places]
        )
        rest = kind.driver, kind.capacity, kind.taints, kind.shared, kind.policies
        key = (*rest, repr(attributes))  # the values True and 1 are equal
        known = self._kinds.get(key)
        if known is None:
            known = self._kinds[key] = replace(kind, attributes=attributes)
        return known

    def _read_of(self, names: Sequence[str]) -> Iterator[tuple[int, bool]]:
        """The places of attributes that are read, and whether their values are."""
        for at, name in enumerate(names):
            with_value = self.read.with_value(name)
            if with_value or name in self.read.compared:
                yield at, with_value


def _kinds(devices: NodeDevices) -> Iterator[DeviceKind]:
    yield from (device.kind for device in devices.devices)
    yield from devices.left_out
    yield from devices.evaluated


def _compared(
    attribute: tuple[str, AttributeValue], numbers: _Numbers
) -> tuple[str, AttributeValue]:
    name, value = attribute
    if isinstance(value, tuple):
        return attribute
    return name, numbers.setdefault((name, repr(value)), len(numbers))
