"""Where the pods of one podset go inside a topology: exact for pods that do not compete with others.

Layers, from the first that tells two placements apart: fewest domains from the top level down to nodes, then least
capacity left over in the domains used, from the top down, then topology order. What is left over stays in the largest
domain used, so that large free blocks stay whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeAlias

import numpy as np

from queuectl.planner.demand import ANYWHERE
from queuectl.planner.topology import Ints, Tree

Score: TypeAlias = tuple[int, ...]
Filled: TypeAlias = tuple[Score, list[tuple[int, int]]]  # score, (position in tree.order, pods)

_CANDIDATES: Final = (
    256  # equally wide domains compared; beyond it the tightest seen so far is taken
)
_EXACT_WORK: Final = 6000  # items times domains for the exact choice of several domains


@dataclass(eq=False)
class Capacity:
    """Pods of one shape that fit each node and each domain of a tree."""

    tree: Tree
    per_node: Ints  # in fleet order

    @cached_property
    def levels(self) -> tuple[Ints, ...]:
        """Per level and, last, per node in topology order."""
        ordered = self.per_node[self.tree.order]
        sums = tuple(
            np.add.reduceat(ordered, starts) if len(starts) else np.zeros(0, dtype=np.int64)
            for starts in self.tree.starts
        )
        return (*sums, ordered)

    @cached_property
    def largest(self) -> tuple[int, ...]:
        """Largest domain of each level, nodes last."""
        return tuple(int(row.max()) if len(row) else 0 for row in self.levels)

    @property
    def total(self) -> int:
        return int(self.levels[-1].sum())

    def children(self, level: int, domain: int) -> tuple[int, int]:
        """Range of the domains (or node positions) one level below a domain."""
        if level == ANYWHERE:
            return 0, len(self.levels[0])
        starts = self.tree.starts[level]
        first = int(starts[domain])
        last = int(starts[domain + 1]) if domain + 1 < len(starts) else len(self.tree.order)
        if level + 1 == self.tree.depth:
            return first, last
        below = self.tree.starts[level + 1]
        return int(np.searchsorted(below, first)), int(np.searchsorted(below, last))

    def best_domain(self, level: int, count: int) -> Filled | None:
        """The best single domain of a level (``tree.depth``: the best node) that holds ``count`` pods."""
        return self._best_of(level, 0, len(self.levels[level]), count)

    def anywhere(self, count: int) -> Filled | None:
        """The best placement over the whole tree."""
        if self.total < count:
            return None
        return self._below(ANYWHERE, 0, count)

    def _best_of(self, level: int, low: int, high: int, count: int) -> Filled | None:
        """The best of the domains ``low..high`` of a level that hold ``count`` pods alone."""
        sizes = self.levels[level][low:high]
        fitting = np.flatnonzero(sizes >= count)
        if not len(fitting):
            return None
        tightest_first = fitting[np.argsort(sizes[fitting], kind="stable")]
        if level == self.tree.depth:
            at = int(tightest_first[0])
            return (1, int(sizes[at]) - count), [(low + at, count)]
        floor = self._fewest(level, count)
        best: Filled | None = None
        for at in tightest_first[:_CANDIDATES]:
            score, spots = self._below(level, low + int(at), count)
            scored = self._score(1, int(sizes[at]) - count, score)
            if best is None or scored < best[0]:
                best = scored, spots
            if best[0][: len(floor)] == floor:
                break
        return best

    def _fewest(self, level: int, count: int) -> Score:
        """Lower bound of the numbers of domains, from ``level`` down to nodes."""
        return (1, *(-(-count // most) for most in self.largest[level + 1 :] if most))

    def _score(self, width: int, left: int, below: Score) -> Score:
        """Widths of all levels first, then what is left over at each."""
        half = len(below) // 2
        return (width, *below[:half], left, *below[half:])

    def _below(self, level: int, domain: int, count: int) -> Filled:
        """Spread ``count`` pods over the children of one domain that is known to hold them."""
        low, high = self.children(level, domain)
        single = self._best_of(level + 1, low, high, count)
        if single is not None:
            return single
        sizes = self.levels[level + 1][low:high]
        chosen = fewest_then_tightest(sizes, count)
        left = int(sizes[chosen].sum()) - count
        shares = _shares(sizes[chosen], left)
        if level + 1 == self.tree.depth:
            spots = [(low + int(c), int(s)) for c, s in zip(chosen, shares, strict=True) if s]
            return (len(chosen), left), spots
        parts = [
            self._below(level + 1, low + int(c), int(s))
            for c, s in zip(chosen, shares, strict=True)
            if s
        ]
        sums = tuple(map(sum, zip(*(score for score, _ in parts), strict=True)))
        return self._score(len(chosen), left, sums), [spot for _, part in parts for spot in part]


def _shares(sizes: Ints, left: int) -> Ints:
    """Fill every domain but the largest (the first of them), which keeps what is left over."""
    shares = sizes.copy()
    shares[int(np.argmax(sizes))] -= left
    return shares


def fewest_then_tightest(sizes: Ints, count: int) -> Ints:
    """Indexes of the fewest domains that hold ``count`` together, least left over among those; ascending.

    The number is exact always; the left-over up to ``_EXACT_WORK``, beyond it the last domain alone is the tightest.
    """
    by_size = np.argsort(-sizes, kind="stable")
    sums = np.cumsum(sizes[by_size])
    k = int(np.searchsorted(sums, count)) + 1
    if int(sums[k - 1]) == count:
        return np.sort(by_size[:k])
    least = count - int(sums[k - 2]) if k > 1 else count
    usable = by_size[sizes[by_size] >= least]
    if k * len(usable) <= _EXACT_WORK:
        return np.sort(_tightest(sizes, usable, k, count))
    last = [i for i in usable[k - 1 :] if sizes[i] >= least]
    return np.sort(np.array([*by_size[: k - 1], last[-1]], dtype=np.int64))


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
