"""The searches of one cycle: how they are divided among the ClusterQueues once their limit is reached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import count

import pytest

from queuectl.domain.snapshot import SolverLimits
from queuectl.planner.cycle_work import CycleWork, Effort

LIMITS = SolverLimits(search_steps=1000, cycle_time=0.5)
FULL, SHORT, NONE = Effort.FULL, Effort.SHORT, Effort.NONE


def cycle(costs: Mapping[str, int], second: int) -> dict[str, Effort]:
    """The effort for each ClusterQueue in one cycle; ``costs``: the steps of a search for its one gang, in queue order."""
    work, steps = CycleWork(LIMITS, second, len(costs)), 0
    efforts = {}
    for queue, cost in costs.items():
        work.consider(queue, queue, 0.0, steps)
        efforts[queue] = work.effort
        if work.effort is not NONE:
            steps += cost
    return efforts


def test_below_the_limit_each_gang_is_searched_for() -> None:
    assert set(cycle({f"q{n}": 24 for n in range(40)}, 7).values()) == {FULL}


def test_a_search_is_not_cut_however_much_it_costs() -> None:
    work = CycleWork(LIMITS, 0, 1)
    work.consider("q", "a gang", 0.0, 0)
    assert work.effort is FULL
    work.consider("q", "a gang", 9.0, 90_000)
    assert work.effort is NONE


def test_a_search_ends_after_several_limits() -> None:
    work = CycleWork(LIMITS, 0, 1)
    work.consider("q", "a gang", 0.0, 500)
    assert [work.ends(0.0, 500 + steps) for steps in (7_999, 8_000)] == [False, True]
    assert [work.ends(time, 500) for time in (3.9, 4.0)] == [False, True]
    work.consider("r", "a gang", 0.0, 500)
    assert not work.ends(0.0, 8_499)


@pytest.mark.parametrize("queues", [2, 3, 10, 40])
@pytest.mark.parametrize("cost", [1000, 100_000])
def test_each_queue_has_full_searches_however_much_the_others_cost(queues: int, cost: int) -> None:
    """On average each has one in as many seconds as there are queues, whatever its place in the order is."""
    costs = {f"team-{n}": cost for n in range(queues)}
    seconds = 30 * queues
    full = Counter(
        queue for s in range(seconds) for queue, effort in cycle(costs, s).items() if effort is FULL
    )
    assert full["team-0"] == seconds
    assert all(full[queue] >= 10 for queue in costs)


def test_of_many_queues_each_has_a_turn_a_minute() -> None:
    """However many ClusterQueues only wait for quota."""
    seconds = 600
    turns = 0
    for second in range(seconds):
        work = CycleWork(LIMITS, second, 5000)
        work.consider("hard", "a gang", 0.0, 0)
        work.consider("late", "a gang", 0.0, 10_000)
        turns += work.effort is FULL
    assert 4 <= turns <= 20


def test_turns_of_queues_do_not_depend_on_each_other() -> None:
    """For any two queues there are seconds in which only one of them has a short search, and seconds in which both have one."""
    costs = {"first": 1000, **{f"q{n}": 20 for n in range(8)}}
    found = [cycle(costs, second) for second in range(400)]
    for one in range(8):
        for other in range(one):
            seen = {(f[f"q{one}"] is NONE, f[f"q{other}"] is NONE) for f in found}
            assert len(seen) == 4


def test_after_the_limit_about_a_quarter_of_the_queues_have_a_short_search() -> None:
    costs = {"first": 1000, **{f"q{n}": 20 for n in range(39)}}
    efforts = Counter(effort for second in range(100) for effort in cycle(costs, second).values())
    assert 0.15 < efforts[SHORT] / 3900 < 0.3
    assert 0.5 < (efforts[FULL] - 100) / 100 < 1.5


def test_short_searches_end_when_as_much_work_again_is_done() -> None:
    costs = {"first": 1000, **{f"q{n}": 900 for n in range(39)}}
    for second in range(50):
        assert Counter(cycle(costs, second).values())[SHORT] <= 2


def test_a_queue_has_one_short_search() -> None:
    for second in count():
        work = CycleWork(LIMITS, second, 1000)
        work.consider("first", "a gang", 0.0, 0)
        work.consider("q", "a gang", 0.0, 1000)
        if work.effort is SHORT:
            break
    work.consider("q", "a gang", 0.0, 1001)
    assert work.effort is NONE


def searched(costs: Mapping[str, int], second: int) -> set[str]:
    """The gangs of one ClusterQueue with a full search in one cycle; ``costs``: by gang, in queue order."""
    work, steps = CycleWork(LIMITS, second, 1), 0
    found = set()
    for gang, cost in costs.items():
        work.consider("q", gang, 0.0, steps)
        if work.effort is FULL:
            found.add(gang)
            steps += cost
    return found


@pytest.mark.parametrize("gangs", [2, 5, 60])
@pytest.mark.parametrize("cost", [1000, 100_000])
def test_each_gang_is_searched_for_behind_those_that_are_refused_again_in_each_cycle(
    gangs: int, cost: int
) -> None:
    costs = {f"gang-{n}": cost for n in range(gangs)}
    found = [searched(costs, second) for second in range(1500)]
    assert all(len(one) <= 2 for one in found), "at most as much work again"
    times = Counter(gang for one in found for gang in one)
    assert times["gang-0"] == 1500
    assert all(times[gang] >= 3 for gang in costs)


def test_each_running_gang_that_lost_nodes_is_searched_for_and_all_count_for_the_whole_limit_at_most() -> (
    None
):
    work, steps = CycleWork(LIMITS, 0, 1), 0
    for _ in range(8):
        work.repair(0.0, steps)
        assert work.effort is FULL
        assert not work.ends(0.0, steps + 7_999)
        steps += 8_000
    work.repair(0.0, steps)
    assert work.effort is SHORT
    work.consider("q", "a gang", 0.0, steps + 1000)
    assert work.worked == 1.0


def test_a_question_of_an_administrator_is_searched_for_after_the_limit() -> None:
    efforts = Counter[Effort]()
    for second in range(400):
        work = CycleWork(LIMITS, second, 40)
        work.consider("q", "a gang", 0.0, 0)
        work.finish(0.0, 5000, fully=False)
        efforts[work.effort] += 1
        work.finish(0.0, 5000, fully=True)
        assert work.effort is FULL
    assert 3 <= efforts[FULL] <= 25, "it has search seconds like a ClusterQueue"
    assert efforts[NONE] == 400 - efforts[FULL]
