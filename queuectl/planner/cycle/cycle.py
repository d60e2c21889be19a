"""The admission cycle: pending gangs in queue order, each admitted if it fits together with those admitted before.

The order is lexicographic. No gang is exchanged for later ones, and none is missed because an earlier one was placed badly. A
gang that cannot start can preempt when the cycle considers it. Its reservation counts before the next gang is considered. The set of
admitted gangs only grows, so a refutation holds for each equal gang that comes later, and equal gangs cost one search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from weakref import WeakMethod

import numpy as np

from queuectl.domain.checks import CheckRule
from queuectl.domain.plan import Eviction, Preemption, Proof, Refusal
from queuectl.domain.queues import (
    ClusterQueue,
    Protection,
    ReclaimWithinCohort,
)
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Admitted, CapacityLease, Pending
from queuectl.domain.workload import Workload
from queuectl.planner.backfill.planned_starts import PlannedStarts, first_room
from queuectl.planner.capacity import reservations
from queuectl.planner.capacity.node_counts import NodeCounts, TentativeAdmission, placement_of
from queuectl.planner.capacity.reservations import Leases, lease_end, waits_for_victims
from queuectl.planner.capacity.state import CycleState
from queuectl.planner.cycle.holds import (
    Hold,
    NotMade,
    hold_on_place,
    hold_without_nodes,
    makers_of_nodes,
)
from queuectl.planner.order.limits import GangLimits
from queuectl.planner.order.queue_order import (
    BlockingHead,
    StrictFifoHeads,
    after_rank,
    behind,
    inadmissible,
    no_growth,
)
from queuectl.planner.placement.greedy import find_near
from queuectl.planner.preempt.cost import sizes_of
from queuectl.planner.preempt.protections import reclaim_wait
from queuectl.planner.preempt.shortage import entitled
from queuectl.planner.problem.flavors import flavors_of
from queuectl.planner.problem.problem import Problem, caps
from queuectl.planner.problem.request import GangRequest, smallest
from queuectl.planner.reasons import refusals
from queuectl.planner.search.flavor_choice import (
    Fit,
    FitsAfterEviction,
    FlavorChooser,
    Outcome,
    Refuted,
    Unknown,
)
from queuectl.planner.search.gang_classes import Candidate, GangClasses
from queuectl.planner.search.size_search import SizeSearch
from queuectl.planner.solver import Solver

_NOT_YET = Reason(
    Code.PENDING_EVALUATION,
    "not evaluated yet; the planner considers gangs before it in queue order first",
)

_AFTER_EVICTIONS = Reason(
    Code.TOPOLOGY_PLACEMENT_FAILED, "it fits on the current nodes only if other gangs leave"
)


@dataclass(slots=True)
class ElasticRanks:
    """The pods of elastic gangs that a cycle has decided and that do not start.

    Attributes:
        refused: by uid of an elastic gang, the pod of the lowest rank that is not added to it, or the gang itself while it is broken.
        held: by uid of an elastic gang, the pod of the lowest rank that is held for its admission checks.
    """

    refused: dict[str, Workload] = field(default_factory=dict)
    held: dict[str, Workload] = field(default_factory=dict)

    def lower(self, workload: Workload, first_pods: Mapping[str, Workload]) -> Workload | None:
        """The pod of a lower rank that is ``refused`` or ``held``; None for gangs that extend no other."""
        if workload.growth is None:
            return None
        lower = first_pods.get(workload.growth.base)
        return lower if lower is not None and _rank(lower) < workload.growth.rank else None

    def refuse(self, workload: Workload) -> None:
        """Note a pod that does not start."""
        if workload.growth is not None:
            first = self.refused.get(workload.growth.base, workload)
            self.refused[workload.growth.base] = min(workload, first, key=_rank)

    def admit(self, workload: Workload, *, held: bool) -> None:
        """Note a pod that starts, or is held."""
        if workload.growth is None:
            return
        if self.refused.get(workload.growth.base) == workload:
            del self.refused[workload.growth.base]
        if held:
            self.held.setdefault(workload.growth.base, workload)


def _rank(workload: Workload) -> int:
    return workload.growth.rank if workload.growth is not None else -1


@dataclass(slots=True, weakref_slot=True)
class AdmissionCycle:
    """One pass over the pending gangs.

    Attributes:
        classes: what is known of equal gangs.
        heads: the heads of StrictFIFO ClusterQueues that wait.
        starting: by uid, the gangs that start, or are held on their places, and where.
        holds: by uid, the gangs that are held for their admission checks.
        refused: by uid, the gangs that neither start nor are held, and why.
        waiting_repairs: broken gangs that wait for their victims.
        undecided: a search ended without an answer.
        unproved: an answer that is not about a gang of ``doubtful`` is not proved to be the best.
        doubtful: uids of the gangs whose answers hold and are not proved to be the best.
        moves: how often a gang of this plan was placed again to make room for another.
        moved: uids of these gangs.
        considered: gangs that were searched for and not refuted; the window limits them.
        planned: the planned starts of gangs that wait.
        ranks: the pods of elastic gangs that are not added.
        without_repairs: searches again for a refuted gang, without the repairs of gangs that it may evict
            (:mod:`queuectl.planner.cycle.repair_precedence`). It is weak: a reference cycle would keep the arrays of a plan in memory until the next
            search for such cycles, minutes later.
    """

    problem: Problem
    state: CycleState
    solver: Solver
    leases: Leases
    classes: GangClasses
    heads: StrictFifoHeads
    limits: GangLimits = field(init=False)
    sizing: SizeSearch = field(init=False)
    starting: dict[str, TentativeAdmission] = field(default_factory=dict)
    holds: dict[str, Hold] = field(default_factory=dict)
    refused: dict[str, Refusal] = field(default_factory=dict)
    preempted: list[Preemption] = field(default_factory=list)
    evicted: list[Eviction] = field(default_factory=list)
    waiting_repairs: list[Refusal] = field(default_factory=list)
    undecided: bool = False
    unproved: bool = False
    doubtful: set[str] = field(default_factory=set)
    moves: int = 0
    moved: set[str] = field(default_factory=set)
    considered: int = 0
    planned: PlannedStarts = field(init=False)
    ranks: ElasticRanks = field(init=False)
    without_repairs: WeakMethod[Callable[[Candidate, Refuted], Outcome]] | None = None

    def __post_init__(self) -> None:
        self.ranks = ElasticRanks({g.workload.uid: g.workload for g in self.problem.usage.broken})
        self.limits = GangLimits(self.problem.snapshot, self.leases.holds)
        self.planned = PlannedStarts(self.state, self.solver, self.limits.claims)
        chooser = FlavorChooser(self.problem, self.state, self.solver, planned=self.planned)
        self.sizing = SizeSearch(
            chooser, self.classes, self.heads, self.limits, self.solver, self.doubtful
        )

    def advance_to(self, pending: Pending) -> None:
        """Keep the places of the gangs before a gang in its ClusterQueue that leave and will queue again.

        Each gets a reservation in this plan, if one is left for it: no gang behind it uses or reserves the capacity that it leaves.
        """
        for workload in self.heads.advance_to(pending):
            excluded = self.state.leaving[workload.uid].excluded
            self._reserve_return(Pending(workload, excluded=excluded))

    def _reserve_return(self, returns: Pending) -> None:
        """The reservation of a gang that leaves and will queue again: of its flavors, on the nodes that it leaves as far as it fits there."""
        queue = self.problem.snapshot.queue_of(returns.workload)
        if inadmissible(self.problem.snapshot, returns) is not None:
            return
        later, near = self.state.later, np.zeros(self.problem.size, dtype=np.bool_)
        leaving = self.state.leaving[returns.workload.uid]
        near[self.problem.use_of(leaving)[0]] = True
        flavors = flavors_of(returns.workload, leaving.placement)
        for _, template in self.classes.of(returns, queue).requests:
            request = replace(template, pending=returns)
            if request.flavors != flavors or not self.state.quota.allows(request, later.quota):
                continue
            anywhere = [None] * len(request.podset_groups)
            found = find_near(request, later.free, partial(caps, later.free), anywhere, near)
            if found is not None:
                victims = reservations.awaited(self.state, request, found, ())
                reservations.reserve(self.state, request, found, victims)
                return

    def consider(self, pending: Pending) -> None:
        """Decide one gang: it is in ``starting``, ``holds`` or ``refused`` afterwards."""
        reason = inadmissible(self.problem.snapshot, pending)
        if reason is None and self.solver.stop.stopped:
            reason = _NOT_YET
        uid = pending.workload.uid
        if reason is not None:
            if pending.returns(self.problem.snapshot.now):
                self._keep_place(pending)
            keeps = reason is _NOT_YET or self.leases.holds(uid)
            self._refuse(pending, (reason,), lease=pending.lease if keeps else None)
            return
        if self._after_lower_rank(pending):
            return
        queue = self.problem.snapshot.queue_of(pending.workload)
        self.solver.consider(queue.name if queue is not None else None, uid)
        gang = self.classes.candidate(pending, queue)
        over = self._over_limit(gang)
        if over is not None:
            if self.planned.withdraw(uid):
                self.classes.forget_refusals()  # they were alongside its planned start
            # A gang that only its checks have held releases its capacity: nothing else would end its lease.
            keeps = pending.lease is not None and bool(pending.lease.victims)
            self._refuse_with_lease(pending, over, keeps=keeps)
            return
        head = self._head(gang)
        if self.leases.holds(uid) and self._leased(gang, head):
            return
        if head is None and not self.problem.size and self._on_no_nodes(gang):
            return
        self._decide(gang, head)

    def _decide(self, gang: Candidate, head: BlockingHead | None) -> None:
        """Decide a gang without a lease that no limit on its size holds back: by what is known, otherwise by a search."""
        refusal, before = gang.refusal, self._before(gang, head)
        if refusal is not None and refusal[0].never_fits:
            self._refute(gang)
        elif before is not None and self.never(gang):
            self._search(gang)  # it has no place, and its reason states why
        elif before is not None:
            self._wait_behind(gang, head, before)
        elif refusal is not None:
            self._refute(gang)
        elif self.over and not gang.gang_class.never:
            self.unproved = True
            if self._put_off(gang):
                self._withhold(gang)
        elif gang.gang_class.open(gang.pending):
            self._leave_open(gang)
        else:
            self._search(gang)

    def _wait_behind(self, gang: Candidate, head: BlockingHead | None, why: Reason) -> None:
        """Let a gang wait for one before it. It keeps the quota that it holds for nodes that were made, if the other one has its own."""
        if head is not None and head.leased and self._waits_for_made_nodes(gang, why):
            return
        self._wait(gang, why)
        if head is None:
            self._plan_start(gang)

    def _before(self, gang: Candidate, head: BlockingHead | None) -> Reason | None:
        """Why a gang waits for one before it, whatever is free; None if it does not."""
        if head is not None:
            return no_growth(head.ref) if gang.grows else behind(head.ref)
        if not gang.pending.workload.claims:
            return None
        used = self.limits.claims.in_use(gang.pending.workload)
        needed = (self.planned.needs_claim(request) for request in gang.requests)
        return used or next((reason for reason in needed if reason is not None), None)

    def never(self, gang: Candidate) -> bool:
        """Whether not even the fewest pods of a gang would start if no other gang ran and nothing were out of use."""
        return self.sizing.never(gang, nodes=not self._makes_nodes(gang))

    def _over_limit(self, gang: Candidate) -> Reason | None:
        """Why a limit other than quota keeps a gang out. None for a gang that never fits, which holds back no gang at such a limit."""
        least = smallest(gang.pending.workload)
        if self.limits.too_large(least) and self.never(gang):
            return None
        return self.limits.refusal(least, gang.queue, self.heads)

    @property
    def leased(self) -> dict[str, CapacityLease]:
        """By uid, the leases of the gangs that wait with one: for gangs that leave, or for their nodes."""
        held = (hold for hold in self.holds.values() if hold.without_nodes is not None)
        answers = (*self.refused.values(), *(hold.refusal(self.problem) for hold in held))
        return {answer.uid: answer.lease for answer in answers if answer.lease is not None}

    @property
    def over(self) -> bool:
        """Whether no other gang is searched for: the window is full, or the solver was stopped."""
        return self.considered >= self.problem.snapshot.limits.window or self.solver.ended()

    def _after_lower_rank(self, pending: Pending) -> bool:
        """Refuse a pod of an elastic gang while one of a lower rank is not added to the gang; whether it is refused."""
        refused = self.ranks.lower(pending.workload, self.ranks.refused)
        held = self.ranks.lower(pending.workload, self.ranks.held)
        if refused is None and held is not None:
            queue = self.problem.snapshot.queue_of(pending.workload)
            held = held if self.classes.candidate(pending, queue).ready else None
        lower = refused or held
        if lower is not None:
            self._refuse_with_lease(pending, after_rank(lower), keeps=refused is None)
        return lower is not None

    def _refuse_with_lease(self, pending: Pending, why: Reason, *, keeps: bool) -> None:
        """Refuse a gang that can have a lease, which it keeps, or which ends."""
        holds = self.leases.holds(pending.workload.uid)
        if holds and not keeps:
            self._end_leases(pending.workload.uid)
        self._refuse(pending, (why,), lease=pending.lease if holds and keeps else None)

    def waits(self, after_eviction: FitsAfterEviction, queue: ClusterQueue | None) -> Reason | None:
        """Why a gang does not evict yet; None when it does."""
        if queue is None:
            return None
        snapshot = self.problem.snapshot
        room_by = partial(first_room, self.state, after_eviction.request)
        sizes = sizes_of(snapshot, self.problem.cache)
        victims = after_eviction.victims.victims
        return reclaim_wait(
            after_eviction.request.pending, queue, victims, snapshot.now, room_by, sizes
        )

    def _keep_place(self, pending: Pending) -> None:
        """Hold back the gangs behind a blocked one. Blocked gangs are considered before all others."""
        queue = self.problem.snapshot.queue_of(pending.workload)
        flavors = self.classes.of(pending, queue).flavors
        leased = self.leases.holds(pending.workload.uid)
        if leased:
            self.limits.claims.take(pending.workload)
        self.heads.keep_place(pending.workload, flavors, leased=leased)

    # Order.

    def _head(self, gang: Candidate) -> BlockingHead | None:
        """The head that holds back every choice of flavors; None when some choice is open.

        A pod of an elastic gang is also held back by each gang before it that waits for any of them.
        """
        head = self.heads.ahead_of_all(gang.queue, gang.gang_class.options)
        if head is not None or not gang.grows:
            return head
        ahead = partial(self.heads.ahead_of_growth, gang.pending.workload, gang.queue)
        waiting = (ahead(choice.values()) for choice, _ in gang.gang_class.requests)
        return next((head for head in waiting if head is not None), None)

    def _leased(self, gang: Candidate, head: BlockingHead | None) -> bool:
        """Start a gang on its lease, or let it wait on; False when the lease ends."""
        without_nodes = not self.problem.size and self._makes_nodes(gang)
        if without_nodes or self.leases.awaits_nodes(gang.uid):  # the nodes can be there now
            self._end_leases(gang.uid)
            return False
        leased = self.leases.request(gang.uid)
        ahead = self.heads.ahead_of_lease(leased.pending.workload, gang.queue, leased.flavor_names)
        if ahead is None and gang.grows:
            ahead = head
        # Heads that are always before it in its queue may use the capacity, and so may the gang itself with fewer pods.
        taken = ahead is not None and not (ahead.leased or ahead.put_off)
        if taken or self.limits.short(leased.pending.workload):
            self._end_leases(gang.uid)
            return False
        if ahead is None and (admission := self.leases.claim(gang.uid)) is not None:
            self._admit(admission)
            return True
        if head is None and (found := self._elsewhere(gang)) is not None:
            self._end_leases(gang.uid)
            self._start(found)
            return True
        self.limits.take(leased.pending.workload)
        self._wait(gang, self.leases.reason(gang.uid), lease=gang.pending.lease)
        self.considered += 1
        return True

    def _elsewhere(self, gang: Candidate) -> Fit | None:
        """The start of a gang that has a lease on other capacity, which is free now; None if it waits for its victims."""
        with self.leases.without(gang.uid) as leased:
            known = self.classes.candidate(leased.pending, gang.queue)
            return self.sizing.instead(known, leased)

    def _overtakes(self, gang: Candidate, refuted: Refuted) -> bool:
        """End the leases of gangs behind it in its StrictFIFO queue that it holds back; whether there are any."""
        queue = gang.queue
        if queue is None or not queue.strict or gang.grows:
            return False
        if refuted.why[0].never_fits:
            return False  # it holds back no gang
        head = BlockingHead(gang.pending.workload, gang.gang_class.flavors, leased=False)
        behind = [
            request.pending.workload.uid
            for request in self.leases.behind(gang.pending, queue, self.heads.order)
            if self.heads.holds_back(head, request.flavor_names)
        ]
        self._end_leases(*behind)
        return bool(behind)

    def _end_leases(self, *uids: str) -> None:
        for uid in uids:
            self.leases.give_up(uid)
            self.limits.give_up(uid)
            if uid in self.refused:  # a blocked gang, which was considered before
                self.refused[uid] = replace(self.refused[uid], lease=None)
        if uids:
            self.classes.forget_refusals()

    # Search.

    def _search(self, gang: Candidate) -> None:
        outcome = self.sizing.outcome(gang)
        if isinstance(outcome, Refuted) and self._overtakes(gang, outcome):
            outcome = self.sizing.outcome(gang)
        again = self.without_repairs() if self.without_repairs is not None else None
        if isinstance(outcome, Refuted) and again is not None:
            outcome = again(gang, outcome)
        if isinstance(outcome, Fit):
            if not outcome.sure:
                self.doubtful.add(gang.uid)
            self._start(outcome)
        elif isinstance(outcome, FitsAfterEviction):
            if outcome.victims.proof is not Proof.OPTIMAL:
                self.doubtful.add(gang.uid)
            self._preempt(gang, outcome)
        else:
            self.sizing.learn(gang.pending, gang.gang_class, outcome)
            if isinstance(outcome, Unknown):
                self._leave_open(gang)
            else:
                self._refute(gang)

    def _start(self, fit: Fit) -> None:
        for admission, node_counts in fit.decision.moved:
            self.state.move(admission, node_counts)
            self.moved.add(admission.request.pending.workload.uid)
        self.moves += len(fit.decision.moved)
        self.planned.replace(fit.decision)
        if self.undecided:
            self.doubtful.add(fit.request.pending.workload.uid)
        self._admit(TentativeAdmission(fit.request, fit.decision.node_counts))

    def _admit(self, admission: TentativeAdmission) -> None:
        workload = admission.request.pending.workload
        self.state.admit(admission)
        self.heads.order.start(workload, admission.request.charges)
        self._take(admission.request)
        self.refused.pop(workload.uid, None)  # refuted before, and considered again
        self.starting[workload.uid] = admission
        hold = hold_on_place(admission)
        if hold is not None:
            self.holds[workload.uid] = hold
        self.ranks.admit(workload, held=hold is not None)
        self.considered += 1

    def _take(self, request: GangRequest) -> None:
        """Count what a gang gets or has reserved wherever both count."""
        workload = request.pending.workload
        self.limits.take(workload)
        if self.planned.starts(workload.uid):
            self.classes.forget_refusals()  # they were for earlier planned starts

    def _preempt(self, gang: Candidate, after_eviction: FitsAfterEviction) -> None:
        """Reserve what the victims free, unless the gang waits before it takes quota back."""
        spares = gang.pending.spares(self.problem.snapshot.now) or not self._has_made_nodes(gang)
        if spares and self._provision(gang, (_AFTER_EVICTIONS,)) is None:
            return  # new nodes cost no work
        self.considered += 1
        wait = self.waits(after_eviction, gang.queue)
        if wait is not None:
            self._evict_later(gang, wait)
            return
        request, node_counts = after_eviction.request, after_eviction.victims.node_counts
        if self.undecided:
            self.doubtful.add(gang.uid)
        running = {g.workload.uid: g for g in self.problem.snapshot.admitted}
        evicted = [running[v.victim] for v in after_eviction.victims.victims]
        victims = reservations.awaited(self.state, request, node_counts, evicted)
        with ExitStack() as evictions:
            for other in evicted:
                evictions.callback(self.state.evict(other))
            until = lease_end(self.problem.snapshot)
            delayed = self.planned.beside_reservation(request, node_counts, until)
            if delayed is None:
                evictions.pop_all()
        if delayed is not None:
            self._evict_later(gang, delayed)
            return
        lease = self._reserve(request, node_counts, victims)
        self._take(request)
        self.preempted.extend(after_eviction.victims.victims)
        self.classes.forget_refusals()  # the victims may free more than the gang needs
        self._wait(gang, waits_for_victims(victims), lease=lease)

    def _evict_later(self, gang: Candidate, why: Reason) -> None:
        """Let a gang wait before it evicts others. It keeps the quota that it holds for nodes that were made."""
        if self._waits_for_made_nodes(gang, _AFTER_EVICTIONS):
            return
        self._wait(gang, why)
        self._keep_for(gang)

    def reserve_after(
        self, request: GangRequest, node_counts: NodeCounts, gangs: Sequence[Admitted]
    ) -> CapacityLease:
        """Let some running gangs leave, and reserve a place for the gang that they leave for."""
        victims = reservations.awaited(self.state, request, node_counts, gangs)
        for gang in gangs:
            self.state.evict(gang)
        return self._reserve(request, node_counts, victims)

    def _reserve(
        self, request: GangRequest, node_counts: NodeCounts, victims: tuple[str, ...]
    ) -> CapacityLease:
        snapshot, until = self.problem.snapshot, lease_end(self.problem.snapshot)
        reservations.reserve(self.state, request, node_counts, victims, until)
        placement = placement_of(self.problem, request, node_counts)
        return CapacityLease(placement, victims, snapshot.now, until)

    def open_requests(self, pending: Pending, queue: ClusterQueue | None) -> Iterator[GangRequest]:
        """The requests of a gang under the choices of flavors that no gang before it in a StrictFIFO queue holds back."""
        for choice, template in self.classes.of(pending, queue).requests:
            head = self.heads.ahead(queue, choice.values())
            if head is None or head.ref == pending.workload.ref:
                yield replace(template, pending=pending)

    # Outcomes.

    def _leave_open(self, gang: Candidate) -> None:
        self.undecided = True
        self.considered += 1
        if self.solver.limited:
            if not self._put_off(gang):
                return
        else:
            why = refusals.undecided(gang.pending.budget, gang.gang_class.alarm)
            self._wait(gang, why, proof=Proof.UNDECIDED)
        self._keep_for(gang)

    def _put_off(self, gang: Candidate) -> bool:
        """Leave a gang to a later cycle; False if it keeps the quota that it holds for nodes that were made."""
        why = self.not_yet(gang.pending)
        if self._waits_for_made_nodes(gang, why):
            self.holds[gang.uid] = replace(self.holds[gang.uid], put_off=why)
            return False
        self._wait(gang, why, proof=Proof.UNDECIDED, put_off=True)
        return True

    def not_yet(self, pending: Pending) -> Reason:
        """The reason of a gang that is left to a later cycle. The time counts toward its wait to evict borrowing gangs."""
        return replace(_NOT_YET, details={"since": pending.waits_since(self.problem.snapshot.now)})

    def _plan_start(self, gang: Candidate) -> None:
        """Plan the start of a gang that waits, if it is one of the first of its line."""
        if self.planned.room_for_more(gang.queue) and not gang.grows:
            least = self.sizing.smallest(gang)
            self.planned.wait(least.pending, gang.queue, least.requests)
            self.unproved |= self.planned.undecided

    def _refute(self, gang: Candidate) -> None:
        reasons = gang.refusal
        assert reasons is not None
        made = self._provision(gang, reasons)
        if made is None:
            return
        never = reasons[0].never_fits
        if not self._answer(gang, (*made.why, *reasons) if never else (*reasons, *made.why)):
            return
        self._keep_for(gang)

    def _keep_for(self, gang: Candidate) -> None:
        """Keep what a gang that waits can have later: its planned start, and the quota of its ClusterQueue."""
        self._plan_start(gang)
        self._withhold(gang)

    def _withhold(self, gang: Candidate) -> None:
        """Keep the quota of its ClusterQueue for a head that waits, of the first flavor for which it is enough."""
        self.state.quota.stop_withholding(gang.uid)
        if gang.queue is not None and self._keeps_its_quota(gang.queue) and not gang.grows:
            wanted = next((r for _, r in gang.gang_class.requests if entitled(self.state, r)), None)
            if wanted is not None:  # the request names the gang that made the class
                self.state.quota.withhold(replace(wanted, pending=gang.pending))

    def _answer(self, gang: Candidate, reasons: tuple[Reason, ...]) -> bool:
        """Let a gang wait for these reasons, or refuse it if it never fits; whether it waits."""
        if reasons[0].never_fits:
            self._refuse(gang.pending, reasons)
            return False
        self._wait(gang, *reasons)
        return True

    def _on_no_nodes(self, gang: Candidate) -> bool:
        """Decide a gang of a cluster without nodes, if a check makes nodes; False if none does."""
        made = self._provision(gang, ())
        if made is not None and made.why:
            self._answer(gang, made.why)
        return made is None or bool(made.why)

    def _makes_nodes(self, gang: Candidate) -> bool:
        """Whether an admission check makes nodes for a gang."""
        return bool(self._makers(gang))

    def _has_made_nodes(self, gang: Candidate) -> bool:
        """Whether an admission check has made nodes for a gang. They can join later."""
        return any(rule.name in gang.pending.ready_checks for rule in self._makers(gang))

    def _waits_for_made_nodes(self, gang: Candidate, why: Reason) -> bool:
        """Let a gang that waits keep the quota that it holds for nodes that were made; False if none were, or none is left."""
        lacks_nodes = replace(_AFTER_EVICTIONS, message=why.message)
        return self._has_made_nodes(gang) and self._provision(gang, (lacks_nodes,)) is None

    def _makers(self, gang: Candidate) -> list[CheckRule]:
        return makers_of_nodes(self.problem.snapshot.config, gang.queue, gang.pending.workload)

    def _provision(self, gang: Candidate, why: tuple[Reason, ...]) -> NotMade | None:
        """Reserve quota for a gang for which nodes can be made; or else what keeps nodes from being made."""
        workload = gang.pending.workload
        if gang.queue is None or not self._makes_nodes(gang):
            return NotMade()
        if self.limits.short(workload):
            return NotMade()
        self.state.quota.stop_withholding(gang.uid)
        hold = hold_without_nodes(
            self.state, gang.pending, gang.queue, gang.requests, why, self.solver
        )
        if isinstance(hold, NotMade):
            return hold
        request = hold.admission.request
        delayed = self.planned.beside_reservation(request, (), inf)  # until its nodes are there
        if delayed is not None:
            return NotMade((delayed,))
        reservations.reserve(self.state, request, (), ())
        self._take(request)
        self.refused.pop(gang.uid, None)
        self.holds[gang.uid] = hold
        self.ranks.admit(workload, held=True)
        self.considered += 1
        if self._has_made_nodes(gang) and not gang.grows:
            flavors = gang.gang_class.flavors
            self.heads.wait(gang.queue, BlockingHead(workload, flavors, leased=True))
        return None

    def _keeps_its_quota(self, queue: ClusterQueue) -> bool:
        """Whether others may not borrow what a waiting head of it could use: not if it can reclaim from every gang."""
        if not queue.strict:
            return False
        if queue.reclaim_within_cohort is not ReclaimWithinCohort.ANY:
            return True
        queues = self.problem.snapshot.config.cluster_queues.values()
        return any(other.protection != Protection() for other in queues)

    def _wait(
        self,
        gang: Candidate,
        *reasons: Reason,
        proof: Proof = Proof.OPTIMAL,
        lease: CapacityLease | None = None,
        put_off: bool = False,
    ) -> None:
        """Refuse a gang that keeps its place: in a StrictFIFO queue it holds back later gangs from what it could use."""
        head = BlockingHead(
            gang.pending.workload, gang.gang_class.flavors, lease is not None, put_off
        )
        if not gang.grows:
            self.heads.wait(gang.queue, head)
            if lease is None:
                self._wait_for_turn(gang, reasons)
        self._refuse(gang.pending, reasons, lease, proof)

    def _wait_for_turn(self, gang: Candidate, reasons: tuple[Reason, ...]) -> None:
        """Keep the next time slice for a gang, if the end of one can start it. If not, it is for a gang behind it."""
        queue, workload = gang.queue, gang.pending.workload
        if queue is None or queue.time_slice is None or queue.name in self.state.turns:
            return
        in_vain = reasons[0].waits_for_capacity or self.limits.claims.in_use(workload) is not None
        if workload.evicts and not in_vain and self.sizing.may_fit_in_turn(gang, queue):
            self.state.turns.add(queue.name)

    def _refuse(
        self,
        pending: Pending,
        reasons: tuple[Reason, ...],
        lease: CapacityLease | None = None,
        proof: Proof = Proof.OPTIMAL,
    ) -> None:
        uid = pending.workload.uid
        self.refused[uid] = Refusal(uid, reasons, lease, proof=proof)
        self.ranks.refuse(pending.workload)
