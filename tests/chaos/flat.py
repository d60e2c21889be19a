"""Samples of figures that must not grow while the load stays the same, and the rule that finds those that do."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

GROWTH: Final = 1.1
"""A flat figure ends at most this factor, and a constant, above its value at a quarter of the time."""
SLOPE: Final = 0.05
"""Its growth in the second half is at most this share of that value, and half of the constant."""
FEWEST: Final = 20
"""Samples that a verdict needs."""
LAST: Final = 5
"""Samples at rest that are compared."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Figures at one time.

    Attributes:
        at: seconds since the begin.
        life: the process, which another one replaces after a fault.
        figures: by name.
    """

    at: float
    life: str
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One figure of one process.

    Attributes:
        quarter: the value at a quarter of the time; at rest, the least value.
        last: the value at the end.
        most: the largest value.
        growth: by which it grew in the second half: the median slope of all pairs of samples.
        slack: the constant by which it can grow.
    """

    life: str
    figure: str
    samples: int
    quarter: float
    last: float
    most: float
    growth: float
    slack: float

    @property
    def flat(self) -> bool:
        return (
            self.last <= GROWTH * self.quarter + self.slack
            and self.growth <= SLOPE * self.quarter + self.slack / 2
        )

    def row(self) -> tuple[str, ...]:
        figures = (self.quarter, self.last, self.most, self.growth)
        texts = (f"{figure:.1f}" for figure in figures)
        return (
            self.life,
            self.figure,
            str(self.samples),
            *texts,
            "flat" if self.flat else "GROWS",
        )


def verdict(life: str, figure: str, series: Sequence[tuple[float, float]], slack: float) -> Verdict:
    """Judge a series of times and values, in the order of time. It has at least :data:`FEWEST`."""
    values = [value for _, value in series]
    count = len(values)
    second = series[count // 2 :]
    slopes = [
        (later - earlier) / (until - since)
        for (since, earlier), (until, later) in combinations(second, 2)
        if until > since
    ]
    return Verdict(
        life,
        figure,
        count,
        quarter=statistics.median(values[count // 5 : count * 3 // 10]),
        last=statistics.median(values[-max(2, count // 10) :]),
        most=max(values),
        growth=statistics.median(slopes) * (second[-1][0] - second[0][0]),
        slack=slack,
    )


def verdicts(samples: Sequence[Sample], slacks: Mapping[str, float]) -> list[Verdict]:
    """A verdict for each figure of each process that was there at the end, with enough samples.

    Args:
        samples: in the order of time.
        slacks: by figure. Figures without one are not judged.
    """
    return [
        verdict(life, figure, series, slacks[figure])
        for life, figure, series in _at_end(samples, slacks)
        if len(series) >= FEWEST
    ]


def rests(samples: Sequence[Sample], slacks: Mapping[str, float]) -> list[Verdict]:
    """A verdict for each process that is there at the end, when no load is left: the last values against the least of its life.

    Args:
        samples: in the order of time, to the end of the rest.
        slacks: by figure, of those that are near 0 without load. Figures without one are not judged.
    """
    found = []
    for life, figure, series in _at_end(samples, slacks):
        values = [value for _, value in series]
        if len(values) >= LAST:
            last, least, most = statistics.median(values[-LAST:]), min(values), max(values)
            title, slack = f"{figure}, at rest", slacks[figure]
            found.append(Verdict(life, title, len(values), least, last, most, 0.0, slack))
    return found


def _at_end(
    samples: Sequence[Sample], figures: Iterable[str]
) -> Iterator[tuple[str, str, list[tuple[float, float]]]]:
    """Times and values of these figures of each process that was there at the end, with its name."""
    at_end = samples[-1].at
    for life in dict.fromkeys(sample.life for sample in samples):
        own = [sample for sample in samples if sample.life == life]
        if own[-1].at < 0.95 * at_end:
            continue
        for figure in figures:
            # Only a leader has some of them, and a process can become one later.
            yield (
                life,
                figure,
                [(one.at, one.figures[figure]) for one in own if figure in one.figures],
            )
