"""The cost of an eviction by hand, or of the drain of a queue, before a person requests it."""

from __future__ import annotations

from dataclasses import dataclass

from queuectl.domain.gpus import Gpus
from queuectl.domain.plan import Cost


@dataclass(frozen=True, slots=True)
class Preview:
    """Of one gang and one action.

    Attributes:
        cost: None for a gang that holds nothing, so that nothing is evicted.
        notice: seconds in which the gang can save its work.
        starts: uids of the gangs that could start then and cannot now, in queue order; the gang itself is among them if it
            starts again. None when the planner had not enough time.
    """

    cost: Cost | None
    notice: float
    starts: tuple[str, ...] | None = ()


@dataclass(frozen=True, slots=True)
class DrainCost:
    """The gangs that the drain of a queue would evict now.

    Attributes:
        gangs: that hold places by the queue and are not being evicted yet.
        pods, gpus: of these gangs together.
        lost_work: GPU-seconds of work that they lose.
    """

    gangs: int
    pods: int
    gpus: Gpus
    lost_work: int
