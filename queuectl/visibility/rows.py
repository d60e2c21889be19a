"""The last known workloads of one replica, as all replicas know them.

The copy is read again when it is older than a second and somebody asks, and every few seconds without that, so that it is recent when
the database stops. Each object has the time of the read at which it last changed as its version: the clock of the database gives it,
so the versions of all replicas can be compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from queuectl.db.ports import ApiStore
from queuectl.domain.errors import StoreUnavailable
from queuectl.domain.ledger import Entry
from queuectl.domain.queries import QueuePosition, positions_in
from queuectl.visibility.objects import object_name

MAX_AGE_SECONDS: Final = 1.0
"""Of an answer while the database works."""
IDLE_SECONDS: Final = 10.0
"""Between two reads that nobody asks for."""
PATIENCE_SECONDS: Final = 3.0
"""For which a request waits for the database before it gets the last known workloads."""
_log = structlog.get_logger(source="queuectl.visibility")

ObjectKey = tuple[str, str]
"""Namespace, and name of the object."""


@dataclass(frozen=True)
class KnownWorkloads:
    """The workloads at one moment.

    Attributes:
        at: unix seconds by the clock of the database.
        read_at: when this replica read them, on the clock of the process.
        by_key: in the order of their keys.
        versions: of each object, in milliseconds.
        positions: by uid.
    """

    at: float
    read_at: float
    by_key: Mapping[ObjectKey, Entry] = field(default_factory=dict)
    versions: Mapping[str, int] = field(default_factory=dict)
    positions: Mapping[str, QueuePosition] = field(default_factory=dict)

    @property
    def version(self) -> int:
        """Of the list."""
        return int(self.at * 1000)


class LastKnown:
    """The workloads of one replica. It answers as the store does (:class:`queuectl.db.ports.WorkloadFacts`), also during an outage."""

    def __init__(self, store: ApiStore, clock: Callable[[], float]) -> None:
        """``clock``: monotonic seconds."""
        self._store = store
        self._clock = clock
        self._known: KnownWorkloads | None = None
        self._entries: Mapping[str, Entry] = {}
        self._namespaces: frozenset[str] = frozenset()
        self._reading: asyncio.Task[None] | None = None
        self._failing = False

    async def run(self) -> None:
        """Keep the copy recent until it is canceled."""
        while True:
            await self.recent()
            await asyncio.sleep(IDLE_SECONDS)

    async def recent(self) -> KnownWorkloads | None:
        """The workloads, at most a second old while the database works; None if it never did."""
        known = self._known
        if known is not None and self._clock() - known.read_at < MAX_AGE_SECONDS:
            return known
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(), name="workloads for kubectl")
        if known is None or not self._failing:
            done, _ = await asyncio.wait([self._reading], timeout=PATIENCE_SECONDS)
            self._failing = self._failing or not done
            for reading in done:
                reading.result()  # raises what is a defect of queuectl
        return self._known

    def age(self, known: KnownWorkloads) -> float | None:
        """Seconds since the read of these workloads if the database does not answer; None while it does."""
        return self._clock() - known.read_at if self._failing else None

    async def _read(self) -> None:
        began = self._clock()
        try:
            live = await self._store.live_workloads(tuple(self._entries.values()))
            namespaces = await self._store.namespaces()
            before, self._entries = self._entries, {entry.uid: entry for entry in live.entries}
            self._namespaces = namespaces
            self._known = await asyncio.to_thread(
                _next, self._known, before, live.entries, live.at, began
            )
            self._failing = False
        except StoreUnavailable as error:
            if not self._failing:
                _log.warning("workloads_not_read", error=str(error))
            self._failing = True
        finally:
            self._reading = None

    async def namespaces(self) -> frozenset[str]:
        """Those with a LocalQueue or a workload."""
        return self._namespaces

    async def positions(self, uids: Iterable[str]) -> Mapping[str, QueuePosition]:
        """The positions of these workloads in queue order."""
        positions = self._known.positions if self._known is not None else {}
        return {uid: positions[uid] for uid in uids if uid in positions}

    async def workload_names(self, uids: Iterable[str]) -> Mapping[str, str]:
        """``namespace/name`` of the workloads among these that are not Finished."""
        return {uid: self._entries[uid].ref for uid in uids if uid in self._entries}


def _next(
    known: KnownWorkloads | None,
    before: Mapping[str, Entry],
    entries: Iterable[Entry],
    at: float,
    began: float,
) -> KnownWorkloads:
    """The workloads after a read. An object without a change keeps its version."""
    listed = list(entries)
    if (
        known is not None
        and len(listed) == len(before)
        and all(before.get(entry.uid) is entry for entry in listed)
    ):
        return replace(known, at=at, read_at=began)
    positions = positions_in(listed)
    version = int(at * 1000)
    old = known if known is not None else KnownWorkloads(at, began)
    versions = {}
    for entry in listed:
        same = before.get(entry.uid) is entry
        same = same and old.positions.get(entry.uid) == positions.get(entry.uid)
        versions[entry.uid] = old.versions.get(entry.uid, version) if same else version
    by_key = {(entry.namespace, object_name(entry)): entry for entry in listed}
    return KnownWorkloads(at, began, dict(sorted(by_key.items())), versions, positions)
