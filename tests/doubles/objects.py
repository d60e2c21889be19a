"""Objects of the cluster that own the configuration, in memory: :class:`queuectl.ownership.source.ObjectSource` without an API server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from queuectl.domain.errors import ClusterError, ObjectGone
from queuectl.domain.queries import DocumentKey
from queuectl.domain.records import ConfigurationRecord, Deleted, Delta, ListCompleted, Upserted
from queuectl.objects.configuration.owners import FollowedKind, Owner
from queuectl.objects.configuration.status_wire import ObjectStatus
from queuectl.ownership.source import ObjectWatcher
from queuectl.ownership.status_form import StatusForm
from queuectl.ownership.status_forms import FORMS
from tests.support.followed import KINDS, Object, record


class MemoryObjects:
    """The objects of one API server. Each watch begins with complete lists of the kinds that exist."""

    def __init__(
        self, kinds: Sequence[FollowedKind] = KINDS, form: StatusForm = FORMS[Owner.KUBERNETES]
    ) -> None:
        self._form = form
        self._kinds = {kind.plural: kind for kind in kinds}
        self._records: dict[str, dict[str, ConfigurationRecord]] = {
            plural: {} for plural in self._kinds
        }
        self._named_uids: dict[tuple[str, str, str], str] = {}
        self._version = 0
        self._uids = 0
        self._observers: list[ObjectWatcher] = []
        self.unknown: dict[str, str] = {}
        """Kinds that cannot be listed, with the reason."""
        self.doubts: dict[str, str] = {}
        """Kinds whose CustomResourceDefinition is being removed, with the reason."""
        self.refusals: dict[str, ClusterError] = {}
        """Names of objects of which each write fails."""
        self.refused: list[str] = []
        """Names of objects of which a write failed."""
        self.slow: dict[str, asyncio.Event] = {}
        """Kinds of which a write is answered only when the event is set."""
        self.writes: list[tuple[str, str]] = []
        """Kind and name of each object whose status was written."""
        self.other = ""
        """The other controller that writes the statuses."""

    @property
    def versions(self) -> Mapping[str, str]:
        return {plural: kind.versions[0] for plural, kind in self._kinds.items()}

    async def watch(self, observer: ObjectWatcher) -> None:
        self._observers.append(observer)
        try:
            for plural, records in self._records.items():
                if plural in self.unknown:
                    observer.failed(plural, self.unknown[plural])
                    continue
                deltas: list[Delta] = [*map(Upserted, records.values())]
                observer.changed([*deltas, self._end(plural)])
                observer.answered(plural)
            await asyncio.Event().wait()
        finally:
            self._observers.remove(observer)

    async def doubt(self, plural: str) -> str:
        await asyncio.sleep(0)
        return self.doubts.get(plural, "")

    async def write_status(self, key: DocumentKey, status: ObjectStatus) -> None:
        await asyncio.sleep(0)
        if key.kind in self.slow:
            await self.slow[key.kind].wait()
        if key.name in self.refusals:
            self.refused.append(key.name)
            raise self.refusals[key.name]
        records = self._records[self._plural(key.kind)]
        record = self._named(self._plural(key.kind), key.namespace, key.name)
        if record is None:
            raise ObjectGone(f"{key} does not exist")
        self._version += 1
        content = msgspec.json.encode(
            self._form.body(key.kind, self.versions[self._plural(key.kind)], status)
        )
        changed = replace(record, version=self._version, status=content)
        records[record.uid] = changed
        self.writes.append((key.kind, key.name))
        self._tell([Upserted(changed)])

    async def other_writer(self) -> str:
        await asyncio.sleep(0)
        return self.other

    def status(self, kind: str, name: str, namespace: str = "") -> dict[str, Any]:
        """The status of an object; empty = it has none."""
        record = self._named(self._plural(kind), namespace, name)
        assert record is not None
        status: dict[str, Any] = json.loads(record.status or b"{}")
        return status

    def apply(self, *bodies: Object, status_only: bool = False) -> None:
        """Create or replace objects."""
        for body in bodies:
            self._version += 1
            plural = self._plural(body["kind"])
            meta = body["metadata"]
            old = self._named(plural, meta.get("namespace", ""), meta["name"])
            if old is None:
                self._uids += 1
            made = record(
                body,
                uid=old.uid if old is not None else f"uid-{self._uids}",
                generation=old.generation + (not status_only) if old is not None else 1,
                version=self._version,
            )
            self._records[plural][made.uid] = made
            self._named_uids[plural, made.namespace, made.name] = made.uid
            self._tell([Upserted(made)])

    def delete(self, kind: str, *names: str, namespace: str = "") -> None:
        """Delete objects."""
        plural = self._plural(kind)
        for name in names:
            self._version += 1
            gone = self._named(plural, namespace, name)
            assert gone is not None
            del self._records[plural][gone.uid]
            self._tell([Deleted(plural, gone.uid, self._version)])

    def list_again(self, plural: str) -> None:
        """End a complete list of one kind, as after an interruption."""
        self.unknown.pop(plural, None)
        self._tell([*map(Upserted, self._records[plural].values()), self._end(plural)])

    def _plural(self, kind: str) -> str:
        return next(plural for plural, one in self._kinds.items() if one.kind.kind == kind)

    def _named(self, plural: str, namespace: str, name: str) -> ConfigurationRecord | None:
        return self._records[plural].get(self._named_uids.get((plural, namespace, name), ""))

    def _end(self, plural: str) -> ListCompleted:
        return ListCompleted(plural, frozenset(self._records[plural]), self._version)

    def _tell(self, deltas: Sequence[Delta]) -> None:
        for observer in self._observers:
            observer.changed(deltas)
