"""The GPU utilization of one workload over time, in a bounded number of points.

The curve begins at the first start and has at most :data:`MOST_POINTS` points. When time exceeds the last one, each two neighbors become one
point of twice the length. So a run of minutes has points of one minute, a run of weeks has points of hours, and a workload with
a thousand attempts needs no more room than one with one attempt. Amounts are sums, so joining points loses no amount.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Final, NamedTuple, Self

MOST_POINTS: Final = 96
FIRST_SPACING: Final = 60.0
"""Seconds: the leader accounts once a minute."""
_CODE: Final = "f"
_SERIES: Final = 3
_LONGEST: Final = 2.0**40  # seconds; times beyond it count in the last point


class UseSpan(NamedTuple):
    """Time in which a workload held GPUs.

    Attributes:
        start, end: unix seconds. ``end`` is before ``start`` for a span that was accounted for wrongly and is taken back.
        gpus: that it held.
        used: share of them that was used, 0 to 1; None = not measured.
    """

    start: float
    end: float
    gpus: float
    used: float | None


class CurvePoint(NamedTuple):
    """The mean of a part of the time.

    Attributes:
        start, end: unix seconds.
        held: GPUs, on average; 0 while the workload waited.
        utilization: of the measured GPU time, 0 to 1; None = nothing was measured.
        measured: share of the held GPU time that was measured, 0 to 1.
    """

    start: float
    end: float
    held: float
    utilization: float | None
    measured: float


class UseCurve:
    """Sums of GPU-seconds by point: held, measured and used."""

    def __init__(self, begins: float, spacing: float = FIRST_SPACING) -> None:
        """``begins``: unix seconds. ``spacing``: seconds of one point."""
        self.begins = begins
        self.spacing = spacing
        self._series = tuple(array(_CODE) for _ in range(_SERIES))

    @classmethod
    def stored(cls, begins: float, spacing: float, content: bytes) -> Self:
        """The curve that was stored as :attr:`content`."""
        curve = cls(begins, spacing)
        size = len(content) // _SERIES
        for number, series in enumerate(curve._series):
            series.frombytes(content[number * size : (number + 1) * size])
        return curve

    @property
    def content(self) -> bytes:
        """The sums, for the database."""
        return b"".join(series.tobytes() for series in self._series)

    @property
    def size(self) -> int:
        """The number of points."""
        return len(self._series[0])

    def add(self, spans: Iterable[UseSpan]) -> None:
        """Add the use of some spans of time. Time before the beginning counts in the first point."""
        for span in spans:
            sign = 1.0 if span.start <= span.end else -1.0
            self._add(
                min(span.start, span.end), max(span.start, span.end), sign * span.gpus, span.used
            )

    def _add(self, low: float, high: float, gpus: float, used: float | None) -> None:
        low = max(low - self.begins, 0.0)
        high = min(max(high - self.begins, 0.0), _LONGEST)
        while high > MOST_POINTS * self.spacing:
            self._join()
        at = low
        while at < high:
            number = min(int(at // self.spacing), MOST_POINTS - 1)
            until = min(high, (number + 1) * self.spacing)
            if until <= at:
                break
            self._count(number, (until - at) * gpus, used)
            at = until

    def _count(self, number: int, amount: float, used: float | None) -> None:
        held, measured, busy = self._series
        missing = number + 1 - len(held)
        if missing > 0:
            for series in self._series:
                series.extend([0.0] * missing)
        held[number] += amount
        if used is not None:
            measured[number] += amount
            busy[number] += amount * used

    def _join(self) -> None:
        self.spacing *= 2
        for series in self._series:
            pairs = [sum(series[at : at + 2]) for at in range(0, len(series), 2)]
            series[:] = array(_CODE, pairs)

    def points(self) -> tuple[CurvePoint, ...]:
        """The points, oldest first. Rounding of sums that were taken back leaves no amount."""
        return tuple(
            self._point(number, *sums)
            for number, sums in enumerate(zip(*self._series, strict=True))
        )

    def _point(self, number: int, held: float, measured: float, used: float) -> CurvePoint:
        start = self.begins + number * self.spacing
        least = self.spacing / 1000  # a thousandth of a GPU
        known = measured > least
        return CurvePoint(
            start,
            start + self.spacing,
            held / self.spacing if held > least else 0.0,
            min(max(used / measured, 0.0), 1.0) if known else None,
            min(measured / held, 1.0) if known and held > least else 0.0,
        )
