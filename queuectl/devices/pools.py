"""From ResourceSlices to the devices of each node.

A pool counts with its newest generation, and only if all ResourceSlices of that generation are published. Devices whose
allocation on one node depends on what happens on other nodes, or on another controller, are left out with a sentence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import is_
from typing import TypeAlias

from queuectl.devices.pool import FoundOn, NodesOf, Pool, complete_generation, defect, newest
from queuectl.domain.devices import NodeDevices
from queuectl.domain.fleet import Fleet
from queuectl.domain.pool_slices import PoolSlice

_Joined: TypeAlias = tuple[list[NodeDevices], NodeDevices]
"""The devices of the pools of a node, and all of them together."""


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
            own = self._of(name, pools[name], nodes) if name in pools else {}
            last = {**own, **self._last(name, pools.get(name, ()), own, nodes)}
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
        own: dict[str, NodeDevices],
        nodes: NodesOf,
    ) -> dict[str, NodeDevices]:
        """The devices of a pool when it was complete; of one that never was, those of its ResourceSlices."""
        if slices and defect(newest(slices)) is None:
            self._complete[name] = own
            return own
        last = self._complete.get(name, {})
        if not last.keys() & nodes.fleet.by_name.keys():
            self._complete.pop(name, None)
            last = _found(name, complete_generation(slices), nodes) if slices else {}
        return {node: part for node, part in last.items() if part.devices}

    def _of(
        self,
        name: tuple[str, str],
        slices: Sequence[PoolSlice],
        nodes: NodesOf,
    ) -> dict[str, NodeDevices]:
        by_labels = any(map(_needs_labels, slices))
        key = (*slices, nodes.fleet if by_labels else None)
        known = self._parts.get(name)
        if known is None or len(known[0]) != len(key) or not all(map(is_, known[0], key)):
            known = self._parts[name] = key, _found(name, slices, nodes)
        return known[1]


def _found(
    name: tuple[str, str], slices: Sequence[PoolSlice], nodes: NodesOf
) -> dict[str, NodeDevices]:
    found: dict[str, FoundOn] = defaultdict(FoundOn)
    Pool(name, slices, nodes, found).add()
    return {node: found[node].frozen() for node in sorted(found)}


def _devices(joined: Mapping[str, _Joined]) -> dict[str, NodeDevices]:
    return {node: devices for node, (_, devices) in joined.items()}


def _joined(
    nodes: Iterable[str], parts: Mapping[str, list[NodeDevices]], last: Mapping[str, _Joined]
) -> dict[str, _Joined]:
    """The devices of all pools of some nodes; ``last``: those of the last revision."""
    return {node: _join(parts[node], last.get(node)) for node in sorted(nodes)}


def _join(parts: list[NodeDevices], known: _Joined | None) -> _Joined:
    if known is not None and len(known[0]) == len(parts) and all(map(is_, known[0], parts)):
        return known
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


def _needs_labels(one: PoolSlice) -> bool:
    """Whether the nodes that can use its devices follow from all nodes of the cluster."""
    accesses = [one.access] if one.access is not None else [d.access for d in one.devices]
    return (bool(one.counters) and one.access is None) or any(
        access is not None and access.node is None for access in accesses
    )
