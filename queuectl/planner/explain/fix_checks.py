"""Each suggested fix is planned before it is shown: the planner must start the gang on the changed snapshot, or free its place.

The gangs before it are decided again on the changed snapshot, because they can take what a change adds or frees. Where the plan
placed them is a hint, if their places decide nothing about later gangs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from queuectl.domain.diagnosis import SuggestedChange, SuggestedFix, apply_all
from queuectl.domain.plan import Plan, Proof, Refusal
from queuectl.domain.queues import ClusterQueue
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.domain.workload import Placement
from queuectl.planner.cache import PlannerCache
from queuectl.planner.capacity.node_counts import NodeCounts, fits, node_counts_of
from queuectl.planner.cycle.cycle import AdmissionCycle
from queuectl.planner.cycle.look_ahead import LookAhead
from queuectl.planner.order.queue_order import lines_of
from queuectl.planner.placement.feasible import Feasibility
from queuectl.planner.plan_cycle import Prepared, begin, decide_up_to
from queuectl.planner.preempt.running import may_evict
from queuectl.planner.preempt.shortage import borrows
from queuectl.planner.problem.flavors import Options
from queuectl.planner.problem.problem import Problem, survey
from queuectl.planner.problem.request import GangRequest, shrinks
from queuectl.planner.search.flavor_choice import Fit, Outcome, Refuted, Unknown
from queuectl.planner.solver import Status, StopSignal

# ---- Known answers
#
# A placement is a hint, which is checked against the free capacity, and a gang for which it holds needs no search. A refusal holds only
# for the snapshot of its plan. All other gangs are decided again.


@dataclass(frozen=True, slots=True)
class KnownAnswers:
    """Known answers for pending gangs, by uid.

    Attributes:
        placed: where a gang fits, also one that waits for its admission checks there; checked before it is believed.
        reserved: by Reservation, node and pods on each where its current occurrence is placed.
        refused: gangs that fit nowhere and cannot evict others; only of the same snapshot.
    """

    placed: Mapping[str, Placement] = field(default_factory=dict)
    reserved: Mapping[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    refused: Mapping[str, Refusal] = field(default_factory=dict)

    def of_others(self, uid: str) -> KnownAnswers:
        """The results for other gangs than one that hold for other snapshots too."""
        placed = {known: at for known, at in self.placed.items() if known != uid}
        return KnownAnswers(placed, self.reserved)


def of_plan(plan: Plan) -> KnownAnswers:
    """All results of a plan for its own snapshot."""
    refused = {
        r.uid: r
        for r in plan.pending
        if r.proof is Proof.OPTIMAL
        and r.lease is None
        and r.reasons[0].code is not Code.WAITING_TO_RECLAIM
    }
    held = {r.uid: r.lease.placement for r in plan.pending if r.lease and not r.lease.victims}
    reserved = {state.name: state.nodes for state in plan.reserved}
    return KnownAnswers(held | {a.uid: a.placement for a in plan.admitted}, reserved, refused)


def know(prepared: Prepared, answers: KnownAnswers) -> None:
    """Let a cycle that has not begun use what is known."""
    cycle = prepared.cycle
    cycle.sizing.chooser = _KnownFirst(
        cycle.problem,
        cycle.state,
        cycle.solver,
        planned=cycle.planned,
        cycle=cycle,
        in_order=prepared.in_order,
        known_answers=answers,
    )


@dataclass(eq=False)
class _KnownFirst(LookAhead):
    """A chooser that looks up before it searches."""

    known_answers: KnownAnswers = field(kw_only=True)

    def choose(
        self,
        pending: Pending,
        queue: ClusterQueue | None,
        templates: Iterable[GangRequest],
        leased: GangRequest | None = None,
        more: Options | None = None,
    ) -> Outcome:
        refusal = self.known_answers.refused.get(pending.workload.uid)
        if refusal is not None and not shrinks(pending.workload):
            return Refuted(refusal.reasons)
        return super().choose(pending, queue, templates, leased, more)

    def fit(self, request: GangRequest) -> Fit | Unknown | Reason:
        node_counts = self._node_counts(request)
        state = self.state
        holds = node_counts is not None and fits(state.free(), request.pods, node_counts)
        if node_counts is None or not holds or not state.quota.fits(request):
            return super().fit(request)
        found = Fit(request, Feasibility(Status.SOLVED, node_counts), borrows(state, request))
        return self.beside_planned(found)

    def _node_counts(self, request: GangRequest) -> NodeCounts | None:
        """Where the gang fits, as counts; None where nothing is known, or it is of other flavors, or cannot be read."""
        placement = self.known_answers.placed.get(request.pending.workload.uid)
        if placement is None:
            return None
        placed = [placement.of(podset.name) for podset in request.pending.workload.podsets]
        if [p.flavors if p is not None else None for p in placed] != list(request.flavors):
            return None
        if any(p is not None and p.shares for p in placed):
            return None
        return node_counts_of(self.problem, request, placement)


# ---- Checks of fixes


_TURNS: Final = (
    4000  # of gangs, in all checks of one diagnosis: a bound that does not depend on the load
)


@dataclass(eq=False, slots=True)
class FixChecks:
    """The checks of the fixes of one gang.

    Attributes:
        snapshot: that was planned.
        uid: of the gang.
        cache: of the plan; a check does not change it.
        known_answers: of other gangs, from the plan.
        turns: turns of gangs that are left for further checks.
        passed_with: changes with which the gang starts.
    """

    snapshot: Snapshot
    uid: str
    stop: StopSignal
    cache: PlannerCache
    known_answers: KnownAnswers = field(default_factory=KnownAnswers)
    turns: int = _TURNS
    passed_with: list[tuple[SuggestedChange, ...]] = field(default_factory=list)

    @property
    def over(self) -> bool:
        """Whether no further fix is checked."""
        return self.turns <= 0 or self.stop.stopped

    def decided(self, changes: Sequence[SuggestedChange]) -> AdmissionCycle | None:
        """The cycle on the changed snapshot, as soon as the gang is decided; None where no further fix is checked."""
        if self.over:
            return None
        changed = apply_all(changes, self.snapshot)
        prepared = begin(survey(changed, self.cache.fork()), self.stop, limited=False)
        know(
            prepared,
            self.known_answers if self._any_place(prepared.cycle.problem) else KnownAnswers(),
        )
        self.turns -= max(1, decide_up_to(prepared, self.uid))
        if self.stop.stopped:
            return None
        if self.helped(prepared.cycle):
            self.passed_with.append(tuple(changes))
        return prepared.cycle

    def _any_place(self, problem: Problem) -> bool:
        """Whether the same gangs start wherever those before them are placed: none evicts others, and no start is planned."""
        snapshot = problem.snapshot
        others = (p.workload for p in snapshot.pending if p.workload.uid != self.uid)
        return not lines_of(snapshot.config, problem.cache) and not any(
            may_evict(problem, workload, snapshot.queue_of(workload)) for workload in others
        )

    def helped(self, cycle: AdmissionCycle) -> bool:
        """Whether the gang starts, or the planner evicts others or requests nodes for it."""
        if self.uid in cycle.starting or any(v.preemptor == self.uid for v in cycle.preempted):
            return True
        lease = cycle.leased.get(self.uid)
        return lease is not None and not lease.victims

    def starts(self, changes: Sequence[SuggestedChange]) -> bool:
        """Whether these changes are enough."""
        if tuple(changes) in self.passed_with:
            return True
        cycle = self.decided(changes)
        return cycle is not None and self.helped(cycle)

    def refuses(self, changes: Sequence[SuggestedChange]) -> bool:
        """Whether it is proved that these changes are not enough."""
        cycle = self.decided(changes)
        if cycle is None or self.helped(cycle):
            return False
        return cycle.refused[self.uid].proof is Proof.OPTIMAL

    def passed(self, fixes: Iterable[SuggestedFix]) -> Iterator[SuggestedFix]:
        """Those that are enough, and need all of their changes."""
        for fix in fixes:
            if self._with_less(fix.changes):
                continue
            if self.starts(fix.changes):
                yield fix
            elif self.over:
                return

    def _with_less(self, changes: Sequence[SuggestedChange]) -> bool:
        """Whether the gang is known to start with a part of these changes."""
        return any(
            len(enough) < len(changes) and all(change in changes for change in enough)
            for enough in self.passed_with
        )
