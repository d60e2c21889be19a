"""The TLS in front of the bundled database: what begins otherwise is refused, and bytes pass in both directions."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from queuectl.control import tls_front
from queuectl.control.tls_front import TlsFront
from queuectl.domain.errors import BadInput
from queuectl.localcluster.layout import free_ports
from tests.support.polling import until
from tests.support.tls import write_certificate

REQUEST = struct.pack("!ii", 8, 80877103)
KERBEROS = struct.pack("!ii", 8, 80877104)
STARTUP = struct.pack("!ii", 23, 196608) + b"user\0queuectl\0\0"
HOST = "127.0.0.1"
LARGE = bytes(range(256)) * 8192


@dataclass
class Fronted:
    front: TlsFront
    folder: Path
    port: int

    async def plain(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(HOST, self.port)

    async def secured(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A client that verifies the certificate."""
        reader, writer = await self.plain()
        writer.write(REQUEST)
        assert await reader.readexactly(1) == b"S"
        context = ssl.create_default_context(cafile=str(self.folder / "tls.crt"))
        await writer.start_tls(context, server_hostname=HOST)
        return reader, writer


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError, ssl.SSLError):
        await writer.wait_closed()


class Echo(asyncio.Protocol):
    """A backend that returns each byte, and ends after the byte 0xff."""

    def __init__(self, live: set[asyncio.BaseTransport]) -> None:
        self._live = live

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._live.add(transport)

    def connection_lost(self, _: Exception | None) -> None:
        self._live.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)
        if data == b"\xff":
            self._transport.close()


@asynccontextmanager
async def fronted(folder: Path) -> AsyncIterator[Fronted]:
    files = write_certificate(folder, "database")
    backend, port = free_ports(2)
    front = TlsFront(files, (HOST, backend))
    live: set[asyncio.BaseTransport] = set()
    loop = asyncio.get_running_loop()
    async with await loop.create_server(lambda: Echo(live), HOST, backend):
        async with front.listening(HOST, port):
            yield Fronted(front, folder, port)
        await until(lambda: not live)


async def test_bytes_pass_in_both_directions_until_one_side_ends(tmp_path: Path) -> None:
    async with fronted(tmp_path) as made:
        reader, writer = await made.secured()
        writer.write(LARGE)
        assert await reader.readexactly(len(LARGE)) == LARGE
        writer.write(b"\xff")
        assert await reader.read() == b"\xff", "the backend ends the connection"
        await _closed(writer)
        _, writer = await made.secured()
        await _closed(writer)
        await until(lambda: not made.front._clients)


@pytest.mark.parametrize(
    "begin",
    [STARTUP, REQUEST + STARTUP, KERBEROS + REQUEST, b"GET / HTTP/1.1\r\n\r\n", bytes(8)],
    ids=["plain", "plain after the request", "two requests", "another protocol", "zeros"],
)
async def test_a_client_that_does_not_begin_with_tls_is_refused(
    tmp_path: Path, begin: bytes
) -> None:
    async with fronted(tmp_path) as made:
        reader, writer = await made.plain()
        writer.write(begin)
        answer = await asyncio.wait_for(reader.read(), 10)
        assert answer[:1] == b"E"
        assert struct.unpack("!i", answer[1:5])[0] == len(answer) - 1
        assert b"no encryption" in answer
        await _closed(writer)


async def test_libpq_can_ask_for_kerberos_first(tmp_path: Path) -> None:
    async with fronted(tmp_path) as made:
        reader, writer = await made.plain()
        writer.write(KERBEROS)
        assert await reader.readexactly(1) == b"N"
        for number in REQUEST:
            writer.write(bytes([number]))
            await writer.drain()
            await asyncio.sleep(0)
        assert await reader.readexactly(1) == b"S"
        await _closed(writer)


async def test_clients_that_do_nothing_or_are_too_many_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_front, "BEGIN_SECONDS", 0.2)
    monkeypatch.setattr(tls_front, "MOST_CLIENTS", 1)
    async with fronted(tmp_path) as made:
        silent, waiting = await made.plain(), await made.plain()
        waiting[1].write(REQUEST)
        assert await waiting[0].readexactly(1) == b"S"
        for reader, writer in (silent, waiting):
            async with asyncio.timeout(10):
                with suppress(ConnectionError):
                    assert await reader.read() == b""
            await _closed(writer)
        _, kept = await made.secured()
        reader, writer = await made.plain()
        writer.write(REQUEST)
        with suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 10) in (b"", b"S")
        await _closed(kept)
        await _closed(writer)


async def test_new_clients_get_a_renewed_certificate(tmp_path: Path) -> None:
    async with fronted(tmp_path) as made:
        first = await made.secured()
        write_certificate(tmp_path, "renewed")
        made.front.renew()
        second = await made.secured()
        subjects = [
            dict(part for [part] in writer.get_extra_info("peercert")["subject"])
            for _, writer in (first, second)
        ]
        assert [one["commonName"] for one in subjects] == ["database", "renewed"]
        first[1].write(b"a")
        assert await first[0].readexactly(1) == b"a", "an open connection continues"
        for _, writer in (first, second):
            await _closed(writer)


async def test_a_server_that_does_not_answer_ends_its_client(tmp_path: Path) -> None:
    files = write_certificate(tmp_path, "database")
    backend, port = free_ports(2)
    async with TlsFront(files, (HOST, backend)).listening(HOST, port):
        made = Fronted(TlsFront(files, (HOST, backend)), tmp_path, port)
        with suppress(ConnectionError):
            reader, writer = await made.secured()
            assert await asyncio.wait_for(reader.read(), 10) == b""
            await _closed(writer)


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    files = write_certificate(tmp_path, "database")
    (tmp_path / "other").mkdir()
    files.key.write_bytes(write_certificate(tmp_path / "other", "other").key.read_bytes())
    with pytest.raises(BadInput, match=r"tls\.crt"):
        TlsFront(files, (HOST, 1))
