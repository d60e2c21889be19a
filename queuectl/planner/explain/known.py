"""A cycle that uses what a plan has decided.

A placement is a hint, which is checked against the free capacity, and a gang for which it holds needs no search. A refusal holds only
for the snapshot of its plan. All other gangs are decided again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from queuectl.domain.plan import Plan, Proof, Refusal
from queuectl.domain.queues import ClusterQueue
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Pending
from queuectl.domain.workload import Placement
from queuectl.planner.capacity.node_counts import NodeCounts, fits
from queuectl.planner.capacity.placements import node_counts_of
from queuectl.planner.cycle.look_ahead import LookAhead
from queuectl.planner.placement.feasible import Feasibility
from queuectl.planner.plan_cycle import Prepared
from queuectl.planner.preempt.shortage import borrows
from queuectl.planner.problem.parts import shrinks
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.search.flavor_choice import Fit, Outcome, Refuted, Unknown
from queuectl.planner.solver.solver import Status


@dataclass(frozen=True, slots=True)
class KnownAnswers:
    """Known results for pending gangs, by uid.

    Attributes:
        placed: where a gang fits, also one that waits for its admission checks there; checked before it is believed.
        reserved: by Reservation, node and pods on each where its present occurrence is placed.
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


def know(prepared: Prepared, known: KnownAnswers) -> None:
    """Let a cycle that has not begun use what is known."""
    cycle = prepared.cycle
    cycle.sizing.chooser = _KnownFirst(
        cycle.problem,
        cycle.state,
        cycle.solver,
        planned=cycle.planned,
        cycle=cycle,
        in_order=prepared.in_order,
        known=known,
    )


@dataclass(eq=False)
class _KnownFirst(LookAhead):
    """A chooser that looks up before it searches."""

    known: KnownAnswers = field(kw_only=True)

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
        found = Fit(request, Feasibility(Status.FOUND, node_counts), borrows(state, request))
        return self.beside_planned(found)

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
