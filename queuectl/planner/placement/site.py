"""Some nodes, and the podsets of one unit packed on them one beside the other: greedy, on real amounts.

Only the nodes that hold any pod of the unit are looked at, renumbered as columns in topology order: most of a busy fleet is
full, and what is tried here is tried many times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np

from queuectl.planner.placement.fill import Capacity, Filled
from queuectl.planner.problem.problem import caps
from queuectl.planner.problem.request import ANYWHERE, Pods, Unit
from queuectl.planner.problem.topology import Ints, Mask, Tree

Spot: TypeAlias = tuple[Ints, Ints]  # nodes, pods on each
Width: TypeAlias = tuple[int, ...]  # domains used per level, nodes last
Packed: TypeAlias = tuple[Width, tuple[Spot, ...]]  # spots per podset, as node indexes


@dataclass(eq=False)
class Site:
    """Where one unit may be packed; n columns.

    Attributes:
        level: of the domain that its pods share.
        nodes: node index of each column, in topology order. Shape (n,).
        tree: of the columns.
        free: (R, n).
        fits: per podset, pods that fit each column by themselves.
    """

    unit: Unit
    level: int
    nodes: Ints
    tree: Tree
    free: Ints
    fits: Sequence[Ints]

    @cached_property
    def capacities(self) -> list[Capacity]:
        """Per podset."""
        pods = self.unit.pods
        return [Capacity(self.tree, f, p.slices) for f, p in zip(self.fits, pods, strict=True)]

    @cached_property
    def _eligible(self) -> list[Mask]:
        return [p.shape.eligible[self.nodes] for p in self.unit.pods]

    def within(self, columns: Ints) -> Site:
        """Some of its columns."""
        return Site(
            self.unit,
            self.level,
            self.nodes[columns],
            self.tree.within(columns),
            self.free[:, columns],
            [fits[columns] for fits in self.fits],
        )

    def pack(self, order: Sequence[int], seat: int | None = None) -> Packed | None:
        """All podsets, one after the other, each beside those before where it can.

        Args:
            order: of the podsets.
            seat: the column of the first podset's only pod, where that is fixed.
        """
        left = self.free.copy()
        near = np.zeros(len(self.nodes), dtype=np.bool_)
        placed: dict[int, Spot] = {}
        for number in order:
            pods = self.unit.pods[number]
            if seat is not None and not placed:
                spot = np.array([seat]), np.ones(1, dtype=np.int64)
            else:
                fits = caps(left, pods.shape, eligible=self._eligible[number])
                found = self._even(pods, fits) or self._near_first(pods, fits, near)
                if found is None:
                    return None
                spot = found
            at, counts = spot
            left[:, at] -= pods.shape.vector[:, None] * counts
            near[at] = True
            placed[number] = (self.nodes[at], counts)
        return self._width(near), tuple(placed[i] for i in range(len(self.unit.pods)))

    def seats(self, order: Sequence[int]) -> Iterator[int]:
        """Columns for the only pod of the first podset, where it takes least from the others first.

        Of columns alike in domain and in what they hold, one will do.
        """
        solo = order[0]
        rest = self.free - self.unit.pods[solo].shape.vector[:, None]
        rows = [self.tree.domain[-1]] if self.tree.depth else []
        lost = np.zeros(len(self.nodes), dtype=np.int64)
        for i in order[1:]:
            after = caps(rest, self.unit.pods[i].shape, eligible=self._eligible[i])
            lost += self.fits[i] - after
            rows += [self.fits[i], after]
        seats = self.fits[solo].nonzero()[0]
        _, first = np.unique(np.stack(rows)[:, seats], axis=1, return_index=True)
        kinds = seats[np.sort(first)]
        yield from kinds[np.argsort(lost[kinds], kind="stable")].tolist()

    def _width(self, used: Mask) -> Width:
        """Number of domains used at each level, nodes last."""
        domains = (np.logical_or.reduceat(used, starts) for starts in self.tree.starts)
        return (*(int(np.count_nonzero(d)) for d in domains), int(np.count_nonzero(used)))

    def _even(self, pods: Pods, fits: Ints) -> Spot | None:
        """Spread evenly, where that is asked and possible."""
        if not pods.balanced:
            return None
        even = Capacity(self.tree, fits, pods.slices).evenly(self.level, pods.count)
        return None if even is None else _spot(even)

    def _near_first(self, pods: Pods, fits: Ints, near: Mask) -> Spot | None:
        """Place on nodes near those used already, widening level by level until the pods fit."""
        if not near.any():
            return self._fill(pods, fits, pods.count)
        for level in range(self.tree.depth, ANYWHERE, -1):
            close = near
            if level < self.tree.depth:
                touched = np.logical_or.reduceat(near, self.tree.starts[level])
                close = touched[self.tree.domain[level]]
            spot = self._beside(pods, fits * close, near)
            if spot is not None:
                return spot
        return self._beside(pods, fits, near)

    def _beside(self, pods: Pods, fits: Ints, near: Mask) -> Spot | None:
        """By themselves, or filling up the nodes used already first: whichever takes fewer new nodes."""
        alone = self._fill(pods, fits, pods.count)
        if alone is None or pods.slices:
            return alone
        new = len(alone[0]) - np.count_nonzero(near[alone[0]])
        beside = (near & (fits > 0)).nonzero()[0]
        rest = pods.count - int(fits[beside].sum())
        if new <= 1 or rest <= 0 or not len(beside):
            return alone
        added = self._fill(pods, np.where(near, 0, fits), rest)
        if added is None or len(added[0]) >= new:
            return alone
        at = np.concatenate([beside, added[0]])
        counts = np.concatenate([fits[beside], added[1]])
        in_order = np.argsort(at)
        return at[in_order], counts[in_order]

    def _fill(self, pods: Pods, fits: Ints, count: int) -> Spot | None:
        if int(fits.sum()) < count:
            return None
        found = Capacity(self.tree, fits, pods.slices).anywhere(count)
        return None if found is None else _spot(found)


def _spot(found: Filled) -> Spot:
    at, counts = zip(*found[1], strict=True)
    return np.array(at, dtype=np.int64), np.array(counts, dtype=np.int64)
