"""The bytes of a watch or a list, decoded once: the envelope first, then each object directly into its record.

A watch is one JSON document per line, cut anywhere by the network; :class:`LineSplitter` keeps the tail. Objects that no reader
takes (unlabeled jobs) are dropped here. Objects that queuectl no longer manages become ``Deleted``.

Each object is a separate unit: one that cannot be decoded, whatever its reader raises, becomes ``Unreadable``, with its identity,
because an unreadable object is not a deleted one. The others of its page or part are not affected. A connection that broke without an
error is silent for minutes, so a watch can be compared with the version of its collection now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from queuectl.cluster.client import Api, Expired, failure
from queuectl.cluster.resources import Resource
from queuectl.domain.containment import Boundary, Containment, Received, entering
from queuectl.domain.errors import ClusterError, ClusterUnavailable
from queuectl.domain.jobs import PodPhase
from queuectl.domain.records import (
    Deleted,
    Delta,
    ListCompleted,
    Unreadable,
    Upserted,
    key_of,
    unit_of,
)

# ---- Batches of records

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
        objects: the number of events without bookmarks and errors.
        complete: a ``ListCompleted`` is among the deltas.
        error: why the watch has ended. Deltas before it are valid.
    """

    deltas: list[Delta] = field(default_factory=list)
    events: int = 0
    objects: int = 0
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
            except ValueError as error:
                batch.error = ClusterUnavailable(f"{self.resource.path}: not a watch: {error}")
            if batch.error is not None:
                break
        return batch

    def page(self, body: bytes) -> tuple[WatchBatch, str]:
        """Decode one page of a list. Returns the token of the next page, which is empty on the last.

        Raises:
            ClusterUnavailable: the bytes are not a list.
        """
        try:
            page = decoded(_list, body, LEVELS + 2)
            batch = WatchBatch(events=len(page.items), objects=len(page.items))
            for item in page.items:
                self._upsert(item, batch.deltas)
        except ValueError as error:
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
                batch.objects += 1
                self._upsert(event.object, batch.deltas)
            case "DELETED":
                batch.objects += 1
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
        self._passed(key)

    def _left_out(self, raw: msgspec.Raw, deltas: list[Delta]) -> bool:
        """Whether it is an object whose reader ended a process. It is not decoded; then it counts as unreadable."""
        found = identify(raw)
        key = found.uid if self.resource.by_uid else found.name
        unit = self._unit(key)
        waits = self.containment.waits(
            Boundary.OBJECT, unit, found.resource_version, found.namespace
        )
        if waits is None or waits.suspect is None:
            entering(Boundary.OBJECT, unit, self._ref(found), found.namespace)
            return False
        self._keep_unreadable(key, found, deltas)
        return True

    def _unit(self, key: str) -> str:
        return unit_of(self.resource.name, key, by_uid=self.resource.by_uid)

    def _passed(self, key: str) -> None:
        if not self.containment.empty:
            self.containment.passed(Boundary.OBJECT, self._unit(key))

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
        unit, received = self._unit(key), Received(self.resource.name, bytes(raw))
        self.containment.inputs.put(Boundary.OBJECT, unit, received)
        self.containment.failed(
            Boundary.OBJECT,
            unit,
            error,
            unreadable.ref,
            namespace=identity.namespace,
            version=identity.resource_version,
        )

    def _delete(self, meta: _Meta, deltas: list[Delta]) -> None:
        key = meta.uid if self.resource.by_uid else meta.name
        self.version = meta.resource_version
        self._passed(key)
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


# ---- The version of a collection

_METADATA_ONLY: Final = (
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
)


class _VersionMeta(msgspec.Struct, rename="camel"):
    resource_version: str


class _VersionedList(msgspec.Struct):
    metadata: _VersionMeta


_versioned_list: Final = msgspec.json.Decoder(_VersionedList).decode


async def current_version(api: Api, path: str) -> int:
    """The resourceVersion of a collection, by a consistent read of at most one object.

    Raises:
        ClusterError: no usable answer.
    """
    body = await api.request("GET", path, query=[("limit", "1")], accept=_METADATA_ONLY)
    try:
        return int(_versioned_list(body).metadata.resource_version)
    except ValueError as error:
        raise ClusterUnavailable(f"{path}: not a list: {error}") from error


# ---- The identity of an object

_IDENTITY_LEVELS: Final = 3
"""Labels are values at this level, and no part of an identity is deeper."""
_Value = TypeVar("_Value")
_Fields = dict[str, msgspec.Raw]


class _Identified(msgspec.Struct, gc=False):
    metadata: _Fields
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


_identified = msgspec.json.Decoder(_Identified).decode
_fields = msgspec.json.Decoder(_Fields).decode
_text = msgspec.json.Decoder(str).decode
_texts = msgspec.json.Decoder(dict[str, str]).decode
_boolean = msgspec.json.Decoder(bool).decode


@dataclass(frozen=True, slots=True)
class ObjectIdentity:
    """The parts that each object has, also an unreadable one. A part that is absent or malformed is empty.

    Attributes:
        uid: of the object.
        namespace: empty for an object without one.
        name: of the object.
        resource_version: of this state of the object.
        node_name: ``spec.nodeName`` of a pod.
        phase: ``status.phase`` of a pod.
        deletion_timestamp: empty while it is not being deleted.
        labels: empty if they cannot be read.
        annotations: empty if they cannot be read.
        suspended: ``spec.suspend`` or ``spec.runPolicy.suspend`` of a job; None if it has neither.
    """

    uid: str
    namespace: str
    name: str
    resource_version: str
    node_name: str
    phase: str
    deletion_timestamp: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    suspended: bool | None = None


def identify(document: bytes | msgspec.Raw) -> ObjectIdentity:
    """The identity of one object. Each part is read alone, so no other part can hide it, at any depth.

    Raises:
        ValueError: the bytes are not a JSON object with metadata.
    """
    found = _identified(shallow(bytes(document), _IDENTITY_LEVELS))
    meta, spec, status = found.metadata, _part(_fields, found.spec), _part(_fields, found.status)
    return ObjectIdentity(
        uid=_string(meta, "uid"),
        namespace=_string(meta, "namespace"),
        name=_string(meta, "name"),
        resource_version=_string(meta, "resourceVersion"),
        node_name=_string(spec or {}, "nodeName"),
        phase=_string(status or {}, "phase"),
        deletion_timestamp=_string(meta, "deletionTimestamp"),
        suspended=_suspended(spec or {}),
        labels=_strings(meta, "labels"),
        annotations=_strings(meta, "annotations"),
    )


def _string(fields: _Fields, name: str) -> str:
    return (_part(_text, fields[name]) if name in fields else None) or ""


def _suspended(spec: _Fields) -> bool | None:
    policy = _part(_fields, spec["runPolicy"]) if "runPolicy" in spec else None
    for fields in (spec, policy or {}):
        found = _part(_boolean, fields["suspend"]) if "suspend" in fields else None
        if found is not None:
            return found
    return None


def _strings(fields: _Fields, name: str) -> Mapping[str, str]:
    return (_part(_texts, fields[name]) if name in fields else None) or {}


def _part(decode: Callable[[msgspec.Raw], _Value], raw: msgspec.Raw) -> _Value | None:
    try:
        return decode(raw)
    except ValueError:
        return None


# ---- Documents that nest too deep

LEVELS: Final = 100
"""Levels of arrays and objects in one object of the API server that queuectl reads. No field that it uses has as many."""
_PART: Final = 1 << 20  # bytes at once, so that memory does not grow with a page
_QUOTE: Final = ord('"')
_STEPS: Final = np.zeros(256, np.int8)
_STEPS[[ord("["), ord("{")]] = 1
_STEPS[[ord("]"), ord("}")]] = -1
_Decoded = TypeVar("_Decoded")


def decoded(
    decode: Callable[[bytes | msgspec.Raw], _Decoded], document: bytes | msgspec.Raw, levels: int
) -> _Decoded:
    """The decoded document, or its upper levels if it nests too deep for the decoder.

    A page of a list has two levels above its objects, and a line of a watch has one.
    """
    try:
        return decode(document)
    except RecursionError:
        return decode(shallow(bytes(document), levels))


def shallow(document: bytes, levels: int) -> bytes:
    """The same document, in which each array and object below the given number of levels is empty.

    In linear time and without recursion. Bytes that are not JSON become other bytes that are not JSON.
    """
    return b"".join(_parts(document, levels))


def _parts(document: bytes, levels: int) -> Iterator[bytes]:
    # Without escaped quotes, each quote begins or ends a string. Backslashes occur in strings only.
    plain = document.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    depth, in_string = 0, False
    for start in range(0, len(document), _PART):
        part = np.frombuffer(plain, np.uint8, min(_PART, len(plain) - start), start)
        inside = np.bitwise_xor.accumulate(part == _QUOTE) ^ in_string
        steps = np.where(inside, np.int8(0), _STEPS[part])
        depths = np.cumsum(steps, dtype=np.int64) + depth
        depth, in_string = int(depths[-1]), bool(inside[-1])
        # The brackets of a value that is emptied belong to the level above.
        kept = depths - (steps > 0) <= levels
        yield _bytes(document, start, part.size)[kept].tobytes()


def _bytes(document: bytes, start: int, size: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(document, np.uint8, size, start)
