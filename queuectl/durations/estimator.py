"""Run times learned from finished gangs like a gang, from the most specific group that has enough of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Final

from queuectl.domain.runs import Run, Work
from queuectl.durations.groups import groups
from queuectl.durations.samples import KEPT, Sample

ENOUGH: Final = 5  # finished runs that a group needs
_GROUPS: Final = (
    5000  # groups in memory; the one that has had no run for the longest time is dropped
)


class Estimator:
    """Learns from one finished run at a time: a fixed number of groups, each with a bounded sample.

    The same runs in the same order always give the same estimates. One thread adds runs; others can ask meanwhile.
    """

    def __init__(self, *, kept: int = KEPT, most_groups: int = _GROUPS) -> None:
        self._samples: dict[Hashable, Sample] = {}
        self._kept = kept
        self._most = most_groups

    def __len__(self) -> int:
        """The number of groups."""
        return len(self._samples)

    def __contains__(self, group: Hashable) -> bool:
        """Whether it knows a run of the group."""
        return group in self._samples

    def add(self, run: Run) -> None:
        """Learn from a finished run."""
        for group in groups(run.work):
            sample = self._samples.pop(group, None) or Sample()
            self._samples[group] = sample.with_run(run.seconds, self._kept)
        while len(self._samples) > self._most:
            del self._samples[next(iter(self._samples))]

    def total(self, work: Work, part: float, elapsed: float = 0.0) -> float | None:
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

    def longest(self, work: Work) -> float | None:
        """The longest run that is kept of the most specific group with enough runs, in seconds; None = not known."""
        return next((sample.ordered[-1] for sample in self._enough(work)), None)

    def longer(self, work: Work, elapsed: float = 0.0) -> tuple[float, ...]:
        """The run times of finished gangs like this one that ran longer than ``elapsed``, shortest first; empty = none is known.

        They are those of the most specific group with enough of them, else those of the most specific group that has any. If no
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

    def _enough(self, work: Work) -> Iterator[Sample]:
        """The samples of its groups that have enough runs, the most specific group first."""
        samples = (self._samples.get(group) for group in groups(work))
        return (s for s in samples if s is not None and len(s.ordered) >= ENOUGH)


def learn(runs: Iterable[Run]) -> Estimator:
    """An estimator that knows these runs, oldest first."""
    estimator = Estimator()
    for run in runs:
        estimator.add(run)
    return estimator


def doubled(seconds: float, elapsed: float) -> float:
    """The seconds, doubled until they are more than ``elapsed``. At least one second, so that it ends."""
    seconds = max(seconds, 1.0)
    while seconds <= elapsed:
        seconds *= 2.0
    return seconds
