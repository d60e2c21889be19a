"""Events and status annotations for users of kubectl: one for each change of state and each lasting reason.

They never delay admission: the backlog and the rate are limited, only the latest reason and the reason of an eviction are kept for each
job, and none is written while writes of the protocol are queued, except slow ones. The database, the API and the metrics have the dropped ones. Readers
of Events in a namespace do not always have access to other namespaces, so Events do not name gangs of other namespaces.

A webhook of one namespace does not delay the Events of others (:mod:`queuectl.control.leader.namespace_tasks`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Container, Iterable
from dataclasses import replace
from functools import partial

import structlog

from queuectl.control.leader.namespace_tasks import NamespaceTasks, NamespaceWrite
from queuectl.control.ports import Cluster
from queuectl.domain.containment import Boundary, Containment
from queuectl.domain.errors import ClusterError, ObjectGone, WriteConflict, WriteRefused
from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import Entry, EntryChange, State
from queuectl.domain.reasons import NOTES, TRANSIENT, WARNINGS, Code, Reason
from queuectl.domain.redaction import redacted_for
from queuectl.lifecycle.outstanding_writes import status_text
from queuectl.objects.kinds import JobKinds
from queuectl.objects.kinds.pods import status_patch

log = structlog.get_logger()

AGAIN = 1.0  # seconds after a conflict
BACKLOG = 5000  # jobs with an unwritten Event; beyond it, the oldest is dropped


class EventRecorder:
    """Writes Events at a limited rate: the newest for each job, in the order of the jobs."""

    def __init__(
        self,
        cluster: Cluster,
        job: Callable[[str], JobRecord | None],
        quiet: Callable[[], bool],
        namespaces: Callable[[], Container[str]],
        kinds: JobKinds,
        *,
        per_second: float,
        after: float,
        containment: Containment,
    ) -> None:
        """``job(uid)``: the object from the watch. ``quiet()``: whether no write of the protocol is queued.

        ``namespaces``: the current ones of the cluster. ``kinds``: of jobs. ``after``: seconds for which a transient reason must last.
        """
        self._cluster = cluster
        self._job = job
        self._quiet = quiet
        self._namespaces = namespaces
        self._kinds = kinds
        self._pause = 1.0 / per_second
        self._after = after
        self._queued: dict[str, tuple[float, Entry]] = {}
        self._last: dict[str, tuple[State, Code]] = {}
        self._notes: dict[tuple[str, Code], Reason] = {}
        self._tasks = NamespaceTasks(Boundary.EVENT, containment)

    def add(self, changes: Iterable[EntryChange]) -> None:
        """Add the committed changes that need an Event."""
        now = asyncio.get_running_loop().time()
        for change in changes:
            entry = change.after
            if change.note is not None and change.note.reason.code in NOTES:
                self._add_note(entry.uid, change.note.reason)
                continue
            if change.note is None:
                self._update(entry)
                continue
            if entry.state is State.FINISHED:
                self._last.pop(entry.uid, None)
            _, older = self._queued.pop(entry.uid, (0.0, None))
            if older is not None:
                self._replaced(older)
            if entry.reason.code in (Code.DELETED, Code.SUCCEEDED):
                continue
            due = now + self._after if entry.reason.code in TRANSIENT else now
            self._queued[entry.uid] = (due, entry)
            if len(self._queued) > BACKLOG:
                del self._queued[next(iter(self._queued))]

    def _update(self, entry: Entry) -> None:
        """After a change that needs no Event: the queued one gets the newest text, at the same time.

        Of another code, the text belongs to no Event, and the queued one stays as it is.
        """
        due, queued = self._queued.get(entry.uid, (0.0, None))
        if queued is not None and _shown(queued) == _shown(entry):
            self._queued[entry.uid] = (due, entry)

    def _replaced(self, older: Entry) -> None:
        """A newer reason replaces this one. The reason of an eviction is always written."""
        if older.state is State.EVICTING:
            self._add_note(older.uid, older.reason)

    def note(self, uid: str, reason: Reason) -> None:
        """Write an Event of type Warning on a job, if it exists."""
        if self._job(uid) is not None:
            self._add_note(uid, reason)

    def _add_note(self, uid: str, reason: Reason) -> None:
        self._notes[uid, reason.code] = reason
        if len(self._notes) > BACKLOG:
            del self._notes[next(iter(self._notes))]

    async def run(self) -> None:
        """Write until canceled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(self._pause)
                if not self._tasks.full and self._quiet():
                    self._start_next(group)

    def _start_next(self, group: asyncio.TaskGroup) -> None:
        """Start to write the first Event that is due and whose namespace has none in progress."""
        now, barred = asyncio.get_running_loop().time(), self._tasks.barred()
        for uid, (due, entry) in self._queued.items():
            if due <= now and entry.namespace not in barred:
                del self._queued[uid]
                write = partial(self._write, entry)
                self._tasks.start(group, NamespaceWrite(entry.namespace, uid, entry.ref, write))
                return
        for (uid, code), reason in self._notes.items():
            job = self._job(uid)
            namespace = job.namespace if job is not None else ""
            if namespace not in barred:
                del self._notes[uid, code]
                write = partial(self._write_note, uid, reason)
                self._tasks.start(group, NamespaceWrite(namespace, uid, "", write))
                return

    async def _write(self, entry: Entry) -> None:
        job = self._job(entry.uid)
        written = _shown(entry)
        if job is None or not job.has_object or self._last.get(entry.uid) == written:
            return
        # The end of the workload can follow during the write, and then nothing more is kept of it.
        if entry.state is not State.FINISHED:
            self._last[entry.uid] = written
        published = False
        entry = replace(entry, reason=self._redacted(entry.reason, entry.namespace))
        kind = "Warning" if entry.reason.code in WARNINGS else "Normal"
        text = entry.reason.message or str(entry.state)
        try:
            await self._annotate(job, status_text(entry))
            await self._cluster.create_event(job, kind, str(entry.reason.code), text)
            published = True
        except (WriteConflict, ObjectGone):
            # The watch is behind, or the first pod was replaced.
            if entry.uid not in self._queued:
                self._queued[entry.uid] = (asyncio.get_running_loop().time() + AGAIN, entry)
            else:
                self._replaced(entry)
        except ClusterError as error:
            log.info("event_not_written", workload=entry.ref, error=str(error))
        finally:
            if not published:
                self._last.pop(entry.uid, None)

    async def _write_note(self, uid: str, reason: Reason) -> None:
        job = self._job(uid)
        if job is None or not job.has_object:
            return
        reason = self._redacted(reason, job.namespace)
        try:
            await self._cluster.create_event(job, "Warning", str(reason.code), reason.message)
        except ClusterError as error:
            log.info("event_not_written", workload=f"{job.namespace}/{job.name}", error=str(error))

    def _redacted(self, reason: Reason, namespace: str) -> Reason:
        return redacted_for(namespace, reason, self._namespaces())

    async def _annotate(self, job: JobRecord, text: str) -> None:
        if job.status == text or job.absent or job.index is not None:
            return  # the indexes of an array share its object
        # The Event is also useful if the annotation does not fit or is denied.
        with contextlib.suppress(WriteRefused):
            if job.face is not None:
                patch = status_patch(job.face, text)
                await self._cluster.patch_pod(job.namespace, job.face.name, patch)
            else:
                patch = self._kinds[job.kind].status_patch(job, text)
                await self._cluster.patch_job(job.kind, job.namespace, job.name, patch)


def _shown(entry: Entry) -> tuple[State, Code]:
    """A job gets another Event when one of these changes."""
    return entry.state, entry.reason.code
