"""From ResourceSlices to the devices of each node.

A pool counts with its newest generation, and only if all ResourceSlices of that generation are published. Devices whose
allocation on one node depends on what happens on other nodes, or on another controller, are left out with a sentence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_

from queuectl.domain.devices import Device, DeviceId, DeviceKind, NodeDevices
from queuectl.domain.fleet import Fleet, SelectorTerm
from queuectl.domain.pool_slices import NodeAccess, PoolSlice, PublishedDevice
from queuectl.domain.words import counted

_SEVERAL = "several nodes can use it"
_COUNTERS = "its counters are shared with other nodes, or with devices that are left out"


def node_devices(slices: Iterable[PoolSlice], fleet: Fleet) -> dict[str, NodeDevices]:
    """The devices of each node, by its name.

    Args:
        slices: all ResourceSlices of the cluster.
        fleet: all nodes of the cluster, for devices that nodes select by labels.
    """
    return Pools().nodes(slices, fleet)


class Pools:
    """The devices of the nodes, from one revision to the next: unchanged nodes keep the same objects."""

    def __init__(self) -> None:
        self._parts: dict[tuple[str, str], tuple[tuple[object, ...], dict[str, NodeDevices]]] = {}
        self._joined: dict[str, tuple[list[NodeDevices], NodeDevices]] = {}

    def nodes(self, slices: Iterable[PoolSlice], fleet: Fleet) -> dict[str, NodeDevices]:
        """As :func:`node_devices`."""
        pools: dict[tuple[str, str], list[PoolSlice]] = defaultdict(list)
        for one in slices:
            pools[one.driver, one.pool].append(one)
        mixed_up = _same_name(pools)
        nodes = _Nodes(fleet)
        parts: dict[str, list[NodeDevices]] = defaultdict(list)
        for name in sorted(pools):
            for node, part in self._of(
                name, newest(pools[name]), nodes, mixed_up.get(name)
            ).items():
                parts[node].append(part)
        self._parts = {name: self._parts[name] for name in pools}
        self._joined = {node: self._join(node, parts[node]) for node in sorted(parts)}
        return {node: joined for node, (_, joined) in self._joined.items()}

    def _of(
        self,
        name: tuple[str, str],
        slices: Sequence[PoolSlice],
        nodes: _Nodes,
        mixed_up: str | None,
    ) -> dict[str, NodeDevices]:
        by_labels = any(map(_needs_labels, slices))
        key = (*slices, nodes.fleet if by_labels else None, mixed_up)
        known = self._parts.get(name)
        if known is None or len(known[0]) != len(key) or not all(map(is_, known[0], key)):
            found: dict[str, _Found] = defaultdict(_Found)
            _Pool(name, slices, nodes, found).add(mixed_up)
            known = self._parts[name] = key, {n: found[n].frozen() for n in sorted(found)}
        return known[1]

    def _join(self, node: str, parts: list[NodeDevices]) -> tuple[list[NodeDevices], NodeDevices]:
        known = self._joined.get(node)
        if known is not None and len(known[0]) == len(parts) and all(map(is_, known[0], parts)):
            return known
        if len(parts) == 1:
            return parts, parts[0]
        joined = NodeDevices(
            tuple(sorted((d for part in parts for d in part.devices), key=lambda d: d.id)),
            tuple(sorted(counter for part in parts for counter in part.counters)),
            tuple(sentence for part in parts for sentence in part.unsupported),
            tuple(dict.fromkeys(kind for part in parts for kind in part.left_out)),
        )
        return parts, joined


def _needs_labels(one: PoolSlice) -> bool:
    """Whether the nodes that can use its devices follow from all nodes of the cluster."""
    accesses = [one.access] if one.access is not None else [d.access for d in one.devices]
    return any(access is not None and access.node is None for access in accesses)


def newest(slices: Sequence[PoolSlice]) -> list[PoolSlice]:
    """The ResourceSlices of the newest generation of a pool, by name."""
    generation = max(one.generation for one in slices)
    return sorted((s for s in slices if s.generation == generation), key=lambda s: s.name)


def defect(slices: Sequence[PoolSlice]) -> str | None:
    """The reason for which no device of a pool can be allocated; None = they can.

    Args:
        slices: all of its newest generation.
    """
    expected = {one.slices for one in slices}
    if expected != {len(slices)}:
        total = " or ".join(map(str, sorted(expected)))
        return f"{len(slices)} of {total} ResourceSlices of generation {slices[0].generation} exist"
    repeated = _repeated(device.name for one in slices for device in one.devices)
    if repeated is not None:
        return f"device name {repeated!r} occurs twice"
    within = next((one.repeated for one in slices if one.repeated), None)
    repeated = within or _repeated(name for one in slices for name in _counter_sets(one))
    if repeated is not None:
        return f"counter set {repeated!r} occurs twice"
    known = {counter for one in slices for counter, _ in one.counters}
    for one in slices:
        for device in one.devices:
            for (name, counter), _ in device.consumes:
                if (name, counter) not in known:
                    return (
                        f"device {device.name}: counter {counter!r} of set {name!r} does not exist"
                    )
    return None


def _counter_sets(one: PoolSlice) -> set[str]:
    return {name for (name, _), _ in one.counters}


def _repeated(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _same_name(pools: Mapping[tuple[str, str], Sequence[PoolSlice]]) -> dict[tuple[str, str], str]:
    """The pools whose counters kube-scheduler mixes up: it keeps them by the name of the pool, without the driver."""
    drivers: dict[str, list[str]] = defaultdict(list)
    for (driver, pool), slices in pools.items():
        if any(one.counters for one in slices):
            drivers[pool].append(driver)
    return {
        (driver, pool): f"pools of {' and '.join(sorted(names))} have counters and the same name"
        for pool, names in drivers.items()
        for driver in names
        if len(names) > 1
    }


class _Nodes:
    """The names of the nodes that can use devices."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._every = frozenset(fleet.by_name)
        self._selected: dict[SelectorTerm, frozenset[str]] = {}

    def of(self, access: NodeAccess) -> frozenset[str]:
        if access.node is not None:
            return frozenset((access.node,))
        if access.selector is None:
            return self._every
        known = self._selected.get(access.selector)
        if known is None:
            matching = (n.name for n in self.fleet.nodes if access.selector.matches(n))
            known = self._selected[access.selector] = frozenset(matching)
        return known


@dataclass
class _Found:
    """The devices of one node."""

    devices: list[Device] = field(default_factory=list)
    counters: dict[tuple[str, str, str, str], int] = field(default_factory=dict)
    unsupported: list[str] = field(default_factory=list)
    left_out: dict[DeviceKind, None] = field(default_factory=dict)

    def frozen(self) -> NodeDevices:
        return NodeDevices(
            tuple(sorted(self.devices, key=lambda device: device.id)),
            tuple(sorted(self.counters.items())),
            tuple(self.unsupported),
            tuple(self.left_out),
        )


class _Pool:
    """One pool, with the ResourceSlices of its newest generation."""

    def __init__(
        self,
        name: tuple[str, str],
        slices: Sequence[PoolSlice],
        nodes: _Nodes,
        found: dict[str, _Found],
    ) -> None:
        self._driver, self._name = name
        self._slices = slices
        self._nodes = nodes
        self._found = found

    def add(self, mixed_up: str | None) -> None:
        """Add its devices to their nodes; ``mixed_up``: the reason why no device with counters can be planned."""
        why = defect(self._slices)
        if why is not None:
            for node in sorted({node for _, nodes in self._published() for node in nodes}):
                self._found[node].unsupported.append(f"{self._title}: {why}")
            return
        usable: dict[str, str] = {}  # device to node
        refused: dict[str, str] = {}  # device to reason
        published = list(self._published())
        for device, nodes in published:
            if device.unsupported:
                refused[device.name] = device.unsupported
            elif mixed_up is not None and device.consumes:
                refused[device.name] = mixed_up
            elif len(nodes) > 1:
                refused[device.name] = _SEVERAL
            elif nodes:
                (usable[device.name],) = nodes
        self._refuse_counters([device for device, _ in published], usable, refused)
        self._place(published, usable)
        self._report(published, refused)

    def _published(self) -> Iterator[tuple[PublishedDevice, Collection[str]]]:
        for one in self._slices:
            for device in one.devices:
                access = device.access if one.access is None else one.access
                yield device, frozenset() if access is None else self._nodes.of(access)

    def _refuse_counters(
        self, devices: Sequence[PublishedDevice], usable: dict[str, str], refused: dict[str, str]
    ) -> None:
        """Leave out all devices of a counter set that is not one node's alone, until nothing changes."""
        consumers: dict[str, list[str]] = defaultdict(list)
        for device in devices:
            for name in {name for (name, _), _ in device.consumes}:
                consumers[name].append(device.name)
        changed = True
        while changed:
            changed = False
            for names in consumers.values():
                users = {usable[name] for name in names if name in usable}
                if len(users) + any(name in refused for name in names) < 2:
                    continue
                for name in names:
                    changed |= usable.pop(name, None) is not None
                    refused.setdefault(name, _COUNTERS)

    def _place(
        self,
        published: Sequence[tuple[PublishedDevice, Collection[str]]],
        usable: Mapping[str, str],
    ) -> None:
        amounts = {counter: amount for one in self._slices for counter, amount in one.counters}
        for device, _ in published:
            node = usable.get(device.name)
            if node is None:
                continue
            found = self._found[node]
            identity = DeviceId(self._driver, self._name, device.name)
            found.devices.append(Device(identity, device.kind, device.consumes))
            for counter, _ in device.consumes:
                found.counters[self._driver, self._name, *counter] = amounts[counter]

    def _report(
        self,
        published: Sequence[tuple[PublishedDevice, Collection[str]]],
        refused: Mapping[str, str],
    ) -> None:
        """One sentence for each reason on a node."""
        names: dict[tuple[str, str], list[str]] = defaultdict(list)
        for device, nodes in published:
            if device.name in refused:
                for node in nodes:
                    names[node, refused[device.name]].append(device.name)
                    self._found[node].left_out[device.kind] = None
        for (node, why), left_out in sorted(names.items()):
            first, *others = left_out
            more = f" and {counted(len(others), 'other device')}" if others else ""
            text = f"{self._title}: device {first}{more} left out: {why}"
            self._found[node].unsupported.append(text)

    @property
    def _title(self) -> str:
        return f"pool {self._driver}/{self._name}"
