"""Recent gangs of a user that ran longer or shorter than earlier ones change what is expected of the next gang."""

from __future__ import annotations

import pytest

from queuectl.domain.runs import Run, Work
from queuectl.durations.deviations import deviation, deviation_beyond, expected_deviation
from queuectl.durations.estimator import learn
from queuectl.durations.expected_deviations import RECENT_SECONDS, ExpectedDeviations

ANN = Work("cq", "team", "q", "ann", "train", 1, 8)
BOB = Work("cq", "team", "q", "bob", "other", 1, 8)
NOW = 1e9
BEFORE = [Run(ANN, 10.0 * n, NOW - 2 * RECENT_SECONDS) for n in range(1, 10)]


def test_the_deviation_of_the_median_is_0_and_longer_runs_deviate_more() -> None:
    known = tuple(10.0 * n for n in range(1, 10))
    found = [deviation(known, seconds) for seconds in (0.0, 45.0, 55.0, 95.0, 1e9)]
    assert found == sorted(found)
    assert found[1] == pytest.approx(-found[2])
    assert found[3] == found[4] == pytest.approx(-found[0])


def test_a_gang_that_still_runs_deviates_more_the_longer_it_has_run() -> None:
    known = tuple(10.0 * n for n in range(1, 10))
    assert deviation_beyond(known, 5.0) is None
    found = [deviation_beyond(known, elapsed) or 0.0 for elapsed in (15.0, 55.0, 95.0)]
    assert 0.0 < found[0] < found[1] < found[2]


@pytest.mark.parametrize(
    ("deviations", "expected"),
    [((), 0.0), ((1.5,), 0.5), ((1.0, 2.0), 0.75), ((1.5,) * 4, 1.0), ((1.5,) * 50, 1.0)],
)
def test_more_gangs_are_trusted_more_but_never_wholly(
    deviations: tuple[float, ...], expected: float
) -> None:
    assert expected_deviation(deviations) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("finished", "running", "sign"),
    [
        ([], [], 0),
        ([Run(ANN, 500.0, NOW - 60.0)], [], 1),
        ([Run(ANN, 1.0, NOW - 60.0)], [], -1),
        ([Run(ANN, 500.0, NOW - RECENT_SECONDS - 1.0)], [], 0),  # too long ago
        ([Run(ANN, 500.0)], [], 0),  # unknown time of submission
        ([Run(BOB, 500.0, NOW - 60.0)], [], 0),  # another user
        ([], [(ANN, NOW - 90.0, 85.0)], 1),
        ([], [(ANN, NOW - 90.0, 5.0)], 0),
        ([], [(ANN, NOW - RECENT_SECONDS - 1.0, 85.0)], 0),
        ([], [(BOB, NOW - 90.0, 85.0)], 0),
    ],
)
def test_finished_and_running_gangs_of_its_user_that_were_submitted_lately_count(
    finished: list[Run], running: list[tuple[Work, float, float]], sign: int
) -> None:
    found = ExpectedDeviations(learn(BEFORE + finished), NOW, running).expected(ANN)
    assert (found > 0) - (found < 0) == sign
