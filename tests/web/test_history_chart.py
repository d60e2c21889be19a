"""The chart of the last hours: its lines are the averages, its axes are round numbers, and hours that are not known are absent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from queuectl.domain.accounting import HOUR
from queuectl.domain.usage_reports import HistoryPoint, QueueHour, UsageHours, points
from queuectl.web.history import chart_of

DAY = 1_795_000_000 // 86400 * 86400


def point(hour: int, allocated: float, pending: float = 0.0, capacity: float | None = None):
    since = float(DAY + hour * HOUR)
    return HistoryPoint(since, since + HOUR, allocated, allocated / 2, 0.0, pending, capacity)


def row(hour: int, gpus: float, queue: str = "main") -> QueueHour:
    seconds = gpus * HOUR
    return QueueHour(DAY + hour * HOUR, "team", queue, "pool", seconds, seconds, 0.0, 2 * seconds)


def test_a_line_is_horizontal_within_an_hour_and_vertical_between_two():
    chart = chart_of([point(0, 50), point(1, 100)])
    assert chart is not None
    allocated, used = chart.panels[0].lines
    assert allocated.path == "M0 50 L0 50 L50 50 L50 0 L100 0"
    assert used.path == "M0 75 L0 75 L50 75 L50 50 L100 50"
    assert (allocated.last, allocated.least, allocated.most) == (100, 50, 100)


def test_pending_gangs_have_their_own_scale():
    chart = chart_of([point(0, 100, pending=40_000)])
    assert chart is not None
    held, pending = chart.panels
    assert max(tick.quantity for tick in held.amounts) == 100
    assert max(tick.quantity for tick in pending.amounts) == 50_000
    assert [line.style for line in chart.lines] == ["allocated", "used", "pending"]


def test_the_capacity_is_drawn_where_it_is_known():
    chart = chart_of([point(0, 10), point(1, 10, capacity=64.0)])
    assert chart is not None
    assert chart.lines[0].style == "capacity"
    assert (chart.lines[0].least, chart.lines[0].last) == (0, 64)


@pytest.mark.parametrize(
    ("most", "ticks"),
    [(0, [1]), (1, [1]), (7, [2.5, 5, 7.5]), (100, [50, 100]), (512, [200, 400, 600]),
     (5_000_000, [2_000_000, 4_000_000, 6_000_000])],
)  # fmt: skip
def test_the_ticks_are_round_and_the_last_is_above_the_lines(most: float, ticks: list[float]):
    chart = chart_of([point(0, most)])
    assert chart is not None
    assert [tick.quantity for tick in chart.panels[0].amounts] == ticks
    assert chart.panels[0].amounts[-1].at == 0


def test_the_time_axis_has_a_tick_every_six_hours():
    chart = chart_of([point(hour, 1) for hour in range(1, 26)])
    assert chart is not None
    assert [(tick.quantity - DAY) / HOUR for tick in chart.times] == [6, 12, 18, 24]


def test_an_hour_that_is_not_over_is_marked():
    whole = chart_of([point(0, 10), point(1, 10)])
    part = chart_of([point(0, 10), replace(point(1, 10), until=DAY + 1.5 * HOUR)])
    assert whole is not None
    assert part is not None
    assert (whole.unfinished, part.unfinished) == (None, 66.67)


def test_without_hours_no_chart_is_drawn():
    assert chart_of([]) is None


def test_an_hour_that_is_not_over_is_averaged_over_the_part_that_is_known():
    known = UsageHours(DAY + 1.5 * HOUR, (row(0, 8), row(1, 4)), {DAY + HOUR: 16.0 * HOUR})
    first, second = points(known, range(DAY, DAY + 3 * HOUR, HOUR), lambda _: True, capacity=True)
    assert (first.allocated, first.pending) == (8, 16)
    assert second.until == DAY + 1.5 * HOUR
    assert second.allocated == 8, "4 GPU-hours in half an hour"
    assert second.capacity == 32


def test_an_hour_without_gangs_is_zero_and_other_queues_do_not_count():
    capacity = {DAY: 64.0 * HOUR}
    known = UsageHours(DAY + 2.0 * HOUR, (row(0, 8), row(0, 2, "other")), capacity)
    first, second = points(
        known, range(DAY, DAY + 2 * HOUR, HOUR), lambda one: one.queue == "other", capacity=True
    )
    assert (first.allocated, second.allocated) == (2, 0)
    assert (first.capacity, second.capacity) == (64, None)


def test_nothing_is_known_before_the_first_hour_is_accounted_for():
    assert points(UsageHours(None), [DAY], lambda _: True, capacity=False) == ()
