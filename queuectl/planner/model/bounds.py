"""Sums over all nodes that refuse: weights under which they bound what can be packed, tighter than the plain sum, and always valid.

Take devices of one resource: pod sizes g, free devices f on a node. For any weights w(g) the pods on a node weigh at most
W(f), the best knapsack of size f. Therefore sum(w(g) * pods) <= sum(W(f)) over any set of nodes. W itself is superadditive:
W(a) + W(b) <= W(a + b). The superadditive functions on 0..8 are the sums of 33 of them (the extreme rays of their cone), so
on nodes of up to 8 devices these 33 give all bounds that weights can give: those of the linear relaxation of packing.

On larger nodes, two families:

- floor(g a / b): with 1 / h for each size h the floors that are exact on a divisor chain, with other fractions the rounding
  cuts of Chvátal and Gomory;
- for l up to half a node of c devices: c where g > c - l, 0 where g < l, else g. Pods of more than half a node exclude each
  other, whatever is left beside them (dual feasible functions; Lueker 1983, Fekete and Schepers 2001).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from typing import Final

import numpy as np

from queuectl.planner.problem.problem import Shape
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.problem.topology import Ints, Mask

LARGEST: Final = 64  # a node with more of a resource than this is not counted in devices
# Each as its values at 1, 2, ... 8.
_RAYS: Final = """
    00000001 00000011 00000111 00001111 00011112 00011122 00011222 00012222 00111222 00112223 00112233
    00122234 00122244 00123334 00234456 00234466 01122334 01122344 01123344 01223445 01223455 01224456
    01224466 01233456 01233466 01234456 01234466 01234556 02345678 02345688 02346689 02346699 12345678
"""
RAYS: Final = tuple(tuple(map(int, values)) for values in _RAYS.split())
_FRACTIONS: Final = 8  # denominators of the rounding cuts; larger ones improve the bound little


@lru_cache(maxsize=1024)
def bounds(sizes: tuple[int, ...], largest: int) -> tuple[Ints, Ints]:
    """All distinct bounds for pods of these sizes (ascending) on nodes of up to ``largest`` devices.

    Returns:
        A weight of each size, (bounds, sizes), and W(f) for f = 0, 1, ..., (bounds, largest + 1).
    """
    if largest <= len(RAYS[0]):
        weights = {tuple((0, *ray)[min(g, len(ray))] for g in sizes) for ray in RAYS}
    else:
        steps = [(1, h) for h in sizes if h]
        steps += [(a, b) for b in range(1, min(largest, _FRACTIONS) + 2) for a in range(1, b + 1)]
        weights = {tuple(a * g // b for g in sizes) for a, b in steps}
        weights |= {_halves(sizes, largest, low) for low in range(2, largest // 2 + 1)}
    useful = sorted(w for w in weights if any(w) and w != sizes)
    rows = np.array(useful, dtype=np.int64).reshape(-1, len(sizes))
    return rows, _knapsacks(sizes, rows, largest)


def _halves(sizes: tuple[int, ...], largest: int, low: int) -> tuple[int, ...]:
    return tuple(largest if g > largest - low else 0 if g < low else g for g in sizes)


def _knapsacks(sizes: tuple[int, ...], weights: Ints, largest: int) -> Ints:
    """The most that pods of these sizes weigh on a node with f free, for f up to ``largest``, by each row of weights."""
    best = np.zeros((largest + 1, len(weights)), dtype=np.int64)
    columns = [(g, weights[:, at]) for at, g in enumerate(sizes) if g]
    for free in range(1, largest + 1):
        fitting = (best[free - g] + w for g, w in columns if g <= free)
        best[free] = reduce(np.maximum, fitting, best[free - 1])
    best.flags.writeable = False
    return best.T


def overfull(pods: Mapping[int, int], nodes: Ints) -> bool:
    """Whether pods (devices to count) provably do not pack on some nodes (how many have 0, 1, 2, ... free)."""
    sizes = tuple(sorted({0, *pods}))
    weights, most = bounds(sizes, len(nodes) - 1)
    counts = np.array([pods.get(size, 0) for size in sizes], dtype=np.int64)
    return bool((weights @ counts > most @ nodes).any())


@dataclass(eq=False)
class GangLoad:
    """The sum of the requests of gangs to the nodes that any of them can use. It refutes them if it exceeds the free amount.

    Attributes:
        free: (R, N) without any of them.
        sizes: per resource, pods by how much they ask of it.
    """

    free: Ints
    sizes: defaultdict[int, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    _usable: Mask | None = None
    _there: dict[int, tuple[int, Ints]] = field(
        default_factory=dict
    )  # resource -> sum, nodes by amount

    @classmethod
    def of(cls, requests: Iterable[GangRequest], free: Ints) -> GangLoad:
        """The load of these gangs on a free matrix (R, N)."""
        load = cls(free)
        load.add(*requests)
        return load

    def add(self, *requests: GangRequest) -> None:
        """Add gangs."""
        counts: dict[Shape, int] = {}  # gangs come in many, shapes in few
        for request in requests:
            for podset_group in request.podset_groups:
                for pods in podset_group.items:
                    counts[pods.shape] = counts.get(pods.shape, 0) + pods.count
        for shape, count in counts.items():
            self.put(shape.vector, count, shape.eligible)

    def put(self, vector: Ints, count: int, eligible: Mask) -> None:
        """Add ``count`` pods that ask for a vector (R,) and can use the nodes of a mask (N,)."""
        if self._usable is None:
            self._usable = eligible
        elif eligible is not self._usable and bool((eligible & ~self._usable).any()):
            self._usable = self._usable | eligible
            self._there = {}
        for column, amount in enumerate(vector.tolist()):
            if amount:
                counts = self.sizes[column]
                counts[amount] = counts.get(amount, 0) + count

    def copy(self) -> GangLoad:
        """A copy, to be added to."""
        load = GangLoad(self.free, _usable=self._usable, _there=self._there)
        load.sizes.update((column, dict(counts)) for column, counts in self.sizes.items())
        return load

    def exceeds(self) -> bool:
        """Whether the load is more than there is, wherever each pod is placed."""
        return any(self._lacks(column, sizes) for column, sizes in self.sizes.items())

    def _lacks(self, column: int, sizes: Mapping[int, int]) -> bool:
        total, nodes = self._room(column)
        if sum(size * count for size, count in sizes.items()) > total:
            return True
        return bool(len(nodes)) and overfull(sizes, nodes)

    def _room(self, column: int) -> tuple[int, Ints]:
        """The free amount of a resource, and how many nodes have 0, 1, 2, ... of it; no numbers where they would be too many."""
        known = self._there.get(column)
        if known is None:
            there = np.maximum(self.free[column, self._usable], 0)
            few = int(there.max(initial=0)) <= LARGEST
            nodes = np.bincount(there) if few else np.zeros(0, dtype=np.int64)
            known = self._there[column] = int(there.sum()), nodes
        return known
