"""The objects of the watch as they were given, from which the copy of the cluster can be derived again after an error.

An object that cannot be decoded, or whose record cannot be kept, is an unreadable one, and keeps its last record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Final, assert_never

from queuectl.domain.containment import Boundary, Containment
from queuectl.domain.jobs import JobRecord, PodRecord
from queuectl.domain.provisioning import ProvisioningRecord
from queuectl.domain.records import (
    Deleted,
    Delta,
    LimitRangeRecord,
    ListCompleted,
    NamespaceRecord,
    NodeRecord,
    PriorityClassRecord,
    Record,
    ResourceQuotaRecord,
    RuntimeClassRecord,
    Unreadable,
    Upserted,
    key_of,
    unit_of,
)
from queuectl.objects.kubernetes.provisioning import REQUESTS as PROVISIONING_REQUESTS
from queuectl.state import devices as device_objects

NODES: Final = "nodes"
PODS: Final = "pods"
NAMESPACES: Final = "namespaces"
PRIORITY_CLASSES: Final = "priorityclasses"
RESOURCE_QUOTAS: Final = "resourcequotas"
LIMIT_RANGES: Final = "limitranges"
RUNTIME_CLASSES: Final = "runtimeclasses"
_RESOURCES: Final[Mapping[type, str]] = {
    PodRecord: PODS,
    NodeRecord: NODES,
    NamespaceRecord: NAMESPACES,
    PriorityClassRecord: PRIORITY_CLASSES,
    ResourceQuotaRecord: RESOURCE_QUOTAS,
    LimitRangeRecord: LIMIT_RANGES,
    RuntimeClassRecord: RUNTIME_CLASSES,
    ProvisioningRecord: PROVISIONING_REQUESTS,
    **device_objects.BY_RECORD,
}
_BY_NAME: Final = device_objects.BY_NAME | {NODES, NAMESPACES, PRIORITY_CLASSES, RUNTIME_CLASSES}


def unit_key(resource: str, key: str) -> str:
    """The key of an object among all units of containment."""
    return unit_of(resource, key, by_uid=resource not in _BY_NAME)


def _unreadable(resource: str, record: Record) -> Unreadable:
    """The delta of an object whose record cannot be kept."""
    key = key_of(record)
    if not isinstance(record, PodRecord):
        suspended = record.suspended if isinstance(record, JobRecord) else None
        return Unreadable(resource, key, record.version, suspended=suspended)
    return Unreadable(
        resource,
        key,
        record.version,
        record.namespace,
        record.name,
        record.node or "",
        terminal=record.terminal,
        terminating=record.terminating,
    )


def namespace_of(record: Record) -> str:
    """Of the object; empty for one without."""
    return getattr(record, "namespace", "")


GivenRecord = tuple[str, str, Upserted | Unreadable]
"""The plural name of the resource and the key of an object, and its change."""


class GivenRecords:
    """By resource and key of the object."""

    def __init__(self, plurals: Mapping[str, str], containment: Containment) -> None:
        """``plurals``: the plural names of the resources, by kind of job."""
        self._plurals = plurals
        self._containment = containment
        self._now: dict[str, dict[str, Upserted | Unreadable]] = {}
        self._last: dict[str, dict[str, Upserted]] = {}  # the last records of unreadable objects

    def __iter__(self) -> Iterator[GivenRecord]:
        """All records. The last one of an unreadable object comes before it."""
        for resource, given in self._now.items():
            last = self._last.get(resource, {})
            for key, delta in given.items():
                if key in last:
                    yield resource, key, last[key]
                yield resource, key, delta

    def keys(self, *resources: str) -> set[str]:
        """The keys of all objects of these resources."""
        return {key for resource in resources for key in self._now.get(resource, ())}

    def if_kept(self, delta: Delta) -> Delta:
        """The change, or that of an unreadable object while its records cannot be kept."""
        if not isinstance(delta, Upserted) or self._containment.empty:
            return delta
        unit, version = self.unit_of(delta.record), delta.record.version
        namespace = namespace_of(delta.record)
        if self._containment.waits(Boundary.RECORD, unit, version, namespace) is None:
            return delta
        return _unreadable(self.resource_of(delta.record), delta.record)

    def resource_of(self, record: Record) -> str:
        """The plural name of its resource, as in deltas."""
        if isinstance(record, JobRecord):
            return self._plurals.get(record.kind, record.kind)
        return _RESOURCES[type(record)]

    def unit_of(self, record: Record) -> str:
        """The key of an object among all units of containment."""
        return unit_key(self.resource_of(record), key_of(record))

    def put(self, delta: Delta) -> Upserted | Unreadable | None:
        """Remember a change.

        Returns:
            The earlier change of this object, if it had one.
        """
        match delta:
            case Upserted():
                resource, key = self.resource_of(delta.record), key_of(delta.record)
                table = self._now.setdefault(resource, {})
                before = table.get(key)
                table[key] = delta
                return before
            case Unreadable():
                table = self._now.setdefault(delta.resource, {})
                if isinstance(before := table.get(delta.key), Upserted):
                    self._last.setdefault(delta.resource, {})[delta.key] = before
                table[delta.key] = delta
            case Deleted():
                self._take_back(delta.resource, delta.key)
            case ListCompleted():
                for key in self._now.get(delta.resource, {}).keys() - delta.keys:
                    self._take_back(delta.resource, key)
            case _:
                assert_never(delta)
        return None

    def _take_back(self, resource: str, key: str) -> None:
        """The object no longer exists."""
        for table in (self._now, self._last):
            table.get(resource, {}).pop(key, None)
        self._containment.passed(Boundary.RECORD, unit_key(resource, key))

    def forget_last(self, deltas: Iterable[Delta]) -> None:
        """Keep no earlier records of the objects of these changes that can be read now."""
        if not self._last:
            return
        for delta in deltas:
            if isinstance(delta, Upserted):
                resource, key = self.resource_of(delta.record), key_of(delta.record)
                if isinstance(self._now[resource].get(key), Upserted):
                    self._last.get(resource, {}).pop(key, None)

    def cannot_be_kept(
        self,
        resource: str,
        key: str,
        delta: Upserted | Unreadable,
        earlier: MutableMapping[tuple[str, str], Upserted],
    ) -> None:
        """Count the object of this change as an unreadable one.

        Args:
            resource: of the object.
            key: of the object.
            delta: its current change, or its last record.
            earlier: the records that it can keep, by resource and key. One that it keeps is removed.
        """
        if self._last.get(resource, {}).get(key) is delta:
            del self._last[resource][key]
            return
        self._now[resource].pop(key)
        if isinstance(delta, Upserted):
            self._now[resource][key] = _unreadable(resource, delta.record)
            if (last := earlier.pop((resource, key), None)) is not None:
                self._last.setdefault(resource, {})[key] = last
