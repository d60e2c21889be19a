"""The records of shadow mode: the state of a cluster that another controller manages, one observation after the other, and sums over time.

Shadow mode starts nothing. At each observation it reads the cluster, and the planner answers which waiting gangs fit together now. The sums
count a gang only between two observations that both show it, so an error of one observation is in no sum. Times are unix seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from queuectl.domain.fleet import Node
from queuectl.domain.workload import Placement, PodSet

MOST_GANGS: Final = 5000
"""Gangs of an observation that are recorded, in the order of the plan."""
MOST_SEEN: Final = 20_000
"""Gangs of an observation in the trace."""


class GangState(StrEnum):
    """The state of a gang at the last observation that shows it."""

    WAITING = "Waiting"
    UNBOUND = "Unbound"  # admitted by the other controller; some of its pods have no node
    ELSEWHERE = "Elsewhere"  # it runs with all its pods, has ended, or was deleted


@dataclass(frozen=True, slots=True)
class GangName:
    """A gang and its size, as the cluster shows it.

    Attributes:
        uid: of its job, or of its Workload without one.
        queue: LocalQueue.
        gpus: of all its pods.
    """

    uid: str
    namespace: str
    name: str
    kind: str
    queue: str
    cluster_queue: str
    gpus: float
    pods: int


@dataclass(frozen=True, slots=True)
class WaitingGang:
    """A gang that waits at an observation.

    Attributes:
        fits: GPUs with which the plan starts it now; None = it does not fit, together with the gangs before it.
        code: of the reason that queuectl would give; empty if it fits.
        message: of this reason.
    """

    gang: GangName
    fits: float | None = None
    code: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class UnboundGang:
    """A gang that the other controller admitted, of which pods have no node.

    Attributes:
        admitted_at: time of its admission.
        pods: without a node, including those that were not created yet.
        gpus: of these pods.
    """

    gang: GangName
    admitted_at: float
    pods: int
    gpus: float


@dataclass(frozen=True, slots=True)
class SeenGang:
    """A gang at one observation.

    Attributes:
        created_at: of its object.
        placement: None = not all its pods have nodes.
        since: time of its admission; None = not known.
        blocked: it waits, and must not be planned.
        admitted: it holds its quota.
    """

    gang: GangName
    podsets: tuple[PodSet, ...]
    priority: int
    user: str
    limit: float | None
    created_at: float
    placement: Placement | None = None
    since: float | None = None
    blocked: bool = False
    admitted: bool = False

    @property
    def age(self) -> tuple[float, str]:
        """The gang that was created first is the smallest."""
        return self.created_at, self.gang.uid


@dataclass(frozen=True, slots=True)
class Observation:
    """The state of the cluster at a time.

    Attributes:
        gpus: of all nodes.
        free: GPUs that no pod and no admitted gang holds, on nodes that take pods.
        waiting, unbound: at most :data:`MOST_GANGS` of each.
        decided: the plan is complete and verified. Otherwise no gang has an answer, and the observation is in no sum.
        left_out: what is not in the observation: objects that could not be read, each with the reason, and gangs beyond :data:`MOST_GANGS`.
        gangs: at most :data:`MOST_SEEN` gangs in any state, those that were created first.
        nodes: all nodes. Their allocatable is without what pods of no gang use.
    """

    at: float
    gpus: float
    free: float
    waiting: tuple[WaitingGang, ...] = ()
    unbound: tuple[UnboundGang, ...] = ()
    decided: bool = True
    left_out: tuple[str, ...] = ()
    gangs: tuple[SeenGang, ...] = ()
    nodes: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class LastObservation:
    """The part of an observation that the next one is compared with.

    Attributes:
        fits: uid of each gang that fits to the GPUs with which it would start.
        waits: uid of each waiting gang to its GPUs.
        unbound: uid of each admitted gang with pods without a node to the GPUs of these pods.
    """

    at: float
    gpus: float
    free: float
    decided: bool
    fits: Mapping[str, float] = field(default_factory=dict)
    waits: Mapping[str, float] = field(default_factory=dict)
    unbound: Mapping[str, float] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GangRecord:
    """A gang over all observations that show it waiting or unbound.

    Attributes:
        first_at, last_at: the first and the last of these observations.
        waited: seconds for which it waited.
        fitted: seconds for which it waited and fitted.
        fits_since: the start of the current period in which it fits; None = it does not fit.
        startable: GPU-seconds with which it would have run while it fitted.
        unbound: seconds for which pods of it had no node after its admission.
        unbound_gpus: GPU-seconds of these pods.
        unbound_since: time of its admission; None = all its pods have a node.
        reasons: code to seconds of waiting.
        message: the last reason.
    """

    gang: GangName
    first_at: float
    last_at: float
    state: GangState = GangState.WAITING
    waited: float = 0.0
    fitted: float = 0.0
    fits_since: float | None = None
    startable: float = 0.0
    unbound: float = 0.0
    unbound_gpus: float = 0.0
    unbound_since: float | None = None
    reasons: Mapping[str, float] = field(default_factory=dict)
    message: str = ""


@dataclass(frozen=True, slots=True)
class ShadowSums:
    """Sums over a span of time, in seconds and GPU-seconds.

    Attributes:
        observed: seconds between observations that follow each other.
        fitting: seconds in which at least one waiting gang fitted.
        gpus: of all nodes.
        free: of free GPUs.
        free_while_fitting: of free GPUs while a waiting gang fitted.
        startable: of the waiting gangs that fitted, which fit together. At most ``free_while_fitting``.
        waiting: seconds of waiting, summed over gangs.
        waiting_gpus: GPUs of waiting gangs.
        unbound: seconds in which an admitted gang had pods without a node, summed over gangs.
        unbound_gpus: GPUs of these pods.
        reasons: code to seconds of waiting, summed over gangs that did not fit.
    """

    observed: float = 0.0
    fitting: float = 0.0
    gpus: float = 0.0
    free: float = 0.0
    free_while_fitting: float = 0.0
    startable: float = 0.0
    waiting: float = 0.0
    waiting_gpus: float = 0.0
    unbound: float = 0.0
    unbound_gpus: float = 0.0
    reasons: Mapping[str, float] = field(default_factory=dict)

    def __add__(self, other: ShadowSums) -> ShadowSums:
        reasons = dict(self.reasons)
        for code, seconds in other.reasons.items():
            reasons[code] = reasons.get(code, 0.0) + seconds
        sums = {name: getattr(self, name) + getattr(other, name) for name in AMOUNTS}
        return ShadowSums(**sums, reasons=reasons)

    def times(self, share: float) -> ShadowSums:
        """The sums of a share, 0 to 1, of the span."""
        sums = {name: getattr(self, name) * share for name in AMOUNTS}
        reasons = {code: seconds * share for code, seconds in self.reasons.items()}
        return ShadowSums(**sums, reasons=reasons)


AMOUNTS: Final = (
    "observed",
    "fitting",
    "gpus",
    "free",
    "free_while_fitting",
    "startable",
    "waiting",
    "waiting_gpus",
    "unbound",
    "unbound_gpus",
)
"""The sums that are numbers."""


@dataclass(frozen=True, slots=True)
class ShadowFold:
    """The changes of all records by one observation.

    Attributes:
        last: what the next observation is compared with.
        hours: begin of an hour to the sums that are added to it.
        gangs: the changed records.
    """

    last: LastObservation
    hours: Mapping[int, ShadowSums]
    gangs: tuple[GangRecord, ...]


@dataclass(frozen=True, slots=True)
class ShadowHistory:
    """The records about a span of full hours.

    Attributes:
        hours: begin of an hour to its sums, in order.
        gangs: those that were seen in the span, those with the most GPU-seconds that could have run first.
        gang_count: of all gangs that were seen in the span.
        last: the last observation; None before the first one.
    """

    hours: Mapping[int, ShadowSums]
    gangs: tuple[GangRecord, ...]
    gang_count: int
    last: LastObservation | None

    @property
    def total(self) -> ShadowSums:
        """The sums over all hours."""
        return sum(self.hours.values(), ShadowSums())
