"""TLS in front of the bundled PostgreSQL server, whose programs are built without it.

A client of PostgreSQL first sends a request for TLS of eight bytes, and begins the handshake after an answer of one byte. From then on, its
bytes go to the server on loopback, and back. A client that begins without TLS is refused. The server itself checks roles and passwords.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

from queuectl.control.certificates import CertificateFiles
from queuectl.domain.errors import BadInput

LOOPBACK: Final = "127.0.0.1"
BEGIN_SECONDS: Final = 10.0
"""The time for the request and for the handshake."""
MOST_CLIENTS: Final = 200
_TLS: Final = struct.pack("!ii", 8, 80877103)
_KERBEROS: Final = struct.pack("!ii", 8, 80877104)  # libpq asks for it first, if it has a ticket
_PART: Final = 1 << 16  # bytes
_FIELDS: Final = (
    b"SFATAL\0VFATAL\0C28000\0Mno encryption: the bundled database of queuectl needs TLS\0\0"
)
_REFUSAL: Final = b"E" + struct.pack("!i", 4 + len(_FIELDS)) + _FIELDS
"""The message ErrorResponse of the protocol."""


class TlsFront:
    """The front of one server."""

    def __init__(self, files: CertificateFiles, backend: tuple[str, int]) -> None:
        """Listen nowhere yet.

        Args:
            files: of the certificate.
            backend: address and port of the server.

        Raises:
            BadInput: the files are not those of a certificate and its key.
        """
        self._files = files
        self._backend = backend
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._loaded = b""
        self._clients: set[asyncio.Task[None]] = set()
        self.renew()

    def renew(self) -> None:
        """Present the certificate of the files to new clients. Raises BadInput."""
        try:
            chain = self._files.chain.read_bytes()
            if chain != self._loaded:
                self._context.load_cert_chain(self._files.chain, self._files.key)
        except (OSError, ssl.SSLError) as error:
            raise BadInput(f"{self._files.chain}: {error}") from error
        self._loaded = chain

    @asynccontextmanager
    async def listening(self, host: str | None, port: int) -> AsyncIterator[None]:
        """Serve clients. ``host``: None = all addresses of the machine.

        Raises:
            BadInput: the address cannot be used.
        """
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(lambda: _Beginning(self._begin), host, port)
        except OSError as error:
            raise BadInput(f"{host or '*'}:{port}: {error.strerror or error}") from error
        try:
            yield
        finally:
            server.close()
            for client in self._clients:
                client.cancel()
            await asyncio.gather(*self._clients, return_exceptions=True)

    def _begin(self, transport: asyncio.Transport) -> None:
        if len(self._clients) >= MOST_CLIENTS:
            transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(transport))
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)

    async def _serve(self, transport: asyncio.Transport) -> None:
        """One client, from its handshake to its end."""
        try:
            with suppress(OSError, ssl.SSLError):  # of one of the two connections
                reader, writer = await self._secured(transport)
                try:
                    await self._forwarded(reader, writer)
                finally:
                    await _closed(writer)
        finally:
            transport.abort()

    async def _secured(
        self, transport: asyncio.Transport
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        secured = await loop.start_tls(
            transport,
            protocol,
            self._context,
            server_side=True,
            ssl_handshake_timeout=BEGIN_SECONDS,
        )
        assert secured is not None
        protocol.connection_made(secured)
        return reader, asyncio.StreamWriter(secured, protocol, reader, loop)

    async def _forwarded(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy bytes in both directions until one side ends."""
        behind, before = await asyncio.open_connection(*self._backend)
        copies = [
            asyncio.create_task(_copied(reader, before)),
            asyncio.create_task(_copied(behind, writer)),
        ]
        try:
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        finally:
            before.close()  # at once: the task can be canceled while it waits
            for copy in copies:
                copy.cancel()
            await asyncio.gather(*copies, return_exceptions=True)


async def _closed(writer: asyncio.StreamWriter) -> None:
    """Close a connection, and wait until what was written is sent."""
    writer.close()
    with suppress(OSError, ssl.SSLError):
        async with asyncio.timeout(BEGIN_SECONDS):
            await writer.wait_closed()


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while part := await reader.read(_PART):
        writer.write(part)
        await writer.drain()


class _Beginning(asyncio.Protocol):
    """A client before its handshake. Bytes after the request would be in plain text, so a client that sends some is refused."""

    def __init__(self, begin: Callable[[asyncio.Transport], None]) -> None:
        """``begin``: takes the connection, for the handshake."""
        self._begin = begin
        self._received = b""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._timer = asyncio.get_running_loop().call_later(BEGIN_SECONDS, transport.abort)

    def connection_lost(self, _: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        assert self._timer is not None
        self._received += data
        if len(self._received) < len(_TLS):
            return
        if self._received == _KERBEROS:
            self._received = b""
            self._transport.write(b"N")
        elif self._received == _TLS:
            self._timer.cancel()
            self._transport.pause_reading()
            self._transport.write(b"S")
            self._begin(self._transport)
        else:
            self._transport.write(_REFUSAL)
            self._transport.close()
