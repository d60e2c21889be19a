"""The configuration as one holds it while it changes: a document is read when it is new or written anew, and not again.

A write costs what it changes, however many queues there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, Final, TypeAlias

from queuectl.domain.queries import ConfigChanges, DocumentKey
from queuectl.domain.queues import QueueConfig
from queuectl.objects.configuration.links import tangled
from queuectl.objects.configuration.queue_config import ReadDocument, read, together
from queuectl.objects.errors import DocumentError

_Body: TypeAlias = Mapping[str, Any]
_BY_KEY: Final = attrgetter("kind", "namespace", "name")
_OF_SOME: Final = frozenset({"ClusterQueue", "LocalQueue", "Cohort"})
"""Kinds that concern the gangs of some queues only; Cohorts decide nothing but what may be planned."""


class Catalog:
    """Documents by key, each as stored and as read; one that cannot be read is kept as its error."""

    def __init__(self) -> None:
        self._objects: dict[DocumentKey, tuple[_Body, ReadDocument | DocumentError]] = {}

    @property
    def keys(self) -> set[DocumentKey]:
        """Of all documents in it."""
        return set(self._objects)

    def replace(self, documents: Iterable[_Body]) -> None:
        """Hold these documents and no others; what did not change is not read again."""
        known, self._objects = self._objects, {}
        for body in documents:
            key = DocumentKey.of(body)
            held = known.get(key)
            self._objects[key] = held if held is not None and held[0] == body else _taken(body)

    def follow(self, changes: ConfigChanges) -> None:
        """Take in what became of the documents."""
        for gone in changes.deleted:
            self._objects.pop(gone, None)
        for body in changes.written:
            self._objects[DocumentKey.of(body)] = _taken(body)

    def config(self, revision: int) -> QueueConfig:
        """All of it, in the order of keys: how it came to be does not show.

        Raises:
            DocumentError: a document is invalid.
        """
        objects = []
        for _, (_, one) in sorted(self._objects.items(), key=lambda item: _BY_KEY(item[0])):
            if isinstance(one, DocumentError):
                raise one
            objects.append(one)
        return together(objects, revision)

    def tangled(self) -> frozenset[str]:
        """Cohorts whose parent :meth:`config` ignores; two writes at once may leave such ones."""
        parents = {
            one.key: one.value.parent
            for _, one in self._objects.values()
            if not isinstance(one, DocumentError) and one.kind == "Cohort"
        }
        return tangled(parents)


def concerned(changes: ConfigChanges, config: QueueConfig) -> frozenset[tuple[str, str]] | None:
    """LocalQueues (namespace, name) whose gangs the changes may make something else of, beside what is planned for them.

    None: all, even those that lead nowhere. ``config``: after the changes.
    """
    keys = _keys(changes)
    if any(key.kind not in _OF_SOME for key in keys):
        return None
    queues = {key.name for key in keys if key.kind == "ClusterQueue"}
    behind = {place for place, one in config.local_queues.items() if one.cluster_queue in queues}
    own = {(key.namespace, key.name) for key in keys if key.kind == "LocalQueue"}
    return frozenset(behind | own)


def diverted(changes: ConfigChanges, before: QueueConfig) -> frozenset[tuple[str, str]] | None:
    """LocalQueues (namespace, name) whose gangs may not start any more as they could before the changes.

    Those that are deleted, stopped, or lead to another ClusterQueue; another weight only orders what is planned next. None if
    more than LocalQueues changed.
    """
    if any(key.kind != "LocalQueue" for key in _keys(changes)):
        return None
    deleted = {(key.namespace, key.name) for key in changes.deleted}
    return frozenset(deleted.union(*(_diverted(body, before) for body in changes.written)))


def _diverted(body: _Body, before: QueueConfig) -> set[tuple[str, str]]:
    key = DocumentKey.of(body)
    place = (key.namespace, key.name)
    was, (_, now) = before.local_queues.get(place), _taken(body)
    if was is None or isinstance(now, DocumentError):
        return {place}
    same = now.value.cluster_queue == was.cluster_queue and now.value.stop_policy == was.stop_policy
    return set() if same else {place}


def _keys(changes: ConfigChanges) -> set[DocumentKey]:
    return {*changes.deleted, *map(DocumentKey.of, changes.written)}


def _taken(body: _Body) -> tuple[_Body, ReadDocument | DocumentError]:
    try:
        return body, read(body)
    except DocumentError as error:
        return body, error
