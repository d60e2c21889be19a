"""The possible run times of one gang, as a distribution: the input of estimates, which draw from it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final, TypeAlias

from queuectl.domain.runs import Work
from queuectl.durations.estimator import Estimator, doubled
from queuectl.durations.expectations import Stated

Group: TypeAlias = tuple[str, str, int]
"""ClusterQueue, user, and number of the time window of the submission."""
TOGETHER_SECONDS: Final = 43_200
"""The time window. Later submissions of a user are often other work."""


@dataclass(frozen=True, slots=True)
class RunTimes:
    """The possible run times of a gang, all attempts together, in seconds.

    Attributes:
        known: run times of finished gangs like it that ran longer than ``elapsed``, shortest first; never empty.
        elapsed: for which it has run.
        limit: at which the controller ends it; infinite = none.
        certain: ``known`` has one value, which is the run time.
        group: ClusterQueue, user and time of submission. Run times of one group deviate from ``known`` together.
    """

    known: tuple[float, ...]
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
            total = self.known[0]
        else:
            place = part * (len(self.known) + 1)
            after = min(int(place), len(self.known))
            low = self.known[after - 1] if after else self.elapsed
            high = self.known[after] if after < len(self.known) else 2.0 * low
            total = low + (high - low) * (place - after)
        return max(min(total, self.limit) - self.elapsed, 0.0)


def possible_runs(
    work: Work, stated: Stated, elapsed: float, estimator: Estimator, submitted: float = 0.0
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
