"""Which gangs to place again together: few enough for a quick solve, and only where bounds leave something to gain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from queuectl.planner.capacity.node_counts import give_back
from queuectl.planner.consolidate.bundles import Bundles
from queuectl.planner.placement.measure import PlacedPodSetGroup, Wholes, device_columns, devices
from queuectl.planner.problem.problem import Problem, caps
from queuectl.planner.problem.request import PodSetGroup
from queuectl.planner.problem.topology import Ints, Tree

_WIDTH: Final = 5  # podset groups placed again at once
_TARGETS: Final = 2  # racks that one scattered podset group is offered
_MORE: Final = 2  # racks beside those in use, of either sort: with whole nodes, with parts of nodes


class Round(NamedTuple):
    """PodSet groups to be placed again, and the nodes they may use."""

    podset_groups: list[int]
    nodes: Ints


def rounds(
    problem: Problem,
    podset_groups: Sequence[Bundles],
    placed: Sequence[PlacedPodSetGroup],
    left: Ints,
) -> Iterator[Round]:
    """Rounds worth solving, of each sort in turn; each sees where the podset groups stand when it is asked for.

    Args:
        problem: of the snapshot.
        podset_groups: of all gangs that may move; changed by the caller from round to round.
        placed: the same as asked.
        left: (R, N) free beside them.
    """
    sources = [
        _gather(problem, podset_groups, placed, left),
        _stack(problem, podset_groups),
        _clear(problem, podset_groups),
    ]
    while sources:
        for source in list(sources):
            each = next(source, None)
            if each is None:
                sources.remove(source)
            else:
                yield each


def _gather(
    problem: Problem,
    podset_groups: Sequence[Bundles],
    placed: Sequence[PlacedPodSetGroup],
    left: Ints,
) -> Iterator[Round]:
    """A scattered podset group with those that stand in its racks and in the roomiest others."""
    free = left.copy()
    for bundled in podset_groups:
        give_back(free, bundled.podset_group.pods, bundled.node_counts)
    for number, (podset_group, _) in enumerate(placed):
        if not podset_groups[number].scattered:
            continue
        per_pods = [_per_domain(podset_group.tree, caps(free, p.shape)) for p in podset_group.pods]
        if podset_groups[number].used[:-1] == _least_widths(podset_group, per_pods):
            continue
        room = np.min(
            [rows[-1] / p.count for rows, p in zip(per_pods, podset_group.pods, strict=True)],
            axis=0,
        )
        domain = podset_group.tree.domain[-1]
        racks = {*domain[podset_groups[number].nodes].tolist(), *_first(-room, _TARGETS)}
        chosen = list(
            dict.fromkeys([number, *_standing_in(podset_groups, podset_group.tree, racks)])
        )[:_WIDTH]
        yield Round(chosen, _nodes(problem, podset_groups, chosen, (podset_group.tree, racks)))


def _per_domain(tree: Tree, per_node: Ints) -> list[Ints]:
    return [tree.sums(level, per_node) for level in range(tree.depth)]


def _least_widths(podset_group: PodSetGroup, per_pods: Sequence[Sequence[Ints]]) -> tuple[int, ...]:
    """A lower bound of the domains a podset group needs at each level above the node."""
    return tuple(
        max(
            -(-p.count // max(1, int(rows[level].max(initial=0))))
            for rows, p in zip(per_pods, podset_group.pods, strict=True)
        )
        for level in range(podset_group.tree.depth)
    )


def _first(keys: Ints, count: int) -> list[int]:
    return [int(at) for at in np.argsort(keys, kind="stable")[:count]]


def _standing_in(podset_groups: Sequence[Bundles], tree: Tree, racks: set[int]) -> Iterator[int]:
    for number, podset_group in enumerate(podset_groups):
        if racks.intersection(tree.domain[-1][podset_group.nodes].tolist()):
            yield number


def _stack(problem: Problem, podset_groups: Sequence[Bundles]) -> Iterator[Round]:
    """PodSet groups that break into whole nodes and leave a part of them unused, neighbours first."""
    wholes = Wholes(problem).nodes
    partial = [
        number
        for number, podset_group in enumerate(podset_groups)
        if any(
            _leaves_some(problem, podset_group, at, wholes)
            for at in range(len(podset_group.node_counts))
        )
    ]
    partial.sort(
        key=lambda n: int(podset_groups[n].podset_group.tree.position[podset_groups[n].nodes[0]])
    )
    for low in range(0, len(partial), _WIDTH):
        chosen = partial[low : low + _WIDTH]
        yield Round(chosen, _nodes(problem, podset_groups, chosen))


def _clear(problem: Problem, podset_groups: Sequence[Bundles]) -> Iterator[Round]:
    """Those that stand in a whole free rack, with others that stand in racks broken into before."""
    wholes = Wholes(problem)
    trees = {
        id(podset_group.podset_group.tree): podset_group.podset_group.tree
        for podset_group in podset_groups
        if podset_group.podset_group.tree.depth
    }
    for tree in trees.values():
        racks = wholes.racks(tree)
        for rack in np.flatnonzero(racks).tolist():
            inside = list(_standing_in(podset_groups, tree, {rack}))
            if not inside:
                continue
            beside = _standing_in(podset_groups, tree, set(np.flatnonzero(~racks).tolist()))
            chosen = list(dict.fromkeys([*inside, *beside]))[:_WIDTH]
            yield Round(chosen, _nodes(problem, podset_groups, chosen))


def _leaves_some(problem: Problem, podset_group: Bundles, at: int, wholes: np.ndarray) -> bool:
    """Whether bundles of one sort stand on whole nodes without taking all their devices."""
    nodes, _ = podset_group.node_counts[at]
    asked = podset_group.podset_group.pods[at].shape.vector[device_columns(problem)]
    there = devices(problem)[:, nodes[wholes[nodes]]]
    return bool((there > asked[:, None]).any())


def _nodes(
    problem: Problem,
    podset_groups: Sequence[Bundles],
    chosen: Sequence[int],
    also: tuple[Tree, set[int]] | None = None,
) -> Ints:
    """The nodes of the racks in use, of ``also`` (racks of a tree), and of a few more with room."""
    inside = np.zeros(problem.size, dtype=np.bool_)
    trees: dict[int, Tree] = {
        id(podset_groups[n].podset_group.tree): podset_groups[n].podset_group.tree for n in chosen
    }
    for tree in trees.values():
        if not tree.depth:
            inside[tree.order] = True
            continue
        domain = tree.domain[-1]
        mine = np.concatenate(
            [podset_groups[n].nodes for n in chosen if podset_groups[n].podset_group.tree is tree]
        )
        racks = {*domain[mine].tolist(), *_with_room(problem, tree)}
        if also is not None and also[0] is tree:
            racks |= also[1]
        inside |= np.isin(domain, sorted(racks))
    return np.flatnonzero(inside)


def _with_room(problem: Problem, tree: Tree) -> list[int]:
    """A few racks with the most whole nodes, those broken into before first, and with the most on parts of nodes."""
    wholes = Wholes(problem)
    whole = tree.sums(tree.depth - 1, wholes.nodes.astype(np.int64))
    spare = np.maximum(problem.now[device_columns(problem)], 0).sum(axis=0)
    parts = tree.sums(tree.depth - 1, np.where(wholes.nodes, 0, spare))
    roomy = _first(np.where(wholes.racks(tree), 0, -whole), _MORE)
    return [*roomy, *_first(-parts, _MORE)]
