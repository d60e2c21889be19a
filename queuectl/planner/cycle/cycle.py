"""The walk: pending gangs in queue order, each kept if it fits together with those already kept.

The order is lexicographic: no gang is ever traded for later ones, and none is missed because an earlier one was put in the
wrong spot. A gang that cannot start may preempt when it is met; its lease joins what is kept before the next is looked at.
A refutation holds for every equal gang that comes later, for what is kept only grows; so equal gangs cost one search.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from queuectl.domain.plan import Eviction, Preemption, Proof, Refusal
from queuectl.domain.queues import (
    ClusterQueue,
    Protection,
    QueueingStrategy,
    ReclaimWithinCohort,
)
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import CapacityLease, Pending
from queuectl.planner.capacity import reservations
from queuectl.planner.capacity.entitlement import entitled
from queuectl.planner.capacity.node_counts import TentativeAdmission
from queuectl.planner.capacity.placing import placement_of
from queuectl.planner.capacity.reservations import Leases, lease_end, waits_for_victims
from queuectl.planner.capacity.state import State
from queuectl.planner.order.limits import Limits
from queuectl.planner.order.order import NEVER, Head, StrictOrder, barred
from queuectl.planner.placement.feasible import Decision
from queuectl.planner.preempt.find import Victims
from queuectl.planner.preempt.patience import reclaim_wait
from queuectl.planner.problem.partial import smallest
from queuectl.planner.problem.problem import Problem
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.quota.tree import QuotaRow
from queuectl.planner.reasons import refusals
from queuectl.planner.search.choose import (
    Fit,
    FitsAfterEviction,
    FlavorChooser,
    Outcome,
    Refuted,
    Unknown,
)
from queuectl.planner.search.class_states import GangClass, GangClasses
from queuectl.planner.search.sizing import SizeSearch
from queuectl.planner.solver.solver import Solver

_NOT_YET = Reason(Code.PENDING_EVALUATION, "behind others; not looked at yet")


@dataclass(slots=True)
class AdmissionCycle:
    """One pass over the pending gangs."""

    problem: Problem
    state: State
    solver: Solver
    leases: Leases
    classes: GangClasses
    strict: StrictOrder
    limits: Limits = field(init=False)
    sizing: SizeSearch = field(init=False)
    starting: dict[str, TentativeAdmission] = field(default_factory=dict)  # uid -> where it starts
    refused: dict[str, Refusal] = field(default_factory=dict)
    preempted: list[Preemption] = field(default_factory=list)
    evicted: list[Eviction] = field(default_factory=list)
    reserved: dict[str, list[tuple[QuotaRow, int]]] = field(
        default_factory=dict
    )  # uid -> quota kept from borrowers for it
    mending: list[Refusal] = field(default_factory=list)  # broken gangs that wait for their victims
    undecided: bool = False
    unproved: bool = False
    doubted: set[str] = field(
        default_factory=set
    )  # uids whose answer holds, but is not proved the best
    moves: int = 0
    moved: set[str] = field(default_factory=set)  # uids of kept gangs that made room for others
    opened: int = 0  # gangs looked at and not refuted: what the window counts
    # Repairs of gangs that a refuted one may evict are undone for a second look (:mod:`queuectl.planner.cycle.repair_precedence`).
    give_way: Callable[[Pending, ClusterQueue | None, GangClass, Refuted], Outcome] | None = None

    def __post_init__(self) -> None:
        chooser = FlavorChooser(self.problem, self.state, self.solver)
        self.limits = Limits(self.problem.snapshot)
        self.sizing = SizeSearch(
            chooser, self.classes, self.strict, self.limits, self.solver, self._doubt
        )

    def look(self, pending: Pending) -> None:
        """Decide one gang; it ends up in ``starting`` or in ``refused``."""
        reason = barred(self.problem.snapshot, pending)
        if reason is None and self.solver.stop.stopped:
            reason = _NOT_YET
        if reason is not None:
            self._refuse(pending, (reason,), lease=pending.lease if reason is _NOT_YET else None)
            return
        workload = pending.workload
        queue = self.problem.snapshot.config.cluster_queue_of(workload.namespace, workload.queue)
        short = self.limits.refusal(smallest(workload), queue)
        if short is not None:
            held = pending.lease if self.leases.holds(workload.uid) else None
            self._refuse(pending, (short,), lease=held)
            return
        kind = self.classes.of(pending, queue)
        head = self._head(queue, kind)
        if self.leases.holds(workload.uid) and self._leased(pending, queue, kind, head):
            return
        if kind.refusal is not None and kind.refusal[0].code in NEVER:
            self._refute(pending, queue, kind)
        elif head is not None:
            text = f"StrictFIFO: behind {head.ref}, which waits"
            self._wait(
                pending, queue, kind, Reason(Code.WAITING_IN_ORDER, text, {"behind": head.ref})
            )
        elif kind.refusal is not None:
            self._refute(pending, queue, kind)
        elif self.over:
            self.unproved = True
            self._wait(pending, queue, kind, _NOT_YET, proof=Proof.UNDECIDED)
        elif pending.budget <= kind.undecided:
            self._leave_open(pending, queue, kind, refusals.undecided(pending.budget, kind.alarm))
        else:
            self._search(pending, queue, kind)

    @property
    def over(self) -> bool:
        """Nobody else is searched for: the window is full, or the solver was stopped."""
        full = self.opened >= self.problem.snapshot.limits.window
        return full or self.solver.ended()

    # Order.

    def _head(self, queue: ClusterQueue | None, kind: GangClass) -> Head | None:
        """The head that holds back every choice of flavors, None when some choice is open."""
        first: Head | None = None
        for choice, _ in kind.requests:
            head = self.strict.ahead(queue, choice)
            if head is None:
                return None
            first = first or head
        return first

    def _leased(
        self, pending: Pending, queue: ClusterQueue | None, kind: GangClass, head: Head | None
    ) -> bool:
        """Start a gang on its lease, or let it go on waiting; False when the lease was given up."""
        uid = pending.workload.uid
        leased = self.leases.workload(uid)
        # What waits before it in its queue may use the capacity; so may the gang itself, with fewer pods.
        if (head is not None and not head.leased) or self.limits.short(leased) is not None:
            self.leases.give_up(uid)
            self.classes.forget_refusals()
            return False
        if head is None and (kept := self.leases.claim(uid)) is not None:
            self._keep(kept)
            return True
        self.limits.take(leased)
        reason = self.leases.reason(uid)
        self._wait(pending, queue, kind, reason, lease=pending.lease)
        self.opened += 1
        return True

    # Search.

    def _search(self, pending: Pending, queue: ClusterQueue | None, kind: GangClass) -> None:
        outcome = self.sizing.outcome(pending, queue, kind)
        if isinstance(outcome, Refuted) and self._overtakes(pending, queue, kind, outcome):
            outcome = self.sizing.outcome(pending, queue, kind)
        if isinstance(outcome, Refuted) and self.give_way is not None:
            outcome = self.give_way(pending, queue, kind, outcome)
        if isinstance(outcome, Fit):
            if not outcome.sure:
                self._doubt(pending)
            self._start(outcome.request, outcome.decision)
        elif isinstance(outcome, FitsAfterEviction):
            if outcome.victims.proof is not Proof.OPTIMAL:
                self._doubt(pending)
            self._clear(outcome, queue, kind)
        else:
            self.sizing.learn(pending, kind, outcome)
            if isinstance(outcome, Unknown):
                self._leave_open(
                    pending, queue, kind, refusals.undecided(pending.budget, kind.alarm)
                )
            else:
                self._refute(pending, queue, kind)

    def _overtakes(
        self, pending: Pending, queue: ClusterQueue | None, kind: GangClass, refuted: Refuted
    ) -> bool:
        """End the leases of those whom it would hold back in its StrictFIFO queue if it waits; whether there are any."""
        if queue is None or queue.strategy is not QueueingStrategy.STRICT_FIFO:
            return False
        if refuted.why[0].code in NEVER:
            return False  # it holds back nobody
        head = Head(pending.workload.ref, kind.flavors, leased=False)
        behind = [
            request.pending.workload.uid
            for request in self.leases.behind(pending, queue, self.strict.order)
            if all(
                self.strict.holds_back(head, choice)
                for choice, _ in self.classes.of(request.pending, queue).requests
            )
        ]
        for uid in behind:
            self.leases.give_up(uid)
        if behind:
            self.classes.forget_refusals()
        return bool(behind)

    def _start(self, request: GangRequest, decision: Decision) -> None:
        for kept, node_counts in decision.moved:
            self.state.move(kept, node_counts)
            self.moved.add(kept.request.pending.workload.uid)
        self.moves += len(decision.moved)
        if self.undecided:
            self.doubted.add(request.pending.workload.uid)
        self._keep(TentativeAdmission(request, decision.node_counts))

    def _keep(self, kept: TentativeAdmission) -> None:
        workload = kept.request.pending.workload
        self.state.keep(kept)
        self.limits.take(workload)
        self.strict.order.start(workload, kept.request.charges)
        self.refused.pop(workload.uid, None)  # refuted before, and looked at again
        self.starting[workload.uid] = kept
        self.opened += 1

    def _clear(self, found: FitsAfterEviction, queue: ClusterQueue | None, kind: GangClass) -> None:
        """Take the room of victims, unless it waits before it takes quota back."""
        wait = self.waits(found, queue)
        if wait is None:
            self._hold(found.request, queue, kind, found.victims)
            return
        pending = found.request.pending
        self._wait(pending, queue, kind, wait)
        self.opened += 1

    def waits(self, found: FitsAfterEviction, queue: ClusterQueue | None) -> Reason | None:
        """Why a gang does not evict yet; None = it does."""
        if queue is None:
            return None
        pending = found.request.pending
        return reclaim_wait(pending, queue, found.victims.victims, self.problem.snapshot.now)

    def _hold(
        self, request: GangRequest, queue: ClusterQueue | None, kind: GangClass, found: Victims
    ) -> None:
        """Lease what the victims free; refutations so far may no longer hold where they free more than that."""
        pending = request.pending
        if self.undecided:
            self.doubted.add(pending.workload.uid)
        gangs = {g.workload.uid: g for g in self.problem.snapshot.admitted}
        evicted = [gangs[v.victim] for v in found.victims]
        victims = reservations.awaited(self.state, request, found.node_counts, evicted)
        for gang in evicted:
            self.state.evict(gang)
        reservations.reserve(self.state, request, found.node_counts, victims)
        self.limits.take(pending.workload)
        self.strict.order.start(pending.workload, request.charges)
        self.preempted.extend(found.victims)
        self.classes.forget_refusals()
        lease = CapacityLease(
            placement_of(self.problem, request, found.node_counts),
            victims,
            self.problem.snapshot.now,
            lease_end(self.problem.snapshot),
        )
        reason = waits_for_victims(lease.victims)
        self._wait(pending, queue, kind, reason, lease=lease)
        self.opened += 1

    # Outcomes.

    def _doubt(self, pending: Pending) -> None:
        """The answer holds, but a better one is not ruled out."""
        self.unproved = True
        self.doubted.add(pending.workload.uid)

    def _leave_open(
        self, pending: Pending, queue: ClusterQueue | None, kind: GangClass, why: Reason
    ) -> None:
        self.undecided = True
        self.opened += 1
        self._wait(pending, queue, kind, why, proof=Proof.UNDECIDED)

    def _refute(self, pending: Pending, queue: ClusterQueue | None, kind: GangClass) -> None:
        assert kind.refusal is not None
        reasons = kind.refusal
        if reasons[0].code in NEVER:
            self._refuse(pending, reasons)
        else:
            self._wait(pending, queue, kind, *reasons)
            if queue is not None and self._keeps_its_quota(queue):
                # the first flavor its own quota would do for
                wanted = next((d for _, d in kind.requests if entitled(self.state, d)), None)
                if wanted is not None:
                    self.reserved[pending.workload.uid] = self.state.withhold(wanted)

    def give_back_reserved(self, uid: str) -> None:
        """Let go of the quota that was kept from borrowers for a gang."""
        for row, amount in self.reserved.pop(uid, ()):
            self.state.later.quota.add(row, -amount)

    def _keeps_its_quota(self, queue: ClusterQueue) -> bool:
        """Whether others may not borrow what a waiting head of it could use: not if it can take that back from anybody."""
        if queue.strategy is not QueueingStrategy.STRICT_FIFO:
            return False
        if queue.reclaim_within_cohort is not ReclaimWithinCohort.ANY:
            return True
        queues = self.problem.snapshot.config.cluster_queues.values()
        return any(other.protection != Protection() for other in queues)

    def _wait(
        self,
        pending: Pending,
        queue: ClusterQueue | None,
        kind: GangClass,
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
