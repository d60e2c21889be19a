"""PodSet groups as consolidation sees them: what shares a node stays together, and what shares a domain keeps sharing one.

The pods that a podset group has on one node become one pod, a *bundle*. Whatever is done with bundles, the podset group never needs more
nodes than before; and as it is required to share the domain that it shares now, never more domains of that level either.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np

from queuectl.planner.capacity.node_counts import NodeCounts
from queuectl.planner.placement.measure import PlacedPodSetGroup, domain_counts
from queuectl.planner.placement.several import levels_to_try
from queuectl.planner.problem.problem import Problem
from queuectl.planner.problem.request import ANYWHERE, PodSetGroup, ShapePods, as_one_pod
from queuectl.planner.problem.topology import Ints

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
    held = next(
        (at for at in levels_to_try(podset_group) if at == ANYWHERE or used[at] == 1), ANYWHERE
    )
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
