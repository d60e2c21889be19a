"""The devices of a cluster and of its gangs, kept from one snapshot to the next.

A gang of a snapshot changes once: if it is also in the next snapshot, it gives the same object. The nodes have kinds for the requests of
a snapshot, and their amounts in a division of the nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_
from typing import Final, Protocol, TypeVar
from weakref import WeakKeyDictionary

from queuectl.devices.gpu_sizes import GPU_DRIVER
from queuectl.devices.matching import Matching, NotMatched
from queuectl.devices.needs import Atom, NodeNeeds
from queuectl.devices.pools import without_taints
from queuectl.devices.reading import needs_of
from queuectl.devices.requests import DeviceClasses, PodRequest
from queuectl.devices.selector_limits import Selectors
from queuectl.devices.shared import MIXED_IN_POD
from queuectl.devices.table import (
    NOTHING_READ,
    AlikeNodes,
    NodeKind,
    Plugin,
    Read,
    kind_of,
    read_by,
)
from queuectl.domain.devices import (
    AllocatedDevice,
    DeviceInventory,
    DeviceKind,
    DeviceOption,
    NodeDevices,
)
from queuectl.domain.fleet import Fleet, Node
from queuectl.domain.quantity import Resources
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import PodSet, Workload

# ---- Nodes

_NONE: Final = NodeDevices()
_READS: Final = 16
"""Changes of the requests after which an attribute that none of them read does not distinguish nodes."""
_MIXED_VENDORS: Final = (
    "the request for DeviceClass {} selects GPUs of the drivers {}, and a gang does not mix vendors"
)


@dataclass(frozen=True, slots=True)
class OnNode:
    """A node for some atoms. ``devices``: per charged resource, the number of its devices that are not held."""

    kind: NodeKind
    devices: tuple[int, ...]


class NodeCache:
    """The kinds of nodes, kept while their devices, what is held of them and the atoms stay the same.

    Attributes:
        matching: by the DeviceClasses, for the atoms.
        alike: nodes for the atoms.
    """

    def __init__(self, matching: Matching) -> None:
        self.matching = matching
        self.alike = AlikeNodes(NOTHING_READ)
        self._reads: list[Read] = []  # by the last sets of atoms, the latest first
        self._atoms: tuple[Atom, ...] = ()
        self._classes: tuple[tuple[str, ...], ...] = ()
        self._refused: frozenset[Selectors] = frozenset()
        self._made: dict[tuple[object, ...], tuple[NodeDevices, OnNode]] = {}
        self._kinds: dict[tuple[NodeNeeds, Plugin], NodeKind] = {}
        self._gpus: tuple[DeviceInventory, tuple[DeviceKind, ...]] | None = None
        self._untainted: dict[int, tuple[NodeDevices, NodeDevices]] = {}

    def gpus(self, inventory: DeviceInventory) -> tuple[DeviceKind, ...]:
        """The kinds of GPUs, if several drivers publish GPUs; otherwise none."""
        if self._gpus is None or self._gpus[0] is not inventory:
            nodes = inventory.nodes.values()
            kinds = {id(d.kind): d.kind for node in nodes for d in node.devices}
            found = tuple(k for k in kinds.values() if k.driver.startswith(GPU_DRIVER))
            several = len({kind.driver for kind in found}) > 1
            self._gpus = inventory, found if several else ()
        return self._gpus[1]

    def ask(
        self,
        atoms: tuple[Atom, ...],
        classes: tuple[tuple[str, ...], ...],
        refused: frozenset[Selectors] = frozenset(),
    ) -> None:
        """Nodes are for these atoms from now on.

        Args:
            atoms: of all requests.
            classes: per charged resource, its DeviceClasses.
            refused: selectors that are not evaluated.
        """
        asked = atoms, classes, refused
        if asked != (self._atoms, self._classes, self._refused):
            self._atoms, self._classes, self._refused = asked
            self._made = {}
            self.matching = self.matching.without(refused)
            own = read_by(atoms, self.matching)
            self._reads = [own, *self._reads][:_READS]
            read = reduce(or_, self._reads)
            if read != self.alike.read:
                self.alike = AlikeNodes(read)

    def of(self, devices: NodeDevices, held: tuple[AllocatedDevice, ...], plugin: Plugin) -> OnNode:
        """A node."""
        alike = self.alike.of(devices)
        held = self.alike.held(devices, held) if held else ()
        key = (id(alike), held, plugin)
        known = self._made.get(key)
        if known is None:
            known = self._made[key] = alike, self._make(alike, held, plugin)
        return known[1]

    def untainted(self, devices: NodeDevices) -> NodeDevices:
        """The devices of a node without taints; itself if it has no taints."""
        known = self._untainted.get(id(devices))
        if known is None:
            known = self._untainted[id(devices)] = devices, without_taints(devices)
        return known[1]

    def keep(self, nodes: Collection[NodeDevices], kinds: Collection[NodeKind]) -> None:
        """Forget other nodes, and kinds that no node has."""
        alive = {id(devices) for devices in nodes}
        self._untainted = {key: known for key, known in self._untainted.items() if key in alive}
        self.alike.keep([*nodes, *(known[1] for known in self._untainted.values())])
        self._kinds = {key: kind for key, kind in self._kinds.items() if kind in kinds}
        self._made = {k: made for k, made in self._made.items() if made[1].kind in kinds}

    def _make(
        self, devices: NodeDevices, held: tuple[AllocatedDevice, ...], plugin: Plugin
    ) -> OnNode:
        needs = needs_of(devices, held, self._atoms, self.matching)
        kind = self._kinds.get((needs, plugin))
        if kind is None:
            kind = self._kinds[needs, plugin] = kind_of(needs, plugin)
        taken = {one.id for one in held if not one.admin and not one.share}
        counts = []
        for names in self._classes:
            selected = {at for name in names for at in self._selected(name, devices)}
            counts.append(sum(devices.devices[at].id not in taken for at in selected))
        return OnNode(kind, tuple(counts))

    def _selected(self, device_class: str, devices: NodeDevices) -> Sequence[int]:
        try:
            return self.matching(DeviceOption(device_class), devices)
        except NotMatched:
            return ()


class FleetDevices:
    """The nodes of a fleet for some requests.

    Attributes:
        fleet: the nodes without devices.
        classes: the DeviceClasses.
        atoms: of all requests; other attributes have their numbers.
        nodes: in the order of the fleet.
        recovered: the same without taints of devices, devices that fail, and claims of other pods, and with pools that were deleted.
        kinds: of ``nodes``, in the order of the fleet, then those that only ``recovered`` have.
        charged: resources that are charged for devices.
        charges: per atom, resource to the amount that is charged.
        present: the kinds of ``nodes``.
        divided: kinds of which nodes can be kept for one kind of request, with the names of their nodes.
    """

    def __init__(
        self,
        fleet: Fleet,
        inventory: DeviceInventory,
        held: Mapping[str, tuple[AllocatedDevice, ...]],
        classes: DeviceClasses,
        atoms: tuple[Atom, ...],
        refused: frozenset[Selectors],
        cache: NodeCache,
    ) -> None:
        self.fleet = fleet
        self.classes = classes
        self._gpus = cache.gpus(inventory)
        self.atoms = atoms
        self._at = {atom: number for number, atom in enumerate(self.atoms)}
        self._counts: WeakKeyDictionary[PodRequest, dict[int, int]] = WeakKeyDictionary()
        self._refusals: WeakKeyDictionary[PodRequest, str | None] = WeakKeyDictionary()
        self._unables: WeakKeyDictionary[PodRequest, frozenset[NodeKind]] = WeakKeyDictionary()
        self._devices = inventory.nodes
        by_resource: dict[str, set[str]] = {}
        for atom in atoms:
            for resource, name in classes.resources(atom):
                by_resource.setdefault(resource, set()).add(name)
        self.charged = tuple(sorted(by_resource))
        self.charges = [self._charge(classes, atom) for atom in self.atoms]
        of_class = tuple(tuple(sorted(by_resource[name])) for name in self.charged)
        cache.ask(atoms, of_class, refused)
        self._nodes = cache
        self._matching = cache.matching  # the next call of ``ask`` replaces it
        devices = [inventory.nodes.get(node.name, _NONE) for node in fleet.nodes]
        self.nodes = [
            cache.of(own, held.get(node.name, ()), self._plugin(node))
            for node, own in zip(fleet.nodes, devices, strict=True)
        ]
        self.recovered = [
            cache.of(
                cache.untainted(inventory.recovered.get(node.name, own)), (), self._plugin(node)
            )
            for node, own in zip(fleet.recovered.nodes, devices, strict=True)
        ]
        self.kinds = tuple(dict.fromkeys(on.kind for on in (*self.nodes, *self.recovered)))
        cache.keep((*inventory.nodes.values(), *inventory.recovered.values()), set(self.kinds))
        names: dict[NodeKind, list[str]] = {kind: [] for kind in self.kinds}
        for node, on_node in zip(fleet.nodes, self.nodes, strict=True):
            names[on_node.kind].append(node.name)
        self.present = frozenset(kind for kind, own in names.items() if own)
        self.divided = {
            k: names[k] for k in self.kinds if k in self.present and any(g.lost for g in k.groups)
        }

    def _charge(self, classes: DeviceClasses, atom: Atom) -> dict[str, int]:
        return {**classes.charges(atom), **({atom.resource: 1} if atom.resource else {})}

    def _plugin(self, node: Node) -> Plugin:
        """kube-scheduler takes an extended resource from the device plugin where the node has any of it."""
        return tuple(
            (node.allocatable[atom.resource] or None) if atom.resource is not None else None
            for atom in self.atoms
        )

    def selects(self, option: DeviceOption, devices: NodeDevices) -> Sequence[int]:
        """The devices of a node that an option selects. Raises the errors of :class:`Matching`."""
        return self._nodes.alike.selected(self._matching, option, devices)

    def counts(self, request: PodRequest) -> dict[int, int]:
        """The atoms of a pod, by number."""
        known = self._counts.get(request)
        if known is None:
            asked = self.classes.requested(request)
            known = {self._at[atom]: number for atom, number in asked.atoms.items()}
            self._counts[request] = known
        return known

    def refusal(self, request: PodRequest) -> str | None:
        """Why no node can serve a request although nodes have such devices."""
        if request not in self._refusals:
            self._refusals[request] = self._refusal(request)
        return self._refusals[request]

    def uncounted(
        self,
        gangs: Iterable[Admitted],
        requests: Callable[[Workload], Sequence[PodRequest | None]],
    ) -> dict[str, tuple[AllocatedDevice, ...]]:
        """All devices of each node with a pod that no row counts, because the node can no longer serve such a request.

        A DeviceClass was deleted, a selector fails on a new device, or a device has a taint. The pod keeps its devices, and nothing here
        shows which ones they are.
        """
        found = {
            name
            for gang in gangs
            for podset, request in zip(gang.workload.podsets, requests(gang.workload), strict=False)
            if request is not None and (unable := self._unable(request))
            for name, _ in _nodes(gang, podset)
            if self._kinds.get(name) in unable
        }
        return {
            name: tuple(AllocatedDevice(device.id, "") for device in self._devices[name].devices)
            for name in sorted(found & self._devices.keys())
        }

    @cached_property
    def _kinds(self) -> dict[str, NodeKind]:
        """By name of the node. A plan uses the nodes of the one before, if they have not changed."""
        return {node.name: on.kind for node, on in zip(self.fleet.nodes, self.nodes, strict=True)}

    def _unable(self, request: PodRequest) -> frozenset[NodeKind]:
        """The kinds of nodes that cannot serve a pod."""
        known = self._unables.get(request)
        if known is None:
            takes = [atom for atom in self.counts(request) if not self.atoms[atom].admin]
            known = frozenset(k for k in self.present if not all(k.alone[atom] for atom in takes))
            self._unables[request] = known
        return known

    def _refusal(self, request: PodRequest) -> str | None:
        asked = self.classes.requested(request)
        if asked.refusal is not None:
            return asked.refusal
        for atom, own in zip(self.counts(request), asked.atoms, strict=True):
            unknown = next(filter(None, map(self._matching.check, own.options)), None)
            unknown = unknown or next(filter(None, map(self._mixes_vendors, own.options)), None)
            if unknown is not None:
                return unknown
            if not any(kind.alone[atom] for kind in self.kinds):
                whys = sorted({why for kind in self.kinds if (why := kind.why[atom]) is not None})
                if whys:
                    return whys[0]
        counts = self.counts(request)
        if any(i in counts and j in counts for kind in self.present for i, j in kind.mixed):
            return MIXED_IN_POD
        return None

    def _mixes_vendors(self, option: DeviceOption) -> str | None:
        """Why pods of one gang could get GPUs of several vendors; None = they could not."""
        selected = (kind for kind in self._gpus if self._matching.selects(option, kind))
        drivers = sorted({kind.driver for kind in selected})
        if option.admin or len(drivers) < 2:
            return None
        return _MIXED_VENDORS.format(option.device_class, " and ".join(drivers))

    def beside_claims(self, other_pods: Mapping[str, Resources]) -> Mapping[str, Resources]:
        """Unmanaged pods without the extended resources that they have by claims: their devices count as held."""
        backed = {atom.resource for atom in self.atoms if atom.resource is not None}
        changed: dict[str, Resources] = {}
        for name in other_pods.keys() & self.fleet.by_name.keys() if backed else ():
            node, used = self.fleet.by_name[name], other_pods[name]
            gone = {resource for resource in backed & used.keys() if not node.allocatable[resource]}
            if gone:
                changed[name] = Resources({r: v for r, v in used.items() if r not in gone})
        return {**other_pods, **changed} if changed else other_pods


def _nodes(gang: Admitted, podset: PodSet) -> Sequence[tuple[str, int]]:
    placed = gang.placement.of(podset.name)
    return placed.nodes if placed is not None else ()


# ---- Gangs

_SPARE: Final = 4  # times as many gangs as a snapshot has
Gang = TypeVar("Gang", Pending, Admitted)


class _Change(Protocol):
    def __call__(self, gang: Gang, /) -> Gang: ...


class ChangedGangs:
    """By the identity of the gangs, which are kept for this."""

    def __init__(self) -> None:
        self._pending: dict[int, tuple[Pending, Pending]] = {}
        self._admitted: dict[int, tuple[Admitted, Admitted]] = {}

    def of(
        self, snapshot: Snapshot, change: _Change
    ) -> tuple[tuple[Pending, ...], tuple[Admitted, ...]]:
        """Its pending and its admitted gangs, changed. Each call has the same ``change``."""
        return (
            _changed(snapshot.pending, self._pending, change),
            _changed(snapshot.admitted, self._admitted, change),
        )

    def forget_others(self, snapshot: Snapshot) -> bool:
        """Whether there were many gangs that are not in the snapshot. They are forgotten then."""
        known = len(self._pending) + len(self._admitted)
        many = known > _SPARE * (len(snapshot.pending) + len(snapshot.admitted))
        if many:
            self._pending = {id(gang): self._pending[id(gang)] for gang in snapshot.pending}
            self._admitted = {id(gang): self._admitted[id(gang)] for gang in snapshot.admitted}
        return many


def _changed(
    gangs: Sequence[Gang], lowered: dict[int, tuple[Gang, Gang]], change: _Change
) -> tuple[Gang, ...]:
    for gang in gangs:
        if id(gang) not in lowered:
            lowered[id(gang)] = gang, change(gang)
    return tuple([lowered[id(gang)][1] for gang in gangs])
