"""The events for receivers that belong to no workload: of budgets, of objects that are set aside, and of the controller.

Only administrators receive them. Other events for on-call engineers are alerts already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from queuectl.domain.budgets import Budget, BudgetScope, WhenSpent, gpu_hours, gpu_hours_text
from queuectl.domain.containment import SetAsideObject
from queuectl.domain.notifications import BudgetLimit, Event, EventType
from queuectl.domain.spending import BudgetReport, Forecast
from queuectl.domain.words import format_time

_LIMITS: Final = ((100, EventType.BUDGET_SPENT), (80, EventType.BUDGET_NEARLY_SPENT))
_EFFECTS: Final = {
    WhenSpent.HOLD: "No gang that it pays for starts",
    WhenSpent.LOWER_PRIORITY: "Gangs that it pays for have a lower priority",
}


def budget_events(report: BudgetReport) -> Mapping[BudgetLimit, Event]:
    """The highest limit that each budget has reached, with its event."""
    return dict(_reached(report))


def _reached(report: BudgetReport) -> Iterator[tuple[BudgetLimit, Event]]:
    for forecast in report.forecasts:
        balance = forecast.balance
        for percent, event_type in _LIMITS:
            if forecast.used and 100 * forecast.used >= percent * balance.granted:
                limit = BudgetLimit(balance.budget.name, balance.month.name, percent)
                yield limit, _budget_event(forecast, event_type, percent, report.at)
                break


def _budget_event(forecast: Forecast, event_type: EventType, percent: int, at: float) -> Event:
    balance, budget = forecast.balance, forecast.balance.budget
    used, granted = gpu_hours(forecast.used), gpu_hours(balance.granted)
    spent, of_all = gpu_hours_text(forecast.used), gpu_hours_text(balance.granted)
    message = f"Budget {budget.name} has spent {spent} of {of_all} GPU-hours in {balance.month.name}, {percent}% or more"
    details: dict[str, str | int | float] = {
        "percent": percent,
        "month": balance.month.name,
        "usedGpuHours": used,
        "grantedGpuHours": granted,
        budget.scope.value: budget.holder,
    }
    if percent == 100:
        message += f". {_EFFECTS[budget.when_spent]}"
    elif forecast.spent_at is not None:
        details["spentAt"] = format_time(forecast.spent_at)
        message += f". Running gangs spend the rest by {details['spentAt']}"
    return Event(
        at=at,
        type=event_type,
        kind="Budget",
        namespace=_namespace(budget),
        name=budget.name,
        cluster_queue=budget.holder if budget.scope is BudgetScope.CLUSTER_QUEUE else "",
        message=message,
        details=details,
    )


def _namespace(budget: Budget) -> str:
    if budget.scope in (BudgetScope.NAMESPACE, BudgetScope.LOCAL_QUEUE):
        return budget.holder.partition("/")[0]
    return ""


def set_aside_event(unit: SetAsideObject) -> Event:
    """The event of an object that is set aside. It has no namespace, because only an administrator can act on it."""
    return Event(
        at=unit.at,
        type=EventType.OBJECT_SET_ASIDE,
        kind="SetAsideObject",
        name=unit.ref,
        message=f"An internal error sets {unit.ref} aside. It delays no other object, and is tried again",
        details={"boundary": unit.boundary, "error": unit.error, "place": unit.place},
    )


def leader_changed_event(at: float, holder: str, before: str, epoch: int) -> Event:
    """The event of another leader. ``before``: the last one."""
    return Event(
        at=at,
        type=EventType.LEADER_CHANGED,
        kind="Controller",
        name=holder,
        message=f"Replica {holder} leads "
        + (f"instead of {before}" if before != holder else "again"),
        details={"before": before, "epoch": epoch},
    )
