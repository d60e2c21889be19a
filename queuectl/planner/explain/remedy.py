"""From "it would fit if" to a suggested fix: with the quota that it takes besides, and checked against every gang before.

A change of the gang itself is exact as it is: no gang before it notices. Capacity or quota that a change adds or frees can be taken by
those before it, so the cycle up to the gang is planned again on the changed snapshot whenever one of them would take it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from queuectl.domain.changes import (
    AddNodes,
    AddQuota,
    Change,
    FewerPods,
    Leave,
    RaisePriority,
    RelaxLevel,
    RelaxRules,
)
from queuectl.domain.diagnosis import SuggestedFix
from queuectl.domain.queues import QueueingStrategy
from queuectl.domain.reasons import NEVER_FITS
from queuectl.domain.snapshot import Pending
from queuectl.domain.workload import Workload
from queuectl.planner.explain.context import Context, context_of, least_of
from queuectl.planner.explain.relaxation import Relaxation, as_it_is, ask, quota_alone
from queuectl.planner.explain.replay import admitted, after, replay
from queuectl.planner.order.limits import Bound, Limits
from queuectl.planner.order.lines import lines_of
from queuectl.planner.placement.feasible import place
from queuectl.planner.preempt.candidates import may_evict
from queuectl.planner.problem.problem import Problem
from queuectl.planner.quota.tree import FlavorResource
from queuectl.planner.reasons.words import amount
from queuectl.planner.search.gang_classes import GangClasses
from queuectl.planner.solver.solver import Status

_OWN: Final = (RelaxLevel, RelaxRules, FewerPods)  # no gang before it notices these
_ADDING: Final = (AddNodes, AddQuota, Leave)
_ROUNDS: Final = 4  # cycles planned again for one fix
Raise = TypeVar("Raise", bound=Change)


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
    addable = {row: more for row, more in short.items() if not _follows_nodes(ctx, row[0])}
    quota = _settled(ctx, (*fix.changes, *raised), addable)
    if quota is None or not (quota or fix.changes):
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


def _follows_nodes(ctx: Context, flavor: str) -> bool:
    """Whether nodes alone change the nominal quota that the ClusterQueue of the gang has of a flavor."""
    known = ctx.snapshot.config.flavors.get(flavor)
    follows = ctx.queue is not None and ctx.queue.headroom is not None
    return follows and known is not None and bool(known.node_labels)


def starts(ctx: Context, changes: Sequence[Change]) -> bool:
    """Whether it starts on the changed snapshot, or evicts others and starts when they have left."""
    later = replay(ctx.cycle, ctx.uid, after(ctx.problem, changes))
    return later is not None and admitted(*later)


def raised_until_it_starts(
    ctx: Context,
    exceeded: Callable[[Limits, Workload], Iterable[Bound]],
    raises: Callable[[Sequence[Bound]], tuple[Raise, ...]],
) -> tuple[tuple[Raise, ...], bool] | None:
    """Higher limits with which the gang starts, and whether the first ones were enough; None if it does not start.

    Gangs before it can take what is added. Then more is added, a few times over.

    Args:
        ctx: the gang.
        exceeded: the limits that a gang exceeds, of those that are raised.
        raises: all changes so far, for the limits that it still exceeds.
    """
    workload = ctx.pending.workload
    over = tuple(exceeded(ctx.cycle.limits, workload))
    for tried in range(_ROUNDS):
        changes = raises(over)
        later = replay(ctx.cycle, ctx.uid, after(ctx.problem, changes))
        if later is None:
            return None
        over = tuple(exceeded(later[0].cycle.limits, workload))
        if not over:
            return (changes, not tried) if admitted(*later) else None
    return None


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
