"""Where several podsets may fit together: nodes, domains and sets of domains with room for all of them by sums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from queuectl.planner.model.counts import ShapeCounts
from queuectl.planner.problem.request import ANYWHERE, ShapePods
from queuectl.planner.problem.topology import Ints, Mask, Tree

Floats: TypeAlias = NDArray[np.float64]

_DOMAINS: Final = 48  # tried of the level that all must share
_FINER: Final = 3  # tried of each finer level


def regions(
    tree: Tree, level: int, pods: Sequence[ShapePods], fits: Sequence[Ints], free: Ints
) -> Iterator[Mask | None]:
    """Nodes on which all these pods may fit together, the narrowest first.

    Single nodes, and single domains from the finest level up to ``level``; in each domain of ``level``, its few richest domains
    of the finest level before the whole of it.

    Args:
        tree: of all of them.
        level: of the domain that all must share; ANYWHERE = all nodes, as None.
        pods: podsets.
        fits: per podset, pods that fit each node by themselves.
        free: (R, n).
    """
    loads = _Loads(tree, pods, fits, free)
    for finer in range(tree.depth, level, -1):
        for domain in loads.candidate_domains(finer)[:_FINER].tolist():
            yield tree.position == domain if finer == tree.depth else tree.domain[finer] == domain
    for domain in loads.candidate_domains(level)[:_DOMAINS].tolist():
        mask = None if level == ANYWHERE else tree.domain[level] == domain
        if level < tree.depth - 1:
            yield loads.richest(mask)
        yield mask


@dataclass(eq=False)
class _Loads:
    """How many of some podsets the domains of a tree can hold, each alone, and how much of each resource they ask, all together."""

    tree: Tree
    pods: Sequence[ShapePods]
    fits: Sequence[Ints]
    free: Ints

    @cached_property
    def _counts(self) -> list[ShapeCounts]:
        counts = [
            ShapeCounts(self.tree, fits, p.slices)
            for fits, p in zip(self.fits, self.pods, strict=True)
        ]
        usable = np.logical_or.reduce([fits > 0 for fits in self.fits])
        there = np.where(usable, np.maximum(self.free, 0), 0)
        return [*counts, *(ShapeCounts(self.tree, there[c]) for c in self._columns)]

    @cached_property
    def _columns(self) -> list[int]:
        return sorted({column for p in self.pods for column in p.shape.columns})

    @cached_property
    def _asked(self) -> Ints:
        vectors = np.stack([p.shape.vector[self._columns] for p in self.pods], axis=1)
        counts = np.array([p.count for p in self.pods])
        return np.concatenate([counts, vectors @ counts])

    def _held(self, level: int) -> Ints:
        """The loads of each domain of a level, (loads, domains)."""
        return np.stack([each.holding(level) for each in self._counts])

    def candidate_domains(self, level: int) -> Ints:
        """Domains of a level with room by sums: where the podsets need the fewest domains below, the tightest first.

        Domains come later in which pods cannot leave the nodes that they avoid. The remaining capacity is compared from the top level
        down, so that large free domains stay whole.
        """
        held = self._held(level)
        some = np.flatnonzero((held >= self._asked[:, None]).all(axis=0))
        if len(some) < 2:
            return some
        tree = self.tree
        first = tree.order[some if level == tree.depth else tree.starts[level][some]]
        left = [self._share(above).sum(axis=0)[tree.domain[above][first]] for above in range(level)]
        left.append(self._share(level).sum(axis=0)[some])
        left.insert(0, self._spoils(level)[some])
        if level == tree.depth:
            return some[np.lexsort(left[::-1])]
        alone = zip(self._counts, self.pods, strict=False)
        least = np.max([c.least(level, 0, held.shape[1], p.count) for c, p in alone], axis=0)
        return some[np.lexsort((*left[::-1], *least[::-1, some]))]

    def _spoils(self, level: int) -> Floats:
        """Of each domain, the podsets that its nodes without those that they avoid do not hold."""
        spoils = np.zeros(len(self._held(level)[0]))
        for fits, p in zip(self.fits, self.pods, strict=True):
            if p.shape.spared is not None:
                rest = np.where(p.shape.spared.avoided[-1], 0, fits)
                spoils += ShapeCounts(self.tree, rest, p.slices).holding(level) < p.count
        return spoils

    def _share(self, level: int) -> Floats:
        """The same as shares of what is asked."""
        share: Floats = self._held(level) / self._asked[:, None]
        return share

    def richest(self, mask: Mask | None) -> Mask | None:
        """The fewest domains of the finest level inside some nodes that hold all by sums, as far as the richest do."""
        level = self.tree.depth - 1
        held, share = self._held(level), self._share(level)
        if mask is not None:
            inside = mask[self.tree.order[self.tree.starts[level]]]
            held, share = held * inside, share * inside
        richest = np.lexsort((-share.sum(axis=0), -share.min(axis=0)))
        enough = (held[:, richest].cumsum(axis=1) >= self._asked[:, None]).all(axis=0)
        if not enough.any():
            return mask
        few: Mask = np.isin(self.tree.domain[level], richest[: int(enough.argmax()) + 1])
        return few if mask is None else few & mask
