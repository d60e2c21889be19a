"""Whole free nodes are kept for planned starts on several nodes, unless a gang with a learned run time leaves them early by far.

Learned run times are often exceeded, some by days. A gang that then holds one node of many delays a planned start that needs all of
them, and those after it. On a node that other gangs use already, it seldom does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from queuectl.planner.capacity.node_counts import NodeCounts, PlannedGang
from queuectl.planner.capacity.state import State
from queuectl.planner.placement.feasible import Decision
from queuectl.planner.placement.measure import device_columns, devices
from queuectl.planner.problem.request import GangRequest

MARGIN: Final = 4.0
"""A gang leaves early if this many times the longest run of earlier gangs like it ends before the planned start."""


def whole_node_kept_for(
    state: State, request: GangRequest, decision: Decision, ahead: Iterable[PlannedGang]
) -> PlannedGang | None:
    """The first planned gang that a whole free node is kept for; None = the gang can start where the decision puts it.

    Args:
        state: of the cycle.
        request: of the gang.
        decision: its nodes.
        ahead: the planned gangs that it must not delay.
    """
    duration = request.pending.workload.duration
    if duration is None or duration.longest is None:
        return None
    nodes = _nodes(decision.node_counts)
    if len(nodes) != 1 or not _wholly_free(state, nodes.pop()):
        return None
    gone = state.problem.snapshot.now + MARGIN * duration.longest
    wide = (gang for gang in ahead if len(_nodes(gang.node_counts)) > 1)
    return next((gang for gang in wide if gone > gang.at), None)


def _wholly_free(state: State, node: int) -> bool:
    """Whether it has devices, and none is in use."""
    columns = device_columns(state.problem)
    there = devices(state.problem)[:, node]
    free = state.now.free[columns, node]
    return bool(there.any()) and bool((free >= there).all())


def _nodes(node_counts: NodeCounts) -> set[int]:
    return {int(node) for nodes, _ in node_counts for node in nodes}
