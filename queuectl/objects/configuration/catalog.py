"""The configuration of a running process. A document is parsed when it is written, and not again.

The cost of a write depends on the change, not on the number of queues.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, Final, TypeAlias

from queuectl.domain.queries import ConfigChanges, DocumentKey
from queuectl.domain.queues import QueueConfig
from queuectl.objects.configuration.links import circular_cohorts
from queuectl.objects.configuration.queue_config import ReadDocument, read, together
from queuectl.objects.errors import DocumentError

_Body: TypeAlias = Mapping[str, Any]
_BY_KEY: Final = attrgetter("kind", "namespace", "name")
_OF_SOME: Final = frozenset({"ClusterQueue", "LocalQueue", "Cohort"})
"""Kinds that affect only the gangs of some queues. A Cohort affects only plans."""


class Catalog:
    """Documents by key, stored and parsed. For an invalid document, its error is kept."""

    def __init__(self) -> None:
        self._objects: dict[DocumentKey, tuple[_Body, ReadDocument | DocumentError]] = {}

    @property
    def keys(self) -> set[DocumentKey]:
        """The keys of all documents."""
        return set(self._objects)

    def copy(self) -> Catalog:
        """The documents as they are now."""
        made = Catalog()
        made._objects = dict(self._objects)
        return made

    def replace(self, documents: Iterable[_Body]) -> None:
        """Replace all documents by these. Unchanged documents are not parsed again."""
        known, self._objects = self._objects, {}
        for body in documents:
            key = DocumentKey.of(body)
            held = known.get(key)
            self._objects[key] = held if held is not None and held[0] == body else _taken(body)

    def follow(self, changes: ConfigChanges) -> None:
        """Apply changes of documents."""
        for gone in changes.deleted:
            self._objects.pop(gone, None)
        for body in changes.written:
            self._objects[DocumentKey.of(body)] = _taken(body)

    def config(self, revision: int) -> QueueConfig:
        """The whole configuration, in the order of keys, so that the order of changes has no effect.

        Raises:
            DocumentError: a document is invalid.
        """
        objects = []
        for _, (_, one) in sorted(self._objects.items(), key=lambda item: _BY_KEY(item[0])):
            if isinstance(one, DocumentError):
                raise one
            objects.append(one)
        return together(objects, revision)

    def circular_cohorts(self) -> frozenset[str]:
        """Cohorts whose parent :meth:`config` ignores. Two concurrent writes can cause a cycle."""
        parents = {
            one.key: one.content.parent
            for _, one in self._objects.values()
            if not isinstance(one, DocumentError) and one.kind == "Cohort"
        }
        return circular_cohorts(parents)


def concerned(
    changes: ConfigChanges, before: QueueConfig, config: QueueConfig
) -> frozenset[tuple[str, str]] | None:
    """LocalQueues (namespace, name) whose gangs the changes can affect in other ways than through the plan.

    None means all LocalQueues, including those without a ClusterQueue. ``config`` is the configuration after the changes.
    """
    keys = _keys(changes)
    if any(key.kind not in _OF_SOME for key in keys):
        return None
    names = {key.name for key in keys if key.kind == "ClusterQueue"}
    known, now = before.cluster_queues, config.cluster_queues
    quotas = {n for n in names & known.keys() & now.keys() if now[n].has_policies_of(known[n])}
    queues = names - quotas
    behind = {place for place, one in config.local_queues.items() if one.cluster_queue in queues}
    own = {(key.namespace, key.name) for key in keys if key.kind == "LocalQueue"}
    return frozenset(behind | own)


def _keys(changes: ConfigChanges) -> set[DocumentKey]:
    return {*changes.deleted, *map(DocumentKey.of, changes.written)}


def _taken(body: _Body) -> tuple[_Body, ReadDocument | DocumentError]:
    try:
        return body, read(body)
    except DocumentError as error:
        return body, error
