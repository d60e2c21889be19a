"""The walk: pending gangs in queue order, each kept if it fits together with those already kept.

The order is lexicographic: no gang is ever traded for later ones, and none is missed because an earlier one was put in the
wrong spot. A gang that cannot start may preempt when it is met; its lease joins what is kept before the next is looked at.
A refutation holds for every equal gang that comes later, for what is kept only grows; so equal gangs cost one search.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from queuectl.domain.plan import Admission, Eviction, Preemption, Proof, Refusal
from queuectl.domain.queues import ClusterQueue, QueueingStrategy
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import CapacityLease, Pending
from queuectl.planner import explain
from queuectl.planner.arena import Arena
from queuectl.planner.choose import Chooser, Clearing, Fit, Outcome, Refuted, Unknown
from queuectl.planner.classes import Class, Classes
from queuectl.planner.decide import Decision
from queuectl.planner.demand import Demand
from queuectl.planner.explain import Explained
from queuectl.planner.leases import Leases
from queuectl.planner.ledger import Kept, Ledger
from queuectl.planner.order import NEVER, Head, StrictOrder, barred
from queuectl.planner.partial import Counts, Largest, admissible, at_least, shrinks, with_counts
from queuectl.planner.placing import placement_of
from queuectl.planner.preempt import Victims
from queuectl.planner.solve import Solver

_NOT_YET = Reason(Code.PENDING_EVALUATION, "behind others; not looked at yet")


@dataclass(slots=True)
class Walk:
    """One pass over the pending gangs."""

    arena: Arena
    ledger: Ledger
    solver: Solver
    leases: Leases
    classes: Classes
    strict: StrictOrder
    chooser: Chooser = field(init=False)
    starting: dict[str, Kept] = field(default_factory=dict)  # uid -> where it starts
    refused: dict[str, Refusal] = field(default_factory=dict)
    preempted: list[Preemption] = field(default_factory=list)
    evicted: list[Eviction] = field(default_factory=list)
    repaired: dict[str, Admission] = field(default_factory=dict)
    mending: list[Refusal] = field(default_factory=list)  # broken gangs that wait for their victims
    undecided: bool = False
    unproved: bool = False
    doubted: set[str] = field(
        default_factory=set
    )  # uids whose answer holds, but is not proved the best
    moves: int = 0
    _open: int = 0  # gangs looked at and not refuted

    def __post_init__(self) -> None:
        self.chooser = Chooser(self.arena, self.ledger, self.solver)

    def look(self, pending: Pending) -> None:
        """Decide one gang; it ends up in ``starting`` or in ``refused``."""
        reason = barred(self.arena.snapshot, pending)
        if reason is None and self.solver.stop.stopped:
            reason = _NOT_YET
        if reason is not None:
            self._refuse(pending, (reason,), lease=pending.lease if reason is _NOT_YET else None)
            return
        workload = pending.workload
        queue = self.arena.snapshot.config.cluster_queue_of(workload.namespace, workload.queue)
        kind = self.classes.of(pending, queue)
        head = self._head(queue, kind)
        if self.leases.holds(workload.uid) and self._leased(pending, queue, kind, head):
            return
        if head is not None:
            text = f"StrictFIFO: behind {head.ref}, which waits"
            self._wait(
                pending, queue, kind, Reason(Code.WAITING_IN_ORDER, text, {"behind": head.ref})
            )
        elif kind.refusal is not None:
            self._refute(pending, queue, kind)
        elif self.solver.cut or self._full:
            self.unproved = True
            self._wait(pending, queue, kind, _NOT_YET, proof=Proof.UNDECIDED)
        elif pending.budget <= kind.undecided:
            self._leave_open(pending, queue, kind, explain.undecided(pending.budget, kind.alarm))
        else:
            self._search(pending, queue, kind)

    @property
    def _full(self) -> bool:
        return self._open >= self.arena.snapshot.limits.window

    # Order.

    def _head(self, queue: ClusterQueue | None, kind: Class) -> Head | None:
        """The head that holds back every choice of flavors, None when some choice is open."""
        first: Head | None = None
        for choice, _ in kind.demands:
            head = self.strict.ahead(queue, choice)
            if head is None:
                return None
            first = first or head
        return first

    def _leased(
        self, pending: Pending, queue: ClusterQueue | None, kind: Class, head: Head | None
    ) -> bool:
        """Start a gang on its lease, or let it go on waiting; False when the lease was given up."""
        uid = pending.workload.uid
        if head is not None and not head.leased:
            self.leases.give_up(uid)  # what waits before it in its queue may use the capacity
            return False
        if head is None and (kept := self.leases.claim(uid)) is not None:
            self.ledger.keep(kept)
            self.starting[uid] = kept
            self._open += 1
            return True
        reason = self.leases.reason(uid)
        self._wait(pending, queue, kind, reason, lease=pending.lease)
        self._open += 1
        return True

    # Search.

    def _search(self, pending: Pending, queue: ClusterQueue | None, kind: Class) -> None:
        outcome = self._ask(pending, queue, kind)
        if isinstance(outcome, Refuted) and shrinks(pending.workload):
            outcome = self._largest(pending, queue)
        if isinstance(outcome, Fit):
            self._start(outcome.demand, outcome.decision)
        elif isinstance(outcome, Clearing):
            if outcome.victims.proof is not Proof.OPTIMAL:
                self._doubt(pending)
            self._hold(outcome.demand, queue, kind, outcome.victims)
        else:
            self._learn(pending, kind, outcome)
            if isinstance(outcome, Unknown):
                self._leave_open(
                    pending, queue, kind, explain.undecided(pending.budget, kind.alarm)
                )
            else:
                self._refute(pending, queue, kind)

    def _ask(self, pending: Pending, queue: ClusterQueue | None, kind: Class) -> Outcome:
        """What becomes of a gang with exactly these pods."""
        open_choices = [d for choice, d in kind.demands if self.strict.ahead(queue, choice) is None]
        outcome = self.chooser.choose(pending, queue, open_choices)
        if isinstance(outcome, Refuted) and not kind.options.complete:
            return Unknown()
        return outcome

    def _learn(self, pending: Pending, kind: Class, outcome: Outcome) -> None:
        """Keep for the equal gangs that follow what is known of this one."""
        if isinstance(outcome, Refuted):
            kind.refusal = outcome.why
        elif isinstance(outcome, Unknown):
            kind.undecided, kind.alarm = max(kind.undecided, pending.budget), outcome.alarm

    def _largest(self, pending: Pending, queue: ClusterQueue | None) -> Outcome:
        """What becomes of a gang that does not fit whole: the largest part of it that may start does."""
        outcomes: dict[Counts, Outcome] = {}

        def fits(counts: Counts) -> bool:
            part = with_counts(pending, counts)
            kind = self.classes.of(part, queue)
            if kind.refusal is not None:
                outcomes[counts] = Refuted(kind.refusal)
            elif pending.budget <= kind.undecided:
                outcomes[counts] = Unknown(kind.alarm)
            else:
                outcomes[counts] = self._ask(part, queue, kind)
                self._learn(part, kind, outcomes[counts])
            return isinstance(outcomes[counts], Fit | Clearing)

        choices = [admissible(podset) for podset in pending.workload.podsets]
        search = Largest(choices, fits, whole=False)
        counts = search.find()
        unknown = [o for o in outcomes.values() if isinstance(o, Unknown)]
        if unknown and (counts is None or pending.budget < self.solver.limits.max_budget):
            return unknown[0]
        if counts is None:
            (least,) = (o for o in outcomes.values() if isinstance(o, Refuted))
            return Refuted(tuple(at_least(why, choices) for why in least.why))
        if unknown or not search.exact:
            self._doubt(pending)
        return outcomes[counts]

    def _start(self, demand: Demand, decision: Decision) -> None:
        for kept, spots in decision.moved:
            self.ledger.move(kept, spots)
        self.moves += len(decision.moved)
        kept = Kept(demand, decision.spots)
        self.ledger.keep(kept)
        if self.undecided:
            self.doubted.add(demand.pending.workload.uid)
        self.starting[demand.pending.workload.uid] = kept
        self._open += 1

    def _hold(
        self, demand: Demand, queue: ClusterQueue | None, kind: Class, found: Victims
    ) -> None:
        """Lease what the victims free; refutations so far may no longer hold where they free more than that."""
        pending = demand.pending
        if self.undecided:
            self.doubted.add(pending.workload.uid)
        gangs = {g.workload.uid: g for g in self.arena.snapshot.admitted}
        for victim in found.victims:
            self.ledger.evict(gangs[victim.victim])
        self.ledger.lease(demand, found.spots)
        self.preempted.extend(found.victims)
        self.classes.forget_refusals()
        now = self.arena.snapshot.now
        lease = CapacityLease(
            placement_of(self.arena, demand, found.spots),
            tuple(v.victim for v in found.victims),
            now,
            now + self.arena.snapshot.limits.lease_seconds,
        )
        reason = explain.waits_for_victims(lease.victims)
        self._wait(pending, queue, kind, reason, lease=lease)
        self._open += 1

    # Outcomes.

    def _doubt(self, pending: Pending) -> None:
        """The answer holds, but a better one is not ruled out."""
        self.unproved = True
        self.doubted.add(pending.workload.uid)

    def _leave_open(
        self, pending: Pending, queue: ClusterQueue | None, kind: Class, why: Explained
    ) -> None:
        self.undecided = True
        self._open += 1
        self._wait(pending, queue, kind, why.reason, proof=Proof.UNDECIDED)

    def _refute(self, pending: Pending, queue: ClusterQueue | None, kind: Class) -> None:
        assert kind.refusal is not None
        reasons = tuple(e.reason for e in kind.refusal)
        if reasons[0].code in NEVER:
            self._refuse(pending, reasons)
        else:
            self._wait(pending, queue, kind, *reasons)
            if queue is not None and queue.strategy is QueueingStrategy.STRICT_FIFO:
                entitled = (d for _, d in kind.demands if self.ledger.entitled(d))
                wanted = next(
                    entitled, None
                )  # as Kueue: the first flavor its own quota would do for
                if wanted is not None:
                    self.ledger.reserve(wanted)

    def _wait(
        self,
        pending: Pending,
        queue: ClusterQueue | None,
        kind: Class,
        *reasons: Reason,
        proof: Proof = Proof.OPTIMAL,
        lease: CapacityLease | None = None,
    ) -> None:
        """Refuse a gang that keeps its place: in a StrictFIFO queue later ones leave it what it could use."""
        head = Head(pending.workload.ref, kind.flavors, lease is not None)
        self.strict.wait(queue, head)
        self._refuse(pending, reasons, lease, proof)

    def _refuse(
        self,
        pending: Pending,
        reasons: tuple[Reason, ...],
        lease: CapacityLease | None = None,
        proof: Proof = Proof.OPTIMAL,
    ) -> None:
        uid = pending.workload.uid
        self.refused[uid] = Refusal(uid, reasons, lease, proof=proof)
