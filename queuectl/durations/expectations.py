"""How long one gang runs: from its limit, from what its user expects, and from finished gangs like it.

An expectation that is over is estimated again from the time for which the gang has run. It never ends a gang.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, log
from typing import Final

from queuectl.domain.estimates import RunTimeSource
from queuectl.domain.runs import Work
from queuectl.domain.workload import Duration
from queuectl.durations.estimator import Estimator, doubled

MEDIAN: Final = 0.5
_FIRST_STEP: Final = 60.0
_STEP: Final = 1.5


@dataclass(frozen=True, slots=True)
class Stated:
    """The statements of job and ClusterQueue, in seconds over all attempts; None = nothing.

    Attributes:
        limit: the controller ends the gang then.
        expected: by the user.
    """

    limit: float | None = None
    expected: float | None = None


@dataclass(frozen=True, slots=True)
class Expectation:
    """The expected run time of a gang.

    Attributes:
        seconds: of all attempts together.
        source: of the seconds.
        until: seconds for which the gang has run when it is to be estimated again.
        longest: if it is learned, the longest run of earlier gangs like it, in seconds.
    """

    seconds: float
    source: RunTimeSource
    until: float
    longest: float | None = None

    def attempt(self, used: float) -> Duration:
        """An attempt that starts after earlier attempts of ``used`` seconds."""
        left = max(self.seconds - used, 0.0)
        longest = None if self.longest is None else max(self.longest - used, left)
        return Duration(left, self.source is RunTimeSource.LIMIT, longest)


def planned(
    work: Work, stated: Stated, elapsed: float, part: float, estimator: Estimator
) -> Expectation | None:
    """The run time that planning assumes: the limit, else the time that the gang does not exceed with probability ``part``.

    Args:
        work: the gang.
        stated: of its job and ClusterQueue.
        elapsed: seconds for which it has run, over all attempts.
        part: 0 to 1.
        estimator: of finished gangs.
    """
    if stated.limit is not None:
        return Expectation(stated.limit, RunTimeSource.LIMIT, stated.limit)
    return _soft(work, stated.expected, elapsed, part, estimator)


def typical(work: Work, stated: Stated, elapsed: float, estimator: Estimator) -> Expectation | None:
    """The run time for people: the expectation or the median, at most the limit; the limit if nothing else is known."""
    soft = _soft(work, stated.expected, elapsed, MEDIAN, estimator)
    if stated.limit is not None and (soft is None or soft.seconds > stated.limit):
        return Expectation(stated.limit, RunTimeSource.LIMIT, stated.limit)
    return soft


def _soft(
    work: Work, expected: float | None, elapsed: float, part: float, estimator: Estimator
) -> Expectation | None:
    """It is estimated again at steps of the elapsed time, so that it changes seldom, and when it is over."""
    if expected is not None and elapsed < expected:
        return Expectation(expected, RunTimeSource.STATED, expected)
    step, following = _steps(elapsed)
    seconds = estimator.total(work, part, step)
    if seconds is not None and seconds <= elapsed:
        seconds = estimator.total(work, part, elapsed)
    if seconds is not None:
        longest = estimator.longest(work)
        return Expectation(seconds, RunTimeSource.LEARNED, min(seconds, following), longest)
    if expected is not None:
        seconds = doubled(expected, elapsed)
        return Expectation(seconds, RunTimeSource.STATED, seconds)
    return None


def _steps(elapsed: float) -> tuple[float, float]:
    """The last step up to ``elapsed``, and the next one: 0, 60, 90, 135... seconds."""
    if elapsed < _FIRST_STEP:
        return 0.0, _FIRST_STEP
    number = floor(log(elapsed / _FIRST_STEP, _STEP))
    step = _FIRST_STEP * _STEP**number
    return min(step, elapsed), max(step * _STEP, elapsed + 1.0)
