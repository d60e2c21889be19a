"""From ResourceSlices to the devices of each node.

A pool counts with its newest generation, and only if all ResourceSlices of that generation are published. Devices whose
allocation on one node depends on what happens on other nodes, or on another controller, are left out with a sentence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from operator import is_

from queuectl.devices.pool import FoundOn, NodesOf, Pool
from queuectl.domain.devices import NodeDevices
from queuectl.domain.fleet import Fleet
from queuectl.domain.pool_slices import PoolSlice


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
        nodes = NodesOf(fleet)
        parts: dict[str, list[NodeDevices]] = defaultdict(list)
        for name in sorted(pools):
            for node, part in self._of(name, pools[name], nodes).items():
                parts[node].append(part)
        self._parts = {name: self._parts[name] for name in pools}
        self._joined = {node: self._join(node, parts[node]) for node in sorted(parts)}
        return {node: joined for node, (_, joined) in self._joined.items()}

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
            found: dict[str, FoundOn] = defaultdict(FoundOn)
            Pool(name, slices, nodes, found).add()
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
            tuple(dict.fromkeys(kind for part in parts for kind in part.evaluated)),
        )
        return parts, joined


def _needs_labels(one: PoolSlice) -> bool:
    """Whether the nodes that can use its devices follow from all nodes of the cluster."""
    accesses = [one.access] if one.access is not None else [d.access for d in one.devices]
    return (bool(one.counters) and one.access is None) or any(
        access is not None and access.node is None for access in accesses
    )
