"""The event stream: new lines of history, read once for all streams of this process, as server-sent events (HTML §9.2).

One task waits for a notification of new lines, and reads them. They stay in a window, from which each stream reads at its own speed. A
stream reads lines that are older than the window from the database, to catch up after a pause. No stream has its own buffer, so
a stream that does not read costs nothing. Pages of older lines are read one at a time for all streams, with pauses, so that streams
which begin far in the past do not take the event loop and the database from others.
"""

from __future__ import annotations

import asyncio
import json
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

import structlog
from pydantic import Field

from queuectl.api.schemas import HistoryView
from queuectl.api.views import history_view
from queuectl.db.ports import ApiStore
from queuectl.domain.errors import StoreUnavailable
from queuectl.domain.queries import LONGEST_PAGE, HistoryLine
from queuectl.domain.redaction import namespaces_in

# ---- The feed

_WINDOW: Final = 4096  # lines kept at least
RETRY_SECONDS: Final = 1.0
_LONGEST_PAUSE: Final = 1.0  # seconds after a page; a stream ends after it at the latest
_REPLAY_SHARE: Final = 0.25  # largest part of the time in which older lines are read
_id_of: Final = attrgetter("id")
_log = structlog.get_logger(source="queuectl.api")


@dataclass(frozen=True, slots=True)
class FeedLine:
    """A line, and its encoding for callers that are allowed to see all workloads that it names. ``named``: their namespaces."""

    id: int
    line: HistoryLine
    data: str
    named: frozenset[str]


class EventFeed:
    """The lines of one process. It reads only while there is a stream.

    Attributes:
        closing: set when all streams must end.
        end: id of the last line that was read.
        restored: the number of times that history was shorter than before.
    """

    def __init__(self, store: ApiStore, window: int = _WINDOW) -> None:
        """``window``: lines kept at least; twice as many at most."""
        self._store = store
        self._size = window
        self._window: list[FeedLine] = []
        self._floor: int | None = (
            None  # all lines above it and up to `end` are in the window; None = not known yet
        )
        self.end = 0
        self._changed = asyncio.Event()
        self._listening = 0
        self._reader: asyncio.Task[None] | None = None
        self._replaying = asyncio.Lock()
        self.closing = asyncio.Event()
        self.restored = 0

    def close(self) -> None:
        """Make all streams end, because the server stops."""
        self.closing.set()
        self._ring()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """A context for a stream. History is read while there is one."""
        self._listening += 1
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read(), name="history feed")
        try:
            yield
        finally:
            self._listening -= 1
            if not self._listening:
                reader, self._reader = self._reader, None
                self._window, self._floor = [], None
                reader.cancel()
                with suppress(asyncio.CancelledError):
                    await reader

    def keeps(self, after: int) -> bool:
        """Whether all lines above this id are in the window or do not exist yet."""
        return self._floor is not None and after >= self._floor

    async def more(self, after: int, seconds: float) -> Sequence[FeedLine]:
        """Some lines above an id, in order; empty if none appears in this many seconds.

        Can raise StoreUnavailable if it reads them from the database.
        """
        restored = self.restored
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._floor is None or after >= self.end:
                    if self.closing.is_set() or self.restored != restored:
                        return ()
                    await self._changed.wait()
        if self._reader is not None and self._reader.done():
            await self._reader  # its failure ends the streams
        if self._floor is None:
            return ()
        if after < self._floor:
            return await self._older(after)
        first = bisect_right(self._window, after, key=_id_of)
        return self._window[first : first + LONGEST_PAGE]

    async def _older(self, after: int) -> tuple[FeedLine, ...]:
        """A page of lines that are older than the window."""
        clock = asyncio.get_running_loop().time
        async with self._replaying:
            began = clock()
            page = await self._store.history(None, after, LONGEST_PAGE)
            lines = tuple([feed_line(line) for line in page])
            pause = (clock() - began) * (1.0 - _REPLAY_SHARE) / _REPLAY_SHARE
            await asyncio.sleep(min(pause, _LONGEST_PAUSE))
        return lines

    async def _read(self) -> None:
        while True:
            try:
                self._begin(await self._store.newest_line())
                while True:
                    await self._store.history_grown(self.end)
                    self._keep(await self._store.history(None, self.end, LONGEST_PAGE))
            except StoreUnavailable as error:
                _log.info("history_not_read", error=str(error))
                await asyncio.sleep(RETRY_SECONDS)

    def _begin(self, end: int) -> None:
        """Keep the window over an outage, unless history is shorter then: the database was restored from a backup."""
        shorter = self._floor is not None and end < self.end
        if self._floor is None or shorter:
            self._window, self._floor, self.end = [], end, end
        self.restored += shorter
        self._ring()

    def _keep(self, lines: Sequence[HistoryLine]) -> None:
        if not lines:
            return
        self._window += map(feed_line, lines)
        self.end = lines[-1].id
        if len(self._window) > 2 * self._size:
            gone = len(self._window) - self._size
            self._floor = self._window[gone - 1].id
            self._window = self._window[gone:]
        self._ring()

    def _ring(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def feed_line(line: HistoryLine) -> FeedLine:
    """The encoding of a line."""
    data = event_view(line).model_dump_json(by_alias=True)
    return FeedLine(line.id, line, data, namespaces_in(line.reason))


# ---- Encoding

_RETRY_MILLISECONDS: Final = 2000  # after which a browser reconnects


class EventView(HistoryView):
    """The data of a `step`: one committed step of one workload."""

    uid: str
    kind: str
    namespace: str
    name: str
    cluster_queue: str = Field(description="Current LocalQueue of the workload; empty without one.")
    epoch: int = Field(description="Epoch of the leader; cycle numbers are for each epoch.")


def event_view(line: HistoryLine) -> EventView:
    """One step of one workload."""
    return EventView(
        **dict(history_view(line)),
        uid=line.uid,
        kind=line.kind,
        namespace=line.namespace,
        name=line.name,
        cluster_queue=line.cluster_queue,
        epoch=line.epoch,
    )


def opening(position: int) -> str:
    """The first message: the id of the start, so that a stream that breaks before the first line loses none."""
    return f"retry: {_RETRY_MILLISECONDS}\nid: {position}\n\n"


def step(number: int, text: str) -> str:
    """One line of history; ``text`` is JSON."""
    return f"id: {number}\nevent: step\ndata: {text}\n\n"


def heartbeat(position: int) -> str:
    """A comment that keeps proxies from closing the stream, and advances its id past lines that do not match."""
    return f": alive\nid: {position}\n\n"


def sign_of_life(position: int, *, database: bool, access: bool) -> str:
    """The same as an event, which scripts of a page can see.

    Args:
        position: as for the other messages.
        database: whether the database answers.
        access: whether the rights of the caller can be checked; without them, the stream sends no steps.
    """
    data = json.dumps({"database": database, "access": access})
    return f"id: {position}\nevent: alive\ndata: {data}\n\n"


def cut(position: int) -> str:
    """The last message to a client that is too slow."""
    reason = "the client reads events more slowly than they arrive; reconnect with this id as Last-Event-ID"
    return _special("cut", position, reason)


def signed_out(position: int) -> str:
    """The last message to a client whose credentials are no longer valid."""
    reason = "your session or token has ended; ask again with this id as Last-Event-ID and new credentials"
    return _special("cut", position, reason)


def end(position: int) -> str:
    """The last message of a stream that does not follow: it has all steps up to this id that match."""
    return f"id: {position}\nevent: end\n\n"


def reset(position: int) -> str:
    """History is shorter than it was: the database was restored from a backup."""
    reason = "the database was restored from a backup: read again whatever you keep"
    return _special("reset", position, reason)


def _special(event: str, position: int, reason: str) -> str:
    data = json.dumps({"after": position, "reason": reason})
    return f"id: {position}\nevent: {event}\ndata: {data}\n\n"
