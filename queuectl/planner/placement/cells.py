"""The equivalences of M1: which pods, which nodes and which units need not be told apart.

Nodes are grouped into *cells*: same domains in every tree involved, same eligibility for every shape. Per shape and cell
one variable counts pods; per class of equal units and domain of their required level one variable counts units. Pods of
units asked at different levels flow down the tree together. Where a shape comes in slices, one more variable counts the
whole slices in every domain of their level. Rows of a cell are

- one per resource: requests within what is free (a relaxation of packing), and
- for devices, the bounds of :mod:`queuectl.planner.placement.bounds`; where the sizes form a divisor chain they are sufficient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from queuectl.planner.placement.bounds import LARGEST, bounds
from queuectl.planner.problem.problem import Shape, caps
from queuectl.planner.problem.request import ANYWHERE, Pods, Unit
from queuectl.planner.problem.topology import Ints, Tree

Kind: TypeAlias = tuple[int, int]  # (shape key, tree number)


@dataclass(frozen=True, eq=False, slots=True)
class Class:
    """Equal units: the same podset shapes and counts, tree and required level."""

    tree: int
    level: int  # ANYWHERE when none is required
    pods: tuple[tuple[int, int], ...]  # (kind number, count)
    units: tuple[int, ...]  # numbers of the units


def asked_pods(unit: Unit) -> tuple[Pods, ...]:
    """What the model places for a unit: its pods, or all of them as one where they share a node."""
    return (unit.bundle,) if unit.on_one_node and unit.bundle is not None else unit.pods


@dataclass(eq=False)
class Cells:
    """One joint question over a free matrix, in classes.

    Attributes:
        units: in the order their pods are handed out.
        free: (R, N).
        nodes: the nodes that may be used, None for all that can hold any of the pods.
    """

    units: Sequence[Unit]
    free: Ints
    nodes: Ints | None = None
    trees: list[Tree] = field(default_factory=list)
    kinds: list[tuple[Shape, int]] = field(default_factory=list)
    classes: list[Class] = field(default_factory=list)

    request: list[int] = field(default_factory=list)  # pods per kind

    def __post_init__(self) -> None:
        self._classify()
        self._group()

    def _classify(self) -> None:
        numbers: dict[Kind, int] = {}
        groups: dict[tuple[int, int, tuple[tuple[int, int], ...]], list[int]] = {}
        for number, unit in enumerate(self.units):
            tree = self._tree(unit.tree)
            pods = []
            for p in asked_pods(unit):
                kind = (p.shape.key, tree)
                if kind not in numbers:
                    numbers[kind] = len(self.kinds)
                    self.kinds.append((p.shape, tree))
                pods.append((numbers[kind], p.count))
            level = ANYWHERE if unit.on_one_node else unit.required
            groups.setdefault((tree, level, tuple(pods)), []).append(number)
        self.classes = [Class(*key, tuple(units)) for key, units in groups.items()]
        self.request = [0] * len(self.kinds)
        for c in self.classes:
            for number, count in c.pods:
                self.request[number] += count * len(c.units)

    def _tree(self, tree: Tree) -> int:
        for number, known in enumerate(self.trees):
            if known is tree:
                return number
        self.trees.append(tree)
        return len(self.trees) - 1

    def _group(self) -> None:
        """Group useful nodes; ``members[c]`` are node indexes, ``fits[k, c]`` pods of kind k by floor sums."""
        by_shape = {s.key: s for s, _ in self.kinds}
        if self.nodes is None:
            per_shape = {key: caps(self.free, s) for key, s in by_shape.items()}
            useful = np.flatnonzero(np.any(np.stack(list(per_shape.values())), axis=0))
            per_shape = {key: row[useful] for key, row in per_shape.items()}
        else:
            useful = self.nodes
            per_shape = {key: caps(self.free, s, useful) for key, s in by_shape.items()}
        columns = [t.domain[-1][useful] for t in self.trees if t.depth]
        columns += [s.eligible[useful].astype(np.int64) for s in by_shape.values()]
        label = _labels(columns, len(useful))
        by_cell = np.argsort(label, kind="stable")
        self._starts = np.flatnonzero(np.diff(label[by_cell], prepend=-1))
        ordered = useful[by_cell]
        self.members = np.split(ordered, self._starts[1:]) if len(ordered) else []
        self._first = ordered[self._starts]
        self._cell_of: dict[int, int] = dict(
            zip(ordered.tolist(), label[by_cell].tolist(), strict=True)
        )
        self.fits = np.zeros((len(self.kinds), len(self.members)), dtype=np.int64)
        for number, (shape, _) in enumerate(self.kinds):
            if len(ordered):
                self.fits[number] = np.add.reduceat(per_shape[shape.key][by_cell], self._starts)
        self._there = np.maximum(self.free[:, ordered], 0)

    def domain_of_cells(self, tree: int, level: int) -> Ints:
        """Domain of each cell at a level (0 for the root); cells invisible in the tree have -1."""
        if level == ANYWHERE:
            return np.where(self.trees[tree].position[self._first] < len(self.free[0]), 0, -1)
        return self.trees[tree].domain[level][self._first]

    def cell_of(self, node: int) -> int:
        return self._cell_of[node]

    def limits(self, *, tight: bool = True) -> tuple[Ints, Ints]:
        """Rows valid in every cell: a coefficient per kind, (rows, kinds), and a limit per cell, (rows, cells).

        Args:
            tight: with the bounds of :mod:`queuectl.planner.placement.bounds`; the plain sums alone otherwise.
        """
        vectors = np.stack([shape.vector for shape, _ in self.kinds])
        columns = np.flatnonzero(vectors.any(axis=0))
        coeffs, there = [vectors[:, columns].T], [self._there[columns]]
        for column in columns.tolist() if tight and self.members else ():
            asked, free = vectors[:, column], self._there[column]
            if np.count_nonzero(asked) > 1 and int(free.max()) <= LARGEST:
                sizes = tuple(sorted({0, *asked.tolist()}))
                weights, most = bounds(sizes, int(free.max()))
                coeffs.append(weights[:, np.searchsorted(sizes, asked)])
                there.append(most[:, free])
        rows = np.concatenate(there)
        limits = np.add.reduceat(rows, self._starts, axis=1) if self.members else rows[:, :0]
        return np.concatenate(coeffs), limits


def _labels(columns: list[Ints], size: int) -> Ints:
    """Number equal rows of the columns alike, in lexicographic order of the rows."""
    label = np.zeros(size, dtype=np.int64)
    for column in columns:
        low = column.min() if size else 0
        width = (column.max() - low + 1) if size else 1
        if width > 1:
            _, label = np.unique(label * width + (column - low), return_inverse=True)
    return label.reshape(-1)
