"""The events of budgets, which are written once for each month."""

from __future__ import annotations

from fractions import Fraction

from queuectl.control.leader.periodic import BudgetNotices
from queuectl.domain.budgets import (
    GPU_HOUR,
    Budget,
    BudgetBalance,
    BudgetScope,
    WhenSpent,
    month_of,
)
from queuectl.domain.controller_notifications import budget_events
from queuectl.domain.notifications import EventType
from queuectl.domain.spending import BudgetReport, Forecast
from tests.doubles.store import MemoryDatabase, MemoryStore

NOVEMBER, DECEMBER = 1_763_000_000.0, 1_766_000_000.0


def report(
    used: float,
    *,
    granted: int = 100,
    at: float = NOVEMBER,
    scope: BudgetScope = BudgetScope.CLUSTER_QUEUE,
    holder: str = "gpus",
    effect: WhenSpent = WhenSpent.HOLD,
) -> BudgetReport:
    budget = Budget("team", scope, holder, granted * GPU_HOUR, when_spent=effect)
    balance = BudgetBalance(budget, month_of(at, "UTC"), granted * GPU_HOUR)
    forecast = Forecast(balance, round(used * GPU_HOUR), 0, Fraction(1), at + 3600.0, 0)
    return BudgetReport(at, (forecast,))


def test_the_highest_limit_that_is_reached_counts() -> None:
    table = {
        0.0: [],
        79.99: [],
        80.0: [("budget.nearly-spent", 80)],
        99.9: [("budget.nearly-spent", 80)],
        100.0: [("budget.spent", 100)],
        250.0: [("budget.spent", 100)],
    }
    found = {
        used: [(e.type.value, limit.percent) for limit, e in budget_events(report(used)).items()]
        for used in table
    }
    assert found == table
    assert not budget_events(report(0.0, granted=0)), "nothing is spent"
    assert budget_events(report(0.001, granted=0))


def test_the_event_states_amounts_and_its_spender() -> None:
    (nearly,) = budget_events(report(80.5)).values()
    assert nearly.message == (
        "Budget team has spent 80.5 of 100 GPU-hours in 2025-11, 80% or more. "
        "Running gangs spend the rest by 2025-11-13T03:13:20Z"
    )
    assert (nearly.cluster_queue, nearly.namespace, nearly.at) == ("gpus", "", NOVEMBER)
    lower = report(
        100.0, scope=BudgetScope.LOCAL_QUEUE, holder="team-a/q", effect=WhenSpent.LOWER_PRIORITY
    )
    (spent,) = budget_events(lower).values()
    assert spent.message.endswith("100% or more. Gangs that it pays for have a lower priority")
    assert (spent.cluster_queue, spent.namespace) == ("", "team-a")
    assert spent.details["localQueue"] == "team-a/q"
    (by_user,) = budget_events(report(100.0, scope=BudgetScope.USER, holder="ann")).values()
    assert (by_user.user, by_user.namespace, by_user.details["user"]) == ("", "", "ann")


async def test_each_limit_is_announced_once_a_month_by_all_leaders() -> None:
    database = MemoryDatabase()
    for used, at in ((80.0, NOVEMBER), (81.0, NOVEMBER), (100.0, NOVEMBER), (80.0, DECEMBER)):
        store = MemoryStore(database)
        store.notifications_enabled = True
        notices = BudgetNotices(store, await store.take_over("pod", 0))
        database.down = True
        await notices.announce(report(used, at=at))
        database.down = False
        for _ in range(2):  # the first attempt failed
            await notices.announce(report(used, at=at))
    types = [
        event.type
        for event in database.notifications.events
        if event.type is not EventType.LEADER_CHANGED
    ]
    assert types == [
        EventType.BUDGET_NEARLY_SPENT,
        EventType.BUDGET_SPENT,
        EventType.BUDGET_NEARLY_SPENT,
    ]
