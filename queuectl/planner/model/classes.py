"""Classes of equal things for a model: pods, groups of podsets, nodes.

- A *pod class* is a shape in one topology.
- A *group class* is a number of equal podset groups: the same pod classes and counts, topology and required level.
- A *node class* holds nodes with the same domains in every topology involved and the same eligibility for every shape. Marks of the
  caller divide them further, for example by the gangs that may leave them.

Rows of a node class are one per resource, requests within what is free (a relaxation of packing), and for devices the bounds of
:mod:`queuectl.planner.model.counts`; where the sizes form a divisor chain they are sufficient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np

from queuectl.planner.model.counts import LARGEST, ShapeCounts, bounds
from queuectl.planner.problem.fleet import Ints, Tree
from queuectl.planner.problem.problem import Shape, caps
from queuectl.planner.problem.request import ANYWHERE, PodSetGroup

PodClass: TypeAlias = tuple[Shape, int]  # shape, tree number


@dataclass(frozen=True, eq=False, slots=True)
class GroupClass:
    """Equal podset groups.

    Attributes:
        tree: number of their topology.
        level: index of the domain that the pods of each share; ANYWHERE when they need not share one.
        pods: of each podset group, (number of the pod class, count).
        only: the one domain of ``level`` that they may use; ANYWHERE: any.
        podset_groups: their numbers.
    """

    tree: int
    level: int
    pods: tuple[tuple[int, int], ...]
    only: int
    podset_groups: tuple[int, ...]

    def count(self, pod_class: int) -> int:
        """Pods of a class in each podset group."""
        return sum(count for number, count in self.pods if number == pod_class)


class NodeLimits(NamedTuple):
    """Rows that hold in every node class.

    Attributes:
        coeffs: of each pod class, (rows, pod classes).
        most: (rows, node classes).
        columns: the resource of which a row is the plain sum; -1 for a bound. Shape (rows,).
    """

    coeffs: Ints
    most: Ints
    columns: Ints


@dataclass(eq=False)
class PlacementClasses:
    """PodSet groups to be placed together on a free matrix, in classes.

    Attributes:
        podset_groups: in the order their pods are handed out.
        free: (R, N).
        nodes: the usable nodes; None for all that can hold any of the pods.
        emptied: (R, N) free once all gangs have left that may leave; None: none may.
        marks: nodes with different numbers are of different classes; None: all have the same. Shape (N,).
        only: podset group to the one domain of its required level that it may use.
        members: per node class, node indexes.
        fits: pods of each class that fit each node class, (pod classes, node classes).
        demand: pods of each class in all.
    """

    podset_groups: Sequence[PodSetGroup]
    free: Ints
    nodes: Ints | None = None
    emptied: Ints | None = None
    marks: Ints | None = None
    only: Mapping[int, int] = field(default_factory=dict)
    trees: list[Tree] = field(default_factory=list, init=False)
    pods: list[PodClass] = field(default_factory=list, init=False)
    groups: list[GroupClass] = field(default_factory=list, init=False)
    demand: list[int] = field(default_factory=list, init=False)
    members: list[Ints] = field(init=False)
    fits: Ints = field(init=False)

    def __post_init__(self) -> None:
        self._classify_podset_groups()
        self._group_nodes()

    def _classify_podset_groups(self) -> None:
        numbers: dict[tuple[int, int], int] = {}
        alike: dict[tuple[int, int, tuple[tuple[int, int], ...], int], list[int]] = {}
        for number, podset_group in enumerate(self.podset_groups):
            tree = self._tree(podset_group.tree)
            pods = []
            for p in podset_group.to_place:
                key = (p.shape.key, tree)
                if key not in numbers:
                    numbers[key] = len(self.pods)
                    self.pods.append((p.shape, tree))
                pods.append((numbers[key], p.count))
            level = ANYWHERE if podset_group.on_one_node else podset_group.required
            only = self.only.get(number, ANYWHERE)
            alike.setdefault((tree, level, tuple(pods), only), []).append(number)
        self.groups = [
            GroupClass(*key, tuple(podset_groups)) for key, podset_groups in alike.items()
        ]
        self.demand = [
            sum(group.count(number) * len(group.podset_groups) for group in self.groups)
            for number in range(len(self.pods))
        ]

    def _tree(self, tree: Tree) -> int:
        for number, known in enumerate(self.trees):
            if known is tree:
                return number
        self.trees.append(tree)
        return len(self.trees) - 1

    def _group_nodes(self) -> None:
        room = self.free if self.emptied is None else self.emptied
        shapes = {shape.key: shape for shape, _ in self.pods}
        if self.nodes is None:
            self._per_node = {key: caps(room, shape) for key, shape in shapes.items()}
            useful = np.flatnonzero(np.any(np.stack(list(self._per_node.values())), axis=0))
            per_useful = {key: row[useful] for key, row in self._per_node.items()}
        else:
            useful = self.nodes
            per_useful = {key: caps(room, shape, useful) for key, shape in shapes.items()}
            self._per_node = {key: np.zeros(room.shape[1], np.int64) for key in shapes}
            for key, row in per_useful.items():
                self._per_node[key][useful] = row
        columns = [t.domain[level][useful] for level, t in self._levels()]
        columns += [shape.eligible[useful].astype(np.int64) for shape in shapes.values()]
        if self.marks is not None:
            columns.append(self.marks[useful])
        label = labels_of(columns, len(useful))
        by_class = np.argsort(label, kind="stable")
        self._starts = np.flatnonzero(np.diff(label[by_class], prepend=-1))
        ordered = useful[by_class]
        self.members = np.split(ordered, self._starts[1:]) if len(ordered) else []
        self._first = ordered[self._starts]
        self._class_of: dict[int, int] = dict(
            zip(ordered.tolist(), label[by_class].tolist(), strict=True)
        )
        self.fits = np.zeros((len(self.pods), len(self.members)), dtype=np.int64)
        for number, (shape, _) in enumerate(self.pods):
            if len(ordered):
                row = per_useful[shape.key][by_class]
                self.fits[number] = np.add.reduceat(row, self._starts)
        self._there = np.maximum(self.free[:, ordered], 0)

    def _levels(self) -> Iterator[tuple[int, Tree]]:
        """Per topology, the level whose domains classes keep apart: with marks the finest that is asked for, otherwise the finest."""
        for number, tree in enumerate(self.trees):
            asked = [group.level for group in self.groups if group.tree == number]
            asked += [level for shape, of in self.pods if of == number for level, _ in shape.slices]
            level = tree.depth - 1 if self.marks is None else max(asked)
            if level >= 0:
                yield level, tree

    def add(self, shape: Shape, most: Ints) -> int:
        """One more pod class, of which no podset group asks for any; ``most``: pods per node class. Its number is returned."""
        self.pods.append((shape, 0))
        self.demand.append(int(most.sum()))
        self.fits = np.vstack([self.fits, most])
        return len(self.pods) - 1

    def domains(self, tree: int, level: int) -> Ints:
        """Domain of each node class at a level (0 for the root); -1 for those that are invisible in the tree."""
        if level == ANYWHERE:
            return np.where(self.trees[tree].position[self._first] < len(self.free[0]), 0, -1)
        return self.trees[tree].domain[level][self._first]

    def class_of(self, node: int) -> int | None:
        """The class of a node; None where none of the pods fits."""
        return self._class_of.get(node)

    @cached_property
    def _counts(self) -> dict[int, ShapeCounts]:
        return {}

    def holding(self, pod_class: int, level: int) -> Ints:
        """Pods of a class that each domain of a level holds by themselves, in whole slices."""
        if pod_class not in self._counts:
            shape, tree = self.pods[pod_class]
            counts = ShapeCounts(self.trees[tree], self._per_node[shape.key], shape.slices)
            self._counts[pod_class] = counts
        return self._counts[pod_class].holding(level)

    def limits(self, *, tight: bool = True) -> NodeLimits:
        """Rows valid in every node class; ``tight``: with the bounds of :mod:`queuectl.planner.model.counts`."""
        vectors = np.stack([shape.vector for shape, _ in self.pods])
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
        of_rows = np.concatenate([columns, np.full(len(rows) - len(columns), -1)])
        return NodeLimits(np.concatenate(coeffs), limits, of_rows)


def labels_of(columns: list[Ints], size: int) -> Ints:
    """Number equal rows of the columns alike, in lexicographic order of the rows."""
    label = np.zeros(size, dtype=np.int64)
    for column in columns:
        low = column.min() if size else 0
        width = (column.max() - low + 1) if size else 1
        if width > 1:
            _, label = np.unique(label * width + (column - low), return_inverse=True)
    return label.reshape(-1)
