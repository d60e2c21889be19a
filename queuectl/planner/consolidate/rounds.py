"""Which gangs to place again together: few enough for a quick solve, and only where bounds leave something to gain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from queuectl.planner.capacity.node_counts import give_back
from queuectl.planner.consolidate.bundles import Bundles
from queuectl.planner.placement.measure import PlacedUnit, Wholes, device_columns, devices
from queuectl.planner.problem.problem import Problem, caps
from queuectl.planner.problem.request import Unit
from queuectl.planner.problem.topology import Ints, Tree

_WIDTH: Final = 5  # units placed again at once
_TARGETS: Final = 2  # racks that one scattered unit is offered
_MORE: Final = 2  # racks beside those in use, of either sort: with whole nodes, with parts of nodes


class Round(NamedTuple):
    """Units to be placed again, and the nodes they may use."""

    units: list[int]
    nodes: Ints


def rounds(
    problem: Problem, units: Sequence[Bundles], placed: Sequence[PlacedUnit], left: Ints
) -> Iterator[Round]:
    """Rounds worth solving, of each sort in turn; each sees where the units stand when it is asked for.

    Args:
        problem: of the snapshot.
        units: of all gangs that may move; changed by the caller from round to round.
        placed: the same as asked.
        left: (R, N) free beside them.
    """
    sources = [
        _gather(problem, units, placed, left),
        _stack(problem, units),
        _clear(problem, units),
    ]
    while sources:
        for source in list(sources):
            each = next(source, None)
            if each is None:
                sources.remove(source)
            else:
                yield each


def _gather(
    problem: Problem, units: Sequence[Bundles], placed: Sequence[PlacedUnit], left: Ints
) -> Iterator[Round]:
    """A scattered unit with those that stand in its racks and in the roomiest others."""
    free = left.copy()
    for bundled in units:
        give_back(free, bundled.unit.pods, bundled.node_counts)
    for number, (unit, _) in enumerate(placed):
        if not units[number].scattered:
            continue
        per_pods = [_per_domain(unit.tree, caps(free, p.shape)) for p in unit.pods]
        if units[number].used[:-1] == _least_widths(unit, per_pods):
            continue
        room = np.min(
            [rows[-1] / p.count for rows, p in zip(per_pods, unit.pods, strict=True)], axis=0
        )
        domain = unit.tree.domain[-1]
        racks = {*domain[units[number].nodes].tolist(), *_first(-room, _TARGETS)}
        chosen = list(dict.fromkeys([number, *_standing_in(units, unit.tree, racks)]))[:_WIDTH]
        yield Round(chosen, _nodes(problem, units, chosen, (unit.tree, racks)))


def _per_domain(tree: Tree, per_node: Ints) -> list[Ints]:
    return [tree.sums(level, per_node) for level in range(tree.depth)]


def _least_widths(unit: Unit, per_pods: Sequence[Sequence[Ints]]) -> tuple[int, ...]:
    """A lower bound of the domains a unit needs at each level above the node."""
    return tuple(
        max(
            -(-p.count // max(1, int(rows[level].max(initial=0))))
            for rows, p in zip(per_pods, unit.pods, strict=True)
        )
        for level in range(unit.tree.depth)
    )


def _first(keys: Ints, count: int) -> list[int]:
    return [int(at) for at in np.argsort(keys, kind="stable")[:count]]


def _standing_in(units: Sequence[Bundles], tree: Tree, racks: set[int]) -> Iterator[int]:
    for number, unit in enumerate(units):
        if racks.intersection(tree.domain[-1][unit.nodes].tolist()):
            yield number


def _stack(problem: Problem, units: Sequence[Bundles]) -> Iterator[Round]:
    """Units that break into whole nodes and leave a part of them unused, neighbours first."""
    wholes = Wholes(problem).nodes
    partial = [
        number
        for number, unit in enumerate(units)
        if any(_leaves_some(problem, unit, at, wholes) for at in range(len(unit.node_counts)))
    ]
    partial.sort(key=lambda n: int(units[n].unit.tree.position[units[n].nodes[0]]))
    for low in range(0, len(partial), _WIDTH):
        chosen = partial[low : low + _WIDTH]
        yield Round(chosen, _nodes(problem, units, chosen))


def _clear(problem: Problem, units: Sequence[Bundles]) -> Iterator[Round]:
    """Those that stand in a whole free rack, with others that stand in racks broken into before."""
    wholes = Wholes(problem)
    trees = {id(unit.unit.tree): unit.unit.tree for unit in units if unit.unit.tree.depth}
    for tree in trees.values():
        racks = wholes.racks(tree)
        for rack in np.flatnonzero(racks).tolist():
            inside = list(_standing_in(units, tree, {rack}))
            if not inside:
                continue
            beside = _standing_in(units, tree, set(np.flatnonzero(~racks).tolist()))
            chosen = list(dict.fromkeys([*inside, *beside]))[:_WIDTH]
            yield Round(chosen, _nodes(problem, units, chosen))


def _leaves_some(problem: Problem, unit: Bundles, at: int, wholes: np.ndarray) -> bool:
    """Whether bundles of one sort stand on whole nodes without taking all their devices."""
    nodes, _ = unit.node_counts[at]
    asked = unit.unit.pods[at].shape.vector[device_columns(problem)]
    there = devices(problem)[:, nodes[wholes[nodes]]]
    return bool((there > asked[:, None]).any())


def _nodes(
    problem: Problem,
    units: Sequence[Bundles],
    chosen: Sequence[int],
    also: tuple[Tree, set[int]] | None = None,
) -> Ints:
    """The nodes of the racks in use, of ``also`` (racks of a tree), and of a few more with room."""
    inside = np.zeros(problem.size, dtype=np.bool_)
    trees: dict[int, Tree] = {id(units[n].unit.tree): units[n].unit.tree for n in chosen}
    for tree in trees.values():
        if not tree.depth:
            inside[tree.order] = True
            continue
        domain = tree.domain[-1]
        mine = np.concatenate([units[n].nodes for n in chosen if units[n].unit.tree is tree])
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
