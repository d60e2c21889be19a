"""From "it would fit if" to a suggested fix: with the quota that it takes besides, and checked against every gang before.

A change of the gang itself is exact as it is: no gang before it notices. Capacity or quota that a change adds or frees can be taken by
those before it, so the cycle up to the gang is planned again on the changed snapshot whenever one of them would take it. The results that the
cycle has already are used again: a placement is a hint, which is checked against the free capacity, and a gang for which it holds
needs no search. A refusal holds only for the snapshot of its plan. All other gangs are decided again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from queuectl.domain.changes import (
    AddNodes,
    AddQuota,
    Change,
    FewerPods,
    Leave,
    RaisePriority,
    RelaxLevel,
    RelaxRules,
    apply_all,
)
from queuectl.domain.diagnosis import SuggestedFix
from queuectl.domain.plan import Plan, Preemption, Proof, Refusal
from queuectl.domain.queues import ClusterQueue, QueueingStrategy
from queuectl.domain.reasons import NEVER_FITS, Code, Reason
from queuectl.domain.snapshot import Pending
from queuectl.domain.workload import Placement
from queuectl.planner.capacity.node_counts import NodeCounts, fits
from queuectl.planner.capacity.placements import node_counts_of, placement_of
from queuectl.planner.cycle.cycle import AdmissionCycle
from queuectl.planner.explain.context import Context, context_of, least_of
from queuectl.planner.explain.relaxation import Relaxation, as_it_is, ask, quota_alone
from queuectl.planner.order.lines import lines_of
from queuectl.planner.placement.feasible import Decision, place
from queuectl.planner.plan_cycle import Prepared, begin, one_by_one
from queuectl.planner.preempt.candidates import may_evict
from queuectl.planner.preempt.shortage import borrows
from queuectl.planner.problem.parts import shrinks
from queuectl.planner.problem.problem import Problem, enlarged, survey
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.quota.tree import FlavorResource
from queuectl.planner.reasons.words import amount
from queuectl.planner.search.flavor_choice import Fit, FlavorChooser, Outcome, Refuted, Unknown
from queuectl.planner.search.gang_classes import GangClasses
from queuectl.planner.solver.solver import Status

_OWN: Final = (RelaxLevel, RelaxRules, FewerPods)  # no gang before it notices these
_ADDING: Final = (AddNodes, AddQuota, Leave)
_ROUNDS: Final = 4  # cycles planned again for one fix


def offer(ctx: Context, relaxed: Relaxation, fix: SuggestedFix) -> Iterator[SuggestedFix]:
    """The fix, if the gang fits under ``relaxed`` (after the fix), or does with more quota besides; else none."""
    verdict = ask(ctx, relaxed)
    if not verdict.fits and not quota_alone(ctx):
        verdict = ask(ctx, replace(relaxed, uncounted=None))
    if verdict.fits:
        yield from finish(ctx, fix, verdict.short)


def finish(
    ctx: Context, fix: SuggestedFix, short: Mapping[FlavorResource, int]
) -> Iterator[SuggestedFix]:
    """The fix with the quota that is short besides, and with the priority that takes it past a StrictFIFO head."""
    raised = [RaisePriority(ctx.uid, ctx.head.priority + 1)] if ctx.head is not None else []
    if any(isinstance(change, RaisePriority) for change in fix.changes):
        raised = []
    quota = _settled(ctx, (*fix.changes, *raised), dict(short))
    if quota is None:
        return
    message, details = fix.message, dict(fix.details)
    if quota:
        message = f"{message}, and {_in_words(quota)}" if message else _in_words(quota)
        details["quota"] = [
            {
                "clusterQueue": q.queue,
                "flavor": q.flavor,
                "resource": q.resource,
                "amount": q.amount,
            }
            for q in quota
        ]
    if raised:
        message += f", and raise the priority to {raised[0].priority} or more"
        details["priority"] = raised[0].priority
    changes = (*fix.changes, *quota, *raised)
    least = fix.least and not _unsettled(ctx, changes)
    yield SuggestedFix(fix.remedy, message, details, changes, least)


def _settled(
    ctx: Context, changes: Sequence[Change], short: dict[FlavorResource, int]
) -> list[AddQuota] | None:
    """The quota with which the gang starts on the changed snapshot, after every gang before it was considered.

    Those before it can take a part of it: then more is added, a few times over. None = it does not start.
    """
    if _behind_planned_starts(ctx):
        return None
    for _ in range(_ROUNDS):
        quota = []
        if ctx.queue is not None:
            quota = [AddQuota(ctx.queue.name, *row, more) for row, more in sorted(short.items())]
        everything = (*changes, *quota)
        if not _unsettled(ctx, everything):
            return quota
        problem = after(ctx.problem, everything)
        if _left_alone(ctx, everything, problem):
            return quota
        replayed = replay(ctx.cycle, ctx.uid, problem)
        if replayed is None:
            return None
        later = context_of(replayed[0].cycle, replayed[1])
        relaxed = replace(as_it_is(later), moving=False)
        if ask(later, relaxed).fits:
            return quota
        verdict = ask(later, replace(relaxed, uncounted=None)) if quota else None
        if verdict is None or not verdict.fits:
            return None
        for row, more in verdict.short.items():
            short[row] = short.get(row, 0) + more
    return None


def _behind_planned_starts(ctx: Context) -> bool:
    """Whether gangs before it can have planned starts, which the gang must not delay: then no fix is proved."""
    snapshot = ctx.problem.snapshot
    lines = lines_of(snapshot.config, ctx.problem.cache)
    if not lines or ctx.before is None:
        return bool(lines)
    queues = (snapshot.queue_of(pending.workload) for pending in ctx.before)
    return any(queue is not None and queue.name in lines for queue in queues)


def _unsettled(ctx: Context, changes: Sequence[Change]) -> bool:
    """Whether the gangs before it have a say in what these changes lead to."""
    if any(isinstance(change, RaisePriority) for change in changes):
        return True
    return ctx.before != () and not all(isinstance(change, _OWN) for change in changes)


def _left_alone(ctx: Context, changes: Sequence[Change], problem: Problem) -> bool:
    """Whether it is proved that each gang before it stays pending, so that no cycle has to be planned again.

    Args:
        ctx: before the changes.
        changes: what is done.
        problem: of the changed snapshot.
    """
    if ctx.before is None or not all(isinstance(change, _ADDING) for change in changes):
        return False
    adds_quota = any(isinstance(change, AddQuota) for change in changes)
    return all(_waits_on(ctx, problem, p, adds_quota=adds_quota) for p in ctx.before)


def _waits_on(ctx: Context, problem: Problem, pending: Pending, *, adds_quota: bool) -> bool:
    """Whether a gang fits nowhere beside what runs alone, and means to the gangs behind it what it means now."""
    refusal = ctx.cycle.refused[pending.workload.uid]
    queue = problem.snapshot.queue_of(pending.workload)
    if refusal.lease is not None or may_evict(problem, pending.workload, queue):
        return False
    if queue is not None and queue.split_flavors:
        return False
    strict = queue is not None and queue.strategy is QueueingStrategy.STRICT_FIFO
    if strict and (adds_quota or refusal.reasons[0].code in NEVER_FITS):
        return False  # it may begin to hold back those behind it, or come to do so in more flavors
    requests = problem.once(GangClasses).of(least_of(pending), queue).requests
    return bool(requests) and all(
        place(request, problem.now, ctx.solver).status is Status.REFUTED for _, request in requests
    )


def _in_words(quota: Sequence[AddQuota]) -> str:
    """``add 32 nvidia.com/gpu of flavor h100 to the nominal quota of ClusterQueue team-a``."""
    parts = [f"{amount(q.resource, q.amount)} of flavor {q.flavor}" for q in quota]
    return f"add {' and '.join(parts)} to the nominal quota of ClusterQueue {quota[0].queue}"


# The cycle again.

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
        cycle.problem, cycle.state, cycle.solver, known=known
    )


@dataclass(eq=False)
class _CachedFlavorChooser(FlavorChooser):
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
        if node_counts is None or not holds or not state.quota.fits(request):
            return super().fit(request)
        return Fit(request, Decision(Status.FOUND, node_counts), borrows(state, request))

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


def after(before: Problem, changes: Sequence[Change]) -> Problem:
    """The problem of the snapshot after these changes."""
    changed = apply_all(changes, before.snapshot)
    if any(isinstance(change, AddNodes) for change in changes):  # no fix adds nodes and ends gangs
        return enlarged(before, changed)
    return survey(changed, before.cache)
