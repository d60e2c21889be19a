"""The model of consolidation: gangs that start anyway, placed so that less is scattered and more is left whole.

The model builder over bundles, with three additions. A podset group in several racks gets a variable per rack, and per coarser domain,
which is 1 if the rack is used. Whole free nodes to be kept are pods of one more class that no podset group asks for: they take part in
every capacity row. And a whole free rack is kept if all its nodes are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from queuectl.domain.fleet import NodeRules
from queuectl.domain.quantity import NOTHING
from queuectl.planner.capacity.node_counts import NodeCounts
from queuectl.planner.model.builder import Layer, ModelBuilder
from queuectl.planner.model.classes import GroupClass, PlacementClasses
from queuectl.planner.model.readback import values_of
from queuectl.planner.placement.measure import (
    PlacedPodSetGroup,
    Wholes,
    device_columns,
    devices,
    domain_counts,
)
from queuectl.planner.placement.several import levels_to_try
from queuectl.planner.problem.problem import Problem, Shape
from queuectl.planner.problem.request import ANYWHERE, PodSetGroup, ShapePods, as_one_pod
from queuectl.planner.problem.topology import Ints, Mask, Tree
from queuectl.planner.solver.solver import Model

_WHOLE_KEYS: Final = 1 << 50  # shape keys of whole nodes, apart from all others
_SORTS: Final = 4  # sorts of whole nodes, the most frequent first


class UsedVariable(NamedTuple):
    """A variable that is 1 when any of ``pods`` is above 0."""

    variable: int
    pods: list[int]


@dataclass(eq=False)
class ConsolidationModel:
    """The model of some podset groups on some nodes of a free matrix, hinted with where they are.

    Attributes:
        free: (R, N) without any of the podset groups.
        nodes: indexes of the nodes they may use.
    """

    podset_groups: Sequence[Bundles]
    free: Ints
    nodes: Ints
    wholes: Wholes
    built: ModelBuilder = field(init=False)
    layers: list[Layer] = field(default_factory=list)
    _sorts: list[int] = field(default_factory=list)  # pod classes of whole nodes
    _racks: list[tuple[int, list[int], int]] = field(default_factory=list)  # kept, nodes, size
    _uses: list[UsedVariable] = field(default_factory=list)
    _missed_levels: list[int] = field(
        default_factory=list
    )  # whether a podset group misses its preferred level

    def __post_init__(self) -> None:
        self.classes = PlacementClasses(
            [u.podset_group for u in self.podset_groups], self.free, self.nodes
        )
        self._add_whole_nodes()
        self.built = ModelBuilder(self.classes)
        self._add_scattered()
        self._add_kept()
        self.built.minimize(self.layers)
        self.model.hint = self._hint()

    @property
    def model(self) -> Model:
        return self.built.model

    # Whole nodes as pods that no podset group asks for.

    def _add_whole_nodes(self) -> None:
        classes, problem = self.classes, self.wholes.problem
        whole = self.nodes[self.wholes.nodes[self.nodes]]
        for number, amounts in enumerate(_sorts_of(problem, whole)):
            of_sort = np.zeros(problem.size, dtype=np.bool_)
            of_sort[whole] = (devices(problem)[:, whole] == amounts[:, None]).all(axis=0)
            most = np.array([int(of_sort[m].sum()) for m in classes.members], dtype=np.int64)
            self._sorts.append(classes.add(_whole_node(problem, number, amounts, of_sort), most))

    def _kept_in(self, node_classes: Sequence[int]) -> list[int]:
        """The variables of the whole nodes kept in some node classes."""
        rows = (self.built.pods[number] for number in self._sorts)
        return [row[at] for row in rows for at in node_classes if at in row]

    # Scattered podset groups: which domains they use.

    def _add_scattered(self) -> None:
        by_level: dict[int, list[int]] = {}
        reach: dict[int, int] = {}
        for group in self.classes.groups:
            bundled = self.podset_groups[group.podset_groups[0]]
            if bundled.scattered:
                for level, variables in self._add_uses(group, bundled):
                    by_level.setdefault(level, []).extend(variables)
                    reach[level] = reach.get(level, 0) + bundled.used[level]
        for level in sorted(by_level):
            self._layer(by_level[level], 1, reach[level])
        self._layer(self._missed_levels, 1, len(self._missed_levels))

    def _layer(self, variables: list[int], coeff: int, reach: int) -> None:
        if variables:
            self.layers.append(Layer(variables, [coeff] * len(variables), reach))

    def _add_uses(self, group: GroupClass, bundled: Bundles) -> Iterator[tuple[int, list[int]]]:
        """Level by level from the racks up, the variables that say which domains one podset group uses."""
        tree, below = bundled.podset_group.tree, dict[int, UsedVariable]()
        for level in range(tree.depth - 1, bundled.podset_group.required, -1):
            uses = self._add_above(tree, level, below) if below else self._add_racks(group, level)
            variables = [use.variable for use in uses.values()]
            self.model.at_most(variables, [1] * len(variables), bundled.used[level])
            if level == bundled.podset_group.preferred and bundled.used[level] > 1:
                self._add_missed_level(variables, bundled.used[level])
            self._uses.extend(uses.values())
            below = uses
            yield level, variables

    def _add_racks(self, group: GroupClass, level: int) -> dict[int, UsedVariable]:
        pods = self.built.pods
        domains = self.classes.domains(group.tree, level)
        uses: dict[int, UsedVariable] = {}
        for domain in np.unique(domains).tolist():
            inside = np.flatnonzero(domains == domain).tolist()
            rows = [[pods[k][at] for at in inside if at in pods[k]] for k, _ in group.pods]
            if not any(rows):
                continue
            use = uses[domain] = UsedVariable(
                self.model.var(0, 1), [v for row in rows for v in row]
            )
            for row, (_, count) in zip(rows, group.pods, strict=True):
                most = min(count, self.built.most(row))
                self.model.at_most([*row, use.variable], [*[1] * len(row), -most], 0)
        return uses

    def _add_above(
        self, tree: Tree, level: int, below: dict[int, UsedVariable]
    ) -> dict[int, UsedVariable]:
        """Domains one level up: used when one inside is."""
        uses: dict[int, UsedVariable] = {}
        for child, use in below.items():
            d = int(tree.domain[level][tree.order[tree.starts[level + 1][child]]])
            if d not in uses:
                uses[d] = UsedVariable(self.model.var(0, 1), [])
            uses[d].pods.extend(use.pods)
            self.model.at_most([use.variable, uses[d].variable], [1, -1], 0)
        return uses

    def _add_missed_level(self, variables: list[int], used: int) -> None:
        """Whether more than one domain of the preferred level is used."""
        missed = self.model.var(0, 1)
        self.model.at_most([*variables, missed], [*[1] * len(variables), 1 - used], 1)
        self._missed_levels.append(missed)

    # Nodes that stay whole.

    def _add_kept(self) -> None:
        kept = self._kept_in(range(len(self.classes.members)))
        self._layer(kept, -1, self.built.most(kept))
        for number, tree in enumerate(self.classes.trees):
            domains = self.classes.domains(number, tree.depth - 1)
            for rack in np.flatnonzero(self.wholes.racks(tree)).tolist():
                inside = self._kept_in(np.flatnonzero(domains == rack).tolist())
                if inside:
                    whole, size = self.model.var(0, 1), self.built.most(inside)
                    self.model.at_most([whole, *inside], [size, *[-1] * len(inside)], 0)
                    self._racks.append((whole, inside, size))
        self._layer([whole for whole, _, _ in self._racks], -1, len(self._racks))

    def _hint(self) -> list[int]:
        values = values_of(self.built, [u.node_counts for u in self.podset_groups])
        used = np.zeros(self.wholes.problem.size, dtype=np.bool_)
        for podset_group in self.podset_groups:
            used[podset_group.nodes] = True
        for number in self._sorts:
            left = self.classes.pods[number][0].eligible & ~used
            for node_class, variable in self.built.pods[number].items():
                values[variable] = int(left[self.classes.members[node_class]].sum())
        for whole, inside, size in self._racks:
            values[whole] = int(sum(values[v] for v in inside) == size)
        for use in self._uses:
            values[use.variable] = int(any(values[v] for v in use.pods))
        for missed in self._missed_levels:
            values[missed] = 1
        return values


def _whole_node(problem: Problem, number: int, amounts: Ints, nodes: Mask) -> Shape:
    """The pod that takes all devices of one of these nodes."""
    vector = np.zeros(len(problem.resources), dtype=np.int64)
    vector[device_columns(problem)] = amounts
    columns = tuple(np.flatnonzero(vector).tolist())
    return Shape(_WHOLE_KEYS + number, NOTHING, NodeRules(), vector, columns, nodes)


def _sorts_of(problem: Problem, nodes: Ints) -> list[Ints]:
    """Distinct device vectors of some nodes, the most frequent first."""
    if not len(nodes):
        return []
    rows, counts = np.unique(devices(problem)[:, nodes], axis=1, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_SORTS]
    return [rows[:, at] for at in order if rows[:, at].any()]


# ---- Bundles
#
# PodSet groups as consolidation sees them: what shares a node stays together, and what shares a domain keeps sharing one.
#
# The pods that a podset group has on one node become one pod, a *bundle*. Whatever is done with bundles, the podset group never needs more
# nodes than before; and as it is required to share the domain that it shares now, never more domains of that level either.


Content: TypeAlias = tuple[int, ...]  # pods of each podset of the podset group in one bundle

_OWN_KEYS: Final = 1 << 40  # shape keys of scattered podset groups, apart from those of the problem


@dataclass(frozen=True, eq=False, slots=True)
class Bundles:
    """One podset group as consolidation sees it.

    Attributes:
        podset_group: its bundles as pods, required to share a domain where it shares one now.
        contents: of each of these pods.
        node_counts: where the bundles are.
        used: domains the podset group uses per level, nodes last.
    """

    podset_group: PodSetGroup
    contents: tuple[Content, ...]
    node_counts: NodeCounts
    used: tuple[int, ...]

    @property
    def scattered(self) -> bool:
        """Whether it is in several domains of the finest level above the node."""
        return self.used[-2:-1] > (1,)

    @property
    def nodes(self) -> Ints:
        """The nodes it is on."""
        return np.concatenate([nodes for nodes, _ in self.node_counts])

    def unbundled(self, node_counts: NodeCounts) -> NodeCounts:
        """Where the podset group's own pods are when its bundles are on ``node_counts``."""
        found = []
        for podset in range(len(self.contents[0])):
            per_node: dict[int, int] = {}
            for content, (nodes, counts) in zip(self.contents, node_counts, strict=True):
                for node, count in zip(nodes.tolist(), counts.tolist(), strict=True):
                    if content[podset]:
                        per_node[node] = per_node.get(node, 0) + count * content[podset]
            nodes = np.array(sorted(per_node), dtype=np.int64)
            found.append((nodes, np.array([per_node[n] for n in nodes.tolist()], dtype=np.int64)))
        return tuple(found)


def keeps_shape(podset_group: PodSetGroup, node_counts: NodeCounts) -> bool:
    """Whether slices stay whole and even spreads even wherever the bundles of a podset group go.

    They do within one node, and where the podset group stays in one domain of a level: slices of that level or a coarser one, and
    an even spread over domains of it. Bundles do not keep other slices and spreads.
    """
    used = domain_counts(podset_group, node_counts)
    if used[-1] == 1:
        return True
    together = max((at for at, count in enumerate(used[:-1]) if count == 1), default=ANYWHERE)
    held = next(
        (at for at in levels_to_try(podset_group) if at == ANYWHERE or used[at] == 1), ANYWHERE
    )
    return all(
        all(level <= together for level, _ in pods.slices)
        and not (pods.balanced and held >= together)
        for pods in podset_group.pods
    )


def bundle(problem: Problem, number: int, placed: PlacedPodSetGroup) -> Bundles:
    """The bundles of a podset group on the nodes that it uses. ``number`` identifies the podset group."""
    podset_group, node_counts = placed
    used = domain_counts(podset_group, node_counts)
    nodes_with = _contents(node_counts)
    level = max((at for at, count in enumerate(used[:-1]) if count == 1), default=ANYWHERE)
    if used[-1] == 1:
        level = ANYWHERE  # a single bundle needs no more than a node
    pods, where = [], []
    for at, (content, nodes) in enumerate(sorted(nodes_with.items(), reverse=True)):
        inside = zip(podset_group.pods, content, strict=True)
        shape = as_one_pod(problem, [(p.shape, count) for p, count in inside if count])
        if used[-2:-1] > (1,):
            shape = replace(shape, key=_OWN_KEYS + (number << 16) + at)
        pods.append(ShapePods(at, len(nodes), shape))
        where.append((np.array(nodes, dtype=np.int64), np.ones(len(nodes), dtype=np.int64)))
    bundled = PodSetGroup(podset_group.tree, tuple(pods), level, podset_group.preferred)
    return Bundles(bundled, tuple(sorted(nodes_with, reverse=True)), tuple(where), used)


def _contents(node_counts: NodeCounts) -> dict[Content, list[int]]:
    """Which nodes hold which numbers of pods."""
    per_node: dict[int, list[int]] = {}
    for podset, (nodes, counts) in enumerate(node_counts):
        for node, count in zip(nodes.tolist(), counts.tolist(), strict=True):
            per_node.setdefault(node, [0] * len(node_counts))[podset] += count
    found: dict[Content, list[int]] = {}
    for node in sorted(per_node):
        found.setdefault(tuple(per_node[node]), []).append(node)
    return found
