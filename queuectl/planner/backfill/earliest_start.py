"""The earliest start of a gang beside planned gangs, and the time until which later gangs can delay it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

from queuectl.planner.backfill.beside import Question
from queuectl.planner.backfill.placed_levels import as_placed
from queuectl.planner.backfill.slips import MOST_OVERRUNS, SLACK
from queuectl.planner.backfill.timeline import Timeline, end_of
from queuectl.planner.capacity.node_counts import PlannedGang, give_back
from queuectl.planner.capacity.placements import node_counts_of
from queuectl.planner.order.lines import Lines
from queuectl.planner.placement.feasible import Decision, refuted_by_sums
from queuectl.planner.problem.problem import Problem
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.problem.reserved_request import starting_at
from queuectl.planner.solver.solver import Solver, Status

Start: TypeAlias = tuple[PlannedGang, Decision]
"""A planned start, and what must be placed elsewhere for it."""


@dataclass(eq=False)
class StartSearch:
    """The search for the start of one gang, under each choice of flavors.

    Attributes:
        timeline: of the cycle.
        lines: of the cycle.
        solver: of the cycle.
        planned: gangs that keep their starts.
        undecided: a search ended without an answer, so a start is perhaps not the earliest.
    """

    timeline: Timeline
    lines: Lines
    solver: Solver
    planned: Sequence[PlannedGang]
    undecided: bool = False

    def earliest(self, request: GangRequest, least: float) -> Start | None:
        """On as good a topology level as in the last plan, if that is not later than it was planned. None = no time is found.

        Args:
            request: of the gang.
            least: it does not start before, in unix seconds.
        """
        last = request.pending.planned_start
        promised = last.promised if last is not None else None
        strict = self._as_promised(request) if promised is not None else None
        if promised is not None and strict is not None:
            kept = self._first_time(strict, least)
            if kept is not None and kept[0].at <= promised + SLACK:
                return kept
        found = self._first_time(request, least)
        late = found is None or (promised is not None and found[0].at > promised + SLACK)
        return (self._unchanged(request, least) if late and self.undecided else None) or found

    def _unchanged(self, request: GangRequest, least: float) -> Start | None:
        """At the time and place of the last plan, if it still fits there: no search is needed for that."""
        last = request.pending.planned_start
        if last is None:
            return None
        at = max(last.at, self.timeline.now)
        asked = starting_at(self._problem, request, at)
        found = node_counts_of(self._problem, asked, last.placement)
        if found is None or at < least:
            return None
        decision = Decision(Status.FOUND, found)
        if not self._question(asked, at).holds(decision):
            return None
        return self._planned(asked, decision, at)

    def _first_time(self, request: GangRequest, least: float) -> Start | None:
        ends = (gang.until for gang in self.planned if gang.until < inf)
        reserved = self._problem.snapshot.reservations
        over = (each.ends for each in reserved)
        times = sorted({self.timeline.now, *self.timeline.times(), *ends, *over})
        times = [at for at in times if at >= least]
        # Beside Reservations, a start can be possible before them and not at some later times.
        first = 0
        if not reserved:
            first = bisect_left(times, True, key=lambda at: self._possible(request, at))
        for at in times[first:]:
            asked = starting_at(self._problem, request, at)
            if reserved and not self._possible(asked, at):
                continue
            found = self._question(asked, at).ask(self.solver)
            if found.status is Status.FOUND:
                return self._planned(asked, found, at)
            self.undecided |= found.status is not Status.REFUTED
        return None

    def _possible(self, request: GangRequest, at: float) -> bool:
        """Whether sums and quota do not refute a start, beside what runs then alone: once true, it stays true."""
        state = self.timeline.state
        if not state.quota.allows(request, self.timeline.use(at)):
            return False
        free = self.timeline.free(at)
        for admission in state.admissions:
            if not admission.fixed and self.timeline.holds(admission.request, at):
                give_back(free, admission.request.pods, admission.node_counts)
        return not refuted_by_sums(request, free)

    def _latest(self, request: GangRequest, at: float) -> float:
        """The time until which later gangs can delay a start that is possible at ``at``."""
        line, duration = self.lines.of(request.queue), request.pending.workload.duration
        last = request.pending.planned_start
        guarded = last is not None and last.overruns >= MOST_OVERRUNS
        if line is None or duration is None or guarded:
            return at
        latest = at + line.rule.delay_of(request.pending.workload) * duration.seconds
        if starting_at(self._problem, request, latest) is not request:
            return at  # it would run into a Reservation
        if last is not None and last.promised is not None and at <= last.promised + SLACK:
            latest = min(latest, last.promised)
        return max(at, latest)

    def _as_promised(self, request: GangRequest) -> GangRequest | None:
        """The request on as good a topology level as in the last plan."""
        last = request.pending.planned_start
        assert last is not None
        found = node_counts_of(self._problem, request, last.placement)
        return as_placed(request, found) if found is not None else None

    def _planned(self, request: GangRequest, decision: Decision, at: float) -> Start:
        found = decision.node_counts
        end, latest = end_of(request, at), self._latest(request, at)
        return PlannedGang(as_placed(request, found), found, at, end, latest), decision

    def _question(self, request: GangRequest, at: float) -> Question:
        return Question(self.timeline, request, at, end_of(request, at), self.planned)

    @property
    def _problem(self) -> Problem:
        return self.timeline.state.problem
