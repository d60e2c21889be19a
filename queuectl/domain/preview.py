"""What evicting a gang, or draining a queue, would cost, before a person does it."""

from __future__ import annotations

from dataclasses import dataclass

from queuectl.domain.plan import Cost


@dataclass(frozen=True, slots=True)
class Preview:
    """Of one gang and one action.

    Attributes:
        cost: None for one that holds nothing: there is nobody to take down.
        notice: seconds that it is given to save its work.
        starts: uids of those that could start then and cannot now, in queue order; its own among them if it is the one to
            start again. None when that could not be told in time.
    """

    cost: Cost | None
    notice: float
    starts: tuple[str, ...] | None = ()


@dataclass(frozen=True, slots=True)
class DrainCost:
    """What draining a queue would evict now.

    Attributes:
        gangs: that hold places by the queue and are not being evicted yet.
        pods, gpus: of these gangs together.
        lost_work: GPU-seconds of work that they lose.
    """

    gangs: int
    pods: int
    gpus: int
    lost_work: int
