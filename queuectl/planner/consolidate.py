"""The second solve: the gangs that start anyway, placed so that less is scattered and more is left whole.

The cycle places each gang as well as it can, in queue order, on the capacity that the earlier ones leave. Here the set is fixed, and
CP-SAT searches for better places for a few gangs at a time. A result counts if it lowers the measure of
:mod:`queuectl.planner.placement.single`; no podset group and no gang uses more domains of any level than before. The
deterministic limits are small, and a failure here only leaves gangs where they are.

The model is the model builder over bundles, with three additions. A podset group in several racks gets a variable per rack, and
per coarser domain, which is 1 if the rack is used. Whole free nodes to be kept are pods of one more class that no podset group
asks for: they take part in every capacity row. And a whole free rack is kept if all its nodes are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from queuectl.domain.fleet import NodeRules
from queuectl.domain.quantity import NOTHING
from queuectl.planner.capacity.node_counts import (
    NodeCounts,
    TentativeAdmission,
    give_back,
    per_podset_group,
    take,
)
from queuectl.planner.capacity.state import CycleState
from queuectl.planner.model.builder import Layer, ModelBuilder, hand_out, pack_all, values_of
from queuectl.planner.model.classes import GroupClass, PlacementClasses
from queuectl.planner.model.counts import ShapeCounts
from queuectl.planner.placement.single import (
    PlacedPodSetGroup,
    Wholes,
    avoided_nodes,
    device_columns,
    devices,
    domain_counts,
    level_reached,
    placed_podset_groups,
    score,
)
from queuectl.planner.problem.fleet import Ints, Mask, Tree
from queuectl.planner.problem.problem import Problem, Shape, caps
from queuectl.planner.problem.request import ANYWHERE, PodSetGroup, ShapePods, as_one_pod
from queuectl.planner.solver import Model, Solver, Status

# ---- The model

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
        hint = values_of(self.built, [u.node_counts for u in self.podset_groups])
        used = np.zeros(self.wholes.problem.size, dtype=np.bool_)
        for podset_group in self.podset_groups:
            used[podset_group.nodes] = True
        for number in self._sorts:
            left = self.classes.pods[number][0].eligible & ~used
            for node_class, variable in self.built.pods[number].items():
                hint[variable] = int(left[self.classes.members[node_class]].sum())
        for whole, inside, size in self._racks:
            hint[whole] = int(sum(hint[v] for v in inside) == size)
        for use in self._uses:
            hint[use.variable] = int(any(hint[v] for v in use.pods))
        for missed in self._missed_levels:
            hint[missed] = 1
        return hint


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
    held = level_reached(podset_group, used)
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


# ---- The search

# Measured on batches of 15 and 50 gangs: two short rounds gain most of what many long ones do, at a tenth of their time.
_ROUNDS: Final = 2
LIMIT: Final = 0.0015  # deterministic time of one


def consolidate(state: CycleState, starting: Sequence[TentativeAdmission], solver: Solver) -> int:
    """Place some of the gangs that start elsewhere where that is tidier; returns how many.

    Args:
        state: with all of them in it.
        starting: the gangs this plan starts; those on a lease stay where they are.
        solver: of the plan: its limits and stop signal; a defect met here is among its alarms.
    """
    movable = [admission for admission in starting if may_move(admission)]
    if not movable or (len(movable) == 1 and not solver.calls) or solver.ended():
        return 0
    work = Placements(state.problem, state.free().copy(), placed_podset_groups(movable))
    owners = [gang for gang, each in enumerate(movable) for _ in each.request.podset_groups]
    limits = replace(solver.limits, deterministic_time=LIMIT, growth=1.0)
    own_solver = Solver(limits, solver.stop, light=True)
    for each in islice(rounds(work), _ROUNDS):
        _improve(work, owners, each, own_solver)
    solver.alarms.extend(own_solver.alarms)
    solver.cut |= own_solver.cut
    return _move(state, movable, work.placed)


def may_move(admission: TentativeAdmission) -> bool:
    """Whether the gang can move, and bundles describe all placements of its pods."""
    if admission.fixed or not admission.request.podset_groups:
        return False
    parts = per_podset_group(admission.request, admission.node_counts)
    return all(keeps_shape(podset_group, node_counts) for podset_group, node_counts in parts)


def _move(
    state: CycleState, movable: Sequence[TentativeAdmission], placed: Sequence[PlacedPodSetGroup]
) -> int:
    """Place the gangs in the state where they are now; returns how many are elsewhere."""
    left = iter(placed)
    moved = 0
    for admission in movable:
        parts = [next(left)[1] for _ in admission.request.podset_groups]
        node_counts: NodeCounts = tuple(pods for part in parts for pods in part)
        if any(new is not old for new, old in zip(node_counts, admission.node_counts, strict=True)):
            state.move(admission, node_counts)
            moved += 1
    return moved


def _improve(work: Placements, owners: Sequence[int], each: Round, solver: Solver) -> None:
    """Solve one round, and take what it finds if that is tidier."""
    chosen = [work.bundles[number] for number in each.chosen]
    before = [work.placed[number] for number in each.chosen]
    free = work.free.copy()
    for bundled in chosen:
        give_back(free, bundled.podset_group.pods, bundled.node_counts)
    taken = np.zeros(work.problem.size, dtype=np.bool_)
    for number, bundled in enumerate(work.bundles):
        if number not in each.chosen:
            taken[bundled.nodes] = True
    wholes = Wholes(work.problem, taken)
    found = _solve(ConsolidationModel(chosen, free, each.nodes, wholes), solver)
    if found is None:
        return
    after = [
        (group, bundled.unbundled(node_counts))
        for (group, _), bundled, node_counts in zip(before, chosen, found, strict=True)
    ]
    changed = dict(zip(each.chosen, after, strict=True))
    if _untidy(wholes, after) >= _untidy(wholes, before) or _widens(work, owners, changed):
        return
    work.free = free
    for number, new in changed.items():
        work.placed[number] = new
        work.bundles[number] = bundle(work.problem, number, new)
        take(free, work.bundles[number].podset_group.pods, work.bundles[number].node_counts)


def _untidy(wholes: Wholes, placed: Sequence[PlacedPodSetGroup]) -> tuple[int, ...]:
    """The measure, then the nodes used by pods that leave them to others if they can."""
    avoided = (avoided_nodes(group.pods, node_counts) for group, node_counts in placed)
    return (*score(wholes, placed), sum(avoided))


def _widens(
    work: Placements, owners: Sequence[int], changed: Mapping[int, PlacedPodSetGroup]
) -> bool:
    """Whether some gang as a whole would use more domains of any level; no podset group by itself does."""
    for gang in {owners[number] for number in changed}:
        numbers = [number for number, owner in enumerate(owners) if owner == gang]
        before = _used_together([work.placed[n] for n in numbers])
        after = _used_together([changed.get(n, work.placed[n]) for n in numbers])
        if any(new > old for new, old in zip(after, before, strict=True)):
            return True
    return False


def _used_together(placed: Sequence[PlacedPodSetGroup]) -> list[int]:
    """Per podset group, the domains of each level of its topology that all podset groups of that topology use together."""
    return [
        count
        for group, _ in placed
        for count in domain_counts(
            group, tuple(pods for other, own in placed if other.tree is group.tree for pods in own)
        )
    ]


def _solve(model: ConsolidationModel, solver: Solver) -> tuple[NodeCounts, ...] | None:
    """Where the bundles of each podset group are in another solution; None if no other exists, or none is found in time."""
    outcome = solver.solve(model.model)
    if outcome.status is not Status.SOLVED or list(outcome.assignment) == model.model.hint:
        return None
    packing, failed = pack_all(model.built, outcome.assignment, solver)
    if failed:
        return None
    return hand_out(model.built, outcome.assignment, packing).node_counts


# ---- Rounds
#
# Which gangs to place again together: few enough for a quick solve, and only where bounds leave something to gain.


_WIDTH: Final = 5  # podset groups placed again at once
_TARGETS: Final = 2  # racks that one scattered podset group is offered
_MORE: Final = (
    2  # racks in addition to those in use, of either sort: with whole nodes, with parts of nodes
)


class Round(NamedTuple):
    """Numbers of the podset groups to be placed again, and the nodes they may use."""

    chosen: list[int]
    nodes: Ints


@dataclass(eq=False)
class Placements:
    """The podset groups of all gangs that may move, as placed so far.

    Attributes:
        free: (R, N) alongside them.
        placed: each as asked, and where it is.
        bundles: the same in bundles.
    """

    problem: Problem
    free: Ints
    placed: list[PlacedPodSetGroup]
    bundles: list[Bundles] = field(init=False)

    def __post_init__(self) -> None:
        self.bundles = [bundle(self.problem, n, each) for n, each in enumerate(self.placed)]

    @property
    def trees(self) -> list[Tree]:
        """Their topologies."""
        return list({id(group.tree): group.tree for group, _ in self.placed}.values())

    def inside(self, tree: Tree, racks: Iterable[int]) -> list[int]:
        """Podset groups with pods in some racks."""
        mask = np.isin(tree.domain[-1], list(racks))
        return [number for number, each in enumerate(self.bundles) if mask[each.nodes].any()]


def rounds(work: Placements) -> Iterator[Round]:
    """Rounds worth solving, of each sort in turn; the caller changes ``work`` from round to round."""
    sources = [_gather(work), _stack(work), _clear(work)]
    while sources:
        for source in list(sources):
            each = next(source, None)
            if each is None:
                sources.remove(source)
            else:
                yield each


def _gather(work: Placements) -> Iterator[Round]:
    """A scattered podset group with those that are in its racks and in the roomiest others."""
    free = work.free.copy()
    for each in work.bundles:
        give_back(free, each.podset_group.pods, each.node_counts)
    for number, (group, _) in enumerate(work.placed):
        if not work.bundles[number].scattered:
            continue
        tree, used = group.tree, work.bundles[number].used
        counts = [ShapeCounts(tree, caps(free, p.shape)) for p in group.pods]
        bounds = [c.fewest(ANYWHERE, p.count) for c, p in zip(counts, group.pods, strict=True)]
        if used[:-1] == tuple(map(max, zip(*bounds, strict=True)))[1:-1]:
            continue
        room = [c.levels[-2] / p.count for c, p in zip(counts, group.pods, strict=True)]
        racks = {
            *tree.domain[-1][work.bundles[number].nodes].tolist(),
            *_first(-np.min(room, axis=0), _TARGETS),
        }
        yield _round(work, [number, *work.inside(tree, racks)], (tree, racks))


def _stack(work: Placements) -> Iterator[Round]:
    """Podset groups that break into whole nodes and leave a part of them unused, neighbors first."""
    wholes = Wholes(work.problem).nodes
    partial = [n for n, each in enumerate(work.bundles) if _leaves_some(work.problem, each, wholes)]
    partial.sort(key=lambda n: int(work.placed[n][0].tree.position[work.bundles[n].nodes[0]]))
    for low in range(0, len(partial), _WIDTH):
        yield _round(work, partial[low : low + _WIDTH])


def _leaves_some(problem: Problem, bundled: Bundles, wholes: np.ndarray) -> bool:
    """Whether some bundles are on whole nodes without all their devices."""
    columns, there = device_columns(problem), devices(problem)
    return any(
        bool((there[:, nodes[wholes[nodes]]] > pods.shape.vector[columns][:, None]).any())
        for pods, (nodes, _) in zip(bundled.podset_group.pods, bundled.node_counts, strict=True)
    )


def _clear(work: Placements) -> Iterator[Round]:
    """Those that are in a whole free rack, with others that are in racks broken into before."""
    wholes = Wholes(work.problem)
    for tree in work.trees:
        racks = wholes.racks(tree)
        for rack in np.flatnonzero(racks).tolist():
            inside = work.inside(tree, [rack])
            if inside:
                yield _round(work, [*inside, *work.inside(tree, np.flatnonzero(~racks))])


def _round(
    work: Placements, numbers: Sequence[int], also: tuple[Tree, set[int]] | None = None
) -> Round:
    """The first of these podset groups, and the nodes of the racks in use, of ``also`` (racks of a tree), and of a few more with room."""
    chosen = list(dict.fromkeys(numbers))[:_WIDTH]
    inside = np.zeros(work.problem.size, dtype=np.bool_)
    for tree in work.trees:
        mine = [work.bundles[n].nodes for n in chosen if work.placed[n][0].tree is tree]
        if not mine:
            continue
        if not tree.depth:
            inside[tree.order] = True
            continue
        domain = tree.domain[-1]
        racks = {*domain[np.concatenate(mine)].tolist(), *_with_room(work.problem, tree)}
        if also is not None and also[0] is tree:
            racks |= also[1]
        inside |= np.isin(domain, sorted(racks))
    return Round(chosen, np.flatnonzero(inside))


def _with_room(problem: Problem, tree: Tree) -> list[int]:
    """A few racks with the most whole nodes, those broken into before first, and with the most on parts of nodes."""
    wholes = Wholes(problem)
    whole = tree.sums(tree.depth - 1, wholes.nodes.astype(np.int64))
    spare = np.maximum(problem.now[device_columns(problem)], 0).sum(axis=0)
    parts = tree.sums(tree.depth - 1, np.where(wholes.nodes, 0, spare))
    return [*_first(np.where(wholes.racks(tree), 0, -whole), _MORE), *_first(-parts, _MORE)]


def _first(keys: Ints, count: int) -> list[int]:
    found: list[int] = keys.argsort(kind="stable")[:count].tolist()
    return found
