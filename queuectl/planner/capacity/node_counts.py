"""How many pods of a gang are on which nodes: what they use there, whether they fit, and the placement that this is.

Functions on free matrices (R, N); :mod:`queuectl.planner.capacity.state` keeps those of a cycle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

import numpy as np

from queuectl.domain.snapshot import Admitted
from queuectl.domain.workload import Placement, PodSet, PodSetPlacement
from queuectl.planner.problem.fleet import Ints, Tree
from queuectl.planner.problem.problem import Problem
from queuectl.planner.problem.request import GangRequest, PodSetGroup, ShapePods, joined

NodeCounts: TypeAlias = tuple[
    tuple[Ints, Ints], ...
]  # per pods of the request: node indexes, pods on each


@dataclass(eq=False, slots=True)
class TentativeAdmission:
    """A gang that this plan starts (or repairs), and where it is placed at this point of the cycle.

    Attributes:
        fixed: it takes the placement leased to it; later gangs cannot have it moved.
    """

    request: GangRequest
    node_counts: NodeCounts
    fixed: bool = False


@dataclass(eq=False, slots=True)
class PlannedGang:
    """A gang that waits, and its planned start at this point of the cycle.

    Attributes:
        request: a preferred level that it gets is required, so that it can be placed elsewhere without losing that.
        at: unix seconds of its start.
        until: unix seconds of its expected end; infinite if unknown.
        latest: unix seconds until which later gangs can delay its start.
    """

    request: GangRequest
    node_counts: NodeCounts
    at: float
    until: float
    latest: float

    @property
    def uid(self) -> str:
        """Of the gang."""
        return self.request.pending.workload.uid

    def holds(self, at: float) -> bool:
        """Whether it holds its room at a time, in unix seconds."""
        return self.at <= at < self.until


@dataclass(frozen=True, eq=False, slots=True)
class Reservation:
    """Capacity kept for a pending gang that can start as soon as its own victims have left.

    Attributes:
        victims: those of them that still hold something.
        nodes: indexes (K,) of the nodes it is on, each once.
        kept_now: (R, K) the part of the free capacity there that is kept for it now.
    """

    request: GangRequest
    node_counts: NodeCounts
    victims: tuple[Admitted, ...]
    nodes: Ints
    kept_now: Ints

    @property
    def uid(self) -> str:
        """Of the gang that waits."""
        return self.request.pending.workload.uid


def per_podset_group(
    request: GangRequest, node_counts: NodeCounts
) -> Iterator[tuple[PodSetGroup, NodeCounts]]:
    """Each podset group of a request with the node counts of its pods."""
    at = 0
    for podset_group in request.podset_groups:
        yield podset_group, node_counts[at : at + len(podset_group.pods)]
        at += len(podset_group.pods)


def nodes_of(node_counts: Iterable[tuple[Ints, Ints]]) -> Ints:
    """Indexes of the nodes of some pods, each once, ascending."""
    return _distinct(nodes for nodes, _ in node_counts)


def _distinct(nodes: Iterable[Ints]) -> Ints:
    return np.unique(np.concatenate([np.zeros(0, np.int64), *nodes]))


def use_of_counts(
    pods: Sequence[ShapePods], node_counts: NodeCounts
) -> Iterator[tuple[Ints, Ints]]:
    """Node indexes (K,) and amounts (R, K) of each of these pods."""
    for p, (nodes, counts) in zip(pods, node_counts, strict=True):
        yield nodes, p.shape.vector[:, None] * counts


def take(free: Ints, pods: Sequence[ShapePods], node_counts: NodeCounts) -> None:
    """Take what these pods use there off a free matrix (R, N)."""
    for nodes, amounts in use_of_counts(pods, node_counts):
        free[:, nodes] -= amounts


def give_back(free: Ints, pods: Sequence[ShapePods], node_counts: NodeCounts) -> None:
    """Add what these pods use there to a free matrix (R, N)."""
    for nodes, amounts in use_of_counts(pods, node_counts):
        free[:, nodes] += amounts


def fits(free: Ints, pods: tuple[ShapePods, ...], node_counts: NodeCounts) -> bool:
    """Whether these pods, together, fit a free matrix on real vectors."""
    touched = nodes_of(node_counts)
    left = free[:, touched].copy()
    asked = np.zeros(left.shape, dtype=np.bool_)
    for p, (nodes, counts) in zip(pods, node_counts, strict=True):
        at = np.searchsorted(touched, nodes)
        add_at(left, at, -np.outer(p.shape.vector, counts))
        asked[np.ix_(np.array(p.shape.columns, dtype=np.int64), at)] = True
    return bool(np.all(left[asked] >= 0))


def short_nodes(free: Ints, pods: Sequence[ShapePods], node_counts: NodeCounts) -> Ints:
    """Indexes of the nodes of these pods on which a free matrix is below zero for a resource that they request."""
    short = [
        nodes[(free[np.ix_(np.array(p.shape.columns, np.int64), nodes)] < 0).any(axis=0)]
        for p, (nodes, _) in zip(pods, node_counts, strict=True)
    ]
    return _distinct(short)


def add_at(matrix: Ints, nodes: Ints, amounts: Ints) -> None:
    """Add amounts (R, K) at node indexes (K,), which can repeat: they are distinct only per pods of a request."""
    np.add.at(matrix.T, nodes, amounts.T)


# ---- Placements: node names, in the order of ranks


def placement_of(
    problem: Problem,
    request: GangRequest,
    node_counts: NodeCounts,
    staying: Mapping[str, Mapping[str, int]] | None = None,
    before: Placement | None = None,
) -> Placement:
    """The placement of a gang: nodes of each podset in topology order, so that neighboring ranks are neighbors.

    In a repair healthy pods keep their ranks, and so do the lost ones (:mod:`queuectl.planner.capacity.node_counts`).

    Args:
        problem: of the snapshot.
        request: the gang under its flavors.
        node_counts: where the pods of the request go.
        staying: podset to node to pods that stay where they are (a repair).
        before: the placement that is repaired.
    """
    slots: list[dict[str, int]] = [
        dict((staying or {}).get(podset.name, {})) for podset in request.pending.workload.podsets
    ]
    for pods, (nodes, counts) in zip(request.pods, node_counts, strict=True):
        row = slots[pods.podset]
        for node, count in zip(nodes.tolist(), counts.tolist(), strict=True):
            name = problem.index.nodes[node].name
            row[name] = row.get(name, 0) + count * pods.size
    trees = {
        p.podset: podset_group.tree
        for podset_group in request.podset_groups
        for p in podset_group.pods
    }
    fallback = request.podset_groups[0].tree if request.podset_groups else None
    podsets = request.pending.workload.podsets
    placed = tuple(
        PodSetPlacement(
            podset.name,
            _Order(problem, trees.get(number, fallback)).nodes(
                podset, row, (staying or {}).get(podset.name, {}), before
            ),
            dict(request.flavors[number]),
            _starts_with(podset, before),
        )
        for number, (podset, row) in enumerate(zip(podsets, slots, strict=True))
    )
    return Placement(placed) if request.cut is None else joined(request.cut, podsets, placed)


def _starts_with(podset: PodSet, before: Placement | None) -> int | None:
    """Pods of a podset that may start with fewer; what runs already does so with as many as it was given."""
    if podset.min_count is None:
        return None
    placed = before.of(podset.name) if before is not None else None
    return podset.count if placed is None else placed.pods_of(podset)


@dataclass(frozen=True, slots=True)
class _Order:
    """The order of nodes in one topology."""

    problem: Problem
    tree: Tree | None

    def nodes(
        self,
        podset: PodSet,
        row: Mapping[str, int],
        staying: Mapping[str, int],
        before: Placement | None,
    ) -> tuple[tuple[str, int], ...]:
        """Node and pods by rank."""
        placed = before.of(podset.name) if before is not None else None
        if placed is not None:
            rank_nodes = rank_nodes_of(placed.nodes, staying, row, self.place)
            if rank_nodes is not None:
                return rank_nodes.fill(self.layers(podset))
        return tuple((name, row[name]) for name in sorted(row, key=self.place))

    def place(self, name: str) -> tuple[int, str]:
        at = self.problem.index.position.get(name)
        return (0 if self.tree is None or at is None else int(self.tree.position[at])), name

    def layers(self, podset: PodSet) -> list[Layer]:
        """Slices from fine to coarse, each with the domain of a node."""
        slices = podset.topology.slices if podset.topology is not None else ()
        return [(layer.size, self._domain_at(layer.level)) for layer in reversed(slices)]

    def _domain_at(self, label: str) -> Callable[[str], object]:
        level = self.tree.level_of(label) if self.tree is not None else None

        def domain(name: str) -> object:
            at = self.problem.index.position.get(name)
            if self.tree is None or level is None or level == self.tree.depth or at is None:
                return name
            return int(self.tree.domain[level][at])

        return domain


def node_counts_of(
    problem: Problem, request: GangRequest, placement: Placement
) -> NodeCounts | None:
    """The node counts of a placement made earlier; None when it is not whole or on a node the gang may no longer use."""
    node_counts = []
    for pods in request.pods:
        placed = placement.of(request.pending.workload.podsets[pods.podset].name)
        if placed is None or placed.count != pods.total:
            return None
        if any(count % pods.size for _, count in placed.nodes):
            return None
        known = [problem.index.position.get(name) for name, _ in placed.nodes]
        nodes = np.array([at for at in known if at is not None], dtype=np.int64)
        if len(nodes) < len(known) or not pods.shape.eligible[nodes].all():
            return None
        node_counts.append(
            (nodes, np.array([n // pods.size for _, n in placed.nodes], dtype=np.int64))
        )
    return tuple(node_counts)


Layer = tuple[int, Callable[[str], object]]  # size of a slice, and the domain a node is in


@dataclass(eq=False)
class RankNodes:
    """The ranks of one podset, in order.

    Attributes:
        nodes: of each rank; None where it was lost.
        free: nodes of the pods that are placed again, one entry per pod, in topology order.
    """

    nodes: list[str | None]
    free: list[str]

    def fill(self, layers: Sequence[Layer]) -> tuple[tuple[str, int], ...]:
        """Give every lost rank a node; ``layers`` from fine to coarse."""
        for size, domain_of in layers:
            self._complete(size, domain_of)
        rest = iter(self.free)
        seated = (node if node is not None else next(rest) for node in self.nodes)
        return tuple((node, len([*run])) for node, run in groupby(seated))

    def _complete(self, size: int, domain_of: Callable[[str], object]) -> None:
        """Seat the lost ranks of slices that are not lost altogether."""
        for start in range(0, len(self.nodes), size):
            ranks = range(start, min(start + size, len(self.nodes)))
            left = [node for rank in ranks if (node := self.nodes[rank]) is not None]
            lost = [rank for rank in ranks if self.nodes[rank] is None] if left else []
            for rank in lost:
                node = next((n for n in self.free if domain_of(n) == domain_of(left[0])), None)
                if node is not None:
                    self.free.remove(node)
                    self.nodes[rank] = node


def rank_nodes_of(
    before: Sequence[tuple[str, int]],
    staying: Mapping[str, int],
    after: Mapping[str, int],
    order: Callable[[str], tuple[int, str]],
) -> RankNodes | None:
    """The seats of a podset before its lost pods are seated; None when the numbers of pods differ.

    Args:
        before: the placement it has, by rank.
        staying: node to its healthy pods.
        after: node to all its pods, once the lost ones are placed again.
        order: sort key of a node in the topology.
    """
    left = dict(staying)
    nodes: list[str | None] = []
    for node, count in before:
        stays = min(count, left.get(node, 0))
        left[node] = left.get(node, 0) - stays
        nodes += [node] * stays + [None] * (count - stays)
    free = [n for n in sorted(after, key=order) for _ in range(after[n] - staying.get(n, 0))]
    return RankNodes(nodes, free) if nodes.count(None) == len(free) else None
