"""How many pods of a gang are on which nodes: what they use there, and whether they fit.

Functions on free matrices (R, N); :mod:`queuectl.planner.capacity.state` keeps those of a cycle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from queuectl.domain.snapshot import Admitted
from queuectl.planner.problem.request import GangRequest, PodSetGroup, ShapePods
from queuectl.planner.problem.topology import Ints

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

    def per_podset_group(self) -> Iterator[tuple[PodSetGroup, NodeCounts]]:
        """Each podset group of its request with the node counts of that podset group's pods."""
        at = 0
        for podset_group in self.request.podset_groups:
            yield podset_group, self.node_counts[at : at + len(podset_group.pods)]
            at += len(podset_group.pods)


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
        kept: (R, K) the part of the free capacity there that is kept for it now.
    """

    request: GangRequest
    node_counts: NodeCounts
    victims: tuple[Admitted, ...]
    nodes: Ints
    kept: Ints

    @property
    def uid(self) -> str:
        """Of the gang that waits."""
        return self.request.pending.workload.uid


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
    touched = (
        np.unique(np.concatenate([nodes for nodes, _ in node_counts]))
        if node_counts
        else np.zeros(0, int)
    )
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
    return np.unique(np.concatenate([np.zeros(0, np.int64), *short]))


def add_at(matrix: Ints, nodes: Ints, amounts: Ints) -> None:
    """Add amounts (R, K) at node indexes (K,), which can repeat: they are distinct only per pods of a request."""
    np.add.at(matrix.T, nodes, amounts.T)
