"""The tree of domains that topology labels make of a fleet, as index arrays.

A :class:`Tree` belongs to one tuple of levels (labels, coarse to fine). ``kubernetes.io/hostname`` as the finest level is
not a domain here: every node is its own. Nodes that miss a level label are invisible to gangs of that topology.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from queuectl.domain.fleet import HOSTNAME, Node
from queuectl.domain.queues import Topology
from queuectl.domain.words import by_numbers
from queuectl.domain.workload import TopologyRequest

Ints: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Tree:
    """Domains of one topology over one fleet; N nodes, D_l domains at level l.

    Attributes:
        levels: labels above the node, coarse to fine.
        node_level: label of single nodes (``kubernetes.io/hostname``), None if the topology has none.
        domain: per level, the domain index of each node, -1 where the node is invisible. Shape (N,).
        names: per level, the label values of the path to each domain.
        order: visible node indexes sorted by path, then by name: neighbors in it are neighbors in the topology.
        position: position of each node in ``order``, or N where invisible. Shape (N,).
        starts: per level, where each domain begins in ``order``. Domains are numbered in that order.
    """

    levels: tuple[str, ...]
    node_level: str | None
    domain: tuple[Ints, ...]
    names: tuple[tuple[tuple[str, ...], ...], ...]
    order: Ints
    position: Ints
    starts: tuple[Ints, ...]

    @cached_property
    def depth(self) -> int:
        """Number of levels above the node."""
        return len(self.levels)

    @cached_property
    def children(self) -> tuple[Ints, ...]:
        """Per level, the first domain one level below of each domain; of the finest level, its first position in ``order``."""
        if not self.depth:
            return ()
        pairs = zip(self.starts[:-1], self.starts[1:], strict=True)
        return (*(fine.searchsorted(coarse) for coarse, fine in pairs), self.starts[-1])

    @cached_property
    def spans(self) -> tuple[list[int], ...]:
        """The same with the end of the last one appended, for looking up one domain."""
        ends = [*(len(starts) for starts in self.starts[1:]), len(self.order)]
        return tuple([*row.tolist(), end] for row, end in zip(self.children, ends, strict=False))

    def level_of(self, label: str) -> int | None:
        """Index of a level label; ``depth`` = the node itself; None when the topology has no such level."""
        if label == self.node_level:
            return self.depth
        return self.levels.index(label) if label in self.levels else None

    def sums(self, level: int, per_node: Ints) -> Ints:
        """Exact sum of a per-node quantity over each domain of a level."""
        if not len(self.starts[level]):
            return np.zeros(0, dtype=np.int64)
        return np.add.reduceat(per_node[self.order], self.starts[level])

    def nodes_in(self, level: int, domain: int) -> Ints:
        """Node indexes of one domain, in topology order."""
        starts = self.starts[level]
        end = starts[domain + 1] if domain + 1 < len(starts) else len(self.order)
        return self.order[starts[domain] : end]

    def within(self, nodes: Ints) -> Tree:
        """The tree of some of its nodes alone, without the domains they leave empty.

        Args:
            nodes: visible node indexes in topology order; number i of them is node i of the new tree.
        """
        domain, names, starts = [], [], []
        for row, known in zip(self.domain, self.names, strict=True):
            of = row[nodes]
            first = np.ones(len(of), dtype=np.bool_)
            first[1:] = of[1:] != of[:-1]
            starts.append(first.nonzero()[0])
            domain.append(first.cumsum() - 1)
            names.append(tuple(map(known.__getitem__, of[starts[-1]].tolist())))
        order = np.arange(len(nodes))
        return Tree(
            self.levels, self.node_level, tuple(domain), tuple(names), order, order, tuple(starts)
        )


def grow(nodes: Sequence[Node], labels: Sequence[str]) -> Tree:
    """Build the tree of one topology."""
    levels = tuple(label for label in labels if label != HOSTNAME)
    members: dict[tuple[str, ...], list[int]] = {}
    for i, node in enumerate(nodes):
        path = tuple([node.labels.get(label, "") for label in levels])
        if all(path) and (HOSTNAME not in labels or HOSTNAME in node.labels):
            members.setdefault(path, []).append(i)
    paths = sorted(members, key=lambda path: [(_by_numbers(value), value) for value in path])
    visible = [sorted(members[path], key=lambda i: _by_numbers(nodes[i].name)) for path in paths]
    order = np.array(list(chain.from_iterable(visible)), dtype=np.int64)
    position = np.full(len(nodes), len(nodes), dtype=np.int64)
    position[order] = np.arange(len(order))
    begins = np.cumsum([0, *map(len, visible)])
    rows = [_level([path[: level + 1] for path in paths], begins) for level in range(len(levels))]
    domain = [np.full(len(nodes), -1, dtype=np.int64) for _ in rows]
    for row, (starts, _) in zip(domain, rows, strict=True):
        row[order] = starts.searchsorted(np.arange(len(order)), side="right") - 1
    return Tree(
        levels=levels,
        node_level=HOSTNAME if HOSTNAME in labels else None,
        domain=tuple(domain),
        names=tuple(names for _, names in rows),
        order=order,
        position=position,
        starts=tuple(starts for starts, _ in rows),
    )


def misfit(request: TopologyRequest, topology: Topology) -> str | None:
    """Why a topology cannot serve a request: a level it has not, or slices not inside each other from coarse to fine."""
    missing = sorted(set(request.levels) - set(topology.levels))
    if missing:
        return f"topology {topology.name} has no level {missing[0]}"
    own = topology.levels.index(request.level) if request.level is not None else 0
    for number, layer in enumerate(request.slices):
        at = topology.levels.index(layer.level)
        if at < own:
            return f"slice level {layer.level} is coarser than the requested level {request.level}"
        if number and at <= topology.levels.index(request.slices[number - 1].level):
            above = request.slices[number - 1].level
            return f"slice level {layer.level} is not finer than the slice level {above} above it"
    return None


# A fleet that changed has most of its names still.
_by_numbers = lru_cache(maxsize=1 << 16)(by_numbers)


def _level(
    prefixes: Sequence[tuple[str, ...]], begins: Ints
) -> tuple[Ints, tuple[tuple[str, ...], ...]]:
    """Where the domains of one level start in the sorted order, and their names.

    Args:
        prefixes: down to the level, of the paths in order.
        begins: where the nodes of each path begin in the sorted order.
    """
    new = [at for at, prefix in enumerate(prefixes) if not at or prefix != prefixes[at - 1]]
    return begins[new], tuple(prefixes[at] for at in new)
