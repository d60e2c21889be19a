"""Capacity and quota as the walk goes: what is free now, what will be, who was kept, what is leased.

Two views of every amount (invariants I2, I4):

- *now*: less everything that holds capacity, leaving gangs included. What starts must fit here.
- *later*: once everything leaving has left, less the leases. A lease must fit here.

A gang that is not a lease's holder may use the smaller of the two, resource by resource.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from queuectl.domain.snapshot import Admitted
from queuectl.planner.arena import Arena, caps
from queuectl.planner.demand import Demand, Pods, Shape
from queuectl.planner.topology import Ints
from queuectl.planner.usage import QuotaRow

FlavorResource: TypeAlias = tuple[str, str]
Spots: TypeAlias = tuple[
    tuple[Ints, Ints], ...
]  # per pods of the demand: node indexes, pods on each


@dataclass(eq=False, slots=True)
class Kept:
    """A gang this plan starts (or repairs), where it stands at this point of the walk.

    Attributes:
        fixed: it takes the placement leased to it; later gangs cannot have it moved.
    """

    demand: Demand
    spots: Spots
    fixed: bool = False


def use_of_spots(demand: Demand, spots: Spots) -> Iterator[tuple[Ints, Ints]]:
    """Node indexes (K,) and amounts (R, K) per pods of a demand."""
    for pods, (nodes, counts) in zip(demand.pods, spots, strict=True):
        yield nodes, np.outer(pods.shape.vector, counts)


@dataclass(eq=False)
class Ledger:
    """Starts from an arena; changed only by the walk."""

    arena: Arena
    now: Ints
    later: Ints
    quota_now: dict[QuotaRow, int]
    quota_after: dict[QuotaRow, int]
    kept: list[Kept] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)  # uids evicted or repaired by this plan
    _moved: Ints = field(init=False)  # use of the kept gangs that may be placed anew
    _free: Ints | None = None
    _caps: dict[int, tuple[int, Ints]] = field(default_factory=dict)
    _log: list[Ints] = field(default_factory=list)
    _nominal: dict[str, dict[FlavorResource, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._moved = np.zeros_like(self.now)

    # What is free.

    def free(self) -> Ints:
        """(R, N) free for a gang that holds no lease."""
        if self._free is None:
            self._free = np.minimum(self.now, self.later)
        return self._free

    def later_free(self) -> Ints:
        """(R, N) free once everything leaving has left; leases and kept gangs taken off."""
        return self.later

    def free_without_kept(self) -> Ints:
        """(R, N) free if the kept gangs that may be placed anew stood nowhere."""
        return self.free() + self._moved

    def caps(self, shape: Shape) -> Ints:
        """Pods of a shape that fit each node of :meth:`free`; only nodes changed since the last call are counted."""
        free = self.free()
        version = len(self._log)
        known = self._caps.get(shape.key)
        if known is None:
            fits = caps(free, shape)
        else:
            seen, fits = known
            if seen < version:
                changed = np.unique(np.concatenate(self._log[seen:]))
                fits[changed] = caps(free, shape, changed)
        self._caps[shape.key] = (version, fits)
        return fits

    def nominal(self, queue: str) -> Mapping[FlavorResource, int]:
        """(flavor, resource) to the nominal quota of a ClusterQueue."""
        if queue not in self._nominal:
            self._nominal[queue] = {
                (quotas.flavor, resource): quotas.nominal.get(resource, 0)
                for group in self.arena.snapshot.config.cluster_queues[queue].groups
                for quotas in group.flavors
                for resource in group.covered
            }
        return self._nominal[queue]

    def quota_left(self, queue: str) -> Mapping[FlavorResource, int]:
        """(flavor, resource) to the nominal quota left for a gang that holds no lease."""
        now, after = self.quota_now, self.quota_after
        return {
            (f, r): most - max(now.get((queue, f, r), 0), after.get((queue, f, r), 0))
            for (f, r), most in self.nominal(queue).items()
        }

    def quota_later(self, queue: str) -> Mapping[FlavorResource, int]:
        """(flavor, resource) to the nominal quota left once everything leaving has left."""
        return {
            (f, r): most - self.quota_after.get((queue, f, r), 0)
            for (f, r), most in self.nominal(queue).items()
        }

    def quota_allows(self, demand: Demand, used: Mapping[QuotaRow, int]) -> bool:
        """Whether a demand's charges fit the nominal quota beside ``used``."""
        if demand.queue is None:
            return True
        nominal = self.nominal(demand.queue)
        return all(
            amount + used.get(row, 0) <= nominal.get(row[1:], 0) for row, amount in demand.rows()
        )

    def evictable(self) -> Iterator[Admitted]:
        """Gangs neither leaving, nor evicted or repaired by this plan; whether policy allows it is not judged."""
        for gang in self.arena.snapshot.admitted:
            if not gang.leaving and gang.workload.uid not in self.gone:
                yield gang

    # What changes.

    def keep(self, kept: Kept) -> None:
        """Start a gang: it uses capacity and quota in both views."""
        self.kept.append(kept)
        self._apply(kept, -1)
        self.charge(kept.demand, 1)

    def charge(self, demand: Demand, sign: int, *, now: bool = True) -> None:
        """Add (or take off) a demand's quota, in the later view and, unless it is a lease, in the one of now."""
        for row, amount in demand.rows():
            self.quota_after[row] = self.quota_after.get(row, 0) + sign * amount
            if now:
                self.quota_now[row] = self.quota_now.get(row, 0) + sign * amount

    def move(self, kept: Kept, spots: Spots) -> None:
        """Place a kept gang anew; its quota stays as it is."""
        self._apply(kept, 1)
        kept.spots = spots
        self._apply(kept, -1)

    def lease(self, demand: Demand, spots: Spots, sign: int = 1) -> None:
        """Hold (or, with ``sign`` -1, give back) capacity and quota for later."""
        for nodes, amounts in use_of_spots(demand, spots):
            self._change(self.later, nodes, -sign * amounts)
        self.charge(demand, sign, now=False)

    def evict(self, gang: Admitted) -> None:
        """Count a gang as leaving from here on."""
        self.gone.add(gang.workload.uid)
        nodes, amounts = self.arena.use_of(gang)
        self._change(self.later, nodes, amounts)
        for row, amount in self.arena.usage.charges(gang):
            self.quota_after[row] -= amount

    def _apply(self, kept: Kept, sign: int) -> None:
        for nodes, amounts in use_of_spots(kept.demand, kept.spots):
            self._change(self.now, nodes, sign * amounts)
            self._change(self.later, nodes, sign * amounts)
            if not kept.fixed:
                _add(self._moved, nodes, -sign * amounts)

    def _change(self, matrix: Ints, nodes: Ints, amounts: Ints) -> None:
        _add(matrix, nodes, amounts)
        self._log.append(nodes)
        if self._free is not None:
            touched = np.minimum(self.now[:, nodes], self.later[:, nodes])
            self._free[:, nodes] = touched


def _add(matrix: Ints, nodes: Ints, amounts: Ints) -> None:
    """Node indexes within one call are distinct only per pods of a demand, so add unbuffered."""
    for row, amount in zip(matrix, amounts, strict=True):
        np.add.at(row, nodes, amount)


def open_ledger(arena: Arena) -> Ledger:
    """The ledger at the start of a walk."""
    usage = arena.usage
    return Ledger(
        arena,
        arena.now.copy(),
        arena.later.copy(),
        dict(usage.quota_held),
        dict(usage.quota_staying),
    )


def fits(free: Ints, pods: tuple[Pods, ...], spots: Spots) -> bool:
    """Whether these pods, together, fit a free matrix on real vectors."""
    touched = (
        np.unique(np.concatenate([nodes for nodes, _ in spots])) if spots else np.zeros(0, int)
    )
    left = free[:, touched].copy()
    asked = np.zeros(left.shape, dtype=np.bool_)
    for p, (nodes, counts) in zip(pods, spots, strict=True):
        at = np.searchsorted(touched, nodes)
        _add(left, at, -np.outer(p.shape.vector, counts))
        asked[np.ix_(np.array(p.shape.columns, dtype=np.int64), at)] = True
    return bool(np.all(left[asked] >= 0))
