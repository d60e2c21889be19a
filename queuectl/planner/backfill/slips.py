"""Planned starts as values of the plan: what each awaits, and why one is later than the last plan had it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from queuectl.domain.plan import Planned, SlipCause
from queuectl.domain.snapshot import Admitted, PlannedStart
from queuectl.planner.backfill.timeline import Timeline
from queuectl.planner.capacity.node_counts import PlannedGang
from queuectl.planner.capacity.placements import placement_of
from queuectl.planner.order.queue_order import place
from queuectl.planner.problem.problem import Problem
from queuectl.planner.problem.topology import Mask

SLACK: Final = 60.0
"""Seconds by which a start can be later than planned: the gangs before it take time to stop."""
MOST_OVERRUNS: Final = 2
"""A gang that was moved so often by gangs that ran longer than expected is guarded from such gangs."""
_MOST_AWAITED: Final = 64


def planned(timeline: Timeline, gang: PlannedGang) -> Planned:
    """A planned start for the plan."""
    problem = timeline.state.problem
    snapshot = problem.snapshot
    last = gang.request.pending.planned_start
    slips = last is not None and gang.at > last.promised + SLACK
    cause = _cause(timeline, gang, last) if last is not None and slips else None
    kept = last is not None and cause is None and last.promised <= gang.latest
    start = PlannedStart(
        at=gang.at,
        placement=placement_of(problem, gang.request, gang.node_counts),
        promised=last.promised if last is not None and kept else gang.latest,
        awaits=tuple(_awaited(timeline, gang)),
        revision=snapshot.config.revision,
        made_at=last.made_at if last is not None and kept else snapshot.now,
        overruns=(last.overruns if last is not None else 0) + (cause is SlipCause.OVERRUN),
    )
    return Planned(gang.uid, start, cause)


def _awaited(timeline: Timeline, gang: PlannedGang) -> Iterator[tuple[str, float]]:
    """The gangs on its nodes, or with quota that it needs, that end before it starts; those that end last, first."""
    problem = timeline.state.problem
    nodes = (
        np.unique(np.concatenate([at for at, _ in gang.node_counts])) if gang.node_counts else ()
    )
    rows = {row[1:] for row, _ in gang.request.rows()}
    listed = 0
    for other in reversed(timeline.ended(gang.at)):
        if listed == _MOST_AWAITED:
            return
        on_nodes = bool(np.isin(problem.usage.slots(other)[0], nodes).any())
        if on_nodes or any(row[1:] in rows for row, _ in problem.usage.charges(other)):
            assert other.ends_at is not None
            listed += 1
            yield other.workload.uid, other.ends_at


def _cause(timeline: Timeline, gang: PlannedGang, last: PlannedStart) -> SlipCause:
    """The first cause of which there is evidence."""
    problem = timeline.state.problem
    snapshot = problem.snapshot
    if _lost_node(problem, gang, last):
        return SlipCause.LOST_NODE
    running = {g.workload.uid: g for g in snapshot.admitted}
    if any(_overran(running.get(uid), end) for uid, end in last.awaits):
        return SlipCause.OVERRUN
    if last.revision != snapshot.config.revision:
        return SlipCause.CONFIGURATION
    mine = place(gang.request.pending.workload)
    queue = snapshot.queue_of(gang.request.pending.workload)
    newer = [g.workload for g in snapshot.admitted if g.started_at >= last.made_at]
    newer += [a.request.pending.workload for a in timeline.state.admissions]
    foreign = [w for w in newer if snapshot.queue_of(w) is not queue and place(w) > mine]
    return SlipCause.RECLAIM if foreign else SlipCause.HIGHER_PRIORITY


def _overran(gang: Admitted | None, expected: float) -> bool:
    return gang is not None and (gang.ends_at is None or gang.ends_at > expected + SLACK)


def _lost_node(problem: Problem, gang: PlannedGang, last: PlannedStart) -> bool:
    """Whether it can no longer use a node on which it was planned."""
    at = problem.index.position
    if not gang.request.pods:
        return False
    usable: Mask = np.logical_or.reduce([p.shape.eligible for p in gang.request.pods])
    names = [name for podset in last.placement.podsets for name, _ in podset.nodes]
    return any(name not in at or not usable[at[name]] for name in names)
