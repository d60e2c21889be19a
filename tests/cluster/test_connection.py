"""Connections after their requests are canceled."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from queuectl.cluster.client import Api
from queuectl.cluster.connection import Connection
from tests.cluster.test_client import kubeconfig
from tests.support.tls import write_certificate

ITERATIONS = 60
"""More iterations of the event loop than connection, handshake and answer take together."""


@asynccontextmanager
async def server(folder: Path) -> AsyncIterator[int]:
    """The port of a TLS server that answers a few iterations of the event loop after the request."""
    files = write_certificate(folder, "server")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(files.chain, files.key)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            for _ in range(5):
                await asyncio.sleep(0)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            await reader.read()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls) as listening:
        yield listening.sockets[0].getsockname()[1]


def connected_to(port: int) -> int:
    """The number of sockets of this process that are connected to the port."""
    found = 0
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the folder itself, and sockets without a connection
            if file.readlink().name.startswith("socket:"):
                with socket.socket(fileno=os.dup(int(file.name))) as one:
                    found += one.family == socket.AF_INET and one.getpeername()[1] == port
    return found


async def connect(folder: Path, port: int) -> Api:
    trusted = {
        "server": f"https://127.0.0.1:{port}",
        "certificate-authority": str(folder / "tls.crt"),
    }
    return await Api.connect(Connection(kubeconfig=kubeconfig(folder, cluster=trusted)))


async def test_a_request_canceled_at_any_iteration_leaves_no_connection(tmp_path: Path) -> None:
    left, ended = [], 0
    async with server(tmp_path) as port:
        for iterations in range(ITERATIONS):
            api = await connect(tmp_path, port)
            request = asyncio.create_task(api.request("GET", "/version"))
            for _ in range(iterations):
                await asyncio.sleep(0)
            ended += request.done()
            request.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await request
            await api.close()
            if connected_to(port):
                left.append(iterations)
    assert left == []
    assert 0 < ended < ITERATIONS, "some requests were canceled and some were answered"


async def test_a_connection_is_kept_until_the_client_is_closed(tmp_path: Path) -> None:
    async with server(tmp_path) as port:
        api = await connect(tmp_path, port)
        await api.request("GET", "/version")
        assert connected_to(port) == 1, "otherwise the test above could not fail"
        await api.close()
