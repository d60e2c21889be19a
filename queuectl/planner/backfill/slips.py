"""Planned starts as values of the plan: what each awaits, and the cause if it is later than the last plan had it.

A gang for which this plan finds no time keeps its last planned start, and its number of overruns, for the plans that follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

import numpy as np

from queuectl.domain.plan import ScheduledGang, SlipCause
from queuectl.domain.snapshot import Admitted, PlannedStart
from queuectl.domain.workload import Placement, Workload
from queuectl.planner.backfill.timeline import Timeline
from queuectl.planner.capacity.node_counts import (
    NodeCounts,
    PlannedGang,
    node_counts_of,
    nodes_of,
    placement_of,
    short_nodes,
    take,
)
from queuectl.planner.order.queue_order import place
from queuectl.planner.problem.fleet import Ints
from queuectl.planner.problem.limit_rows import reservation_of_row
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.quota import FlavorResource

# ---- Causes of late planned starts
#
# The last plan had proved that the gang fits there then. So one of its nodes is lost, a gang is on one of them, or a gang uses quota that
# it needs.

_FIRST: Final = (
    SlipCause.OVERRUN,
    SlipCause.LOST_NODE,
    SlipCause.RECLAIM,
    SlipCause.HIGHER_PRIORITY,
)


@dataclass(eq=False)
class Lateness:
    """One gang that starts later than the last plan had it.

    Attributes:
        request: of the gang.
        last: its last planned start.
        ahead: the planned starts before it in this plan.
        causes: uid to cause, of those of them that are late themselves.
    """

    timeline: Timeline
    request: GangRequest
    last: PlannedStart
    ahead: Sequence[PlannedGang]
    causes: Mapping[str, SlipCause]

    def cause(self) -> SlipCause:
        """The cause with the most direct evidence."""
        if self._last_nodes is None:
            return SlipCause.CONFIGURATION if self._nodes_remain() else SlipCause.LOST_NODE
        found = {*self._of_running(), *self._of_starting(), *self._of_reserved(), *self._of_ahead()}
        for cause in _FIRST:
            if cause in found:
                return cause
        if len(self._short_nodes):
            # Pods of no queue are on a node, or it has become smaller, unless only Reservations keep the room.
            lost = self._short_without_reservations()
            return SlipCause.LOST_NODE if lost else SlipCause.CONFIGURATION
        changed = self.last.revision != self.timeline.state.problem.snapshot.config.revision
        if changed or self._short_quota:
            return SlipCause.CONFIGURATION
        return SlipCause.HIGHER_PRIORITY  # it has to start after a gang before it in queue order

    # Where it was planned, and what is missing there.

    @cached_property
    def _then(self) -> float:
        return max(self.last.at, self.last.promised or 0.0, self.timeline.now)

    @cached_property
    def _last_nodes(self) -> NodeCounts | None:
        return node_counts_of(self.timeline.state.problem, self.request, self.last.placement)

    def _nodes_remain(self) -> bool:
        """Whether all nodes on which it was planned take pods: then the rules have changed."""
        snapshot = self.timeline.state.problem.snapshot
        known = snapshot.fleet.by_name
        names = _names(self.last.placement)
        usable = all(name in known and known[name].in_service for name in names)
        return usable and self.last.revision != snapshot.config.revision

    @cached_property
    def _left(self) -> Ints:
        """(R, N) free then where it was planned, with the gang; negative = too little room."""
        assert self._last_nodes is not None
        free = self.timeline.free(self._then, self.ahead)
        take(free, self.request.pods, self._last_nodes)
        return free

    @cached_property
    def _short_nodes(self) -> Ints:
        """Indexes of the nodes on which it was planned and that have too little room then."""
        return short_nodes(self._left, self.request.pods, self._last_nodes or ())

    def _short_without_reservations(self) -> bool:
        """Whether some of these nodes would have too little room without the Reservations too."""
        names = self.timeline.state.problem.index.resources
        reserved = [row for row, name in enumerate(names) if reservation_of_row(name) is not None]
        left = self._left.copy()
        left[reserved] = 0
        return len(short_nodes(left, self.request.pods, self._last_nodes or ())) > 0

    @cached_property
    def _short_quota(self) -> frozenset[FlavorResource]:
        """Flavors and resources of which its ClusterQueue then has too little quota."""
        queue, state = self.request.queue, self.timeline.state
        if queue is None:
            return frozenset()
        use = self.timeline.use(self._then, self.ahead)
        borrows = state.quota.may_borrow(self.request)
        return frozenset(row for row, _ in use.short(queue, self.request.charges, borrows=borrows))

    # The gangs that use it.

    def _of_running(self) -> Iterator[SlipCause]:
        """Of running gangs that are still there then."""
        ended = {gang.workload.uid for gang in self.timeline.ended(self._then)}
        state = self.timeline.state
        usage = state.problem.usage
        for gang in state.problem.snapshot.admitted:
            nodes, _ = usage.slots(gang)
            if gang.leaving and self._then == self.timeline.now:
                if bool(np.isin(nodes, nodes_of(self._last_nodes or ())).any()):
                    yield SlipCause.OVERRUN  # it takes longer to stop
                continue
            if gang.workload.uid in ended | state.evicted | state.repairing:
                continue
            quota = any(row[1:] in self._short_quota for row, _ in usage.charges(gang))
            if not quota and not bool(np.isin(nodes, self._short_nodes).any()):
                continue
            if self._overran(gang):
                yield SlipCause.OVERRUN
            elif gang.started_at > self.last.made_at:
                yield self._passed_by(gang.workload)

    def _overran(self, gang: Admitted) -> bool:
        """Whether it was expected to have ended by then: in the last plan, or when it started."""
        expected = dict(self.last.awaits).get(gang.workload.uid)
        if expected is not None and gang.started_at <= self.last.made_at:
            return True
        duration = gang.workload.duration
        return duration is not None and gang.started_at + duration.seconds <= self._then

    def _of_starting(self) -> Iterator[SlipCause]:
        """Of gangs that start in this plan, or are repaired."""
        timeline = self.timeline
        for admission in timeline.state.admissions:
            workload = admission.request.pending.workload
            if timeline.holds(admission.request, self._then) and self._uses(
                admission.request, admission.node_counts
            ):
                repaired = workload.uid in timeline.state.repairing
                yield SlipCause.LOST_NODE if repaired else self._passed_by(workload)

    def _of_reserved(self) -> Iterator[SlipCause]:
        """Of gangs that wait for their victims, since the last plan or earlier."""
        state = self.timeline.state
        for reservation in state.reservations.values():
            if self._uses(reservation.request, reservation.node_counts):
                yield self._passed_by(reservation.request.pending.workload)
        fleet = state.problem.snapshot.fleet.nodes
        short = {fleet[node].name for node in self._short_nodes}
        for pending in state.problem.snapshot.pending:
            if pending.lease is not None and short & _names(pending.lease.placement):
                yield self._passed_by(pending.workload)

    def _of_ahead(self) -> Iterator[SlipCause]:
        """Of gangs with a planned start before it: theirs if they are late too."""
        for gang in self.ahead:
            if gang.holds(self._then) and self._uses(gang.request, gang.node_counts):
                yield self.causes.get(gang.uid, SlipCause.HIGHER_PRIORITY)

    def _uses(self, request: GangRequest, node_counts: NodeCounts) -> bool:
        if any(np.isin(nodes, self._short_nodes).any() for nodes, _ in node_counts):
            return True
        return any(row[1:] in self._short_quota for row, _ in request.rows())

    def _passed_by(self, workload: Workload) -> SlipCause:
        """The cause when this gang starts first: it is before it in queue order, or takes quota of its own ClusterQueue."""
        snapshot = self.timeline.state.problem.snapshot
        mine = self.request.pending.workload
        foreign = snapshot.queue_of(workload) is not snapshot.queue_of(mine)
        if foreign and place(workload) > place(mine):
            return SlipCause.RECLAIM
        return SlipCause.HIGHER_PRIORITY


def _names(placement: Placement) -> set[str]:
    return {name for podset in placement.podsets for name, _ in podset.nodes}


# ---- Planned starts of the plan

SLACK: Final = 60.0
"""Seconds by which a start can be later than planned: the gangs before it take time to stop."""
MOST_OVERRUNS: Final = 2
"""A gang that was moved so often by gangs that ran longer than expected is guarded from such gangs."""
_MOST_AWAITED: Final = 64


@dataclass(frozen=True, slots=True)
class Lapsed:
    """A gang that had a planned start, and for which this plan finds no time.

    Attributes:
        undecided: a search for a time ended without an answer.
    """

    request: GangRequest
    undecided: bool


@dataclass(eq=False)
class Slips:
    """The planned starts of one plan, compared with those of the last one.

    Attributes:
        gangs: in the order in which they were planned.
        causes: of those that are late, by uid.
    """

    timeline: Timeline
    gangs: Sequence[PlannedGang]
    causes: dict[str, SlipCause] = field(default_factory=dict)

    def planned(self, lapsed: Sequence[Lapsed]) -> Iterator[ScheduledGang]:
        """All planned starts, and those that are no longer known."""
        for number, gang in enumerate(self.gangs):
            yield self._of(gang, self.gangs[:number])
        for each in lapsed:
            yield self._lapsed(each)

    def _of(self, gang: PlannedGang, ahead: Sequence[PlannedGang]) -> ScheduledGang:
        problem = self.timeline.state.problem
        now = problem.snapshot.now
        last = gang.request.pending.planned_start
        promised = last.promised if last is not None else None
        start = PlannedStart(
            at=gang.at,
            placement=placement_of(problem, gang.request, gang.node_counts),
            promised=gang.latest,
            awaits=tuple(self._awaited(gang)),
            revision=problem.snapshot.config.revision,
            made_at=now,
            overruns=last.overruns if last is not None else 0,
        )
        if last is None or promised is None or gang.latest < promised:
            return ScheduledGang(gang.uid, start)
        if gang.at > promised:
            self.causes[gang.uid] = self._cause(gang.request, last, ahead)
        if gang.at > promised + SLACK:
            return self._slip(gang.uid, start)
        first = dict(last.awaits)
        awaits = tuple((uid, min(end, first.get(uid, end))) for uid, end in start.awaits)
        return ScheduledGang(
            gang.uid, replace(start, promised=promised, made_at=last.made_at, awaits=awaits)
        )

    def _lapsed(self, lapsed: Lapsed) -> ScheduledGang:
        uid = lapsed.request.pending.workload.uid
        last = lapsed.request.pending.planned_start
        assert last is not None
        if lapsed.undecided or last.promised is None:
            return ScheduledGang(uid, last, is_current=False)
        self.causes[uid] = self._cause(lapsed.request, last, self.gangs)
        return replace(self._slip(uid, replace(last, promised=None)), is_current=False)

    def _slip(self, uid: str, start: PlannedStart) -> ScheduledGang:
        cause = self.causes[uid]
        overruns = start.overruns + (cause is SlipCause.OVERRUN)
        return ScheduledGang(uid, replace(start, overruns=overruns), cause)

    def _cause(
        self, request: GangRequest, last: PlannedStart, ahead: Sequence[PlannedGang]
    ) -> SlipCause:
        return Lateness(self.timeline, request, last, ahead, self.causes).cause()

    def _awaited(self, gang: PlannedGang) -> Iterator[tuple[str, float]]:
        """The gangs on its nodes, or with quota that it needs, that end before it starts; those that end last, first."""
        problem = self.timeline.state.problem
        nodes = nodes_of(gang.node_counts)
        rows = {row[1:] for row, _ in gang.request.rows()}
        listed = 0
        for other in reversed(self.timeline.ended(gang.at)):
            if listed == _MOST_AWAITED:
                return
            on_nodes = bool(np.isin(problem.usage.slots(other)[0], nodes).any())
            if on_nodes or any(row[1:] in rows for row, _ in problem.usage.charges(other)):
                assert other.ends_at is not None
                listed += 1
                yield other.workload.uid, other.ends_at
