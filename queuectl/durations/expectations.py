"""How long gangs run, as expected from limits, users and finished gangs; also as a distribution.

Finished gangs count in groups: the most specific group of similar work that has enough of them decides. An expectation that is over is
estimated again from the time for which the gang has run. It never ends a gang.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import ceil, floor, inf, log
from typing import Final, TypeAlias

from queuectl.domain.estimates import RunTimeSource
from queuectl.domain.past_jobs import FinishedRun, GangProfile
from queuectl.domain.workload import Duration

# ---- The last run times of one group

MOST_RUN_TIMES: Final = 200  # run times that a group keeps


@dataclass(frozen=True, slots=True)
class RunTimeSample:
    """Run times in seconds. It is never changed in place, because estimates are made in other threads.

    Attributes:
        recent: in the order in which they ended.
        ordered: the same, shortest first.
    """

    recent: tuple[float, ...] = ()
    ordered: tuple[float, ...] = ()

    def with_run(self, seconds: float, limit: int = MOST_RUN_TIMES) -> RunTimeSample:
        """The sample with one more run time; if it has ``limit`` already, without the oldest."""
        recent, ordered = self.recent, self.ordered
        if len(recent) >= limit:
            oldest = bisect_left(ordered, recent[0])
            recent, ordered = recent[1:], ordered[:oldest] + ordered[oldest + 1 :]
        place = bisect_left(ordered, seconds)
        return RunTimeSample((*recent, seconds), (*ordered[:place], seconds, *ordered[place:]))

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


# ---- Patterns of names

_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PARTS: Final = re.compile(r"[-._]+")
_DIGITS: Final = re.compile(r"[0-9]+")
_GENERATED: Final = re.compile(r"[bcdfghjklmnpqrstvwxz2456789]{5}")
"""The suffix that the API server adds to ``generateName``: it has no vowel, and no 0, 1 or 3."""
_HASH: Final = re.compile(r"(?=[a-z]*[0-9])[0-9a-f]{6,}|(?=(.*[0-9]){3})(?=.*[a-z])[0-9a-z]{8,}")
"""Hexadecimal digits, or letters among at least three digits."""


@lru_cache(maxsize=4096)
def name_pattern(name: str) -> str:
    """The pattern of the name of an object; "" if nothing of it is constant.

    ``train-resnet50-20261123-x7k2p`` and ``train-resnet18-20261124-9zqvw`` have the pattern ``train-resnet``.
    """
    parts = _PARTS.split(_UUID.sub("", name.lower()))
    if len(parts) > 1 and _GENERATED.fullmatch(parts[-1]):
        parts.pop()
    constant = (_DIGITS.sub("", part) for part in parts if not _HASH.fullmatch(part))
    return "-".join(part for part in constant if part)


# ---- Groups of similar work


def groups(work: GangProfile) -> tuple[Hashable, ...]:
    """The keys of the groups of a gang, from the most specific to all gangs.

    LocalQueue, user and pattern of the name; LocalQueue and user; LocalQueue and pattern; LocalQueue; ClusterQueue; all. Each of them
    first with the shape and then without. Groups of what is not known are left out.
    """
    local = (work.namespace, work.queue) if work.queue else None
    pattern = name_pattern(work.name)
    wide: list[tuple[str, ...]] = []
    if local is not None:
        if work.user and pattern:
            wide.append(("user and name", *local, work.user, pattern))
        if work.user:
            wide.append(("user", *local, work.user))
        if pattern:
            wide.append(("name", *local, pattern))
        wide.append(("LocalQueue", *local))
    if work.cluster_queue:
        wide.append(("ClusterQueue", work.cluster_queue))
    wide.append(("all",))
    shapes = ((work.pods, work.gpus), None) if work.pods else (None,)
    return tuple(product(wide, shapes))


# ---- The estimator

ENOUGH: Final = 5  # finished runs that a group needs
# Groups in memory; the one that has had no run for the longest time is dropped.
_GROUPS: Final = 5000


class RunTimeEstimator:
    """Learns from one finished run at a time: a fixed number of groups, each with a bounded sample.

    The same runs in the same order always give the same estimates. One thread adds runs; others can ask in the meantime.
    """

    def __init__(self, *, most_groups: int = _GROUPS) -> None:
        self._samples: dict[Hashable, RunTimeSample] = {}
        self._most = most_groups

    def __len__(self) -> int:
        """The number of groups."""
        return len(self._samples)

    def __contains__(self, group: Hashable) -> bool:
        """Whether it knows a run of the group."""
        return group in self._samples

    def add(self, run: FinishedRun) -> None:
        """Learn from a finished run."""
        for group in groups(run.work):
            sample = self._samples.pop(group, None) or RunTimeSample()
            self._samples[group] = sample.with_run(run.seconds, MOST_RUN_TIMES)
        while len(self._samples) > self._most:
            del self._samples[next(iter(self._samples))]

    def total(self, work: GangProfile, part: float, elapsed: float = 0.0) -> float | None:
        """The expected run time of a gang that has run for ``elapsed`` seconds, those included; None = not known.

        Args:
            work: the gang.
            part: the probability, 0 to 1, with which the gang ends no later.
            elapsed: seconds, all attempts together.

        If no group has enough longer runs, the longest run of the most specific group is doubled until it is longer.
        """
        longest: float | None = None
        for sample in self._enough(work):
            found = sample.quantile(part, elapsed)
            if found is not None:
                return found
            longest = longest if longest is not None else sample.ordered[-1]
        return None if longest is None else doubled(longest, elapsed)

    def longest(self, work: GangProfile) -> float | None:
        """The longest run that is kept of the most specific group with enough runs, in seconds; None = not known."""
        return next((sample.ordered[-1] for sample in self._enough(work)), None)

    def longer(self, work: GangProfile, elapsed: float = 0.0) -> tuple[float, ...]:
        """The run times of finished gangs like this one that ran longer than ``elapsed``, shortest first; empty = none is known.

        They belong to the most specific group with enough of them, otherwise to the most specific group that has any. If no
        group has one, it is the longest run of the most specific group, doubled until it is longer.
        """
        fewer: tuple[float, ...] = ()
        longest: float | None = None
        for sample in self._enough(work):
            found = sample.longer(elapsed)
            if len(found) >= ENOUGH:
                return found
            fewer = fewer or found
            longest = longest if longest is not None else sample.ordered[-1]
        if fewer or longest is None:
            return fewer
        return (doubled(longest, elapsed),)

    def _enough(self, work: GangProfile) -> Iterator[RunTimeSample]:
        """The samples of its groups that have enough runs, the most specific group first."""
        samples = (self._samples.get(group) for group in groups(work))
        return (s for s in samples if s is not None and len(s.ordered) >= ENOUGH)


def learn(runs: Iterable[FinishedRun]) -> RunTimeEstimator:
    """An estimator that knows these runs, oldest first."""
    estimator = RunTimeEstimator()
    for run in runs:
        estimator.add(run)
    return estimator


def doubled(seconds: float, elapsed: float) -> float:
    """The seconds, doubled until they are more than ``elapsed``. At least one second, so that it ends."""
    seconds = max(seconds, 1.0)
    while seconds <= elapsed:
        seconds *= 2.0
    return seconds


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
    """The run time that planning assumes: the limit, otherwise the time that the gang does not exceed with probability ``part``.

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

    A stated expectation counts as it is until it is over. Otherwise finished gangs like it count, and its limit without any.
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
