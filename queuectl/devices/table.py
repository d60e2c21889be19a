"""Device rows by class of nodes whose devices are the same.

Devices of such nodes differ in their names, in the names of their pools, and in attributes like a UUID. The allocator reads no
names, and requests read few attributes. The results for one of these nodes hold for all of them, and are computed once.

The rows of all kinds of nodes are one table: resources, and how much of each a node has. A row of one kind of node is a resource of all
nodes. A node on which it does not hold has as much of it as its pods can use at most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, TypeAlias

from queuectl.devices.matching import Matching
from queuectl.devices.needs import Atom, Need, NodeNeeds
from queuectl.devices.rows import MOST_ATOMS, AtomGroup, Weights, groups_of
from queuectl.domain.devices import (
    AllocatedDevice,
    AttributeValue,
    Device,
    DeviceId,
    DeviceKind,
    DeviceOption,
    NodeDevices,
)

# ---- Nodes whose devices are the same

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

    def __init__(self, read: Read) -> None:
        self.read = read
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

    def selected(
        self, matching: Matching, option: DeviceOption, devices: NodeDevices
    ) -> Sequence[int]:
        """As ``matching``."""
        if self.read | Read(matching.attributes(option)) == self.read:
            devices = self.of(devices)
        return matching(option, devices)

    def held(
        self, devices: NodeDevices, held: Iterable[AllocatedDevice]
    ) -> tuple[AllocatedDevice, ...]:
        """Allocated devices of a node, with their names in :meth:`of`."""
        shared = self.of(devices).devices
        names = {own.id: other.id for own, other in zip(devices.devices, shared, strict=True)}
        return tuple(replace(one, id=names[one.id]) for one in held if one.id in names)

    def keep(self, nodes: Iterable[NodeDevices]) -> None:
        """Forget the nodes that no longer exist. Another thread can verify a plan at the same time, which adds nodes."""
        alive = {id(devices) for devices in nodes}
        self._known = {key: known for key, known in list(self._known.items()) if key in alive}
        if len(self._nodes) > len(self._known):
            used = {id(shared) for _, shared in list(self._known.values())}
            self._nodes = {key: each for key, each in list(self._nodes.items()) if id(each) in used}
            kinds = {id(kind) for each in list(self._nodes.values()) for kind in _kinds(each)}
            self._kinds = {
                key: kind for key, kind in list(self._kinds.items()) if id(kind) in kinds
            }

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


# ---- The table

MOST_ROWS: Final = 128
"""Of several atoms. Rows of one atom are as few as the requests."""
Mode: TypeAlias = tuple[int | None, ...]  # per group, the atom that a node is kept for
_Limits: TypeAlias = "dict[tuple[NodeKind, Mode], dict[Weights, int]]"
_Alone: TypeAlias = "dict[tuple[NodeKind, Mode], tuple[int, ...]]"
Plugin: TypeAlias = tuple[int | None, ...]  # per atom, the amount that a device plugin publishes


@dataclass(frozen=True, eq=False, slots=True)
class NodeKind:
    """Nodes with equal rows.

    Attributes:
        groups: atoms that compete with each other.
        alone: per atom, how many fit a node without others; 0 = the node cannot serve it.
        why: per atom, why the node cannot serve it although it has such devices.
        counted: per atom, whether it takes as many devices, which no other pod shares, as are charged for it.
        served: per atom, whether a device plugin serves it.
        mixed: two atoms that one pod cannot have.
    """

    groups: tuple[AtomGroup, ...]
    alone: tuple[int, ...]
    why: tuple[str | None, ...]
    counted: tuple[bool, ...]
    served: tuple[bool, ...]
    mixed: frozenset[tuple[int, int]]

    def limits(self, mode: Mode) -> tuple[dict[Weights, int], tuple[int, ...]]:
        """The rows in a mode, and per atom how many fit without others."""
        limits: dict[Weights, int] = {}
        alone = list(self.alone)
        for group, kept in zip(self.groups, mode, strict=True):
            if kept is None:
                limits.update(group.limits)
                for weights, limit in group.limits:
                    for atom, weight in weights:
                        alone[atom] = min(alone[atom], limit // weight)
            else:
                like = group.like(kept)
                limits[tuple((atom, 1) for atom in like)] = self.alone[kept]
                for atom in group.atoms:
                    alone[atom] = self.alone[kept] if atom in like else 0
        return limits, tuple(alone)


def kind_of(node: NodeNeeds, plugin: Plugin) -> NodeKind:
    """The kind of a node."""
    needs = tuple(
        need if served is None else "" for need, served in zip(node.needs, plugin, strict=True)
    )
    asked = NodeNeeds(needs, node.attribute_values, node.counters, node.consumes, node.left)
    groups = list(groups_of(asked))
    alone = [0] * len(needs)
    for atom, (need, served) in enumerate(zip(needs, plugin, strict=True)):
        if served is not None:
            groups.append(AtomGroup((atom,), ((((atom, 1),), served),), (served,), (atom,)))
        elif isinstance(need, Need) and not need.requests:
            alone[atom] = MOST_ATOMS
    for group in groups:
        for atom, most in zip(group.atoms, group.alone, strict=True):
            alone[atom] = most
    why = tuple((need or None) if isinstance(need, str) else None for need in needs)
    counted = tuple(
        served is not None or (isinstance(need, Need) and need.counted)
        for need, served in zip(needs, plugin, strict=True)
    )
    served_by = tuple(served is not None for served in plugin)
    mixed = frozenset((i, j) for i, j in node.mixed if not (served_by[i] or served_by[j]))
    return NodeKind(tuple(groups), tuple(alone), why, counted, served_by, mixed)


@dataclass(frozen=True)
class Table:
    """Rows over all kinds of nodes.

    Attributes:
        modes: of each kind.
        rows: weights of the atoms in each.
        amounts: per kind and mode, the amount of each row.
        alone: per kind and mode, per atom how many fit without others.
    """

    modes: Mapping[NodeKind, tuple[Mode, ...]]
    rows: tuple[Weights, ...]
    amounts: Mapping[tuple[NodeKind, Mode], tuple[int, ...]]
    alone: Mapping[tuple[NodeKind, Mode], tuple[int, ...]]

    def of_pod(self, counts: Mapping[int, int]) -> tuple[int, ...]:
        """The amount of each row that a pod with these atoms uses."""
        amounts = [0] * len(self.rows)
        for atom, number in counts.items():
            for row, weight in self._rows_of.get(atom, ()):
                amounts[row] += weight * number
        return tuple(amounts)

    @cached_property
    def _rows_of(self) -> Mapping[int, Sequence[tuple[int, int]]]:
        """Atom to the rows that have it, with its weights."""
        found: dict[int, list[tuple[int, int]]] = {}
        for row, weights in enumerate(self.rows):
            for atom, weight in weights:
                found.setdefault(atom, []).append((row, weight))
        return found


def table_of(modes: Mapping[NodeKind, tuple[Mode, ...]], present: Collection[NodeKind]) -> Table:
    """The table of the kinds of nodes in these modes; each in its first mode alone where the rows of all are too many.

    Rows that only other kinds than ``present`` need are left out first. Those kinds have too large amounts then.
    """
    limits, alone = _limits(modes)
    rows = _rows(limits, alone)
    if _number(rows) > MOST_ROWS and len(present) < len(modes):
        known = table_of({kind: each for kind, each in modes.items() if kind in present}, present)
        more = {
            variant: tuple(_amount(row, limits[variant], alone[variant]) for row in known.rows)
            for variant in limits
            if variant[0] not in present
        }
        amounts = {**more, **known.amounts}
        return Table({**modes, **known.modes}, known.rows, amounts, {**alone, **known.alone})
    if _number(rows) > MOST_ROWS:
        modes = {kind: each[:1] for kind, each in modes.items()}
        limits, alone = _limits(modes)
        rows = _rows(limits, alone)
    while _number(rows) > MOST_ROWS:
        limits, alone = _without_one_kind(limits, alone)
        rows = _rows(limits, alone)
    amounts = {
        variant: tuple(_amount(row, limits[variant], alone[variant]) for row in rows)
        for variant in limits
    }
    return Table(modes, tuple(rows), amounts, alone)


def _number(rows: Iterable[Weights]) -> int:
    return sum(len(weights) > 1 for weights in rows)


def _limits(modes: Mapping[NodeKind, tuple[Mode, ...]]) -> tuple[_Limits, _Alone]:
    found = {(kind, mode): kind.limits(mode) for kind, each in modes.items() for mode in each}
    return (
        {variant: rows for variant, (rows, _) in found.items()},
        {variant: most for variant, (_, most) in found.items()},
    )


def _rows(limits: _Limits, alone: _Alone) -> list[Weights]:
    """The rows of all nodes, and one for each atom that a node cannot serve and that no row excludes from it."""
    rows = sorted({weights for own in limits.values() for weights in own})
    single = {
        ((atom, 1),)
        for variant, own in limits.items()
        for atom in _unserved(rows, own, alone[variant])
    }
    return sorted({*rows, *single})


def _amount(row: Weights, limits: Mapping[Weights, int], alone: Sequence[int]) -> int:
    """The limit of a row, or else as much as all atoms can use."""
    most = sum(weight * alone[atom] for atom, weight in row)
    return min(most, limits.get(row, most))


def _unserved(
    rows: Sequence[Weights], limits: Mapping[Weights, int], alone: Sequence[int]
) -> Iterable[int]:
    """Atoms that a node cannot serve and that no row excludes from it."""
    empty = {atom for row in rows if not _amount(row, limits, alone) for atom, _ in row}
    return (atom for atom, most in enumerate(alone) if not most and atom not in empty)


def _without_one_kind(limits: _Limits, alone: _Alone) -> tuple[_Limits, _Alone]:
    """The same, but the kind that has most own rows, or else most rows, serves no atom."""
    uses = Counter(weights for own in limits.values() for weights in own)

    def load(variant: tuple[NodeKind, Mode]) -> tuple[int, int]:
        own = limits[variant]
        return sum(uses[weights] == 1 for weights in own), len(own)

    worst = max(limits, key=load)
    return {**limits, worst: {}}, {**alone, worst: (0,) * len(alone[worst])}
