"""A placement of one demand found greedily and checked on real vectors: a witness that it fits.

A witness proves that a gang fits; none proves nothing, unless the gang is a single podset, where
:mod:`queuectl.planner.fill` is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from queuectl.planner.arena import caps
from queuectl.planner.demand import ANYWHERE, Demand, Pods, Shape, Unit
from queuectl.planner.fill import Capacity, Filled
from queuectl.planner.ledger import Spots, take
from queuectl.planner.together import Spot, Together, spot_of, weight
from queuectl.planner.topology import Ints, Mask


def exact(demand: Demand) -> bool:
    """Whether "no witness" is a proof: one unit whose pods are all alike, or all on one node."""
    return not demand.units or (
        len(demand.units) == 1 and (len(demand.units[0].pods) == 1 or demand.units[0].on_one_node)
    )


def find(
    demand: Demand,
    free: Ints,
    caps_of: Callable[[Shape], Ints],
    within: Sequence[Mask | None] | None = None,
) -> Spots | None:
    """Spots for the whole demand, or None.

    Args:
        demand: the gang under one choice of flavors.
        free: (R, N).
        caps_of: pods of a shape that fit each node of ``free``.
        within: per unit, the nodes it is confined to; None for no bounds.
    """
    scratch = _Scratch(free, caps_of)
    placed: dict[int, tuple[Spot, ...]] = {}
    for number in _hardest_first(demand.units, free):
        unit = demand.units[number]
        scratch.within = within[number] if within is not None else None
        spots = scratch.place(unit)
        if spots is None:
            return None
        placed[number] = spots
        if len(demand.units) > 1:
            scratch.take(unit.pods, spots)
    return tuple(spot for number in range(len(demand.units)) for spot in placed[number])


def _hardest_first(units: tuple[Unit, ...], free: Ints) -> list[int]:
    """Finer required level first, then the larger; ties as asked."""
    if len(units) == 1:
        return [0]
    totals = np.maximum(free, 0).sum(axis=1)
    return sorted(
        range(len(units)), key=lambda i: (-units[i].required, -weight(units[i].pods, totals))
    )


def levels_to_try(unit: Unit) -> Iterator[int]:
    """Preferred level first, then coarser ones down to what is required."""
    yield from range(unit.preferred, unit.required, -1)
    yield unit.required


@dataclass(eq=False)
class _Scratch:
    """Free capacity while one demand is being placed."""

    free: Ints
    caps_of: Callable[[Shape], Ints]
    mine: bool = False
    within: Mask | None = None

    def take(self, pods: tuple[Pods, ...], spots: tuple[Spot, ...]) -> None:
        if not self.mine:
            self.free, self.mine = self.free.copy(), True
            self.caps_of = lambda shape: caps(self.free, shape)
        take(self.free, pods, spots)

    def fits(self, shape: Shape) -> Ints:
        counted = self.caps_of(shape)
        return counted if self.within is None else np.where(self.within, counted, 0)

    def place(self, unit: Unit) -> tuple[Spot, ...] | None:
        for level in levels_to_try(unit):
            if unit.bundle is not None and level == unit.tree.depth:
                spots = self._on_one_node(unit, unit.bundle)
            elif len(unit.pods) == 1:
                spots = self._alike(unit, level)
            else:
                capacities = [Capacity(unit.tree, self.fits(p.shape), p.slices) for p in unit.pods]
                spots = Together(unit, level, self.free, capacities, self.within).find()
            if spots is not None:
                return spots
        return None

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
        return None if found is None else (spot_of(unit, found),)


def _in_level(capacity: Capacity, level: int, pods: Pods) -> Filled | None:
    """Spread evenly where that is asked and possible, else as close together as can be."""
    even = capacity.evenly(level, pods.count) if pods.balanced else None
    if even is not None:
        return even
    count = pods.count
    return capacity.anywhere(count) if level == ANYWHERE else capacity.best_domain(level, count)
