"""The trace of a cluster that shadow mode records: each gang with its request and its attempts, the nodes over time, and the gaps.

A start or an end between two observations is known within bounds. Times are unix seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from queuectl.domain.fleet import Node
from queuectl.domain.shadow import GangName
from queuectl.domain.workload import Placement, PodSet

MOST_ATTEMPTS: Final = 50
"""Attempts of one gang that are kept: the last ones."""
MOST_GAPS: Final = 500
"""Gaps that are kept: the last ones."""


@dataclass(frozen=True, slots=True)
class Between:
    """A time that is not earlier than ``least`` and not later than ``most``."""

    least: float
    most: float


class TracedState(StrEnum):
    """The state of a gang at the last observation."""

    WAITING = "Waiting"
    RUNNING = "Running"  # each of its pods has a node
    GONE = "Gone"  # it has ended, or was deleted


@dataclass(frozen=True, slots=True)
class TracedAttempt:
    """The time in which all pods of a gang had nodes.

    Attributes:
        ended: None while it runs.
        placement: its nodes and flavors at its start.
        interrupted: it ended because pods lost their nodes, and the gang was not evicted.
    """

    started: Between
    placement: Placement
    ended: Between | None = None
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class TracedGang:
    """A gang over all observations that show it.

    Attributes:
        podsets: its request, as a plan needs it.
        priority: larger is earlier.
        user: empty if unknown.
        limit: seconds after which it is stopped, over all its attempts; None = no limit.
        arrived: the time since which it can start.
        attempts: oldest first.
        gone: when it left the cluster; None while it is there.
        resized: its size changed while it ran.
    """

    gang: GangName
    podsets: tuple[PodSet, ...]
    priority: int
    user: str
    limit: float | None
    arrived: float
    state: TracedState
    attempts: tuple[TracedAttempt, ...] = ()
    gone: Between | None = None
    resized: bool = False


@dataclass(frozen=True, slots=True)
class NodeVersion:
    """A node from a time on. ``node``: allocatable is without what pods of no gang use; None = it does not exist."""

    name: str
    at: float
    node: Node | None


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """The time that the trace covers.

    Attributes:
        began: the first observation.
        until: the last observation.
        gaps: the times between two observations that are too far apart, oldest first.
    """

    began: float
    until: float
    gaps: tuple[Between, ...] = ()


@dataclass(frozen=True, slots=True)
class TraceBook:
    """The state with which the next observation is compared.

    Attributes:
        span: None before the first observation.
        gangs: by uid, those that have not left, and those that left lately.
        nodes: by name, the last version of each.
    """

    span: TraceSpan | None = None
    gangs: Mapping[str, TracedGang] = field(default_factory=dict)
    nodes: Mapping[str, NodeVersion] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TraceStep:
    """The changes of the trace by one observation.

    Attributes:
        begins: everything before is forgotten: it is the first observation, or the clock was set back.
    """

    span: TraceSpan
    gangs: tuple[TracedGang, ...] = ()
    nodes: tuple[NodeVersion, ...] = ()
    begins: bool = False


@dataclass(frozen=True, slots=True)
class ShadowTrace:
    """The whole trace."""

    span: TraceSpan
    gangs: tuple[TracedGang, ...]
    nodes: tuple[NodeVersion, ...]


# ---- The simulated report


@dataclass(frozen=True, slots=True)
class FigureInterval:
    """A figure that is not smaller than ``least`` and not larger than ``most``; None = it has no known bound."""

    least: float | None
    most: float | None

    def meets(self, figure: FigureInterval) -> bool:
        """Whether both can be equal."""
        return not (_above(self.least, figure.most) or _above(figure.least, self.most))


def _above(low: float | None, high: float | None) -> bool:
    return low is not None and high is not None and low > high


@dataclass(frozen=True, slots=True)
class QueueWaits:
    """Seconds that the gangs of a queue waited. Percentiles are by nearest rank.

    Attributes:
        waiting: gangs that had not started at the end.
    """

    p50: FigureInterval
    p95: FigureInterval
    waiting: FigureInterval


@dataclass(frozen=True, slots=True)
class SideFigures:
    """The figures of one side: as observed, or under queuectl.

    Attributes:
        total: of all gangs that arrived.
        queues: of each LocalQueue, as namespace/name.
        idle: GPU-seconds on nodes that take pods, of GPUs on which no gang ran while one waited that requests GPUs.
        utilization: GPU-seconds of running gangs, as a part of those and of the free ones.
        evictions: of gangs that ran.
    """

    total: QueueWaits
    queues: Mapping[str, QueueWaits]
    idle: FigureInterval
    utilization: FigureInterval
    evictions: FigureInterval


@dataclass(frozen=True, slots=True)
class SimulatedReport:
    """One continued simulation from the first observation, with the same figures as observed.

    Attributes:
        began, until: unix seconds of its time.
        made_at: unix seconds.
        took: seconds of its computation.
        gangs: that took part.
        arrived: gangs of each LocalQueue that arrived in its time.
        running_at_begin: gangs of these that ran at its begin, and are in no waiting time.
        unfinished: gangs that still ran or waited at its end.
        left_out: gangs whose queue or request is not in the configuration.
        resized: gangs whose size changed while they ran.
        gaps: seconds without observations.
        whole: it reaches the last observation; otherwise its computation took too long.
    """

    began: float
    until: float
    made_at: float
    took: float
    gangs: int
    arrived: Mapping[str, int]
    running_at_begin: int
    unfinished: int
    left_out: int
    resized: int
    gaps: float
    whole: bool
    observed: SideFigures
    simulated: SideFigures


@dataclass(frozen=True, slots=True)
class TraceProgress:
    """The state of the records.

    Attributes:
        span: None before the first observation.
        gangs: gangs in the trace.
        simulated_at: unix seconds of the last simulated report; None = it does not exist yet.
    """

    span: TraceSpan | None
    gangs: int
    simulated_at: float | None
