"""Brute force for moves: the cheapest set of running gangs after whose exit they and the blocked gang all fit together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

from queuectl.domain.plan import Cost
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import Workload
from tests.planner.oracle_fit import ANYWHERE, Oracle

Key = tuple[int, int, int]  # lost work, gangs, pods


def movable(snapshot: Snapshot) -> list[Admitted]:
    """The gangs that can be moved at all when every queue allows it and protects no gang."""
    return [
        gang
        for gang in snapshot.admitted
        if gang.workload.preemptible
        and not gang.leaving
        and not gang.lost
        and any(p.nodes for p in gang.placement.podsets)
    ]


def key_of(moved: tuple[Admitted, ...], costs: Mapping[str, Cost]) -> Key:
    return (
        sum(costs[g.workload.uid].lost_work for g in moved),
        len(moved),
        sum(_as_it_runs(g).pods for g in moved),
    )


def cheapest_moves(
    snapshot: Snapshot,
    entry: Pending,
    costs: Mapping[str, Cost],
    flavors: tuple[Mapping[str, str], ...],
    budget: int | None = None,
) -> Key | None:
    """The cost of the cheapest set; None when moving cannot help. ``flavors`` of the blocked gang's podsets."""
    gangs = movable(snapshot)
    if not _leaves_room(snapshot, entry, flavors, tuple(gangs)):
        return None
    sets = [s for k in range(len(gangs) + 1) for s in combinations(gangs, k)]
    for moved in sorted(sets, key=lambda s: key_of(s, costs)):
        if budget is not None and key_of(moved, costs)[0] > budget:
            return None
        if not _leaves_room(snapshot, entry, flavors, moved):
            continue
        oracle = Oracle(snapshot, frozenset(g.workload.uid for g in moved))
        ways = [list(oracle.ways(entry, step=ANYWHERE, only=flavors))]
        for gang in moved:
            kept = tuple(p.flavors for p in gang.placement.podsets)
            ways.append(list(oracle.ways(Pending(_as_it_runs(gang)), step=ANYWHERE, only=kept)))
        if oracle.fits(ways, views=(1,)):
            return key_of(moved, costs)
    return None


def _as_it_runs(gang: Admitted) -> Workload:
    """With as many pods as it was started with."""
    podsets = []
    for podset in gang.workload.podsets:
        placed = gang.placement.of(podset.name)
        podsets.append(replace(podset, count=placed.pods_of(podset)) if placed else podset)
    return replace(gang.workload, podsets=tuple(podsets))


def _leaves_room(
    snapshot: Snapshot,
    entry: Pending,
    flavors: tuple[Mapping[str, str], ...],
    moved: tuple[Admitted, ...],
) -> bool:
    """Whether the gang fits after these have left, wherever they are placed: otherwise no moves of them help."""
    oracle = Oracle(snapshot, frozenset(g.workload.uid for g in moved))
    return oracle.fits([list(oracle.ways(entry, step=ANYWHERE, only=flavors))], views=(1,))
