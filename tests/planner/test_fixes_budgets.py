"""A gang that a Budget holds: each suggested fix makes the planner start it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from queuectl.domain.budgets import GPU_HOUR
from queuectl.domain.diagnosis import Limit, LimitRun, NewMonth, Remedy, TopUpBudget, apply_all
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.planner.explain import diagnose
from tests.planner.relaxed import starts
from tests.planner.test_budgets import WHOLE, budget, of, runs, spending

HELD = spending(budget(), [of("a", 2, run=1)], spent=10)


def test_the_budget_is_the_only_blocking_constraint() -> None:
    (obstacle,) = diagnose(HELD, "a").conflict
    assert obstacle.limit is Limit.BUDGET
    assert obstacle.message.startswith("Budget: 0 of 10 GPU-hours are left in Budget b in 1970-01")


@pytest.mark.parametrize(
    ("snapshot", "uid", "messages"),
    [
        pytest.param(
            HELD, "a",
            ["wait until 1970-02-01T00:00:00Z: then 1970-02 begins, with 10 GPU-hours in Budget b",
             "top up Budget b by 2 GPU-hours in 1970-01"],
            id="any rest permits a start",
        ),
        pytest.param(
            spending(budget(**WHOLE), [of("a", 2, run=3)], spent=8), "a",
            ["wait until 1970-02-01T00:00:00Z: then 1970-02 begins, with 10 GPU-hours in Budget b",
             "set a limit of 3600 s or less (label queuectl.dev/max-exec-time-seconds)",
             "top up Budget b by 4 GPU-hours in 1970-01"],
            id="the whole run is paid",
        ),
        pytest.param(
            spending(budget(**WHOLE), [Pending(of("a", 2, run=3), past_seconds=7200.5)], spent=8), "a",
            ["wait until 1970-02-01T00:00:00Z: then 1970-02 begins, with 10 GPU-hours in Budget b",
             "set a limit of 10800 s or less (label queuectl.dev/max-exec-time-seconds): earlier attempts ran for 7201 s",
             "top up Budget b by 4 GPU-hours in 1970-01"],
            id="the limit counts earlier attempts",
        ),
        pytest.param(
            spending(budget(**WHOLE), [of("a", 2, run=6)], spent=10), "a",
            ["top up Budget b by 12 GPU-hours in 1970-01"],
            id="no month can pay for it",
        ),
        pytest.param(
            spending(budget(**WHOLE), [of("a", 4, run=1), of("b", 8, run=1, queued_at=5.0)], spent=7), "b",
            ["set a limit of 1350 s or less (label queuectl.dev/max-exec-time-seconds)",
             "top up Budget b by 9 GPU-hours in 1970-01"],
            id="a gang before it spends of a top-up and of the next month",
        ),
        pytest.param(
            spending(budget(), [of("a", 8)], [runs("r", 8, 900)], spent=10), "a",
            ["top up Budget b by 3737.778 GPU-hours in 1970-01"],
            id="a running gang spends the next month",
        ),
    ],
)  # fmt: skip
def test_each_fix_starts_the_gang(snapshot: Snapshot, uid: str, messages: list[str]) -> None:
    fixes = diagnose(snapshot, uid).suggested_fixes
    for fix in fixes:
        assert starts(apply_all(fix.changes, snapshot), uid), fix
    assert [fix.message for fix in fixes] == messages


def test_a_top_up_is_the_least_that_is_enough() -> None:
    snapshot = spending(budget(**WHOLE), [of("a", 2, run=3)], spent=8)
    (fix,) = [one for one in diagnose(snapshot, "a").suggested_fixes if one.least and one.remedy is Remedy.TOP_UP_BUDGET]  # fmt: skip
    (change,) = fix.changes
    assert change == TopUpBudget("b", 4 * GPU_HOUR)
    assert not starts(replace(change, units=change.units - 1).apply(snapshot), "a")


def test_no_fix_is_listed_for_a_gang_that_would_not_fit_either() -> None:
    full: dict[str, Any] = {"running": [runs("r", 8, 1)], "spent": 10}
    snapshot = spending(budget(), [of("a", 99)], **full)
    assert diagnose(snapshot, "a").suggested_fixes == ()


def test_the_changes_are_those_of_the_messages() -> None:
    snapshot = spending(budget(**WHOLE), [of("a", 2, run=3)], spent=8)
    kinds = [type(fix.changes[0]) for fix in diagnose(snapshot, "a").suggested_fixes]
    assert kinds == [NewMonth, LimitRun, TopUpBudget]
