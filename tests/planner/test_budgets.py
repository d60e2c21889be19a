"""Budgets: no gang starts on GPU-hours that are not left, and gangs of one plan do not spend the same ones."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.budgets import (
    GPU_HOUR,
    Budget,
    BudgetBalance,
    BudgetScope,
    WhenSpent,
    month_of,
    units_of,
)
from queuectl.domain.diagnosis import Remedy
from queuectl.domain.plan import Admission, Plan, Refusal
from queuectl.domain.queues import QueueingStrategy
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Admitted, CapacityLease, Pending, Snapshot
from queuectl.domain.spending import (
    Spending,
    forecast,
    lowered_priorities,
    report,
    with_priority,
)
from queuectl.domain.workload import Duration, Growth, Placement, Workload
from queuectl.planner import plan
from queuectl.planner.explain.diagnosis import diagnose
from queuectl.planner.preempt.protections import next_plan_due
from queuectl.planner.verify import PlanRule, verify
from tests.planner.build import NOW, gang, holding, node, placed, podset, queue, world

NODES = [node(f"n{i}", gpu=8) for i in range(4)]
HOUR = 3600.0


def budget(hours: float = 10, **options: Any) -> Budget:
    given = {"scope": BudgetScope.CLUSTER_QUEUE, "holder": "main", **options}
    return Budget("b", monthly=units_of(Fraction(str(hours))), **given)


def of(name: str, gpus: int = 1, run: float | None = None, **options: Any) -> Workload:
    """A gang of one pod; ``run``: hours of its limit, None = unknown."""
    user = options.pop("user", None)
    asked = gang(name, podset(gpu=gpus), **options)
    length = Duration(run * HOUR, enforced=True) if run is not None else None
    return replace(asked, duration=length, user=user)


def spending(
    rule: Budget,
    pending: list[Workload | Pending],
    running: list[Admitted] | None = None,
    spent: float = 0.0,
    **options: Any,
) -> Snapshot:
    """``spent``: GPU-hours in the ledger, which has counted everything until now."""
    made = world(NODES, pending, running or [], queue(**options))
    month = month_of(NOW, rule.time_zone)
    balance = BudgetBalance(rule, month, rule.monthly, units_of(Fraction(str(spent))), 0, NOW)
    config = replace(made.config, budgets={rule.name: rule})
    return replace(made, config=config, budgets=(balance,))


def decided(snapshot: Snapshot) -> tuple[list[str], dict[str, Refusal]]:
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    return sorted(a.uid for a in made.admitted), {r.uid: r for r in made.pending}


def lowered(snapshot: Snapshot) -> Snapshot:
    found = lowered_priorities(Spending(snapshot))
    pending = tuple(with_priority(p, found.get(p.workload.uid)) for p in snapshot.pending)
    return replace(snapshot, pending=pending)


def runs(name: str, gpus: int, hours: float | None) -> Admitted:
    """A gang that runs for so many more hours; None = unknown."""
    ends = None if hours is None else NOW + hours * HOUR
    return replace(holding(of(name, gpus), {"n0": 1}), ends_at=ends, end_enforced=hours is not None)


WHOLE = {"whole_run": True}


@pytest.mark.parametrize("strategy", list(QueueingStrategy))
@pytest.mark.parametrize(
    ("rule", "spent", "running", "pending", "starts"),
    [
        pytest.param(budget(), 9.999, [], [of("a")], ["a"], id="something is left"),
        pytest.param(budget(), 10, [], [of("a")], [], id="all is spent"),
        pytest.param(budget(), 10, [], [of("a", 0)], ["a"], id="a gang without GPUs spends nothing"),
        pytest.param(budget(), 9, [], [of("a", run=1), of("b", run=1)], ["a"], id="the first one spends the last hour"),
        pytest.param(budget(), 9, [], [of("a"), of("b")], ["a"], id="an unknown run counts for one hour"),
        pytest.param(budget(), 8, [], [of("a"), of("b")], ["a", "b"], id="both are paid"),
        pytest.param(budget(), 9, [runs("r", 1, 1)], [of("a")], [], id="running gangs spend until their ends"),
        pytest.param(budget(), 9, [runs("r", 1, 0.5)], [of("a")], ["a"], id="an early end leaves hours"),
        pytest.param(budget(), 9, [runs("r", 1, None)], [of("a")], [], id="a running gang without an end counts for one hour"),
        pytest.param(budget(), 9, [runs("r", 1, -1)], [of("a")], [], id="so does a gang beyond its expected end"),
        pytest.param(budget(), 9, [], [of("a", run=2)], ["a"], id="the run can exceed the rest"),
        pytest.param(budget(**WHOLE), 9, [], [of("a", run=2)], [], id="unless the whole run must be paid"),
        pytest.param(budget(**WHOLE), 8, [], [of("a", run=2)], ["a"], id="the whole run is paid"),
        pytest.param(budget(**WHOLE), 8, [], [of("a", run=2), of("b", run=1)], ["a"], id="and nothing is left"),
        pytest.param(budget(**WHOLE), 8, [], [of("a", run=3), of("b", run=1)], ["b"], id="a run that is too long holds back no later gang"),
        pytest.param(budget(holder="other"), 10, [], [of("a")], ["a"], id="another queue"),
        pytest.param(budget(scope=BudgetScope.NAMESPACE, holder="team"), 10, [], [of("a")], [], id="of a namespace"),
        pytest.param(budget(scope=BudgetScope.LOCAL_QUEUE, holder="team/main"), 10, [], [of("a")], [], id="of a LocalQueue"),
        pytest.param(budget(scope=BudgetScope.USER, holder="ann"), 10, [], [of("a", user="ann"), of("b", user="ben")], ["b"], id="of a user"),
    ],
)  # fmt: skip
def test_a_gang_starts_only_on_hours_that_are_left(
    strategy: QueueingStrategy,
    rule: Budget,
    spent: float,
    running: list[Admitted],
    pending: list[Workload],
    starts: list[str],
) -> None:
    if strategy is QueueingStrategy.STRICT_FIFO and "b" in starts and "a" not in starts:
        pending = [replace(one, queued_at=float(one.uid == "a")) for one in pending]
    started, waiting = decided(spending(rule, [*pending], running, spent, strategy=strategy))
    assert started == starts
    assert {r.reasons[0].code for r in waiting.values()} <= {
        Code.BUDGET_SPENT,
        Code.WAITING_IN_ORDER,
    }


def test_a_whole_run_is_paid_from_the_time_that_its_reason_states() -> None:
    """Only its part before the end of the month is paid: with 40 GPU-hours left, 8 GPUs for 5 hours."""
    snapshot = spending(budget(40, **WHOLE), [of("a", 8, run=100)])
    (balance,) = snapshot.budgets
    snapshot = replace(snapshot, now=balance.month.ends - 20 * HOUR)
    snapshot = replace(snapshot, budgets=(replace(balance, counted=snapshot.now),))
    made = plan(snapshot)
    due = next_plan_due(snapshot, made)
    assert due == made.pending[0].reasons[0].details["until"] == balance.month.ends - 5 * HOUR
    assert decided(replace(snapshot, now=due))[0] == ["a"]
    assert decided(replace(snapshot, now=due - 60.0))[0] == []


def test_the_reason_states_what_is_missing_and_what_would_help() -> None:
    _, waiting = decided(spending(budget(**WHOLE), [of("a", 2, run=3)], spent=8.5))
    reason = waiting["a"].reasons[0]
    assert reason.message == (
        "6 GPU-hours are needed for the whole run, and 1.5 of 10 GPU-hours are left in Budget b in 1970-01, after what "
        "running gangs still use; top up the Budget by 4.5 GPU-hours, set a limit of at most 2700 s, "
        "or wait until 1970-01-31T23:15:00Z"
    )
    assert reason.details["missingGpuHours"] == 4.5
    _, waiting = decided(spending(budget(), [of("a")], spent=10))
    assert waiting["a"].reasons[0].message.startswith("0 of 10 GPU-hours are left in Budget b")


def test_the_limit_of_the_reason_counts_earlier_attempts() -> None:
    """They ran for an hour, and the rest pays for half an hour. The suggested fix names the same limit."""
    tried = Pending(of("a", run=4), past_seconds=3600.5)
    snapshot = spending(budget(**WHOLE), [tried], spent=9.5)
    _, waiting = decided(snapshot)
    assert "set a limit of at most 5400 s" in waiting["a"].reasons[0].message
    fixes = {fix.remedy: fix for fix in diagnose(snapshot, "a").suggested_fixes}
    assert fixes[Remedy.SHORTEN_RUN].details == {"seconds": 5400}


@pytest.mark.parametrize(
    ("granted", "spent", "seconds", "sentence"),
    [
        (1_200_000, 1_199_999, 900, "1 of 1200000 GPU-hours are left"),
        (1_200_000, 1_199_999, 900, "top up the Budget by 1 GPU-hours"),
        (10, 10, 555_554, "top up the Budget by 1234.565 GPU-hours"),
        (10, 8, 901, "top up the Budget by 0.003 GPU-hours"),
    ],
)
def test_the_top_up_of_the_reason_is_enough_whatever_its_size(
    granted: float, spent: float, seconds: int, sentence: str
) -> None:
    asked, rule = of("a", 8, run=seconds / HOUR), budget(granted, **WHOLE)
    _, waiting = decided(spending(rule, [asked], spent=spent))
    reason = waiting["a"].reasons[0]
    assert sentence in reason.message
    more = granted + reason.details["missingGpuHours"]
    assert decided(spending(budget(more, **WHOLE), [asked], spent=spent))[0] == ["a"]


@pytest.mark.parametrize(
    ("left", "priorities"),
    [
        pytest.param(0, [-5, -5, -5], id="spent"),
        pytest.param(1, [0, -5, -5], id="the first gang takes what is left"),
        pytest.param(2, [0, -5, -5], id="its whole cost"),
        pytest.param(3, [0, 0, -5], id="the second one takes the rest"),
        pytest.param(5, [0, 0, 0], id="all are paid"),
    ],
)
def test_gangs_of_one_plan_do_not_exceed_a_budget_at_their_own_priority(
    left: int, priorities: list[int]
) -> None:
    """Each of them uses two GPU-hours."""
    rule = budget(when_spent=WhenSpent.LOWER_PRIORITY, priority_when_spent=-5)
    gangs = [of(name, 2, run=1, queued_at=at) for at, name in enumerate("abc")]
    snapshot = lowered(spending(rule, [*gangs], spent=10 - left))
    assert [p.workload.priority for p in snapshot.pending] == priorities


LOWERS: dict[str, Any] = {"when_spent": WhenSpent.LOWER_PRIORITY, "priority_when_spent": -5}


def test_a_gang_that_never_fits_uses_nothing_of_a_budget() -> None:
    """It is older than the other one. A gang that waits for others to end uses its part."""
    gangs = [of("huge", 5000), of("next", queued_at=1.0)]
    given = Spending(spending(budget(**LOWERS), [*gangs]))
    assert lowered_priorities(given, {"huge"}) == {}
    assert lowered_priorities(given) == {"next": -5}


def test_a_pod_that_waits_to_be_added_lowers_the_priority_of_no_gang() -> None:
    """The gang takes the first two hours of three. Of the older pods, the second one finds nothing left."""
    pods = [replace(of(f"base_{i}"), growth=Growth("base", i)) for i in range(1, 4)]
    gangs = [*pods, of("next", 2, queued_at=1.0)]
    given = spending(budget(**LOWERS), [*gangs], [runs("base", 1, None)], spent=6)
    assert lowered_priorities(Spending(given)) == {"base_2": -5, "base_3": -5}


def test_a_spent_budget_lowers_the_priority_of_pending_gangs() -> None:
    rule = budget(
        scope=BudgetScope.USER,
        holder="ann",
        when_spent=WhenSpent.LOWER_PRIORITY,
        priority_when_spent=-5,
    )
    rich, poor = of("rich", 8, user="ben", queued_at=2.0), of("poor", 8, user="ann", queued_at=1.0)
    for spent, first in ((9.0, "poor"), (10.0, "rich")):
        snapshot = lowered(spending(rule, [rich, poor], spent=spent))
        snapshot = replace(snapshot, fleet=world(NODES[:1]).fleet)
        started, waiting = decided(snapshot)
        assert started == [first]
        assert all(r.reasons[0].code is not Code.BUDGET_SPENT for r in waiting.values())


def test_the_verifier_names_a_start_that_no_budget_pays() -> None:
    snapshot = spending(budget(), [of("a", run=1), of("b", run=1)], spent=9)
    both = tuple(
        Admission(p.workload.uid, placed(p.workload, {f"n{i}": 1}))
        for i, p in enumerate(snapshot.pending)
    )
    assert [v.rule for v in verify(snapshot, Plan(admitted=both))] == [PlanRule.BUDGET]


LENGTHS = st.one_of(st.none(), st.floats(0.1, 20.0))


@given(
    st.lists(st.tuples(st.integers(0, 4), LENGTHS), max_size=6),
    st.integers(0, 12),
    st.booleans(),
)
def test_the_whole_runs_that_start_never_exceed_what_is_left(
    gangs: list[tuple[int, float | None]], spent: int, whole: bool
) -> None:
    pending = [of(f"g{i}", gpus, run, queued_at=float(i)) for i, (gpus, run) in enumerate(gangs)]
    snapshot = spending(budget(whole_run=whole), [*pending], spent=spent)
    started, waiting = decided(snapshot)
    (balance,) = snapshot.budgets
    cost = {
        w.uid: balance.start_cost(w.gpus, w.duration.seconds if w.duration else None, NOW)
        for w in pending
    }
    left = balance.granted - balance.used
    costs = [cost[uid] for uid in started if cost[uid]]
    if whole:
        assert sum(costs) <= max(0, left)
    elif costs:
        assert sum(costs) - max(costs) < left
    for uid in waiting:  # no gang waits for a budget that could pay it
        need = cost[uid] if whole else 1
        assert sum(costs) + need > left


@pytest.mark.parametrize(
    ("spent", "running", "at"),
    [
        pytest.param(8.0, [], None, id="nothing runs"),
        pytest.param(8.0, [runs("r", 2, None)], 1.0, id="at the current rate"),
        pytest.param(8.0, [runs("r", 2, 0.5)], None, id="the gang ends before"),
        pytest.param(8.0, [runs("r", 2, 0.5), runs("s", 1, None)], 1.0, id="two rates"),
        pytest.param(10.0, [], 0.0, id="it is spent"),
    ],
)
def test_the_forecast_follows_running_gangs_to_their_ends(
    spent: float, running: list[Admitted], at: float | None
) -> None:
    snapshot = spending(budget(), [of("p", 4, run=2)], running, spent)
    found = forecast(Spending(snapshot), snapshot.budgets[0])
    assert found.spent_at == (None if at is None else pytest.approx(NOW + at * HOUR))
    assert found.waiting == 8 * GPU_HOUR


@given(
    st.integers(0, 44),
    st.booleans(),
    st.integers(0, 8),
    st.sampled_from([None, 0.5, 4.0, 8.0]),
)
def test_a_report_states_which_gangs_a_budget_keeps_from_their_start(
    spent: int, whole: bool, gpus: int, run: float | None
) -> None:
    """The controller plans again when that changes."""
    rule = budget(40, whole_run=whole)
    snapshot = spending(rule, [of("a", gpus, run)], [runs("r", 2, None)], spent)
    _, refusals = decided(snapshot)
    held = "a" in refusals and refusals["a"].reasons[0].code is Code.BUDGET_SPENT
    assert report(snapshot).lacks == {("b", "a"): held}


@pytest.mark.parametrize(("spent", "low"), [(9.0, False), (10.0, True)])
def test_a_report_states_which_gangs_have_the_lower_priority(spent: float, low: bool) -> None:
    rule = budget(when_spent=WhenSpent.LOWER_PRIORITY, priority_when_spent=-5)
    snapshot = lowered(spending(rule, [of("a")], [], spent))
    assert report(snapshot).lacks == {("b", "a"): low}


def test_the_lease_of_a_gang_with_fewer_pods_holds_what_these_cost() -> None:
    rule = budget(10, **WHOLE)
    part = gang("part", replace(podset(count=4, gpu=1), min_count=1))
    part = replace(part, duration=Duration(2 * HOUR, enforced=True))
    (whole,) = placed(part, {"n0": 1}).podsets
    lease = CapacityLease(Placement((replace(whole, pods=1),)), (), NOW - 60, NOW + 600)
    urgent = of("urgent", 1, run=8, priority=1)
    starts, waits = decided(spending(rule, [Pending(part, lease=lease), urgent]))
    assert "urgent" in starts, waits


def test_a_gang_that_its_checks_hold_commits_its_whole_run() -> None:
    """It runs from its approval on, however long it was held."""
    rule = budget(10, **WHOLE)
    held = replace(runs("held", 1, None), held=True, started_at=NOW - 5 * HOUR)
    held = replace(held, workload=of("held", 1, run=8))
    starts, waits = decided(spending(rule, [of("next", 1, run=4)], [held]))
    assert (starts, waits["next"].reasons[0].code) == ([], Code.BUDGET_SPENT)
    starts, _ = decided(spending(rule, [of("next", 1, run=2)], [held]))
    assert starts == ["next"]
