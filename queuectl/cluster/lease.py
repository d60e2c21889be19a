"""The Lease: a ``coordination.k8s.io`` Lease whose annotations have the leader's epoch, and how far its usage ledger is complete.

The lease elects a leader. It does not fence: the database does. The annotations reveal a restored database.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

import msgspec

from queuectl.cluster.client import METADATA_ONLY, Api
from queuectl.cluster.writes import MANAGER, merge_patch, micro_time
from queuectl.domain.errors import ClusterUnavailable, ObjectGone
from queuectl.domain.records import LeaderRecord
from queuectl.objects.times import time_or_none

EPOCH_ANNOTATION: Final = "queuectl.dev/epoch"
ACCOUNTED_ANNOTATION: Final = "queuectl.dev/accounted-until"
_MOST_DIGITS: Final = 18  # of a number, which the database counts in 64 bits


class _Meta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class _Spec(msgspec.Struct, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    renew_time: str | None = None


class _Lease(msgspec.Struct):
    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)


def _number(text: str) -> int:
    """A number in an annotation; 0 if it cannot be one."""
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else 0


_lease = msgspec.json.Decoder(_Lease).decode


class Lease:
    """One named Lease."""

    def __init__(self, api: Api, namespace: str, name: str) -> None:
        self._api = api
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name = name

    async def read(self) -> LeaderRecord | None:
        """See ``Cluster.read_leader``. ``renewed`` is by the holder's clock: use the time since ``version`` changed instead."""
        try:
            lease = self._read(await self._api.request("GET", f"{self._collection}/{self._name}"))
        except ObjectGone:
            return None
        annotations = lease.metadata.annotations or {}
        return LeaderRecord(
            holder=lease.spec.holder_identity or "",
            epoch=_number(annotations.get(EPOCH_ANNOTATION, "")),
            renewed=time_or_none(lease.spec.renew_time) or 0.0,
            duration=float(lease.spec.lease_duration_seconds or 0),
            version=lease.metadata.resource_version,
            accounted=_number(annotations.get(ACCOUNTED_ANNOTATION, "")),
        )

    async def write(self, record: LeaderRecord, over: LeaderRecord | None) -> LeaderRecord:
        """See ``Cluster.write_leader``. The duration is rounded up to whole seconds."""
        now = micro_time(record.renewed)
        duration = max(1, math.ceil(record.duration))
        spec: dict[str, Any] = {
            "holderIdentity": record.holder,
            "leaseDurationSeconds": duration,
            "renewTime": now,
        }
        if over is None or over.holder != record.holder:
            spec["acquireTime"] = now
        numbers = {EPOCH_ANNOTATION: record.epoch, ACCOUNTED_ANNOTATION: record.accounted}
        annotations = {name: str(number) for name, number in numbers.items()}
        metadata: dict[str, Any] = {"annotations": annotations}
        if over is None:
            version = await self._create({**metadata, "name": self._name}, spec)
        else:
            metadata["resourceVersion"] = over.version
            target = f"{self._collection}/{self._name}"
            version = await merge_patch(self._api, target, {"metadata": metadata, "spec": spec})
        return replace(record, duration=float(duration), version=version)

    async def _create(self, metadata: dict[str, Any], spec: dict[str, Any]) -> str:
        body = await self._api.request(
            "POST",
            self._collection,
            query=(("fieldManager", MANAGER),),
            body={"metadata": metadata, "spec": spec},
            accept=METADATA_ONLY,
        )
        return self._read(body).metadata.resource_version

    def _read(self, body: bytes) -> _Lease:
        try:
            return _lease(body)
        except ValueError as error:
            raise ClusterUnavailable(f"{self._collection}: not a Lease: {error}") from error
