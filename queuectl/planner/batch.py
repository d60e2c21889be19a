"""The walk: pending gangs in queue order, each kept if it fits together with those already kept.

The order is lexicographic: no gang is ever traded for later ones, and none is missed because an earlier one was put in the
wrong spot. A gang that cannot start may preempt when it is met; its lease joins what is kept before the next is looked at.
A refutation holds for every equal gang that comes later, for what is kept only grows; so equal gangs cost one search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from queuectl.domain.plan import Admission, Eviction, Preemption, Proof, Refusal
from queuectl.domain.queues import ClusterQueue, WithinClusterQueue
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import CapacityLease, Pending
from queuectl.planner import explain
from queuectl.planner.arena import Arena
from queuectl.planner.asking import demand_of
from queuectl.planner.classes import Class, Classes
from queuectl.planner.decide import Decision, decide, place
from queuectl.planner.demand import Demand
from queuectl.planner.explain import Explained
from queuectl.planner.leases import Leases
from queuectl.planner.ledger import Kept, Ledger, Spots
from queuectl.planner.order import NEVER, Head, StrictOrder, barred
from queuectl.planner.placing import placement_of
from queuectl.planner.preempt import find_victims
from queuectl.planner.solve import Solver, Status

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
    starting: dict[str, Kept] = field(default_factory=dict)  # uid -> where it starts
    refused: dict[str, Refusal] = field(default_factory=dict)
    preempted: list[Preemption] = field(default_factory=list)
    evicted: list[Eviction] = field(default_factory=list)
    repaired: dict[str, Admission] = field(default_factory=dict)
    undecided: bool = False
    unproved: bool = False
    moves: int = 0
    _open: int = 0  # gangs looked at and not refuted

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
        found: list[Explained] = []
        blocked: list[Demand] = []
        for choice, template in kind.demands:
            if self.strict.ahead(queue, choice) is not None:
                continue
            demand = replace(template, pending=pending)
            short = self._quota(queue, demand)
            decision = decide(self.ledger, demand, self.solver) if short is None else None
            if decision is not None and decision.status is Status.FOUND:
                self._start(demand, decision)
                return
            if decision is not None and decision.status is not Status.REFUTED:
                self._open_question(pending, queue, kind, decision.alarm)
                return
            why = short or explain.placement_failed(self.ledger, demand)
            if why.reason.code not in NEVER:
                never = self._never(demand, queue)
                why = never or why
            if why.reason.code not in NEVER:
                blocked.append(demand)
            found.append(why)
        if self._preempt(pending, queue, kind, blocked):
            return
        if not kind.options.complete:
            self._open_question(pending, queue, kind, "")
        else:
            kind.refusal = _main_first(found)
            self._refute(pending, queue, kind)

    def _quota(self, queue: ClusterQueue | None, demand: Demand) -> Explained | None:
        if queue is None:
            return None
        nominal = self.ledger.nominal(queue.name)
        if any(need > nominal[row] for row, need in demand.charges.items()):
            return explain.exceeds_quota(queue, demand, nominal)
        left = self.ledger.quota_left(queue.name)
        if any(need > left[row] for row, need in demand.charges.items()):
            return explain.waits_for_quota(queue, demand, nominal, left)
        return None

    def _never(self, demand: Demand, queue: ClusterQueue | None) -> Explained | None:
        """Proof that the gang fits not even the empty fleet."""
        if not demand.units:
            return None
        lasting = demand_of(self.arena, demand.pending, queue, demand.flavors, lasting=True)
        known = self.arena.index.never
        key = lasting.signature()
        if key not in known:
            # Counted apart: whether it is known already depends on the cycles before, the plan must not.
            aside = Solver(self.solver.limits, self.solver.stop)
            decision = place(lasting, self.arena.index.allocatable, aside)
            self.solver.cut |= aside.cut
            if decision.status not in (Status.FOUND, Status.REFUTED):
                return None
            known[key] = decision.status is Status.REFUTED
        return explain.never_fits(self.ledger, lasting) if known[key] else None

    def _start(self, demand: Demand, decision: Decision) -> None:
        for kept, spots in decision.moved:
            self.ledger.move(kept, spots)
        self.moves += len(decision.moved)
        kept = Kept(demand, decision.spots)
        self.ledger.keep(kept)
        self.starting[demand.pending.workload.uid] = kept
        self._open += 1

    # Preemption.

    def _preempt(
        self, pending: Pending, queue: ClusterQueue | None, kind: Class, blocked: Sequence[Demand]
    ) -> bool:
        """Whether victims were found, or the search for them ended open."""
        if queue is None or queue.within_cluster_queue is WithinClusterQueue.NEVER:
            return False
        for demand in blocked:
            found = find_victims(self.ledger, demand, queue, self.solver)
            if found is None:
                continue
            if found.proof is Proof.UNDECIDED:
                self._open_question(pending, queue, kind, "")
            else:
                self.unproved |= found.proof is not Proof.OPTIMAL
                self._hold(demand, queue, kind, found.victims, found.spots)
            return True
        return False

    def _hold(
        self,
        demand: Demand,
        queue: ClusterQueue,
        kind: Class,
        victims: tuple[Preemption, ...],
        spots: Spots,
    ) -> None:
        """Lease what the victims free; refutations so far may no longer hold where they free more than that."""
        pending = demand.pending
        gangs = {g.workload.uid: g for g in self.arena.snapshot.admitted}
        for victim in victims:
            self.ledger.evict(gangs[victim.victim])
        self.ledger.lease(demand, spots)
        self.preempted.extend(victims)
        self.classes.forget_refusals()
        now = self.arena.snapshot.now
        lease = CapacityLease(
            placement_of(self.arena, demand, spots),
            tuple(v.victim for v in victims),
            now,
            now + self.arena.snapshot.limits.lease_seconds,
        )
        reason = explain.waits_for_victims(lease.victims)
        self._wait(pending, queue, kind, reason, lease=lease)
        self._open += 1

    # Outcomes.

    def _open_question(
        self, pending: Pending, queue: ClusterQueue | None, kind: Class, alarm: str
    ) -> None:
        kind.undecided, kind.alarm = max(kind.undecided, pending.budget), alarm
        self._leave_open(pending, queue, kind, explain.undecided(pending.budget, alarm))

    def _leave_open(
        self, pending: Pending, queue: ClusterQueue | None, kind: Class, why: Explained
    ) -> None:
        self.undecided = True
        self._open += 1
        self._wait(pending, queue, kind, why.reason, proof=Proof.UNDECIDED)

    def _refute(self, pending: Pending, queue: ClusterQueue | None, kind: Class) -> None:
        assert kind.refusal is not None
        reasons = tuple(e.reason for e in kind.refusal)
        unblock = tuple(dict.fromkeys(text for e in kind.refusal for text in e.unblock))
        if reasons[0].code in NEVER:
            self._refuse(pending, reasons, unblock)
        else:
            self._wait(pending, queue, kind, *reasons, unblock=unblock)

    def _wait(
        self,
        pending: Pending,
        queue: ClusterQueue | None,
        kind: Class,
        *reasons: Reason,
        proof: Proof = Proof.OPTIMAL,
        unblock: tuple[str, ...] = (),
        lease: CapacityLease | None = None,
    ) -> None:
        """Refuse a gang that keeps its place: in a StrictFIFO queue later ones leave it what it could use."""
        head = Head(pending.workload.ref, kind.flavors, lease is not None)
        self.strict.wait(queue, head)
        self._refuse(pending, reasons, unblock, lease, proof)

    def _refuse(
        self,
        pending: Pending,
        reasons: tuple[Reason, ...],
        unblock: tuple[str, ...] = (),
        lease: CapacityLease | None = None,
        proof: Proof = Proof.OPTIMAL,
    ) -> None:
        uid = pending.workload.uid
        self.refused[uid] = Refusal(uid, reasons, lease, unblock, proof)


def _main_first(found: Sequence[Explained]) -> tuple[Explained, ...]:
    """What could still change comes before what never will; in order of preference otherwise."""
    return tuple(sorted(found, key=lambda e: _RANK.get(e.reason.code, 0)))


_RANK = {
    Code.TOPOLOGY_PLACEMENT_FAILED: 0,
    Code.WAITING_FOR_QUOTA: 1,
    Code.SHAPE_NEVER_FITS: 2,
    Code.EXCEEDS_MAX_QUOTA: 3,
}
