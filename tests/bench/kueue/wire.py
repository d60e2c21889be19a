"""As little HTTP over TLS as the runner needs: requests are bytes made by the caller, answers are a status and a text.

A general client costs several times as many cycles for the same requests, on the two cores where the measured programs run.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

_LENGTH: Final = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)
_LAST_CHUNK: Final = b"\r\n0\r\n\r\n"

Answered = Callable[[int, bytes], None]
"""Gets the status and what came after it."""


@dataclass(frozen=True)
class Address:
    """Where an API server listens, and the TLS to talk to it."""

    host: str
    port: int
    tls: ssl.SSLContext

    @classmethod
    def of(cls, server: str, tls: ssl.SSLContext) -> Address:
        """From a URL like `https://127.0.0.1:6443`."""
        parts = urlsplit(server)
        assert parts.port is not None
        return cls(parts.hostname or "", parts.port, tls)


def request(method: str, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    """A whole HTTP/1.1 request."""
    lines = [f"{method} {path} HTTP/1.1", "host: kubernetes", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def whole(answer: bytes) -> bool:
    """Whether an answer has come to its end. JSON has no bare line ends, so the last chunk cannot be mistaken."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if found := _LENGTH.search(head):
        return len(body) >= int(found.group(1))
    return answer.endswith(_LAST_CHUNK)


class Pool:
    """A few connections that take turns, each with one request at a time; what comes when all are busy waits in order."""

    def __init__(self, address: Address, size: int, failed: Callable[[Exception], None]) -> None:
        """Connections are made when they are needed.

        Args:
            address: Where to.
            size: How many at most.
            failed: called when no connection can be opened, or one is lost with a request in progress.
        """
        self.failed = failed
        self._address = address
        self._size = size
        self._lines: set[_Line] = set()
        self._free: deque[_Line] = deque()
        self._waiting: deque[tuple[bytes, Answered]] = deque()
        self._opening: set[asyncio.Task[None]] = set()

    def send(self, data: bytes, answered: Answered) -> None:
        """Send one request now, or when a connection is free; ``answered`` is called once."""
        if self._free:
            self._free.popleft().ask(data, answered)
            return
        self._waiting.append((data, answered))
        if len(self._lines) + len(self._opening) < self._size:
            opening = asyncio.get_running_loop().create_task(self._open())
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)

    async def _open(self) -> None:
        loop, at = asyncio.get_running_loop(), self._address
        try:
            _, line = await loop.create_connection(
                lambda: _Line(self), at.host, at.port, ssl=at.tls
            )
        except OSError as error:
            self.failed(error)
        else:
            self._lines.add(line)
            self.free(line)

    def close(self) -> None:
        """Close all connections; nothing is still under way."""
        for opening in self._opening:
            opening.cancel()
        for line in self._lines:
            line.close()

    def free(self, line: _Line) -> None:
        """A connection has got its answer."""
        if self._waiting:
            line.ask(*self._waiting.popleft())
        else:
            self._free.append(line)

    def lost(self, line: _Line, error: Exception | None) -> None:
        """A connection has ended; the server does that to idle ones."""
        self._lines.discard(line)
        if line in self._free:
            self._free.remove(line)
        if error is not None:
            self.failed(error)


class _Line(asyncio.Protocol):
    """One connection."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._answer = b""
        self._answered: Answered | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def ask(self, data: bytes, answered: Answered) -> None:
        self._answer, self._answered = b"", answered
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        self._answer += data
        if self._answered is not None and whole(self._answer):
            answered, self._answered = self._answered, None
            answered(int(self._answer[9:12]), self._answer)
            self._pool.free(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answered is not None and exc is None:
            exc = ConnectionError("the API server closed a connection without an answer")
        self._pool.lost(self, exc)

    def close(self) -> None:
        self._transport.close()


class Watch(asyncio.Protocol):
    """A watch as a stream of lines. It asks in HTTP/1.0, to which the answer comes without chunks and ends the connection.

    Attributes:
        ended: set when the server has cut it off.
    """

    def __init__(self, path: str, line: Callable[[bytes], None]) -> None:
        self._path = path
        self._line = line
        self._rest = b""
        self._begun = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def follow(cls, address: Address, path: str, line: Callable[[bytes], None]) -> None:
        """Call ``line`` with each line until the server ends the watch, which is not an error.

        Raises:
            ConnectionError: the server refused it, or the connection broke.
        """
        loop = asyncio.get_running_loop()
        transport, watch = await loop.create_connection(
            lambda: cls(path, line), address.host, address.port, ssl=address.tls
        )
        try:
            await watch.ended
        finally:
            transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(f"GET {self._path} HTTP/1.0\r\nhost: kubernetes\r\n\r\n".encode())

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        if not self._begun:
            head, end, rest = data.partition(b"\r\n\r\n")
            if not end:
                self._rest = data
                return
            if int(head[9:12]) != 200:
                self._end(ConnectionError(f"{self._path}: {data[:500]!r}"))
                return
            self._begun, data = True, rest
        lines = data.split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            self._line(line)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)

    def _end(self, error: Exception | None) -> None:
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)
