"""Backfill in simulated time: later jobs start before a gang that waits, as far as the run times that are known permit it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from queuectl.domain.plan import Plan
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Snapshot
from queuectl.planner import plan
from queuectl.planner.cache import PlannerCache
from queuectl.simulate import leader
from queuectl.simulate.simulation import Durations, Order, PlacementRule
from tests.simulate.cases import outcome, setting, trace, waits

DECLARED, LEARNED, UNKNOWN = Durations
GANG = (
    "0,100,1,8,a",  # half of the nodes, until 100
    "1,50,2,8,a",  # a gang of all nodes: it waits, and its planned start is 100
)


def backfilled(rows: tuple[str, ...], durations: Durations, **more: Any) -> list[float]:
    given = setting({"a": 2}, trace(*rows, **more))
    return waits(outcome(given, PlacementRule.PLANNER, Order.BACKFILL, durations))


@pytest.mark.parametrize(
    ("durations", "seconds", "expected"),
    [
        (DECLARED, 98, 0),  # it ends at the planned start
        (DECLARED, 99, 148),  # it would end one second later, and waits until the gang has ended
        (LEARNED, 98, 148),  # its run time is not known
        (UNKNOWN, 98, 148),
    ],
)
def test_a_later_job_starts_if_it_is_known_to_end_before_the_planned_start(
    durations: Durations, seconds: int, expected: float
) -> None:
    found = backfilled((*GANG, f"2,{seconds},1,8,a"), durations)
    assert found[2] == expected
    assert found[1] == 99


@pytest.mark.parametrize("durations", Durations)
def test_jobs_of_no_length_wait_for_room_and_end_at_once(durations: Durations) -> None:
    found = backfilled(("0,100,2,8,a", "1,0,2,8,a", "1,0,1,8,a", "1,0,1,1,a"), durations)
    assert found == [0, 99, 99, 99]


def test_a_limit_of_the_trace_is_known_instead_of_the_run_time() -> None:
    """Its limit is 99 s, so it cannot start at 2, although it would end after 10 s."""
    rows = (*(f"{row}," for row in GANG), "2,10,1,8,a,99")
    assert backfilled(rows, DECLARED, more="limit_s") == [0, 99, 148]


def test_run_times_are_learned_from_jobs_that_have_ended_in_simulated_time() -> None:
    """Five jobs of the user ran for 20 s, so the last one is expected to end before the planned start."""
    before = [f"{at},20,1,1,a,u" for at in range(0, 100, 20)]
    gang = ("200,100,1,8,a,v,100", "201,50,2,8,a,v,")
    last = "202,20,1,8,a,u"
    rows = (*(f"{row}," for row in before), *gang, f"{last},")
    assert backfilled(rows, LEARNED, more="user,expected_s")[-1] == 0
    assert backfilled(rows[1:], LEARNED, more="user,expected_s")[-1] > 0


def test_a_job_that_states_more_time_than_its_queue_permits_never_fits() -> None:
    jobs = trace("0,10,1,8,a,50", "0,10,1,8,a,51", more="limit_s")
    found = outcome(
        setting({"a": 1}, jobs, policy={"maxExecTimeSeconds": 50}), PlacementRule.PLANNER
    )
    assert [job.limit for job in found.never_fit] == [51]


def test_the_default_limit_of_a_queue_ends_a_job() -> None:
    given = setting({"a": 1}, trace("0,100,1,8,a"), policy={"defaultMaxExecTimeSeconds": 50})
    assert outcome(given, PlacementRule.PLANNER).total.completion == 50


def test_a_job_that_runs_longer_than_expected_delays_a_planned_start_at_once() -> None:
    """It is expected to end at 100, and runs until 20,000. The last job ends before the next expected end then."""
    rows = ("0,20000,1,8,a,,100", "1,1000,2,8,a,1000,", "2,250,1,8,a,250,")
    found = backfilled(rows, LEARNED, more="limit_s,expected_s")
    assert found[2] < 1000
    assert found[1] >= 20_000 - 1


def test_the_expected_end_of_a_job_counts_from_the_plan_that_starts_it() -> None:
    """The second job starts when the first one ends, and no event follows. Its planned successor cannot start before 20,000."""
    rows = ("0,10,2,8,a,10,", "1,20000,1,8,a,,100", "2,1000,2,8,a,1000,", "3,250,1,8,a,250,")
    found = backfilled(rows, LEARNED, more="limit_s,expected_s")
    assert found[3] < 1000


def plans_with_little_work(monkeypatch: pytest.MonkeyPatch, seed: int) -> list[tuple[float, Plan]]:
    """The plans of a simulation and their times. Only the first jobs of each plan are searched for."""
    monkeypatch.setattr(leader, "_LIMITS", replace(leader._LIMITS, search_steps=1, cycle_time=1e-6))
    plans: list[tuple[float, Plan]] = []

    def planned(snapshot: Snapshot, cache: PlannerCache) -> Plan:
        plans.append((snapshot.now, plan(snapshot, cache=cache)))
        return plans[-1][1]

    monkeypatch.setattr(leader, "plan", planned)
    dice = Random(seed)

    def job(
        begins: tuple[int, int], length: tuple[int, int], pods: int, gpus: str, priority: int
    ) -> str:
        run = f"{dice.randrange(*begins)},{dice.randrange(*length)},{dice.randrange(1, pods)}"
        return f"{run},{dice.choice(gpus)},{dice.choice('ab')},{priority + dice.randrange(3)}"

    rows = [job((0, 5), (3000, 20_000), 4, "248", 0) for _ in range(10)]
    rows += [job((100, 110), (1000, 5000), 5, "1358", 2) for _ in range(10)]
    preemption = {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"}
    given = setting(
        {"a": 3, "b": 3}, trace(*rows, more="priority"), cohort="all", preemption=preemption
    )
    outcome(given, PlacementRule.PLANNER, Order.BEST_EFFORT_FIFO, UNKNOWN)
    return plans


def left_out(made: Plan) -> bool:
    """Whether the limit of the cycle left out a job."""
    return any(one.reasons[0].code is Code.PENDING_EVALUATION for one in made.pending)


def test_jobs_that_the_limit_of_a_cycle_leaves_out_are_planned_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second later, as the controller does, and not at the next arrival or end."""
    last = dict(plans_with_little_work(monkeypatch, 9))  # by time: the last plan at this time
    again = [after - now for now, after in pairwise(sorted(last)) if left_out(last[now])]
    assert again
    assert max(again) <= 1.0


def test_no_plan_follows_when_each_job_has_had_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans in turn leave out jobs that another plan has decided. Another plan would change nothing, each second until the next end."""
    plans = plans_with_little_work(monkeypatch, 14)
    waiting: set[str] = set()
    answered: set[str] = set()
    done = 0
    for (now, made), (after, _) in pairwise(plans):
        codes = {one.uid: one.reasons[0].code for one in made.pending}
        if made.admitted or made.preempted or codes.keys() != waiting:
            waiting, answered = set(codes), set()
            continue
        answered |= {uid for uid, code in codes.items() if code is not Code.PENDING_EVALUATION}
        if left_out(made) and answered == waiting and Code.UNDECIDED not in codes.values():
            done += 1
            assert after > now + 1.0
    assert done
