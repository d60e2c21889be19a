"""The last known workloads of one replica.

A request reads the copy again if it is older than a second. Without requests it is read every ten seconds: the database can stop at any
time. The version of an object is the time of the read at which it last changed, by the clock of the database. The versions of all
replicas can be compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import structlog

from queuectl.db.ports import ApiStore
from queuectl.domain.errors import StoreUnavailable
from queuectl.domain.ledger import Entry
from queuectl.domain.queries import LiveWorkloads, QueuePosition, positions_in
from queuectl.visibility.changes import ChangeLog, JobChange, changes_between
from queuectl.visibility.objects import object_name

MAX_AGE_SECONDS: Final = 1.0
"""Of an answer while the database works."""
IDLE_SECONDS: Final = 10.0
"""Between two reads without a request."""
MOVES_SECONDS: Final = 10.0
"""Between two announcements of positions: each start moves all gangs behind it."""
PATIENCE_SECONDS: Final = 3.0
"""For which a request waits for the database before it gets the last known workloads."""
_log = structlog.get_logger(source="queuectl.visibility")

ObjectKey = tuple[str, str]
"""Namespace, and name of the object."""


@dataclass(frozen=True)
class KnownWorkloads:
    """The workloads at one moment.

    Attributes:
        version: of the list: unix milliseconds by the clock of the database.
        read_at: when this replica read them, on the clock of the process.
        by_key: in the order of their keys.
        versions: of each object, by uid.
        positions: by uid. A change of the position alone gives the object a new version after a few seconds.
    """

    version: int
    read_at: float
    by_key: Mapping[ObjectKey, Entry]
    versions: Mapping[str, int]
    positions: Mapping[str, QueuePosition]


class LastKnown:
    """The workloads of one replica. It answers as the store does (:class:`queuectl.db.ports.WorkloadFacts`), also during an outage.

    Attributes:
        log: the changes since the first read; None before it.
    """

    def __init__(self, store: ApiStore, clock: Callable[[], float]) -> None:
        """``clock``: monotonic seconds."""
        self._store = store
        self._clock = clock
        self._known: KnownWorkloads | None = None
        self._entries: Mapping[str, Entry] = {}
        self._shown: Mapping[str, Entry] = {}  # those that are objects, by uid
        self._namespaces: frozenset[str] = frozenset()
        self._reading: asyncio.Task[None] | None = None
        self._failing = False
        self._changed = asyncio.Event()
        self._announced: Mapping[str, QueuePosition] = {}
        self._moves_due = 0.0
        self.log: ChangeLog | None = None

    async def run(self) -> None:
        """Keep the copy recent until it is canceled."""
        while True:
            await self.recent()
            await asyncio.sleep(IDLE_SECONDS)

    async def recent(self) -> KnownWorkloads | None:
        """The workloads, at most a second old while the database works; None if it never did."""
        workloads = self._known
        if workloads is not None and self._clock() - workloads.read_at < MAX_AGE_SECONDS:
            return workloads
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(), name="workloads for kubectl")
        if workloads is None or not self._failing:
            done, _ = await asyncio.wait([self._reading], timeout=PATIENCE_SECONDS)
            self._failing = self._failing or not done
            for reading in done:
                reading.result()  # raises what is a defect of queuectl
        return self._known

    def age(self, workloads: KnownWorkloads) -> float | None:
        """Seconds since the read of these workloads if the database does not answer; None while it does."""
        return self._clock() - workloads.read_at if self._failing else None

    async def grown(self, number: int) -> None:
        """Return soon when there is a change with this number or a higher one, or after a second."""
        changed = self._changed
        await self.recent()
        if self.log is not None and self.log.end > number:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(MAX_AGE_SECONDS):
                await changed.wait()

    async def _read(self) -> None:
        began = self._clock()
        try:
            live = await self._store.live_workloads(tuple(self._entries.values()))
            self._namespaces = await self._store.namespaces()
            await self._take_over(live, began)
            self._failing = False
        except StoreUnavailable as error:
            if not self._failing:
                _log.warning("workloads_not_read", error=str(error))
            self._failing = True
        finally:
            self._reading = None

    async def _take_over(self, live: LiveWorkloads, began: float) -> None:
        entries = {entry.uid: entry for entry in live.entries}
        if self._known is not None and _same(self._entries, entries):
            by_key, shown = self._known.by_key, self._shown
        else:
            by_key = await asyncio.to_thread(_by_key, entries.values())
            shown = {entry.uid: entry for entry in by_key.values()}
        workloads, version = self._known, int(live.at * 1000)
        if workloads is None:
            self.log, changes = ChangeLog(version), []
        else:
            # The clock of another server can be behind, and a watch begins after a version.
            version = max(version, workloads.version + 1)
            changes = await asyncio.to_thread(_changes, self._shown, shown, version)
        same = workloads is not None and not changes
        positions = (
            workloads.positions
            if workloads is not None and same
            else await asyncio.to_thread(positions_in, entries.values())
        )
        if began >= self._moves_due:
            changes += _moves(shown, self._announced, positions, version)
            self._announced, self._moves_due = positions, began + MOVES_SECONDS
        if workloads is not None and not changes:
            self._known = replace(workloads, version=version, read_at=began)
            return
        before = workloads.versions if workloads is not None else {}
        self._known = await asyncio.to_thread(
            _known_of, by_key, before, changes, version, began, positions
        )
        self._entries, self._shown = entries, shown
        assert self.log is not None
        self.log.add(changes)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

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


def _changes(
    before: Mapping[str, Entry], after: Mapping[str, Entry], version: int
) -> list[JobChange]:
    return list(changes_between(before, after, version))


def _moves(
    entries: Mapping[str, Entry],
    announced: Mapping[str, QueuePosition],
    positions: Mapping[str, QueuePosition],
    version: int,
) -> list[JobChange]:
    """Workloads that were and are pending, at another position."""
    return [
        JobChange(version, entries[uid], entries[uid])
        for uid, position in positions.items()
        if uid in entries and announced.get(uid, position) != position
    ]


def _same(before: Mapping[str, Entry], after: Mapping[str, Entry]) -> bool:
    return len(before) == len(after) and all(before.get(uid) is one for uid, one in after.items())


def _by_key(entries: Iterable[Entry]) -> dict[tuple[str, str], Entry]:
    """The workloads by namespace and name of their objects. Of two with the same name, it has the newer one."""
    by_key: dict[tuple[str, str], Entry] = {}
    for entry in entries:
        key = (entry.namespace, object_name(entry))
        other = by_key.get(key)
        # The pods of a deleted job can still end when another one has its name.
        if other is None or (entry.queued_at, entry.uid) > (other.queued_at, other.uid):
            by_key[key] = entry
    return dict(sorted(by_key.items()))


def _known_of(
    by_key: Mapping[tuple[str, str], Entry],
    versions: Mapping[str, int],
    changes: Iterable[JobChange],
    version: int,
    began: float,
    positions: Mapping[str, QueuePosition],
) -> KnownWorkloads:
    """The workloads after a read. An object without a change keeps its version."""
    new = {change.last.uid for change in changes}
    uids = (entry.uid for entry in by_key.values())
    return KnownWorkloads(
        version,
        began,
        by_key,
        {uid: version if uid in new else versions.get(uid, version) for uid in uids},
        positions,
    )
