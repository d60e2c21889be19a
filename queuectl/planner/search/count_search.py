"""The greatest counts of pods that fit: for splits over flavors, and for partial admission.

Whether counts fit is for the caller to say. Fewer always fit where more do, so an answer settles all smaller, or all larger, counts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

MOST_QUESTIONS: Final = (
    256  # questions; for splits doubled for each earlier answer that was left open
)

PodCounts: TypeAlias = tuple[int, ...]


class CountColumn(NamedTuple):
    """One count: of which group, and of which kind; counts of different kinds in a group exclude each other."""

    group: int
    kind: object = None


@dataclass(slots=True)
class Greatest:
    """The search for the greatest counts, earlier ones first, where the counts of each group have a given sum.

    The groups are podsets, the counts of a group are its pods by flavor, most preferred first. The largest value of a count alone
    bounds it alongside others. And of two counts with sum s, if (a, s - a) does not fit and a' is the most that fits alongside s - a, then
    no first count above a' fits: what is skipped is proved.

    Attributes:
        totals: what the counts of each group add up to.
        columns: the counts, group by group.
        fits: whether these counts fit.
        most_questions: the most questions.
        most: per column, the most that fits while all others are 0; once :meth:`find` was called.
    """

    totals: Sequence[int]
    columns: Sequence[CountColumn]
    fits: Callable[[PodCounts], bool]
    most_questions: int = MOST_QUESTIONS
    most: list[int] = field(default_factory=list)
    _answers: CountAnswers = field(init=False)

    def __post_init__(self) -> None:
        nothing = (0,) * len(self.columns)  # fits unasked
        self._answers = CountAnswers(self.fits, self.most_questions + 1, {nothing: True})

    @property
    def exact(self) -> bool:
        """Whether no question was left out."""
        return self._answers.exact

    def find(self) -> PodCounts | None:
        """The greatest counts; None if no counts fit, which is a proof while ``exact`` holds."""
        nothing = (0,) * len(self.columns)
        self.most = [
            self._largest(nothing, at, self.totals[column.group])
            for at, column in enumerate(self.columns)
        ]
        if any(self._reachable(group) < total for group, total in enumerate(self.totals)):
            return None
        return self._fill(nothing, 0)

    def _reachable(self, group: int) -> int:
        """An upper bound of a group's sum of counts."""
        by_kind: dict[object, int] = {}
        for column, most in zip(self.columns, self.most, strict=True):
            if column.group == group:
                by_kind[column.kind] = by_kind.get(column.kind, 0) + most
        return max(by_kind.values(), default=0)

    def _fill(self, counts: PodCounts, at: int) -> PodCounts | None:
        """Complete counts that are final before column ``at`` and 0 from there on."""
        if at == len(self.columns):
            return counts
        for count in self._choices(counts, at):
            found = self._fill(_with(counts, at, count), at + 1)
            if found is not None:
                return found
        return None

    def _choices(self, counts: PodCounts, at: int) -> Iterator[int]:
        """The values of column ``at``, largest first; all that is left out cannot be completed."""
        group, kind = self.columns[at]
        taken = [i for i in range(at) if self.columns[i].group == group and counts[i]]
        left = self.totals[group] - sum(counts[i] for i in taken)
        later = [
            i
            for i in range(at + 1, len(self.columns))
            if self.columns[i].group == group
            and all(self.columns[i].kind == self.columns[j].kind for j in taken)
        ]
        if any(self.columns[i].kind != kind for i in taken):
            yield 0
            return
        alike = [i for i in later if self.columns[i].kind == kind]
        least = max(0, left - sum(self.most[i] for i in alike))
        top = min(left, self.most[at])
        if top >= least:
            top = self._largest(counts, at, top, least)
        while top >= max(least, 1) and self.exact:
            if len(alike) == 1:
                beside = _with(counts, alike[0], left - top)
                most = self._largest(beside, at, top, least)
                if most < top:
                    top = most
                    continue
            yield top
            top -= 1
        if left <= sum(self.most[i] for i in later):
            yield 0

    def _largest(self, counts: PodCounts, at: int, most: int, least: int = 0) -> int:
        """The largest value of column ``at`` that fits alongside the other counts; below ``least`` when none from there does."""
        if self._answers.ask(_with(counts, at, most)):
            return most
        low, high = least - 1, most  # low fits (or is too small), high does not
        while high - low > 1:
            middle = (low + high) // 2
            if self._answers.ask(_with(counts, at, middle)):
                low = middle
            else:
                high = middle
        return low


def _with(counts: PodCounts, at: int, count: int) -> PodCounts:
    return (*counts[:at], count, *counts[at + 1 :])


@dataclass(slots=True)
class CountAnswers:
    """The answers of one search.

    Attributes:
        fits: whether these counts fit.
        most: answers kept; a question beyond them counts as a no.
        answers: the answers so far.
        exact: whether every question was answered.
    """

    fits: Callable[[PodCounts], bool]
    most: int
    answers: dict[PodCounts, bool] = field(default_factory=dict)
    exact: bool = True

    def ask(self, counts: PodCounts) -> bool:
        """Whether these counts fit, by earlier answers if these are enough."""
        for known, fitted in self.answers.items():
            pairs = list(zip(counts, known, strict=True))
            if fitted and all(c <= k for c, k in pairs):
                return True
            if not fitted and all(c >= k for c, k in pairs):
                return False
        if len(self.answers) >= self.most:
            self.exact = False
            return False
        self.answers[counts] = self.fits(counts)
        return self.answers[counts]


@dataclass(slots=True)
class Largest:
    """The search for the largest total that fits, where podsets can start with fewer pods.

    Among equal totals, the one that takes from each podset in proportion to what it may lose (Kueue's rule) if it fits, otherwise earlier
    podsets keep more.

    Attributes:
        choices: admissible counts per podset.
        fits: whether the gang fits with these counts.
        whole: what is known of all pods together.
    """

    choices: Sequence[range]
    fits: Callable[[PodCounts], bool]
    whole: bool
    _best: PodCounts | None = None
    _answers: CountAnswers = field(init=False)

    def __post_init__(self) -> None:
        everything = tuple(choice[-1] for choice in self.choices)
        self._answers = CountAnswers(self.fits, MOST_QUESTIONS, {everything: self.whole})

    @property
    def exact(self) -> bool:
        """Whether no question was left out."""
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
        """The largest count of the last podset alongside the others', if it makes the total larger."""
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
