"""Counts without a model: how many pods each node and each domain holds, which domains to choose, and sums that refuse.

Where slices of s pods must each be in one domain of a level, a domain of it holds a multiple of s. Each finer size divides
the coarser, so every multiple up to the floor can be had, and floors add up level by level: the counts are exact.

Weights give sums over all nodes that bound what can be packed, tighter than the plain sum, and always valid.
Take devices of one resource: pod sizes g, free devices f on a node. For any weights w(g) the pods on a node weigh at most
W(f), the best knapsack of size f. Therefore sum(w(g) * pods) <= sum(W(f)) over any set of nodes. W itself is superadditive:
W(a) + W(b) <= W(a + b). The superadditive functions on 0..8 are the sums of 33 of them (the extreme rays of their cone), so
on nodes of up to 8 devices these 33 give all bounds that weights can give: those of the linear relaxation of packing.

On larger nodes, two families:

- floor(g a / b): with 1 / h for each size h the floors that are exact on a divisor chain, with other fractions the rounding
  cuts of Chvátal and Gomory;
- for l up to half a node of c devices: c where g > c - l, 0 where g < l, otherwise g. Pods of more than half a node exclude each
  other, whatever is left alongside them (dual feasible functions; Lueker 1983, Fekete and Schepers 2001).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, reduce
from typing import Final

import numpy as np

from queuectl.planner.problem.fleet import Ints, Mask, Tree
from queuectl.planner.problem.problem import Shape, Slices
from queuectl.planner.problem.request import ANYWHERE, GangRequest

# ---- Pods of one shape, per domain

_EXACT_WORK: Final = 6000  # items times domains for the exact choice of several domains


@dataclass(eq=False)
class ShapeCounts:
    """Pods of one shape that fit each node and each domain of a tree, in whole slices if there are any.

    Attributes:
        per_node: pods that fit each node, in the order of the fleet. Shape (N,).
        grains: per level and, last, per node: pods come to its domains in multiples of this.
        levels: per level, pods that fit each domain; last, each node in topology order.
    """

    tree: Tree
    per_node: Ints
    slices: Slices = ()
    grains: tuple[int, ...] = field(init=False)
    levels: tuple[Ints, ...] = field(init=False)

    def __post_init__(self) -> None:
        depth = self.tree.depth
        self.grains = (1,) * (depth + 1)
        if self.slices:
            self.grains = tuple(
                max((size for of, size in self.slices if of >= level), default=1)
                for level in range(depth + 1)
            )
        below = self.per_node[self.tree.order]
        rows = [below]
        for level in range(depth - 1, -1, -1):
            starts = self.tree.children[level]
            sums = np.add.reduceat(below, starts) if len(starts) else below[:0]
            below = sums - sums % self.grains[level] if self.slices else sums
            rows.append(below)
        self.levels = tuple(reversed(rows))

    @cached_property
    def largest(self) -> tuple[int, ...]:
        """Largest domain of each level, nodes last."""
        return tuple(int(row.max()) if len(row) else 0 for row in self.levels)

    @cached_property
    def total(self) -> int:
        """Pods that fit the whole tree."""
        return int(self.levels[0].sum())

    def holding(self, level: int) -> Ints:
        """Pods each domain of a level holds; the whole tree as one for ANYWHERE."""
        return np.array([self.total]) if level == ANYWHERE else self.levels[level]

    def inside(self, level: int, domain: int) -> tuple[int, int]:
        """Range of the domains (or node positions) one level below inside a domain."""
        if level == ANYWHERE:
            return 0, len(self.levels[0])
        span = self.tree.spans[level]
        return span[domain], span[domain + 1]

    # Lower bounds of the numbers of domains.

    def fewest(self, level: int, count: int) -> tuple[int, ...]:
        """Of any domain of a level, from ``level`` down to nodes: by the largest domain of each level."""
        return (1, *(-(-count // most) for most in self.largest[level + 1 :] if most))

    def least(self, level: int, low: int, high: int, count: int) -> Ints:
        """Lower bounds of the numbers of domains below each domain ``low..high`` of a level: (levels below, domains)."""
        rows, firsts = [], np.arange(low, high + 1)
        for below in range(level + 1, self.tree.depth + 1):
            firsts = np.array(self.tree.spans[below - 1])[firsts]
            sizes = self.levels[below][firsts[0] : firsts[-1]]
            owner = np.repeat(np.arange(high - low), np.diff(firsts))
            rows.append(needed(sizes, owner, high - low, count))
        return np.array(rows, dtype=np.int64).reshape(-1, high - low)


def fewest_then_tightest(sizes: Ints, count: int) -> Ints:
    """Indexes of the fewest domains that hold ``count`` together, least left over among those; ascending.

    The number is exact always; the left-over up to ``_EXACT_WORK``, beyond it the last domain alone is the tightest.
    """
    by_size = (-sizes).argsort(kind="stable")
    sums = sizes[by_size].cumsum()
    k = int(sums.searchsorted(count)) + 1
    if int(sums[k - 1]) == count:
        return np.sort(by_size[:k])
    least = count - int(sums[k - 2]) if k > 1 else count  # of each of them
    usable = by_size[sizes[by_size] >= least]
    if k * len(usable) <= _EXACT_WORK:
        return np.sort(_tightest(sizes, usable, k, count))
    return np.sort(np.array([*by_size[: k - 1], usable[-1]], dtype=np.int64))


def fewest_then_sparing(sizes: Ints, count: int, avoided: Mask) -> Ints:
    """The same with as few of some avoided domains as the fewest domains allow, before least left over."""
    if not avoided.any() or avoided.all():
        return fewest_then_tightest(sizes, count)
    k = int((-np.sort(-sizes)).cumsum().searchsorted(count)) + 1
    free, others = np.flatnonzero(~avoided), np.flatnonzero(avoided)
    free = free[(-sizes[free]).argsort(kind="stable")]
    held = np.concatenate([[0], sizes[free].cumsum()])
    held_of_others = np.concatenate([[0], (-np.sort(-sizes[others])).cumsum()])
    of_free = np.arange(max(0, k - len(others)), min(k, len(free)) + 1)
    n = int(of_free[held[of_free] + held_of_others[k - of_free] >= count].max())
    if n == k:
        return np.sort(free[fewest_then_tightest(sizes[free], count)])
    more = others[fewest_then_tightest(sizes[others], count - int(held[n]))]
    return np.sort(np.concatenate([free[:n], more]))


def _tightest(sizes: Ints, usable: Ints, k: int, count: int) -> Ints:
    """Among all sets of exactly ``k`` domains with a sum of at least ``count``, one of least sum.

    ``reach[i][j]`` is a bit set: the sums of j of the first i domains.
    """
    amounts = [int(sizes[i]) for i in usable]
    reach: list[list[int]] = [[1] + [0] * k]
    for value in amounts:
        before = reach[-1]
        reach.append([1] + [before[j] | before[j - 1] << value for j in range(1, k + 1)])
    enough = reach[-1][k] >> count
    total = count + ((enough & -enough).bit_length() - 1)
    chosen: list[int] = []
    need = k
    for i in range(len(amounts), 0, -1):
        if need and not reach[i - 1][need] >> total & 1:
            chosen.append(int(usable[i - 1]))
            total -= amounts[i - 1]
            need -= 1
    return np.array(chosen, dtype=np.int64)


def most_even(sizes: Ints, count: int) -> tuple[Ints, Ints] | None:
    """Indexes of domains and their shares of ``count``, which differ by at most one; None if that is impossible.

    Over the fewest domains for which it is possible, each as tight as can be.
    """
    by_size = np.argsort(sizes, kind="stable")
    ordered = sizes[by_size]
    for k in range(1, int(np.count_nonzero(sizes)) + 1):
        low, larger = divmod(count, k)
        if low == 0:
            return None
        first, above = (int(i) for i in np.searchsorted(ordered, [low, low + 1]))
        if len(sizes) - first < k or len(sizes) - above < larger:
            continue
        high = by_size[above : above + larger]
        rest = by_size[first:]
        chosen = np.concatenate([high, rest[~np.isin(rest, high)][: k - larger]])
        shares = np.full(k, low, dtype=np.int64)
        shares[:larger] += 1
        order = np.argsort(chosen)
        return chosen[order], shares[order]
    return None


def needed(sizes: Ints, owner: Ints, owners: int, count: int | Ints) -> Ints:
    """How few of its own domains each owner needs to hold ``count``; one too many where all of them do not.

    Args:
        sizes: of the domains.
        owner: of each of them, ascending.
        owners: how many there are.
        count: one for all owners, or one of each.
    """
    block = owner * (sizes.max(initial=0) + 1)
    running = (block - np.sort(block - sizes)).cumsum()  # each owner's own, the largest first
    first = owner.searchsorted(np.arange(owners))
    before = np.concatenate([[0], running])[first]
    wanted = before + count
    short = owner[running < wanted[owner]]
    return np.bincount(short, minlength=owners) + 1


# ---- Sums over all nodes that refuse

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
                for pods in podset_group.to_place:
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
