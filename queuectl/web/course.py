"""The course of usage in a period as bars of hours or days, drawn in a box of 100 by 100."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from queuectl.domain.accounting import HOUR, UNITS, Amounts
from queuectl.domain.usage_reports import ComparedReport, Period, UsagePoint
from queuectl.web.history import Tick, scale_of

_TICKS: Final = 3
_FILLED: Final = 0.86  # of the width of a bar; the rest is the gap to the next


def unused(amounts: Amounts) -> int:
    """Units with samples that busy gangs left unused: neither used, nor idle or stuck."""
    known = amounts.used + amounts.idle + amounts.stuck + amounts.unknown
    return max(0, amounts.allocated - known)


def parts_of(amounts: Amounts) -> tuple[tuple[str, int, str], ...]:
    """The parts of allocated units: style, units and words of each part, in the order of the bars."""
    return (
        ("active", amounts.used, "used"),
        ("free", unused(amounts), "allocated and unused"),
        ("idle", amounts.idle + amounts.stuck, "idle or stuck"),
        ("unknown", amounts.unknown, "without samples"),
    )


@dataclass(frozen=True, slots=True)
class CourseBar:
    """An hour or a day.

    Attributes:
        at: its start, in unix seconds.
        x, width: of its bar, in percent.
        parts: style, y and height of each part, in percent, y downwards.
        amounts: its sums.
        complete: whether all of it belongs to the period and is accounted for.
    """

    at: int
    x: float
    width: float
    parts: tuple[tuple[str, float, float], ...]
    amounts: Amounts
    complete: bool


@dataclass(frozen=True, slots=True)
class Course:
    """The parts that the template draws.

    Attributes:
        bars: by time; hours or days without usage have none.
        ticks: of the vertical axis, in GPU-hours.
        daily: bars are days, otherwise hours.
    """

    period: Period
    bars: tuple[CourseBar, ...]
    ticks: tuple[Tick, ...]
    daily: bool


def course_of(compared: ComparedReport) -> Course | None:
    """The bars of a report; None where nothing was allocated."""
    report = compared.report
    most = max((point.amounts.allocated for point in compared.course), default=0)
    if not most:
        return None
    highest, step = scale_of(most / (HOUR * UNITS), _TICKS)
    top = highest * HOUR * UNITS
    ticks = tuple(
        Tick(100 * (1 - n * step / highest), n * step) for n in range(1, round(highest / step) + 1)
    )
    as_of = report.as_of or 0.0
    bars = (
        _bar(point, report.period, compared.step, as_of, top)
        for point in compared.course
        if point.amounts.allocated
    )
    return Course(report.period, tuple(bars), ticks, compared.step > HOUR)


def _bar(point: UsagePoint, period: Period, step: int, as_of: float, top: float) -> CourseBar:
    until = point.at + step
    length = period.until - period.since
    begins, ends = max(point.at, period.since), min(until, period.until)
    return CourseBar(
        point.at,
        round(100 * (begins - period.since) / length, 3),
        round(100 * (ends - begins) / length * _FILLED, 3),
        tuple(_stacked(point.amounts, top)),
        point.amounts,
        begins == point.at and until <= min(period.until, as_of),
    )


def _stacked(amounts: Amounts, top: float) -> Iterator[tuple[str, float, float]]:
    y = 100.0
    for style, units, _ in parts_of(amounts):
        if units:
            height = 100 * units / top
            y -= height
            yield style, round(y, 3), round(height, 3)
