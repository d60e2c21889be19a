"""How far the run times of gangs that have not started are expected to deviate, from the gangs of their user that started lately."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from queuectl.domain.runs import Work
from queuectl.durations.deviations import Deviating, deviation_beyond, expected_deviation
from queuectl.durations.estimator import Estimator

RECENT_SECONDS: Final = 172_800
"""Gangs that were submitted in these last seconds count. Chosen on published traces."""


class ExpectedDeviations:
    """The expected deviations at one time.

    Both count: gangs that finished are the shorter ones of those that were submitted lately, and gangs that still run the longer ones.
    """

    def __init__(
        self, estimator: Estimator, now: float, running: Iterable[tuple[Work, float, float]]
    ) -> None:
        """``running``: of each gang its properties, the unix seconds of its submission, and the seconds for which it has run."""
        self._estimator = estimator
        self._since = now - RECENT_SECONDS
        self._running: dict[Deviating, list[float]] = {}
        self._expected: dict[Deviating, float] = {}
        for work, submitted, elapsed in running:
            if submitted < self._since:
                continue
            found = deviation_beyond(estimator.longer(work), elapsed)
            if found is not None:
                self._running.setdefault((work.cluster_queue, work.user), []).append(found)

    def expected(self, work: Work) -> float:
        """Of the run time of a gang that has not started."""
        group = work.cluster_queue, work.user
        if group not in self._expected:
            finished = self._estimator.deviations.since(group, self._since)
            self._expected[group] = expected_deviation((*finished, *self._running.get(group, ())))
        return self._expected[group]
