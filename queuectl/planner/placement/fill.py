"""Where the pods of one podset go inside a topology: exact for pods that do not compete with others.

Layers, from the first that tells two placements apart: fewest domains from the top level down to nodes, then least
capacity left over in the domains used, from the top down, then topology order. What is left over stays in the largest
domain used, so that large free blocks stay whole.

The numbers of domains are the least there are, compared level by level from the top; only where a split over many domains
would take too long is it the best of what was looked at (:func:`queuectl.planner.placement.fewest.split`). Ties in them go to the
least left over as far down as one domain, or one set of domains, is chosen at a time.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np

from queuectl.planner.placement.counts import Counts
from queuectl.planner.placement.fewest import (
    SPLIT_WORK,
    Steps,
    fewest_of,
    fewest_then_tightest,
    least_share,
    most_even,
    split,
)
from queuectl.planner.problem.request import ANYWHERE
from queuectl.planner.problem.topology import Ints

Score: TypeAlias = tuple[int, ...]
Filled: TypeAlias = tuple[Score, list[tuple[int, int]]]  # score, (position in tree.order, pods)

_BITS: Final = 60  # of a cost: the numbers of domains of all levels, the top level's first


class Capacity(Counts):
    """Where to put pods of one shape, by what fits each node and each domain of a tree."""

    def best_domain(self, level: int, count: int) -> Filled | None:
        """The best single domain of a level (``tree.depth``: the best node) that holds ``count`` pods."""
        return self._best_of(level, 0, len(self.levels[level]), count)

    def anywhere(self, count: int) -> Filled | None:
        """The best placement over the whole tree."""
        if self.total < count:
            return None
        return self._below(ANYWHERE, 0, count)

    def evenly(self, level: int, count: int) -> Filled | None:
        """The best placement in one domain of a level with pods, or whole slices, spread evenly over those below it.

        None when no domain that holds the pods can spread them so.
        """
        if level == self.tree.depth:
            return None
        ways = [
            way
            for domain in np.flatnonzero(self.holding(level) >= count).tolist()
            if (way := self._evenly_in(level, domain, count)) is not None
        ]
        return min(ways, key=lambda way: way[0], default=None)

    def _evenly_in(self, level: int, domain: int, count: int) -> Filled | None:
        low, high = self.inside(level, domain, level + 1)
        grain = self.grains[level + 1]
        found = most_even(self.levels[level + 1][low:high] // grain, count // grain)
        if found is None:
            return None
        chosen, shares = found
        score, node_counts = self._spread(level, low, chosen, shares * grain)
        left = int(self.holding(level)[domain]) - count
        return (score if level == ANYWHERE else self._score(1, left, score)), node_counts

    def _best_of(self, level: int, low: int, high: int, count: int) -> Filled | None:
        """The best of the domains ``low..high`` of a level that hold ``count`` pods alone."""
        sizes = self.levels[level][low:high]
        fitting = (sizes >= count).nonzero()[0]
        if not len(fitting):
            return None
        tightest = int(fitting[sizes[fitting].argmin()])
        best = self._in_domain(level, low + tightest, count)
        if len(fitting) == 1 or level == self.tree.depth:
            return best
        if self._widths(best) == self.fewest(level, count):
            return best
        bounds = self.least(level, low, high, count)[:, fitting]
        for at in np.lexsort((sizes[fitting], *bounds[::-1])).tolist():
            bound = (1, *bounds[:, at].tolist())
            if bound > self._widths(best):
                break
            left = int(sizes[fitting[at]]) - count
            if bound == self._widths(best) and left >= best[0][len(bound)]:
                continue
            if (1, *self.bound(level, low + int(fitting[at]), count)) <= self._widths(best):
                best = min(best, self._in_domain(level, low + int(fitting[at]), count), key=_first)
        return best

    def _in_domain(self, level: int, domain: int, count: int) -> Filled:
        left = int(self.levels[level][domain]) - count
        if level == self.tree.depth:
            return (1, left), [(domain, count)]
        score, node_counts = self._below(level, domain, count)
        return self._score(1, left, score), node_counts

    def _score(self, width: int, left: int, below: Score) -> Score:
        """Widths of all levels first, then what is left over at each."""
        half = len(below) // 2
        return (width, *below[:half], left, *below[half:])

    @staticmethod
    def _widths(filled: Filled) -> Score:
        return filled[0][: len(filled[0]) // 2]

    def _below(self, level: int, domain: int, count: int) -> Filled:
        """Spread ``count`` pods over the children of one domain that is known to hold them."""
        low, high = self.inside(level, domain, level + 1)
        single = self._best_of(level + 1, low, high, count)
        if single is not None:
            return single
        grain = self.grains[level + 1]
        sizes = self.levels[level + 1][low:high]
        chosen = fewest_then_tightest(sizes // grain, count // grain)
        spread = self._spread(level, low, chosen, _shares(sizes[chosen], sizes[chosen], count))
        if level + 1 == self.tree.depth:
            return spread
        bound = self.bound(level, domain, count)
        for other in (self._richest_split, self._best_split):
            if self._widths(spread) == bound:
                break
            shares = other(level + 1, low, high, count)
            if shares is not None:
                chosen = shares.nonzero()[0]
                shares = _shares(shares[chosen], sizes[chosen], count)
                spread = min(spread, self._spread(level, low, chosen, shares), key=_first)
        return spread

    def _spread(self, level: int, low: int, chosen: Ints, shares: Ints) -> Filled:
        """These shares on these children of a domain of ``level``, each as good as can be further down."""
        below = level + 1
        if below == self.tree.depth:
            left = int((self.levels[below][low + chosen] - shares).sum())
            return (len(chosen), left), list(
                zip((low + chosen).tolist(), shares.tolist(), strict=True)
            )
        parts = [
            self._in_domain(below, low + int(c), int(s))
            for c, s in zip(chosen, shares, strict=True)
        ]
        score = tuple(map(sum, zip(*(score for score, _ in parts), strict=True)))
        return score, [spot for _, part in parts for spot in part]

    # The split that needs the fewest domains at every level below, from the top.

    def _richest_split(self, level: int, low: int, high: int, count: int) -> Ints | None:
        """The fewest domains right above nodes that suggest the fewest nodes, largest nodes first; None elsewhere."""
        if level + 1 < self.tree.depth or self.grains[level] > 1:
            return None
        sizes = self.levels[level][low:high]
        k = fewest_of(sizes, count)
        _, chosen = self.fewest_nodes(low, high, k, count)
        if int(sizes[chosen].sum()) < count:
            return None
        first, last = self.range_of(level, low, high)
        owner = (
            np.searchsorted(
                self.tree.starts[level][low:high] - first, np.arange(last - first), side="right"
            )
            - 1
        )
        nodes = np.where(np.isin(owner, chosen), self.levels[-1][first:last], 0)
        by_size = (-nodes).argsort(kind="stable")
        used = by_size[: int(nodes[by_size].cumsum().searchsorted(count)) + 1]
        return np.bincount(owner[used], weights=nodes[used], minlength=len(sizes)).astype(np.int64)

    def _best_split(self, level: int, low: int, high: int, count: int) -> Ints | None:
        """What each domain ``low..high`` of a level holds, at least ``count`` together; None when no way was found."""
        grain, weights = self.grains[level], self._weights(level, count)
        sizes = self.levels[level][low:high]
        least = least_share(sizes, count)
        useful = (sizes >= least).nonzero()[0]
        steps = []
        for domain in useful.tolist():
            amounts, costs = self._steps(level, low + domain, count, weights, len(useful))
            steps.append((amounts[amounts >= least] // grain, costs[amounts >= least]))
        found = split(steps, count // grain).shares(count // grain)
        if found is None:
            return None
        shares = np.zeros(len(sizes), dtype=np.int64)
        shares[useful] = np.array(found, dtype=np.int64) * grain
        return shares

    def _weights(self, level: int, count: int) -> tuple[int, ...]:
        """What one domain costs at each level, 0 above ``level``: any number further down weighs less than one here."""
        base = count + 1
        deep = self.tree.depth - level + 1
        kept = min(deep, max(1, _BITS // base.bit_length()))
        return (*[0] * level, *(base ** (kept - 1 - i) if i < kept else 0 for i in range(deep)))

    def _steps(
        self, level: int, domain: int, count: int, weights: tuple[int, ...], beside: int
    ) -> Steps:
        """The most pods a domain holds at each cost; ``beside``: among so many that share the work."""
        low, high = self.inside(level, domain, level + 1)
        below = self.levels[level + 1][low:high]
        grain = self.grains[level]
        if level + 1 == self.tree.depth:
            amounts = np.minimum(np.cumsum(np.sort(below[below > 0])[::-1]), count)
            costs = weights[level] + weights[level + 1] * np.arange(1, len(amounts) + 1)
            amounts -= amounts % grain
            useful = np.diff(amounts, prepend=0) > 0
            return amounts[useful], costs[useful]
        most = min(int(self.levels[level][domain]), count)
        inner = self.grains[level + 1]
        parts = [
            self._steps(level + 1, d, most, weights, beside * len(below))
            for d in range(low, high)
            if below[d - low]
        ]
        found = split([(a // inner, c) for a, c in parts], most // inner, SPLIT_WORK // beside)
        amounts, costs = found.steps(grain // inner)
        return amounts * inner, costs + weights[level]


def _shares(most: Ints, sizes: Ints, count: int) -> Ints:
    """Fill every domain up to ``most`` but the largest (the first of them), which keeps what is left over."""
    shares = most.copy()
    shares[int(sizes.argmax())] -= int(most.sum()) - count
    return shares


def _first(filled: Filled) -> Score:
    return filled[0]
