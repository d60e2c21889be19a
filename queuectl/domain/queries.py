"""Queries of the API to the store, and their results: pages of workloads in an order, counts, history lines, configuration documents."""

from __future__ import annotations

import base64
import binascii
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Any, Final

from queuectl.domain.errors import BadInput
from queuectl.domain.gpus import Gpus
from queuectl.domain.ledger import HOLDING, Document, Entry, State
from queuectl.domain.reasons import NOT_IN_LINE, Code, Reason
from queuectl.domain.selectors import Selector, matches
from queuectl.domain.words import UNSTORABLE
from queuectl.domain.workload import Placement

# ---- Pages, history lines and documents

LONGEST_PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class WorkloadFilter:
    """Each field that is set must match; no ``states`` means all of them, Finished included.

    Attributes:
        namespaces: any of these.
        labels: a selector of the labels of the job.
    """

    namespace: str | None = None
    queue: str | None = None
    cluster_queue: str | None = None
    kind: str | None = None
    states: frozenset[State] = frozenset()
    namespaces: frozenset[str] | None = None
    user: str | None = None
    code: Code | None = None
    name: str | None = None
    labels: Selector = ()

    def matches(self, entry: Entry) -> bool:
        wanted = (
            (self.namespace, entry.namespace),
            (self.queue, entry.queue),
            (self.cluster_queue, entry.cluster_queue),
            (self.kind, entry.kind),
            (self.user, entry.user),
            (self.code, entry.reason.code),
            (self.name, entry.name),
        )
        fields = all(value is None or value == actual for value, actual in wanted)
        seen = self.namespaces is None or entry.namespace in self.namespaces
        in_state = not self.states or entry.state in self.states
        return fields and seen and in_state and matches(self.labels, dict(entry.labels))


@dataclass(frozen=True, slots=True)
class WorkloadPage:
    """Workloads as lists show them: of each its own row, without placement, lease and intent.

    ``cursor`` asks for the next page; None when this is the last.
    """

    entries: tuple[Entry, ...]
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class LiveWorkloads:
    """Every workload that is not Finished, by uid, at one moment. ``at``: unix seconds by the clock of the database."""

    entries: tuple[Entry, ...]
    at: float


IN_QUEUE_ORDER: Final = (State.PENDING, State.RESERVED)


def in_queue_order(entry: Entry) -> bool:
    """Whether it is pending in queue order."""
    return (
        entry.state in IN_QUEUE_ORDER
        and bool(entry.cluster_queue)
        and entry.reason.code not in NOT_IN_LINE
    )


def turn(entry: Entry) -> tuple[int, float, str]:
    """The order of a queue: priority, then its place, then uid."""
    return (-entry.priority, entry.queue_order_time, entry.uid)


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """Position of a workload, from 1: among those that wait in its ClusterQueue, and in its LocalQueue."""

    cluster_queue: int
    local_queue: int


def positions_in(entries: Iterable[Entry]) -> dict[str, QueuePosition]:
    """The position of each pending workload among all of these, by uid."""
    among: Counter[str] = Counter()
    local: Counter[tuple[str, str]] = Counter()
    positions = {}
    for entry in sorted(filter(in_queue_order, entries), key=turn):
        queue = (entry.namespace, entry.queue)
        among[entry.cluster_queue] += 1
        local[queue] += 1
        positions[entry.uid] = QueuePosition(among[entry.cluster_queue], local[queue])
    return positions


@dataclass(frozen=True, slots=True)
class HistoryLine:
    """One committed step of one workload.

    Attributes:
        id: rises in the order in which lines became visible, so reading ``after`` the last id seen misses none; ids
            can have gaps.
        at: unix seconds.
        cycle: number of the cycle within its epoch.
        placement: the placement this step committed; None when it committed none.
        cluster_queue: of its workload as it is when the line is read; "" when that has none, or its row is deleted.
    """

    id: int
    uid: str
    kind: str
    namespace: str
    name: str
    at: float
    epoch: int
    cycle: int
    attempt: int
    event: str
    from_state: State | None
    to_state: State
    reason: Reason
    placement: Placement | None = None
    cluster_queue: str = ""

    @property
    def evicts(self) -> bool:
        """Whether an eviction begins with this step. Further steps can follow before the pods are deleted, such as a new priority."""
        return self.to_state is State.EVICTING and self.from_state is not State.EVICTING


@dataclass(frozen=True, slots=True, order=True)
class DocumentKey:
    """Identity of a configuration document; ``namespace`` is "" for cluster-wide kinds."""

    kind: str
    namespace: str
    name: str

    @classmethod
    def of(cls, document: Document) -> DocumentKey:
        """Read kind and metadata.

        Raises:
            BadInput: one of them is missing.
        """
        metadata = document.get("metadata")
        metadata = metadata if isinstance(metadata, Mapping) else {}
        kind, name = document.get("kind"), metadata.get("name")
        if not (isinstance(kind, str) and kind and isinstance(name, str) and name):
            raise BadInput("a configuration document needs kind and metadata.name")
        return cls(kind, str(metadata.get("namespace") or ""), name)

    def __str__(self) -> str:
        return (
            f"{self.kind} {self.namespace}/{self.name}"
            if self.namespace
            else f"{self.kind} {self.name}"
        )


@dataclass(frozen=True, slots=True)
class ConfigDocument:
    """``version`` is the configuration revision that wrote it: it is never used again, not even after a deletion."""

    document: Document
    version: int

    @property
    def key(self) -> DocumentKey:
        return DocumentKey.of(self.document)


@dataclass(frozen=True, slots=True)
class ConfigChanges:
    """A change of the configuration.

    Attributes:
        revision: as of which this is.
        written: documents that were created or replaced.
        deleted: keys of the deleted objects.
    """

    revision: int
    written: tuple[Document, ...]
    deleted: frozenset[DocumentKey] = frozenset()


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Which later configurations permit the commit of a plan that was made from an earlier one.

    Attributes:
        documents: keys of all documents of the configuration that it was made from.
        of: whether the plan is right, given how the configuration has changed since. Edits wait for its answer and for the commit.
    """

    documents: Collection[DocumentKey]
    of: Callable[[ConfigChanges], Awaitable[bool]]


# ---- Counts of workloads


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """The workloads of one LocalQueue in one state and for one reason.

    Attributes:
        cluster_queue: "" where the LocalQueue leads to none.
        code: why they are in this state.
        workloads, gpus: how many they are, and the GPUs they request together.
        oldest: unix seconds at which the first of them was queued.
    """

    namespace: str
    queue: str
    cluster_queue: str
    state: State
    code: Code
    workloads: int
    gpus: Gpus
    oldest: float


class WaitingOrder(StrEnum):
    """The order in which pending workloads are listed."""

    TURN = "turn"  # queue order: priority, then time
    AGE = "age"  # the oldest first


# ---- Orders and cursors of a workload list

_MOST: Final = 2**63  # the database's integers are smaller


class SortKey(StrEnum):
    """The keys by which a list is sorted. Workloads with equal values are in the order of namespace, name and uid."""

    NAME = "name"  # namespace, then name
    STATE = "state"
    CLUSTER_QUEUE = "clusterQueue"
    USER = "user"
    GPUS = "gpus"
    PRIORITY = "priority"
    QUEUED_AT = "queuedAt"
    SINCE = "since"
    URGENCY = "urgency"  # by URGENCY of the state; of equal ones, by the time at which they were queued or have finished


URGENCY: Final = {
    **dict.fromkeys((State.PENDING, State.RESERVED), 3),
    **dict.fromkeys(HOLDING, 2),
    **dict.fromkeys((State.HELD, State.BACKOFF, State.DEACTIVATED), 1),
    State.FINISHED: 0,
}
"""The rank of a state in lists for people: workloads that wait for a start, then those that run, then paused ones, then finished ones."""
UNFINISHED: Final = frozenset(State) - {State.FINISHED}


FIELDS: Final = {
    SortKey.STATE: "state",
    SortKey.CLUSTER_QUEUE: "cluster_queue",
    SortKey.USER: "user",
    SortKey.GPUS: "gpu_parts",
    SortKey.PRIORITY: "priority",
    SortKey.QUEUED_AT: "queued_at",
    SortKey.SINCE: "since",
}
"""The field of an Entry, and the column, that holds the value."""
_TEXTS: Final = frozenset({SortKey.STATE, SortKey.CLUSTER_QUEUE, SortKey.USER})


@dataclass(frozen=True, slots=True)
class WorkloadOrder:
    """An order. Text sorts by code point."""

    key: SortKey = SortKey.NAME
    descending: bool = False

    @classmethod
    def parse(cls, text: str) -> WorkloadOrder:
        """Read what :meth:`__str__` writes.

        Raises:
            BadInput: it names no key.
        """
        name = text.removeprefix("-")
        if name not in set(SortKey):
            known = ", ".join(SortKey)
            raise BadInput(
                f"{text!r} is not a sort order: use one of {known}, with a leading - for the reverse order"
            )
        return cls(SortKey(name), text.startswith("-"))

    def __str__(self) -> str:
        return f"-{self.key}" if self.descending else str(self.key)


BY_NAME: Final = WorkloadOrder()
"""An order that no change of a workload changes, so that pages that are read one after the other leave out none."""
MOST_URGENT_FIRST: Final = WorkloadOrder(SortKey.URGENCY, descending=True)
"""The order of lists for people; of equal urgency, the newest first."""


@dataclass(frozen=True, slots=True)
class PagePosition:
    """Where a page ended.

    Attributes:
        order: of the list.
        key: the sort key of the last workload: the value that the order names, then namespace, name and uid. Urgency is two values:
            the rank of the state, and a time.
    """

    order: WorkloadOrder
    key: tuple[Any, ...]

    @classmethod
    def of(cls, entry: Entry, order: WorkloadOrder = BY_NAME) -> PagePosition:
        name = (entry.namespace, entry.name, entry.uid)
        if order.key is SortKey.NAME:
            return cls(order, name)
        if order.key is SortKey.URGENCY:
            at = entry.queued_at if entry.finished_at is None else entry.finished_at
            return cls(order, (URGENCY[entry.state], at, *name))
        value = getattr(entry, FIELDS[order.key])
        return cls(order, (str(value) if order.key in _TEXTS else value, *name))

    @classmethod
    def parse(cls, cursor: str, order: WorkloadOrder = BY_NAME) -> PagePosition:
        """Read what :attr:`cursor` wrote.

        Raises:
            BadInput: it is not such a text, or was written for a list in another order.
        """
        try:
            parts = json.loads(base64.b64decode(cursor, altchars=b"-_", validate=True))
        except (binascii.Error, ValueError, RecursionError):
            parts = None
        if not isinstance(parts, list) or not _fits(parts, order):
            raise BadInput(
                f"cursor {cursor!r} is not one this server gave out for a list sorted by {order}"
            )
        return cls(order, tuple(parts[1:]))

    @property
    def cursor(self) -> str:
        """The position as an opaque token for a URL."""
        text = json.dumps([str(self.order), *self.key], separators=(",", ":"))
        return base64.urlsafe_b64encode(text.encode()).decode()


def _fits(parts: list[Any], order: WorkloadOrder) -> bool:
    if not parts or parts[0] != str(order):
        return False
    if order.key is SortKey.NAME:
        return len(parts) == 4 and _texts(parts)
    if order.key is SortKey.URGENCY:
        ranked = len(parts) == 6 and _is_value(parts[1], SortKey.PRIORITY)
        return ranked and _is_value(parts[2], SortKey.QUEUED_AT) and _texts(parts[3:])
    return len(parts) == 5 and _texts(parts[2:]) and _is_value(parts[1], order.key)


def _texts(parts: list[Any]) -> bool:
    return all(isinstance(part, str) and not UNSTORABLE.search(part) for part in parts)


def _is_value(term: Any, key: SortKey) -> bool:
    if key in _TEXTS:
        return _texts([term])
    number = isinstance(term, int | float) and not isinstance(term, bool)
    if key in (SortKey.GPUS, SortKey.PRIORITY):
        return number and isinstance(term, int) and -_MOST <= term < _MOST
    return number and abs(term) < _MOST  # not infinity, and not NaN


# ---- GPUs held outside the queues


@dataclass(frozen=True, slots=True)
class UnmanagedPod:
    """A pod that holds GPUs on a node and belongs to no job in a queue.

    Attributes:
        gpus: by weight, as in the usage ledger: an instance of a GPU is a part of one.
        since: unix seconds at which the kubelet accepted the pod; None = it has not yet.
    """

    namespace: str
    name: str
    node: str
    gpus: Fraction
    since: float | None


@dataclass(frozen=True, slots=True)
class NamespaceSum:
    """The sum of the requests of one namespace's unmanaged pods."""

    namespace: str
    pods: int
    gpus: Fraction


def summed(pods: Iterable[UnmanagedPod]) -> tuple[NamespaceSum, ...]:
    """One sum per namespace, by name of the namespace."""
    held: dict[str, list[Fraction]] = {}
    for pod in pods:
        held.setdefault(pod.namespace, []).append(pod.gpus)
    return tuple(
        NamespaceSum(namespace, len(gpus), sum(gpus, Fraction()))
        for namespace, gpus in sorted(held.items())
    )
