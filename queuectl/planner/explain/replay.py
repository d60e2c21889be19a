"""Plan the gangs up to one again, with what a plan or an earlier cycle has found already.

A placement found before is a hint: it is checked against what is free, and a gang for which it holds needs no search. A
refusal holds for the very snapshot of its plan. The cycle decides all other gangs itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from queuectl.domain.changes import AddNodes, Change, apply_all
from queuectl.domain.plan import Plan, Preemption, Proof, Refusal
from queuectl.domain.queues import ClusterQueue
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Pending
from queuectl.domain.workload import Placement
from queuectl.planner.capacity.node_counts import NodeCounts, fits
from queuectl.planner.capacity.placements import node_counts_of, placement_of
from queuectl.planner.cycle.cycle import AdmissionCycle
from queuectl.planner.placement.feasible import Decision
from queuectl.planner.plan_cycle import Prepared, begin, turns
from queuectl.planner.preempt.shortage import borrows
from queuectl.planner.problem.partial import shrinks
from queuectl.planner.problem.problem import Problem, enlarged, survey
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.search.flavor_choice import Fit, FlavorChooser, Outcome, Refuted, Unknown
from queuectl.planner.solver.solver import Status


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of pending gangs, by uid.

    Attributes:
        placed: where a gang fits; checked before it is believed.
        refused: gangs that fit nowhere and may evict no other; only of the very same snapshot.
    """

    placed: Mapping[str, Placement]
    refused: Mapping[str, Refusal] = field(default_factory=dict)


def of_plan(plan: Plan) -> Known:
    """All that a plan says of its own snapshot."""
    refused = {
        r.uid: r
        for r in plan.pending
        if r.proof is Proof.OPTIMAL
        and r.lease is None
        and r.reasons[0].code is not Code.WAITING_TO_RECLAIM
    }
    return Known({a.uid: a.placement for a in plan.admitted}, refused)


def of_cycle(cycle: AdmissionCycle) -> Known:
    """Where a cycle has placed the gangs that it keeps: hints for other snapshots too."""
    problem = cycle.problem
    return Known(
        {
            admission.request.pending.workload.uid: placement_of(
                problem, admission.request, admission.node_counts
            )
            for admission in cycle.state.admissions
        }
    )


def know(cycle: AdmissionCycle, known: Known) -> None:
    """Let a cycle that has not begun use what is known."""
    cycle.sizing.chooser = _Knowing(cycle.problem, cycle.state, cycle.solver, known=known)


def is_refused(cycle: AdmissionCycle, uid: str) -> bool:
    """Whether a cycle knows that a gang fits nowhere."""
    return isinstance(cycle.sizing.chooser, _Knowing) and uid in cycle.sizing.chooser.known.refused


@dataclass(eq=False)
class _Knowing(FlavorChooser):
    """A chooser that looks up before it searches."""

    known: Known = field(kw_only=True)

    def choose(
        self, pending: Pending, queue: ClusterQueue | None, templates: Iterable[GangRequest]
    ) -> Outcome:
        refusal = self.known.refused.get(pending.workload.uid)
        if refusal is not None and not shrinks(pending.workload):
            return Refuted(refusal.reasons)
        return super().choose(pending, queue, templates)

    def fit(self, request: GangRequest) -> Fit | Unknown | Reason:
        node_counts = self._node_counts(request)
        state = self.state
        holds = node_counts is not None and fits(state.free(), request.pods, node_counts)
        if node_counts is None or not holds or not state.quota_fits(request):
            return super().fit(request)
        return Fit(request, Decision(Status.FOUND, node_counts), borrows(state, request))

    def _node_counts(self, request: GangRequest) -> NodeCounts | None:
        """Where the gang fits, as counts; None where nothing is known, or it is of other flavors, or cannot be read."""
        placement = self.known.placed.get(request.pending.workload.uid)
        if placement is None:
            return None
        placed = [placement.of(podset.name) for podset in request.pending.workload.podsets]
        if [p.flavors if p is not None else None for p in placed] != list(request.flavors):
            return None
        if any(p is not None and p.shares for p in placed):
            return None
        return node_counts_of(self.problem, request, placement)


def replay(cycle: AdmissionCycle, uid: str, problem: Problem) -> tuple[Prepared, Pending] | None:
    """The cycle on the changed snapshot, at the turn of a gang; None if the gang has none.

    Args:
        cycle: on the snapshot as it is, at the turn of the gang.
        uid: of the gang.
        problem: of the changed snapshot.
    """
    prepared = begin(problem, cycle.solver.stop)
    know(prepared.cycle, of_cycle(cycle))
    for pending in turns(prepared):
        if pending.workload.uid == uid:
            return prepared, pending
    return None


def victims_of(prepared: Prepared, pending: Pending) -> list[Preemption]:
    """Decide the gang whose turn it is; the running gangs that are evicted for it."""
    prepared.consider(pending)
    return [v for v in prepared.cycle.preempted if v.preemptor == pending.workload.uid]


def after(before: Problem, changes: Sequence[Change]) -> Problem:
    """The problem of the snapshot after these changes."""
    changed = apply_all(changes, before.snapshot)
    if any(isinstance(change, AddNodes) for change in changes):  # no fix adds nodes and ends gangs
        return enlarged(before, changed)
    return survey(changed, before.cache)
