"""A placement of one demand found greedily and checked on real vectors: a witness that it fits.

A witness proves that a gang fits; none proves nothing, unless the gang is a single podset, where
:mod:`queuectl.planner.fill` is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from queuectl.planner.arena import caps
from queuectl.planner.demand import ANYWHERE, Demand, Pods, Shape, Unit
from queuectl.planner.fill import Capacity, Filled
from queuectl.planner.ledger import Spots
from queuectl.planner.topology import Ints, Mask

Spot: TypeAlias = tuple[Ints, Ints]

_TRIES: Final = 48  # domains tried for a unit of several podsets before the solver is asked
_COMPARED: Final = 3  # of those that hold it, how many are compared


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
        range(len(units)), key=lambda i: (-units[i].required, -_weight(units[i].pods, totals))
    )


def _weight(pods: tuple[Pods, ...], totals: Ints) -> float:
    """Share of all that is free, of the scarcest resource."""
    return max(
        (
            p.count * int(p.shape.vector[c]) / max(1, int(totals[c]))
            for p in pods
            for c in p.shape.columns
        ),
        default=0.0,
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
        for p, (nodes, counts) in zip(pods, spots, strict=True):
            self.free[:, nodes] -= np.outer(p.shape.vector, counts)

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
                spots = self._mixed(unit, level)
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
        capacity = Capacity(unit.tree, self.fits(pods.shape))
        found = _in_level(capacity, level, pods.count)
        return None if found is None else (_spot(unit, found),)

    def _mixed(self, unit: Unit, level: int) -> tuple[Spot, ...] | None:
        """Podsets of different shapes in one domain: tightest domain first, hardest podset first."""
        totals = np.maximum(self.free, 0).sum(axis=1)
        order = sorted(
            range(len(unit.pods)),
            key=lambda i: -_weight((unit.pods[i],), totals) / unit.pods[i].count,
        )
        per_node = [self.fits(p.shape) for p in unit.pods]
        best: tuple[tuple[int, ...], tuple[Spot, ...]] | None = None
        compared = 0
        for nodes in _candidates(unit, level, per_node, order[0]):
            spots = _pack(unit, order, self._inside(nodes), self.free)
            if spots is None:
                continue
            score = _width(unit, spots)
            if best is None or score < best[0]:
                best = score, spots
            compared += 1
            if compared == _COMPARED:
                break
        return best[1] if best is not None else None

    def _inside(self, nodes: Ints) -> Ints:
        return nodes if self.within is None else nodes[self.within[nodes]]


def _in_level(capacity: Capacity, level: int, count: int) -> Filled | None:
    return capacity.anywhere(count) if level == ANYWHERE else capacity.best_domain(level, count)


def _spot(unit: Unit, found: Filled) -> Spot:
    positions = np.array([at for at, _ in found[1]], dtype=np.int64)
    return unit.tree.order[positions], np.array([c for _, c in found[1]], dtype=np.int64)


def _candidates(unit: Unit, level: int, per_node: list[Ints], main: int) -> Iterator[Ints]:
    """Node indexes of the domains that hold each podset by itself, the tightest for the main one first."""
    tree = unit.tree
    if level == ANYWHERE:
        if all(int(c.sum()) >= p.count for c, p in zip(per_node, unit.pods, strict=True)):
            yield tree.order
        return
    sums = [tree.sums(level, c) for c in per_node]
    holds = np.ones(len(sums[0]), dtype=np.bool_)
    for row, p in zip(sums, unit.pods, strict=True):
        holds &= row >= p.count
    domains = np.flatnonzero(holds)
    domains = domains[np.argsort(sums[main][domains], kind="stable")]
    for domain in domains[:_TRIES]:
        yield tree.nodes_in(level, int(domain))


def _pack(unit: Unit, order: list[int], nodes: Ints, free: Ints) -> tuple[Spot, ...] | None:
    """All podsets of a unit on ``nodes``, one after the other, each beside those before where it can."""
    left = free[:, nodes].copy()
    near = np.zeros(len(nodes), dtype=np.bool_)
    placed: dict[int, Spot] = {}
    for number in order:
        pods = unit.pods[number]
        fits = caps_at(left, pods.shape, nodes)
        if int(fits.sum()) < pods.count:
            return None
        chosen = _near_first(unit, nodes, fits, near, pods.count)
        at, counts = chosen
        left[:, at] -= np.outer(pods.shape.vector, counts)
        near[at] = True
        placed[number] = (nodes[at], counts)
    return tuple(placed[i] for i in range(len(unit.pods)))


def caps_at(left: Ints, shape: Shape, nodes: Ints) -> Ints:
    """Pods of a shape per column of ``left``, whose columns stand for ``nodes``."""
    return caps(left, shape, eligible=shape.eligible[nodes])


def _near_first(unit: Unit, nodes: Ints, fits: Ints, near: np.ndarray, count: int) -> Spot:
    """Place on nodes near those used already, widening level by level until the pods fit."""
    tree = unit.tree
    for level in range(tree.depth, ANYWHERE, -1):
        if not near.any():
            break
        if level == tree.depth:
            close = near
        else:
            domain = tree.domain[level][nodes]
            close = np.isin(domain, np.unique(domain[near]))
        confined = np.where(close, fits, 0)
        if int(confined.sum()) >= count:
            return _fill(unit, nodes, confined, count)
    return _fill(unit, nodes, fits, count)


def _fill(unit: Unit, nodes: Ints, fits: Ints, count: int) -> Spot:
    per_node = np.zeros(len(unit.tree.position), dtype=np.int64)
    per_node[nodes] = fits
    found = Capacity(unit.tree, per_node).anywhere(count)
    assert found is not None
    chosen, counts = _spot(unit, found)
    place = np.zeros(len(per_node), dtype=np.int64)
    place[nodes] = np.arange(len(nodes))
    return place[chosen], counts


def _width(unit: Unit, spots: tuple[Spot, ...]) -> tuple[int, ...]:
    """Number of domains used at each level, nodes last."""
    nodes = np.unique(np.concatenate([n for n, _ in spots]))
    return (*(len(np.unique(row[nodes])) for row in unit.tree.domain), len(nodes))
