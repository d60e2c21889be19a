"""Sets of domains with room for several units by sums: the few that are worth packing.

A set holds each podset by itself, with no more domains below than its unit may use, and all of them by what is free of each
resource. Both are necessary, not enough: whether they pack, :mod:`queuectl.planner.placement.compact` tries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations
from math import comb
from typing import Final, TypeAlias

import numpy as np

from queuectl.planner.placement.counts import Counts
from queuectl.planner.placement.fewest import fewest_of
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.problem.topology import Ints, Tree

_SETS: Final = 2000  # sets of domains of one size that are looked at
_PACKED: Final = 12  # of those with room by sums, how many are told

Most: TypeAlias = Callable[[int, int], int | None]
"""Of how many domains of a level (second) the pods of a unit (first) may be; None: of any number."""


@dataclass(eq=False)
class Roomy:
    """One gang on some nodes, numbered in topology order; n of them.

    Attributes:
        request: of several units, all of one tree: that of these nodes.
        free: (R, n).
        held: per pods of the demand, what each node and domain holds of them alone.
    """

    request: GangRequest
    free: Ints
    held: Sequence[Counts]

    @property
    def tree(self) -> Tree:
        return self.request.units[0].tree

    @cached_property
    def _owners(self) -> list[int]:
        """The unit of each pods of the demand."""
        return [number for number, unit in enumerate(self.request.units) for _ in unit.pods]

    @cached_property
    def _columns(self) -> list[int]:
        return sorted({c for p in self.request.pods for c in p.shape.columns})

    @cached_property
    def _room(self) -> list[Ints]:
        """What is free of each resource asked, per level and nodes last: (resources, domains)."""
        usable = np.logical_or.reduce([p.shape.eligible for p in self.request.pods])
        free = np.where(usable, np.maximum(self.free[self._columns], 0), 0)
        return [*(np.add.reduceat(free, starts, axis=1) for starts in self.tree.starts), free]

    @cached_property
    def _asked(self) -> Ints:
        """Of each resource in :attr:`_room`, by all pods."""
        vectors = np.stack([p.shape.vector[self._columns] for p in self.request.pods], axis=1)
        asked: Ints = vectors @ np.array([p.count for p in self.request.pods])
        return asked

    def filled(self, level: int) -> int:
        """A lower bound of the domains of a level that the gang uses, by what is free of each resource."""
        return max(map(fewest_of, self._room[level], self._asked), default=1)

    def fewest(self, level: int) -> int:
        """A lower bound of them, also by each podset alone."""
        pods = zip(self.held, self.request.pods, strict=True)
        alone = [fewest_of(held.levels[level], p.count) for held, p in pods]
        return max(*alone, self.filled(level))

    def sets(self, level: int, k: int, most: Most) -> Iterator[Ints]:
        """Nodes of k domains that hold all pods by sums, in the fewest domains above and the tightest first; a few."""
        held = self._useful(level, most)
        some = np.flatnonzero(held.any(axis=0))
        if k > len(some):
            return
        richest = some[np.argsort(-held[:, some].sum(axis=0), kind="stable")][: _choosable(k)]
        sets = np.sort(richest)[_combinations(len(richest), k)]
        room = self._room[level][:, sets].sum(axis=2)
        sets = sets[(room >= self._asked[:, None]).all(axis=0)]
        for unit, p, row in zip(self._owners, self.request.pods, held, strict=True):
            of_set, bound = row[sets], most(unit, level)
            if bound is not None and bound < k:
                of_set = np.sort(of_set, axis=1)[:, -bound:]
            sets = sets[of_set.sum(axis=1) >= p.count]
        left = held[:, sets].sum(axis=(0, 2))
        above = [self._above(level, sets, high) for high in range(min(level, self.tree.depth))]
        for chosen in sets[np.lexsort((left, *above[::-1]))[:_PACKED]].tolist():
            yield self._nodes(level, chosen)

    def _above(self, level: int, sets: Ints, high: int) -> Ints:
        """Of how many domains of a higher level each set of domains is, less one."""
        row = self.tree.domain[high]
        of = row if level == self.tree.depth else row[self.tree.starts[level]]
        changes: Ints = np.count_nonzero(np.diff(of[sets], axis=1), axis=1)
        return changes

    def _useful(self, level: int, most: Most) -> Ints:
        """Per pods and domain of a level, how many it holds within what their unit may use below."""
        rows = []
        for unit, held in zip(self._owners, self.held, strict=True):
            row = held.levels[level]
            for below in range(level + 1, self.tree.depth + 1):
                if (bound := most(unit, below)) is not None:
                    row = np.minimum(row, self._richest(level, below, held.levels[below], bound))
            rows.append(row)
        return np.stack(rows)

    def _richest(self, level: int, below: int, sizes: Ints, most: int) -> Ints:
        """What at most so many of its domains of a level below hold together, per domain of a level."""
        starts = self.tree.starts[level]
        if below < self.tree.depth:
            starts = np.searchsorted(self.tree.starts[below], starts)
        owner = np.zeros(len(sizes), dtype=np.int64)
        owner[starts[1:]] = 1
        owner = owner.cumsum()
        base = int(sizes.max(initial=0)) + 1
        descending = base - 1 - np.sort(owner * base + (base - 1 - sizes)) % base
        counted = np.arange(len(sizes)) - starts[owner] < most
        sums: Ints = np.add.reduceat(descending * counted, starts)
        return sums

    def _nodes(self, level: int, domains: Sequence[int]) -> Ints:
        if level == self.tree.depth:
            return np.array(domains, dtype=np.int64)
        inside = np.zeros(len(self.tree.starts[level]), dtype=np.bool_)
        inside[domains] = True
        return inside[self.tree.domain[level]].nonzero()[0]


@lru_cache(maxsize=256)
def _combinations(n: int, k: int) -> Ints:
    """All sets of k of n numbers, ascending."""
    return np.array(list(combinations(range(n), k)), dtype=np.int64).reshape(-1, k)


@lru_cache(maxsize=256)
def _choosable(k: int) -> int:
    """Of how many domains all sets of k can be looked at."""
    most = k
    while comb(most + 1, k) <= _SETS:
        most += 1
    return most
