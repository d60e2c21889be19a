"""What was measured of gangs' GPUs, and what is made of it. Unknown is a state of its own: it is never idleness (I5).

A source (Prometheus, or the exporters themselves) gives one :class:`PodUse` per pod it saw. Those of a gang's pods become
one :class:`GangUse` per gang, which the planner prices evictions by and the usage ledger sums up.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class UseState(StrEnum):
    """What a gang does with its GPUs."""

    UNKNOWN = "Unknown"  # no data, too little, too old, or of GPUs that cannot be told apart
    WARMUP = "Warmup"  # its pods run for less than the warm-up: images, data, compilation
    ACTIVE = "Active"
    LOW = "Low"  # some use, below what its queue calls well used
    IDLE = "Idle"
    STUCK = (
        "Stuck"  # engines busy, nothing computed: a hung collective. Reported, never taken for idle
    )


@dataclass(frozen=True, slots=True)
class PodUse:
    """One pod's GPUs over the window that ends ``now``.

    Attributes:
        uid: None where the source does not tell it.
        gpus: how many GPUs (or instances of one) the source saw for the pod.
        busy: 0..1, of its busiest GPU: what it stayed below for nine tenths of the window.
        mean: 0..1, mean over its GPUs since the last look.
        coverage: 0..1, of the samples expected in the window, those that are there; of the GPU that has the fewest.
        age: seconds since the newest sample of the GPU that was silent longest.
        tensor, memory_busy: 0..1 of the busiest GPU: tensor pipes and memory interface; None where it is not exported.
        memory_held: 0..1 of the GPU memory of the fullest GPU; None where it is not exported.
        shared: its GPU is time-sliced among pods, and what was measured is the whole device.
    """

    namespace: str
    pod: str
    gpus: int
    busy: float
    mean: float
    coverage: float
    age: float
    uid: str | None = None
    tensor: float | None = None
    memory_busy: float | None = None
    memory_held: float | None = None
    shared: bool = False


@dataclass(frozen=True, slots=True)
class GangUse:
    """What a gang does with its GPUs, at the last look.

    Attributes:
        uid, attempt: whose; a look at another attempt says nothing of this one.
        since: unix seconds since when it is in this state.
        at: unix seconds of the look.
        utilization: 0..1, mean over all its GPUs since the look before; None = unknown, which counts as 1.
        covered: 0..1, the share of its GPUs that the source saw well enough.
        text: why this state, for people.
    """

    uid: str
    attempt: int
    state: UseState
    since: float
    at: float
    utilization: float | None
    covered: float
    text: str
