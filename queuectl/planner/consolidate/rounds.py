"""Which gangs to place again together: few enough for a quick solve, and only where bounds leave something to gain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from queuectl.planner.capacity.node_counts import give_back
from queuectl.planner.consolidate.bundles import Bundles, bundle
from queuectl.planner.model.counts import ShapeCounts
from queuectl.planner.placement.measure import PlacedPodSetGroup, Wholes, device_columns, devices
from queuectl.planner.problem.problem import Problem, caps
from queuectl.planner.problem.request import ANYWHERE
from queuectl.planner.problem.topology import Ints, Tree

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
