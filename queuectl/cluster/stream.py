"""The bytes of a watch or a list, decoded once: the envelope first, then each object directly into its record.

A watch is one JSON document per line, cut anywhere by the network; :class:`LineSplitter` keeps the tail. Objects that no reader
takes (unlabelled jobs) are dropped here. Objects that queuectl no longer manages become ``Deleted``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from queuectl.cluster.client import Expired, failure
from queuectl.cluster.resources import Resource
from queuectl.domain.errors import ClusterError, ClusterUnavailable
from queuectl.domain.job_records import JobRecord
from queuectl.domain.pod_records import PodRecord
from queuectl.domain.provisioning import ProvisioningRecord
from queuectl.domain.records import (
    ClaimRecord,
    ClaimTemplateRecord,
    Deleted,
    Delta,
    LimitRangeRecord,
    ListCompleted,
    NodeRecord,
    Record,
    ResourceQuotaRecord,
    Upserted,
)
from queuectl.objects.errors import RequestError

log = logging.getLogger(__name__)

INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"


class _Meta(msgspec.Struct, rename="camel", gc=False):
    resource_version: str = ""
    uid: str = ""
    name: str = ""
    annotations: dict[str, str] | None = None


class _Object(msgspec.Struct, gc=False):
    metadata: _Meta


class _Event(msgspec.Struct, gc=False):
    type: str
    object: msgspec.Raw


class _ListMeta(msgspec.Struct, rename="camel", gc=False):
    resource_version: str = ""
    next: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct, gc=False):
    metadata: _ListMeta
    items: list[msgspec.Raw]


class _Code(msgspec.Struct, gc=False):
    code: int = 0


_event = msgspec.json.Decoder(_Event).decode
_object = msgspec.json.Decoder(_Object).decode
_list = msgspec.json.Decoder(_List).decode
_code = msgspec.json.Decoder(_Code).decode


class LineSplitter:
    """Complete lines from parts of any size."""

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that this part completes."""
        *lines, self._tail = (self._tail + piece).split(b"\n")
        return lines


def key_of(record: Record) -> str:
    """The key of an object in deltas: the uid of a namespaced object, the name of each other object."""
    match record:
        case (
            JobRecord()
            | PodRecord()
            | ResourceQuotaRecord()
            | LimitRangeRecord()
            | ClaimRecord()
            | ClaimTemplateRecord()
            | ProvisioningRecord()
        ):
            return record.uid
        case NodeRecord():
            return record.node.name
        case _:
            return record.name


@dataclass(slots=True)
class WatchBatch:
    """The content of one part of a watch.

    Attributes:
        deltas: in order.
        events: the number of events, with dropped ones and bookmarks.
        complete: a ``ListCompleted`` is among the deltas.
        error: why the watch has ended. Deltas before it are valid.
    """

    deltas: list[Delta] = field(default_factory=list)
    events: int = 0
    complete: bool = False
    error: ClusterError | None = None


@dataclass(slots=True)
class Feed:
    """State of one resource's stream.

    Attributes:
        version: the newest resourceVersion, from which a watch can continue.
        keys: of all objects that were delivered and not deleted since.
    """

    resource: Resource
    version: str = ""
    keys: set[str] = field(default_factory=set)
    unreadable: int = 0

    def events(self, lines: Iterable[bytes]) -> WatchBatch:
        """Decode lines of a watch."""
        batch = WatchBatch()
        for line in lines:
            if not line:
                continue
            batch.events += 1
            try:
                self._event(_event(line), batch)
            except msgspec.MsgspecError as error:
                batch.error = ClusterUnavailable(f"{self.resource.path}: not a watch: {error}")
            if batch.error is not None:
                break
        return batch

    def page(self, body: bytes) -> tuple[WatchBatch, str]:
        """Decode one page of a list. Returns the token of the next page, which is empty on the last.

        Raises:
            ClusterUnavailable: the bytes are no list.
        """
        try:
            page = _list(body)
        except msgspec.MsgspecError as error:
            raise ClusterUnavailable(f"{self.resource.path}: not a list: {error}") from error
        batch = WatchBatch(events=len(page.items))
        for item in page.items:
            self._upsert(item, batch.deltas)
        self.version = page.metadata.resource_version
        if not page.metadata.next:
            self.complete(batch)
        return batch, page.metadata.next

    def complete(self, batch: WatchBatch) -> None:
        """End a list: all objects have been delivered."""
        version = int(self.version or 0)
        batch.deltas.append(ListCompleted(self.resource.name, frozenset(self.keys), version))
        batch.complete = True

    def _event(self, event: _Event, batch: WatchBatch) -> None:
        match event.type:
            case "ADDED" | "MODIFIED":
                self._upsert(event.object, batch.deltas)
            case "DELETED":
                self._delete(_object(event.object).metadata, batch.deltas)
            case "BOOKMARK":
                meta = _object(event.object).metadata
                self.version = meta.resource_version
                if (meta.annotations or {}).get(INITIAL_EVENTS_END) == "true":
                    self.complete(batch)
            case _:
                batch.error = _ended(self.resource, event.object)

    def _upsert(self, raw: msgspec.Raw, deltas: list[Delta]) -> None:
        try:
            record = self.resource.read(raw)
        except (msgspec.MsgspecError, RequestError) as error:
            # One unreadable object must not hide all others. An API server with valid data does not send one.
            meta = _object(raw).metadata
            log.error("unreadable %s %s: %s", self.resource.name, meta.name, error)  # noqa: TRY400 - says it all
            self.unreadable += 1
            self.version = meta.resource_version
            return
        if record is None:
            self._delete(_object(raw).metadata, deltas)
            return
        self.version = str(record.version)
        self.keys.add(key_of(record))
        deltas.append(Upserted(record))

    def _delete(self, meta: _Meta, deltas: list[Delta]) -> None:
        key = meta.uid if self.resource.by_uid else meta.name
        self.version = meta.resource_version
        if key in self.keys:
            self.keys.discard(key)
            deltas.append(Deleted(self.resource.name, key, int(meta.resource_version)))


def _ended(resource: Resource, raw: msgspec.Raw) -> ClusterError:
    """The error for an ERROR event, which holds a ``v1.Status``."""
    error = failure(f"watch {resource.path}", _code(raw).code or 500, bytes(raw))
    return error if isinstance(error, Expired) else ClusterUnavailable(str(error))
