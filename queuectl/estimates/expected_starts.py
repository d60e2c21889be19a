"""Expected starts as ranges: draws of the time from now on, and their quantiles for each gang."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import ceil, inf, sqrt
from random import Random
from statistics import NormalDist
from typing import Final

from queuectl.domain.estimates import ExpectedStart, ExpectedStarts
from queuectl.durations.expectations import RunTimes
from queuectl.estimates.forward import Forward
from queuectl.estimates.scene import Scene

MOST_GANGS: Final = 500
"""Pending gangs that are estimated, in queue order. Those after them have no estimate."""
MOST_DRAWS: Final = 60
LEAST_DRAWS: Final = 19  # with fewer, the largest is not the 90th percentile of what comes
MOST_WORK: Final = 200_000
"""Of all draws beyond the least, as :attr:`Forward.work` counts it: about two seconds of CPU time."""
SHARED: Final = 0.8
"""The correlation of the deviations of run times within a group, chosen on published traces."""
_SEED: Final = "queuectl"
_PART_OF: Final = NormalDist().cdf


def expected_starts(
    scene: Scene,
    runs: Mapping[str, RunTimes | None],
    check: Callable[[], None] = lambda: None,
    *,
    draws: int | None = None,
) -> ExpectedStarts:
    """The expected start of each gang that waits. The same input gives the same result.

    Args:
        scene: the current state.
        runs: the possible run times of all its gangs, by uid; None = unknown.
        check: is called often; it can raise to end the estimate.
        draws: None = as many as the limit of work permits.
    """
    numbers = _Numbers(runs)

    def one() -> Forward:
        drawn = Forward(scene, numbers.draw(), check)
        drawn.run()
        return drawn

    first = one()
    if draws is None:
        draws = max(LEAST_DRAWS, min(MOST_DRAWS, MOST_WORK // max(first.work, 1)))
    found = [first.starts, *(one().starts for _ in range(draws - 1))]
    ranges = {
        gang.uid: expected
        for gang in scene.waiting
        if (expected := _range((starts.get(gang.uid, inf) for starts in found), scene.now))
    }
    return ExpectedStarts(scene.now, ranges, len(scene.waiting), scene.left_out)


class _Numbers:
    """Draws of the run times of all gangs, with a part that the gangs of a group share.

    The random numbers of a gang are the same in each estimate, so that a range changes only if its causes do.
    """

    def __init__(self, runs: Mapping[str, RunTimes | None]) -> None:
        self._runs = runs
        known = {uid: each for uid, each in runs.items() if each is not None}
        self._own = {uid: _normal(uid) for uid in known}
        self._groups = {each.group: _normal(*map(str, each.group)) for each in known.values()}

    def draw(self) -> dict[str, float]:
        """Seconds for which each gang still runs, by uid."""
        shared = {group: sqrt(SHARED) * normal() for group, normal in self._groups.items()}
        return {
            uid: inf
            if known is None
            else known.left(_PART_OF(shared[known.group] + sqrt(1.0 - SHARED) * self._own[uid]()))
            for uid, known in self._runs.items()
        }


def _normal(*seed: str) -> Callable[[], float]:
    """Random numbers of the standard normal distribution."""
    # No secret depends on these numbers, and each estimate must draw the same ones.
    random = Random(" ".join((_SEED, *seed)))  # noqa: S311
    return partial(random.gauss, 0.0, 1.0)


def _range(starts: Iterable[float], now: float) -> ExpectedStart | None:
    """By nearest rank among one more than the draws; None if the median is unknown."""
    ordered = sorted(starts)
    median, p90 = _quantile(ordered, 0.5), _quantile(ordered, 0.9)
    return ExpectedStart(median, p90 if p90 < inf else None, now) if median < inf else None


def _quantile(ordered: list[float], part: float) -> float:
    rank = ceil(round(part * (len(ordered) + 1), 9))
    return ordered[rank - 1] if rank <= len(ordered) else inf
