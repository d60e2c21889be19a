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
from queuectl.planner.batch import Walk
from queuectl.planner.choose import Chooser, Clearing, Fit, Outcome, Refuted, Unknown
from queuectl.planner.decide import Decision, decide
from queuectl.planner.demand import Demand
from queuectl.planner.explain import Explained
from queuectl.planner.partial import shrinks
from queuectl.planner.placing import placement_of, spots_of
from queuectl.planner.queueing.entitlement import borrows
from queuectl.planner.solve import Status
from queuectl.planner.spots import Spots, fits
from queuectl.planner.victims.find import Victims


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


def of_walk(walk: Walk) -> Known:
    """Where a walk has put those it keeps, and who waits: hints for other snapshots too."""
    placed = {
        kept.demand.pending.workload.uid: placement_of(walk.arena, kept.demand, kept.spots)
        for kept in walk.ledger.kept
    }
    return Known(placed, waiting=frozenset(walk.refused))


def know(walk: Walk, known: Known) -> None:
    """Let a walk that has not begun use what is known."""
    walk.sizing.chooser = Knowing(walk.arena, walk.ledger, walk.solver, known=known)


def is_refused(walk: Walk, uid: str) -> bool:
    """Whether what a walk knows tells that a gang fits nowhere."""
    return isinstance(walk.sizing.chooser, Knowing) and uid in walk.sizing.chooser.known.refused


@dataclass(eq=False)
class Knowing(Chooser):
    """A chooser that looks up before it searches."""

    known: Known = field(kw_only=True)

    def choose(
        self, pending: Pending, queue: ClusterQueue | None, templates: Iterable[Demand]
    ) -> Outcome:
        templates = list(templates)
        uid = pending.workload.uid
        refusal = self.known.refused.get(uid)
        if refusal is not None and not shrinks(pending.workload):
            return Refuted(tuple(map(Explained, refusal.reasons)))
        clearing = self._clearing(uid, [replace(t, pending=pending) for t in templates])
        return clearing or super().choose(pending, queue, templates)

    def _clearing(self, uid: str, demands: Iterable[Demand]) -> Clearing | None:
        refusal, victims = self.known.victims.get(uid, (None, ()))
        if refusal is None or refusal.lease is None:
            return None
        for demand in demands:
            spots = self._spots(demand, refusal.lease.placement)
            if spots is not None:
                return Clearing(demand, Victims(victims, spots, refusal.proof), ())
        return None

    def fit(self, demand: Demand) -> Fit | Unknown | Explained:
        placement = self.known.placed.get(demand.pending.workload.uid)
        spots = self._spots(demand, placement) if placement is not None else None
        ledger = self.ledger
        holds = spots is not None and fits(ledger.free(), demand.pods, spots)
        if spots is None or not holds or not ledger.quota_fits(demand):
            return super().fit(demand)
        return Fit(demand, Decision(Status.FOUND, spots), borrows(ledger, demand))

    def decide(self, demand: Demand) -> Decision:
        doubtful = demand.pending.workload.uid in self.known.waiting
        return decide(self.ledger, demand, self.solver, doubtful=doubtful)

    def why_nowhere(self, demand: Demand) -> Explained:
        if demand.pending.workload.uid not in self.known.waiting:
            return super().why_nowhere(demand)
        return Explained(Reason(Code.TOPOLOGY_PLACEMENT_FAILED, "it finds no place, as before"))

    def _spots(self, demand: Demand, placement: Placement) -> Spots | None:
        """A placement as spots of a demand; None when it was made under other flavors, or does not read."""
        podsets = demand.pending.workload.podsets
        placed = [placement.of(podset.name) for podset in podsets]
        if [p.flavors if p is not None else None for p in placed] != list(demand.flavors):
            return None
        if any(p is not None and p.shares for p in placed):
            return None
        return spots_of(self.arena, demand, placement)
