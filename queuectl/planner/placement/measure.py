"""How compact a set of placements is: the numbers that consolidation lowers, and that no result may raise.

One tuple, less is better, from the first entry in which two sets differ:

- domains used, summed over the gangs' podset groups, level by level from the top; then nodes used likewise;
- podset groups that have a preferred level and are not in one domain of it;
- whole free nodes broken into. A node is *whole and free* when it is ready and has accelerators, no gang holds a slot on it and none of
  its devices is used; unmanaged pods that take no device (log shippers, exporters) do not count. Where no node has accelerators, nodes with
  devices count, else all;
- whole free racks broken into: domains of the finest level above the node whose ready nodes of this kind are all whole and free.

The last two are the measure of fragmentation: later large gangs need what is left whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np

from queuectl.planner.capacity.node_counts import NodeCounts, TentativeAdmission
from queuectl.planner.problem.problem import COMMON, Problem
from queuectl.planner.problem.request import ANYWHERE, GangRequest, PodSetGroup, ShapePods
from queuectl.planner.problem.topology import Ints, Mask, Tree

PlacedPodSetGroup: TypeAlias = tuple[
    PodSetGroup, NodeCounts
]  # a podset group and where its pods are


def placed_podset_groups(admissions: Iterable[TentativeAdmission]) -> list[PlacedPodSetGroup]:
    """Every podset group of some gangs, with its node counts."""
    return [each for gang in admissions for each in gang.per_podset_group()]


def nodes_of(node_counts: NodeCounts) -> Ints:
    """The distinct nodes of some node counts, ascending."""
    return np.unique(np.concatenate([nodes for nodes, _ in node_counts]))


def domain_counts(podset_group: PodSetGroup, node_counts: NodeCounts) -> tuple[int, ...]:
    """Domains a podset group uses at each level, nodes last."""
    nodes = np.concatenate([nodes for nodes, _ in node_counts])
    return tuple(
        len({*of.tolist()}) for of in (*(row[nodes] for row in podset_group.tree.domain), nodes)
    )


def misses_preference(podset_group: PodSetGroup, used: Sequence[int]) -> bool:
    """Whether a podset group of these domain_counts misses the level it prefers."""
    return podset_group.preferred != ANYWHERE and used[podset_group.preferred] > 1


def width(request: GangRequest, node_counts: NodeCounts) -> tuple[int, ...]:
    """How many domains a gang of one topology uses; of two placements the lesser is narrower.

    Returns:
        PodSet groups that miss the level they prefer; the domains that each podset group uses, summed, level by level from the top and nodes
        last; those that the gang uses, each counted once, likewise.
    """
    rows, missed, at = [], 0, 0
    for podset_group in request.podset_groups:
        rows.append(domain_counts(podset_group, node_counts[at : at + len(podset_group.pods)]))
        missed += misses_preference(podset_group, rows[-1])
        at += len(podset_group.pods)
    return (
        missed,
        *map(sum, zip(*rows, strict=True)),
        *domain_counts(request.podset_groups[0], node_counts),
    )


def avoided_nodes(pods: Sequence[ShapePods], node_counts: NodeCounts) -> int:
    """Nodes that pods use although they leave them to others if they can, summed over the podsets."""
    found = 0
    for each, (nodes, _) in zip(pods, node_counts, strict=True):
        if each.shape.spared is not None:
            found += int(each.shape.spared.avoided[-1][nodes].sum())
    return found


def device_columns(problem: Problem) -> list[int]:
    """Columns of the resources that are devices."""
    return [i for i, name in enumerate(problem.resources) if name not in COMMON]


def devices(problem: Problem) -> Ints:
    """Allocatable devices per node, (columns, N)."""
    amounts: Ints = problem.index.allocatable[device_columns(problem)]
    return amounts


@dataclass(eq=False)
class Wholes:
    """The nodes and racks that are whole and free before some gangs start.

    Attributes:
        taken: nodes that other gangs of the same plan use, which are not whole any more.
    """

    problem: Problem
    taken: Mask | None = None

    @cached_property
    def nodes(self) -> Mask:
        untouched = (self.problem.now[device_columns(self.problem)] >= devices(self.problem)).all(
            axis=0
        )
        gangs = (self.problem.usage.free != self.problem.index.allocatable).any(axis=0)
        free: Mask = self.problem.index.ready & ~gangs & untouched & self._worth
        return free if self.taken is None else free & ~self.taken

    @cached_property
    def _worth(self) -> Mask:
        """The nodes that are worth keeping whole: those with accelerators, else with devices; all where no node has any."""
        index = self.problem.index
        there: Mask = np.any(index.allocatable[index.accelerators or index.devices] > 0, axis=0)
        return there if there.any() else ~there

    def racks(self, tree: Tree) -> Mask:
        """Per domain of the finest level, whether it is whole and free."""
        if not tree.depth:
            return np.zeros(0, dtype=np.bool_)
        ready = self.problem.index.ready & self._worth
        whole = tree.sums(tree.depth - 1, (ready & self.nodes).astype(np.int64))
        there = tree.sums(tree.depth - 1, ready.astype(np.int64))
        free: Mask = (whole == there) & (there > 0)
        return free

    def broken(self, placed: Sequence[PlacedPodSetGroup]) -> tuple[int, int]:
        """Whole free nodes and racks that these placements break into."""
        used = np.zeros(self.problem.size, dtype=np.bool_)
        trees: dict[int, Tree] = {}
        for podset_group, node_counts in placed:
            used[nodes_of(node_counts)] = True
            trees[id(podset_group.tree)] = podset_group.tree
        racks = 0
        for tree in trees.values():
            if tree.depth:
                taken = tree.sums(tree.depth - 1, used.astype(np.int64)) > 0
                racks += int((self.racks(tree) & taken).sum())
        return int((used & self.nodes).sum()), racks


def score(wholes: Wholes, placed: Sequence[PlacedPodSetGroup]) -> tuple[int, ...]:
    """The whole measure; see the module. Topologies of different depth are aligned at the top."""
    used = [domain_counts(podset_group, node_counts) for podset_group, node_counts in placed]
    depth = max((podset_group.tree.depth for podset_group, _ in placed), default=0)
    levels = [0] * depth
    for row in used:
        for level, count in enumerate(row[:-1]):
            levels[level] += count
    missed = sum(
        misses_preference(podset_group, row)
        for (podset_group, _), row in zip(placed, used, strict=True)
    )
    return (*levels, sum(row[-1] for row in used), missed, *wholes.broken(placed))
