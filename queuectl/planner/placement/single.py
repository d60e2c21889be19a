"""Where the pods of one podset go inside a topology, as if there were no others.

Two placements are compared layer by layer; the first layer in which they differ decides: fewest domains from the top level down to nodes, then fewest
avoided nodes among the nodes of a domain, then least capacity left over in the domains used, from the top down, then topology order. The
remaining capacity stays in the largest domain used, so that large free blocks stay whole.

Whether the pods fit, in one domain or anywhere, is exact, and so is the number of domains of the first level that takes several:
they are the fewest, and of those the tightest. Within each of them the same rule holds further down.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from queuectl.planner.model.counts import (
    ShapeCounts,
    fewest_then_sparing,
    fewest_then_tightest,
    most_even,
)
from queuectl.planner.problem.request import ANYWHERE
from queuectl.planner.problem.topology import Ints, Mask

Score: TypeAlias = tuple[int, ...]
Filled: TypeAlias = tuple[Score, list[tuple[int, int]]]  # score, (position in tree.order, pods)


@dataclass(eq=False)
class ShapeCapacity(ShapeCounts):
    """Where to put pods of one shape, by what fits each node and each domain of a tree.

    Attributes:
        avoided: nodes that the pods leave to others if as few nodes hold them. Shape (N,); None = no nodes.
    """

    avoided: Mask | None = None

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
        low, high = self.inside(level, domain)
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
        if self.widths(best) == self.fewest(level, count):
            return best
        bounds = self.least(level, low, high, count)[:, fitting]
        for at in np.lexsort((sizes[fitting], *bounds[::-1])).tolist():
            bound = (1, *bounds[:, at].tolist())
            if bound > self.widths(best):
                break
            left = int(sizes[fitting[at]]) - count
            if bound == self.widths(best) and left >= best[0][len(bound)]:
                continue
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
    def widths(filled: Filled) -> Score:
        """The numbers of domains, from the top level down to nodes."""
        return filled[0][: len(filled[0]) // 2]

    def _below(self, level: int, domain: int, count: int) -> Filled:
        """Spread ``count`` pods over the children of one domain that is known to hold them."""
        low, high = self.inside(level, domain)
        single = self._best_of(level + 1, low, high, count)
        if single is not None:
            return single
        grain = self.grains[level + 1]
        sizes = self.levels[level + 1][low:high]
        avoided = self._avoided(low, high) if level + 1 == self.tree.depth else None
        if avoided is None:
            chosen = fewest_then_tightest(sizes // grain, count // grain)
            keeps = int(sizes[chosen].argmax())  # what is left over
        else:
            chosen = fewest_then_sparing(sizes // grain, count // grain, avoided)
            keeps = int(np.lexsort((-sizes[chosen], ~avoided[chosen]))[0])
        shares = sizes[chosen]
        shares[keeps] -= int(shares.sum()) - count
        return self._spread(level, low, chosen, shares)

    def _avoided(self, low: int, high: int) -> Mask | None:
        """Which of some nodes, by position, are avoided; None = none of them."""
        if self.avoided is None:
            return None
        avoided: Mask = self.avoided[self.tree.order[low:high]]
        return avoided if avoided.any() else None

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
        return score, [pods for _, part in parts for pods in part]


def _first(filled: Filled) -> Score:
    return filled[0]
