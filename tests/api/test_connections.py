"""Connections are bounded in number and time, on real sockets; a caller with valid credentials is served in the meantime."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from structlog.testing import capture_logs

from queuectl.api.connections import (
    Closed,
    ConnectionLimits,
    OpenConnections,
    connections_within,
    raise_limit,
)
from queuectl.api.server import WebServer
from queuectl.control.listen_address import ListenAddress
from tests.api.serving import running
from tests.api.signed import ADMIN, NO_RIGHTS, bearer, people, signed_app
from tests.doubles.store import MemoryStore
from tests.support.tls import write_certificate

COHORTS = "/api/v1/cohorts"
FLOOD = 600
WIDE = ConnectionLimits(new_burst=FLOOD * 4)
"""The limits of a server, without the one for new connections: all clients of these tests have one address."""
SHORT = replace(WIDE, head_seconds=0.2, body_seconds=0.2, reading_seconds=0.2)

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def of(memory: MemoryStore, limits: ConnectionLimits) -> WebServer:
    app = signed_app(memory, people(), secure=False)
    return WebServer(app, ListenAddress("127.0.0.1", 0), limits=limits)


@asynccontextmanager
async def clients(server: WebServer, count: int, sent: bytes) -> AsyncIterator[list[Client]]:
    """Connections that each send the same bytes and then nothing."""
    found: list[Client] = []
    try:
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.address.port)
            writer.write(sent)
            found.append((reader, writer))
        yield found
    finally:
        for _, writer in found:
            writer.close()
        for _, writer in found:
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


async def ended(found: list[Client]) -> int:
    """The number of connections that the server closes."""

    async def one(reader: asyncio.StreamReader) -> bool:
        with contextlib.suppress(ConnectionError):
            while await reader.read(1 << 16):
                pass
        return True

    async with asyncio.timeout(30):
        return sum(await asyncio.gather(*(one(reader) for reader, _ in found)))


HEAD = b"PUT /api/v1/cohorts/all HTTP/1.1\r\nHost: x\r\n"
UNFINISHED = {
    "nothing": b"",
    "half a head": HEAD,
    "half a body": b"POST /api/v1/session HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"Content-Length: 100\r\n\r\n{",
}


@pytest.mark.parametrize("sent", UNFINISHED.values(), ids=UNFINISHED)
async def test_an_unfinished_request_is_closed_after_its_time(
    memory: MemoryStore, sent: bytes
) -> None:
    server = of(memory, SHORT)
    async with running(server), clients(server, 20, sent) as found:
        assert await ended(found) == 20
        assert len(server.connections) == 0
    reason = Closed.BODY if b"{" in sent else Closed.HEAD
    assert server.connections.closed == {reason: 20}


async def test_bytes_that_arrive_one_by_one_extend_no_deadline(memory: MemoryStore) -> None:
    server = of(memory, SHORT)
    async with running(server), clients(server, 1, b"") as [(reader, writer)]:

        async def trickle() -> None:
            for byte in HEAD * 1000:
                writer.write(bytes([byte]))
                await asyncio.sleep(0.01)

        sending = asyncio.create_task(trickle())
        assert await ended([(reader, writer)]) == 1
        sending.cancel()
    assert server.connections.closed == {Closed.HEAD: 1}


async def test_the_next_request_of_a_connection_has_a_deadline_too(memory: MemoryStore) -> None:
    server = of(memory, SHORT)
    whole = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    async with running(server), clients(server, 5, whole + b"GET /hea") as found:
        assert await ended(found) == 5
    assert server.connections.closed == {Closed.HEAD: 5}


async def test_a_connection_between_two_requests_stays_open(memory: MemoryStore) -> None:
    server = of(memory, SHORT)
    async with running(server), httpx2.AsyncClient(base_url=server.url) as client:
        for _ in range(2):
            assert (await client.get("/healthz")).status_code == 200
            await asyncio.sleep(2 * SHORT.head_seconds)
        assert len(server.connections) == 1
    assert not server.connections.closed


async def test_a_client_that_does_not_read_its_answer_is_closed() -> None:
    async def much(_: Request) -> Response:
        return PlainTextResponse(b"x" * (1 << 26))

    app = Starlette(routes=[Route("/", much)])
    server = WebServer(app, ListenAddress("127.0.0.1", 0), limits=SHORT)
    async with running(server), clients(server, 1, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") as found:
        while not server.connections.closed:  # noqa: ASYNC110 - the client does nothing
            await asyncio.sleep(0.05)
        assert await ended(found) == 1
    assert server.connections.closed == {Closed.READING: 1}


@pytest.mark.parametrize(
    ("what", "flood"), [("nothing", FLOOD), ("half a head", 300), ("half a body", 300)]
)
async def test_a_flood_of_connections_leaves_room_for_a_caller_of_the_same_address(
    memory: MemoryStore, what: str, flood: int
) -> None:
    server = of(memory, replace(WIDE, most=150, of_address=100))
    async with (
        running(server),
        httpx2.AsyncClient(base_url=server.url, headers=bearer(ADMIN)) as signed_in,
    ):
        assert (await signed_in.get(COHORTS)).status_code == 200
        async with clients(server, flood, UNFINISHED[what]) as found:
            assert await ended(found[: flood - 100]) == flood - 100
            assert len(server.connections) <= 101
            assert (await signed_in.get(COHORTS)).status_code == 200
            async with httpx2.AsyncClient(base_url=server.url, headers=bearer(ADMIN)) as another:
                assert (await another.get(COHORTS)).status_code == 200


async def test_new_connections_of_one_address_have_a_rate(memory: MemoryStore) -> None:
    server = of(memory, ConnectionLimits(new_per_second=1e-6, new_burst=50))
    async with running(server):
        async with clients(server, 80, b"") as found:
            assert await ended(found[50:]) == 30
        assert server.connections.closed == {Closed.TOO_MANY_NEW: 30}


async def test_a_flood_is_logged_in_few_lines(memory: MemoryStore) -> None:
    server = of(memory, ConnectionLimits(new_per_second=1e-6, new_burst=1))
    with capture_logs() as lines:
        async with running(server), clients(server, 200, b"") as found:
            await ended(found[1:])
    assert server.connections.closed[Closed.TOO_MANY_NEW] == 199
    assert len(lines) < 20, "not one for each connection"


async def test_one_caller_has_a_limited_number_of_connections(memory: MemoryStore) -> None:
    server = of(memory, replace(WIDE, of_caller=3))
    request = f"GET {COHORTS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ADMIN}\r\n\r\n"
    async with running(server), clients(server, 10, request.encode()) as found:
        assert await ended(found[:7]) == 7, "those that waited longest"
        assert len(server.connections) == 3


async def test_a_caller_whose_connections_are_all_busy_gets_no_other(memory: MemoryStore) -> None:
    server = of(memory, replace(WIDE, of_caller=2))
    async with (
        running(server),
        httpx2.AsyncClient(base_url=server.url, headers=bearer(ADMIN)) as client,
        client.stream("GET", "/api/v1/events"),
        client.stream("GET", "/api/v1/events"),
    ):
        refused = await client.get(COHORTS)
        assert refused.status_code == 429
        assert refused.headers["connection"] == "close"
        other = await client.get(COHORTS, headers=bearer(NO_RIGHTS))
        assert other.status_code == 403


async def test_a_tls_handshake_that_does_not_end_is_closed(
    memory: MemoryStore, tmp_path: Path
) -> None:
    app = signed_app(memory, people())
    certificate = write_certificate(tmp_path, "own")
    server = WebServer(
        app, ListenAddress("127.0.0.1", 0), certificate, limits=replace(SHORT, of_address=10)
    )
    async with running(server):
        async with clients(server, 30, b"\x16\x03\x01") as found:
            assert await ended(found) == 30
        assert len(server.connections) == 0
        known = ssl.create_default_context(cafile=str(certificate.chain))
        async with httpx2.AsyncClient(verify=known, headers=bearer(ADMIN)) as client:
            answer = await client.get(f"https://127.0.0.1:{server.address.port}{COHORTS}")
        assert answer.status_code == 200


async def test_a_failure_to_accept_is_logged_once_a_second_and_ends(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with no file descriptor left: asyncio's own server would log thousands of lines a second."""
    server = of(memory, WIDE)
    loop = asyncio.get_running_loop()
    accept, failures = loop.sock_accept, iter(range(3))

    async def failing(sock: socket.socket) -> tuple[socket.socket, object]:
        if next(failures, None) is not None:
            raise OSError(errno.EMFILE, "Too many open files")
        return await accept(sock)

    monkeypatch.setattr(loop, "sock_accept", failing)
    monkeypatch.setattr("queuectl.api.server._RETRY_SECONDS", 0.0)
    with capture_logs() as lines:
        async with running(server), httpx2.AsyncClient(base_url=server.url) as client:
            assert (await client.get("/healthz")).status_code == 200
    assert [line["event"] for line in lines] == ["connection_not_accepted"]


# ---- which one is closed


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_owner_with_the_most_connections_makes_room() -> None:
    connections = OpenConnections(ConnectionLimits(most=10, of_address=100), Clock())
    aborted: list[str] = []

    def opened(host: str, name: str) -> None:
        connection = connections.admit(host)
        assert connection is not None
        connection.abort = lambda: aborted.append(name)

    for n in range(2):
        opened("10.0.0.1", f"a{n}")
    for n in range(8):
        opened("10.0.0.2", f"b{n}")
    for n in range(3):
        opened("10.0.0.3", f"c{n}")
    assert aborted == ["b0", "b1", "b2"]


def test_a_connection_that_the_server_works_on_is_not_closed_for_another() -> None:
    connections = OpenConnections(ConnectionLimits(most=2, of_address=None), Clock())
    first, second = connections.admit("10.0.0.1"), connections.admit("10.0.0.1")
    assert first is not None
    assert second is not None
    for one in (first, second):
        one.waits(for_client=False)
    assert connections.admit("10.0.0.2") is None
    assert connections.closed == {Closed.NO_ROOM: 1}
    second.waits(for_client=True)
    assert connections.admit("10.0.0.2") is not None
    assert connections.closed[Closed.FOR_ANOTHER] == 1


def test_a_trusted_proxy_has_no_limit_of_an_address() -> None:
    limits = ConnectionLimits(of_address=2, new_per_second=1e-6, new_burst=2)
    connections = OpenConnections(limits, Clock(), lambda host: host == "10.0.0.1")
    assert all(connections.admit("10.0.0.1") for _ in range(10))
    assert [bool(connections.admit("10.0.0.2")) for _ in range(3)] == [True, True, False]


@given(
    steps=st.lists(
        st.tuples(st.sampled_from("oacwbe"), st.integers(0, 9), st.integers(0, 3)), max_size=200
    )
)
def test_no_sequence_of_connections_exceeds_a_limit(steps: list[tuple[str, int, int]]) -> None:
    limits = ConnectionLimits(most=8, of_address=4, of_caller=3, new_burst=1000)
    connections = OpenConnections(limits, Clock())
    opened: list[object] = []
    for step, number, who in steps:
        if step in "oa" or not opened:
            connection = connections.admit(f"10.0.0.{who}")
            if connection is not None:
                opened.append(connection)
                connection.abort = lambda gone=connection: opened.remove(gone)  # type: ignore[misc]
            continue
        one = opened[number % len(opened)]
        match step:
            case "c":
                one.belongs_to(f"user-{who}")  # type: ignore[attr-defined]
            case "w":
                one.waits(for_client=True)  # type: ignore[attr-defined]
            case "b":
                one.waits(for_client=False)  # type: ignore[attr-defined]
            case _:
                connections.remove(one)  # type: ignore[arg-type]
                opened.remove(one)
        owners = [each.owner for each in opened]  # type: ignore[attr-defined]
        assert len(connections) == len(opened) <= limits.most
        for owner in owners:
            most = limits.of_caller if owner.startswith("caller ") else limits.of_address
            assert most is not None
            assert owners.count(owner) <= most


# ---- file descriptors


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "most"),
    [
        (1024, 20_000, 20_000, 1000),
        (1024, -1, 65_536, 1000),
        (1 << 20, 1 << 20, 1 << 20, 1000),
        (1024, 1024, 1024, 512),
        (256, 256, 256, 64),
    ],
)
def test_the_limit_of_open_files_is_raised_and_some_are_kept(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised: int, most: int
) -> None:
    held = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: held[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: held.append(new))
    assert raise_limit() == raised == held[-1][0]
    assert connections_within(raised, 1000) == most
