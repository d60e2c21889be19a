"""Use of nodes and quota by admitted gangs, carried from one snapshot to the next.

Counting 10,000 nodes' worth of slots takes longer than most plans; between two cycles few gangs change. The sums are
exact integers, so adding and removing gangs gives the same numbers as counting afresh.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import repeat
from operator import is_
from typing import TypeAlias

import numpy as np

from queuectl.domain.queues import QueueConfig
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.domain.workload import PodSetPlacement
from queuectl.planner.cache import PlannerCache
from queuectl.planner.problem.fleet import FleetIndex, Ints, MatrixAxes, index_of
from queuectl.planner.quota import QuotaRow

Slots: TypeAlias = tuple[Ints, Ints]  # node indexes (K,), amounts (R, K)


@dataclass(frozen=True, slots=True)
class CountedGang:
    """One gang as counted. It keeps the gang alive, so that its id names it for as long as the entry exists."""

    gang: Admitted
    slots: Slots
    charges: tuple[tuple[QuotaRow, int], ...]


@dataclass(frozen=True, slots=True)
class AdmittedUsage:
    """Sums over all admitted gangs.

    Attributes:
        axes: of the matrices.
        allocatable: of the fleet, (R, N).
        free: allocatable less all that they use, (R, N), read-only.
        later: the same once those being evicted have left; the same object if no gang is being evicted.
        gangs: all of them, in the order of the snapshot.
        leaving: gangs that are being evicted.
        idle: gangs that do not use their GPUs and are not being evicted.
        broken: gangs that lost slots and are not being evicted.
    """

    config: QueueConfig
    axes: MatrixAxes
    allocatable: Ints
    entries: Mapping[int, CountedGang]
    free: Ints
    later: Ints
    quota_held: Mapping[QuotaRow, int] = field(default_factory=dict)
    quota_staying: Mapping[QuotaRow, int] = field(default_factory=dict)
    gangs: tuple[Admitted, ...] = ()
    leaving: tuple[Admitted, ...] = ()
    idle: tuple[Admitted, ...] = ()
    broken: tuple[Admitted, ...] = ()

    def slots(self, gang: Admitted) -> Slots:
        """Node indexes and amounts of a gang's slots on nodes of the fleet; a node can occur more than once."""
        return self.entries[id(gang)].slots

    def charges(self, gang: Admitted) -> tuple[tuple[QuotaRow, int], ...]:
        """The charges of a gang, per ClusterQueue, flavor and resource."""
        return self.entries[id(gang)].charges


def usage_of(snapshot: Snapshot, cache: PlannerCache) -> AdmittedUsage:
    """Count a snapshot's admitted gangs, starting from the last one counted on the same nodes and under the same configuration."""
    index = index_of(snapshot.fleet, cache)
    last = cache.latest(AdmittedUsage)
    if (
        last is None
        or last.axes is not index.axes
        or not _charge_alike(last.config, snapshot.config)
    ):
        all_free = index.allocatable
        last = AdmittedUsage(snapshot.config, index.axes, all_free, {}, all_free, all_free)
    usage = _advance(_moved(last, snapshot.config, index.allocatable), snapshot, index)
    cache.keep_latest(index.axes)
    return cache.keep_latest(usage)


def _moved(last: AdmittedUsage, config: QueueConfig, allocatable: Ints) -> AdmittedUsage:
    """The same use under another configuration, of nodes with other amounts."""
    if last.allocatable is allocatable:
        return last if last.config is config else replace(last, config=config)
    more = allocatable - last.allocatable
    free = last.free + more
    later = free if last.later is last.free else last.later + more
    free.flags.writeable = later.flags.writeable = False
    return replace(last, config=config, allocatable=allocatable, free=free, later=later)


def _charge_alike(before: QueueConfig, after: QueueConfig) -> bool:
    """Whether each gang has the same charges under two configurations: they differ in quota, policy or labels only."""
    return before is after or (
        before.local_queues is after.local_queues
        and before.rules is after.rules
        and before.cluster_queues.keys() == after.cluster_queues.keys()
        and _on_nodes(before) == _on_nodes(after)
    )


def _on_nodes(config: QueueConfig) -> set[str]:
    """The flavors whose pods take nodes."""
    return {name for name, flavor in config.flavors.items() if flavor.topology is not None}


def beside_other_pods(free: Ints, snapshot: Snapshot, index: FleetIndex) -> Ints:
    """The rest of a matrix (R, N) alongside unmanaged pods: the same one without any."""
    if not snapshot.other_pods:
        return free
    left = free.copy()
    used = list(map(id, snapshot.other_pods.values()))
    places = map(index.position.get, snapshot.other_pods, repeat(-1))
    at = np.fromiter(places, np.int64, len(used))
    alike = dict(zip(used, snapshot.other_pods.values(), strict=True))
    keys = np.array(used, dtype=np.int64)
    order = keys.argsort(kind="stable")
    begins = np.flatnonzero(np.diff(keys[order])) + 1
    for nodes in np.split(order, begins):
        known = at[nodes][at[nodes] >= 0]
        for resource, amount in alike[used[nodes[0]]].items():
            if (column := index.column.get(resource)) is not None:
                left[column, known] -= amount
    return left


def _advance(last: AdmittedUsage, snapshot: Snapshot, index: FleetIndex) -> AdmittedUsage:
    if len(snapshot.admitted) == len(last.gangs) and all(map(is_, snapshot.admitted, last.gangs)):
        return last
    current = dict(zip(map(id, snapshot.admitted), snapshot.admitted, strict=True))
    gone = [entry for key, entry in last.entries.items() if key not in current]
    counted = {_parts(entry.gang): entry for entry in gone}
    entries: dict[int, CountedGang] = {}
    new: list[CountedGang] = []
    for key, gang in current.items():
        entry = last.entries.get(key)
        if entry is None:
            entry = _count(gang, counted.get(_parts(gang)), snapshot, index)
            new.append(entry)
        entries[key] = entry
    return _sum(last, entries, new, gone)


def _parts(gang: Admitted) -> tuple[int, int]:
    """The fields on which a gang's use depends; a new record of it with another utilization is not counted again."""
    return id(gang.workload), id(gang.placement)


def _sum(
    last: AdmittedUsage,
    entries: Mapping[int, CountedGang],
    new: list[CountedGang],
    gone: list[CountedGang],
) -> AdmittedUsage:
    free = last.free.copy()
    later = last.later.copy()
    quota_held, quota_staying = dict(last.quota_held), dict(last.quota_staying)
    for sign, group in ((1, new), (-1, gone)):
        stay = [entry for entry in group if not entry.gang.leaving]
        _add(free, group, -sign)
        _add(later, stay, -sign)
        _charge(quota_held, group, sign)
        _charge(quota_staying, stay, sign)
    gangs = tuple(entry.gang for entry in entries.values())
    leaving = tuple(gang for gang in gangs if gang.leaving)
    if not leaving:
        later = free
    free.flags.writeable = later.flags.writeable = False
    return replace(
        last,
        entries=entries,
        free=free,
        later=later,
        quota_held=quota_held,
        quota_staying=quota_staying,
        gangs=gangs,
        leaving=leaving,
        idle=tuple(gang for gang in gangs if gang.idle_since is not None and not gang.leaving),
        broken=tuple(gang for gang in gangs if gang.lost and not gang.leaving),
    )


def _add(matrix: Ints, entries: list[CountedGang], sign: int) -> None:
    if not entries:
        return
    nodes = np.concatenate([entry.slots[0] for entry in entries])
    amounts = np.concatenate([entry.slots[1] for entry in entries], axis=1) * sign
    for row, amount in zip(matrix, amounts, strict=True):
        np.add.at(row, nodes, amount)


def _charge(sums: dict[QuotaRow, int], entries: list[CountedGang], sign: int) -> None:
    for entry in entries:
        for row, amount in entry.charges:
            sums[row] = sums.get(row, 0) + sign * amount


def _count(
    gang: Admitted, before: CountedGang | None, snapshot: Snapshot, index: FleetIndex
) -> CountedGang:
    if before is not None:
        return CountedGang(gang, before.slots, before.charges)
    return CountedGang(gang, _slots(gang, index), tuple(charges_of(gang, snapshot)))


def _slots(gang: Admitted, index: FleetIndex) -> Slots:
    nodes: list[int] = []
    columns: list[list[int]] = []
    for podset in gang.workload.podsets:
        placed = gang.placement.of(podset.name)
        for name, count in placed.nodes if placed is not None else ():
            at = index.position.get(name)
            if at is not None:
                nodes.append(at)
                requests = podset.shape.requests
                columns.append([requests[r] * count for r in index.resources])
    amounts = np.array(columns, dtype=np.int64).reshape(len(nodes), len(index.resources)).T
    return np.array(nodes, dtype=np.int64), amounts


def charges_of(gang: Admitted, snapshot: Snapshot) -> Iterator[tuple[QuotaRow, int]]:
    """The charges of a gang under the snapshot's configuration; a row can be repeated."""
    workload = gang.workload
    queue = snapshot.queue_of(workload)
    if queue is None:
        return
    for podset in workload.podsets:
        placed = gang.placement.of(podset.name)
        if placed is None:
            continue
        pods = placed.count if takes_nodes(snapshot, placed) else placed.pods_of(podset)
        per_pod = snapshot.config.rules.charged(podset.shape.requests)
        for resource, flavor, charged in placed.charges(pods):
            yield (queue.name, flavor, resource), per_pod[resource] * charged


def takes_nodes(snapshot: Snapshot, placed: PodSetPlacement) -> bool:
    """Whether the pods are on nodes: not when their flavors are quota only, nor when no node is known, or theirs do not exist yet."""
    if placed.awaits_nodes or not snapshot.fleet.nodes:
        return False
    named = snapshot.config.flavors_named(placed.flavors.values())
    return not placed.flavors or any(flavor.topology is not None for flavor in named)
