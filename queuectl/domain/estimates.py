"""Expected starts of pending gangs. They are for people: no plan depends on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final


@dataclass(frozen=True, slots=True)
class ExpectedStart:
    """The expected start of a pending gang, as a range. Times are in unix seconds.

    Attributes:
        median: it is as likely to start earlier as later.
        p90: it starts no later with a probability of 0.9; None = later than what is known.
        computed_at: of the estimate.
    """

    median: float
    p90: float | None
    computed_at: float


@dataclass(frozen=True, slots=True)
class ExpectedStarts:
    """The expected starts of one estimate.

    Attributes:
        computed_at: unix seconds; 0 = there is no estimate yet.
        by_uid: of the gangs that have one.
        gangs: pending gangs that were in the estimate.
        left_out: pending gangs that were not, because they are too far behind in queue order.
    """

    computed_at: float = 0.0
    by_uid: Mapping[str, ExpectedStart] = field(default_factory=dict)
    gangs: int = 0
    left_out: int = 0


NO_ESTIMATES: Final = ExpectedStarts()


class Arrival(StrEnum):
    """When a gang has started, compared with its first estimate."""

    BY_MEDIAN = "by-median"
    BY_P90 = "by-p90"  # after the median
    LATER = "later"  # than the 90th percentile
