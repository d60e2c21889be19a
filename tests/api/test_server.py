"""The HTTP server inside a running loop: its address, and how it ends."""

from __future__ import annotations

import asyncio
import signal
import socket

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from queuectl.api.server import CannotListen, WebServer
from queuectl.control.listen_address import ListenAddress
from queuectl.domain.errors import BadInput

ANY = ListenAddress("127.0.0.1", 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:8000", ListenAddress("127.0.0.1", 8000)),
        ("localhost:0", ListenAddress("localhost", 0)),
        ("[::1]:80", ListenAddress("::1", 80)),
        ("0.0.0.0:8080", ListenAddress("0.0.0.0", 8080)),
    ],
)
def test_an_address_is_read_and_printed(text: str, expected: ListenAddress) -> None:
    assert ListenAddress.parse(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize("text", ["", "8000", ":8000", "host:", "host:x", "host:65536", "host:-1"])
def test_a_malformed_address_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="HOST:PORT"):
        ListenAddress.parse(text)


def test_a_port_in_use_is_reported_at_the_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen, match=rf"127\.0\.0\.1:{port}"):
            WebServer(Starlette(), ListenAddress("127.0.0.1", port))


def test_a_host_of_another_machine_is_reported_at_the_start() -> None:
    with pytest.raises(CannotListen, match=r"192\.0\.2\.1"):
        WebServer(Starlette(), ListenAddress("192.0.2.1", 0))


class Slow:
    """An application whose one answer waits for the test."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.go = asyncio.Event()
        self.app = Starlette(routes=[Route("/", self._answer)])

    async def _answer(self, _: Request) -> Response:
        self.asked.set()
        await self.go.wait()
        return PlainTextResponse("done")


@pytest.mark.parametrize("way", ["canceled", "stopped"])
async def test_requests_in_flight_are_finished_when_it_ends(way: str) -> None:
    slow = Slow()
    server = WebServer(slow.app, ANY)
    running = asyncio.create_task(server.run())
    async with httpx2.AsyncClient(trust_env=False) as client:
        answer = asyncio.create_task(client.get(server.url))
        await slow.asked.wait()
        running.cancel() if way == "canceled" else server.stop()
        slow.go.set()
        assert (await answer).text == "done"
    await asyncio.wait([running])
    assert running.cancelled() is (way == "canceled")
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", server.address.port)


async def test_the_port_accepts_connections_before_the_server_runs() -> None:
    slow = Slow()
    slow.go.set()
    server = WebServer(slow.app, ANY)
    async with httpx2.AsyncClient(trust_env=False) as client:
        early = asyncio.create_task(client.get(server.url))
        async with asyncio.TaskGroup() as group:
            running = group.create_task(server.run())
            assert (await early).text == "done"
            running.cancel()


def test_idle_connections_outlive_those_that_clients_and_proxies_keep() -> None:
    """The client must close first: the usual proxies keep a connection for 60 seconds, and the server's default is 5."""
    server = WebServer(Starlette(), ANY)
    server.close()
    assert server._server.config.timeout_keep_alive > 60


async def test_signal_handlers_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    slow = Slow()
    server = WebServer(slow.app, ANY)
    running = asyncio.create_task(server.run())
    async with httpx2.AsyncClient(trust_env=False) as client:
        slow.go.set()
        await client.get(server.url)
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    server.stop()
    await running


def test_a_server_that_never_ran_releases_its_port() -> None:
    server = WebServer(Starlette(), ANY)
    server.close()
    with socket.create_server(("127.0.0.1", server.address.port)):
        pass
