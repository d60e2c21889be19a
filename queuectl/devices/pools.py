"""From ResourceSlices to the devices of each node, without those that taints take out of placement.

A pool counts with its newest generation, and only if all ResourceSlices of that generation are published. Devices whose
allocation on one node depends on what happens on other nodes, or on another controller, are left out with a sentence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import is_
from typing import Final, TypeAlias

from queuectl.domain.devices import (
    Device,
    DeviceEffect,
    DeviceId,
    DeviceInventory,
    DeviceKind,
    DeviceTaint,
    DeviceTaintRule,
    DeviceToleration,
    NodeAccess,
    NodeDevices,
    PoolSlice,
    PublishedDevice,
)
from queuectl.domain.fleet import Fleet, SelectorTerm
from queuectl.domain.words import counted

# ---- One pool

_SEVERAL = "several nodes can use it"
_COUNTERS = "its counters are shared with other nodes, or with devices that are left out"


def newest(slices: Sequence[PoolSlice]) -> list[PoolSlice]:
    """The ResourceSlices of the newest generation of a pool, by name."""
    generation = max(one.generation for one in slices)
    return sorted((s for s in slices if s.generation == generation), key=lambda s: s.name)


def complete_generation(slices: Sequence[PoolSlice]) -> list[PoolSlice]:
    """The newest generation of a pool of which all ResourceSlices exist; otherwise the newest, as if no other ResourceSlices belonged to it."""
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


def _counter_sets(pool_slice: PoolSlice) -> set[str]:
    return {name for (name, _), _ in pool_slice.counters}


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


class DevicePool:
    """One pool."""

    def __init__(
        self,
        name: tuple[str, str],
        slices: Sequence[PoolSlice],
        nodes: NodesOf,
        places: dict[str, FoundOn],
    ) -> None:
        self._driver, self._name = name
        self._slices = newest(slices)
        self._older = [one for one in slices if one.generation < self._slices[0].generation]
        self._nodes = nodes
        self._found = places

    def add(self) -> bool:
        """Add its devices to their nodes. Returns whether they can be allocated."""
        self._add_older()
        why = defect(self._slices)
        if why is not None:
            self._add_defective(why)
            return False
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
        return True

    def _reached(self, pool_slice: PoolSlice) -> Collection[str]:
        """The nodes for which kube-scheduler reads a ResourceSlice: each node if it has counters and names no node."""
        if pool_slice.counters and (pool_slice.access is None or pool_slice.access.node is None):
            return self._nodes.of(NodeAccess())
        if pool_slice.access is not None:
            return self._nodes.of(pool_slice.access)
        own = (device.access for device in pool_slice.devices if device.access is not None)
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


# ---- All pools

_Found: TypeAlias = tuple[dict[str, NodeDevices], bool]
"""The devices of one pool by node, and whether its newest generation has no defect."""
_Joined: TypeAlias = tuple[list[NodeDevices], NodeDevices]
"""The devices of the pools of a node, and all of them together."""


def node_devices(slices: Iterable[PoolSlice], fleet: Fleet) -> dict[str, NodeDevices]:
    """The devices of each node, by its name.

    Args:
        slices: all ResourceSlices of the cluster.
        fleet: all nodes of the cluster, for devices that nodes select by labels.
    """
    return DevicePools().nodes(slices, fleet)


class DevicePools:
    """The devices of the nodes, from one revision to the next: unchanged nodes keep the same objects."""

    def __init__(self) -> None:
        # By pool, with the objects from which they follow.
        self._parts: dict[tuple[str, str], tuple[tuple[object, ...], _Found]] = {}
        self._complete: dict[tuple[str, str], dict[str, NodeDevices]] = {}  # as they last were
        self._joined: dict[str, _Joined] = {}
        self._recovered: dict[str, _Joined] = {}

    def nodes(self, slices: Iterable[PoolSlice], fleet: Fleet) -> dict[str, NodeDevices]:
        """As :func:`node_devices`."""
        return self.inventory(slices, fleet)[0]

    def inventory(
        self, slices: Iterable[PoolSlice], fleet: Fleet
    ) -> tuple[dict[str, NodeDevices], dict[str, NodeDevices]]:
        """The devices of each node, and those of ``DeviceInventory.recovered``."""
        pools: dict[tuple[str, str], list[PoolSlice]] = defaultdict(list)
        for one in slices:
            pools[one.driver, one.pool].append(one)
        nodes = NodesOf(fleet)
        parts: dict[str, list[NodeDevices]] = defaultdict(list)
        whole: dict[str, list[NodeDevices]] = defaultdict(list)
        lacking: set[str] = set()
        for name in sorted(pools.keys() | self._complete):
            own, complete = self._of(name, pools[name], nodes) if name in pools else ({}, False)
            if complete:
                self._complete[name] = last = own
            else:
                last = {**own, **self._last(name, pools.get(name, ()), nodes)}
            for node, part in own.items():
                parts[node].append(part)
            for node, part in last.items():
                whole[node].append(part)
            lacking.update(node for node, part in last.items() if own.get(node) is not part)
        self._parts = {name: self._parts[name] for name in pools}
        self._joined = _joined(parts, parts, self._joined)
        self._recovered = _joined(lacking & fleet.by_name.keys(), whole, self._recovered)
        return _devices(self._joined), _devices(self._recovered)

    def _last(
        self,
        name: tuple[str, str],
        slices: Sequence[PoolSlice],
        nodes: NodesOf,
    ) -> dict[str, NodeDevices]:
        """The devices of a pool when it was complete; of one that never was, those of its ResourceSlices."""
        last = self._complete.get(name, {})
        if not last.keys() & nodes.fleet.by_name.keys():
            self._complete.pop(name, None)
            last = _found(name, complete_generation(slices), nodes)[0] if slices else {}
        return {node: part for node, part in last.items() if part.devices}

    def _of(
        self,
        name: tuple[str, str],
        slices: Sequence[PoolSlice],
        nodes: NodesOf,
    ) -> _Found:
        by_labels = any(map(_needs_labels, slices))
        key = (*slices, nodes.fleet if by_labels else None)
        known = self._parts.get(name)
        if known is None or len(known[0]) != len(key) or not all(map(is_, known[0], key)):
            known = self._parts[name] = key, _found(name, slices, nodes)
        return known[1]


def _found(name: tuple[str, str], slices: Sequence[PoolSlice], nodes: NodesOf) -> _Found:
    found: dict[str, FoundOn] = defaultdict(FoundOn)
    complete = DevicePool(name, slices, nodes, found).add()
    return {node: found[node].frozen() for node in sorted(found)}, complete


def _devices(joined: Mapping[str, _Joined]) -> dict[str, NodeDevices]:
    return {node: devices for node, (_, devices) in joined.items()}


def _joined(
    nodes: Iterable[str], parts: Mapping[str, list[NodeDevices]], last: Mapping[str, _Joined]
) -> dict[str, _Joined]:
    """The devices of all pools of some nodes; ``last``: those of the last revision."""
    return {node: _join(parts[node], last.get(node)) for node in sorted(nodes)}


def _join(parts: list[NodeDevices], last: _Joined | None) -> _Joined:
    if last is not None and len(last[0]) == len(parts) and all(map(is_, last[0], parts)):
        return last
    if len(parts) == 1:
        return parts, parts[0]
    joined = NodeDevices(
        tuple(sorted((d for part in parts for d in part.devices), key=lambda d: d.id)),
        tuple(sorted(counter for part in parts for counter in part.counters)),
        tuple(sentence for part in parts for sentence in part.unsupported),
        tuple(dict.fromkeys(kind for part in parts for kind in part.left_out)),
        tuple(dict.fromkeys(kind for part in parts for kind in part.evaluated)),
    )
    return parts, joined


def _needs_labels(pool_slice: PoolSlice) -> bool:
    """Whether the nodes that can use its devices follow from all nodes of the cluster."""
    accesses = (
        [pool_slice.access]
        if pool_slice.access is not None
        else [d.access for d in pool_slice.devices]
    )
    return (bool(pool_slice.counters) and pool_slice.access is None) or any(
        access is not None and access.node is None for access in accesses
    )


# ---- Taints of devices

_MOST_KINDS: Final = 1 << 14


class TaintedSlices:
    """ResourceSlices with the taints of DeviceTaintRules. Unchanged ones are the same objects from one revision to the next."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[tuple[object, ...], PoolSlice]] = {}

    def of(
        self, slices: Iterable[PoolSlice], rules: Sequence[DeviceTaintRule]
    ) -> Iterator[PoolSlice]:
        """The slices, each with the taints of the rules that select its devices.

        Args:
            slices: as published.
            rules: of the cluster, in a fixed order.
        """
        tainted = {}
        for one in slices:
            own = [rule for rule in rules if _reaches(rule, one)]
            if not own:
                yield one
                continue
            key, known = (one, *own), self._made.get(one.name)
            if known is None or len(known[0]) != len(key) or not all(map(is_, known[0], key)):
                devices = tuple(_tainted(device, own) for device in one.devices)
                known = key, replace(one, devices=devices)
            tainted[one.name] = known
            yield known[1]
        self._made = tainted


def _reaches(rule: DeviceTaintRule, pool_slice: PoolSlice) -> bool:
    return rule.driver in (None, pool_slice.driver) and rule.pool in (None, pool_slice.pool)


def _tainted(device: PublishedDevice, rules: Iterable[DeviceTaintRule]) -> PublishedDevice:
    taints = tuple(rule.taint for rule in rules if rule.device in (None, device.name))
    return replace(device, kind=_kind(device.kind, taints)) if taints else device


@lru_cache(maxsize=_MOST_KINDS)
def _kind(kind: DeviceKind, taints: tuple[DeviceTaint, ...]) -> DeviceKind:
    """Equal kinds are one object."""
    return replace(kind, taints=(*kind.taints, *taints))


def out_of_placement(inventory: DeviceInventory) -> Mapping[str, tuple[Device, ...]]:
    """The devices with a taint that has an effect, by node."""
    found = {}
    for name, node in inventory.nodes.items():
        devices = tuple(d for d in node.devices if d.kind.taints and any(effective(d)))
        if devices:
            found[name] = devices
    return found


def effective(device: Device) -> Iterator[DeviceTaint]:
    """The taints of a device that do more than inform."""
    return (taint for taint in device.kind.taints if taint.effect is not DeviceEffect.NONE)


def without_taints(node: NodeDevices) -> NodeDevices:
    """The devices of a node without taints that have an effect; itself where no device has one."""
    if not any(device.kind.taints and any(effective(device)) for device in node.devices):
        return node
    devices = (replace(device, kind=_untainted(device.kind)) for device in node.devices)
    return replace(node, devices=tuple(devices))


@lru_cache(maxsize=_MOST_KINDS)
def _untainted(kind: DeviceKind) -> DeviceKind:
    """Equal kinds are one object."""
    return replace(kind, taints=())


def endures(tolerations: Iterable[DeviceToleration], taint: DeviceTaint) -> bool:
    """Whether a pod keeps a device with this taint for as long as it runs.

    A toleration of ``NoExecute`` needs this effect, as in the controller of Kubernetes that deletes the pods.
    """
    return any(
        toleration.tolerates(taint)
        and (
            taint.effect is not DeviceEffect.NO_EXECUTE
            or (toleration.effect is DeviceEffect.NO_EXECUTE and toleration.seconds is None)
        )
        for toleration in tolerations
    )
