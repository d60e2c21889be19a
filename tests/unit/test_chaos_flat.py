"""The rule of `make soak` that finds figures that grow."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from tests.chaos.flat import FEWEST, START, Sample, rests, verdict, verdicts

Series = Callable[[float], float]


@pytest.mark.parametrize(
    ("series", "flat"),
    [
        (lambda t: 100.0, True),
        (lambda t: 100.0 + 5 * math.sin(t), True),  # the load varies
        (lambda t: 100.0 * min(1.0, t / 20), True),  # a start
        (lambda t: 300.0 if 40 < t < 50 else 100.0, True),  # a fault in between
        (lambda t: 200.0 - t, True),
        (lambda t: 100.0 + t / 2, False),  # by half in the time of the run
        (lambda t: 100.0 + t / 5 + 10 * math.sin(t), False),  # less, under noise
        (lambda t: 100.0 if t < 90 else 200.0, False),  # a step that stays
    ],
)
def test_a_figure_is_flat_unless_it_grows(series: Series, flat: bool) -> None:
    found = verdict("a", "memory", [(t, series(t)) for t in range(100)], slack=4.0)
    assert found.flat is flat, found


def test_a_constant_absorbs_small_figures() -> None:
    few = [(t, 2.0 + t // 50) for t in range(100)]
    assert verdict("a", "files", few, slack=5.0).flat
    assert not verdict("a", "files", few, slack=0.0).flat


def test_processes_that_ended_or_began_late_have_no_verdict() -> None:
    def of(life: str, times: range, **figures: float) -> list[Sample]:
        return [Sample(float(t), life, figures) for t in times]

    samples = [
        *of("killed", range(50), memory=1.0),
        *of("there", range(100), memory=2.0, rows=3.0),
        *of("new", range(100 - FEWEST + 1, 100), memory=1.0),
    ]
    found = verdicts(sorted(samples, key=lambda one: one.at), {"memory": 1.0})
    assert [(one.life, one.figure) for one in found] == [("there", "memory")]


@pytest.mark.parametrize(("last", "flat"), [(12.0, True), (40.0, False)])
def test_at_rest_a_figure_has_the_least_value_of_its_life_again(last: float, flat: bool) -> None:
    values = [1.0, 10.0, 100.0, 200.0, 100.0, *[last] * 5]
    samples = [Sample(START * at, "a", {"tasks": value}) for at, value in enumerate(values)]
    [found] = rests(samples, {"tasks": 5.0})
    assert found.flat is flat, found


def test_at_rest_a_leader_is_compared_with_the_time_since_it_leads() -> None:
    """A standby has fewer tasks, and not the figures of the ledger. A new leader starts its tasks one after the other."""
    samples = [Sample(0.0, "a", {"tasks": 10.0})]
    samples += [
        Sample(START * at, "a", {"tasks": 20.0 if at == 1 else 50.0, "gangs": 0.0})
        for at in range(1, 9)
    ]
    [found] = rests(samples, {"tasks": 5.0})
    assert (found.flat, found.quarter) == (True, 50.0)
    samples += [Sample(START * at, "a", {"tasks": 70.0, "gangs": 0.0}) for at in range(9, 15)]
    [found] = rests(samples, {"tasks": 5.0})
    assert not found.flat


@pytest.mark.parametrize(("pause", "least"), [(30.0, 50.0), (10.0, 20.0)])
def test_at_rest_the_minute_after_a_time_without_samples_does_not_count(
    pause: float, least: float
) -> None:
    """A leader that cannot reach the API server stops, and starts its tasks again when it leads again."""
    times = [10.0 * at for at in range(20)]
    times += [times[-1] + pause + 10.0 * at for at in range(20)]
    tasks = [50.0] * 20 + [20.0] * 4 + [50.0] * 16
    samples = [Sample(at, "a", {"tasks": one}) for at, one in zip(times, tasks, strict=True)]
    samples.append(Sample(times[-1], "Postgres", {"connections": 2.0}))
    [found] = rests(samples, {"tasks": 5.0})
    assert found.quarter == least
