"""Fixes by an administrator of queues or budgets: more quota, one more flavor, a top-up, and all fixes for a gang whose user holds too much."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Final

from queuectl.domain.accounting import UNITS
from queuectl.domain.budgets import gpu_hours, gpu_hours_text, least_top_up
from queuectl.domain.diagnosis import (
    AllowFlavor,
    FewerPods,
    Leave,
    Limit,
    LimitRun,
    NewMonth,
    Obstacle,
    RaiseUserCap,
    Remedy,
    SuggestedFix,
    TopUpBudget,
)
from queuectl.domain.quantity import format_quantity
from queuectl.domain.queues import FlavorQuotas
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Admitted
from queuectl.domain.words import counted, format_time, some
from queuectl.planner.explain.change_request import largest_part, limited_run, more_pods
from queuectl.planner.explain.context import GangContext
from queuectl.planner.explain.left_out import too_little
from queuectl.planner.explain.others_leave import once_left
from queuectl.planner.explain.relaxation import any_quota, ask, past_heads
from queuectl.planner.explain.remedy import finish, offer, raised_until_it_starts
from queuectl.planner.order.limits import CountedLimit, UserCaps
from queuectl.planner.reasons.words import amount

# ---- Fixes for a gang that a Budget holds
#
# No other constraint is considered before the Budget can pay. Each fix is tried on the changed snapshot: gangs before it can spend what a change
# adds.


def _over(ctx: GangContext, code: Code) -> list[CountedLimit]:
    """The limits of one kind that the gang is over."""
    return list(ctx.cycle.limits.over(ctx.pending.workload, code))


def _over_budget(ctx: GangContext) -> Obstacle:
    """The first Budget that cannot pay the gang, in words."""
    reason = _over(ctx, Code.BUDGET_SPENT)[0].reason()
    return Obstacle(Limit.BUDGET, f"Budget: {reason.message}", reason.details)


def next_months(ctx: GangContext) -> Iterator[SuggestedFix]:
    """Nothing to do: the gang starts when the Budgets that hold it have a month that can pay for it."""
    names = {bound.row.names[0] for bound in _over(ctx, Code.BUDGET_SPENT)}
    change = NewMonth(tuple(sorted(names)))
    spent = (balance for balance in ctx.snapshot.budgets if balance.budget.name in names)
    last = max(spent, key=lambda balance: balance.month.ends)
    month = last.budget.month(last.month.ends)
    hours = gpu_hours_text(last.budget.granted(month, ctx.snapshot.config.top_ups.values()))
    at = format_time(month.begins)
    text = f"wait until {at}: then {month.name} begins, with {hours} GPU-hours in Budget {last.budget.name}"
    details = {"budgets": sorted(names), "month": month.name, "at": month.begins}
    yield SuggestedFix(Remedy.WAIT, text, details, (change,))


def shorter_run(ctx: GangContext) -> Iterator[SuggestedFix]:
    """The longest limit with which Budgets with ``wholeRun`` can pay for the gang."""
    workload = ctx.pending.workload
    units = max(1, round(workload.gpus * UNITS))
    seconds = min((bound.most - bound.held) // units for bound in _over(ctx, Code.BUDGET_SPENT))
    if seconds <= 0:
        return
    least = too_little(ctx, (LimitRun(ctx.uid, seconds + 1.0),))
    yield limited_run(ctx, seconds, least=least)


def top_up(ctx: GangContext) -> Iterator[SuggestedFix]:
    """The rest of the cost of the gang, and of those of the same Budgets that start before it then."""
    first, more = _over(ctx, Code.BUDGET_SPENT), Counter[str]()

    def topped_up(over: Sequence[CountedLimit]) -> tuple[TopUpBudget, ...]:
        for bound in over:
            more[bound.row.names[0]] += _missing(bound)
        return tuple(TopUpBudget(name, units) for name, units in sorted(more.items()))

    raised = raised_until_it_starts(
        ctx, Code.BUDGET_SPENT, topped_up, lambda c: replace(c, units=c.units - 1)
    )
    if raised is not None:
        changes, least = raised
        least &= more.total() == sum(bound.missing for bound in first)
        yield _topped_up(ctx, changes, least=least)


def _missing(bound: CountedLimit) -> int:
    """Units with which it pays for the whole run."""
    return least_top_up(bound.held + bound.adds - bound.most)


def _topped_up(ctx: GangContext, changes: Sequence[TopUpBudget], *, least: bool) -> SuggestedFix:
    months = {balance.budget.name: balance.month.name for balance in ctx.snapshot.budgets}
    parts = [
        f"Budget {c.budget} by {gpu_hours_text(c.units)} GPU-hours in {months[c.budget]}"
        for c in changes
    ]
    details = {
        "topUps": [
            {"budget": c.budget, "month": months[c.budget], "gpuHours": gpu_hours(c.units)}
            for c in changes
        ]
    }
    message = f"top up {' and '.join(parts)}"
    return SuggestedFix(Remedy.TOP_UP_BUDGET, message, details, tuple(changes), least)


# ---- Fixes by more quota or one more flavor

_FLAVORS_TRIED: Final = 4
_COMBINED: Final = 12  # gangs of a user among which the cheapest set is searched for


def more_quota(ctx: GangContext) -> Iterator[SuggestedFix]:
    """Exactly what is missing, where there are nodes for it."""
    verdict = ask(ctx, any_quota(ctx))
    if ctx.queue is not None and verdict.fits and verdict.short:
        yield from finish(
            ctx, SuggestedFix(Remedy.ADD_QUOTA, "", {}, (), least=True), verdict.short
        )


def one_more_flavor(ctx: GangContext) -> Iterator[SuggestedFix]:
    """A flavor that its ClusterQueue does not have, with the quota that the gang takes of it."""
    queue, asked = ctx.queue, ctx.pending.workload.requests
    if queue is None:
        return
    for number, group in enumerate(queue.groups):
        nominal = {r: asked[r] for r in sorted(group.covered) if asked[r]}
        for name in sorted(ctx.snapshot.config.flavors.keys() - queue.flavors)[:_FLAVORS_TRIED]:
            if not nominal:
                continue
            change = AllowFlavor(queue.name, number, FlavorQuotas(name, nominal))
            relaxed = replace(past_heads(ctx), config=change.apply(ctx.snapshot).config)
            devices = " + ".join(amount(r, v) for r, v in sorted(nominal.items()) if "/" in r)
            message = f"add flavor {name} to ClusterQueue {queue.name}"
            message += f", with a nominal quota of {devices}" if devices else ""
            details = {"clusterQueue": queue.name, "flavor": name, "nominal": dict(nominal)}
            yield from offer(
                ctx, relaxed, SuggestedFix(Remedy.ALLOW_FLAVOR, message, details, (change,))
            )


# The limit of one user. No other constraint is considered before this one is settled. A fix is tried on the changed snapshot:
# other gangs of the user that are before this one can take the freed or allowed amount.

_Held = tuple[Admitted, Mapping[str, int]]


def _held(ctx: GangContext) -> Sequence[_Held]:
    """The gangs with which its user holds part of its ClusterQueue."""
    return ctx.once(UserCaps, lambda: UserCaps(ctx.snapshot).holders(ctx.pending.workload))


def _over_cap(ctx: GangContext) -> Obstacle:
    """The limit of one user in words, and the gangs with which the user holds the amount."""
    assert ctx.queue is not None
    over = _over(ctx, Code.MAX_PER_USER)
    first, user = over[0], ctx.pending.workload.user
    text = (
        f"user: {user} may hold at most {amount(first.resource, first.most)} in ClusterQueue {ctx.queue.name} "
        f"and holds {format_quantity(first.resource, first.held)}; "
        f"this gang requests {format_quantity(first.resource, first.need)}"
    )
    held = sorted(_held(ctx), key=lambda held: (held[0].started_at, held[0].workload.uid))
    if held:
        text += f"; running gangs: {some([_named(one, first.resource) for one in held])}"
    limits = [
        {"resource": o.resource, "most": o.most, "held": o.held, "needed": o.need} for o in over
    ]
    gangs = [
        {
            "workload": gang.workload.ref,
            "holds": dict(sorted(amounts.items())),
            "leaving": gang.leaving,
            "startedAt": gang.started_at,
        }
        for gang, amounts in held
    ]
    details: dict[str, Any] = {"clusterQueue": ctx.queue.name, "user": user}
    return Obstacle(Limit.USER, text, {**details, "over": limits, "gangs": gangs})


def own_leaving(ctx: GangContext) -> Iterator[SuggestedFix]:
    """Nothing to do: it starts when those of the user's gangs that are being evicted have left."""
    fix = once_left([gang for gang, _ in _held(ctx) if gang.leaving])
    if fix is not None:
        yield fix


def fewer_for_user(ctx: GangContext) -> Iterator[SuggestedFix]:
    """As many pods of its largest podset as ``maxPerUser`` allows."""
    limits, workload = ctx.cycle.limits, ctx.pending.workload
    podsets = {p.name: p for p in workload.podsets}

    def enough(change: FewerPods) -> bool:
        fewer = {change.podset: replace(podsets[change.podset], count=change.count)}
        changed = replace(workload, podsets=tuple((podsets | fewer).values()))
        return not any(limits.over(changed, Code.MAX_PER_USER))

    fix = largest_part(ctx, enough)
    if fix is not None:
        least = all(too_little(ctx, larger) for larger in more_pods(ctx, fix))
        yield replace(fix, least=least)


def higher_cap(ctx: GangContext) -> Iterator[SuggestedFix]:
    """Exactly what its user would hold with it, and with those of the user's gangs that start before it then."""
    assert ctx.queue is not None
    queue = ctx.queue.name
    caps, now = dict[str, int](), dict[str, int]()

    def raised(over: Sequence[CountedLimit]) -> tuple[RaiseUserCap, ...]:
        for bound in over:
            caps[bound.resource] = bound.held + bound.need
            now.setdefault(bound.resource, bound.most)
        return tuple(RaiseUserCap(queue, r, most) for r, most in sorted(caps.items()))

    found = raised_until_it_starts(
        ctx, Code.MAX_PER_USER, raised, lambda c: replace(c, most=c.most - 1)
    )
    if found is not None:
        changes, least = found
        yield _raised(queue, changes, now, least=least)


def _raised(
    queue: str, changes: Sequence[RaiseUserCap], now: Mapping[str, int], *, least: bool
) -> SuggestedFix:
    caps = " and ".join(
        f"{amount(c.resource, c.most)} ({format_quantity(c.resource, c.most - now[c.resource])} more)"
        for c in changes
    )
    message = f"raise maxPerUser of ClusterQueue {queue} to {caps}"
    details = {
        "clusterQueue": queue,
        "maxPerUser": {c.resource: c.most for c in changes},
        "now": {c.resource: now[c.resource] for c in changes},
    }
    return SuggestedFix(Remedy.RAISE_USER_CAP, message, details, tuple(changes), least)


def own_end(ctx: GangContext) -> Iterator[SuggestedFix]:
    """The fewest of the user's gangs, of these the smallest, without which the user holds little enough."""
    over, user = _over(ctx, Code.MAX_PER_USER), ctx.pending.workload.user
    ending = _fewest(over, [held for held in _held(ctx) if not held[0].leaving])
    change = Leave(tuple(gang.workload.uid for gang, _ in ending))
    if ending:
        names = some([_named(held, over[0].resource) for held in ending])
        message = f"end {counted(len(ending), 'gang')} of user {user}: {names}"
        gangs = [{"workload": gang.workload.ref, "holds": held} for gang, held in ending]
        uids = change.uids
        fewer = [(Leave(tuple(u for u in uids if u != one)),) for one in uids if len(uids) > 1]
        least = len(over) == 1 or len(ending) == 1
        least = least and all(too_little(ctx, smaller) for smaller in fewer)
        yield SuggestedFix(
            Remedy.END_OTHERS, message, {"gangs": gangs, "user": user}, (change,), least
        )


def _fewest(over: Sequence[CountedLimit], running: Sequence[_Held]) -> Sequence[_Held]:
    """None where all of them are not enough, or what leaves already is."""

    def sums(ending: Sequence[_Held]) -> list[int]:
        return [sum(held.get(bound.resource, 0) for _, held in ending) for bound in over]

    def enough(ending: Sequence[_Held]) -> bool:
        freed = zip(over, sums(ending), strict=True)
        return all(amount >= bound.missing for bound, amount in freed)

    def size(ending: Sequence[_Held]) -> tuple[list[int], list[float]]:
        return sums(ending), sorted(gang.started_at for gang, _ in ending)

    first = over[0].resource
    largest = sorted(running, key=lambda held: (-held[1].get(first, 0), held[0].workload.uid))
    count = next((n for n in range(1, len(largest) + 1) if enough(largest[:n])), None)
    if count is None:
        return ()
    if len(largest) > _COMBINED:
        return largest[:count]
    return min(filter(enough, combinations(largest, count)), key=size)


def _named(held: _Held, resource: str) -> str:
    gang, amounts = held
    name = f"{gang.workload.ref} ({format_quantity(resource, amounts.get(resource, 0))}"
    if gang.leaving:
        return f"{name}, being evicted)"
    if not gang.started_at:
        return f"{name})"
    return f"{name}, since {format_time(gang.started_at)})"


# ---- Limits in amounts


@dataclass(frozen=True, slots=True)
class ExplainedLimit:
    """How a diagnosis explains a limit that a gang is over: the blocking constraint, and the fixes in order of what they cost people."""

    obstacle: Callable[[GangContext], Obstacle]
    finders: tuple[Callable[[GangContext], Iterator[SuggestedFix]], ...]


EXPLAINED_LIMITS: Final[Mapping[Code, ExplainedLimit]] = {
    Code.MAX_PER_USER: ExplainedLimit(
        _over_cap, (own_leaving, fewer_for_user, higher_cap, own_end)
    ),
    Code.BUDGET_SPENT: ExplainedLimit(_over_budget, (next_months, shorter_run, top_up)),
}
"""By the code of the reason. Of a limit that is not here, the reason has all that there is to say."""
