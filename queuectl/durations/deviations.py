"""How far the run times of recent gangs of a ClusterQueue and user deviate from those of earlier gangs like them.

A deviation is a normal number: 0 is the median of the earlier run times, 1.28 their 90th percentile.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from statistics import NormalDist, fmean
from typing import Final, TypeAlias

Deviating: TypeAlias = tuple[str, str]
"""ClusterQueue and user."""
_MOST: Final = 4
_DOUBT: Final = 2
"""With n recent gangs, n / (n + this) of their mean deviation is expected of the next one; more than the most count like the most. Chosen on published traces."""
_KEPT: Final = 60  # finished gangs of one group
_GROUPS: Final = 5000  # in memory; the one that has had no run for the longest time is dropped
_EXTREME: Final = 0.995
_NORMAL: Final = NormalDist()


def deviation(known: Sequence[float], seconds: float) -> float:
    """Of a run time. ``known``: of earlier gangs like it, shortest first."""
    return _normal((bisect_right(known, seconds) + 0.5) / (len(known) + 1))


def deviation_beyond(known: Sequence[float], elapsed: float) -> float | None:
    """The mean deviation of run times longer than ``elapsed``; None = all known ones are longer, so nothing is learnt."""
    shorter = bisect_right(known, elapsed)
    if not shorter:
        return None
    least = _normal(shorter / (len(known) + 1))
    return _NORMAL.pdf(least) / (1.0 - _NORMAL.cdf(least))


def expected_deviation(deviations: Sequence[float]) -> float:
    """The deviation to expect of the next gang after these."""
    if not deviations:
        return 0.0
    number = min(len(deviations), _MOST)
    return fmean(deviations) * number / (number + _DOUBT)


class FinishedDeviations:
    """Those of finished gangs. It never changes a tuple in place, because estimates are made in other threads."""

    def __init__(self) -> None:
        self._known: dict[Deviating, tuple[tuple[float, float], ...]] = {}

    def add(self, group: Deviating, submitted: float, found: float) -> None:
        """``submitted``: unix seconds."""
        before = self._known.pop(group, ())
        self._known[group] = (*before[1 - _KEPT :], (submitted, found))
        if len(self._known) > _GROUPS:
            del self._known[next(iter(self._known))]

    def since(self, group: Deviating, begin: float) -> tuple[float, ...]:
        """Those of gangs that were submitted since ``begin``, in unix seconds."""
        return tuple(found for submitted, found in self._known.get(group, ()) if submitted >= begin)


def _normal(part: float) -> float:
    return _NORMAL.inv_cdf(min(_EXTREME, max(1.0 - _EXTREME, part)))
