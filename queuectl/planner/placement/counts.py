"""How many pods of one shape each node and each domain of a tree holds, and how few domains could do at least.

Where slices of s pods must each sit in one domain of a level, a domain of it holds a multiple of s. Each finer size divides
the coarser, so every multiple up to the floor can be had, and floors add up level by level: the counts are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from queuectl.planner.placement.fewest import fewest_inside, fewest_of, needed
from queuectl.planner.problem.problem import Slices
from queuectl.planner.problem.request import ANYWHERE
from queuectl.planner.problem.topology import Ints, Tree


@dataclass(eq=False)
class Counts:
    """Pods of one shape that fit each node and each domain of a tree, in whole slices if there are any."""

    tree: Tree
    per_node: Ints  # in fleet order
    slices: Slices = ()

    @cached_property
    def grains(self) -> tuple[int, ...]:
        """Per level and, last, per node: pods come to its domains in multiples of this."""
        return tuple(
            max((size for of, size in self.slices if of >= level), default=1)
            for level in range(self.tree.depth + 1)
        )

    @cached_property
    def levels(self) -> tuple[Ints, ...]:
        """Per level and, last, per node in topology order."""
        below = self.per_node[self.tree.order]
        rows = [below]
        for level in range(self.tree.depth - 1, -1, -1):
            starts = self.tree.children[level]
            sums = np.add.reduceat(below, starts) if len(starts) else below[:0]
            below = sums - sums % self.grains[level] if self.slices else sums
            rows.append(below)
        return tuple(reversed(rows))

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

    def range_of(self, level: int, low: int, high: int) -> tuple[int, int]:
        """The positions of the nodes in the domains ``low..high`` of a level."""
        starts = self.tree.starts[level]
        last = int(starts[high]) if high < len(starts) else len(self.tree.order)
        return (int(starts[low]) if low < len(starts) else last), last

    def inside(self, level: int, domain: int, below: int) -> tuple[int, int]:
        """Range of the domains (or node positions) of level ``below`` inside a domain."""
        if level == ANYWHERE:
            return 0, len(self.levels[below])
        if below == level + 1:
            span = self.tree.spans[level]
            return span[domain], span[domain + 1]
        first, last = self.range_of(level, domain, domain + 1)
        if below == self.tree.depth:
            return first, last
        starts = self.tree.starts[below]
        return int(starts.searchsorted(first)), int(starts.searchsorted(last))

    # Lower bounds of the numbers of domains.

    def fewest(self, level: int, count: int) -> tuple[int, ...]:
        """Of any domain of a level, from ``level`` down to nodes: by the largest domain of each level."""
        return (1, *(-(-count // most) for most in self.largest[level + 1 :] if most))

    def least(self, level: int, low: int, high: int, count: int) -> Ints:
        """Lower bounds of the numbers of domains below each domain ``low..high`` of a level: (levels below, domains)."""
        rows = []
        starts = self.tree.starts[level][low:high]
        for below in range(level + 1, self.tree.depth + 1):
            firsts = starts
            if below < self.tree.depth:
                firsts = self.tree.starts[below].searchsorted(starts)
            first, last = int(firsts[0]), self.inside(level, high - 1, below)[1]
            owner = firsts.searchsorted(np.arange(first, last), side="right") - 1
            rows.append(needed(self.levels[below][first:last], owner, high - low, count))
        return np.array(rows, dtype=np.int64).reshape(-1, high - low)

    def alone(self, level: int, domain: int, count: int) -> tuple[int, ...]:
        """Lower bounds of the numbers of domains below one domain, each level by itself."""
        widths = []
        for below in range(level + 1, self.tree.depth + 1):
            low, high = self.inside(level, domain, below)
            widths.append(fewest_of(self.levels[below][low:high], count))
        return tuple(widths)

    def bound(self, level: int, domain: int, count: int) -> tuple[int, ...]:
        """Lower bound of the numbers of domains below one domain, compared from the top."""
        widths = list(self.alone(level, domain, count))
        if len(widths) > 1:
            low, high = self.inside(level, domain, self.tree.depth - 1)
            nodes, _ = self.fewest_nodes(low, high, widths[-2], count)
            widths[-1] = max(widths[-1], nodes)
        return tuple(widths)

    def fewest_nodes(self, low: int, high: int, k: int, count: int) -> tuple[int, Ints]:
        """Lower bound of the nodes in ``k`` of the domains ``low..high`` right above them, and which suggest it."""
        first, last = self.range_of(self.tree.depth - 1, low, high)
        starts = self.tree.starts[-1][low:high] - first
        return fewest_inside(self.levels[-1][first:last], starts, k, count)
