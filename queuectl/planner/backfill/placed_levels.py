"""The topology levels that a placement reaches."""

from __future__ import annotations

from dataclasses import replace

from queuectl.planner.capacity.node_counts import NodeCounts
from queuectl.planner.placement.several import levels_to_try
from queuectl.planner.problem.request import ANYWHERE, GangRequest, PodSetGroup


def as_placed(request: GangRequest, node_counts: NodeCounts) -> GangRequest:
    """The request with each preferred level that a placement reaches as a required one."""
    groups, at = [], 0
    for group in request.podset_groups:
        placed = node_counts[at : at + len(group.pods)]
        groups.append(replace(group, required=_level(group, placed)))
        at += len(group.pods)
    return replace(request, podset_groups=tuple(groups))


def _level(group: PodSetGroup, placed: NodeCounts) -> int:
    if group.preferred == ANYWHERE:
        return group.required
    tree = group.tree
    nodes = {int(node) for each, _ in placed for node in each}
    for level in levels_to_try(group):
        if level == ANYWHERE:
            break
        if level == tree.depth:
            if len(nodes) == 1 and group.bundle is not None:
                return level
        elif len({int(tree.domain[level][node]) for node in nodes}) == 1:
            return level
    return group.required
