"""Several podsets in one domain: greedy packings, compared by how many domains they use.

Finding none is no proof. The narrowest domains are tried first, by what each podset needs of them alone; podsets are packed
one beside the other, the hardest first or last, or round a leader's seat; at last in fewer of the domains below.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import comb
from typing import Final, TypeAlias

import numpy as np

from queuectl.planner.arena import caps
from queuectl.planner.demand import ANYWHERE, Pods, Shape, Unit
from queuectl.planner.fill import Capacity, Filled
from queuectl.planner.topology import Ints, Mask

Spot: TypeAlias = tuple[Ints, Ints]
Width: TypeAlias = tuple[int, ...]  # domains used per level, nodes last
_Found: TypeAlias = tuple[Width, tuple[Spot, ...]]

_TRIES: Final = 48  # domains tried for a unit of several podsets before the solver is asked
_MOST: Final = 64  # packings in all of them, until one is found
_POLISH: Final = 24  # packings, once one is found
_COMPARED: Final = 2  # of those that hold it, how many are compared
_SEATS: Final = 12  # places tried for a single pod
_NODES: Final = 6  # of those, where no more than nodes can be saved
_SETS: Final = 2000  # sets of smaller domains looked at to make a placement narrower
_PACKED: Final = 16  # of those with room by sums, how many are tried


def weight(pods: tuple[Pods, ...], totals: Ints) -> float:
    """Share of all that is free, of the scarcest resource."""
    return max(
        (
            p.count * int(p.shape.vector[c]) / max(1, int(totals[c]))
            for p in pods
            for c in p.shape.columns
        ),
        default=0.0,
    )


def spot_of(unit: Unit, found: Filled) -> Spot:
    """Node indexes and pods of what :mod:`queuectl.planner.fill` found."""
    positions = np.array([at for at, _ in found[1]], dtype=np.int64)
    return unit.tree.order[positions], np.array([c for _, c in found[1]], dtype=np.int64)


@dataclass(eq=False)
class Together:
    """One unit at one level.

    Attributes:
        free: (R, N).
        capacities: per podset, pods that fit each node and domain by themselves.
        within: nodes it is confined to, None for no bounds.
        order: its podsets, the hardest first.
        packings: tried so far.
    """

    unit: Unit
    level: int
    free: Ints
    capacities: Sequence[Capacity]
    within: Mask | None = None
    order: list[int] = field(init=False)
    packings: int = 0

    def __post_init__(self) -> None:
        totals = np.maximum(self.free, 0).sum(axis=1)
        pods = self.unit.pods
        self.order = sorted(
            range(len(pods)), key=lambda i: -weight((pods[i],), totals) / pods[i].count
        )

    def find(self) -> tuple[Spot, ...] | None:
        """Spots per podset, None when none were found: no proof that there are none."""
        best: _Found | None = None
        compared = 0
        for nodes, least in self._candidates():
            if self.packings >= (_MOST if best is None else _POLISH):
                break
            found = self._packed(nodes, least)
            if found is None:
                continue
            if found[0] > least:
                found = self._in_fewer(nodes, least, found)
            best = found if best is None else min(best, found, key=_width_of)
            compared += 1
            if best[0] <= least or compared == _COMPARED:
                break
        return best[1] if best is not None else None

    def _packed(self, nodes: Ints, least: Width) -> _Found | None:
        """The narrowest of some packings on these nodes: hardest podset first, and last.

        Round a single pod as well, unless one was found already that needs no more than the least; for a few fewer nodes,
        only a few times.
        """
        if self.within is not None:
            nodes = nodes[self.within[nodes]]
        best: _Found | None = None
        saving = 0
        for turn, seat in self._turns(nodes):
            self.packings += 1
            spots = self._pack(turn, nodes, seat)
            if spots is not None:
                found = _width(self.unit, spots), spots
                best = found if best is None else min(best, found, key=_width_of)
            if self._enough(best, least):
                break
            if seat is not None and best is not None and best[0][:-1] <= least[:-1]:
                saving += 1
                if saving == _NODES:
                    break
        return best

    def _enough(self, best: _Found | None, least: Width) -> bool:
        """Whether to look no further."""
        if best is None:
            return self.packings >= _MOST
        return best[0] <= least or self.packings >= _POLISH

    def _in_fewer(self, nodes: Ints, least: Width, found: _Found) -> _Found:
        """The same in fewer domains, level by level from the top, where it packs into fewer."""
        for level in range(self.unit.tree.depth):
            if found[0][level] > least[level]:
                found = self._in_fewer_at(level, nodes, least, found)
        return found

    def _in_fewer_at(self, level: int, nodes: Ints, least: Width, found: _Found) -> _Found:
        domain = self.unit.tree.domain[level][nodes]
        domains = np.unique(domain)
        held = np.stack([capacity.levels[level][domains] for capacity in self.capacities])
        counts = np.array([p.count for p in self.unit.pods])
        for k in range(least[level], found[0][level]):
            for chosen in _roomy(held, counts, k):
                if self.packings >= _POLISH:
                    return found
                narrower = self._packed(nodes[np.isin(domain, domains[chosen])], least)
                if narrower is not None and narrower[0] < found[0]:
                    return narrower
        return found

    def _turns(self, nodes: Ints) -> Iterator[tuple[list[int], int | None]]:
        yield self.order, None
        yield self.order[::-1], None
        yield from self._seats(nodes)

    def _candidates(self) -> Iterator[tuple[Ints, Width]]:
        """Node indexes of the domains that hold each podset by itself, and the least width the unit can have there.

        The narrowest come first, the tightest for the main podset among equals.
        """
        tree, pods = self.unit.tree, self.unit.pods
        level, capacities = self.level, self.capacities
        sums = [capacity.holding(level) for capacity in capacities]
        holds = np.logical_and.reduce([s >= p.count for s, p in zip(sums, pods, strict=True)])
        if level == ANYWHERE:
            if holds.all():
                widths = [
                    c.alone(ANYWHERE, 0, p.count) for c, p in zip(capacities, pods, strict=True)
                ]
                yield tree.order, tuple(map(max, *widths))
            return
        domains = np.flatnonzero(holds)
        if not len(domains):
            return
        low, high = int(domains[0]), int(domains[-1]) + 1
        least = np.maximum.reduce(
            [c.least(level, low, high, p.count) for c, p in zip(capacities, pods, strict=True)]
        )[:, domains - low]
        above = [1] * (level + 1)
        for at in np.lexsort((sums[self.order[0]][domains], *least[::-1]))[:_TRIES].tolist():
            width = (*above, *least[:, at].tolist())
            yield tree.nodes_in(level, int(domains[at])), width

    def _seats(self, nodes: Ints) -> Iterator[tuple[list[int], int | None]]:
        """For a podset of one pod (a leader): the others' order, and columns where it takes least from them.

        Of columns alike in domain and in what they hold, one will do.
        """
        unit, order = self.unit, self.order
        solo = next((i for i in order if unit.pods[i].count == 1), None)
        if solo is None or len(order) < 2:
            return
        turn = [solo, *(i for i in order if i != solo)]
        here = self.free[:, nodes]
        rest = here - unit.pods[solo].shape.vector[:, None]
        rows = [unit.tree.domain[-1][nodes]] if unit.tree.depth else []
        lost = np.zeros(len(nodes), dtype=np.int64)
        for i in turn[1:]:
            before, after = (caps_at(f, unit.pods[i].shape, nodes) for f in (here, rest))
            lost += before - after
            rows += [before, after]
        seats = np.flatnonzero(caps_at(here, unit.pods[solo].shape, nodes))
        _, first = np.unique(np.stack(rows)[:, seats], axis=1, return_index=True)
        kinds = seats[np.sort(first)]
        for column in kinds[np.argsort(lost[kinds], kind="stable")][:_SEATS].tolist():
            yield turn, column

    def _pack(
        self, order: list[int], nodes: Ints, seat: int | None = None
    ) -> tuple[Spot, ...] | None:
        """All podsets of a unit on ``nodes``, one after the other, each beside those before where it can.

        ``seat`` is the column of the first podset's only pod, where that is fixed.
        """
        left = self.free[:, nodes].copy()
        near = np.zeros(len(nodes), dtype=np.bool_)
        placed: dict[int, Spot] = {}
        for number in order:
            pods = self.unit.pods[number]
            fits = caps_at(left, pods.shape, nodes)
            if seat is not None and not placed:
                fits[np.arange(len(nodes)) != seat] = 0
            chosen = _Ground(self.unit, self.level, nodes, fits, pods).near_first(near)
            if chosen is None:
                return None
            at, counts = chosen
            left[:, at] -= np.outer(pods.shape.vector, counts)
            near[at] = True
            placed[number] = (nodes[at], counts)
        return tuple(placed[i] for i in range(len(self.unit.pods)))


def _width_of(found: _Found) -> tuple[int, ...]:
    return found[0]


def _roomy(held: Ints, counts: Ints, k: int) -> Iterator[list[int]]:
    """Sets of k domains that hold each podset by itself, the tightest first; a few of them."""
    if comb(held.shape[1], k) > _SETS:
        return
    sets = np.array(list(combinations(range(held.shape[1]), k)))
    sums = held[:, sets].sum(axis=2)
    holds = np.flatnonzero((sums >= counts[:, None]).all(axis=0))
    tightest = holds[np.argsort(sums[:, holds].sum(axis=0), kind="stable")]
    yield from sets[tightest[:_PACKED]].tolist()


def caps_at(left: Ints, shape: Shape, nodes: Ints) -> Ints:
    """Pods of a shape per column of ``left``, whose columns stand for ``nodes``."""
    return caps(left, shape, eligible=shape.eligible[nodes])


@dataclass(frozen=True, eq=False, slots=True)
class _Ground:
    """Where the pods of one podset may go, beside those of the same unit: columns stand for ``nodes``."""

    unit: Unit
    level: int
    nodes: Ints
    fits: Ints
    pods: Pods

    def near_first(self, near: Mask) -> Spot | None:
        """Place on nodes near those used already, widening level by level until the pods fit."""
        tree = self.unit.tree
        if self.pods.balanced:
            even = self._capacity(self.fits).evenly(self.level, self.pods.count)
            if even is not None:
                return self._spot(even)
        for level in range(tree.depth, ANYWHERE, -1):
            if not near.any():
                break
            close = near
            if level < tree.depth:
                domain = tree.domain[level][self.nodes]
                close = np.isin(domain, np.unique(domain[near]))
            spot = self._beside(near, np.where(close, self.fits, 0))
            if spot is not None:
                return spot
        return self._beside(near, self.fits)

    def _beside(self, near: Mask, fits: Ints) -> Spot | None:
        """By themselves, or filling up the nodes used already first: whichever takes fewer new nodes."""
        alone = self._fill(fits, self.pods.count)
        if alone is None or self.pods.slices or not near.any():
            return alone
        beside = np.flatnonzero(near & (fits > 0))
        rest = self.pods.count - int(fits[beside].sum())
        if rest <= 0 or not len(beside):
            return alone
        added = self._fill(np.where(near, 0, fits), rest)
        if added is None or len(added[0]) >= np.count_nonzero(~near[alone[0]]):
            return alone
        at = np.concatenate([beside, added[0]])
        counts = np.concatenate([fits[beside], added[1]])
        sorted_ = np.argsort(at)
        return at[sorted_], counts[sorted_]

    def _fill(self, fits: Ints, count: int) -> Spot | None:
        if int(fits.sum()) < count:
            return None
        found = self._capacity(fits).anywhere(count)
        return None if found is None else self._spot(found)

    def _capacity(self, fits: Ints) -> Capacity:
        per_node = np.zeros(len(self.unit.tree.position), dtype=np.int64)
        per_node[self.nodes] = fits
        return Capacity(self.unit.tree, per_node, self.pods.slices)

    def _spot(self, found: Filled) -> Spot:
        chosen, counts = spot_of(self.unit, found)
        place = np.zeros(len(self.unit.tree.position), dtype=np.int64)
        place[self.nodes] = np.arange(len(self.nodes))
        return place[chosen], counts


def _width(unit: Unit, spots: tuple[Spot, ...]) -> tuple[int, ...]:
    """Number of domains used at each level, nodes last."""
    nodes = np.unique(np.concatenate([n for n, _ in spots]))
    return (*(len(np.unique(row[nodes])) for row in unit.tree.domain), len(nodes))
