"""Questions whose answers settle others: counts of pods of which fewer always fit where more do.

One answer settles all smaller, or all larger, counts. Whoever searches over counts asks here, and each search has only so many
questions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

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
