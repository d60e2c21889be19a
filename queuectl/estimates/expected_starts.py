"""Expected starts as ranges: draws of the time from now on, and their quantiles for each gang."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import ceil, inf
from random import Random
from typing import Final

from queuectl.domain.estimates import ExpectedStart, ExpectedStarts
from queuectl.durations.possible import RunTimes
from queuectl.estimates.forward import Forward
from queuectl.estimates.scene import Scene

MOST_GANGS: Final = 500
"""Pending gangs that are estimated, in queue order. Those after them have no estimate."""
MOST_DRAWS: Final = 60
LEAST_DRAWS: Final = 19  # with fewer, the largest is not the 90th percentile of what comes
MOST_WORK: Final = 100_000
"""Of all draws, as :attr:`Forward.work` counts it: about two seconds of processor time."""
_SEED: Final = "queuectl"


def expected_starts(
    scene: Scene,
    runs: Mapping[str, RunTimes | None],
    check: Callable[[], None] = lambda: None,
    *,
    draws: int | None = None,
) -> ExpectedStarts:
    """The expected start of each gang that waits. The same input gives the same result.

    Args:
        scene: the present state.
        runs: the possible run times of all its gangs, by uid; None = unknown.
        check: is called often; it can raise to end the estimate.
        draws: None = as many as the limit of work permits.
    """
    random = {uid: _Numbers(uid) for uid, known in runs.items() if known is not None}

    def one() -> Forward:
        lengths = {
            uid: inf if known is None else known.left(random[uid].draw())
            for uid, known in runs.items()
        }
        drawn = Forward(scene, lengths, check)
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
    """Random numbers of one gang. They are the same in each estimate, so that a range changes only if its causes do."""

    def __init__(self, uid: str) -> None:
        self.draw = Random(f"{_SEED} {uid}").random  # noqa: S311 - nothing secret


def _range(starts: Iterable[float], now: float) -> ExpectedStart | None:
    """By nearest rank among one more than the draws; None if the median is unknown."""
    ordered = sorted(starts)
    median, p90 = _quantile(ordered, 0.5), _quantile(ordered, 0.9)
    return ExpectedStart(median, p90 if p90 < inf else None, now) if median < inf else None


def _quantile(ordered: list[float], part: float) -> float:
    rank = ceil(round(part * (len(ordered) + 1), 9))
    return ordered[rank - 1] if rank <= len(ordered) else inf
