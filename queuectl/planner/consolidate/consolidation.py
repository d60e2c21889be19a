"""The second solve: the gangs that start anyway, placed so that less is scattered and more is left whole.

The cycle places each gang as well as it can, in queue order, on the capacity that the earlier ones leave. Here the set is fixed, and
CP-SAT searches for better places for a few gangs at a time. A result counts if it lowers the measure of
:mod:`queuectl.planner.placement.measure`; no podset group and no gang uses more domains of any level than before. The
deterministic limits are small, and a failure here only leaves gangs where they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final, NamedTuple

import numpy as np

from queuectl.planner.capacity.node_counts import NodeCounts, TentativeAdmission, give_back, take
from queuectl.planner.capacity.state import CycleState
from queuectl.planner.consolidate.consolidation_model import (
    Bundles,
    ConsolidationModel,
    bundle,
    keeps_shape,
)
from queuectl.planner.model.counts import ShapeCounts
from queuectl.planner.model.readback import hand_out, pack_all
from queuectl.planner.placement.measure import (
    PlacedPodSetGroup,
    Wholes,
    avoided_nodes,
    device_columns,
    devices,
    domain_counts,
    placed_podset_groups,
    score,
)
from queuectl.planner.problem.problem import Problem, caps
from queuectl.planner.problem.request import ANYWHERE
from queuectl.planner.problem.topology import Ints, Tree
from queuectl.planner.solver.solver import Solver, Status

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
    return all(
        keeps_shape(podset_group, node_counts)
        for podset_group, node_counts in admission.per_podset_group()
    )


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
    """Where the bundles of each podset group are in another solution; None when there is none, or none was found in time."""
    outcome = solver.solve(model.model)
    if outcome.status is not Status.FOUND or list(outcome.values) == model.model.hint:
        return None
    packing, failed = pack_all(model.built, outcome.values, solver)
    if failed:
        return None
    return hand_out(model.built, outcome.values, packing).node_counts


# ---- Rounds
#
# Which gangs to place again together: few enough for a quick solve, and only where bounds leave something to gain.


_WIDTH: Final = 5  # podset groups placed again at once
_TARGETS: Final = 2  # racks that one scattered podset group is offered
_MORE: Final = 2  # racks beside those in use, of either sort: with whole nodes, with parts of nodes


class Round(NamedTuple):
    """Numbers of the podset groups to be placed again, and the nodes they may use."""

    chosen: list[int]
    nodes: Ints


@dataclass(eq=False)
class Placements:
    """The podset groups of all gangs that may move, as placed so far.

    Attributes:
        free: (R, N) beside them.
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
