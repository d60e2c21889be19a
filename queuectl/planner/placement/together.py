"""Several podsets in one domain: greedy packings, compared by how many domains they use.

Finding none is no proof. The narrowest domains are tried first, by what each podset needs of them alone; podsets are packed
one beside the other, the hardest first or last, or round a leader's seat; at last in fewer of the domains below.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, islice
from math import comb
from typing import Final

import numpy as np

from queuectl.planner.placement.bounds import LARGEST, nodes_needed, usable
from queuectl.planner.placement.counts import Counts
from queuectl.planner.placement.fewest import needed
from queuectl.planner.placement.site import Packed, Site, Spot, Width
from queuectl.planner.problem.request import ANYWHERE, Pods, Unit
from queuectl.planner.problem.topology import Ints, Mask

_TRIES: Final = 48  # domains tried for a unit of several podsets before the solver is asked
_MOST: Final = 64  # packings in all of them, until one is found
_POLISH: Final = 24  # packings, once one is found
_COMPARED: Final = 2  # of those that hold it, how many are compared
_SEATS: Final = 12  # places tried for a single pod
_NODES: Final = 6  # of those, where no more than nodes can be saved
_SETS: Final = 2000  # sets of smaller domains looked at to make a placement narrower
_PACKED: Final = 16  # of those with room by sums, how many are tried


def weight(pods: tuple[Pods, ...], totals: Mapping[int, int]) -> float:
    """Share of all that is free, of the scarcest resource; ``totals``: what is free of each resource asked."""
    return max(
        (
            p.count * int(p.shape.vector[c]) / max(1, totals[c])
            for p in pods
            for c in p.shape.columns
        ),
        default=0.0,
    )


class Together:
    """One unit at one level: the search among packings.

    Attributes:
        unit: its podsets.
        site: the nodes that hold any of its pods.
        order: its podsets, the hardest first.
        packings: tried so far.
    """

    def __init__(self, unit: Unit, level: int, free: Ints, fits: Sequence[Ints]) -> None:
        """See the class; ``fits``: per podset, pods that fit each node of ``free`` (R, N) by themselves."""
        useful = np.logical_or.reduce([f > 0 for f in fits])
        nodes = unit.tree.order[useful[unit.tree.order]]
        self.unit = unit
        self.site = Site(
            unit, level, nodes, unit.tree.within(nodes), free[:, nodes], [f[nodes] for f in fits]
        )
        totals = dict(enumerate(np.maximum(self.site.free, 0).sum(axis=1).tolist()))
        pods = unit.pods
        self.order = sorted(
            range(len(pods)), key=lambda i: -weight((pods[i],), totals) / pods[i].count
        )
        self.packings = 0

    def find(self) -> tuple[Spot, ...] | None:
        """Spots per podset, None when none were found: no proof that there are none."""
        best: Packed | None = None
        compared = 0
        for site, least in self._candidates():
            if self.packings >= (_MOST if best is None else _POLISH):
                break
            found = self._packed(site, least)
            if found is not None and found[0] > least:
                found = self._in_fewer(site, least, found)
            if found is None or found[0] > least:
                found = self._seated(site, least, found)
            if found is None:
                continue
            best = found if best is None else min(best, found, key=_width_of)
            compared += 1
            if best[0] <= least or compared == _COMPARED:
                break
        return best[1] if best is not None else None

    def _packed(self, site: Site, least: Width) -> Packed | None:
        """The narrower of two packings on a site: hardest podset first, and last."""
        best: Packed | None = None
        for turn in (self.order, self.order[::-1]):
            best = self._better(best, site.pack(turn))
            if self._enough(best, least):
                break
        return best

    def _seated(self, site: Site, least: Width, best: Packed | None) -> Packed | None:
        """The narrowest packing round a podset of one pod (a leader); for a few fewer nodes, only a few tries."""
        solo = next((i for i in self.order if self.unit.pods[i].count == 1), None)
        if solo is None:
            return best
        turn = [solo, *(i for i in self.order if i != solo)]
        saving = 0
        for seat in islice(site.seats(turn), _SEATS):
            if self._enough(best, least) or saving == _NODES:
                break
            best = self._better(best, site.pack(turn, seat))
            if best is not None and best[0][:-1] <= least[:-1]:
                saving += 1
        return best

    def _better(self, best: Packed | None, other: Packed | None) -> Packed | None:
        self.packings += 1
        if best is None or other is None:
            return best or other
        return min(best, other, key=_width_of)

    def _enough(self, best: Packed | None, least: Width) -> bool:
        """Whether to look no further."""
        if best is None:
            return self.packings >= _MOST
        return best[0] <= least or self.packings >= _POLISH

    def _in_fewer(self, site: Site, least: Width, found: Packed) -> Packed:
        """The same in fewer domains, level by level from the top, where it packs into fewer."""
        for level in range(self.unit.tree.depth):
            if found[0][level] > least[level]:
                found = self._in_fewer_at(level, site, least, found)
        return found

    def _in_fewer_at(self, level: int, site: Site, least: Width, found: Packed) -> Packed:
        loads = _Loads(site)
        for k in range(least[level], found[0][level]):
            for chosen in _roomy(loads.held(level), loads.asked, k):
                if self.packings >= _POLISH:
                    return found
                inside = np.zeros(len(site.tree.starts[level]), dtype=np.bool_)
                inside[chosen] = True
                columns = inside[site.tree.domain[level]].nonzero()[0]
                if len(columns) < least[-1]:
                    continue
                narrower = self._packed(site.within(columns), least)
                if narrower is not None and narrower[0] < found[0]:
                    return narrower
        return found

    def _candidates(self) -> Iterator[tuple[Site, Width]]:
        """The domains that may hold all podsets, and the least width the unit can have there.

        The narrowest come first, the tightest for the main podset among equals.
        """
        site, level = self.site, self.site.level
        loads = _Loads(site)
        holds: Mask = np.all(loads.held(level) >= loads.asked[:, None], axis=0)
        if not holds.all() and holds.any():
            site = site.within(holds[site.tree.domain[level]].nonzero()[0])
            loads = _Loads(site)
        if not holds.any():
            return
        least, sizes = loads.least(), loads.sizes
        above = (1,) * (level + 1)
        main = loads.held(level)[self.order[0]]
        for at in np.lexsort((main, *least[::-1]))[:_TRIES].tolist():
            if least[-1, at] <= sizes[at]:
                inside = (site.tree.domain[level] == at).nonzero()[0] if level != ANYWHERE else None
                here = site if inside is None else site.within(inside)
                yield here, (*above, *least[:, at].tolist())


class _Loads:
    """What the nodes of a site hold and how much of it the unit asks: lower bounds of the domains it needs.

    Each podset by itself, and the scarcest resource of all of them; of devices, a node holds no more than pods of these
    sizes can use there.
    """

    def __init__(self, site: Site) -> None:
        self.site = site
        pods = site.unit.pods
        there = np.maximum(site.free, 0)
        asked = np.sum([p.count * p.shape.vector for p in pods], axis=0)
        column = int((asked / np.maximum(there.sum(axis=1), 1)).argmax())
        self._free, self._sizes = there[column], [int(p.shape.vector[column]) for p in pods]
        self._largest = int(self._free.max(initial=0))
        used = self._free
        if self._largest <= LARGEST:
            sizes = tuple(sorted({*self._sizes} - {0}))
            used = usable(sizes, self._largest)[used]
        self._counts = [*site.capacities, Counts(site.tree, used)]
        self.asked = np.array([*(p.count for p in pods), asked[column]])

    def held(self, level: int) -> Ints:
        """By the domains of a level: (podsets + 1, domains)."""
        return np.stack([counts.holding(level) for counts in self._counts])

    @property
    def _starts(self) -> Ints:
        """Where each domain of the unit's level begins."""
        level = self.site.level
        return np.zeros(1, dtype=np.int64) if level == ANYWHERE else self.site.tree.starts[level]

    @property
    def sizes(self) -> Ints:
        """Nodes of each domain of the unit's level."""
        return np.diff(self._starts, append=len(self.site.nodes))

    def least(self) -> Ints:
        """Lower bounds of the numbers of domains below each domain of the unit's level: (levels below, domains)."""
        level, size, loads = self.site.level, len(self._starts), len(self._counts)
        tree, rows = self.site.tree, []
        of_load = size * np.arange(loads)[:, None]
        asked = np.repeat(self.asked, size)
        for below in range(level + 1, tree.depth + 1):
            sizes = np.stack([counts.levels[below] for counts in self._counts])
            owner = np.zeros(sizes.shape[1], dtype=np.int64)
            if level != ANYWHERE:
                first = tree.order if below == tree.depth else tree.starts[below]
                owner = tree.domain[level][first]
            alone = needed(sizes.ravel(), (owner + of_load).ravel(), size * loads, asked)
            rows.append(alone.reshape(loads, size).max(axis=0))
        if self._largest <= LARGEST:
            rows[-1] = np.maximum(rows[-1], self._nodes(size))
        return np.array(rows)

    def _nodes(self, size: int) -> Ints:
        """By the devices of all pods together: :func:`queuectl.planner.placement.bounds.nodes_needed`."""
        width = self._largest + 1
        owner = np.repeat(np.arange(size), self.sizes)
        nodes = np.bincount(owner * width + self._free, minlength=size * width)
        pods: dict[int, int] = {}
        for devices, p in zip(self._sizes, self.site.unit.pods, strict=True):
            pods[devices] = pods.get(devices, 0) + p.count
        return nodes_needed(pods, nodes.reshape(size, width))


def _width_of(found: Packed) -> Width:
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
