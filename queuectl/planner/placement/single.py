"""Where the pods of one podset go inside a topology, as if it were alone; and how compact a set of placements is.

Two placements are compared layer by layer; the first layer in which they differ decides: fewest domains from the top level down
to nodes, then fewest avoided nodes among the nodes of a domain, then least capacity left over in the domains used, from the top
down, then topology order. The remaining capacity stays in the largest domain used, so that large free blocks stay whole.

Whether the pods fit, in one domain or anywhere, is exact, and so is the number of domains of the first level that takes several:
they are the fewest, and of those the tightest. Within each of them the same rule holds further down.

The measure of a set of placements has the numbers that consolidation lowers, and that no result may raise. It is one tuple, less
is better, from the first entry in which two sets differ:

- domains used, summed over the gangs' podset groups, level by level from the top; then nodes used likewise;
- podset groups that have a preferred level and are not in one domain of it;
- whole free nodes broken into. A node is *whole and free* when it is ready and has accelerators, no gang holds a slot on it and none of
  its devices is used; unmanaged pods that take no device (log shippers, exporters) do not count. Where no node has accelerators, nodes with
  devices count, otherwise all;
- whole free racks broken into: domains of the finest level above the node whose ready nodes of this kind are all whole and free.

The last two are the measure of fragmentation: later large gangs need what is left whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from operator import itemgetter
from typing import TypeAlias

import numpy as np

from queuectl.planner.capacity.node_counts import (
    NodeCounts,
    TentativeAdmission,
    nodes_of,
    per_podset_group,
)
from queuectl.planner.model.counts import (
    ShapeCounts,
    fewest_then_sparing,
    fewest_then_tightest,
    most_even,
)
from queuectl.planner.problem.fleet import Ints, Mask, Tree
from queuectl.planner.problem.limit_rows import is_limit_row
from queuectl.planner.problem.problem import COMMON, Problem
from queuectl.planner.problem.request import ANYWHERE, GangRequest, PodSetGroup, ShapePods

Score: TypeAlias = tuple[int, ...]
Filled: TypeAlias = tuple[Score, list[tuple[int, int]]]  # score, (position in tree.order, pods)


@dataclass(eq=False)
class ShapeCapacity(ShapeCounts):
    """Where to put pods of one shape, by what fits each node and each domain of a tree.

    Attributes:
        avoided: nodes that the pods leave to others if as few nodes hold them. Shape (N,); None = no nodes.
    """

    avoided: Mask | None = None

    def best_domain(self, level: int, count: int) -> Filled | None:
        """The best single domain of a level (``tree.depth``: the best node) that holds ``count`` pods."""
        return self._best_of(level, 0, len(self.levels[level]), count)

    def anywhere(self, count: int) -> Filled | None:
        """The best placement over the whole tree."""
        if self.total < count:
            return None
        return self._below(ANYWHERE, 0, count)

    def evenly(self, level: int, count: int) -> Filled | None:
        """The best placement in one domain of a level with pods, or whole slices, spread evenly over those below it.

        None when no domain that holds the pods can spread them so.
        """
        if level == self.tree.depth:
            return None
        ways = [
            way
            for domain in np.flatnonzero(self.holding(level) >= count).tolist()
            if (way := self._evenly_in(level, domain, count)) is not None
        ]
        return min(ways, key=itemgetter(0), default=None)

    def _evenly_in(self, level: int, domain: int, count: int) -> Filled | None:
        low, high = self.inside(level, domain)
        grain = self.grains[level + 1]
        found = most_even(self.levels[level + 1][low:high] // grain, count // grain)
        if found is None:
            return None
        chosen, shares = found
        score, node_counts = self._spread(level, low, chosen, shares * grain)
        left = int(self.holding(level)[domain]) - count
        return (score if level == ANYWHERE else self._score(1, left, score)), node_counts

    def _best_of(self, level: int, low: int, high: int, count: int) -> Filled | None:
        """The best of the domains ``low..high`` of a level that hold ``count`` pods alone."""
        sizes = self.levels[level][low:high]
        fitting = (sizes >= count).nonzero()[0]
        if not len(fitting):
            return None
        tightest = int(fitting[sizes[fitting].argmin()])
        best = self._in_domain(level, low + tightest, count)
        if len(fitting) == 1 or level == self.tree.depth:
            return best
        if self.widths(best) == self.fewest(level, count):
            return best
        bounds = self.least(level, low, high, count)[:, fitting]
        for at in np.lexsort((sizes[fitting], *bounds[::-1])).tolist():
            bound = (1, *bounds[:, at].tolist())
            if bound > self.widths(best):
                break
            left = int(sizes[fitting[at]]) - count
            if bound == self.widths(best) and left >= best[0][len(bound)]:
                continue
            best = min(
                best, self._in_domain(level, low + int(fitting[at]), count), key=itemgetter(0)
            )
        return best

    def _in_domain(self, level: int, domain: int, count: int) -> Filled:
        left = int(self.levels[level][domain]) - count
        if level == self.tree.depth:
            return (1, left), [(domain, count)]
        score, node_counts = self._below(level, domain, count)
        return self._score(1, left, score), node_counts

    def _score(self, width: int, left: int, below: Score) -> Score:
        """Widths of all levels first, then what is left over at each."""
        half = len(below) // 2
        return (width, *below[:half], left, *below[half:])

    @staticmethod
    def widths(filled: Filled) -> Score:
        """The numbers of domains, from the top level down to nodes."""
        return filled[0][: len(filled[0]) // 2]

    def _below(self, level: int, domain: int, count: int) -> Filled:
        """Spread ``count`` pods over the children of one domain that is known to hold them."""
        low, high = self.inside(level, domain)
        single = self._best_of(level + 1, low, high, count)
        if single is not None:
            return single
        grain = self.grains[level + 1]
        sizes = self.levels[level + 1][low:high]
        avoided = self._avoided(low, high) if level + 1 == self.tree.depth else None
        if avoided is None:
            chosen = fewest_then_tightest(sizes // grain, count // grain)
            keeps = int(sizes[chosen].argmax())  # what is left over
        else:
            chosen = fewest_then_sparing(sizes // grain, count // grain, avoided)
            keeps = int(np.lexsort((-sizes[chosen], ~avoided[chosen]))[0])
        shares = sizes[chosen]
        shares[keeps] -= int(shares.sum()) - count
        return self._spread(level, low, chosen, shares)

    def _avoided(self, low: int, high: int) -> Mask | None:
        """Which of some nodes, by position, are avoided; None = none of them."""
        if self.avoided is None:
            return None
        avoided: Mask = self.avoided[self.tree.order[low:high]]
        return avoided if avoided.any() else None

    def _spread(self, level: int, low: int, chosen: Ints, shares: Ints) -> Filled:
        """These shares on these children of a domain of ``level``, each as good as can be further down."""
        below = level + 1
        if below == self.tree.depth:
            left = int((self.levels[below][low + chosen] - shares).sum())
            return (len(chosen), left), list(
                zip((low + chosen).tolist(), shares.tolist(), strict=True)
            )
        parts = [
            self._in_domain(below, low + int(c), int(s))
            for c, s in zip(chosen, shares, strict=True)
        ]
        score = tuple(map(sum, zip(*(score for score, _ in parts), strict=True)))
        return score, [pods for _, part in parts for pods in part]


# ---- How compact a set of placements is

PlacedPodSetGroup: TypeAlias = tuple[
    PodSetGroup, NodeCounts
]  # a podset group and where its pods are


def placed_podset_groups(admissions: Iterable[TentativeAdmission]) -> list[PlacedPodSetGroup]:
    """Every podset group of some gangs, with its node counts."""
    return [
        each for gang in admissions for each in per_podset_group(gang.request, gang.node_counts)
    ]


def domain_counts(podset_group: PodSetGroup, node_counts: NodeCounts) -> tuple[int, ...]:
    """Domains a podset group uses at each level, nodes last."""
    nodes = np.concatenate([nodes for nodes, _ in node_counts])
    return tuple(
        len({*of.tolist()}) for of in (*(row[nodes] for row in podset_group.tree.domain), nodes)
    )


def levels_to_try(podset_group: PodSetGroup) -> Iterator[int]:
    """The preferred level, then coarser ones up to what is required."""
    yield from range(podset_group.preferred, podset_group.required, -1)
    yield podset_group.required


def level_reached(podset_group: PodSetGroup, used: Sequence[int]) -> int:
    """The first of the levels to try at which a podset group of these domain_counts is in one domain; ANYWHERE if it is at none."""
    levels = levels_to_try(podset_group)
    return next((level for level in levels if level == ANYWHERE or used[level] <= 1), ANYWHERE)


def misses_preference(podset_group: PodSetGroup, used: Sequence[int]) -> bool:
    """Whether a podset group of these domain_counts misses the level it prefers."""
    return podset_group.preferred != ANYWHERE and used[podset_group.preferred] > 1


def width(request: GangRequest, node_counts: NodeCounts) -> tuple[int, ...]:
    """How many domains a gang of one topology uses; of two placements the lesser is narrower.

    Returns:
        PodSet groups that miss the level they prefer; the domains that each podset group uses, summed, level by level from the top and nodes
        last; those that the gang uses, each counted once, likewise.
    """
    rows, missed = [], 0
    for podset_group, own in per_podset_group(request, node_counts):
        rows.append(domain_counts(podset_group, own))
        missed += misses_preference(podset_group, rows[-1])
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
    names = enumerate(problem.resources)
    return [i for i, name in names if name not in COMMON and not is_limit_row(name)]


def devices(problem: Problem) -> Ints:
    """Allocatable devices per node, (columns, N)."""
    amounts: Ints = problem.index.allocatable[device_columns(problem)]
    return amounts


@dataclass(eq=False)
class Wholes:
    """The nodes and racks that are whole and free before some gangs start.

    Attributes:
        in_use: nodes that other gangs of the same plan use, which are no longer whole.
    """

    problem: Problem
    in_use: Mask | None = None

    @cached_property
    def nodes(self) -> Mask:
        untouched = (self.problem.now[device_columns(self.problem)] >= devices(self.problem)).all(
            axis=0
        )
        gangs = (self.problem.usage.free != self.problem.index.allocatable).any(axis=0)
        free: Mask = self.problem.index.ready & ~gangs & untouched & self._worth
        return free if self.in_use is None else free & ~self.in_use

    @cached_property
    def _worth(self) -> Mask:
        """The nodes that are worth keeping whole: those with accelerators, otherwise with devices; all where no node has any."""
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
    levels = map(sum, zip_longest(*(row[:-1] for row in used), fillvalue=0))
    missed = sum(
        misses_preference(podset_group, row)
        for (podset_group, _), row in zip(placed, used, strict=True)
    )
    return (*levels, sum(row[-1] for row in used), missed, *wholes.broken(placed))
