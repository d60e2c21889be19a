"""The objects of followed kinds as the watch shows them, each with its content as a stored document, or with the error in it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from queuectl.domain.errors import BadInput
from queuectl.domain.ledger import Document
from queuectl.domain.queries import DocumentKey
from queuectl.domain.records import (
    ConfigurationRecord,
    Deleted,
    Delta,
    ListCompleted,
    Unreadable,
    Upserted,
)
from queuectl.objects.configuration.owners import FollowedKind
from queuectl.objects.configuration.queue_config import validate
from queuectl.objects.configuration.status_wire import QueueStatus, seen_status

_UNREADABLE: Final = "the object is not an object of Kubernetes that can be decoded"
NO_GENERATION: Final = -1
"""The generation of an object that cannot be decoded."""
_CONTENT: Final = ("spec", "value", "description")
"""The fields of an object that are configuration. Labels, annotations and the status are not."""


@dataclass(frozen=True, slots=True)
class FollowedObject:
    """One object.

    Attributes:
        key: of its document.
        uid: of the object.
        generation: of its content.
        order: rises with the time of the edit: the resourceVersion with which this content was first observed.
        document: its content in stored form; None = it is invalid.
        error: why it is invalid.
    """

    key: DocumentKey
    uid: str
    generation: int
    order: int
    document: Document | None
    error: str = ""


@dataclass(slots=True)
class _Entry:
    key: DocumentKey
    uid: str
    generation: int
    order: int
    deleting: bool
    content: bytes  # until it is read
    status: QueueStatus | None = None
    read: FollowedObject | None = None


class ObservedObjects:
    """The objects that the watches have shown since this leader began. It does no I/O.

    Attributes:
        last_edit: time of the last change of content, creation or deletion.
    """

    def __init__(
        self,
        kinds: Collection[FollowedKind],
        read_status: Callable[[bytes], QueueStatus | None] = seen_status,
    ) -> None:
        """Start without objects. No kind is known. ``read_status``: reads the status of an object."""
        self._read_status = read_status
        self._kinds = {kind.plural: kind for kind in kinds}
        self._plurals = {kind.kind.kind: kind.plural for kind in kinds}
        self._entries: dict[str, dict[str, _Entry]] = {plural: {} for plural in self._kinds}
        self._listed: set[str] = set()
        self._faults: dict[str, str] = {}
        self.last_edit = 0.0

    def apply(self, deltas: Sequence[Delta], now: float) -> bool:
        """Take in changes. Returns whether content changed; writes of status and metadata do not count."""
        edited = False
        for delta in deltas:
            match delta:
                case Upserted(ConfigurationRecord() as record):
                    edited |= self._put(record)
                case Unreadable():
                    edited |= self._put_unreadable(delta)
                case Deleted():
                    edited |= self._entries[delta.resource].pop(delta.key, None) is not None
                case ListCompleted():
                    edited |= self._complete(delta)
                case _:
                    raise TypeError(f"{type(delta).__name__} is not a change of configuration")
        if edited:
            self.last_edit = now
        return edited

    def _put(self, record: ConfigurationRecord) -> bool:
        plural = self._plurals[record.kind]
        known = self._entries[plural].get(record.uid)
        state = (record.generation, record.deleting)
        status = self._read_status(record.status)
        if known is not None and (known.generation, known.deleting) == state:
            known.status = status
            return False
        self._entries[plural][record.uid] = _Entry(
            DocumentKey(record.kind, record.namespace, record.name),
            record.uid,
            record.generation,
            record.version,
            record.deleting,
            record.content,
            status,
        )
        return True

    def _put_unreadable(self, delta: Unreadable) -> bool:
        kind = self._kinds[delta.resource].kind.kind
        key = DocumentKey(kind, delta.namespace, delta.name)
        known = self._entries[delta.resource].get(delta.key)
        if known is not None and known.generation == NO_GENERATION:
            return False
        self._entries[delta.resource][delta.key] = _Entry(
            key, delta.key, NO_GENERATION, delta.version, delta.terminating, b""
        )
        return True

    def _complete(self, delta: ListCompleted) -> bool:
        entries = self._entries[delta.resource]
        gone = [uid for uid in entries if uid not in delta.keys]
        for uid in gone:
            del entries[uid]
        first = delta.resource not in self._listed
        self._listed.add(delta.resource)
        self._faults.pop(delta.resource, None)
        return bool(gone) or first

    # ---- Known and unknown kinds

    def fail(self, plural: str, why: str) -> bool:
        """A kind gives no answer: its objects are as they were last. Returns whether that is new."""
        known = self._faults.get(plural)
        self._faults[plural] = why
        return known is None

    def answer(self, plural: str) -> bool:
        """A kind answers again. Returns whether that is new. A kind that was never listed stays unknown."""
        if plural not in self._listed:
            return False
        return self._faults.pop(plural, None) is not None

    def distrust(self, plural: str, why: str) -> None:
        """The deletions of a kind are not a decision of a person: it is unknown until its next complete list."""
        self._listed.discard(plural)
        self._faults[plural] = why

    @property
    def faults(self) -> Mapping[str, str]:
        """The kinds that give no answer, by plural, with the reason."""
        return self._faults

    @property
    def settled(self) -> bool:
        """Whether each kind was listed, or has failed: before that, an object can seem to lack what was not listed yet."""
        return all(plural in self._listed or plural in self._faults for plural in self._kinds)

    @property
    def known_kinds(self) -> frozenset[str]:
        """The kinds of which a complete list is known."""
        return frozenset(self._kinds[plural].kind.kind for plural in self._listed)

    def count(self, plural: str) -> int:
        """The number of objects of a kind."""
        return len(self._entries[plural])

    def status(self, followed: FollowedObject) -> QueueStatus | None:
        """The status that an object has in the cluster; None = none, or one of another form."""
        entry = self._entries[self._plurals[followed.key.kind]].get(followed.uid)
        return entry.status if entry is not None else None

    def objects(self) -> dict[DocumentKey, FollowedObject]:
        """All objects that are not being deleted, each as before unless it was edited. New content is parsed in about 0.1 ms for each object."""
        newest: dict[DocumentKey, FollowedObject] = {}
        for entries in self._entries.values():
            for entry in list(entries.values()):
                if entry.deleting:
                    continue
                if entry.read is None:
                    entry.read = _read(entry)
                    entry.content = b""
                other = newest.get(entry.key)
                if other is None or other.order < entry.order:
                    newest[entry.key] = entry.read
        return newest

    def unread(self) -> dict[DocumentKey, FollowedObject]:
        """The same without their content, which is not needed and is forgotten."""
        for entries in self._entries.values():
            for entry in entries.values():
                if entry.read is None:
                    key, uid, generation = entry.key, entry.uid, entry.generation
                    entry.read = FollowedObject(key, uid, generation, entry.order, None)
                    entry.content = b""
        return self.objects()


def _read(entry: _Entry) -> FollowedObject:
    document, error = None, _UNREADABLE
    if entry.generation != NO_GENERATION:
        try:
            document, error = _document(entry.content, entry.key), ""
        except BadInput as wrong:
            error = str(wrong)
        except Exception as wrong:  # noqa: BLE001 - contained: any content of one object is an error of this object alone
            error = f"its content cannot be read: {type(wrong).__name__}"
    return FollowedObject(entry.key, entry.uid, entry.generation, entry.order, document, error)


def _document(content: bytes, key: DocumentKey) -> Document:
    """The stored form of an object. Raises DocumentError, and what a decoder raises."""
    body: dict[str, Any] = msgspec.json.decode(content)
    metadata = {"name": key.name} | ({"namespace": key.namespace} if key.namespace else {})
    head = {"apiVersion": body.get("apiVersion"), "kind": key.kind, "metadata": metadata}
    document, _ = validate(head | {name: body[name] for name in _CONTENT if name in body})
    if b"\\u0000" in msgspec.json.encode(document):
        raise BadInput("it contains the character NUL, which the database cannot store")
    return document
