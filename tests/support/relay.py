"""A relay in front of Postgres or the API server that loses and delays answers, request by request.

    async with postgres_relay(server.sockets) as relay:
        relay.judge = lambda request: LOST if request.does.startswith("COMMIT") else None

A broken connection does not show its client whether the request had an effect. A relay produces both cases:
a request that had its effect and whose answer is lost, and a request that has its effect only after the client has
stopped waiting for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from queuectl.db.embedded import PORT

SOCKET = f".s.PGSQL.{PORT}"
_SSL_REQUEST = 80877103
_LOOPBACK = "127.0.0.1"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
        does: an SQL statement, or a method and a path; empty for a request without an effect, such as a prepared statement. A
            COMMIT has the last statement of its transaction appended, which shows what it commits.
        data: the bytes.
    """

    does: str
    data: bytes


@dataclass(frozen=True)
class Fault:
    """The fate of one request.

    Attributes:
        name: of the fault.
        hold: seconds for which the request is held after the client knows that it gets no answer; 0 = the client knows it once the
            server has answered.
        hang_up: the client's connection ends at once; otherwise the client waits until its timeout, and only then
            does ``hold`` begin.
        answered: the answer still reaches the client.
    """

    name: str
    hold: float = 0.0
    hang_up: bool = True
    answered: bool = False


LOST = Fault("the answer is lost")
LATE = Fault("the request arrives late", hold=0.2)
SILENT = Fault("the request arrives after the timeout", hold=0.2, hang_up=False)


def slow(seconds: float) -> Fault:
    """A delay of the request and its answer."""
    return Fault("the answer is slow", hold=seconds, answered=True)


@dataclass
class Relay:
    """Forwards all requests except those for which :attr:`judge` returns a fault.

    Attributes:
        judge: called for each request.
        struck: requests that met a fault, in order.
    """

    connect: Callable[[], Awaitable[Streams]]
    split: Callable[[asyncio.StreamReader], AsyncIterator[Request]]
    judge: Callable[[Request], Fault | None] = lambda _: None
    struck: list[tuple[Request, Fault]] = field(default_factory=list)
    _open: dict[asyncio.Task[None], tuple[asyncio.StreamWriter, str]] = field(default_factory=dict)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client."""
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = writer, ""
        # Canceled by close(): asyncio would log an exception in a callback of its streams.
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            server_reader, server = await self.connect()
            answers = asyncio.create_task(_pump(server_reader, writer))
            try:
                async for request in self.split(reader):
                    self._open[task] = writer, request.does
                    fault = self.judge(request)
                    if fault is not None:
                        self.struck.append((request, fault))
                        if not fault.answered:
                            answers.cancel()
                            await asyncio.wait({answers})
                            if fault.hold:
                                await _await_loss(fault, reader, writer)
                        await asyncio.sleep(fault.hold)
                    server.write(request.data)
                    await server.drain()
                    if fault is not None and not fault.answered:
                        await server_reader.read(1)  # it is done: the server has answered
                        break
            finally:
                answers.cancel()
                server.close()
                writer.close()
                del self._open[task]

    def cut(self, chosen: Callable[[str], bool] = lambda _: True) -> int:
        """Break the connections whose last request is chosen. Returns their number."""
        cut = [writer for writer, does in self._open.values() if chosen(does)]
        for writer in cut:
            writer.transport.abort()
        return len(cut)

    async def close(self) -> None:
        """End all connections."""
        tasks = list(self._open)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _await_loss(
    fault: Fault, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Return once the client knows that it gets no answer."""
    if fault.hang_up:
        writer.close()
        return
    with contextlib.suppress(OSError):
        while await reader.read(65536):
            pass


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


# -- Postgres ---------------------------------------------------------------------------------------------------------


async def statements(reader: asyncio.StreamReader) -> AsyncIterator[Request]:
    """Requests of a client of Postgres: messages up to the one after which it waits for an answer."""
    while True:  # a client that requests encryption sends its start-up message again
        size = await reader.readexactly(4)
        rest = await reader.readexactly(int.from_bytes(size) - 4)
        yield Request("", size + rest)
        if int.from_bytes(rest[:4]) != _SSL_REQUEST:
            break
    prepared: dict[bytes, str] = {}
    does = bound = before = ""
    data = b""
    while True:
        kind = await reader.readexactly(1)
        size = await reader.readexactly(4)
        body = await reader.readexactly(int.from_bytes(size) - 4)
        data += kind + size + body
        match kind:
            case b"P":
                name, sql, _ = body.split(b"\0", 2)
                prepared[name] = " ".join(sql.decode().split())
            case b"B":
                bound = prepared.get(body.split(b"\0", 2)[1], "")
            case b"E":
                does = bound
            case b"Q":
                does = body.rstrip(b"\0").decode().rstrip(";")
        if kind in (b"Q", b"S", b"H", b"X"):
            named = f"COMMIT after {before}" if does == "COMMIT" else does
            before = does or before
            yield Request(named, data)
            does, data = "", b""


@asynccontextmanager
async def postgres_relay(upstream: Path) -> AsyncIterator[tuple[Relay, Path]]:
    """A relay to the server with sockets in ``upstream``, and the directory of the relay's socket."""
    with tempfile.TemporaryDirectory(prefix="qrelay-") as directory:

        async def connect() -> Streams:
            return await asyncio.open_unix_connection(upstream / SOCKET)

        relay = Relay(connect, statements)
        server = await asyncio.start_unix_server(relay.accept, Path(directory) / SOCKET)
        try:
            yield relay, Path(directory)
        finally:
            server.close()
            await relay.close()
            await server.wait_closed()


# -- the API server ---------------------------------------------------------------------------------------------------


async def http_requests(reader: asyncio.StreamReader) -> AsyncIterator[Request]:
    """Requests of a client of HTTP/1.1."""
    while True:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return
        method, path, *_ = head.decode("latin-1").split(" ", 2)
        headers = dict(
            line.lower().split(": ", 1) for line in head.decode("latin-1").splitlines()[1:] if line
        )
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        yield Request(f"{method} {path}", head + body)


@asynccontextmanager
async def http_relay(
    host: str, port: int, upstream: ssl.SSLContext, served: ssl.SSLContext
) -> AsyncIterator[tuple[Relay, int]]:
    """A relay to an HTTPS server, and the port of the relay on loopback.

    Args:
        host: of the server.
        port: of the server.
        upstream: TLS towards the server.
        served: TLS towards clients.
    """

    async def connect() -> Streams:
        return await asyncio.open_connection(host, port, ssl=upstream)

    relay = Relay(connect, http_requests)
    server = await asyncio.start_server(relay.accept, _LOOPBACK, 0, ssl=served)
    try:
        yield relay, server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await relay.close()
        await server.wait_closed()
