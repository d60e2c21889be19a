"""How many pods of one shape each node and each domain of a tree holds, and which domains to choose.

Where slices of s pods must each be in one domain of a level, a domain of it holds a multiple of s. Each finer size divides
the coarser, so every multiple up to the floor can be had, and floors add up level by level: the counts are exact.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np

from queuectl.planner.problem.problem import Slices
from queuectl.planner.problem.request import ANYWHERE
from queuectl.planner.problem.topology import Ints, Mask, Tree

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
    last = [i for i in usable[k - 1 :] if sizes[i] >= least]
    return np.sort(np.array([*by_size[: k - 1], last[-1]], dtype=np.int64))


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
    values = [int(sizes[i]) for i in usable]
    reach: list[list[int]] = [[1] + [0] * k]
    for value in values:
        before = reach[-1]
        reach.append([1] + [before[j] | before[j - 1] << value for j in range(1, k + 1)])
    enough = reach[-1][k] >> count
    total = count + ((enough & -enough).bit_length() - 1)
    chosen: list[int] = []
    need = k
    for i in range(len(values), 0, -1):
        if need and not reach[i - 1][need] >> total & 1:
            chosen.append(int(usable[i - 1]))
            total -= values[i - 1]
            need -= 1
    return np.array(chosen, dtype=np.int64)


def most_even(sizes: Ints, count: int) -> tuple[Ints, Ints] | None:
    """Indexes of domains and their shares of ``count``, which differ by at most one; None when there is no way.

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
