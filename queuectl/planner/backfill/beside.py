"""Whether a gang fits from one time to another beside the planned starts, and where: the question of planned starts and backfill.

Greedily first, beside the planned gangs as they are placed. If that fails, one model places the gang, the planned gangs, and the gangs that
start in this plan, at all the times at once. Its refusal is a proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from queuectl.planner.backfill.answers import answers_of, digest_of
from queuectl.planner.backfill.moments import Moments, Present
from queuectl.planner.backfill.timeline import NOW, Timeline
from queuectl.planner.capacity.node_counts import (
    NodeCounts,
    PlannedGang,
    TentativeAdmission,
    give_back,
    take,
)
from queuectl.planner.model.bounds import Load
from queuectl.planner.placement import several
from queuectl.planner.placement.feasible import Decision, refuted_by_sums
from queuectl.planner.placement.joint import Arrangement, arrange
from queuectl.planner.problem.problem import caps
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.problem.topology import Ints
from queuectl.planner.quota.tree import QuotaUse
from queuectl.planner.solver.solver import Solver, Status


@dataclass(eq=False)
class Question:
    """A gang that starts at one time, beside planned gangs.

    Attributes:
        begin: ``NOW``, or the unix seconds of its start.
        until: unix seconds of its expected end.
        beside: planned gangs that it must leave their starts.
        moves: whether gangs that start in this plan can be placed elsewhere for it.
    """

    timeline: Timeline
    request: GangRequest
    begin: float
    until: float
    beside: Sequence[PlannedGang]
    moves: bool = True

    def ask(self, solver: Solver) -> Decision:
        """Whether it fits, and where."""
        if not self._has_quota():
            return Decision(Status.REFUTED)
        room = self._room()
        found = several.find(self.request, room, lambda shape: caps(room, shape))
        if found is not None:
            return Decision(Status.FOUND, found)
        planned = [gang for gang in self.beside if gang.request.podset_groups]
        movable = [
            k for k in self._admissions if self.moves and not k.fixed and k.request.podset_groups
        ]
        if several.exact(self.request) and not planned and not movable:
            return Decision(Status.REFUTED)
        return self._jointly(planned, movable, solver)

    def holds(self, decision: Decision) -> bool:
        """Whether a decision that was made without the planned gangs leaves them their places."""
        if not self._has_quota():
            return False
        moved = dict(decision.moved)
        for at in self.times:
            if at == NOW:
                continue
            free = self._beside_planned(at)
            for admission, node_counts in moved.items():
                if self.timeline.holds(admission.request, at):
                    give_back(free, admission.request.pods, admission.node_counts)
                    take(free, admission.request.pods, node_counts)
            if self.present(at):
                take(free, self.request.pods, decision.node_counts)
            gangs = [*((k.request, counts) for k, counts in moved.items())]
            if self.present(at):
                gangs.append((self.request, decision.node_counts))
            if not all(_not_short(free, request, counts) for request, counts in gangs):
                return False
        return True

    # The times.

    @property
    def times(self) -> list[float]:
        """The times at which the gang, a planned gang or a gang of this plan starts to hold its room."""
        starts = {self.begin, *(gang.at for gang in self.beside)}
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
        state = self.timeline.state
        return all(
            state.quota.allows(self.request, self._use(at)) for at in self.times if self.present(at)
        )

    def _use(self, at: float) -> QuotaUse:
        use = self.timeline.use(at)
        present = [gang for gang in self.beside if _there(gang, at)]
        if present and at == NOW:
            use = use.copy()
        for gang in present:
            for row, amount in gang.request.rows():
                use.add(row, amount)
        return use

    # Places.

    def _room(self) -> Ints:
        """(R, N) free at all its times, beside the planned gangs as they are placed."""
        rooms = [self._beside_planned(at) for at in self.times if self.present(at)]
        least: Ints = np.minimum.reduce(rooms)
        return least

    def _beside_planned(self, at: float) -> Ints:
        free = self.timeline.free(at)
        if at == NOW:
            return free.copy()
        for gang in self.beside:
            if _there(gang, at):
                take(free, gang.request.pods, gang.node_counts)
        return free

    def _jointly(
        self,
        planned: Sequence[PlannedGang],
        movable: Sequence[TentativeAdmission],
        solver: Solver,
    ) -> Decision:
        times = self.times
        moments = Moments([self._without(movable, at) for at in times])
        free = moments.stacked
        request = moments.request(self.request, tuple(map(self.present, times)))
        if refuted_by_sums(request, free):
            return Decision(Status.REFUTED)
        others = [(k.request, k.node_counts, self._lasts(k, times)) for k in movable]
        later = [
            (gang.request, gang.node_counts, tuple(_there(gang, at) for at in times))
            for gang in planned
        ]
        stacked = [
            TentativeAdmission(moments.request(asked, present), node_counts)
            for asked, node_counts, present in [*others, *later]
        ]
        if Load.of([*(k.request for k in stacked), request], free).exceeds():
            return Decision(Status.REFUTED)
        if solver.ended():
            return Decision(Status.UNKNOWN)
        made = self._arranged(stacked, request, free, solver)
        if made.status is not Status.FOUND:
            return Decision(made.status, alarm=made.alarm)
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
        if made.status in (Status.FOUND, Status.REFUTED):
            answers.note(digest, made)
        return made

    def _without(self, movable: Sequence[TentativeAdmission], at: float) -> Ints:
        """(R, N) free at a time without the gangs that the model places."""
        free = self.timeline.free(at)
        if at == NOW:
            free = free.copy()
        for admission in movable:
            if at == NOW or self.timeline.holds(admission.request, at):
                give_back(free, admission.request.pods, admission.node_counts)
        return free

    def _lasts(self, admission: TentativeAdmission, times: Sequence[float]) -> Present:
        return tuple(at == NOW or self.timeline.holds(admission.request, at) for at in times)


def _there(gang: PlannedGang, at: float) -> bool:
    return gang.at <= at < gang.until


def _not_short(free: Ints, request: GangRequest, node_counts: NodeCounts) -> bool:
    """Whether nothing that the gang asks for is below zero where it is placed."""
    for pods, (nodes, _) in zip(request.pods, node_counts, strict=True):
        if bool((free[np.ix_(np.array(pods.shape.columns, dtype=np.int64), nodes)] < 0).any()):
            return False
    return True


def _decision(
    made: Arrangement, movable: Sequence[TentativeAdmission], planned: Sequence[PlannedGang]
) -> Decision:
    first, rest = made.moved[: len(movable)], made.moved[len(movable) :]
    return Decision(
        Status.FOUND,
        made.new[0],
        tuple(
            (k, counts)
            for k, counts in zip(movable, first, strict=True)
            if not _same(counts, k.node_counts)
        ),
        planned=tuple(
            (gang, counts)
            for gang, counts in zip(planned, rest, strict=True)
            if not _same(counts, gang.node_counts)
        ),
    )


def _same(one: NodeCounts, other: NodeCounts) -> bool:
    pairs = ((a, b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True))
    return all(np.array_equal(a, b) for a, b in pairs)
