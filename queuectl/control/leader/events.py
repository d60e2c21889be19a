"""Tells people who only have kubectl: one Event and one status annotation per state change or lasting reason.

Telling never competes with admitting: a bounded backlog, a fixed rate, of each job the newest word and why it was evicted, and
nothing while writes of the protocol are queued. What is not told stands in the database, the API and the metrics all the same.
Who may read a namespace's Events need not know other teams, so gangs of other namespaces are not named in them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Container, Iterable
from dataclasses import replace

import structlog

from queuectl.control.ports import Cluster
from queuectl.domain.errors import ClusterError, WriteConflict, WriteRefused
from queuectl.domain.ledger import Entry, EntryChange, State
from queuectl.domain.reasons import REMARKS, TRANSIENT, WARNINGS, Code, Reason
from queuectl.domain.records import JobRecord
from queuectl.domain.redaction import veiled_for
from queuectl.lifecycle.owed_writes import status_text
from queuectl.objects.kinds import KINDS

log = structlog.get_logger()

AGAIN = 1.0  # seconds after a conflict
BACKLOG = 5000  # jobs waiting to be told; the oldest word is dropped beyond it


class EventRecorder:
    """Writes Events at a bounded rate, newest word per job first come first served."""

    def __init__(
        self,
        cluster: Cluster,
        job: Callable[[str], JobRecord | None],
        quiet: Callable[[], bool],
        namespaces: Container[str],
        *,
        per_second: float,
        after: float,
    ) -> None:
        """``job(uid)``: the object as mirrored. ``quiet()``: whether the protocol has nothing to write.

        ``namespaces``: of the cluster, as they come and go. ``after``: seconds a passing reason must last before it is told.
        """
        self._cluster = cluster
        self._job = job
        self._quiet = quiet
        self._namespaces = namespaces
        self._pause = 1.0 / per_second
        self._after = after
        self._words: dict[str, tuple[float, Entry]] = {}
        self._last: dict[str, tuple[State, Code]] = {}
        self._remarks: dict[tuple[str, Code], Reason] = {}

    def tell(self, changes: Iterable[EntryChange]) -> None:
        """Take note of committed changes worth a word."""
        now = asyncio.get_running_loop().time()
        for change in changes:
            entry = change.after
            if change.note is not None and change.note.reason.code in REMARKS:
                self._remember(entry.uid, change.note.reason)
                continue
            if change.note is None or entry.reason.code in (Code.DELETED, Code.SUCCEEDED):
                self._words.pop(entry.uid, None)
                self._last.pop(entry.uid, None)
                continue
            due = now + self._after if entry.reason.code in TRANSIENT else now
            _, older = self._words.pop(entry.uid, (0.0, None))
            if older is not None and older.state is State.EVICTING:
                self._remember(entry.uid, older.reason)  # why it had to go is told in any case
            self._words[entry.uid] = (due, entry)
            if len(self._words) > BACKLOG:
                del self._words[next(iter(self._words))]

    def _remember(self, uid: str, reason: Reason) -> None:
        self._remarks[uid, reason.code] = reason
        if len(self._remarks) > BACKLOG:
            del self._remarks[next(iter(self._remarks))]

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await asyncio.sleep(self._pause)
            uid = self._due() if self._quiet() else None
            if uid is not None:
                await self._write(self._words.pop(uid)[1])
            elif self._remarks and self._quiet():
                (uid, _), reason = next(iter(self._remarks.items()))
                del self._remarks[uid, reason.code]
                await self._remark(uid, reason)

    def _due(self) -> str | None:
        now = asyncio.get_running_loop().time()
        return next((uid for uid, (due, _) in self._words.items() if due <= now), None)

    async def _write(self, entry: Entry) -> None:
        job = self._job(entry.uid)
        said = (entry.state, entry.reason.code)
        if job is None or self._last.get(entry.uid) == said:
            return
        entry = replace(entry, reason=self._veiled(entry.reason, entry.namespace))
        kind = "Warning" if entry.reason.code in WARNINGS else "Normal"
        text = entry.reason.message or str(entry.state)
        try:
            await self._annotate(job, status_text(entry))
            await self._cluster.create_event(job, kind, str(entry.reason.code), text)
            self._last[entry.uid] = said
        except (
            WriteConflict
        ):  # its echo is on the way; a newer word, if there is one by then, goes first
            due = asyncio.get_running_loop().time() + AGAIN
            self._words.setdefault(entry.uid, (due, entry))
        except ClusterError as error:
            log.info("not_told", workload=entry.ref, why=str(error))

    async def _remark(self, uid: str, reason: Reason) -> None:
        job = self._job(uid)
        if job is None:
            return
        reason = self._veiled(reason, job.namespace)
        try:
            await self._cluster.create_event(job, "Warning", str(reason.code), reason.message)
        except ClusterError as error:
            log.info("not_told", workload=f"{job.namespace}/{job.name}", why=str(error))

    def _veiled(self, reason: Reason, namespace: str) -> Reason:
        return veiled_for(namespace, reason, self._namespaces)

    async def _annotate(self, job: JobRecord, text: str) -> None:
        if job.status != text:
            patch = KINDS[job.kind].status_patch(job, text)
            # Where there is no room for the annotation, or it is refused, the Event is all the same worth having.
            with contextlib.suppress(WriteRefused):
                await self._cluster.patch_job(job.kind, job.namespace, job.name, patch)
