"""Fixes for a gang that a Budget holds: the next month, a shorter run, and a top-up.

No other constraint is considered before the Budget can pay. Each fix is tried on the changed snapshot: gangs before it can spend what a change
adds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from queuectl.domain.accounting import UNITS
from queuectl.domain.budgets import GPU_HOUR, gpu_hours
from queuectl.domain.changes import LimitRun, NewMonth, TopUpBudget
from queuectl.domain.diagnosis import Limit, Obstacle, Remedy, SuggestedFix
from queuectl.domain.words import format_time
from queuectl.planner.explain.context import Context
from queuectl.planner.explain.left_out import too_little
from queuectl.planner.explain.remedy import raised_until_it_starts
from queuectl.planner.order.limits import Bound, Limits

_THOUSANDTH: Final = GPU_HOUR // 1000


def over_budgets(ctx: Context) -> list[Bound]:
    """The Budgets that cannot pay the gang."""
    return list(ctx.cycle.limits.over_budgets(ctx.pending.workload))


def budget_sentence(over: Sequence[Bound]) -> Obstacle:
    """The first of them in words."""
    reason = over[0].reason()
    return Obstacle(Limit.BUDGET, f"Budget: {reason.message}", reason.details)


def next_months(ctx: Context) -> Iterator[SuggestedFix]:
    """Nothing to do: the gang starts when the Budgets that hold it have a month that can pay for it."""
    names = {bound.row[1] for bound in over_budgets(ctx)}
    change = NewMonth(tuple(sorted(names)))
    spent = (balance for balance in ctx.snapshot.budgets if balance.budget.name in names)
    last = max(spent, key=lambda balance: balance.month.ends)
    month = last.budget.month(last.month.ends)
    hours = gpu_hours(last.budget.granted(month, ctx.snapshot.config.top_ups.values()))
    at = format_time(month.begins)
    text = f"wait until {at}: then {month.name} begins, with {hours:g} GPU-hours in Budget {last.budget.name}"
    details = {"budgets": sorted(names), "month": month.name, "at": month.begins}
    yield SuggestedFix(Remedy.WAIT, text, details, (change,))


def shorter_run(ctx: Context) -> Iterator[SuggestedFix]:
    """The longest limit with which Budgets with ``wholeRun`` can pay for the gang."""
    workload = ctx.pending.workload
    units = max(1, round(workload.gpus * UNITS))
    seconds = min((bound.most - bound.held) // units for bound in over_budgets(ctx))
    if seconds <= 0:
        return
    change = LimitRun(ctx.uid, float(seconds))
    text = f"set a limit of {seconds} s or less (annotation queuectl.dev/max-exec-time-seconds)"
    least = too_little(ctx, (LimitRun(ctx.uid, seconds + 1.0),))
    yield SuggestedFix(Remedy.SHORTEN_RUN, text, {"seconds": seconds}, (change,), least)


def top_up(ctx: Context) -> Iterator[SuggestedFix]:
    """The rest of the cost of the gang, and of those of the same Budgets that start before it then."""
    first, more = over_budgets(ctx), Counter[str]()

    def topped_up(over: Sequence[Bound]) -> tuple[TopUpBudget, ...]:
        for bound in over:
            more[bound.row[1]] += _missing(bound)
        return tuple(TopUpBudget(name, units) for name, units in sorted(more.items()))

    found = raised_until_it_starts(ctx, Limits.over_budgets, topped_up)
    if found is not None:
        changes, at_once = found
        less = [
            [replace(c, units=c.units - 1) if c is one else c for c in changes] for one in changes
        ]
        least = at_once and more.total() == sum(map(_least, first))
        least = least and all(too_little(ctx, smaller) for smaller in less)
        yield _topped_up(ctx, changes, least=least)


def _least(bound: Bound) -> int:
    """Units with which the Budget permits the start."""
    return bound.held + bound.need - bound.most


def _missing(bound: Bound) -> int:
    """Units with which it pays for the whole run, in whole thousandths of a GPU-hour."""
    cost = bound.need if bound.adds is None else bound.adds
    return -(-(bound.held + cost - bound.most) // _THOUSANDTH) * _THOUSANDTH


def _topped_up(ctx: Context, changes: Sequence[TopUpBudget], *, least: bool) -> SuggestedFix:
    months = {balance.budget.name: balance.month.name for balance in ctx.snapshot.budgets}
    parts = [
        f"Budget {c.budget} by {gpu_hours(c.units):g} GPU-hours in {months[c.budget]}"
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
