"""The policies that a simulation can compare."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Order(StrEnum):
    """The strategy of the queues. SJF exists in simulations only: the job with the shortest declared run time is first."""

    STRICT_FIFO = "StrictFIFO"
    BEST_EFFORT_FIFO = "BestEffortFIFO"
    BACKFILL = "Backfill"
    SJF = "SJF"


class Durations(StrEnum):
    """The run times that the scheduler knows.

    ``DECLARED``: each job has its run time, or ``limit_s`` of the trace, as its limit. ``LEARNED``: what the trace states, and run times
    of jobs that have finished earlier. ``UNKNOWN``: none.
    """

    DECLARED = "declared"
    LEARNED = "learned"
    UNKNOWN = "unknown"


class PlacementRule(StrEnum):
    """The scheduler: the planner of the controller, or the reference rule of published simulators."""

    PLANNER = "planner"
    BEST_FIT = "best-fit"


@dataclass(frozen=True, slots=True)
class Policy:
    """``order``: of all queues; None = each ClusterQueue has its own strategy."""

    placement: PlacementRule = PlacementRule.PLANNER
    order: Order | None = None
    durations: Durations = Durations.DECLARED

    @property
    def name(self) -> str:
        return "as configured" if self.order is None else str(self.order)
