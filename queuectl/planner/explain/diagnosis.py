"""The diagnosis of a pending gang: its blocking constraints, and the suggested fixes in order of what they cost people.

The blocking constraints are a minimal set, found by deletion. A constraint is dropped for good if the gang still does not fit
without it. Together those that are left keep the gang out, and without any one of them it fits. The order of deletion selects one
of several such sets: what passes by itself is dropped first, so that a gang that can never start learns why it never can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Protocol

from queuectl.domain.diagnosis import Diagnosis, Limit, Obstacle, SuggestedFix
from queuectl.domain.plan import Plan, Proof
from queuectl.domain.snapshot import Snapshot
from queuectl.planner import plan_cycle
from queuectl.planner.cache import PlannerCache
from queuectl.planner.cycle.holds import makers_of_nodes
from queuectl.planner.explain import (
    allow_preemption,
    change_nodes,
    change_queue,
    change_request,
    others_leave,
)
from queuectl.planner.explain.change_queue import EXPLAINED_LIMITS
from queuectl.planner.explain.constraints import in_order, sentence
from queuectl.planner.explain.context import GangContext, context_of
from queuectl.planner.explain.fix_checks import FixChecks, KnownAnswers, know, of_plan
from queuectl.planner.explain.left_out import ConstraintGroup, quota_rows, status_with, whole_fleet
from queuectl.planner.explain.others_leave import with_tainted_devices
from queuectl.planner.explain.relaxation import ask, past_heads
from queuectl.planner.order.queue_order import inadmissible
from queuectl.planner.plan_cycle import begin, one_by_one
from queuectl.planner.problem.problem import survey
from queuectl.planner.problem.request import smallest
from queuectl.planner.solver import Status, StopSignal

_Finder = Callable[[GangContext], Iterator[SuggestedFix]]


class Reconfiguration(Protocol):
    """A package that reconfigures nodes for pending gangs, as a diagnosis states it."""

    def reconfigured_nodes(self, ctx: GangContext) -> Iterator[SuggestedFix]:
        """The fixes that reconfigure nodes for a gang."""

    def under_way(self, ctx: GangContext) -> Iterator[str]:
        """The changes that are made for a gang, and those that have failed, in sentences."""


# In the order of what they cost people: nothing, a change of the job, of the queues, of the nodes, of others' work. Nodes are
# reconfigured after those that exist are repaired, and before more of them are added.
_FINDERS: Final[tuple[_Finder, ...]] = (
    others_leave.those_leaving,
    change_request.coarser_level,
    change_request.fewer_pods,
    change_request.fewer_rules,
    change_request.higher_priority,
    change_queue.more_quota,
    change_queue.one_more_flavor,
    change_nodes.repaired_nodes,
)
_LATER_FINDERS: Final[tuple[_Finder, ...]] = (
    change_nodes.more_nodes,
    others_leave.holders_withdraw,
    others_leave.others_move,
    allow_preemption.others_evicted,
    others_leave.others_end,
)
_FOR_ORDER: Final[tuple[_Finder, ...]] = (change_request.shorter_run,)


_ORDER: Final = (
    Limit.HEALTH,
    Limit.LEASE,
    Limit.ORDER,
    Limit.RUNNING,
    Limit.FLAVOR,
    Limit.RULES,
    Limit.SHAPE,
    Limit.TOPOLOGY,
)


def diagnose(
    snapshot: Snapshot,
    uid: str,
    stop: StopSignal | None = None,
    plan: Plan | None = None,
    cache: PlannerCache | None = None,
    reconfiguration: Reconfiguration | None = None,
) -> Diagnosis:
    """Why one pending gang does not start now, and what would let it.

    Pure and deterministic unless stopped. No plan depends on it: call it at any time, on any snapshot.

    Args:
        snapshot: everything that a cycle takes into account.
        uid: of a gang among the pending; for any other, the diagnosis is empty.
        stop: lets another thread end it early.
        plan: what was planned from this snapshot, if it is at hand: then most of it is not decided again.
        cache: of earlier calls.
        reconfiguration: what can reconfigure nodes; None = nothing can.
    """
    uids = frozenset({uid})
    diagnoses = diagnose_those(snapshot, uids, stop, plan, cache, reconfiguration)
    return next(diagnoses, Diagnosis(uid))


def diagnose_those(
    snapshot: Snapshot,
    uids: frozenset[str],
    stop: StopSignal | None = None,
    plan: Plan | None = None,
    cache: PlannerCache | None = None,
    reconfiguration: Reconfiguration | None = None,
) -> Iterator[Diagnosis]:
    """The same for several gangs in one cycle, in queue order."""
    stop, cache = stop or StopSignal(), (cache or PlannerCache()).fork()
    if plan is None or plan.cut:
        plan = plan_cycle.plan(snapshot, stop, cache)
    prepared = begin(survey(snapshot, cache), stop)
    of_the_plan = of_plan(plan) if not plan.cut else KnownAnswers({})
    know(prepared, of_the_plan)
    left = len(uids)
    for pending in one_by_one(prepared):
        if pending.workload.uid not in uids:
            continue
        least = smallest(pending.workload)
        held = inadmissible(snapshot, pending) is not None
        queue = snapshot.queue_of(least)
        makers = makers_of_nodes(snapshot.config, queue, least)
        unmade = makers and not prepared.cycle.problem.size  # no nodes to explain
        limits = prepared.cycle.limits
        over = next(limits.over(least), None)
        unexplained = over is not None and over.row.code not in EXPLAINED_LIMITS
        if held or unmade or unexplained or limits.claims.in_use(least) is not None:
            yield Diagnosis(pending.workload.uid)  # the reason of its refusal is complete
        else:
            uid = pending.workload.uid
            refusal = of_the_plan.refused.get(uid)
            stated = refusal.reasons if refusal is not None else ()
            checks = FixChecks(snapshot, uid, stop, cache, of_the_plan.of_others(uid))
            ctx = context_of(prepared.cycle, pending, checks, stated)
            yield _diagnosis_of(ctx, reconfiguration)
        left -= 1
        if not left:
            return


def _diagnosis_of(ctx: GangContext, reconfiguration: Reconfiguration | None) -> Diagnosis:
    """Of the gang whose turn it is."""
    conflict: tuple[Obstacle, ...]
    proof, finders = Proof.OPTIMAL, _FOR_ORDER
    if (over := next(ctx.cycle.limits.over(ctx.pending.workload), None)) is not None:
        explained = EXPLAINED_LIMITS[over.row.code]
        conflict, finders = (explained.obstacle(ctx),), explained.finders
    elif (reason := ctx.of_order) is not None:
        conflict = (in_order(reason),)
    else:
        constraints, proved = conflict_of(ctx)
        conflict = tuple(sentence(ctx, constraint) for constraint in constraints)
        conflict = with_tainted_devices(ctx, conflict)
        proof = Proof.OPTIMAL if proved else Proof.FEASIBLE
        finders = _finders(reconfiguration) if conflict or ctx.stated else ()
        if conflict and ctx.head is not None and ask(ctx, past_heads(ctx)).fits:
            finders = (change_request.higher_priority,)  # only StrictFIFO blocks it
    fixes: list[SuggestedFix] = []
    for finder in finders:
        if ctx.checks.over:
            break
        fixes.extend(ctx.checks.passed(finder(ctx)))
    under_way = tuple(reconfiguration.under_way(ctx)) if reconfiguration is not None else ()
    return Diagnosis(ctx.uid, conflict, tuple(fixes), proof, ctx.solver.ended(), under_way)


def _finders(reconfiguration: Reconfiguration | None) -> tuple[_Finder, ...]:
    of_nodes = (reconfiguration.reconfigured_nodes,) if reconfiguration is not None else ()
    return (*_FINDERS, *of_nodes, *_LATER_FINDERS)


def conflict_of(ctx: GangContext) -> tuple[tuple[ConstraintGroup, ...], bool]:
    """The blocking constraints, and whether each was proved to be needed and all together to be enough.

    The list is empty when no constraint blocks the gang, or nothing could be proved.
    """
    left = tuple(_constraints(ctx))
    status = status_with(ctx, left)
    if status is not Status.REFUTED:
        return (), status is Status.SOLVED and not ctx.stated
    if status_with(ctx, ()) is Status.REFUTED:
        return (ConstraintGroup(Limit.FLEET),), True
    before: tuple[ConstraintGroup, ...] = ()
    while left != before:
        before = left  # again: the flavors that the planner selects can depend on what was dropped
        for constraint in before:
            without = _less(left, constraint)
            if status_with(ctx, without) is Status.REFUTED:
                left = without
    needed = (status_with(ctx, _less(left, constraint)) is Status.SOLVED for constraint in left)
    return left[::-1], all(needed)


def _less(
    constraints: tuple[ConstraintGroup, ...], dropped: ConstraintGroup
) -> tuple[ConstraintGroup, ...]:
    return tuple(c for c in constraints if c != dropped)


def _constraints(ctx: GangContext) -> Iterator[ConstraintGroup]:
    """Every constraint that can block the gang, in order of deletion, less those that cannot."""
    idle = set(_idle(ctx))
    yield from (ConstraintGroup(limit) for limit in _ORDER if limit not in idle)
    yield from (ConstraintGroup(Limit.QUOTA, row) for row in quota_rows(ctx))


def _idle(ctx: GangContext) -> Iterator[Limit]:
    healthy = whole_fleet(ctx, frozenset(Limit) - {Limit.HEALTH}) is ctx.checks.snapshot.fleet
    if healthy and not ctx.pending.excluded:
        yield Limit.HEALTH
    leased = ctx.held[Limit.LEASE]
    if not leased.nodes[-1].any() and not leased.quota[-1]:
        yield Limit.LEASE
    if all(p.topology is None and p.group is None for p in ctx.pending.workload.podsets):
        yield Limit.TOPOLOGY
    if ctx.queue is None:
        yield Limit.FLAVOR
