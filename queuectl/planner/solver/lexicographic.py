"""The greatest counts that fit, earlier ones first, where every group of counts has a given sum.

The planner asks it how to split podsets: the groups are podsets, the counts of a group are pods by flavor, most preferred
first. Whether counts fit is for the caller to say. Fewer always fit where more do; three things follow from that. An answer
settles all smaller, or all larger, counts. What a count can be at most alone bounds it beside others. And of two counts with
sum s, if (a, s - a) does not fit and a' is the most that fits beside s - a, then no first count above a' will do: what is
skipped is proved, and few questions reach the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

MOST_ASKED: Final = 256  # questions; doubled for each earlier answer that was left open


class Column(NamedTuple):
    """One count: of which group, and of which kind; counts of different kinds in a group exclude each other."""

    group: int
    kind: object = None


@dataclass(slots=True)
class Greatest:
    """One search.

    Attributes:
        totals: what the counts of each group add up to.
        columns: the counts, group by group.
        fits: whether these counts fit.
        asked: the most questions.
        most: per column, the most that fits while all others are 0; once :meth:`find` was called.
    """

    totals: Sequence[int]
    columns: Sequence[Column]
    fits: Callable[[PodCounts], bool]
    asked: int = MOST_ASKED
    most: list[int] = field(default_factory=list)
    _answers: Answers = field(init=False)

    def __post_init__(self) -> None:
        nothing = (0,) * len(self.columns)  # fits unasked
        self._answers = Answers(self.fits, self.asked + 1, {nothing: True})

    @property
    def exact(self) -> bool:
        """Whether no question was left out for want of more."""
        return self._answers.exact

    def find(self) -> PodCounts | None:
        """The greatest counts; None when there are none, which is a proof while ``exact`` holds."""
        nothing = (0,) * len(self.columns)
        self.most = [
            self._largest(nothing, at, self.totals[column.group])
            for at, column in enumerate(self.columns)
        ]
        if any(self._reachable(group) < total for group, total in enumerate(self.totals)):
            return None
        return self._fill(nothing, 0)

    def _reachable(self, group: int) -> int:
        """What the counts of a group add up to at most."""
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
        """What column ``at`` may be, largest first; all that is left out cannot be completed."""
        group, kind = self.columns[at]
        taken = [i for i in range(at) if self.columns[i].group == group and counts[i]]
        left = self.totals[group] - sum(counts[i] for i in taken)
        others = [
            i
            for i in range(at + 1, len(self.columns))
            if self.columns[i].group == group
            and all(self.columns[i].kind == self.columns[j].kind for j in taken)
        ]
        if any(self.columns[i].kind != kind for i in taken):
            yield 0
            return
        alike = [i for i in others if self.columns[i].kind == kind]
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
        if left <= sum(self.most[i] for i in others):
            yield 0

    def _largest(self, counts: PodCounts, at: int, most: int, least: int = 0) -> int:
        """The largest value of column ``at`` that fits beside the other counts; below ``least`` when none from there does."""
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


PodCounts: TypeAlias = tuple[int, ...]


@dataclass(slots=True)
class Answers:
    """What is known of one search.

    Attributes:
        fits: whether these counts fit.
        most: answers kept; what would need another is taken for a no.
        known: the answers so far.
        exact: whether every question was answered.
    """

    fits: Callable[[PodCounts], bool]
    most: int
    known: dict[PodCounts, bool] = field(default_factory=dict)
    exact: bool = True

    def ask(self, counts: PodCounts) -> bool:
        """Whether these counts fit, by what is known if that is enough."""
        for known, fitted in self.known.items():
            pairs = list(zip(counts, known, strict=True))
            if fitted and all(c <= k for c, k in pairs):
                return True
            if not fitted and all(c >= k for c, k in pairs):
                return False
        if len(self.known) >= self.most:
            self.exact = False
            return False
        self.known[counts] = self.fits(counts)
        return self.known[counts]
