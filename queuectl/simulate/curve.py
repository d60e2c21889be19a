"""GPU utilization of a job over its work: steps, each from a number of seconds of work on."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from math import inf


@dataclass(frozen=True, slots=True)
class Curve:
    """``steps``: (seconds of work, utilization from 0 to 1), in ascending order; the first one is at 0."""

    steps: tuple[tuple[float, float], ...]

    def at(self, work: float) -> float:
        """The utilization after so many seconds of work."""
        return self.steps[max(bisect_right(self.steps, (work, inf)) - 1, 0)][1]

    def next_change(self, work: float) -> float | None:
        """The next step after so many seconds of work; None = there is none."""
        place = bisect_right(self.steps, (work, inf))
        return self.steps[place][0] if place < len(self.steps) else None

    def next_at_most(self, work: float, share: float) -> float | None:
        """The seconds of work from which the utilization is at most this, ``work`` at the earliest; None = never."""
        if self.at(work) <= share:
            return work
        place = bisect_right(self.steps, (work, inf))
        return next((at for at, use in self.steps[place:] if use <= share), None)

    def pieces(self, begin: float, end: float) -> list[tuple[float, float]]:
        """(seconds, utilization) of each step between two amounts of work."""
        edges = [begin, *(at for at, _ in self.steps if begin < at < end), end]
        return [(b - a, self.at(a)) for a, b in pairwise(edges) if b > a]

    def mean(self, begin: float, end: float) -> float:
        """The average between two amounts of work."""
        if end <= begin:
            return self.at(begin)
        return sum(seconds * use for seconds, use in self.pieces(begin, end)) / (end - begin)

    def busy(self, begin: float, end: float) -> float:
        """The utilization that is not exceeded for nine tenths of this work."""
        left = 0.9 * (end - begin)
        for seconds, use in sorted(self.pieces(begin, end), key=lambda piece: piece[1]):
            left -= seconds
            if left <= 1e-9:
                return use
        return self.at(begin)


def constant(share: float) -> Curve:
    """The same utilization from the begin to the end."""
    return Curve(((0.0, share),))
