"""The possible run times of a gang: quantiles of the rest, from statements, finished gangs like it, and limits."""

from __future__ import annotations

from math import inf
from random import Random

import pytest

from queuectl.domain.past_jobs import FinishedRun, GangProfile
from queuectl.durations.expectations import (
    ENOUGH,
    TOGETHER_SECONDS,
    Group,
    RunTimes,
    Stated,
    learn,
    possible_runs,
)

ANN = GangProfile("cq", "team", "q", "ann", "train", 1, 8)
BOB = GangProfile("cq", "team", "q", "bob", "other", 1, 8)
TENS = (10.0, 20.0, 30.0, 40.0)
OF_ANN = ("cq", "ann", 0)


@pytest.mark.parametrize(
    ("runs", "part", "left"),
    [
        (RunTimes(TENS), 0.0, 0.0),
        (RunTimes(TENS), 0.2, 10.0),
        (RunTimes(TENS), 0.5, 25.0),
        (RunTimes(TENS), 0.8, 40.0),
        (RunTimes(TENS), 0.9, 60.0),  # the last interval is taken up to twice its begin
        (RunTimes((30.0, 40.0), elapsed=20.0), 0.0, 0.0),
        (RunTimes((30.0, 40.0), elapsed=20.0), 0.5, 15.0),
        (RunTimes(TENS, limit=35.0), 0.9, 35.0),
        (RunTimes((50.0,), elapsed=20.0, certain=True), 0.9, 30.0),
    ],
)
def test_a_quantile_of_the_rest_is_between_known_run_times(
    runs: RunTimes, part: float, left: float
) -> None:
    assert runs.left(part) == pytest.approx(left)


@pytest.mark.parametrize(
    ("stated", "elapsed", "found"),
    [
        (Stated(expected=100.0), 50.0, RunTimes((100.0,), 50.0, inf, certain=True)),
        (Stated(limit=80.0, expected=100.0), 50.0, RunTimes((100.0,), 50.0, 80.0, certain=True)),
        (Stated(expected=100.0), 150.0, RunTimes((200.0,), 150.0, group=OF_ANN)),
        (Stated(limit=80.0), 50.0, RunTimes((80.0,), 50.0, 80.0, certain=True)),
        (Stated(), 50.0, None),
    ],
)
def test_without_finished_gangs_the_statements_count(
    stated: Stated, elapsed: float, found: RunTimes | None
) -> None:
    assert possible_runs(ANN, stated, elapsed, learn(())) == found


def test_finished_gangs_like_it_count_as_far_as_they_ran_longer() -> None:
    past = [FinishedRun(ANN, 10.0 * n) for n in range(1, 11)] + [FinishedRun(BOB, 1000.0)] * ENOUGH
    known = learn(past)
    assert possible_runs(ANN, Stated(), 0.0, known) == RunTimes(
        tuple(10.0 * n for n in range(1, 11)), group=OF_ANN
    )
    found = possible_runs(ANN, Stated(limit=95.0), 50.0, known)
    assert found == RunTimes((60.0, 70.0, 80.0, 90.0, 100.0), 50.0, 95.0, group=OF_ANN)
    rare = possible_runs(ANN, Stated(), 85.0, known)
    assert rare is not None
    assert rare.longer[-1] == 1000.0, (
        "too few of its own ran as long: the other gangs of the queue count too"
    )
    assert possible_runs(ANN, Stated(), 1500.0, known) == RunTimes((1600.0,), 1500.0, group=OF_ANN)


def test_the_rest_of_a_run_is_at_most_its_quantile_with_the_probability_of_the_quantile() -> None:
    """The next run time of an exchangeable series, for several numbers of known run times and elapsed times."""
    random = Random(4)
    for number, elapsed in ((9, 0.0), (30, 0.0), (60, 100.0)):
        hits = trials = 0
        while trials < 3000:
            runs = [random.expovariate(1 / 300) for _ in range(number + 1)]
            known = tuple(sorted(run for run in runs[1:] if run > elapsed))
            if runs[0] <= elapsed or not known:
                continue
            trials += 1
            hits += runs[0] - elapsed <= RunTimes(known, elapsed).left(0.8)
        assert hits / trials == pytest.approx(0.8, abs=0.03)


def test_gangs_of_one_queue_and_user_that_were_submitted_at_one_time_are_a_group() -> None:
    known = learn([FinishedRun(ANN, 10.0 * n) for n in range(1, 11)])

    def group(work: GangProfile, submitted: float) -> Group:
        found = possible_runs(work, Stated(), 0.0, known, submitted)
        assert found is not None
        return found.group

    assert group(ANN, 0.0) == group(ANN, TOGETHER_SECONDS - 1.0)
    assert len({group(ANN, 0.0), group(BOB, 0.0), group(ANN, TOGETHER_SECONDS)}) == 3
