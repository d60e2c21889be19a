"""How much of a podset group fits its best domain by sums of free capacity, and what its nodes lack."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from queuectl.domain.words import counted, is_or_are
from queuectl.planner.capacity.state import CycleState
from queuectl.planner.placement.single import ShapeCapacity
from queuectl.planner.problem.problem import COMMON, caps
from queuectl.planner.problem.request import ANYWHERE, PodSetGroup, ShapePods
from queuectl.planner.problem.topology import Ints
from queuectl.planner.reasons.lacks import Lack, in_words, lacks_of
from queuectl.planner.reasons.words import (
    amount,
    is_row,
    joined,
    kind_of,
    level_of,
    no_placement,
    plain,
    slices_of,
    where,
)


@dataclass(frozen=True, slots=True)
class LargestFit:
    """How much of a podset group the best domain can hold.

    Attributes:
        domain: the best one at the podset group's level; -1 without a level, or if no domain can hold any pod.
        fits: how many of each kind of pods it can hold, each kind alone.
        nodes: number of nodes that are eligible for the first pods.
        free: amount of the scarcest resource of the first pods, on all nodes that are eligible for them.
        lacks: what the nodes of the best domain, or all if there is none, lack for the first pods that do not fit.
        missing: requested resources that no node offers.
    """

    podset_group: PodSetGroup
    items: tuple[ShapePods, ...]
    domain: int
    fits: tuple[int, ...]
    nodes: int
    free: int
    lacks: tuple[Lack, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def short(self) -> bool:
        """Whether these sums alone prove that the podset group does not fit."""
        return any(n < p.count for n, p in zip(self.fits, self.items, strict=True))

    @property
    def name(self) -> str:
        """Of the best domain."""
        return self.podset_group.tree.names[self.podset_group.required][self.domain][-1]

    @property
    def sentence(self) -> str:
        """The missing room, and how much the best domain has."""
        if not self.short:
            return no_placement([self.podset_group])
        return f"{self.needed}; {self.at_most}"

    @property
    def needed(self) -> str:
        """``room for 2 more pods x 8 nvidia.com/gpu is needed in one rack``."""
        if self.podset_group.on_one_node:
            pods = " and ".join(
                f"{counted(p.total, 'pod')} {kind_of(p, self._short)}"
                for p in self.podset_group.pods
            )
            return f"one node with room for {pods} is needed"
        parts = [
            f"{_more((p.count - n) * p.size, n)} {kind_of(p, self._short)}{slices_of(self.podset_group, p)}"
            for n, p in zip(self.fits, self.items, strict=True)
            if n < p.count
        ]
        return f"room for {' and '.join(parts)} is needed{where(self.podset_group)}"

    @property
    def _short(self) -> frozenset[str]:
        return frozenset(name for lack in self.lacks for name in lack.names)

    @property
    def at_most(self) -> str:
        """``at most 6 of 8 fit (rack-3), where 1 node lacks cpu (2 free; team/a holds 94 of 96)``."""
        if self.missing:
            return f"no node offers {joined(self.missing)}"
        if not self.lacks:
            return self._most
        return f"{self._most}{', where' if self.domain >= 0 else ':'} {in_words(self.lacks)}"

    @property
    def _most(self) -> str:
        nodes = counted(self.nodes, "eligible node")
        if self.podset_group.on_one_node:
            return f"none of {nodes} has it" if self.nodes else "no node is eligible"
        if self.podset_group.required == ANYWHERE:
            if not self.nodes:
                return "no node is eligible"
            return f"{self._held} on {nodes}"
        level = level_of(self.podset_group)
        if self.domain < 0:
            return f"no {level} has {'room for any of them' if self.nodes else 'an eligible node'}"
        return f"{self._held} ({self.name})"

    @property
    def _held(self) -> str:
        pairs = [
            (min(n, p.count) * p.size, f"{min(n, p.count) * p.size} of {p.total}")
            for n, p in zip(self.fits, self.items, strict=True)
        ]
        whole = " in whole slices" if any(p.slices or p.size > 1 for p in self.items) else ""
        if len(pairs) > 1:
            parts = [
                f"{text} {kind_of(p, self._short)}"
                for (_, text), p in zip(pairs, self.items, strict=True)
            ]
            return f"at most {' and '.join(parts)} fit{whole}"
        ((number, text),) = pairs
        if not number:
            return f"none fits{whole}"
        return f"at most {text} {'fits' if number == 1 else 'fit'}{whole}"

    @property
    def free_in_all(self) -> str:
        """``; 96 nvidia.com/gpu are free in total``, on all eligible nodes; empty where the best domain lacks something else."""
        name = scarcest(self.podset_group.pods[0])
        if name is None or self.domain < 0 or (self.lacks and name not in self.lacks[0].names):
            return ""
        return f"; {amount(name, self.free)} {is_or_are(name, self.free)} free in total"

    @property
    def details(self) -> dict[str, Any]:
        """The numbers as plain JSON values."""
        details = plain(self.podset_group)
        details["fits"] = [n * p.size for n, p in zip(self.fits, self.items, strict=True)]
        if self.lacks:
            details["limits"] = [lack.details for lack in self.lacks]
        if (
            not self.podset_group.on_one_node
            and self.podset_group.required != ANYWHERE
            and self.domain >= 0
        ):
            details["domain"] = list(
                self.podset_group.tree.names[self.podset_group.required][self.domain]
            )
        return details


def _more(missing: int, fits: int) -> str:
    """``2 more pods``, or ``8 pods`` if none of them fits."""
    return counted(missing, "more pod" if fits else "pod")


def largest_fit(
    podset_group: PodSetGroup, free: Ints, state: CycleState | None = None
) -> LargestFit:
    """The room that a podset group has on a free matrix (R, N); with ``state``, what its nodes lack as well."""
    fit = _by_sums(podset_group, free)
    if state is None or not fit.short:
        return fit
    column = state.problem.index.column
    asked = {name for p in fit.items for name in p.shape.requests if name not in column}
    if asked and state.problem.size:
        return replace(fit, missing=tuple(sorted(name for name in asked if not is_row(name))))
    pods = next(p for n, p in zip(fit.fits, fit.items, strict=True) if n < p.count)
    tree = podset_group.tree
    nodes = tree.order if fit.domain < 0 else tree.nodes_in(podset_group.required, fit.domain)
    lacks = lacks_of(state, pods, nodes[pods.shape.eligible[nodes]], free)
    if any(lack.further and lack.names[0] == scarcest(pods) for lack in lacks):
        lacks = ()  # the numbers of pods that fit say it already
    return replace(fit, lacks=lacks)


def _by_sums(podset_group: PodSetGroup, free: Ints) -> LargestFit:
    items = podset_group.items
    per_node = [caps(free, p.shape) for p in items]
    eligible = items[0].shape.eligible
    nodes, left = int(np.count_nonzero(eligible)), 0
    if podset_group.pods[0].shape.columns:
        column = podset_group.pods[0].shape.columns[0]
        left = int(np.maximum(free[column], 0)[podset_group.pods[0].shape.eligible].sum())
    level = ANYWHERE if podset_group.on_one_node else podset_group.required
    held = [
        ShapeCapacity(podset_group.tree, row, p.slices).holding(level)
        for row, p in zip(per_node, items, strict=True)
    ]
    if level == ANYWHERE:
        return LargestFit(
            podset_group, items, -1, tuple(int(row.sum()) for row in held), nodes, left
        )
    sums = np.stack(held)
    if not sums.shape[1] or not sums.any():
        return LargestFit(podset_group, items, -1, (0,) * len(items), nodes, left)
    counts = np.array([p.count for p in items], dtype=np.int64)[:, None]
    share = (np.minimum(sums, counts) / counts).min(axis=0)
    best = int(np.lexsort((-sums.sum(axis=0), -share))[0])
    return LargestFit(podset_group, items, best, tuple(int(n) for n in sums[:, best]), nodes, left)


def scarcest(pods: ShapePods) -> str | None:
    """The resource that is likely short for these pods: their first device, else their first resource; None if no node has it."""
    if not pods.shape.columns:
        return None
    return min(pods.shape.requests, key=lambda name: (name in COMMON, name))
