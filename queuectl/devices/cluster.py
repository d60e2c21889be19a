"""The nodes of a cluster for the requests of a snapshot: their kinds, and their amounts in a division of the nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from queuectl.devices.atoms import Atom
from queuectl.devices.matching import Matching, NotMatched
from queuectl.devices.needs import NodeNeeds, needs_of
from queuectl.devices.requests import Asked, Classes, PodRequest, lowered_shape
from queuectl.devices.table import Kind, Mode, Plugin, Table, kind_of, table_of
from queuectl.domain.devices import (
    DEVICE_ROW,
    AllocatedDevice,
    DeviceInventory,
    DeviceOption,
    NodeDevices,
)
from queuectl.domain.fleet import Fleet, Node
from queuectl.domain.quantity import Resources
from queuectl.domain.workload import PodShape

_NONE: Final = NodeDevices()


@dataclass(frozen=True, slots=True)
class OnNode:
    """A node for some atoms. ``devices``: per charged resource, the number of its devices that are not held."""

    kind: Kind
    devices: tuple[int, ...]


@dataclass(eq=False)
class NodeCache:
    """The kinds of nodes, kept while their devices, what is held of them and the atoms stay the same."""

    matching: Matching
    _nodes: dict[str, tuple[tuple[object, ...], OnNode]] = field(default_factory=dict)
    _kinds: dict[tuple[NodeNeeds, Plugin], Kind] = field(default_factory=dict)
    _none: dict[tuple[object, ...], OnNode] = field(default_factory=dict)
    _last: tuple[object, ...] = ()

    def same(self, *asked: Any) -> tuple[Any, ...]:
        """The arguments, as the same objects as last time if they are equal: they are compared for each node."""
        if self._last != asked:
            self._last = asked
        return self._last

    def of(
        self,
        name: str,
        devices: NodeDevices,
        held: tuple[AllocatedDevice, ...],
        plugin: Plugin,
        atoms: tuple[Atom, ...],
        classes: tuple[tuple[str, ...], ...],
    ) -> OnNode:
        """A node; ``classes``: per charged resource, its DeviceClasses."""
        if not devices.devices:
            key: tuple[object, ...] = (plugin, atoms, classes)
            if key not in self._none:
                self._none[key] = self._make(_NONE, (), plugin, atoms, classes)
            return self._none[key]
        key = (devices, held, plugin, atoms, classes)
        known = self._nodes.get(name)
        if known is None or known[0] != key:
            known = self._nodes[name] = key, self._make(devices, held, plugin, atoms, classes)
        return known[1]

    def keep(self, names: Iterable[str], kinds: set[Kind]) -> None:
        """Forget other nodes, and kinds that no node has."""
        alive = set(names)
        self._nodes = {name: known for name, known in self._nodes.items() if name in alive}
        self._kinds = {key: kind for key, kind in self._kinds.items() if kind in kinds}
        self._none = {key: known for key, known in self._none.items() if known.kind in kinds}

    def _make(
        self,
        devices: NodeDevices,
        held: tuple[AllocatedDevice, ...],
        plugin: Plugin,
        atoms: tuple[Atom, ...],
        classes: tuple[tuple[str, ...], ...],
    ) -> OnNode:
        needs = needs_of(devices, held, atoms, self.matching)
        kind = self._kinds.get((needs, plugin))
        if kind is None:
            kind = self._kinds[needs, plugin] = kind_of(needs, plugin)
        taken = {one.id for one in held if not one.admin and not one.share}
        counts = []
        for names in classes:
            selected = {at for name in names for at in self._selected(name, devices)}
            counts.append(sum(devices.devices[at].id not in taken for at in selected))
        return OnNode(kind, tuple(counts))

    def _selected(self, device_class: str, devices: NodeDevices) -> Sequence[int]:
        try:
            return self.matching(DeviceOption(device_class), devices)
        except NotMatched:
            return ()


class Cluster:
    """The nodes of a fleet for some requests.

    Attributes:
        classes: the DeviceClasses.
        divided: kinds of which nodes can be kept for one kind of request, with the names of their nodes.
    """

    def __init__(
        self,
        fleet: Fleet,
        inventory: DeviceInventory,
        held: Mapping[str, tuple[AllocatedDevice, ...]],
        classes: Classes,
        requests: Iterable[PodRequest],
        cache: NodeCache,
    ) -> None:
        self._fleet = fleet
        self.classes = classes
        self._matching = cache.matching
        self._asked: dict[PodRequest, Asked] = {
            r: classes.asked(r) for r in sorted(requests, key=repr)
        }
        atoms = {atom for asked in self._asked.values() for atom in asked.atoms}
        self._atoms = tuple(sorted(atoms, key=repr))
        at = {atom: number for number, atom in enumerate(self._atoms)}
        self._counts = {
            request: {at[atom]: number for atom, number in asked.atoms.items()}
            for request, asked in self._asked.items()
        }
        by_resource: dict[str, set[str]] = {}
        for asked in self._asked.values():
            for resource, name in classes.resources(asked):
                by_resource.setdefault(resource, set()).add(name)
        self._charged = tuple(sorted(by_resource))
        self._charges = [self._charge(classes, atom) for atom in self._atoms]
        of_class = tuple(tuple(sorted(by_resource[name])) for name in self._charged)
        self._atoms, of_class = cache.same(self._atoms, of_class)
        self._nodes = [
            cache.of(
                node.name,
                inventory.nodes.get(node.name, _NONE),
                held.get(node.name, ()),
                self._plugin(node),
                self._atoms,
                of_class,
            )
            for node in fleet.nodes
        ]
        cache.keep(fleet.index, {node.kind for node in self._nodes})
        self.divided: dict[Kind, list[str]] = {}
        for node, on_node in zip(fleet.nodes, self._nodes, strict=True):
            if any(group.lost for group in on_node.kind.groups):
                self.divided.setdefault(on_node.kind, []).append(node.name)

    def _charge(self, classes: Classes, atom: Atom) -> dict[str, int]:
        return {**classes.charges(atom), **({atom.resource: 1} if atom.resource else {})}

    def _plugin(self, node: Node) -> Plugin:
        """kube-scheduler takes an extended resource from the device plugin where the node has any of it."""
        return tuple(
            (node.allocatable[atom.resource] or None) if atom.resource is not None else None
            for atom in self._atoms
        )

    def counts(self, request: PodRequest) -> dict[int, int]:
        """The atoms of a pod, by number."""
        return self._counts[request]

    def refusal(self, request: PodRequest) -> str | None:
        """Why no node can serve a request although nodes have such devices."""
        asked = self._asked[request]
        if asked.refusal is not None:
            return asked.refusal
        for atom, own in zip(self.counts(request), asked.atoms, strict=True):
            unknown = next(filter(None, map(self._matching.check, own.options)), None)
            if unknown is not None:
                return unknown
            kinds = {node.kind for node in self._nodes}
            if not any(kind.alone[atom] for kind in kinds):
                whys = sorted({why for kind in kinds if (why := kind.why[atom]) is not None})
                if whys:
                    return whys[0]
        return None

    def beside_claims(self, other_pods: Mapping[str, Resources]) -> Mapping[str, Resources]:
        """Unmanaged pods without the extended resources that they have by claims: their devices count as held."""
        backed = {atom.resource for atom in self._atoms if atom.resource is not None}
        changed: dict[str, Resources] = {}
        for name in other_pods.keys() & self._fleet.by_name.keys() if backed else ():
            node, used = self._fleet.by_name[name], other_pods[name]
            gone = {resource for resource in backed & used.keys() if not node.allocatable[resource]}
            if gone:
                changed[name] = Resources({r: v for r, v in used.items() if r not in gone})
        return {**other_pods, **changed} if changed else other_pods

    def in_modes(self, modes: Mapping[str, Mode]) -> tuple[Lowering, Fleet]:
        """The rows, and the nodes with their amounts."""
        names = self._fleet.index
        variants = [
            (on.kind, modes.get(name, (None,) * len(on.kind.groups)))
            for name, on in zip(names, self._nodes, strict=True)
        ]
        table = table_of(variants)
        columns = [
            tuple(
                on.devices[i] + self._beyond(table, variant, i) for i in range(len(self._charged))
            )
            for on, variant in zip(self._nodes, variants, strict=True)
        ]
        lowering = Lowering(self, table, self._useful(table, variants, columns))
        nodes = tuple(
            self._node(node, lowering, table.amounts[variant], column)
            for node, variant, column in zip(self._fleet.nodes, variants, columns, strict=True)
        )
        return lowering, Fleet(nodes)

    def _beyond(self, table: Table, variant: tuple[Kind, Mode], column: int) -> int:
        """The charges on a node that its devices do not bound: of shared devices, alternatives and device plugins."""
        kind, resource = variant[0], self._charged[column]
        return sum(
            charges[resource] * table.alone[variant][atom]
            for atom, charges in enumerate(self._charges)
            if resource in charges
            and (
                not kind.counted[atom]
                or (kind.served[atom] and self._atoms[atom].resource != resource)
            )
        )

    def _useful(
        self,
        table: Table,
        variants: Sequence[tuple[Kind, Mode]],
        columns: Sequence[tuple[int, ...]],
    ) -> tuple[int, ...]:
        """Rows that are not the same as a charged resource."""
        amounts = [
            (
                asked,
                table.of_pod(self.counts(request)),
                [dict(request.extended).get(r, 0) + asked.charges.get(r, 0) for r in self._charged],
            )
            for request, asked in self._asked.items()
        ]
        kept = []
        for row in range(len(table.rows)):
            alike = (
                all(rows[row] == charged[i] for _, rows, charged in amounts)
                and all(
                    table.amounts[variant][row] == node.allocatable[resource] + column[i]
                    for node, variant, column in zip(
                        self._fleet.nodes, variants, columns, strict=True
                    )
                )
                for i, resource in enumerate(self._charged)
            )
            if not any(alike):
                kept.append(row)
        return tuple(kept)

    def _node(
        self, node: Node, lowering: Lowering, rows: tuple[int, ...], column: tuple[int, ...]
    ) -> Node:
        more = dict(zip(self._charged, column, strict=True))
        more |= {name: rows[row] for row, name in lowering.names.items()}
        if not any(more.values()):
            return node
        amounts = dict(node.allocatable)
        for name, amount in more.items():
            amounts[name] = amounts.get(name, 0) + amount
        return replace(node, allocatable=Resources(amounts))

    def asked(self, request: PodRequest) -> Asked:
        """The atoms and charges of a request."""
        return self._asked[request]

    def label(self, row: Iterable[tuple[int, int]]) -> str:
        """The requests in a row."""
        return " | ".join(dict.fromkeys(self._atoms[atom].label for atom, _ in row))


class Lowering:
    """Requests as amounts of device rows. ``names``: row to its resource."""

    def __init__(self, cluster: Cluster, table: Table, rows: Iterable[int]) -> None:
        self._cluster = cluster
        self._table = table
        self.names: dict[int, str] = {}
        for row in rows:
            name = f"{DEVICE_ROW}{cluster.label(table.rows[row])}"
            same = sum(known.partition(" #")[0] == name for known in self.names.values())
            self.names[row] = f"{name} #{same + 1}" if same else name

    def shape(self, shape: PodShape, request: PodRequest) -> PodShape:
        """A pod with its rows and charges."""
        amounts = self._table.of_pod(self._cluster.counts(request))
        rows = {name: amounts[row] for row, name in self.names.items() if amounts[row]}
        backed = {name: self._cluster.classes.backing[name] for name, _ in request.extended}
        return lowered_shape(shape, self._cluster.asked(request), rows, backed)
