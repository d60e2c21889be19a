"""Logs of containers as streams for a page: checked as the viewer, bounded, and canceled with their page.

A stream shows one log. The rights of the viewer and the session are checked before it and again while it lasts, and it ends with a
sentence that states why. All streams of a process share one rate, because their text is handled on the event loop of the controller.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog
from starlette.requests import Request

from queuectl.api.access import Guard, RecentCredentials, caller_of
from queuectl.api.problems import OUTAGES, ApiProblem, ProblemType
from queuectl.api.routes.events import StreamLimit
from queuectl.domain.errors import ClusterError, ObjectGone, WriteRefused
from queuectl.domain.identity import Caller, Right
from queuectl.domain.log_text import PageText
from queuectl.domain.pacing import Buckets, ByteRate
from queuectl.domain.pod_logs import LogRequest, PodIdentity
from queuectl.objects.kubernetes.containers import PodContainers

_log = structlog.get_logger(source="queuectl.api")


class PodLog(Protocol):
    """The bytes of one log."""

    async def read(self, seconds: float) -> bytes | None:
        """The bytes that have arrived, at least one; empty at the end; None = none in this time.

        Raises:
            ClusterError: the log cannot be read, or no longer.
        """


class PodLogSource(Protocol):
    """Containers and logs of pods, under the identity of queuectl."""

    async def containers(self, pod: PodIdentity) -> PodContainers:
        """The containers of the pod.

        Raises:
            ObjectGone: it is deleted, or another pod has its name now.
            ClusterError: the API server refuses, or does not answer.
        """

    def opened(self, request: LogRequest) -> AbstractAsyncContextManager[PodLog]:
        """A context in which the log is read; its end closes the connection."""


@dataclass(frozen=True, slots=True)
class LogLimits:
    """The bounds of the streams of one process.

    Attributes:
        streams, of_caller, of_namespace: open ones. Accounts of one namespace cannot take the streams of all.
        tail: lines with which a stream can begin.
        most_bytes, most_lines, most_seconds: of one stream.
        bytes_per_second, burst_bytes: of one stream.
        all_bytes_per_second, all_burst_bytes: of all streams together.
        opened_per_second, opened_burst: pages and new streams of one caller, each of which reads a pod.
        first_seconds: how long the first bytes, or a refusal of the kubelet, can delay the answer.
        known_seconds: between two checks of the session.
        trust_seconds: between two checks of the rights. An answer is up to 30 seconds old, so a right ends within a minute.
        heartbeat_seconds: without text, after which a proxy gets a comment.
    """

    streams: int = 50
    of_caller: int = 3  # browsers open six connections to one host
    of_namespace: int = 20
    tail: int = 5000
    most_bytes: int = 16 << 20
    most_lines: int = 200_000
    most_seconds: float = 1800.0
    bytes_per_second: float = 128 << 10
    burst_bytes: float = 1 << 20
    all_bytes_per_second: float = 1 << 20
    all_burst_bytes: float = 2 << 20
    opened_per_second: float = 1.0
    opened_burst: int = 40
    first_seconds: float = 2.0
    known_seconds: float = 5.0
    trust_seconds: float = 30.0
    heartbeat_seconds: float = 15.0


_PIECE: Final = 8 << 10
"""Bytes that are handled without a pause of the event loop in between."""
_LEAST: Final = 4 << 10
"""As which each piece counts, because a container can write byte by byte."""
ENDED: Final = "The log ends here: the container has ended, or all current lines are shown."
CLOSING: Final = "This replica of queuectl is stopping. Select Read again: another replica answers."
SIGNED_OUT: Final = "Your session has ended. Sign in again to read on."
UNCHECKED: Final = (
    "Your rights cannot be checked now, so the log is not read on. Try again in a moment."
)
GONE: Final = "The pod no longer exists, and its log is deleted with it."
UNREADABLE: Final = "The API server or the node no longer answers. Try again in a moment."


def sentence_of(error: ClusterError) -> str:
    """Why a log cannot be read."""
    if isinstance(error, ObjectGone):
        return GONE
    return f"The log cannot be read: {error}." if isinstance(error, WriteRefused) else UNREADABLE


class PodLogs:
    """The streams of one process."""

    def __init__(self, source: PodLogSource, limits: LogLimits = LogLimits()) -> None:
        self.source = source
        self.limits = limits
        self.closing = asyncio.Event()
        self._open = StreamLimit(limits.streams, limits.of_caller, "logs")
        self._by_namespace = Counter[str]()
        self._openings = Buckets(limits.opened_per_second, limits.opened_burst)
        self._all = ByteRate(limits.all_bytes_per_second, limits.all_burst_bytes)

    def close(self) -> None:
        """Make all streams end, because the server stops."""
        self.closing.set()

    async def containers(self, request: Request, pod: PodIdentity) -> PodContainers:
        """The containers of a pod, for the caller of a request.

        Raises:
            Problem: too-many-requests.
            ClusterError: the pod cannot be read.
        """
        caller = caller_of(request)
        if wait := self._openings.take(caller.name):
            detail = f"{caller.name} opens logs too often; try again in {wait:.0f} s"
            raise ApiProblem(
                ProblemType.TOO_MANY_REQUESTS, detail, {"Retry-After": f"{wait + 1:.0f}"}
            )
        return await self.source.containers(pod)

    @contextmanager
    def _one_more(self, caller: Caller, namespace: str) -> Iterator[None]:
        """A context for a stream. Raises ApiProblem."""
        if self._by_namespace[namespace] >= self.limits.of_namespace:
            detail = f"{self.limits.of_namespace} logs of namespace {namespace} are open already"
            raise ApiProblem(ProblemType.TOO_MANY_REQUESTS, detail)
        with self._open.one_more(caller):
            self._by_namespace[namespace] += 1
            try:
                yield
            finally:
                self._by_namespace -= Counter((namespace,))  # drops namespaces without a stream

    async def stream(
        self, guard: Guard, request: Request, log: LogRequest, rights: tuple[Right, ...]
    ) -> AsyncGenerator[str]:
        """The events of a stream, after an empty one: each error comes before that.

        Args:
            guard: checks the rights.
            request: of the viewer, which lasts as long as the stream.
            log: what is read.
            rights: that the viewer needs while it lasts.

        Raises:
            Problem: too-many-requests.
            ClusterError: the log cannot be read.
        """
        with self._one_more(caller_of(request), log.pod.namespace):
            viewer = LogViewer(guard, request, rights, self.limits)
            async with self.source.opened(log) as opened:
                first = await opened.read(self.limits.first_seconds)
                yield ""
                stream = LogStream(opened, viewer, self.limits, self._all, self.closing)
                try:
                    async with aclosing(stream.events(first)) as events:
                        async for event in events:
                            yield event
                finally:
                    _log.info(
                        "pod_log_closed",
                        namespace=log.pod.namespace,
                        pod=log.pod.name,
                        container=log.container,
                        bytes=stream.sent,
                        seconds=round(stream.age, 1),
                        reason=stream.reason,
                    )


class LogViewer:
    """The caller of one stream, whose session and rights can end while it lasts."""

    def __init__(
        self, guard: Guard, request: Request, rights: tuple[Right, ...], limits: LogLimits
    ) -> None:
        self._guard = guard
        self._request = request
        self._rights = rights
        self._seconds = limits.trust_seconds
        self._credentials = RecentCredentials(request, limits.known_seconds)
        self._trusted_until = asyncio.get_running_loop().time() + limits.trust_seconds

    async def objection(self) -> str:
        """Why the viewer may not read on; empty = nothing forbids it. Without an answer of the authorities, it is forbidden."""
        try:
            if not await self._credentials.valid():
                return SIGNED_OUT
            now = asyncio.get_running_loop().time()
            if now >= self._trusted_until:
                for right in self._rights:
                    if not await self._guard.may(self._request, right):
                        return f"You may no longer read this log: {caller_of(self._request).name} may not {right}."
                self._trusted_until = now + self._seconds
        except OUTAGES:
            return UNCHECKED
        return ""


@dataclass
class LogStream:
    """One open stream.

    Attributes:
        sent: bytes of the log so far.
        reason: why it ended; empty = the viewer has left.
    """

    log: PodLog
    viewer: LogViewer
    limits: LogLimits
    all_streams: ByteRate
    closing: asyncio.Event
    sent: int = 0
    reason: str = ""
    _lines: int = 0
    _text: PageText = field(default_factory=PageText)

    def __post_init__(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock()
        self._own = ByteRate(self.limits.bytes_per_second, self.limits.burst_bytes, self._clock)

    @property
    def age(self) -> float:
        """Seconds since its beginning."""
        return self._clock() - self._began

    async def events(self, first: bytes | None) -> AsyncGenerator[str]:
        """The events after the opening one, until one that states why the stream ends. ``first``: the part that was read before."""
        part, written_at = first, self._began
        while True:
            for piece in _pieces(part or b""):
                if reason := await self._objection():
                    yield self._end(reason)
                    return
                self.sent += len(piece)
                if text := self._text.add(piece):
                    self._lines += text.count("\n")
                    yield _text_event(text)
                    written_at = self._clock()
                await self._pause(max(len(piece), len(text), _LEAST))
            if part == b"":
                if text := self._text.end():
                    yield _text_event(text)
                yield self._end(ENDED)
                return
            if reason := await self._objection():
                yield self._end(reason)
                return
            if self._clock() - written_at >= self.limits.heartbeat_seconds:
                yield _HEARTBEAT
                written_at = self._clock()
            try:
                part = await self._read()
            except ClusterError as error:
                _log.info("pod_log_not_read", error=str(error))
                yield self._end(sentence_of(error))
                return

    async def _objection(self) -> str:
        """Why the stream ends now; empty = it does not."""
        limits = self.limits
        if self.closing.is_set():
            return CLOSING
        if self.sent >= limits.most_bytes or self._lines >= limits.most_lines:
            most = f"{limits.most_bytes >> 20} MiB or {limits.most_lines:,} lines"
            return f"One reading has at most {most}. Read again for the newest lines."
        if self.age >= limits.most_seconds:
            return f"One reading lasts at most {limits.most_seconds / 60:.0f} minutes. Read again for the newest lines."
        return await self.viewer.objection()

    async def _read(self) -> bytes | None:
        """The next part; None = none for a while, or the server stops."""
        reading = asyncio.ensure_future(self.log.read(self.limits.known_seconds))
        closing = asyncio.ensure_future(self.closing.wait())
        try:
            await asyncio.wait({reading, closing}, return_when=asyncio.FIRST_COMPLETED)
            return reading.result() if reading.done() else None
        finally:
            for task in (reading, closing):
                task.cancel()
            await asyncio.wait({reading, closing})
            if not reading.cancelled():
                reading.exception()  # retrieved, in case that the viewer has left

    async def _pause(self, amount: int) -> None:
        """Keep the rates, and let the event loop do something else in any case. A stop of the server ends the wait."""
        wait = max(self._own.passed(amount), self.all_streams.passed(amount))
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await self.closing.wait()

    def _end(self, reason: str) -> str:
        self.reason = reason
        return f"event: end\ndata: {json.dumps({'reason': reason})}\n\n"


_HEARTBEAT: Final = ": alive\n\n"


def _pieces(part: bytes) -> Iterator[bytes]:
    for start in range(0, len(part), _PIECE):
        yield part[start : start + _PIECE]


def _text_event(text: str) -> str:
    """JSON has the line ends of the text as escapes, so that one line of the event holds all of it."""
    return f"data: {json.dumps({'text': text}, ensure_ascii=False)}\n\n"
