"""The earliest start of one gang: at which end of others it fits, alongside what is planned before it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import inf
from typing import Final, TypeAlias

import numpy as np

from queuectl.planner.backfill.slips import MOST_OVERRUNS, SLACK
from queuectl.planner.backfill.timeline import NOW, Moments, Timeline, end_of, first_fit
from queuectl.planner.capacity.node_counts import (
    NodeCounts,
    PlannedGang,
    TentativeAdmission,
    node_counts_of,
    per_podset_group,
    short_nodes,
    take,
)
from queuectl.planner.model.counts import GangLoad
from queuectl.planner.order.queue_order import Lines
from queuectl.planner.placement import greedy
from queuectl.planner.placement.feasible import Arrangement, Feasibility, arrange, refuted_by_sums
from queuectl.planner.placement.single import domain_counts, level_reached
from queuectl.planner.problem.fleet import Ints
from queuectl.planner.problem.problem import Problem, caps
from queuectl.planner.problem.request import GangRequest, starting_at
from queuectl.planner.quota import QuotaUse
from queuectl.planner.solver import Solver, Status

# ---- Answers of the model

_KEPT: Final = 2048


class Answers(dict[bytes, Arrangement]):
    """By the digest of the question, the oldest first."""

    def note(self, digest: bytes, answer: Arrangement) -> None:
        """Keep one more."""
        self[digest] = answer
        for oldest in list(self)[:-_KEPT]:
            self.pop(oldest, None)  # another thread can do the same


def answers_of(problem: Problem) -> Answers:
    """Those that are known for the nodes of a problem."""
    fleet = problem.snapshot.fleet
    known = problem.cache.get(fleet, Answers)
    return known if known is not None else problem.cache.keep(fleet, Answers())


def digest_of(
    stacked: Iterable[TentativeAdmission], request: GangRequest, free: Ints, budget: int
) -> bytes:
    """The same for equal questions.

    Args:
        stacked: gangs that can be placed elsewhere, over several times (:mod:`queuectl.planner.backfill.timeline`).
        request: the new gang over these times.
        free: the capacity at these times, without all of them.
        budget: of the new gang.
    """
    digest = blake2b(free.tobytes(), digest_size=16)
    digest.update(repr((free.shape, budget)).encode())
    requests = [request]
    for admission in stacked:
        requests.append(admission.request)
        for nodes, counts in admission.node_counts:
            digest.update(nodes.tobytes() + counts.tobytes())
    for each in requests:
        digest.update(repr(each.signature()).encode())
        for group in each.podset_groups:
            digest.update(repr((group.preferred, group.on_one_node)).encode())
        for pods in each.pods:
            digest.update(repr((pods.podset, pods.size, pods.balanced)).encode())
            digest.update(pods.shape.vector.tobytes())
            digest.update(pods.shape.eligible.tobytes())
            if (spared := pods.shape.spared) is not None:
                for avoided in spared.avoided:
                    digest.update(avoided.tobytes())
                for device, column, need in spared.needs:
                    digest.update(repr((device, column)).encode() + need.tobytes())
    return digest.digest()


# ---- A gang together with the planned starts
#
# Greedily first, alongside the planned gangs as they are placed. If that fails, one model places the gang, the planned gangs, and the gangs that
# start in this plan, at all the times at once. Its refusal is a proof.


@dataclass(eq=False)
class Question:
    """A gang that starts at one time, alongside planned gangs.

    Attributes:
        begin: ``NOW``, or the unix seconds of its start.
        until: unix seconds of its expected end.
        planned: planned gangs that keep their starts.
        moves: whether gangs that start in this plan can be placed elsewhere for it.
    """

    timeline: Timeline
    request: GangRequest
    begin: float
    until: float
    planned: Sequence[PlannedGang]
    moves: bool = True

    def ask(self, solver: Solver) -> Feasibility:
        """Whether it fits, and where."""
        if not self._has_quota():
            return Feasibility(Status.REFUTED)
        room = self._room()
        found = greedy.find(self.request, room, lambda shape: caps(room, shape))
        if found is not None:
            return Feasibility(Status.SOLVED, found)
        planned = [gang for gang in self.planned if gang.request.podset_groups]
        movable = [
            k for k in self._admissions if self.moves and not k.fixed and k.request.podset_groups
        ]
        if greedy.exact(self.request) and not planned and not movable:
            return Feasibility(Status.REFUTED)
        return self._jointly(planned, movable, solver)

    def holds(self, decision: Feasibility) -> bool:
        """Whether a decision that was made without the planned gangs leaves them their places."""
        if not self._has_quota():
            return False
        moved = dict(decision.moved)
        for at in self.times:
            if at == NOW:
                continue
            free = self.timeline.free(at, self.planned, without=moved)
            for admission, node_counts in moved.items():
                if self.timeline.holds(admission.request, at):
                    take(free, admission.request.pods, node_counts)
            if self.present(at):
                take(free, self.request.pods, decision.node_counts)
            gangs = [*((k.request, counts) for k, counts in moved.items())]
            if self.present(at):
                gangs.append((self.request, decision.node_counts))
            if any(len(short_nodes(free, request.pods, counts)) for request, counts in gangs):
                return False
        return True

    # The times.

    @property
    def times(self) -> list[float]:
        """The times at which the gang, a planned gang or a gang of this plan starts to hold its room."""
        starts = {self.begin, *(gang.at for gang in self.planned)}
        if self.begin == NOW or self._admissions:
            starts |= {NOW, self.timeline.now}
        return sorted(starts)

    def present(self, at: float) -> bool:
        """Whether the gang holds its room at a time."""
        if at == NOW or at < self.begin:
            return at == self.begin
        if self.begin == NOW:
            return self.timeline.holds(self.request, at)
        return at < self.until

    @property
    def _admissions(self) -> list[TentativeAdmission]:
        return self.timeline.state.admissions

    # Quota.

    def _has_quota(self) -> bool:
        """Whether it has the quota at each of its times."""
        return all(
            self._has_quota_at(at, self.timeline.use(at, self.planned))
            for at in self.times
            if self.present(at)
        )

    def _has_quota_at(self, at: float, use: QuotaUse) -> bool:
        """Whether it has the quota, and none that a planned gang needs which starts then and must not borrow."""
        quota, queue, charges = self.timeline.state.quota, self.request.queue, self.request.charges
        if queue is None or not quota.allows(self.request, use):
            return queue is None
        own = {
            row: charges[row]
            for gang in self.planned
            if self.begin < gang.at == at
            and gang.request.queue == queue
            and not quota.may_borrow(gang.request)
            for row, need in gang.request.charges.items()
            if need and row in charges
        }
        return use.fits(queue, own, borrows=False)

    # Places.

    def _room(self) -> Ints:
        """(R, N) free at all its times, alongside the planned gangs as they are placed."""
        rooms = [self.timeline.free(at, self.planned) for at in self.times if self.present(at)]
        least: Ints = np.minimum.reduce(rooms)
        return least

    def _jointly(
        self,
        planned: Sequence[PlannedGang],
        movable: Sequence[TentativeAdmission],
        solver: Solver,
    ) -> Feasibility:
        times = self.times
        without = set(movable)
        moments = Moments([self.timeline.free(at, without=without) for at in times])
        free = moments.stacked
        request = moments.request(self.request, tuple(map(self.present, times)))
        if refuted_by_sums(request, free):
            return Feasibility(Status.REFUTED)
        others = [
            (k.request, k.node_counts, tuple(self.timeline.holds(k.request, at) for at in times))
            for k in movable
        ]
        later = [
            (gang.request, gang.node_counts, tuple(map(gang.holds, times))) for gang in planned
        ]
        stacked = [
            TentativeAdmission(moments.request(asked, present), node_counts)
            for asked, node_counts, present in [*others, *later]
        ]
        if GangLoad.of([*(k.request for k in stacked), request], free).exceeds():
            return Feasibility(Status.REFUTED)
        if solver.ended():
            return Feasibility(Status.UNKNOWN)
        made = self._arranged(stacked, request, free, solver)
        if made.status is not Status.SOLVED:
            return Feasibility(made.status, alarm=made.alarm)
        return _decision(made, movable, planned)

    def _arranged(
        self,
        stacked: Sequence[TentativeAdmission],
        request: GangRequest,
        free: Ints,
        solver: Solver,
    ) -> Arrangement:
        """The answer of the model, or the one that it has given to the same question in an earlier plan."""
        budget = self.request.pending.budget
        answers = answers_of(self.timeline.state.problem)
        digest = digest_of(stacked, request, free, budget)
        known = answers.get(digest)
        if known is not None:
            return known
        # Counted apart: whether it is known already depends on the plans before, the plan must not.
        own_solver = Solver(solver.limits, solver.stop)
        made = arrange(stacked, [request], free, own_solver, budget)
        solver.cut |= own_solver.cut
        solver.alarms.extend(own_solver.alarms)
        if made.status in (Status.SOLVED, Status.REFUTED):
            answers.note(digest, made)
        return made


def _decision(
    arrangement: Arrangement, movable: Sequence[TentativeAdmission], planned: Sequence[PlannedGang]
) -> Feasibility:
    first, of_planned = arrangement.moved[: len(movable)], arrangement.moved[len(movable) :]
    return Feasibility(
        Status.SOLVED,
        arrangement.new[0],
        tuple(
            (k, counts)
            for k, counts in zip(movable, first, strict=True)
            if not _same(counts, k.node_counts)
        ),
        planned=tuple(
            (gang, counts)
            for gang, counts in zip(planned, of_planned, strict=True)
            if not _same(counts, gang.node_counts)
        ),
    )


def _same(before: NodeCounts, after: NodeCounts) -> bool:
    pairs = ((a, b) for x, y in zip(before, after, strict=True) for a, b in zip(x, y, strict=True))
    return all(np.array_equal(a, b) for a, b in pairs)


# ---- Topology levels of a placement


def keeping_levels(request: GangRequest, node_counts: NodeCounts) -> GangRequest:
    """The request with each preferred level that a placement reaches as a required one."""
    groups = []
    for group, placed in per_podset_group(request, node_counts):
        reached = level_reached(group, domain_counts(group, placed))
        groups.append(replace(group, required=max(group.required, reached)))
    return replace(request, podset_groups=tuple(groups))


# ---- The earliest start

Start: TypeAlias = tuple[PlannedGang, Feasibility]
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
        decision = Feasibility(Status.SOLVED, found)
        if not self._question(asked, at).holds(decision):
            return None
        return self._planned(asked, decision, at)

    def _first_time(self, request: GangRequest, least: float) -> Start | None:
        ends = (gang.until for gang in self.planned if gang.until < inf)
        reserved = self._problem.snapshot.reservations
        over = (each.ends for each in reserved)
        times = sorted({self.timeline.now, *self.timeline.times(), *ends, *over})
        times = [at for at in times if at >= least]
        # Alongside Reservations, a start can be possible before them and not at some later times.
        if not reserved:
            possible = first_fit(times, lambda at: at if self._possible(request, at) else None)
            times = [at for at in times if possible is not None and at >= possible]
        for at in times:
            asked = starting_at(self._problem, request, at)
            if reserved and not self._possible(asked, at):
                continue
            found = self._question(asked, at).ask(self.solver)
            if found.status is Status.SOLVED:
                return self._planned(asked, found, at)
            self.undecided |= found.status is not Status.REFUTED
        return None

    def _possible(self, request: GangRequest, at: float) -> bool:
        """Whether sums and quota do not refute a start, alongside what runs then alone: once true, it stays true."""
        state = self.timeline.state
        if not state.quota.allows(request, self.timeline.use(at)):
            return False
        movable = {admission for admission in state.admissions if not admission.fixed}
        return not refuted_by_sums(request, self.timeline.free(at, without=movable))

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
        return keeping_levels(request, found) if found is not None else None

    def _planned(self, request: GangRequest, decision: Feasibility, at: float) -> Start:
        found = decision.node_counts
        end, latest = end_of(request, at), self._latest(request, at)
        return PlannedGang(keeping_levels(request, found), found, at, end, latest), decision

    def _question(self, request: GangRequest, at: float) -> Question:
        return Question(self.timeline, request, at, end_of(request, at), self.planned)

    @property
    def _problem(self) -> Problem:
        return self.timeline.state.problem
