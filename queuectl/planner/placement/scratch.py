"""Placing the units of one gang one after the other: what is free beside those before, and where the next one goes.

Two ways: :class:`Scratch` gives each unit its own best place, :class:`Beside` one near the units before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from queuectl.planner.capacity.node_counts import take
from queuectl.planner.placement.counts import Counts
from queuectl.planner.placement.fill import Capacity, Filled
from queuectl.planner.placement.site import Spot
from queuectl.planner.placement.together import Together
from queuectl.planner.problem.problem import Shape, caps
from queuectl.planner.problem.request import ANYWHERE, Pods, Unit
from queuectl.planner.problem.topology import Ints, Mask


def levels_to_try(unit: Unit) -> Iterator[int]:
    """Preferred level first, then coarser ones down to what is required."""
    yield from range(unit.preferred, unit.required, -1)
    yield unit.required


@dataclass(eq=False)
class Scratch:
    """Free capacity while one demand is being placed.

    Attributes:
        free: (R, N), copied before the first change.
        caps_of: pods of a shape that fit each node of ``free``.
        within: nodes the next unit is confined to; None for no bounds.
    """

    free: Ints
    caps_of: Callable[[Shape], Ints]
    within: Mask | None = None
    _mine: bool = False
    _known: dict[Shape, Ints] = field(default_factory=dict)

    def take(self, pods: tuple[Pods, ...], node_counts: tuple[Spot, ...]) -> None:
        """What the next unit finds is less these pods."""
        if not self._mine:
            self.free, self._mine = self.free.copy(), True
            self.caps_of = lambda shape: caps(self.free, shape)
        take(self.free, pods, node_counts)
        self._known.clear()

    def fits(self, shape: Shape) -> Ints:
        known = self._known.get(shape)
        if known is None:
            known = self._known[shape] = self.caps_of(shape)
        return inside(known, self.within)

    def place(self, unit: Unit) -> tuple[Spot, ...] | None:
        """Spots of a unit's pods, at the finest level it may or must share; None when none were found."""
        for level in levels_to_try(unit):
            node_counts = self.place_at(unit, level)
            if node_counts is not None:
                return node_counts
        return None

    def place_at(self, unit: Unit, level: int) -> tuple[Spot, ...] | None:
        """In one domain of a level."""
        if unit.bundle is not None and level == unit.tree.depth:
            return self._on_one_node(unit, unit.bundle)
        if len(unit.pods) == 1:
            return self._alike(unit, level)
        fits = [self.fits(p.shape) for p in unit.pods]
        held = [
            Counts(unit.tree, f, p.slices).holding(level) >= p.count
            for f, p in zip(fits, unit.pods, strict=True)
        ]
        if not np.logical_and.reduce(held).any():
            return None
        return Together(unit, level, self.free, fits).find()

    def _on_one_node(self, unit: Unit, bundle: Pods) -> tuple[Spot, ...] | None:
        found = Capacity(unit.tree, self.fits(bundle.shape)).best_domain(unit.tree.depth, 1)
        if found is None:
            return None
        node = unit.tree.order[found[1][0][0]]
        return tuple((np.array([node]), np.array([p.count])) for p in unit.pods)

    def _alike(self, unit: Unit, level: int) -> tuple[Spot, ...] | None:
        pods = unit.pods[0]
        capacity = Capacity(unit.tree, self.fits(pods.shape), pods.slices)
        found = _in_level(capacity, level, pods)
        return None if found is None else (_spot_of(unit, found),)


@dataclass(eq=False)
class Beside(Scratch):
    """The same, each unit on nodes used already if it can, else in domains used already, the finest first."""

    near: Mask = field(kw_only=True)

    def take(self, pods: tuple[Pods, ...], node_counts: tuple[Spot, ...]) -> None:
        super().take(pods, node_counts)
        for nodes, _ in node_counts:
            self.near[nodes] = True

    def place_at(self, unit: Unit, level: int) -> tuple[Spot, ...] | None:
        everywhere = self.within
        node_counts = None
        for close in (*self._close(unit), None):
            self.within = both(everywhere, close)
            if any(int(self.fits(p.shape).sum()) < p.count for p in unit.pods):
                continue
            node_counts = super().place_at(unit, level)
            if node_counts is not None:
                break
        self.within = everywhere
        return node_counts

    def _close(self, unit: Unit) -> Iterator[Mask]:
        """The nodes used, then those of the domains used, level by level upwards."""
        if self.near.any():
            yield self.near
            for row, starts in zip(unit.tree.domain[::-1], unit.tree.starts[::-1], strict=True):
                used = np.zeros(len(starts) + 1, dtype=np.bool_)
                used[row[self.near]] = True
                used[-1] = False  # nodes that are invisible to this topology
                yield used[row]

    def _alike(self, unit: Unit, level: int) -> tuple[Spot, ...] | None:
        """As it is placed alone, or filling up the nodes used already: whichever takes fewer new ones."""
        alone = super()._alike(unit, level)
        (pods,) = unit.pods
        if alone is None or pods.slices or pods.balanced:
            return alone
        ((nodes, _),) = alone
        fits = self.fits(pods.shape)
        if level != ANYWHERE:
            row = np.arange(len(fits)) if level == unit.tree.depth else unit.tree.domain[level]
            fits = np.where(row == row[nodes[0]], fits, 0)
        filled = np.flatnonzero(self.near & (fits > 0))
        rest = pods.count - int(fits[filled].sum())
        if rest <= 0 or not len(filled):
            return alone
        added = Capacity(unit.tree, np.where(self.near, 0, fits)).anywhere(rest)
        if added is None or len(added[1]) >= np.count_nonzero(~self.near[nodes]):
            return alone
        more, counts = _spot_of(unit, added)
        return ((np.concatenate([filled, more]), np.concatenate([fits[filled], counts])),)


def inside(counts: Ints, mask: Mask | None) -> Ints:
    """Counts per node, 0 outside the mask."""
    return counts if mask is None else np.where(mask, counts, 0)


def both(one: Mask | None, other: Mask | None) -> Mask | None:
    """Nodes in both masks; None stands for no bounds."""
    if one is None or other is None:
        return other if one is None else one
    shared: Mask = one & other
    return shared


def _spot_of(unit: Unit, found: Filled) -> Spot:
    """Node indexes and pods of what :mod:`queuectl.planner.placement.fill` found."""
    positions = np.array([at for at, _ in found[1]], dtype=np.int64)
    return unit.tree.order[positions], np.array([c for _, c in found[1]], dtype=np.int64)


def _in_level(capacity: Capacity, level: int, pods: Pods) -> Filled | None:
    """Spread evenly where that is asked and possible, else as close together as can be."""
    even = capacity.evenly(level, pods.count) if pods.balanced else None
    if even is not None:
        return even
    count = pods.count
    return capacity.anywhere(count) if level == ANYWHERE else capacity.best_domain(level, count)
