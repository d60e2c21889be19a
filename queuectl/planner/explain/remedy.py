"""From "it would fit if" to a suggested fix: with the quota and the priority that it takes besides, once the planner has started the gang."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias, TypeVar

from queuectl.domain.diagnosis import AddQuota, RaisePriority, SuggestedChange, SuggestedFix
from queuectl.domain.reasons import Code
from queuectl.planner.cycle.cycle import AdmissionCycle
from queuectl.planner.explain.context import GangContext, least_of
from queuectl.planner.explain.left_out import too_little
from queuectl.planner.explain.relaxation import Relaxation, ask, quota_alone, shortage
from queuectl.planner.order.limits import CountedLimit
from queuectl.planner.placement.feasible import decide
from queuectl.planner.quota import FlavorResource
from queuectl.planner.reasons.words import amount
from queuectl.planner.solver import Status

_ROUNDS: Final = 4  # cycles planned for one fix
Raise = TypeVar("Raise", bound=SuggestedChange)
Smaller: TypeAlias = Sequence[tuple[SuggestedChange, ...]]


def offer(
    ctx: GangContext, relaxed: Relaxation, fix: SuggestedFix, less: Smaller = ()
) -> Iterator[SuggestedFix]:
    """The fix, if the gang fits under ``relaxed`` (after the fix), or does with more quota in addition; otherwise none."""
    verdict = ask(ctx, relaxed)
    if not verdict.fits and not quota_alone(ctx):
        verdict = ask(ctx, replace(relaxed, any_quota=True))
    if verdict.fits:
        yield from finish(ctx, fix, verdict.short, less)


def finish(
    ctx: GangContext, fix: SuggestedFix, short: Mapping[FlavorResource, int], less: Smaller = ()
) -> Iterator[SuggestedFix]:
    """The fix with the quota that is short besides, and with the priority that takes it past a StrictFIFO head.

    It is the least if the planner refuses the gang with ``less``, the next smaller sizes, and with less quota.
    """
    raised = [RaisePriority(ctx.uid, ctx.head.priority + 1)] if ctx.head is not None else []
    if any(isinstance(change, RaisePriority) for change in fix.changes):
        raised = []
    addable = {row: more for row, more in short.items() if not _follows_nodes(ctx, row[0])}
    unknown = bool(raised) or _nodes_give_quota(ctx, addable)
    found = _with_quota(ctx, (*fix.changes, *raised), {} if unknown else addable, learn=unknown)
    if found is None:
        return
    quota, cycle = found
    if not (quota or fix.changes):
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
    least = (
        fix.least and not raised and _as_before(ctx, cycle) and _too_little(ctx, fix, quota, less)
    )
    yield SuggestedFix(fix.remedy, message, details, changes, least)


def _follows_nodes(ctx: GangContext, flavor: str) -> bool:
    """Whether nodes alone change the nominal quota that the ClusterQueue of the gang has of a flavor."""
    known = ctx.snapshot.config.flavors.get(flavor)
    follows = ctx.queue is not None and ctx.queue.headroom is not None
    return follows and known is not None and bool(known.node_labels)


def _nodes_give_quota(ctx: GangContext, rows: Mapping[FlavorResource, int]) -> bool:
    """Whether nodes change the quota of these rows that a ClusterQueue of the cohort of the gang can lend."""
    config = ctx.snapshot.config
    labeled = {name for name, flavor in config.flavors.items() if flavor.node_labels}
    following = (q for q in config.cluster_queues.values() if q.headroom is not None)
    given = {name for queue in following for name in queue.flavors}
    return any(flavor in given & labeled for flavor, _ in rows)


def raised_until_it_starts(
    ctx: GangContext,
    code: Code,
    raises: Callable[[Sequence[CountedLimit]], tuple[Raise, ...]],
    lower: Callable[[Raise], Raise],
) -> tuple[tuple[Raise, ...], bool] | None:
    """Higher limits with which the gang starts, and whether they are the least; None if it does not start.

    Gangs before it can take what is added. Then more is added, a few times over.

    Args:
        ctx: the gang.
        code: of the reason of a gang that is over such a limit.
        raises: all changes so far, for the limits that it still exceeds.
        lower: the change with one unit less.
    """
    workload = ctx.pending.workload
    over = tuple(ctx.cycle.limits.over(workload, code))
    for tried in range(_ROUNDS):
        if not over:
            break
        changes = raises(over)
        cycle = ctx.checks.decided(changes)
        if cycle is None:
            break
        if ctx.checks.helped(cycle):
            least = not tried and all(too_little(ctx, less) for less in _each_less(changes, lower))
            return changes, least
        over = tuple(cycle.limits.over(workload, code))
    return None


def _with_quota(
    ctx: GangContext,
    changes: Sequence[SuggestedChange],
    short: Mapping[FlavorResource, int],
    *,
    learn: bool = False,
) -> tuple[list[AddQuota], AdmissionCycle] | None:
    """The quota with which the gang starts, and the cycle in which it does; None if it does not start.

    Gangs before it can take a part of the quota. Then more is added, a few times over.

    Args:
        ctx: the gang.
        changes: the fix.
        short: the quota that the gang lacks without it.
        learn: the planner states what it lacks with the fix.
    """
    needed = Counter(short)
    for _ in range(_ROUNDS):
        quota = []
        if ctx.queue is not None:
            quota = [AddQuota(ctx.queue.name, *row, more) for row, more in sorted(needed.items())]
        cycle = ctx.checks.decided((*changes, *quota))
        if cycle is None:
            return None
        if ctx.checks.helped(cycle):
            return quota, cycle
        lacks = quota_short(ctx, cycle) if quota or learn else None
        if not lacks:
            return None
        if any(_follows_nodes(ctx, flavor) for flavor, _ in lacks):
            return None
        needed.update(lacks)
    return None


def quota_short(ctx: GangContext, cycle: AdmissionCycle) -> Mapping[FlavorResource, int] | None:
    """The least quota that the gang lacks for a place in a cycle that refused it; None if it has no place."""
    cycle.state.quota.stop_withholding(ctx.uid)
    snapshot, state = cycle.problem.snapshot, cycle.state
    pending = least_of(next(p for p in snapshot.pending if p.workload.uid == ctx.uid))
    lacks = [
        shortage(state, request)
        for _, request in cycle.classes.of(pending, snapshot.queue_of(pending.workload)).requests
        if decide(state, request, ctx.solver).status is Status.SOLVED
    ]
    return min(lacks, key=lambda rows: sum(rows.values()), default=None)


def _too_little(
    ctx: GangContext, fix: SuggestedFix, quota: Sequence[AddQuota], less: Smaller
) -> bool:
    """Whether the planner refuses the gang with each smaller size of the fix, and with each quota less one."""
    less_quota = _each_less(quota, lambda added: replace(added, amount=added.amount - 1))
    smaller = [(*changes, *quota) for changes in less]
    smaller += [(*fix.changes, *added) for added in less_quota]
    return all(too_little(ctx, changes) for changes in smaller)


def _each_less(changes: Sequence[Raise], lower: Callable[[Raise], Raise]) -> Iterator[list[Raise]]:
    """The changes, one of them with one unit less, for each of them."""
    for at, change in enumerate(changes):
        yield [*changes[:at], lower(change), *changes[at + 1 :]]


def _as_before(ctx: GangContext, cycle: AdmissionCycle) -> bool:
    """Whether each gang before it got the answer that it gets without the changes."""
    now, then = ctx.cycle, cycle
    same = now.starting.keys() == then.starting.keys() - {ctx.uid}
    return same and now.leased.keys() == then.leased.keys() - {ctx.uid}


def _in_words(quota: Sequence[AddQuota]) -> str:
    """``add 32 nvidia.com/gpu of flavor h100 to the nominal quota of ClusterQueue team-a``."""
    parts = [f"{amount(q.resource, q.amount)} of flavor {q.flavor}" for q in quota]
    return f"add {' and '.join(parts)} to the nominal quota of ClusterQueue {quota[0].queue}"
