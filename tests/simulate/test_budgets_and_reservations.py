"""Simulations obey Budgets and Reservations, at times computed by hand.

A trace begins on the last day of a month. Each node has 8 GPUs, so that a job of a whole node spends 8 GPU-hours in an hour.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from queuectl.domain.budgets import GPU_HOUR, SpentUnits, month_of
from queuectl.objects.times import parse_time
from queuectl.simulate.outcomes import PolicyOutcome, warnings
from queuectl.simulate.simulation import Durations, Order, PlacementRule
from tests.simulate.cases import outcome, setting, trace, waits

BEGIN: Final = parse_time("2026-11-30T00:00:00Z")
HOUR: Final = 3600
DAY: Final = 24 * HOUR
Document = dict[str, Any]


def document(kind: str, name: str, **spec: Any) -> Document:
    head = {"apiVersion": "queuectl.dev/v1", "kind": kind, "metadata": {"name": name}}
    return head | {"spec": spec}


def budget(hours: float, **spec: Any) -> Document:
    scope = {} if {"user", "namespace", "localQueue"} & spec.keys() else {"clusterQueue": "a"}
    return document("Budget", "b", gpuHoursPerMonth=hours, **scope, **spec)


def reservation(begins: int, ends: int, **spec: Any) -> Document:
    """On November 30, between full hours."""
    times = {"from": f"2026-11-30T{begins:02}:00:00Z", "until": f"2026-11-30T{ends:02}:00:00Z"}
    return document("Reservation", "r", **times, **spec)


def simulated(
    jobs: str, *more: Document, nodes: int = 1, durations: Durations = Durations.DECLARED
) -> PolicyOutcome:
    given = setting({"a": nodes}, jobs, more=more, begins=BEGIN)
    return outcome(given, PlacementRule.PLANNER, Order.BEST_EFFORT_FIFO, durations)


THREE = trace(*[f"{at},3600,1,8,a" for at in range(3)])
TOP_UP = document("BudgetTopUp", "t", budget="b", month="2026-11", gpuHours=8, reason="deadline")
USERS = trace("0,3600,1,8,a,ann", "1,3600,1,8,a,ann", "2,3600,1,8,a,ben", more="user")


@pytest.mark.parametrize(
    ("jobs", "documents", "expected"),
    [
        pytest.param(THREE, [], [0, HOUR - 1, 2 * HOUR - 2], id="no Budget"),
        pytest.param(THREE, [budget(16)], [0, HOUR - 1, DAY - 2], id="the third job waits for the next month"),
        pytest.param(THREE, [budget(16), TOP_UP], [0, HOUR - 1, 2 * HOUR - 2], id="a top-up pays for it"),
        pytest.param(THREE, [budget(17)], [0, HOUR - 1, 2 * HOUR - 2], id="what is left permits a start"),
        pytest.param(THREE, [budget(17, wholeRun=True)], [0, HOUR - 1, DAY - HOUR // 8 - 2], id="unless the whole run in this month must be paid"),
        pytest.param(USERS, [budget(8, user="ann")], [0, DAY - 1, HOUR - 2], id="another user is not held"),
        pytest.param(USERS, [budget(8, namespace="default")], [0, DAY - 1, 32 * DAY - 2], id="all jobs of a namespace are"),
        pytest.param(USERS, [budget(8, user="ann", whenSpent="LowerPriority", priorityWhenSpent=-1)], [0, 2 * HOUR - 1, HOUR - 2], id="a lower priority lets another user pass"),
        pytest.param(THREE, [budget(16, timeZone="Europe/Berlin")], [0, HOUR - 1, DAY - HOUR - 2], id="the month of another time zone"),
    ],
)  # fmt: skip
def test_jobs_wait_for_their_budgets(
    jobs: str, documents: list[Document], expected: list[int]
) -> None:
    assert waits(simulated(jobs, *documents)) == expected


@pytest.mark.parametrize(
    ("spent", "at", "expected"),
    [
        pytest.param(8, BEGIN, [0, DAY - 1, DAY + HOUR - 2], id="one more job can be paid"),
        pytest.param(16, BEGIN, [DAY, DAY + HOUR - 1, 32 * DAY - 2], id="none can"),
        pytest.param(16, BEGIN - 30 * DAY, [0, HOUR - 1, DAY - 2], id="another month does not count"),
    ],
)  # fmt: skip
def test_what_was_spent_before_the_begin_counts_in_its_month(
    spent: int, at: float, expected: list[int]
) -> None:
    month = month_of(at, "UTC")
    given = setting({"a": 1}, THREE, more=[budget(16)], begins=BEGIN)
    given = replace(given, spent=SpentUnits(at, {("b", month.begins): spent * GPU_HOUR}))
    assert waits(outcome(given, PlacementRule.PLANNER, Order.BEST_EFFORT_FIFO)) == expected


def test_the_use_of_a_run_across_the_end_of_a_month_is_paid_by_both_months() -> None:
    """In November, 8 GPU-hours are spent; of the long run, one hour is in November and one in December."""
    jobs = trace(f"{23 * HOUR},{2 * HOUR},1,8,a", f"{25 * HOUR},{HOUR},1,8,a", "90001,3600,1,8,a")
    found = simulated(jobs, budget(16))
    assert waits(found)[:2] == [0, 0]
    assert waits(found)[2] == 32 * DAY - 90001  # December has 16: all are spent at 26 hours


MAINTENANCE = {"nodes": ["a-000"]}
LONG_AND_SHORT = trace(f"0,{3 * HOUR},1,8,a", f"1,{HOUR},1,8,a")
SPLIT = trace(f"0,{3 * HOUR},1,8,a,{HOUR}", more="checkpoint_s")


@pytest.mark.parametrize(
    ("jobs", "given", "expected"),
    [
        pytest.param(LONG_AND_SHORT, reservation(2, 4, **MAINTENANCE), [4 * HOUR, 0], id="a job that would still run waits, and a shorter one starts"),
        pytest.param(LONG_AND_SHORT, reservation(3, 4, **MAINTENANCE), [0, 4 * HOUR - 1], id="a job that ends before starts"),
        pytest.param(LONG_AND_SHORT, reservation(1, 4, clusterQueue="a", capacity={"pods": 1, "requests": {"nvidia.com/gpu": 8}, "flavor": "a"}), [0, 3 * HOUR - 1], id="the ClusterQueue of a Reservation can use it"),
        pytest.param(SPLIT, reservation(2, 4, evict=True, nodes=["a-000"]), [4 * HOUR], id="no job starts that would be evicted"),
    ],
)  # fmt: skip
def test_jobs_are_steered_around_reservations(
    jobs: str, given: Document, expected: list[int]
) -> None:
    assert waits(simulated(jobs, given)) == expected


def test_a_job_of_unknown_length_is_evicted_when_a_recurring_reservation_begins() -> None:
    """It starts between two occurrences only if its end is expected before the next one: ``expected_s`` is too short here."""
    jobs = trace(f"0,{3 * HOUR},1,8,a,{HOUR},{HOUR}", more="expected_s,checkpoint_s")
    found = simulated(
        jobs, reservation(2, 3, evict=True, nodes=["a-000"]), durations=Durations.LEARNED
    )
    assert (waits(found), found.total.evictions) == ([HOUR], 1)


def test_a_reservation_for_one_queue_keeps_nodes_from_others_in_other_parts() -> None:
    """Queues without a common cohort or node are still in one part when a Reservation can be on the nodes of both."""
    jobs = trace(f"{HOUR},{HOUR},1,8,b", f"{HOUR},{HOUR},1,8,a")
    kept = reservation(1, 5, clusterQueue="a", capacity={"pods": 2, "requests": {"nvidia.com/gpu": 8}})  # fmt: skip
    given = setting({"a": 1, "b": 1}, jobs, more=[kept], begins=BEGIN)
    assert waits(outcome(given, PlacementRule.PLANNER)) == [4 * HOUR, 0]


def test_a_job_that_no_month_can_pay_for_stays_and_is_named() -> None:
    found = simulated(trace("0,7200,1,8,a", "5,3600,1,0,a"), budget(0, wholeRun=True))
    assert waits(found) == [0]
    assert list(warnings(found, "t")) == [
        "t: line 2: 1 job did not start in the year after the last event"
    ]


def test_the_time_of_the_trace_is_stated_unless_it_is_given() -> None:
    given = setting({"a": 1}, THREE, more=[budget(1)])
    assert list(given.warnings()) == [
        "for Budgets and Reservations, second 0 of the trace is 2000-01-01T00:00:00Z; to change it, use --start"
    ]
    assert list(setting({"a": 1}, THREE, more=[budget(1)], begins=BEGIN).warnings()) == []
    assert list(setting({"a": 1}, THREE).warnings()) == []
