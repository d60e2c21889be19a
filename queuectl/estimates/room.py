"""Free capacity and quota at one moment of a draw, with what follows from them, so that many gangs are refused without a search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from queuectl.planner.capacity.node_counts import NodeCounts
from queuectl.planner.placement import greedy
from queuectl.planner.problem.fleet import Ints, Tree
from queuectl.planner.problem.problem import Shape, caps
from queuectl.planner.problem.request import ANYWHERE, GangRequest
from queuectl.planner.quota import QuotaUse

_Row: TypeAlias = tuple[str, str]
"""Flavor and resource."""


@dataclass(eq=False)
class EmptyNodes:
    """Capacity (R, N) of all nodes without gangs."""

    free: Ints
    _most: dict[Shape, int] = field(default_factory=dict)

    def most(self, shape: Shape) -> int:
        """The most pods of a shape that one node holds."""
        found = self._most.get(shape)
        if found is None:
            found = self._most[shape] = int(caps(self.free, shape).max(initial=0))
        return found


@dataclass(eq=False)
class Room:
    """Free capacity (R, N) that does not change.

    Attributes:
        empty: (R, N) if no gang were there.
    """

    free: Ints
    empty: EmptyNodes
    _caps: dict[Shape, Ints] = field(default_factory=dict)
    _most: dict[tuple[Shape, Tree, int], int] = field(default_factory=dict)

    def find(self, request: GangRequest) -> NodeCounts | None:
        """Nodes for a gang, as the planner finds them without the solver; None = none found."""
        return greedy.find(request, self.free, self._caps_of)

    def lacks(self, request: GangRequest) -> int:
        """The least number of nodes that must be freed before a gang can fit; 0 = perhaps none.

        It is a lower bound: each kind of pods is alone in its domain, and each node that is freed holds as many as it can.
        """
        least = 0
        for group in request.podset_groups:
            for pods in group.to_place:
                missing = pods.count - self._most_in_a_domain(
                    pods.shape, group.tree, group.required
                )
                if missing > 0:
                    least = max(least, -(-missing // max(1, self.empty.most(pods.shape))))
        return least

    def _most_in_a_domain(self, shape: Shape, tree: Tree, level: int) -> int:
        """The most pods of a shape that one domain of a level holds."""
        most = self._most.get((shape, tree, level))
        if most is None:
            fits = self._caps_of(shape)[tree.order]
            if level == ANYWHERE:
                most = int(fits.sum())
            else:
                sums = fits if level == tree.depth else np.add.reduceat(fits, tree.starts[level])
                most = int(sums.max(initial=0))
            self._most[shape, tree, level] = most
        return most

    def _caps_of(self, shape: Shape) -> Ints:
        """Pods of a shape that fit each node, (N,), read-only."""
        found = self._caps.get(shape)
        if found is None:
            found = self._caps[shape] = caps(self.free, shape)
            found.flags.writeable = False
        return found


@dataclass(eq=False)
class QuotaLeft:
    """Use of quota that does not change."""

    use: QuotaUse
    _left: dict[tuple[str, _Row, bool], int] = field(default_factory=dict)

    def fits(self, queue: str, charges: Mapping[_Row, int], *, borrows: bool = True) -> bool:
        """Whether a ClusterQueue may use all of this more."""
        for row, need in charges.items():
            if need and need > self._left_of(queue, row, borrows):
                return False
        return True

    def _left_of(self, queue: str, row: _Row, borrows: bool) -> int:
        key = queue, row, borrows
        left = self._left.get(key)
        if left is None:
            left = self._left[key] = self.use.left(queue, row, borrows=borrows)
        return left
