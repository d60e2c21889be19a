"""The victims that other schedulers would choose, written after the description of their rules; it is not their code.

Both go through the candidates in a fixed order, lowest priority first and newest first, until the gang fits. Whether it fits
is judged exactly here, by brute force or floor sums, so that these orders are compared at their best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.domain.workload import Workload
from tests.planner.oracle import legal_victims

Fits = Callable[[frozenset[str]], bool]


def kueue(
    snapshot: Snapshot, preemptor: Workload, fits: Fits, contested: Iterable[str]
) -> frozenset[str] | None:
    """Evict gangs that use a contested resource, in order, until the gang fits; then put back, last first, those that are not needed."""
    wanted = frozenset(contested)
    order = [
        gang.workload.uid
        for gang in _in_order(legal_victims(snapshot, preemptor))
        if any(p.shape.requests[r] for p in gang.workload.podsets for r in wanted)
    ]
    taken = _until_it_fits(order, fits)
    for uid in reversed(taken[:-1] if taken else []):
        fewer = [u for u in taken or () if u != uid]
        if fits(frozenset(fewer)):
            taken = fewer
    return None if taken is None else frozenset(taken)


def kai(snapshot: Snapshot, preemptor: Workload, fits: Fits) -> frozenset[str] | None:
    """Add one victim after the other to the scenario until the gang fits."""
    order = [gang.workload.uid for gang in _in_order(legal_victims(snapshot, preemptor))]
    taken = _until_it_fits(order, fits)
    return None if taken is None else frozenset(taken)


def _in_order(candidates: Sequence[Admitted]) -> list[Admitted]:
    return sorted(candidates, key=lambda g: (g.workload.priority, -g.started_at, g.workload.uid))


def _until_it_fits(order: Sequence[str], fits: Fits) -> list[str] | None:
    for size in range(len(order) + 1):
        if fits(frozenset(order[:size])):
            return list(order[:size])
    return None


def by_floor_sums(snapshot: Snapshot, preemptor: Workload) -> Fits:
    """Whether a gang of one podset that requires one level, or none, fits after some have left: exact for such a gang."""
    (podset,) = preemptor.podsets
    level = podset.topology.level if podset.topology is not None else None
    used: dict[str, dict[str, dict[str, int]]] = {}
    for gang in snapshot.admitted:
        for name, amounts in gang.placement.use(gang.workload).items():
            used.setdefault(name, {})[gang.workload.uid] = dict(amounts)

    def fits(gone: frozenset[str]) -> bool:
        room: dict[str, int] = {}
        for node in snapshot.fleet.nodes:
            left = dict(node.allocatable)
            for uid, amounts in used.get(node.name, {}).items():
                for resource, amount in amounts.items() if uid not in gone else ():
                    left[resource] = left.get(resource, 0) - amount
            domain = node.labels[level] if level is not None else ""
            room[domain] = room.get(domain, 0) + _pods(left, podset.shape.requests)
        return max(room.values()) >= podset.count

    return fits


def _pods(left: Mapping[str, int], need: Mapping[str, int]) -> int:
    return max(0, min(left.get(r, 0) // amount for r, amount in need.items() if amount))
