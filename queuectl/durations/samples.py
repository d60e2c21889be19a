"""The last run times of one group of gangs, and their quantiles."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from math import ceil
from typing import Final

KEPT: Final = 200  # run times that a group keeps


@dataclass(frozen=True, slots=True)
class Sample:
    """Run times in seconds. It is never changed in place, because estimates are made in other threads.

    Attributes:
        recent: in the order in which they ended.
        ordered: the same, shortest first.
    """

    recent: tuple[float, ...] = ()
    ordered: tuple[float, ...] = ()

    def with_run(self, seconds: float, kept: int = KEPT) -> Sample:
        """The sample with one more run time; if it has ``kept`` already, without the oldest."""
        recent, ordered = self.recent, self.ordered
        if len(recent) >= kept:
            oldest = bisect_left(ordered, recent[0])
            recent, ordered = recent[1:], ordered[:oldest] + ordered[oldest + 1 :]
        place = bisect_left(ordered, seconds)
        return Sample((*recent, seconds), (*ordered[:place], seconds, *ordered[place:]))

    def quantile(self, part: float, elapsed: float = 0.0) -> float | None:
        """Seconds after which a gang has ended with at least this probability, if it has run for ``elapsed`` seconds.

        Of n run times that are longer than ``elapsed``, it is the k-th with k = ceil(part · (n + 1)). If the run times are
        exchangeable, the next one is at most as long with a probability of at least ``part``, for each n. None: too few are known.
        """
        first = bisect_right(self.ordered, elapsed)
        number = len(self.ordered) - first
        rank = ceil(round(part * (number + 1), 9))
        return self.ordered[first + rank - 1] if 0 < rank <= number else None

    def longer(self, elapsed: float) -> tuple[float, ...]:
        """The run times longer than ``elapsed``, shortest first."""
        return self.ordered[bisect_right(self.ordered, elapsed) :]
