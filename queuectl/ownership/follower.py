"""The task of a leader that follows the objects: it observes, lets the reducer decide, and writes the batch to the catalog."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import structlog

from queuectl.db.ports import ConfigurationBatch, LeaderStore
from queuectl.domain.audit import AuditLine
from queuectl.domain.errors import ClusterError, StaleConfiguration, StoreUnavailable, bounded
from queuectl.domain.followed import (
    MOST_NAMED,
    FaultyObject,
    FollowedReport,
    FollowedSource,
    PendingDeletion,
)
from queuectl.domain.ledger import Document
from queuectl.domain.queries import DocumentKey
from queuectl.domain.records import Delta
from queuectl.objects.configuration.config_kinds import BY_KIND
from queuectl.objects.configuration.diff import differences
from queuectl.objects.configuration.owners import FOLLOWED, Owner
from queuectl.ownership.observed import FollowedObject, ObservedObjects
from queuectl.ownership.reducer import Batch, Edit, Reducer
from queuectl.ownership.source import ObjectSource
from queuectl.ownership.status_form import Decision, StatusForm

log = structlog.get_logger()

_BURST_SECONDS: Final = 0.05
_QUIET_SECONDS: Final = 30.0
_READ_SECONDS: Final = 30.0
"""The time between two reads of the catalog. A write to a catalog that others have changed is refused, and it is read again."""
_RETRY_SECONDS: Final = 1.0
_CONFIRMATION_SECONDS: Final = 1.0
_NAMED_CHANGES: Final = 20


class ObjectFollower:
    """Follows objects until canceled. Each leadership has its own."""

    def __init__(
        self,
        source: ObjectSource,
        store: LeaderStore,
        owner: Owner,
        settle_seconds: float,
        clock: Callable[[], float],
        show: Callable[[FollowedReport], None],
        epoch: int,
        decided: Callable[[Decision], None],
        form: StatusForm,
    ) -> None:
        """Know nothing yet.

        Args:
            source: of the objects.
            store: the catalog.
            owner: of the configuration.
            settle_seconds: as of the reducer.
            clock: unix seconds.
            show: receives each new report, for metrics.
            epoch: of the leader.
            decided: receives each decision when the catalog has it, for the statuses of the objects.
            form: of the statuses.
        """
        self._source = source
        self._store = store
        self._owner = owner
        self._kinds = {kind.kind.kind: kind for kind in FOLLOWED[owner]}
        self._clock = clock
        self._show = show
        self._epoch = epoch
        self._on_decision = decided
        self._observed = ObservedObjects(FOLLOWED[owner], form.read)
        self._reducer = Reducer(settle_seconds)
        self._documents: dict[DocumentKey, Document] = {}
        self._revision = 0  # of the catalog with these documents
        self._next_read = 0.0  # of the catalog, of the monotonic clock
        self._batch: Batch | None = None
        self._confirmed = ""  # the id of the mass deletion that a person has confirmed
        self._report = FollowedReport()
        self._wake = asyncio.Event()

    # ---- ObjectWatcher

    def changed(self, deltas: Sequence[Delta]) -> None:
        if self._observed.apply(deltas, self._clock()):
            self._wake.set()

    def failed(self, plural: str, why: str) -> None:
        if self._observed.fail(plural, why):
            log.warning("objects_unknown", kind=plural, reason=why)
            self._wake.set()

    def answered(self, plural: str) -> None:
        if self._observed.answer(plural):
            log.info("objects_known_again", kind=plural)
            self._wake.set()

    # ---- The task

    async def run(self) -> None:
        """Follow until canceled.

        Raises:
            Fenced: another leader has taken over.
        """
        watching = asyncio.create_task(self._source.watch(self))
        watching.add_done_callback(lambda _: self._wake.set())
        try:
            while not watching.done():
                began = time.monotonic()
                pause = await self._turn()
                took = time.monotonic() - began
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._wake.wait()
                self._wake.clear()
                await asyncio.sleep(max(_BURST_SECONDS, took))
            watching.result()
        finally:
            watching.cancel()
            await asyncio.wait([watching])

    async def _turn(self) -> float:
        """Decide and write once. Returns the seconds until the next turn, if nothing changes."""
        try:
            if self._observed.settled:
                batch, objects = await self._decide()
                await self._write(batch)
                self._batch = batch
                self._hand_on(batch, objects)
            await self._tell()
        except StaleConfiguration:
            self._next_read = 0.0
            return 0.0  # a person has stopped a queue in the meantime
        except (StoreUnavailable, ClusterError) as error:
            log.warning("objects_not_followed", error=str(error))
            return _RETRY_SECONDS
        return self._pause()

    def _pause(self) -> float:
        batch = self._batch
        if batch is None:
            return _QUIET_SECONDS
        pause = _CONFIRMATION_SECONDS if batch.deletion is not None else _QUIET_SECONDS
        if batch.act_at is not None:
            pause = min(pause, max(0.0, batch.act_at - self._clock()))
        return pause

    def _hand_on(self, batch: Batch, objects: Mapping[DocumentKey, FollowedObject]) -> None:
        known = self._observed.known_kinds
        self._on_decision(
            Decision(
                objects, known, batch.faults, batch.waiting, self._revision, self._observed.status
            )
        )

    async def _decide(self) -> tuple[Batch, Mapping[DocumentKey, FollowedObject]]:
        """The batch of now, and its objects. Deletions of a kind that is being removed as a whole are not part of it.

        Raises:
            StoreUnavailable, ClusterError: no answer.
        """
        while True:
            await self._read_catalog()
            waits = self._batch is not None and self._batch.deletion is not None
            # A deletion that is confirmed can still wait for later edits. The store forgets the confirmation when it is written.
            if waits or self._confirmed:
                self._confirmed = await self._store.confirmed_deletion()
            batch, objects = await asyncio.to_thread(self._decided, self._confirmed)
            removed = {key.kind for key, edit in batch.edits.items() if edit.document is None}
            removed |= {key.kind for key in batch.deletion.keys} if batch.deletion else set()
            if not await self._distrusted(removed):
                return batch, objects

    def _decided(self, confirmed: str) -> tuple[Batch, Mapping[DocumentKey, FollowedObject]]:
        # In this order: a kind that becomes known in between has its objects.
        known, last_edit = frozenset(self._observed.known_kinds), self._observed.last_edit
        objects = self._observed.objects()
        stored = {key: one for key, one in self._documents.items() if key.kind in self._kinds}
        batch = self._reducer.decide(
            stored,
            objects,
            known,
            last_edit=last_edit,
            now=self._clock(),
            confirmed=confirmed,
        )
        return batch, objects

    async def _distrusted(self, kinds: Iterable[str]) -> bool:
        """Whether one of these kinds is being removed: its objects are then not known, and not gone."""
        found = False
        for kind in kinds:
            plural = self._kinds[kind].plural
            why = await self._source.doubt(plural)
            if why:
                log.warning("deletions_not_followed", kind=plural, reason=why)
                self._observed.distrust(plural, why)
                found = True
        return found

    async def _read_catalog(self) -> None:
        now = time.monotonic()
        if now < self._next_read:
            return
        changes = await self._store.config_changes(self._revision, self._documents.keys())
        for key in changes.deleted:
            self._documents.pop(key, None)
        self._documents |= {DocumentKey.of(one): one for one in changes.written}
        self._revision, self._next_read = changes.revision, now + _READ_SECONDS

    async def _write(self, batch: Batch) -> None:
        if not batch.edits:
            return
        written = [edit.document for edit in batch.edits.values() if edit.document is not None]
        removed = [key for key, edit in batch.edits.items() if edit.document is None]
        lines = [self._line(key, edit) for key, edit in batch.edits.items()]
        changes = ConfigurationBatch(self._revision, written, removed, lines)
        self._revision = await self._store.write_configuration(changes, epoch=self._epoch)
        self._documents |= {DocumentKey.of(document): document for document in written}
        for key in removed:
            self._documents.pop(key, None)
        log.info(
            "objects_followed",
            written=len(written),
            removed=len(removed),
            revision=self._revision,
        )

    def _line(self, key: DocumentKey, edit: Edit) -> AuditLine:
        verb = "DELETE" if edit.document is None else "PUT"
        path = BY_KIND[key.kind].path(key.namespace, key.name)
        detail = bounded(self._detail(key, edit))
        return AuditLine.of_leader(self._clock(), verb, path, key.kind, detail)

    def _detail(self, key: DocumentKey, edit: Edit) -> str:
        of_object = f"object of {self._kinds[key.kind].group}"
        if edit.document is None:
            return f"{of_object} deleted"
        before = self._documents.get(key)
        if before is None:
            return f"{of_object} created"
        changes = list(map(str, differences(before, edit.document)))
        more = (
            [f"and {len(changes) - _NAMED_CHANGES} more"] if len(changes) > _NAMED_CHANGES else []
        )
        return "; ".join([f"{of_object} edited", *changes[:_NAMED_CHANGES], *more])

    # ---- The report

    async def _tell(self) -> None:
        """Write the report if it has changed."""
        report = self._new_report()
        if replace(report, at=0.0) == replace(self._report, at=0.0) and self._report.at:
            return
        await self._store.keep_followed(report, epoch=self._epoch)
        self._report = report
        self._show(report)

    def _new_report(self) -> FollowedReport:
        batch = self._batch or Batch({})
        faulty = sorted(batch.faults.items())
        deletion = batch.deletion
        return FollowedReport(
            at=self._clock(),
            owner=self._owner.value,
            sources=tuple(
                FollowedSource(
                    kind.definition,
                    self._source.versions.get(kind.plural, ""),
                    self._observed.count(kind.plural),
                    bounded(self._observed.faults.get(kind.plural, "")),
                )
                for kind in self._kinds.values()
            ),
            faulty=tuple(
                FaultyObject(
                    key.kind, key.namespace, key.name, bounded(error), key in self._documents
                )
                for key, error in faulty[:MOST_NAMED]
            ),
            faulty_count=len(faulty),
            waiting=tuple(map(str, sorted(batch.waiting)[:MOST_NAMED])),
            deletion=None
            if deletion is None
            else PendingDeletion(
                deletion.id, tuple(map(str, deletion.keys[:MOST_NAMED])), len(deletion.keys)
            ),
        )
