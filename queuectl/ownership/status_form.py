"""The content of the status of an object, apart from the time of its write. Each API group has its own form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal, Protocol

from queuectl.domain.ledger import LIVE, Entry, State
from queuectl.domain.queries import DocumentKey
from queuectl.domain.queues import QueueConfig
from queuectl.objects.configuration.status_wire import ObjectCondition, ObjectStatus, QueueStatus
from queuectl.ownership.observed import FollowedObject
from queuectl.state.holdings import Row

CLUSTER_QUEUE: Final = "ClusterQueue"
LOCAL_QUEUE: Final = "LocalQueue"
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about all objects that a leader has written to the catalog.

    Attributes:
        objects: those that are not being deleted.
        known_kinds: those of which all objects are known.
        faults: objects whose content does not act, with the reason.
        waiting: objects whose edit acts when the objects are quiet.
        revision: of the catalog with it.
        status: that an object has in the cluster.
    """

    objects: Mapping[DocumentKey, FollowedObject]
    known_kinds: Collection[str]
    faults: Mapping[DocumentKey, str]
    waiting: AbstractSet[DocumentKey]
    revision: int
    status: Callable[[FollowedObject], QueueStatus | None]

    def changes(self, before: Decision | None) -> list[DocumentKey]:
        """The objects whose content, error or wait is another one than before, the newest edit last."""
        objects = self.objects
        if before is None:
            keys = set(objects)
        else:
            was = before.objects  # an object that stays is the same one
            keys = {key for key, followed in objects.items() if was.get(key) is not followed}
            keys |= self.waiting ^ before.waiting
            faults = self.faults.items() ^ before.faults.items()
            keys |= {key for key, _ in faults}
        return sorted(keys & objects.keys(), key=lambda key: objects[key].order)


@dataclass(frozen=True, slots=True)
class QueueUse:
    """The gangs of all queues at one time.

    Attributes:
        entries: the workloads that have not finished.
        held: quota that starting, running and evicting gangs hold.
        reserved: quota that is reserved for other gangs.
        nominal: the configuration with the quota that follows the nodes; None = quota does not follow them.
    """

    entries: Sequence[Entry] = ()
    held: Mapping[Row, int] = field(default_factory=dict)
    reserved: Mapping[Row, int] = field(default_factory=dict)
    nominal: QueueConfig | None = None


@dataclass(frozen=True, slots=True)
class QueuesNow:
    """The queues of a leader.

    Attributes:
        config: that acts.
        labels: of a namespace.
        use: copies the gangs of all queues.
    """

    config: QueueConfig
    labels: Callable[[str], Mapping[str, str]]
    use: Callable[[], QueueUse] = QueueUse


class StatusCounts(Protocol):
    """The counts of all queues at one time."""

    def fill(self, status: QueueStatus, key: DocumentKey) -> None:
        """State the counts of one queue."""


class StatusForm(Protocol):
    """The statuses of the objects of one API group. It does no I/O."""

    def read(self, content: bytes) -> QueueStatus | None:
        """The part of the status of an object that queuectl writes; None = it is absent, or has another form."""

    def status(
        self,
        followed: FollowedObject,
        had: QueueStatus | None,
        decision: Decision,
        queues: QueuesNow,
        now: float,
    ) -> ObjectStatus | None:
        """The status without counts, its conditions in the order of their types; None = queuectl writes no status of this object.

        ``had``: the status that the object has.
        """

    def counts(self, use: QueueUse, queues: QueuesNow) -> StatusCounts:
        """The counts of all queues."""

    def body(self, kind: str, version: str, status: ObjectStatus) -> Mapping[str, Any]:
        """The status as JSON, in one version of the API group."""


def condition(
    had: QueueStatus | None,
    generation: int,
    now: float,
    kind: str,
    status: Literal["True", "False", "Unknown"],
    reason: str,
    message: str,
) -> ObjectCondition:
    """A condition. It keeps the time of the one that the object has, if its status stays."""
    conditions = had.conditions if had is not None else None
    for one in conditions or ():
        if (one.type, one.status) == (kind, status):
            since = one.last_transition_time
            break
    else:
        since = datetime.fromtimestamp(now, UTC).strftime(_TIME)
    return ObjectCondition(kind, status, reason, message, since, generation)


def acts(key: DocumentKey, config: QueueConfig) -> bool:
    """Whether the configuration has a version of an object."""
    match key.kind:
        case "ClusterQueue":
            return key.name in config.cluster_queues
        case "LocalQueue":
            return (key.namespace, key.name) in config.local_queues
        case "ResourceFlavor":
            return key.name in config.flavors
        case "Topology":
            return key.name in config.topologies
        case "Cohort":
            return key.name in config.cohorts
        case "WorkloadPriorityClass":
            return key.name in config.priority_classes
        case "AdmissionCheck":
            return key.name in config.checks
        case _:
            return True


# ---- Gangs

_WAITING: Final = frozenset(state for state in State if state.waiting)


@dataclass(slots=True)
class GangsByQueue:
    """The gangs of each queue, as the metrics count them: a gang with a reservation is pending and reserves."""

    pending: Counter[DocumentKey] = field(default_factory=Counter)
    reserving: Counter[DocumentKey] = field(default_factory=Counter)
    admitted: Counter[DocumentKey] = field(default_factory=Counter)

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> GangsByQueue:
        """Count them."""
        counts = cls()
        gangs = Counter((e.cluster_queue, e.namespace, e.queue, e.state) for e in entries)
        for (target, namespace, name, state), count in gangs.items():
            of_queue = DocumentKey(CLUSTER_QUEUE, "", target)
            for key in (of_queue, DocumentKey(LOCAL_QUEUE, namespace, name)):
                counts.pending[key] += count * (state in _WAITING)
                counts.reserving[key] += count * (state in LIVE or state is State.RESERVED)
                counts.admitted[key] += count * (state in LIVE)
        return counts

    def fill(self, status: QueueStatus, key: DocumentKey) -> None:
        status.pending_workloads = self.pending[key]
        status.reserving_workloads = self.reserving[key]
        status.admitted_workloads = self.admitted[key]
