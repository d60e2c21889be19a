"""The bytes of a watch or a list, decoded once: the envelope first, then each object directly into its record.

A watch is one JSON document per line, cut anywhere by the network; :class:`LineSplitter` keeps the tail. Objects that no reader
takes (unlabeled jobs) are dropped here. Objects that queuectl no longer manages become ``Deleted``.

Each object is a unit of its own: one that cannot be decoded, whatever its reader raises, becomes ``Unreadable``, and the others of its
page or part are not affected.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from queuectl.cluster.client import Expired, failure
from queuectl.cluster.identity import ObjectIdentity, identify
from queuectl.cluster.nesting import LEVELS, decoded
from queuectl.cluster.resources import Resource
from queuectl.domain.containment import Boundary, Containment, entering
from queuectl.domain.errors import ClusterError, ClusterUnavailable
from queuectl.domain.jobs import PodPhase
from queuectl.domain.records import Deleted, Delta, ListCompleted, Unreadable, Upserted, key_of
from queuectl.domain.set_aside_objects import Received

INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"


class _Meta(msgspec.Struct, rename="camel", gc=False):
    resource_version: str = ""
    uid: str = ""
    name: str = ""
    annotations: dict[str, str] | None = None


class _Object(msgspec.Struct, gc=False):
    metadata: _Meta


_ENDED: Final = frozenset({PodPhase.SUCCEEDED.value, PodPhase.FAILED.value})


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
class ResourceFeed:
    """State of one resource's stream.

    Attributes:
        version: the newest resourceVersion, from which a watch can continue.
        keys: of all objects that were delivered and not deleted since, also of unreadable ones.
        containment: of the process.
    """

    resource: Resource
    containment: Containment
    version: str = ""
    keys: set[str] = field(default_factory=set)

    def events(self, lines: Iterable[bytes]) -> WatchBatch:
        """Decode lines of a watch."""
        batch = WatchBatch()
        for line in lines:
            if not line:
                continue
            batch.events += 1
            try:
                self._event(decoded(_event, line, LEVELS + 1), batch)
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
            page = decoded(_list, body, LEVELS + 2)
            batch = WatchBatch(events=len(page.items))
            for item in page.items:
                self._upsert(item, batch.deltas)
        except msgspec.MsgspecError as error:
            raise ClusterUnavailable(f"{self.resource.path}: not a list: {error}") from error
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
                self._delete(_meta(event.object), batch.deltas)
            case "BOOKMARK":
                meta = _meta(event.object)
                self.version = meta.resource_version
                if (meta.annotations or {}).get(INITIAL_EVENTS_END) == "true":
                    self.complete(batch)
            case _:
                batch.error = _ended(self.resource, event.object)

    def _upsert(self, raw: msgspec.Raw, deltas: list[Delta]) -> None:
        if self.containment.guards(Boundary.OBJECT) and self._left_out(raw, deltas):
            return
        try:
            record = decoded(self.resource.read, raw, LEVELS)
        except Exception as error:  # noqa: BLE001 - contained
            self._set_aside(raw, error, deltas)
            return
        if record is None:
            self._delete(_meta(raw), deltas)
            return
        self.version, key = str(record.version), key_of(record)
        self.keys.add(key)
        deltas.append(Upserted(record))
        self.containment.passed(Boundary.OBJECT, key)

    def _left_out(self, raw: msgspec.Raw, deltas: list[Delta]) -> bool:
        """Whether it is an object whose reader ended a process. It is not decoded; then it counts as unreadable."""
        found = identify(raw)
        key = found.uid if self.resource.by_uid else found.name
        waits = self.containment.waits(
            Boundary.OBJECT, key, found.resource_version, found.namespace
        )
        if waits is None or waits.suspect is None:
            entering(Boundary.OBJECT, key, self._ref(found), found.namespace)
            return False
        self._keep_unreadable(key, found, deltas)
        return True

    def _ref(self, identity: ObjectIdentity) -> str:
        return _unreadable(self.resource.name, "", identity).ref

    def _keep_unreadable(
        self, key: str, identity: ObjectIdentity, deltas: list[Delta]
    ) -> Unreadable:
        self.version = identity.resource_version or self.version
        self.keys.add(key)
        unreadable = _unreadable(self.resource.name, key, identity)
        deltas.append(unreadable)
        return unreadable

    def _set_aside(self, raw: msgspec.Raw, error: Exception, deltas: list[Delta]) -> None:
        """Report an object that its reader cannot decode. Its identity is decoded in another way."""
        identity = identify(raw)
        key = identity.uid if self.resource.by_uid else identity.name
        unreadable = self._keep_unreadable(key, identity, deltas)
        received = Received(self.resource.name, bytes(raw))
        self.containment.inputs.put(Boundary.OBJECT, key, received)
        self.containment.failed(
            Boundary.OBJECT,
            key,
            error,
            unreadable.ref,
            namespace=identity.namespace,
            version=identity.resource_version,
        )

    def _delete(self, meta: _Meta, deltas: list[Delta]) -> None:
        key = meta.uid if self.resource.by_uid else meta.name
        self.version = meta.resource_version
        self.containment.passed(Boundary.OBJECT, key)
        if key in self.keys:
            self.keys.discard(key)
            deltas.append(Deleted(self.resource.name, key, int(meta.resource_version)))


def _meta(raw: msgspec.Raw) -> _Meta:
    return decoded(_object, raw, LEVELS).metadata


def _unreadable(resource: str, key: str, identity: ObjectIdentity) -> Unreadable:
    return Unreadable(
        resource,
        key,
        int(identity.resource_version) if identity.resource_version.isdecimal() else 0,
        identity.namespace,
        identity.name,
        identity.node_name,
        terminal=identity.phase in _ENDED,
        terminating=bool(identity.deletion_timestamp),
        suspended=identity.suspended,
    )


def _ended(resource: Resource, raw: msgspec.Raw) -> ClusterError:
    """The error for an ERROR event, which holds a ``v1.Status``."""
    error = failure(f"watch {resource.path}", _code(raw).code or 500, bytes(raw))
    return error if isinstance(error, Expired) else ClusterUnavailable(str(error))
