"""Queries of the API to the store, and their results: pages of workloads, history lines, configuration documents."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from queuectl.domain.errors import BadInput
from queuectl.domain.ledger import Document, Entry, State
from queuectl.domain.reasons import NOT_IN_LINE, Code, Reason
from queuectl.domain.workload import Placement

LONGEST_PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class WorkloadFilter:
    """Each field that is set must match; no ``states`` means all of them, Finished included.

    ``namespaces``: any of these.
    """

    namespace: str | None = None
    queue: str | None = None
    cluster_queue: str | None = None
    kind: str | None = None
    states: frozenset[State] = frozenset()
    namespaces: frozenset[str] | None = None
    user: str | None = None
    code: Code | None = None

    def matches(self, entry: Entry) -> bool:
        wanted = (
            (self.namespace, entry.namespace),
            (self.queue, entry.queue),
            (self.cluster_queue, entry.cluster_queue),
            (self.kind, entry.kind),
            (self.user, entry.user),
            (self.code, entry.reason.code),
        )
        fields = all(value is None or value == actual for value, actual in wanted)
        seen = self.namespaces is None or entry.namespace in self.namespaces
        return fields and seen and (not self.states or entry.state in self.states)


@dataclass(frozen=True, slots=True)
class WorkloadPage:
    """Workloads as lists show them: of each its own row, without placement, lease and intent.

    ``cursor`` asks for the next page; None when this is the last.
    """

    entries: tuple[Entry, ...]
    cursor: str | None = None


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
        of: whether the plan is right all the same, given what became of the configuration since.
    """

    documents: Collection[DocumentKey]
    of: Callable[[ConfigChanges], bool]
