"""The planned starts of one cycle: the first gangs of each line that wait, and when each can start.

They are planned in the order in which the cycle considers them. A gang that the cycle considers later starts only if all of them keep their
times. It can have them placed elsewhere, on as good a topology level. A single planned gang can also start later by a part of its run
time, up to its latest time: otherwise nodes would be idle for longer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from queuectl.domain.queues import BackfillOrder, ClusterQueue
from queuectl.domain.reasons import Reason
from queuectl.domain.snapshot import Admitted, Pending
from queuectl.domain.workload import Workload
from queuectl.planner.backfill.earliest_start import Question, StartSearch
from queuectl.planner.backfill.slips import MOST_OVERRUNS, Lapsed
from queuectl.planner.backfill.timeline import NOW, SOON, Timeline, end_of, first_fit
from queuectl.planner.capacity.node_counts import (
    NodeCounts,
    PlannedGang,
    nodes_of,
)
from queuectl.planner.capacity.state import CycleState, HeldCapacity
from queuectl.planner.order.limits import SharedClaimUse, share_claim
from queuectl.planner.order.queue_order import Lines, PlannedStartQueue, lines_of
from queuectl.planner.placement import greedy
from queuectl.planner.placement.feasible import Feasibility
from queuectl.planner.placement.single import device_columns, devices
from queuectl.planner.preempt.shortage import borrows
from queuectl.planner.problem.problem import caps
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.reasons import refusals
from queuectl.planner.solver import Solver, Status

# ---- Whole free nodes
#
# Learned run times are often exceeded, some by days. A gang that then holds one node of many delays a planned start that needs all of
# them, and those after it. On a node that other gangs use already, it seldom does.

MARGIN: Final = 4.0
"""A gang leaves early if this many times the longest run of earlier gangs like it ends before the planned start."""


def whole_node_kept_for(
    state: CycleState, request: GangRequest, decision: Feasibility, ahead: Iterable[PlannedGang]
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
    nodes = nodes_of(decision.node_counts)
    if len(nodes) != 1 or not _wholly_free(state, int(nodes[0])):
        return None
    gone = state.problem.snapshot.now + MARGIN * duration.longest
    wide = (gang for gang in ahead if len(nodes_of(gang.node_counts)) > 1)
    return next((gang for gang in wide if gone > gang.at), None)


def _wholly_free(state: CycleState, node: int) -> bool:
    """Whether it has devices, and none is in use."""
    columns = device_columns(state.problem)
    there = devices(state.problem)[:, node]
    free = state.now.free[columns, node]
    return bool(there.any()) and bool((free >= there).all())


# ---- Planned starts of a cycle


@dataclass(eq=False)
class PlannedStarts:
    """The planned starts of one cycle.

    Attributes:
        gangs: in the order in which they were planned.
        undecided: a search ended without an answer, so a planned start is perhaps not the earliest.
        lapsed: gangs that had a planned start, and for which no time was found.
        waiting: by line, uids of the gangs that count as its first ones, and the first of them, as ``namespace/name``.
    """

    state: CycleState
    solver: Solver
    claims: SharedClaimUse
    lines: Lines = field(init=False)
    timeline: Timeline = field(init=False)
    gangs: list[PlannedGang] = field(default_factory=list)
    waiting: dict[PlannedStartQueue, dict[str, str]] = field(default_factory=dict)
    lapsed: list[Lapsed] = field(default_factory=list)
    undecided: bool = False
    _delayed: dict[str, PlannedGang] = field(default_factory=dict)  # at their latest times
    _settled: bool = True
    _asked: dict[str, list[GangRequest]] = field(default_factory=dict)
    _passed: bool = False  # a gang that was judged can delay a planned start that borrows
    _before: set[str] = field(default_factory=set)  # uids behind which gangs of unknown length wait

    def __post_init__(self) -> None:
        problem = self.state.problem
        self.lines = lines_of(problem.snapshot.config, problem.cache)
        self.timeline = Timeline(self.state)

    # Which gangs.

    def room_for_more(self, queue: ClusterQueue | None) -> bool:
        """Whether the line of a ClusterQueue has fewer planned starts than its rule permits."""
        line = self._line(queue)
        return line is not None and len(self.waiting.get(line, ())) < line.rule.planned_starts

    def shortest_first(self, queue: ClusterQueue | None) -> frozenset[str]:
        """The ClusterQueues of a line that considers the shortest gangs first now; none while it plans more starts."""
        line = self._line(queue)
        if (
            line is None
            or line.rule.order is not BackfillOrder.SHORTEST
            or self.room_for_more(queue)
        ):
            return frozenset()
        return frozenset(name for name, other in self.lines.items() if other == line)

    def wait(
        self, pending: Pending, queue: ClusterQueue | None, requests: Iterable[GangRequest]
    ) -> None:
        """Note a gang that does not start, and plan its start if it is one of the first of its line.

        Args:
            pending: the gang.
            queue: its ClusterQueue.
            requests: what it asks under each choice of flavors, most preferred first.
        """
        line = self._line(queue)
        uid = pending.workload.uid
        if line is None or not self.room_for_more(queue) or uid in self.waiting.get(line, {}):
            return
        self.waiting.setdefault(line, {})[uid] = pending.workload.ref
        self._asked[uid] = list(requests)
        self._plan(self._asked[uid])

    def starts(self, uid: str) -> bool:
        """Note that a gang starts now, or gets a reservation. Returns whether others are planned again, or wait for it no longer."""
        for line in self.waiting.values():
            line.pop(uid, None)
        self.gangs = [gang for gang in self.gangs if gang.uid != uid]
        self._delayed.pop(uid, None)
        self._settled = not self._delayed
        self.lapsed = [one for one in self.lapsed if one.request.pending.workload.uid != uid]
        self._guard()
        was_before = uid in self._before
        self._before.discard(uid)
        if not self._passed:
            return was_before
        self._passed = self._settled = False
        return self.settle() or was_before

    def withdraw(self, uid: str) -> bool:
        """Note that a limit keeps a gang out. Returns whether it was one of the first gangs of its line until now."""
        first = any(uid in line for line in self.waiting.values())
        if first:
            self.starts(uid)
        return first

    def settle(self) -> bool:
        """Plan the starts that later gangs have delayed at the times that are now the earliest. Returns whether any has moved."""
        again = not self._settled and not self.stand()
        if again:
            self.plan_again()
        self._settled = True
        self._delayed.clear()
        return again

    # Later gangs.

    def beside(self, request: GangRequest, decision: Feasibility) -> Feasibility | Reason:
        """How a gang that fits now starts without a delay of a planned start, or why it does not."""
        ahead = self.respected(request)
        if (why := self._length_unknown(request)) is not None or not ahead:
            return why or decision
        if (first := whole_node_kept_for(self.state, request, decision, ahead)) is not None:
            return self._keeps_whole_node(first)
        duration = request.pending.workload.duration
        sure = duration is not None and duration.enforced and not request.awaited_checks
        delays = len(ahead) == 1 and sure
        if not delays and self.settle():
            ahead = self.respected(request)
        if delays:
            ahead = [self._at_its_latest(ahead[0])]
        question = self._question(request, NOW, ahead)
        if self._harmless(request, decision, ahead) or question.holds(decision):
            return decision
        found = question.ask(self.solver)
        if found.status is Status.REFUTED:
            return self._delays(request, ahead)
        first = whole_node_kept_for(self.state, request, found, ahead)
        return self._keeps_whole_node(first) if first is not None else found

    def respected(self, request: GangRequest) -> list[PlannedGang]:
        """The planned gangs that a gang must not delay: not those that borrow quota which its ClusterQueue owns."""
        uid = request.pending.workload.uid
        ahead = [gang for gang in self.gangs if gang.uid != uid]
        if not ahead or any(borrows(self.state, request)):
            return ahead
        kept = [g for g in ahead if g.request.queue == request.queue or not self._borrows(g)]
        self._passed |= len(kept) < len(ahead)
        return kept

    def beside_reservation(
        self, request: GangRequest, node_counts: NodeCounts, until: float
    ) -> Reason | None:
        """Why a gang gets no reservation that lasts until this time (unix seconds); None if it delays no planned start."""
        self.settle()
        ahead = self.respected(request)
        if (why := self._length_unknown(request)) is not None or not ahead:
            return why
        gangs, self.gangs = self.gangs, ahead
        self.state.hold(HeldCapacity(request, node_counts, until))
        why = self.needs_claim(request)
        if why is None and not self.stand():
            first = self._first_delayed(request, ahead)
            why = refusals.reserving_delays(first.request.pending.workload.ref, first.at)
        self.state.give_up(request, node_counts)
        if why is None:
            placed = {gang.uid: gang for gang in self.gangs}
            gangs = [placed.get(gang.uid, gang) for gang in gangs]
        self.gangs = gangs
        return why

    def needs_claim(self, request: GangRequest) -> Reason | None:
        """Why a gang leaves a ResourceClaim to a planned start; None if it does not."""
        workload = request.pending.workload
        for gang in self.gangs if workload.claims else ():
            other = gang.request.pending.workload
            if share_claim(other, workload) and self.timeline.holds(request, gang.at):
                return refusals.needs_claim(other.ref, gang.at)
        return None

    def replace(self, decision: Feasibility) -> None:
        """Place planned gangs where a decision puts them."""
        for gang, node_counts in decision.planned:
            gang.node_counts = node_counts

    def stand(self) -> bool:
        """Whether each planned gang still fits at its time, where it is planned or elsewhere."""
        gangs, self.gangs = self.gangs, []
        for gang in gangs:
            question = self._question(gang.request, gang.at, self.gangs, moves=False)
            made = question.ask(self.solver)
            if made.status is not Status.SOLVED:
                self.gangs = gangs
                return False
            self.replace(made)
            self.gangs.append(replace(gang, node_counts=made.node_counts))
        return True

    def plan_again(self) -> None:
        """Plan all of them again, in the same order, each no later than it could be delayed."""
        gangs, self.gangs = self.gangs, []
        latest = {gang.uid: gang.latest for gang in gangs}
        self._settled = True
        for gang in gangs:
            self._plan(self._asked[gang.uid])
        for gang in self.gangs:
            gang.latest = max(gang.at, min(gang.latest, latest[gang.uid]))

    # Times.

    def _plan(self, requests: Iterable[GangRequest]) -> None:
        """Plan the earliest start under any of these requests; the first of equal ones."""
        self.settle()
        asked = list(requests)
        search = StartSearch(self.timeline, self.lines, self.solver, self.gangs)
        starts = (search.earliest(request, self._not_before(request)) for request in asked)
        found = [start for start in starts if start is not None]
        if not found and asked and asked[0].pending.planned_start is not None:
            self.lapsed.append(Lapsed(asked[0], search.undecided))
        self.undecided |= search.undecided
        if not found:
            return
        gang, decision = min(found, key=lambda start: start[0].at)
        self.replace(decision)
        for admission, node_counts in decision.moved:
            self.state.move(admission, node_counts)
        self.gangs.append(gang)
        self._guard()

    def _at_its_latest(self, gang: PlannedGang) -> PlannedGang:
        """A planned gang as it would start if later gangs delay it as far as they can."""
        if gang.latest <= gang.at:
            return gang
        if gang.uid not in self._delayed:
            end = end_of(gang.request, gang.latest)
            self._delayed[gang.uid] = replace(gang, at=gang.latest, until=end)
        return self._delayed[gang.uid]

    def _not_before(self, request: GangRequest) -> float:
        """The end of the gangs that use its ResourceClaims.

        A gang of unknown length also starts before no other of its line: the last of the starts planned so far.
        """
        return max(self._claims_free(request.pending.workload), self._after_others(request))

    def _claims_free(self, workload: Workload) -> float:
        """When no other gang uses a ResourceClaim of a gang, as far as ends are known."""
        now = self.timeline.now
        planned = [g.until for g in self.gangs if share_claim(g.request.pending.workload, workload)]
        others = self.claims.other_users(workload)
        if not others:
            return max(planned, default=now)
        ends = dict.fromkeys(others, inf)
        for request in self.timeline.requests:
            family = request.pending.workload.family
            if family in others:
                ends[family] = self.timeline.until(request)
        running = self.state.problem.snapshot.admitted
        for gang in running:  # pods that were added to a gang end with it
            if gang.workload.uid in others:
                ends[gang.workload.uid] = self._end(gang)
        return max(now, *ends.values(), *planned)

    def _end(self, gang: Admitted) -> float:
        if self.state.leaves(gang):
            return self.timeline.now
        return inf if gang.ends_at is None else max(gang.ends_at, self.timeline.now + SOON)

    def _after_others(self, request: GangRequest) -> float:
        if request.pending.workload.duration is not None:
            return self.timeline.now
        line = self.lines.of(request.queue)
        ahead = [gang.at for gang in self.gangs if self.lines.of(gang.request.queue) == line]
        uid = request.pending.workload.uid
        waiting = self.waiting.get(line, {}).keys() - {uid} if line is not None else ()
        if len(ahead) < len(waiting):
            return inf  # one of them has no planned start
        return max(ahead, default=self.timeline.now)

    # Parts.

    def _line(self, queue: ClusterQueue | None) -> PlannedStartQueue | None:
        return self.lines.of(queue.name) if queue is not None and self.lines else None

    def _question(
        self,
        request: GangRequest,
        begin: float,
        planned: list[PlannedGang],
        *,
        moves: bool = True,
    ) -> Question:
        until = self.timeline.until(request) if begin == NOW else end_of(request, begin)
        return Question(self.timeline, request, begin, until, planned, moves)

    def _length_unknown(self, request: GangRequest) -> Reason | None:
        """Why a gang of unknown length does not start: a gang before it in its line waits."""
        workload = request.pending.workload
        line = self._line(self.state.problem.snapshot.queue_of(workload))
        if line is None or workload.duration is not None:
            return None
        ahead = self.waiting.get(line, {})
        first = next((one for one in ahead.items() if one[0] != workload.uid), None)
        if first is None:
            return None
        self._before.add(first[0])
        return refusals.length_unknown(first[1])

    def _guard(self) -> None:
        """Starts that were moved too often by gangs that ran longer than expected."""
        self.timeline.guarded.clear()
        for gang in self.gangs:
            last = gang.request.pending.planned_start
            if last is not None and last.overruns >= MOST_OVERRUNS:
                waiting = gang.request.pending.workload
                self.timeline.guarded.setdefault(gang.at, []).append(waiting)

    def _harmless(
        self, request: GangRequest, decision: Feasibility, ahead: Iterable[PlannedGang]
    ) -> bool:
        """Whether it and all that move for it have left before the first planned start."""
        requests = [request, *(admission.request for admission, _ in decision.moved)]
        return not any(self.timeline.holds(r, gang.at) for r in requests for gang in ahead)

    def _borrows(self, gang: PlannedGang) -> bool:
        """Whether it will use more than the nominal quota of its ClusterQueue when it starts."""
        queue, use = gang.request.queue, self.timeline.use(gang.at)
        return queue is not None and any(
            need and use.reach(queue, row, need).name != queue
            for row, need in gang.request.charges.items()
        )

    def _delays(self, request: GangRequest, ahead: list[PlannedGang]) -> Reason:
        first = self._first_delayed(request, ahead)
        longest = min(gang.at for gang in ahead) - self.timeline.now
        return refusals.delays(first.request.pending.workload.ref, first.at, longest, request)

    def _first_delayed(self, request: GangRequest, ahead: list[PlannedGang]) -> PlannedGang:
        """The first planned gang whose start falls into the time of a gang."""
        during = (gang for gang in ahead if self.timeline.holds(request, gang.at))
        return next(during, ahead[0])

    def _keeps_whole_node(self, first: PlannedGang) -> Reason:
        return refusals.keeps_whole_node(first.request.pending.workload.ref, first.at)


# ---- Room without an eviction


def first_room(state: CycleState, request: GangRequest, until: float) -> float | None:
    """The first time at which enforced limits leave a gang its quota and a place that is found greedily.

    An end that is only expected does not count: its gang can run longer, and then an eviction loses more.

    Args:
        state: of the cycle. Gangs that start in it hold their room until their ends.
        request: the gang.
        until: the last time that counts, in unix seconds.

    Returns:
        Unix seconds; None = no such time exists, or the greedy search does not find it.
    """
    timeline = Timeline(state)
    times = [at for at in timeline.times() if at <= until]

    def fits(at: float) -> bool:
        if not state.quota.allows(request, timeline.use(at)):
            return False
        free = timeline.free(at)
        return greedy.find(request, free, lambda shape: caps(free, shape)) is not None

    if not times or not fits(times[-1]):
        return None
    room = first_fit(times, lambda at: at if fits(at) else None)
    return room if room is not None and timeline.are_enforced(room) else None
