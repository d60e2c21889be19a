"""How long one gang runs: from its limit, from what its user expects, and from finished gangs like it; also as a distribution.

An expectation that is over is estimated again from the time for which the gang has run. It never ends a gang.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, inf, log
from typing import Final, TypeAlias

from queuectl.domain.estimates import RunTimeSource
from queuectl.domain.past_jobs import GangProfile
from queuectl.domain.workload import Duration
from queuectl.durations.estimator import RunTimeEstimator, doubled

# ---- Expected run times

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
    work: GangProfile, stated: Stated, elapsed: float, part: float, estimator: RunTimeEstimator
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


def typical(
    work: GangProfile, stated: Stated, elapsed: float, estimator: RunTimeEstimator
) -> Expectation | None:
    """The run time for people: the expectation or the median, at most the limit; the limit if nothing else is known."""
    soft = _soft(work, stated.expected, elapsed, MEDIAN, estimator)
    if stated.limit is not None and (soft is None or soft.seconds > stated.limit):
        return Expectation(stated.limit, RunTimeSource.LIMIT, stated.limit)
    return soft


def _soft(
    work: GangProfile,
    expected: float | None,
    elapsed: float,
    part: float,
    estimator: RunTimeEstimator,
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


# ---- Possible run times

Group: TypeAlias = tuple[str, str, int]
"""ClusterQueue, user, and number of the time window of the submission."""
TOGETHER_SECONDS: Final = 43_200
"""The time window. Later submissions of a user are often other work."""


@dataclass(frozen=True, slots=True)
class RunTimes:
    """The possible run times of a gang, all attempts together, in seconds.

    Attributes:
        longer: run times of finished gangs like it that ran longer than ``elapsed``, shortest first; never empty.
        elapsed: for which it has run.
        limit: at which the controller ends it; infinite = none.
        certain: ``longer`` has one value, which is the run time.
        group: ClusterQueue, user and time of submission. Run times of one group deviate from ``longer`` together.
    """

    longer: tuple[float, ...]
    elapsed: float = 0.0
    limit: float = inf
    certain: bool = False
    group: Group = ("", "", 0)

    def left(self, part: float) -> float:
        """Seconds that it still runs, at the quantile ``part`` (0 to 1).

        The n known run times divide time into n + 1 intervals. If the run times are exchangeable, the next one is in each of them with
        the same probability. The last interval has no end; it is taken up to twice its begin.
        """
        if self.certain:
            total = self.longer[0]
        else:
            place = part * (len(self.longer) + 1)
            after = min(int(place), len(self.longer))
            low = self.longer[after - 1] if after else self.elapsed
            high = self.longer[after] if after < len(self.longer) else 2.0 * low
            total = low + (high - low) * (place - after)
        return max(min(total, self.limit) - self.elapsed, 0.0)


def possible_runs(
    work: GangProfile,
    stated: Stated,
    elapsed: float,
    estimator: RunTimeEstimator,
    submitted: float = 0.0,
) -> RunTimes | None:
    """The possible run times of a gang that has run for ``elapsed`` seconds; None = nothing is known.

    ``submitted``: unix seconds.

    A stated expectation counts as it is until it is over. Otherwise finished gangs like it count, and its limit if there are none.
    """
    limit = stated.limit if stated.limit is not None else inf
    group = (work.cluster_queue, work.user, int(submitted // TOGETHER_SECONDS))
    if stated.expected is not None and elapsed < stated.expected:
        return RunTimes((stated.expected,), elapsed, limit, certain=True)
    known = estimator.longer(work, elapsed)
    if known:
        return RunTimes(known, elapsed, limit, group=group)
    if stated.expected is not None:
        return RunTimes((doubled(stated.expected, elapsed),), elapsed, limit, group=group)
    return RunTimes((limit,), elapsed, limit, certain=True) if limit < inf else None
