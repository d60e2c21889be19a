"""Walking again without searching again: what an earlier walk found is taken where it still holds.

A placement found before is a witness: it is checked on the books as they are, and who has one that holds needs no search. On
the very snapshot of a plan, its refusals and its victims hold as well. Everything else is decided anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from queuectl.domain.plan import Plan, Preemption, Proof, Refusal
from queuectl.domain.queues import ClusterQueue
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Pending
from queuectl.domain.workload import Placement
from queuectl.planner.capacity.entitlement import borrows
from queuectl.planner.capacity.node_counts import NodeCounts, fits
from queuectl.planner.capacity.placing import node_counts_of, placement_of
from queuectl.planner.cycle.cycle import AdmissionCycle
from queuectl.planner.placement.feasible import Decision, decide
from queuectl.planner.preempt.find import Victims
from queuectl.planner.problem.partial import shrinks
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.search.choose import (
    Fit,
    FitsAfterEviction,
    FlavorChooser,
    Outcome,
    Refuted,
    Unknown,
)
from queuectl.planner.solver.solver import Status


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of pending gangs, by uid.

    Attributes:
        placed: where a gang fits; checked before it is believed.
        refused: gangs that fit nowhere and may evict nobody; only of the very same snapshot.
        victims: whom a gang evicts, with the refusal that holds its lease; only of the very same snapshot.
        waiting: gangs that are likely to wait again; they are decided anew.
    """

    placed: Mapping[str, Placement]
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    victims: Mapping[str, tuple[Refusal, tuple[Preemption, ...]]] = field(default_factory=dict)
    waiting: frozenset[str] = frozenset()


def of_plan(plan: Plan) -> Known:
    """All that a plan says of its own snapshot."""
    placed = {a.uid: a.placement for a in plan.admitted}
    sure = [r for r in plan.pending if r.proof is Proof.OPTIMAL]
    refused = {
        r.uid: r
        for r in sure
        if r.lease is None and r.reasons[0].code is not Code.WAITING_TO_RECLAIM
    }
    helped = {move.beneficiary for move in plan.moved}  # their leases came after the walk
    leased = (r for r in sure if r.lease is not None and r.uid not in helped)
    evicted: dict[str, list[Preemption]] = {}
    for preemption in plan.preempted:
        evicted.setdefault(preemption.preemptor, []).append(preemption)
    victims = {r.uid: (r, tuple(evicted[r.uid])) for r in leased if r.uid in evicted}
    return Known(placed, refused, victims)


def of_walk(cycle: AdmissionCycle) -> Known:
    """Where a walk has put those it keeps, and who waits: hints for other snapshots too."""
    placed = {
        kept.request.pending.workload.uid: placement_of(
            cycle.problem, kept.request, kept.node_counts
        )
        for kept in cycle.state.kept
    }
    return Known(placed, waiting=frozenset(cycle.refused))


def know(cycle: AdmissionCycle, known: Known) -> None:
    """Let a walk that has not begun use what is known."""
    cycle.sizing.chooser = Knowing(cycle.problem, cycle.state, cycle.solver, known=known)


def is_refused(cycle: AdmissionCycle, uid: str) -> bool:
    """Whether what a walk knows tells that a gang fits nowhere."""
    return isinstance(cycle.sizing.chooser, Knowing) and uid in cycle.sizing.chooser.known.refused


@dataclass(eq=False)
class Knowing(FlavorChooser):
    """A chooser that looks up before it searches."""

    known: Known = field(kw_only=True)

    def choose(
        self, pending: Pending, queue: ClusterQueue | None, templates: Iterable[GangRequest]
    ) -> Outcome:
        templates = list(templates)
        uid = pending.workload.uid
        refusal = self.known.refused.get(uid)
        if refusal is not None and not shrinks(pending.workload):
            return Refuted(refusal.reasons)
        clearing = self._clearing(uid, [replace(t, pending=pending) for t in templates])
        return clearing or super().choose(pending, queue, templates)

    def _clearing(self, uid: str, requests: Iterable[GangRequest]) -> FitsAfterEviction | None:
        refusal, victims = self.known.victims.get(uid, (None, ()))
        if refusal is None or refusal.lease is None:
            return None
        for request in requests:
            node_counts = self._spots(request, refusal.lease.placement)
            if node_counts is not None:
                return FitsAfterEviction(request, Victims(victims, node_counts, refusal.proof), ())
        return None

    def fit(self, request: GangRequest) -> Fit | Unknown | Reason:
        placement = self.known.placed.get(request.pending.workload.uid)
        node_counts = self._spots(request, placement) if placement is not None else None
        state = self.state
        holds = node_counts is not None and fits(state.free(), request.pods, node_counts)
        if node_counts is None or not holds or not state.quota_fits(request):
            return super().fit(request)
        return Fit(request, Decision(Status.FOUND, node_counts), borrows(state, request))

    def decide(self, request: GangRequest) -> Decision:
        doubtful = request.pending.workload.uid in self.known.waiting
        return decide(self.state, request, self.solver, doubtful=doubtful)

    def why_nowhere(self, request: GangRequest) -> Reason:
        if request.pending.workload.uid not in self.known.waiting:
            return super().why_nowhere(request)
        return Reason(Code.TOPOLOGY_PLACEMENT_FAILED, "it finds no place, as before")

    def _spots(self, request: GangRequest, placement: Placement) -> NodeCounts | None:
        """A placement as spots of a demand; None when it was made under other flavors, or does not read."""
        podsets = request.pending.workload.podsets
        placed = [placement.of(podset.name) for podset in podsets]
        if [p.flavors if p is not None else None for p in placed] != list(request.flavors):
            return None
        if any(p is not None and p.shares for p in placed):
            return None
        return node_counts_of(self.problem, request, placement)
