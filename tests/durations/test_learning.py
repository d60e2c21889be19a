"""Run times that are learned from finished gangs: name patterns, groups, quantiles, and what a gang is expected to run."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.estimates import RunTimeSource
from queuectl.domain.past_jobs import FinishedRun, GangProfile
from queuectl.domain.workload import Duration
from queuectl.durations.expectations import (
    ENOUGH,
    MOST_RUN_TIMES,
    Expectation,
    RunTimeEstimator,
    RunTimeSample,
    Stated,
    doubled,
    groups,
    learn,
    name_pattern,
    planned,
)

WORK = GangProfile("cq", "team", "q", "ann", "train-7", 2, 16)


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("train", "train"),
        ("train-7", "train"),
        ("train-resnet50-20261123-x7k2p", "train-resnet"),
        ("train-resnet18-20261124-9zqvw", "train-resnet"),
        ("eval.v2_final", "eval-v-final"),
        ("job-1b4e28ba-2fa1-11d2-883f-0016d3cca427", "job"),
        ("sweep-3fa9c1d2e", "sweep"),
        ("sweep-deadbeef", "sweep-deadbeef"),  # a word without a digit
        ("data-prepare", "data-prepare"),
        ("bcdfg", "bcdfg"),  # a whole name is not a suffix
        ("20261123", ""),
    ],
)
def test_a_name_pattern_leaves_numbers_and_generated_parts_out(name: str, pattern: str) -> None:
    assert name_pattern(name) == pattern


def test_groups_go_from_the_same_user_name_and_shape_to_all_gangs() -> None:
    found = groups(WORK)
    assert len(found) == 12
    assert found[0] == (("user and name", "team", "q", "ann", "train"), (2, 16))
    assert found[-1] == (("all",), None)


def test_groups_of_what_is_not_known_are_left_out() -> None:
    assert groups(GangProfile()) == ((("all",), None),)
    assert groups(GangProfile("cq", pods=1)) == (
        *(((("ClusterQueue", "cq"), shape)) for shape in ((1, 0), None)),
        *(((("all",), shape)) for shape in ((1, 0), None)),
    )


@pytest.mark.parametrize(
    ("runs", "part", "elapsed", "seconds"),
    [
        ([10, 20, 30], 0.5, 0, 20),
        ([10, 20, 30, 40], 0.8, 0, 40),
        (
            [10, 20, 30],
            0.8,
            0,
            None,
        ),  # three runs cannot state it: the fourth is longer in a quarter of all cases
        ([10, 20, 30], 0.5, 10, 30),  # of those longer than 10 s
        ([10, 20, 30], 0.5, 30, None),
        ([], 0.5, 0, None),
    ],
)
def test_a_quantile_is_that_of_the_runs_that_are_longer_than_the_elapsed_time(
    runs: list[float], part: float, elapsed: float, seconds: float | None
) -> None:
    sample = RunTimeSample()
    for run in runs:
        sample = sample.with_run(run)
    assert sample.quantile(part, elapsed) == seconds


seconds = st.floats(0, 1e6, allow_nan=False)
parts = st.floats(0.5, 0.99)


@given(st.lists(seconds, max_size=30), st.integers(1, 10))
def test_a_sample_keeps_the_last_runs_in_order(runs: list[float], kept: int) -> None:
    sample = RunTimeSample()
    for run in runs:
        sample = sample.with_run(run, kept)
    assert list(sample.recent) == runs[-kept:]
    assert list(sample.ordered) == sorted(runs[-kept:])


@given(st.lists(seconds, min_size=1, max_size=40, unique=True), parts)
def test_of_n_and_one_runs_at_least_the_stated_part_is_within_the_quantile_of_the_others(
    runs: list[float], part: float
) -> None:
    """It is valid for each n, whichever of the runs is the new one."""
    within = 0
    for number, new in enumerate(runs):
        sample = RunTimeSample()
        for other in runs[:number] + runs[number + 1 :]:
            sample = sample.with_run(other)
        quantile = sample.quantile(part)
        within += quantile is None or new <= quantile
    assert within >= ceil(round(part * len(runs), 9))


@pytest.mark.parametrize(
    ("runs", "longest"),
    [
        ([], None),
        ([(WORK, 50.0)] * (ENOUGH - 1), None),  # no group has enough runs
        ([(WORK, 50.0), *[(WORK, 10.0)] * (ENOUGH - 1)], 50.0),
        # The most specific group with enough runs: other gangs ran longer.
        ([(GangProfile(), 900.0), *[(WORK, 10.0)] * ENOUGH], 10.0),
        # The group of the gang has too few runs; that of all gangs has enough.
        ([(WORK, 10.0), *[(GangProfile(), 900.0)] * ENOUGH], 900.0),
        # One of all that are kept.
        ([(WORK, 900.0), *[(WORK, 10.0)] * (MOST_RUN_TIMES - 1)], 900.0),
        ([(WORK, 900.0), *[(WORK, 10.0)] * MOST_RUN_TIMES], 10.0),
    ],
)
def test_the_longest_run_is_that_of_the_most_specific_group_with_enough_runs(
    runs: list[tuple[GangProfile, float]], longest: float | None
) -> None:
    assert learn(FinishedRun(*run) for run in runs).longest(WORK) == longest


@given(st.lists(seconds, max_size=40), parts)
def test_no_expected_run_time_is_longer_than_the_longest_run(
    runs: list[float], part: float
) -> None:
    estimator = learn(FinishedRun(WORK, run) for run in runs)
    longest, total = estimator.longest(WORK), estimator.total(WORK, part)
    assert longest == (max(runs) if len(runs) >= ENOUGH else None)
    if longest is not None and total is not None:
        assert total <= max(longest, 1.0)


@given(st.lists(seconds, max_size=40), parts, seconds)
def test_a_total_is_longer_than_the_elapsed_time_and_later_with_a_larger_part(
    runs: list[float], part: float, elapsed: float
) -> None:
    estimator = learn(FinishedRun(WORK, run) for run in runs)
    total = estimator.total(WORK, part, elapsed)
    assert (total is None) == (len(runs) < ENOUGH)
    if total is not None:
        assert total > elapsed
        middle = estimator.total(WORK, 0.5, elapsed)
        assert middle is not None
        assert middle <= total


def runs_of(work: GangProfile, *values: float) -> list[FinishedRun]:
    return [FinishedRun(work, value) for value in values]


OTHER_NAME = GangProfile("cq", "team", "q", "ann", "eval", 2, 16)
OTHER_USER = GangProfile("cq", "team", "q", "bob", "eval", 2, 16)
OTHER_SHAPE = GangProfile("cq", "team", "q", "ann", "train-8", 1, 8)
ELSEWHERE = GangProfile("other", "else", "q", "ann", "train-8", 2, 16)


@pytest.mark.parametrize(
    ("runs", "total"),
    [
        (runs_of(WORK, *[10] * 5) + runs_of(OTHER_SHAPE, *[20] * 9), 10),
        (runs_of(OTHER_SHAPE, *[20] * 5) + runs_of(OTHER_NAME, *[30] * 9), 20),
        (runs_of(OTHER_NAME, *[30] * 5) + runs_of(OTHER_USER, *[40] * 9), 30),
        (runs_of(OTHER_USER, *[40] * 5) + runs_of(ELSEWHERE, *[50] * 9), 40),
        (runs_of(ELSEWHERE, *[50] * 5), 50),
        (runs_of(WORK, *[10] * 4) + runs_of(OTHER_SHAPE, 20), 10),  # the groups are nested
        (runs_of(WORK, *[10] * 4), None),
    ],
)
def test_the_most_specific_group_with_enough_runs_decides(
    runs: list[FinishedRun], total: float | None
) -> None:
    assert learn(runs).total(WORK, 0.5) == total


def test_a_gang_that_runs_longer_than_its_group_is_expected_to_run_as_long_as_the_others_did() -> (
    None
):
    runs = runs_of(WORK, *[10] * 5) + runs_of(OTHER_USER, *[500] * 5)
    assert learn(runs).total(WORK, 0.5, 100.0) == 500
    assert learn(runs).total(WORK, 0.5, 600.0) == 640, "the longest of its group, doubled"


def test_memory_is_bounded_and_the_group_without_a_new_run_for_the_longest_time_is_dropped() -> (
    None
):
    estimator = RunTimeEstimator(most_groups=30)
    for number in range(100):
        estimator.add(FinishedRun(GangProfile("cq", "team", f"q-{number}", "", "", 1, 1), 5.0))
        assert len(estimator) <= 30
    newest, oldest = (GangProfile("", "team", f"q-{n}", "", "", 1, 1) for n in (99, 0))
    assert groups(newest)[0] in estimator
    assert groups(oldest)[0] not in estimator


@given(st.lists(st.tuples(st.sampled_from([WORK, OTHER_NAME, ELSEWHERE]), seconds), max_size=60))
def test_the_same_runs_give_the_same_estimates(runs: list[tuple[GangProfile, float]]) -> None:
    first, second = (learn(FinishedRun(work, value) for work, value in runs) for _ in range(2))
    for work in (WORK, OTHER_NAME, OTHER_USER):
        assert first.total(work, 0.8, 10.0) == second.total(work, 0.8, 10.0)


HISTORY = learn(runs_of(WORK, 100, 200, 300, 400, 500, 600, 700, 800, 900))
NOTHING = RunTimeEstimator()


@pytest.mark.parametrize(
    ("stated", "elapsed", "history", "seconds", "source"),
    [
        (Stated(), 0, NOTHING, None, None),
        (Stated(), 0, HISTORY, 800, RunTimeSource.LEARNED),
        (Stated(), 850, HISTORY, 900, RunTimeSource.LEARNED),  # the longest of those that are known
        (Stated(), 950, HISTORY, 1800, RunTimeSource.LEARNED),  # longer than all of them: doubled
        (Stated(limit=60), 0, HISTORY, 60, RunTimeSource.LIMIT),
        (Stated(limit=60, expected=30), 0, HISTORY, 60, RunTimeSource.LIMIT),
        (Stated(expected=30), 0, HISTORY, 30, RunTimeSource.STATED),
        (Stated(expected=30), 29, HISTORY, 30, RunTimeSource.STATED),
        (Stated(expected=30), 30, HISTORY, 800, RunTimeSource.LEARNED),  # an overrun
        (Stated(expected=30), 30, NOTHING, 60, RunTimeSource.STATED),
        (Stated(expected=30), 130, NOTHING, 240, RunTimeSource.STATED),
    ],
)
def test_planning_assumes_the_limit_then_the_expectation_then_what_is_learned(
    stated: Stated,
    elapsed: float,
    history: RunTimeEstimator,
    seconds: float | None,
    source: RunTimeSource | None,
) -> None:
    found = planned(WORK, stated, elapsed, 0.8, history)
    assert (found and found.seconds, found and found.source) == (seconds, source)


def test_an_attempt_runs_for_the_rest_and_only_a_limit_ends_it() -> None:
    assert Expectation(60.0, RunTimeSource.LIMIT, 60.0).attempt(20.0) == Duration(
        40.0, enforced=True
    )
    learned = Expectation(60.0, RunTimeSource.LEARNED, 60.0, 100.0)
    assert learned.attempt(70.0) == Duration(0.0, longest=30.0)


@given(
    st.lists(seconds, min_size=ENOUGH, max_size=30),
    st.none() | st.floats(1, 1e6),
    seconds,
)
def test_an_expectation_is_in_the_future_and_holds_until_it_is_due(
    runs: list[float], expected: float | None, elapsed: float
) -> None:
    history, stated = learn(FinishedRun(WORK, run) for run in runs), Stated(expected=expected)
    found = planned(WORK, stated, elapsed, 0.8, history)
    assert found is not None
    assert elapsed < found.until <= found.seconds
    between = elapsed + (found.until - elapsed) * 0.4
    again = planned(WORK, stated, between, 0.8, history)
    assert again is not None
    assert again.seconds >= found.seconds


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_doubling_ends_beyond_the_elapsed_time_and_at_most_at_its_double(
    start: float, elapsed: float
) -> None:
    assert elapsed < doubled(start, elapsed) <= max(2 * elapsed, start, 1.0)
