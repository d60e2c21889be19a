"""Which flavors one gang gets: its choices in order of preference, by its ClusterQueue's fungibility.

Quota and placement are judged together: a flavor fits when the gang has the quota *and* the nodes there. A choice of flavors
either fits, fits by borrowing, would fit once victims leave, or is refuted. ``whenCanBorrow`` and ``whenCanPreempt`` say
which of these end the search; what they pass over is compared at its end, by ``preference``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from queuectl.domain.plan import Preemption, PreemptionReason, Proof
from queuectl.domain.queues import ClusterQueue, FlavorPreference, Fungibility, WhenCan
from queuectl.domain.reasons import SHOWN_FIRST, Code, Reason
from queuectl.domain.snapshot import Pending
from queuectl.planner.backfill.planned_starts import PlannedStarts
from queuectl.planner.capacity.node_counts import add_at
from queuectl.planner.capacity.reservations import with_lease
from queuectl.planner.capacity.state import CycleState
from queuectl.planner.placement.feasible import Feasibility, decide, fits_apart, place
from queuectl.planner.preempt.find import Victims, find_victims
from queuectl.planner.preempt.rules import conceivable
from queuectl.planner.preempt.running import EvictionScope, any_yields, may_evict
from queuectl.planner.preempt.shortage import Heights, borrows, entitled
from queuectl.planner.problem.flavors import Options
from queuectl.planner.problem.fleet import FleetIndex, NodeRoom
from queuectl.planner.problem.problem import Problem
from queuectl.planner.problem.request import GangRequest, request_of
from queuectl.planner.reasons import refusals
from queuectl.planner.reasons.refusals import awaiting_nodes, short_of_quota
from queuectl.planner.search.choice_walk import ChoiceBounds, ChoiceWalk
from queuectl.planner.solver import Solver, Status


@dataclass(frozen=True, slots=True)
class Fit:
    """It fits now. ``heights``: how far up its cohorts each podset borrows; ``sure``: proved the best way to fit."""

    request: GangRequest
    decision: Feasibility
    heights: Heights
    sure: bool = True


@dataclass(frozen=True, slots=True)
class FitsAfterEviction:
    """It fits once victims have left; ``heights`` as they leave it."""

    request: GangRequest
    victims: Victims
    heights: Heights


@dataclass(frozen=True, slots=True)
class Unknown:
    """A limit, or a defect (``alarm``), ended the search. ``beside_planned``: the one for a start alongside planned starts."""

    alarm: str = ""
    beside_planned: bool = False


@dataclass(frozen=True, slots=True)
class Refuted:
    """Proved: it fits under no choice of flavors, not even after a legal eviction."""

    why: tuple[Reason, ...]


Outcome: TypeAlias = Fit | FitsAfterEviction | Unknown | Refuted


@dataclass(eq=False, slots=True)
class FlavorChooser:
    """Searches for the gangs of one cycle, which acts on the outcome.

    Attributes:
        dry: which idle gangs would be evicted under another policy than a dry run.
        planned: gangs with planned starts, which no later gang delays; None without any.
    """

    problem: Problem
    state: CycleState
    solver: Solver
    dry: bool = False
    planned: PlannedStarts | None = None

    def choose(
        self,
        pending: Pending,
        queue: ClusterQueue | None,
        templates: Iterable[GangRequest],
        leased: GangRequest | None = None,
        more: Options | None = None,
    ) -> Outcome:
        """The best choice of flavors for a gang.

        Args:
            pending: the gang.
            queue: its ClusterQueue, None when it has no quota.
            templates: what it asks under each choice, most preferred first.
            leased: what its lease is for. It evicts no further gangs then, and waits for the lease rather than start under a choice
                of flavors to which it prefers evictions.
            more: its flavors, where the templates are only the first of many choices.
        """
        rule = queue.fungibility if queue is not None else Fungibility()
        search = _Search(self, queue, rule, self._lease(leased) if leased is not None else None)
        choices = (replace(template, pending=pending) for template in templates)
        for request in choices:
            outcome = search.judge(request)
            if isinstance(outcome, Unknown) and self.solver.limited and leased is None:
                return self._first_that_fits(choices) or outcome
            if outcome is not None:
                return outcome
        if more is None or queue is None:
            return search.end()
        return self._among_many(search, pending, queue, more)

    def _among_many(
        self, search: _Search, pending: Pending, queue: ClusterQueue, options: Options
    ) -> Outcome:
        """The outcome of a gang that fits under none of its first choices: of all choices, the first on which it fits, or could after evictions.

        Evictions for the first choices are considered before those for others.
        """
        if search.leased is not None:
            search.cleared.append(search.leased)
        outcome = search.first(self._now(pending, queue, options)) or search.end()
        if not isinstance(outcome, Refuted):
            return outcome
        search.evict_at_once()
        found: Outcome | None = None
        if may_evict(self.problem, pending.workload, queue):
            found = search.first(self._after_evictions(pending, queue, options))
        if found is None and search.in_vain:
            ever = self.ever_possible(pending, queue, options)
            found = search.first(ever, only_reason=True)
        return found or search.end()

    def _now(self, pending: Pending, queue: ClusterQueue, options: Options) -> ChoiceWalk:
        """The choices on which a gang may fit now."""
        borrows = pending.may_borrow(self.problem.snapshot.now)
        left = self.state.quota.left(queue.name, borrows=borrows)
        bounds = ChoiceBounds(left, self.state.free_without_admissions())
        return ChoiceWalk(self.problem, self.solver, pending, queue, options, bounds, self._refuted)

    def _after_evictions(
        self, pending: Pending, queue: ClusterQueue, options: Options
    ) -> ChoiceWalk:
        """The choices on which a gang may fit if all gangs leave that it might evict."""
        victims = conceivable(self.state, pending, queue)
        later = self.state.later
        free = later.free.copy()
        for gang in victims:
            add_at(free, *self.problem.use_of(gang))
        with self.state.quota.without(victims, later.quota):
            left = {
                row: later.quota.left(queue.name, row)
                for row in self.state.quota.nominal(queue.name)
            }
        bounds = ChoiceBounds(left, free)
        return ChoiceWalk(
            self.problem, self.solver, pending, queue, options, bounds, bounds.exceeded
        )

    def ever_possible(
        self, pending: Pending, queue: ClusterQueue, options: Options, *, nodes: bool = True
    ) -> ChoiceWalk:
        """The choices on which a gang may fit unused quota and, if ``nodes`` count, empty nodes."""
        free = self.problem.index.recovered.allocatable if nodes else None
        bounds = ChoiceBounds(self.state.quota.most(queue.name), free, lasting=True)
        beyond = partial(self.beyond, queue=queue, nodes=nodes)
        return ChoiceWalk(self.problem, self.solver, pending, queue, options, bounds, beyond)

    def _refuted(self, request: GangRequest) -> bool:
        """Whether a part of a gang, or all of it, does not fit now."""
        if not self.state.quota.fits(request):
            return True
        return decide(self.state, request, self.solver).status is Status.REFUTED

    def beyond(
        self, request: GangRequest, queue: ClusterQueue | None, *, nodes: bool = True
    ) -> bool:
        """Whether a request has never enough quota, or, if ``nodes`` count, never a place."""
        if not self.state.quota.ever(request):
            return True
        return nodes and self.room(request, queue) is NodeRoom.NEVER

    def _first_that_fits(self, requests: Iterable[GangRequest]) -> Fit | None:
        """The first of the other choices on which a gang fits, where the limit of the cycle ends its search."""
        for request in requests:
            fit = self.fit(request)
            if isinstance(fit, Fit):
                return replace(fit, sure=False)
        return None

    def fit(self, request: GangRequest) -> Fit | Unknown | Reason:
        """Whether a gang fits now under one choice of flavors; if not, why."""
        short = short_of_quota(self.state, request)
        if short is not None:
            return short
        decision = self.decide(request)
        if decision.status is Status.SOLVED:
            return self.beside_planned(Fit(request, decision, borrows(self.state, request)))
        if decision.status is not Status.REFUTED:
            return Unknown(decision.alarm)
        return self.why_nowhere(request)

    def beside_planned(self, fit: Fit) -> Fit | Unknown | Reason:
        """The same start without a delay of a planned start, or why that is impossible."""
        if self.planned is None:
            return fit
        beside = self.planned.beside(fit.request, fit.decision)
        if isinstance(beside, Reason):
            return beside
        if beside.status is not Status.SOLVED:
            return Unknown(beside.alarm, beside_planned=True)
        return replace(fit, decision=beside)

    def decide(self, request: GangRequest) -> Feasibility:
        """Whether a gang that has the quota finds a place."""
        return decide(self.state, request, self.solver)

    def why_nowhere(self, request: GangRequest) -> Reason:
        """Why it was refuted."""
        return refusals.placement_failed(self.state, request)

    def never(self, request: GangRequest, queue: ClusterQueue | None) -> Reason | None:
        """Proof that the gang fits no empty nodes, not even as they can be."""
        if self.room(request, queue) is not NodeRoom.NEVER:
            return None
        return refusals.never_fits(self.state, self._lasting(request, queue))

    def ever(self, request: GangRequest, queue: ClusterQueue | None, why: Reason) -> Reason:
        """The reason of a gang that does not fit now; or proof that it never does, or with nodes out of use that it waits for."""
        never = self.never(request, queue)
        waits = why.code is Code.TOPOLOGY_PLACEMENT_FAILED
        if never is None and waits and self.room(request, queue) is NodeRoom.RECOVERED:
            return awaiting_nodes(self.problem, self._lasting(request, queue), why)
        return never or why

    def room(self, request: GangRequest, queue: ClusterQueue | None) -> NodeRoom:
        """The empty nodes that have room for a gang; without a proof, it is not known to be none."""
        index, pending = self.problem.index, request.pending
        chosen = tuple(tuple(each.items()) for each in request.flavors)
        asked = pending.workload.podsets, self.problem.snapshot.config
        conditions = (chosen, pending.excluded, pending.budget)
        room = index.room(*asked, conditions) if request.podset_groups else NodeRoom.NOW
        if room is None and (room := self._room(request, queue)) is not None:
            index.note_room(*asked, conditions, room)
        return room or NodeRoom.NOW

    def _room(self, request: GangRequest, queue: ClusterQueue | None) -> NodeRoom | None:
        """The same; None = a limit ended the search."""
        index = self.problem.index
        if fits_apart(request, index.allocatable):
            return NodeRoom.NOW
        lasting, recovered = self._lasting(request, queue), index.recovered
        apart = recovered is not index and fits_apart(lasting, recovered.allocatable)
        can = apart or self.fits_empty(lasting, recovered)
        if not can:
            return NodeRoom.NEVER if can is not None else None
        excluded = request.pending.excluded
        as_is = index.recovered is index and not excluded
        now = as_is or self.fits_empty(request, index, excluded)
        if now is None:
            return None
        return NodeRoom.NOW if now else NodeRoom.RECOVERED

    def _lasting(self, request: GangRequest, queue: ClusterQueue | None) -> GangRequest:
        return request_of(self.problem, request.pending, queue, request.flavors, lasting=True)

    def fits_empty(
        self, request: GangRequest, index: FleetIndex, excluded: frozenset[str] = frozenset()
    ) -> bool | None:
        """Whether a request fits empty nodes, without those that it must not use; None = a limit ended the search."""
        key = (*request.signature(), excluded, request.pending.budget)
        fits = index.fits.get(key)
        if fits is None:
            # Counted apart: whether it is known already depends on the cycles before, the plan must not.
            own_solver = Solver(self.solver.limits, self.solver.stop)
            status = place(request, index.allocatable, own_solver).status
            self.solver.cut |= own_solver.cut
            if status not in (Status.SOLVED, Status.REFUTED):
                return None
            fits = index.fits.keep(key, status is Status.SOLVED)
        return fits

    def clear(
        self, request: GangRequest, queue: ClusterQueue, candidates: EvictionScope
    ) -> FitsAfterEviction | Unknown | None:
        """Victims for a gang under one choice of flavors; None = proved that none exist."""
        request = with_lease(self.problem, request)
        found = find_victims(self.state, request, queue, self.solver, candidates)
        if found is None:
            return None
        if found.proof is Proof.UNDECIDED:
            return Unknown()
        return FitsAfterEviction(request, found, self._heights_after(request, found.victims))

    def _lease(self, leased: GangRequest) -> FitsAfterEviction:
        """A lease as an outcome: its gang fits once the gangs that leave have left."""
        heights = borrows(self.state, leased, [self.state.later.quota])
        return FitsAfterEviction(leased, Victims((), (), Proof.OPTIMAL), heights)

    def _heights_after(self, request: GangRequest, victims: Sequence[Preemption]) -> Heights:
        """How far up its podsets borrow once these have left."""
        gangs = self.problem.snapshot.admitted_of({v.victim for v in victims})
        with self.state.quota.without(gangs, self.state.now.quota, self.state.later.quota):
            return borrows(self.state, request)


@dataclass(eq=False, slots=True)
class _Search:
    """The search through the choices of one gang."""

    by: FlavorChooser
    queue: ClusterQueue | None
    rule: Fungibility
    leased: FitsAfterEviction | None = None
    passed: list[Fit] = field(default_factory=list)  # they fit, but borrow
    cleared: list[FitsAfterEviction] = field(default_factory=list)
    blocked: list[tuple[GangRequest, EvictionScope]] = field(
        default_factory=list
    )  # victims may help; not asked yet
    why: list[Reason] = field(default_factory=list)

    def judge(self, request: GangRequest) -> Outcome | None:
        """Judge one more choice; an outcome ends the search."""
        answer = self.by.fit(request)
        if isinstance(answer, Unknown):
            return answer
        if isinstance(answer, Fit):
            if not any(answer.heights) or self.rule.when_can_borrow is WhenCan.MAY_STOP_SEARCH:
                return answer
            self.passed.append(answer)
            return None
        if answer.code is Code.WOULD_DELAY:
            self.why.append(answer)
            return None
        candidates = self._scope(request, answer)
        if candidates is None:
            return None
        if self.rule.when_can_preempt is WhenCan.TRY_NEXT_FLAVOR:
            self.blocked.append((request, candidates))
            return None
        return self._clear(request, candidates)

    def _scope(self, request: GangRequest, why: Reason) -> EvictionScope | None:
        """The candidates for victims of a choice that does not fit; None = victims do not help, or it has no right to evict any gang."""
        if self.leased is not None:
            same = self.queue is not None and request.flavors == self.leased.request.flavors
            return EvictionScope.LEGAL if same else None
        if not why.never_fits:
            why = self.by.ever(request, self.queue, why)
        self.why.append(why)
        in_vain = why.never_fits or why.waits_for_capacity
        return None if in_vain else self._candidates(request, why)

    def _victims(
        self, request: GangRequest, candidates: EvictionScope
    ) -> FitsAfterEviction | Unknown | None:
        """Victims for a choice; those of its lease if it has one; None = no victims are enough."""
        assert self.queue is not None
        return self.leased or self.by.clear(request, self.queue, candidates)

    def _clear(self, request: GangRequest, candidates: EvictionScope) -> Outcome | None:
        """Victims at once: where preemption may end the search."""
        cleared = self._victims(request, candidates)
        if isinstance(cleared, FitsAfterEviction):
            if not any(cleared.heights) or self.rule.when_can_borrow is WhenCan.MAY_STOP_SEARCH:
                return cleared
            self.cleared.append(cleared)
            return None
        return cleared

    def _candidates(self, request: GangRequest, why: Reason) -> EvictionScope | None:
        """The candidates for its victims; None = it has no right to evict any gang."""
        if not self.by.dry and self._may_preempt(request, why):
            return EvictionScope.LEGAL
        workload, dry = request.pending.workload, self.by.dry
        if not any_yields(self.by.problem, workload, self.queue, dry=dry):
            return None
        return EvictionScope.DRY_RUN if dry else EvictionScope.IDLE

    def _may_preempt(self, request: GangRequest, why: Reason) -> bool:
        """Kueue's rule: without the quota, only where the queue's own, or a cohort's below the root, is enough."""
        queue = self.queue
        if queue is None or not queue.preempts:
            return False
        if why.code is not Code.WAITING_FOR_QUOTA:
            return True
        return entitled(self.by.state, request)

    def evict_at_once(self) -> None:
        """From here on, ask for the victims of each choice: those asked for so far are not enough."""
        self.blocked.clear()
        self.rule = replace(self.rule, when_can_preempt=WhenCan.MAY_STOP_SEARCH)

    @property
    def in_vain(self) -> bool:
        """Whether each choice so far never fits."""
        return all(why.never_fits for why in self.why)

    def first(self, walk: ChoiceWalk, *, only_reason: bool = False) -> Outcome | None:
        """The outcome that ends the search among many choices; None after the last one.

        Args:
            walk: the choices.
            only_reason: it also ends, without an outcome, at the first choice that can fit at another time.
        """
        for request in walk:
            if (outcome := self.judge(request)) is not None:
                return outcome
            if only_reason and not self.in_vain:
                return None
        return self._in_doubt(walk.pending) if walk.ended else None

    def _in_doubt(self, pending: Pending) -> Outcome:
        """The outcome where a limit ended the walk: a start that borrows; at the last try, the best of what was passed over."""
        if self.passed and self.leased is None:
            return replace(min(self.passed, key=lambda fit: fit.heights), sure=False)
        outcome: Outcome = Unknown()
        if pending.budget >= self.by.solver.limits.max_budget:
            outcome = self.end()
        return Unknown() if isinstance(outcome, Refuted) else outcome

    def end(self) -> Outcome:
        """The best of what was passed over."""
        borrowing_first = self.rule.preference is FlavorPreference.BORROWING_OVER_PREEMPTION
        if not (borrowing_first and self.passed):
            for request, candidates in self.blocked:
                cleared = self._victims(request, candidates)
                if isinstance(cleared, Unknown):
                    return min(self.passed, key=lambda fit: fit.heights) if self.passed else cleared
                if cleared is not None:
                    self.cleared.append(cleared)
                    if _mode(cleared) == _RECLAIMS and not any(cleared.heights):
                        break  # nothing better can come
        options: list[Fit | FitsAfterEviction] = [*self.passed, *self.cleared]
        if not options:
            return Refuted(tuple(sorted(self.why, key=lambda why: SHOWN_FIRST.index(why.code))))
        if borrowing_first:
            return min(options, key=lambda option: (_mode(option), option.heights))
        return min(options, key=lambda option: (option.heights, _mode(option)))


_FITS, _RECLAIMS, _PREEMPTS = range(3)


def _mode(option: Fit | FitsAfterEviction) -> int:
    """As Kueue ranks flavors: fits, only others' gangs leave, gangs of the own ClusterQueue leave."""
    if isinstance(option, Fit):
        return _FITS
    own = (PreemptionReason.IN_CLUSTER_QUEUE, PreemptionReason.TIME_SLICE)
    return _PREEMPTS if any(v.reason in own for v in option.victims.victims) else _RECLAIMS
