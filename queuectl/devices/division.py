"""The division of nodes among requests for devices, kept from one snapshot to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import TypeAlias
from weakref import WeakKeyDictionary

from queuectl.devices.cluster import FleetDevices
from queuectl.devices.modes import Modes, Places, modes_of, places_of
from queuectl.devices.requests import PodRequest
from queuectl.devices.table import NodeKind
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import Workload

Requests: TypeAlias = Callable[[Workload], tuple[PodRequest | None, ...]]
"""The request of each podset of a gang; empty if none has one."""
Holders: TypeAlias = Mapping[str, frozenset[int]]
"""Node to the atoms of the gangs that hold capacity there, or have it reserved."""


@dataclass(eq=False)
class Division:
    """Kept for each cluster: clusters come and go with the requests of the pending gangs."""

    _modes: tuple[FleetDevices, Snapshot, Modes] | None = None
    _holders: WeakKeyDictionary[FleetDevices, tuple[tuple[Admitted, ...], Holders]] = field(
        default_factory=WeakKeyDictionary
    )
    _places: WeakKeyDictionary[FleetDevices, tuple[Holders, Mapping[NodeKind, Places]]] = field(
        default_factory=WeakKeyDictionary
    )

    def modes(self, snapshot: Snapshot, cluster: FleetDevices, requests: Requests) -> Modes:
        """The nodes that are kept for one kind of request."""
        last = self._modes
        if last is None or last[0] is not cluster or not same_gangs(last[1], snapshot):
            last = self._modes = cluster, snapshot, self._divided(snapshot, cluster, requests)
        return last[2]

    def holders(self, snapshot: Snapshot, cluster: FleetDevices, requests: Requests) -> Holders:
        """The users of the nodes; the same object if no gang has a reservation, and the same gangs run."""
        last = self._holders.get(cluster)
        if last is None or not same(last[0], snapshot.admitted):
            made = _holders(snapshot.admitted, cluster, requests)
            last = self._holders[cluster] = snapshot.admitted, made
        leases = [pending for pending in snapshot.pending if pending.lease is not None]
        if not leases:
            return last[1]
        held = dict(last[1])
        for node, atoms in _holders(leases, cluster, requests).items():
            held[node] = held.get(node, atoms) | atoms
        return held

    def _divided(self, snapshot: Snapshot, cluster: FleetDevices, requests: Requests) -> Modes:
        if not cluster.divided:
            return {}
        demand = _demand(snapshot.pending, cluster, requests)
        held = self.holders(snapshot, cluster, requests)
        last = self._places.get(cluster)
        if last is None or last[0] is not held:
            places = {kind: places_of(nodes, held) for kind, nodes in cluster.divided.items()}
            last = self._places[cluster] = held, places
        return {k: modes_of(k, nodes, last[1][k], demand) for k, nodes in cluster.divided.items()}


def same_gangs(last: Snapshot, snapshot: Snapshot) -> bool:
    """Whether two snapshots have the same gangs, object by object."""
    return same(last.pending, snapshot.pending) and same(last.admitted, snapshot.admitted)


def same(last: Sequence[object], now: Sequence[object]) -> bool:
    """Whether two sequences have the same objects."""
    return len(last) == len(now) and all(map(is_, last, now))


def _demand(
    gangs: Iterable[Pending], cluster: FleetDevices, requests: Requests
) -> dict[frozenset[int], dict[int, int]]:
    """Atoms of one pod to the number of each in all pending pods of this sort."""
    demand: dict[frozenset[int], dict[int, int]] = {}
    for pending in gangs:
        for podset, request in zip(
            pending.workload.podsets, requests(pending.workload), strict=False
        ):
            if request is not None and pending.blocked is None:
                counts = cluster.counts(request)
                row = demand.setdefault(frozenset(counts), {})
                for atom, number in counts.items():
                    row[atom] = row.get(atom, 0) + number * podset.count
    return demand


def _holders(
    gangs: Iterable[Pending | Admitted], cluster: FleetDevices, requests: Requests
) -> dict[str, frozenset[int]]:
    held: dict[str, frozenset[int]] = {}
    for gang in gangs:
        of_podsets = requests(gang.workload)
        placements = [gang.placement] if isinstance(gang, Admitted) else []
        placements += [gang.lease.placement] if gang.lease is not None else []
        for placement in placements if of_podsets else ():
            for podset, request in zip(gang.workload.podsets, of_podsets, strict=True):
                placed = placement.of(podset.name)
                if placed is not None and request is not None:
                    atoms = frozenset(cluster.counts(request))
                    for node, _ in placed.nodes:
                        held[node] = held.get(node, atoms) | atoms
    return held
