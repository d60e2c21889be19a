"""Partial admission: the largest number of pods with which a gang may start.

Fewer pods of a podset never need more: whoever places, or evicts for, so many also does for one slice less. So what fits
is closed downwards over the admissible counts (multiples of the coarsest slice), and a binary search over them is exact.
With several podsets that may shrink, the largest total wins; among equal totals, the one that takes from each in
proportion to what it may lose (Kueue's rule) if it fits, else earlier podsets keep more.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from queuectl.domain.reasons import Reason
from queuectl.domain.snapshot import Pending
from queuectl.domain.workload import Placement, PodSet, Workload
from queuectl.planner.solver.lexicographic import Answers, PodCounts

MOST_PROBES: Final = 256  # asked for one gang whose podsets shrink independently of each other

Probe: TypeAlias = Callable[[PodCounts], bool]


def shrinks(workload: Workload) -> bool:
    """Whether the gang may start with fewer pods than it asks for."""
    return any(len(admissible(podset)) > 1 for podset in workload.podsets)


def admissible(podset: PodSet) -> range:
    """The counts a podset may start with, smallest first."""
    if podset.min_count is None or podset.min_count >= podset.count:
        return range(podset.count, podset.count + 1)
    slices = podset.topology.slices if podset.topology is not None else ()
    step = slices[0].size if slices else 1
    least = -(-max(1, podset.min_count) // step) * step
    return range(least, podset.count + 1, step)


def with_counts(pending: Pending, counts: Sequence[int]) -> Pending:
    """The gang as it would be with so many pods per podset, and no fewer."""
    podsets = tuple(
        podset if podset.min_count is None else replace(podset, count=count, min_count=count)
        for podset, count in zip(pending.workload.podsets, counts, strict=True)
    )
    return replace(pending, workload=replace(pending.workload, podsets=podsets))


def smallest(workload: Workload) -> Workload:
    """The gang with the fewest pods it may start with."""
    if not shrinks(workload):
        return workload
    podsets = (replace(p, count=admissible(p)[0]) for p in workload.podsets)
    return replace(workload, podsets=tuple(podsets))


def as_placed(pending: Pending, placement: Placement) -> Pending:
    """The gang with the counts it was placed with before, where these are still admissible."""
    counts = []
    for podset in pending.workload.podsets:
        placed = placement.of(podset.name)
        given = podset.count if placed is None or placed.pods is None else placed.pods
        counts.append(given if given in admissible(podset) else podset.count)
    return with_counts(pending, counts)


def at_least(why: Reason, choices: Sequence[range]) -> Reason:
    """The reason of the smallest part, as that of the gang."""
    counts = [choice[0] for choice in choices]
    least = f"{' + '.join(map(str, counts))} {'pod' if counts == [1] else 'pods'}"
    return replace(why, message=f"even with {least}: {why.message}")


@dataclass(slots=True)
class Largest:
    """The search for the largest counts that fit.

    Attributes:
        choices: admissible counts per podset.
        fits: whether the gang fits with these counts.
        whole: what is known of all pods together.
    """

    choices: Sequence[range]
    fits: Probe
    whole: bool
    _best: PodCounts | None = None
    _answers: Answers = field(init=False)

    def __post_init__(self) -> None:
        everybody = tuple(choice[-1] for choice in self.choices)
        self._answers = Answers(self.fits, MOST_PROBES, {everybody: self.whole})

    @property
    def exact(self) -> bool:
        """Whether the search went to its end, not only as far as :data:`MOST_PROBES`."""
        return self._answers.exact

    def find(self) -> PodCounts | None:
        """The counts with the largest total; None when not even the smallest fit."""
        least = tuple(choice[0] for choice in self.choices)
        if not self._answers.ask(least):
            return None
        self._best = least
        self._grow(())
        return next(filter(self._answers.ask, self._proportional(sum(self._best))), self._best)

    def _proportional(self, total: int) -> Iterator[PodCounts]:
        """The admissible counts of this total that take from each podset in proportion to what it may lose."""
        most = [choice[-1] - choice[0] for choice in self.choices]
        lost = sum(choice[-1] for choice in self.choices) - total
        if sum(m > 0 for m in most) < 2 or not lost:
            return
        for cut in range(lost, lost + len(most)):  # each podset's part is rounded down
            counts = tuple(
                choice[-1] - m * cut // sum(most)
                for choice, m in zip(self.choices, most, strict=True)
            )
            admissible = all(n in choice for n, choice in zip(counts, self.choices, strict=True))
            if admissible and sum(counts) == total:
                yield counts

    def _grow(self, before: PodCounts) -> None:
        """Try every count of the next podset, largest first, unless nothing that follows could be better."""
        assert self._best is not None
        at = len(before)
        choice = self.choices[at]
        after = sum(c[-1] for c in self.choices[at + 1 :])
        if at + 1 == len(self.choices):
            self._last(before, choice)
            return
        for count in reversed(choice):
            if not self.exact or sum(before) + count + after <= sum(self._best):
                return
            self._grow((*before, count))

    def _last(self, before: PodCounts, choice: range) -> None:
        """The largest count of the last podset beside the others', if it makes the total larger."""
        assert self._best is not None
        enough = sum(self._best) - sum(before)
        better = choice[bisect_right(choice, enough) :]
        if not better or not self._answers.ask((*before, better[0])):
            return
        low, high = 0, len(better)  # better[low] fits, better[high:] do not
        while low + 1 < high:
            middle = (low + high) // 2
            if self._answers.ask((*before, better[middle])):
                low = middle
            else:
                high = middle
        self._best = (*before, better[low])
