"""Watches: the changes of QueuedJobs as a stream of events. A stream has no buffer, so a client that does not read costs nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from queuectl.api.access import caller_of
from queuectl.api.problems import OUTAGES
from queuectl.api.routes.events import StreamLimit
from queuectl.domain.errors import TooManyReviews
from queuectl.domain.ledger import Entry
from queuectl.visibility.answers import JobAnswers, document
from queuectl.visibility.changes import ChangeLog, JobChange
from queuectl.visibility.objects import API_VERSION, KIND, QueuedJob
from queuectl.visibility.requests import ListOptions, ReadTarget, all_chosen, chosen
from queuectl.visibility.rows import KnownWorkloads, LastKnown
from queuectl.visibility.status import JSON, status
from queuectl.visibility.tables import PARTIAL, table

PAGE: Final = 200
"""Changes of one step of a stream."""
LONGEST_SECONDS: Final = 1800
"""After which a watch ends; clients begin another one."""
BOOKMARK_SECONDS: Final = 30.0
TRUST_SECONDS: Final = 30.0
"""Between two checks of the right."""
INITIAL_END: Final = "k8s.io/initial-events-end"
"""The annotation of the bookmark after the objects that exist."""
AHEAD_MILLISECONDS: Final = 60_000
"""The clocks of two servers of the database do not differ by more."""


class WatchResponse(StreamingResponse):
    """Ends its generator when the client disconnects, not when the garbage is collected."""

    def __init__(self, chunks: AsyncIterator[bytes], limit: StreamLimit) -> None:
        super().__init__(chunks, media_type=JSON)
        self._chunks = chunks
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream. Raises ApiProblem if too many are open."""
        with self._limit.one_more(caller_of(Request(scope))):
            async with aclosing(self._chunks):  # type: ignore[type-var]  # an async generator
                await super().__call__(scope, receive, send)


@dataclass(frozen=True)
class Watch:
    """The stream of one client.

    Attributes:
        request: of the client.
        target, options: what it watches.
        as_table: whether each object is a Table of one row.
        rows: the source.
        log: the changes of the source.
        answers: makes the objects.
        is_allowed: whether the client still has the right.
    """

    request: Request
    target: ReadTarget
    options: ListOptions
    as_table: bool
    rows: LastKnown
    log: ChangeLog
    answers: JobAnswers
    is_allowed: Callable[[], Awaitable[bool]]

    async def chunks(self, workloads: KnownWorkloads) -> AsyncIterator[bytes]:
        """The events. ``workloads``: those when it begins. It ends where the rights of the caller cannot be checked."""
        try:
            async with aclosing(self._events(workloads)) as events:
                async for event in events:
                    yield event
        except (*OUTAGES, TooManyReviews) as error:
            yield _event("ERROR", status(503, str(error)))

    async def _events(self, workloads: KnownWorkloads) -> AsyncGenerator[bytes, None]:
        clock = asyncio.get_running_loop().time
        until = clock() + min(self.options.seconds or LONGEST_SECONDS, LONGEST_SECONDS)
        head = [True]
        if self.options.version and not self.options.initial:
            first = self.log.begin(self.options.version)
            if first is None or self.options.version > workloads.version + AHEAD_MILLISECONDS:
                yield _event("ERROR", status(410, "the version is no longer known: list again"))
                return
            number = first
        else:
            number = self.log.after(workloads.version)
            async for event in self._existing(workloads, head):
                yield event
        checked_at = marked_at = clock()
        while (now := clock()) < until:
            if now - checked_at >= TRUST_SECONDS:
                if not await self.is_allowed():
                    return
                checked_at = now
            changes = self.log.read(number, PAGE)
            if changes is None:
                yield _event("ERROR", status(410, "the client reads too slowly: list again"))
                return
            if changes:
                number += len(changes)
                if text := await self._changed(changes, head):
                    yield text
                continue
            if self.options.bookmarks and now - marked_at >= BOOKMARK_SECONDS:
                latest = await self.rows.recent()
                if latest is not None and self.log.end == number:
                    yield self._bookmark(latest.version)
                marked_at = now
            await self.rows.grown(number)

    async def _existing(
        self, workloads: KnownWorkloads, head: list[bool]
    ) -> AsyncGenerator[bytes, None]:
        """The events for all objects that exist."""
        known = workloads.by_key
        entries = await asyncio.to_thread(all_chosen, known, self.target, self.options)
        for start in range(0, len(entries), PAGE):
            events = [("ADDED", one) for one in entries[start : start + PAGE]]
            yield await self._encoded(events, workloads.versions, head)
        if self.options.initial:
            yield self._bookmark(workloads.version, {INITIAL_END: "true"})

    def _matches(self, entry: Entry | None) -> bool:
        return entry is not None and chosen(entry, self.target, self.options)

    async def _changed(self, changes: Sequence[JobChange], head: list[bool]) -> bytes:
        """The events of changes that concern this client."""
        # On a thread: a selector can have hundreds of terms, and a watch can begin with thousands of changes.
        events, versions = await asyncio.to_thread(self._chosen, changes)
        return await self._encoded(events, versions, head) if events else b""

    def _chosen(
        self, changes: Sequence[JobChange]
    ) -> tuple[list[tuple[str, Entry]], dict[str, int]]:
        """The types of the events with their workloads, and the versions of these by uid."""
        events: list[tuple[str, Entry]] = []
        versions: dict[str, int] = {}
        for change in changes:
            was, matches = self._matches(change.before), self._matches(change.after)
            if was or matches:
                kind = "MODIFIED" if was and matches else "ADDED" if matches else "DELETED"
                events.append((kind, change.last))
                versions[change.last.uid] = change.version
        return events, versions

    async def _encoded(
        self, events: Sequence[tuple[str, Entry]], versions: Mapping[str, int], head: list[bool]
    ) -> bytes:
        jobs = await self.answers.jobs(self.request, [entry for _, entry in events], versions)
        return b"".join(
            _event(kind, self._body(job, head)) for (kind, _), job in zip(events, jobs, strict=True)
        )

    def _body(self, job: QueuedJob, head: list[bool]) -> dict[str, Any]:
        """An object. The first Table of a stream defines the columns."""
        if not self.as_table:
            return document(job)
        first, head[0] = head[0], False
        metadata = {"resourceVersion": job.metadata.resource_version}
        return table([job], self.options.include, metadata, head=first)

    def _bookmark(self, version: int, annotations: Mapping[str, str] | None = None) -> bytes:
        metadata: dict[str, Any] = {"resourceVersion": str(version), "creationTimestamp": None}
        if annotations is not None:
            metadata["annotations"] = annotations
        body: dict[str, Any] = {
            "kind": KIND,
            "apiVersion": API_VERSION,
            "metadata": metadata,
        }
        if self.as_table:
            row = {"cells": [], "object": {**body, **PARTIAL}}
            listed = {"resourceVersion": str(version)}
            body = {**table((), self.options.include, listed, head=False), "rows": [row]}
        return _event("BOOKMARK", body)


def _event(kind: str, body: Mapping[str, Any]) -> bytes:
    return orjson.dumps({"type": kind, "object": body}) + b"\n"
