"""The cycle again on a changed snapshot, up to a gang.

The results that a cycle has already are used again: a placement is a hint, which is checked against the free capacity, and a gang for
which it holds needs no search. A refusal holds only for the snapshot of its plan. All other gangs are decided again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from queuectl.domain.changes import AddNodes, Change, apply_all
from queuectl.domain.plan import Plan, Preemption, Proof, Refusal
from queuectl.domain.queues import ClusterQueue
from queuectl.domain.reasons import NEVER_FITS, Code, Reason
from queuectl.domain.snapshot import Pending
from queuectl.domain.workload import Placement
from queuectl.planner.capacity.node_counts import NodeCounts, fits
from queuectl.planner.capacity.placements import node_counts_of, placement_of
from queuectl.planner.cycle.cycle import AdmissionCycle
from queuectl.planner.placement.feasible import Decision
from queuectl.planner.plan_cycle import Prepared, begin, one_by_one
from queuectl.planner.preempt.shortage import borrows
from queuectl.planner.problem.parts import shrinks
from queuectl.planner.problem.problem import Problem, enlarged, survey
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.search.flavor_choice import Fit, FlavorChooser, Outcome, Refuted, Unknown
from queuectl.planner.solver.solver import Status

_AS_BEFORE: Final = Reason(
    Code.TOPOLOGY_PLACEMENT_FAILED, "no placement exists, as before the change"
)


@dataclass(frozen=True, slots=True)
class Known:
    """Known results for pending gangs, by uid.

    Attributes:
        placed: where a gang fits; checked before it is believed.
        refused: gangs that fit nowhere and cannot evict others; only of the same snapshot.
        pending: gangs that do not fit now, but would fit empty nodes; also of a snapshot with more of anything.
    """

    placed: Mapping[str, Placement]
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    pending: frozenset[str] = frozenset()


def of_plan(plan: Plan) -> Known:
    """All results of a plan for its own snapshot."""
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
    placed = {
        admission.request.pending.workload.uid: placement_of(
            cycle.problem, admission.request, admission.node_counts
        )
        for admission in cycle.state.admissions
    }
    pending = (uid for uid, r in cycle.refused.items() if r.reasons[0].code not in NEVER_FITS)
    return Known(placed, pending=frozenset(pending))


def know(cycle: AdmissionCycle, known: Known) -> None:
    """Let a cycle that has not begun use what is known."""
    cycle.sizing.chooser = _CachedFlavorChooser(
        cycle.problem, cycle.state, cycle.solver, planned=cycle.planned, known=known
    )


@dataclass(eq=False)
class _CachedFlavorChooser(FlavorChooser):
    """A chooser that looks up before it searches."""

    known: Known = field(kw_only=True)

    def choose(
        self,
        pending: Pending,
        queue: ClusterQueue | None,
        templates: Iterable[GangRequest],
        leased: GangRequest | None = None,
    ) -> Outcome:
        refusal = self.known.refused.get(pending.workload.uid)
        if refusal is not None and not shrinks(pending.workload):
            return Refuted(refusal.reasons)
        return super().choose(pending, queue, templates, leased)

    def fit(self, request: GangRequest) -> Fit | Unknown | Reason:
        node_counts = self._node_counts(request)
        state = self.state
        holds = node_counts is not None and fits(state.free(), request.pods, node_counts)
        if node_counts is None or not holds or not state.quota.fits(request):
            return super().fit(request)
        found = Fit(request, Decision(Status.FOUND, node_counts), borrows(state, request))
        return self.beside_planned(found)

    def never(self, request: GangRequest, queue: ClusterQueue | None) -> Reason | None:
        if request.pending.workload.uid in self.known.pending:
            return None
        return super().never(request, queue)

    def why_nowhere(self, request: GangRequest) -> Reason:
        if request.pending.workload.uid in self.known.pending:
            return _AS_BEFORE
        return super().why_nowhere(request)

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
    """The cycle on the changed snapshot, when it considers a gang; None if it does not.

    Args:
        cycle: on the snapshot as it is, when it considers the gang.
        uid: of the gang.
        problem: of the changed snapshot.
    """
    prepared = begin(problem, cycle.solver.stop)
    know(prepared.cycle, of_cycle(cycle))
    for pending in one_by_one(prepared):
        if pending.workload.uid == uid:
            return prepared, pending
    return None


def victims_of(prepared: Prepared, pending: Pending) -> list[Preemption]:
    """Decide the gang whose turn it is; the running gangs that are evicted for it."""
    prepared.consider(pending)
    return [v for v in prepared.cycle.preempted if v.preemptor == pending.workload.uid]


def admitted(prepared: Prepared, pending: Pending) -> bool:
    """Decide the gang whose turn it is; whether it starts, or evicts others and starts when they have left."""
    victims = victims_of(prepared, pending)
    return bool(victims) or pending.workload.uid in prepared.cycle.starting


def after(before: Problem, changes: Sequence[Change]) -> Problem:
    """The problem of the snapshot after these changes."""
    changed = apply_all(changes, before.snapshot)
    if any(isinstance(change, AddNodes) for change in changes):  # no fix adds nodes and ends gangs
        return enlarged(before, changed)
    return survey(changed, before.cache)
