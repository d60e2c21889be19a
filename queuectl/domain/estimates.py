"""Expected starts of pending gangs. They are for people: no plan depends on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

DAY: Final = 86_400.0


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


class RunTimeSource(StrEnum):
    """The source of a run time."""

    LIMIT = "Limit"  # the controller ends the gang then
    STATED = "Stated"  # the user expects it
    LEARNED = "Learned"  # finished gangs ran as long


@dataclass(frozen=True, slots=True)
class ExpectedRunTime:
    """How long a gang runs, all attempts together. Times are in seconds.

    Attributes:
        seconds: that planning assumes.
        quantile: probability with which the gang ends no later; None = it is not learned.
        median: of the run times of finished gangs like it; None = none are known.
        gangs: number of these run times.
        error: median error of the learned run times of its ClusterQueue's finished gangs; None = not known.
    """

    source: RunTimeSource
    seconds: float
    quantile: float | None = None
    median: float | None = None
    gangs: int = 0
    error: float | None = None


@dataclass(frozen=True, slots=True)
class ExpectedStarts:
    """The expected starts of one estimate.

    Attributes:
        computed_at: unix seconds; 0 = no estimate yet.
        by_uid: of the gangs that have one.
        gangs: pending gangs that were in the estimate.
        left_out: pending gangs that were not, because they are too far behind in queue order.
        run_times: of gangs that run, and of those that were in the estimate, by uid; without those that are unknown.
    """

    computed_at: float = 0.0
    by_uid: Mapping[str, ExpectedStart] = field(default_factory=dict)
    gangs: int = 0
    left_out: int = 0
    run_times: Mapping[str, ExpectedRunTime] = field(default_factory=dict)


NO_ESTIMATES: Final = ExpectedStarts()


class Arrival(StrEnum):
    """When a gang has started, compared with its first estimate."""

    BY_MEDIAN = "by-median"
    BY_P90 = "by-p90"  # after the median
    LATER = "later"  # than the 90th percentile
