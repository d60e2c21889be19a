"""The rule of `make soak` that finds figures that grow."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from tests.chaos.flat import FEWEST, Sample, rests, verdict, verdicts

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


@pytest.mark.parametrize(("last", "flat"), [(5.0, True), (7.0, False)])
def test_at_rest_a_figure_has_the_least_value_of_its_life_again(last: float, flat: bool) -> None:
    values = [1.0, 10.0, 100.0, 200.0, 100.0, *[last] * 5]
    samples = [Sample(float(at), "a", {"pods": value}) for at, value in enumerate(values)]
    [found] = rests(samples, {"pods": 5.0})
    assert found.flat is flat, found


def test_at_rest_only_the_figures_of_a_leader_count_for_it() -> None:
    """A process can become a leader later, and only a leader has the figures of the ledger."""
    samples = [Sample(float(at), "a", {"pods": 0.0}) for at in range(9)]
    samples += [Sample(float(at), "a", {"pods": 0.0, "gangs": 8.0}) for at in range(9, 15)]
    assert [one.flat for one in rests(samples, {"pods": 5.0, "gangs": 5.0})] == [True, True]
