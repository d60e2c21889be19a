"""GPU use of gangs, and the evaluation of it. Unknown is a separate state: it is never idleness.

A source (Prometheus, or the exporters themselves) gives one :class:`PodUse` per pod it saw. Those of a gang's pods become
one :class:`GangUse` per gang, which the planner prices evictions by and the usage ledger sums up.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

PodKey = tuple[str, str]
"""Namespace and name of a pod."""


class SourceFault(StrEnum):
    """Why nothing, or not enough, is known of GPUs that are held: a fault of the set-up, to be alarmed about by itself."""

    UNREACHABLE = "unreachable"  # the source does not answer, or refuses
    NO_MATCH = "no_match"  # it answers, and knows no GPU at all
    UNTRUSTED = "untrusted"  # it knows GPUs, but only from scrape jobs that are not trusted
    WRONG_LABELS = "wrong_labels"  # it knows GPUs, but none of a pod that is there
    DCP_MISSING = "dcp_missing"  # no profiling metrics: only the coarser GPU utilization is known
    STALE = "stale"  # a GPU has been silent for more than two scrapes
    PARTIAL = "partial"  # GPUs, or samples of them, are missing


class UseState(StrEnum):
    """The use of a gang's GPUs."""

    UNKNOWN = "Unknown"  # no data, too little, too old, or of GPUs that cannot be distinguished
    WARMUP = "Warmup"  # its pods run for less than the warm-up: images, data, compilation
    ACTIVE = "Active"
    LOW = "Low"  # some use, below what its queue calls well used
    IDLE = "Idle"
    STUCK = "Stuck"  # engines busy, nothing computed: a hung collective. Reported, never as idle


@dataclass(frozen=True, slots=True)
class PodUse:
    """One pod's GPUs over the window that ends ``now``.

    Attributes:
        uid: None where the source does not report it.
        gpus: how many GPUs (or instances of one) the source saw for the pod.
        busy: 0..1, of its busiest GPU: what it stayed below for nine tenths of the window.
        mean: 0..1, mean over its GPUs since the last evaluation.
        coverage: of the samples expected in the window, those that are there; of the GPU that has the fewest. Above 1 if samples
            are more frequent than configured.
        age: seconds since the newest sample of the GPU that was silent longest.
        tensor, memory_busy: 0..1 of the busiest GPU: tensor pipes and memory interface; None where it is not exported.
        memory_held: 0..1 of the GPU memory of the fullest GPU; None where it is not exported.
        shared: its GPU is time-sliced among pods, and what was measured is the whole device.
        own: its GPU is time-sliced among pods, and what was measured is the part of this pod alone.
        profiled: measured by profiling metrics; otherwise it is GPU utilization, which cannot distinguish working from spinning.
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
    own: bool = False
    profiled: bool = True


@dataclass(frozen=True, slots=True)
class UtilizationSample:
    """The data of a source about all pods, over one window.

    Attributes:
        at: unix seconds of the evaluation, at which the window ends.
        window: seconds.
        reach: seconds before ``at`` of the oldest sample that can be part of it: the window, or more of it.
        gpus: how many GPUs the source knows of, held by pods or not.
        pods: all that it could name, even those that no longer exist.
        untrusted: scrape jobs that export series of GPUs and are not trusted; nothing of them is in ``pods``.
    """

    at: float
    window: float
    reach: float
    gpus: int
    pods: tuple[PodUse, ...] = ()
    untrusted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GangUse:
    """The use of a gang's GPUs at the last evaluation.

    Attributes:
        uid, attempt: of the gang; an evaluation of another attempt does not count for this one.
        since: unix seconds since when it is in this state.
        at: unix seconds of the evaluation.
        utilization: 0..1, mean over all its GPUs since the previous evaluation; None = unknown, which counts as 1.
        covered: 0..1, the share of its GPUs that the source saw well enough.
        text: why this state, for people.
        weight: 0..1, what the work it would lose is multiplied by: ``utilization``, smoothed over its queue's window from 1
            on, with which it begins whenever nothing was known before; as it is when idle. None = unknown, counts as 1.
    """

    uid: str
    attempt: int
    state: UseState
    since: float
    at: float
    utilization: float | None
    covered: float
    text: str
    weight: float | None = None


def used_share(use: GangUse | None) -> float | None:
    """0..1, the share of a gang's GPUs that counts as used: none while it is stuck. None = not measured."""
    if use is None or use.utilization is None or use.state is UseState.UNKNOWN:
        return None
    return 0.0 if use.state is UseState.STUCK else min(max(use.utilization, 0.0), 1.0)
