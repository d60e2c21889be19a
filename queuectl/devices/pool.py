"""The devices of one pool on the nodes that can use them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from queuectl.domain.devices import Device, DeviceId, DeviceKind, NodeDevices
from queuectl.domain.fleet import Fleet, SelectorTerm
from queuectl.domain.pool_slices import NodeAccess, PoolSlice, PublishedDevice
from queuectl.domain.words import counted

_SEVERAL = "several nodes can use it"
_COUNTERS = "its counters are shared with other nodes, or with devices that are left out"


def newest(slices: Sequence[PoolSlice]) -> list[PoolSlice]:
    """The ResourceSlices of the newest generation of a pool, by name."""
    generation = max(one.generation for one in slices)
    return sorted((s for s in slices if s.generation == generation), key=lambda s: s.name)


def complete_generation(slices: Sequence[PoolSlice]) -> list[PoolSlice]:
    """The newest generation of a pool of which all ResourceSlices exist; else the newest, as if no other ResourceSlices belonged to it."""
    for generation in sorted({one.generation for one in slices}, reverse=True):
        own = newest([one for one in slices if one.generation == generation])
        if defect(own) is None:
            return own
    own = newest(slices)
    return [replace(one, slices=len(own)) for one in own]


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


class NodesOf:
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
class FoundOn:
    """The devices of one node."""

    devices: list[Device] = field(default_factory=list)
    counters: dict[tuple[str, str, str, str], int] = field(default_factory=dict)
    unsupported: list[str] = field(default_factory=list)
    left_out: dict[DeviceKind, None] = field(default_factory=dict)
    evaluated: dict[DeviceKind, None] = field(default_factory=dict)

    def frozen(self) -> NodeDevices:
        return NodeDevices(
            tuple(sorted(self.devices, key=lambda device: device.id)),
            tuple(sorted(self.counters.items())),
            tuple(self.unsupported),
            tuple(self.left_out),
            tuple(self.evaluated),
        )


class Pool:
    """One pool."""

    def __init__(
        self,
        name: tuple[str, str],
        slices: Sequence[PoolSlice],
        nodes: NodesOf,
        found: dict[str, FoundOn],
    ) -> None:
        self._driver, self._name = name
        self._slices = newest(slices)
        self._older = [one for one in slices if one.generation < self._slices[0].generation]
        self._nodes = nodes
        self._found = found

    def add(self) -> None:
        """Add its devices to their nodes."""
        self._add_older()
        why = defect(self._slices)
        if why is not None:
            self._add_defective(why)
            return
        self._add_evaluated()
        usable: dict[str, str] = {}  # device to node
        refused: dict[str, str] = {}  # device to reason
        published = list(self._published())
        for device, nodes in published:
            if device.unsupported:
                refused[device.name] = device.unsupported
            elif len(nodes) > 1:
                refused[device.name] = _SEVERAL
            elif nodes:
                (usable[device.name],) = nodes
        self._refuse_counters([device for device, _ in published], usable, refused)
        self._place(published, usable)
        self._report(published, refused)

    def _reached(self, one: PoolSlice) -> Collection[str]:
        """The nodes for which kube-scheduler reads a ResourceSlice: each node if it has counters and names no node."""
        if one.counters and (one.access is None or one.access.node is None):
            return self._nodes.of(NodeAccess())
        if one.access is not None:
            return self._nodes.of(one.access)
        own = (device.access for device in one.devices if device.access is not None)
        return {node for access in own for node in self._nodes.of(access)}

    def _add_defective(self, why: str) -> None:
        """kube-scheduler checks the ResourceSlices for a node alone, and can find no defect in them."""
        shared = [one for one in self._slices if one.counters]
        read: dict[str, list[PoolSlice]] = defaultdict(list)
        for one in self._slices:
            for node in self._reached(one):
                read[node].append(one)
        whole = {one.slices for one in self._slices} == {len(self._slices)}
        for node, found_there in sorted(read.items()):
            found = self._found[node]
            found.unsupported.append(f"{self._title}: {why}")
            own = [one for one in found_there if not one.counters]
            complete = whole or len(own) + len(shared) in {one.slices for one in own}
            devices = [device for one in own for device in one.devices]
            if complete and _repeated(device.name for device in devices) is None:
                found.left_out.update((device.kind, None) for device in devices)

    def _add_older(self) -> None:
        """kube-scheduler uses an older generation on a node if the newest one has nothing for the node."""
        renewed: set[str] = set()
        if self._older:
            renewed = renewed.union(*map(self._reached, self._slices))
        for one in self._older:
            for node in sorted(set(self._reached(one)) - renewed):
                found = self._found[node]
                found.unsupported.append(
                    f"{self._title}: generation {one.generation} is not deleted"
                )
                found.left_out.update((device.kind, None) for device in one.devices)

    def _add_evaluated(self) -> None:
        """kube-scheduler evaluates selectors before it checks the nodes of a single device."""
        for one in self._slices:
            for node in self._reached(one) if one.access is None and one.devices else ():
                self._found[node].evaluated.update((device.kind, None) for device in one.devices)

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
