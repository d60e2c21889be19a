"""An HTTP server as one task of the running event loop.

By default, uvicorn has its own loop, signal handlers and logging; the controller has those already. The socket is bound when the server
is created, so that a port in use is an error of the start, and ``address`` is known before the first request. The server reloads a
certificate that is renewed on disk.

The server accepts connections itself. asyncio would accept all that wait at once, do their TLS handshakes before uvicorn knows them, and
log each failure of a flood that uses up all file descriptors.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import structlog
import uvicorn
from starlette.types import ASGIApp

from queuectl.api.connections import (
    DEFAULT_LIMITS,
    BoundedProtocol,
    Closed,
    ConnectionLimits,
    OpenConnection,
    OpenConnections,
)
from queuectl.control.certificates import CertificateFiles
from queuectl.control.listen_address import ListenAddress
from queuectl.domain.errors import BadInput, QueuectlError

STOP_SECONDS: Final = 5  # for requests in progress when the server stops
RENEWED_SECONDS: Final = 10.0  # between checks for a renewed certificate
UNSEEN_SECONDS: Final = 60.0  # after which a peer that confirms no data is taken for lost
_SHUTDOWN_SECONDS: Final = 5.0  # for the end of TLS, which a peer need not answer
_USER_TIMEOUT: Final = getattr(socket, "TCP_USER_TIMEOUT", 18)  # of Linux
_RETRY_SECONDS: Final = (
    0.2  # after a failure to accept a connection, which another program can cause
)

_log = structlog.get_logger(source="queuectl.api")


class CannotListen(QueuectlError):
    """The address is in use, not of this machine, or not allowed."""


@dataclass(frozen=True)
class Certificate(CertificateFiles):
    """The certificate of a server, from files that can be renewed."""

    def written(self) -> tuple[int, int]:
        """Changes when they are renewed."""
        return self.chain.stat().st_mtime_ns, self.key.stat().st_mtime_ns

    def context(self) -> ssl.SSLContext:
        """TLS with it.

        Raises:
            BadInput: a file cannot be read, or they do not belong together.
        """
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        self.load(made)
        return made

    def load(self, context: ssl.SSLContext) -> None:
        """New connections have it from now on. Raises what :meth:`context` raises."""
        try:
            context.load_cert_chain(self.chain, self.key)
        except (OSError, ssl.SSLError) as error:
            raise BadInput(f"TLS certificate {self.chain} with key {self.key}: {error}") from error


class WebServer:
    """Serves one ASGI application on one address until it is canceled or stopped.

    Attributes:
        address: where it listens.
        url: the same for clients.
    """

    def __init__(
        self,
        app: ASGIApp,
        address: ListenAddress,
        certificate: Certificate | None = None,
        proxies: Sequence[str] = (),
        limits: ConnectionLimits = DEFAULT_LIMITS,
        on_close: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Listen.

        Args:
            app: what is served.
            address: where.
            certificate: None = without TLS.
            proxies: addresses and networks whose X-Forwarded-For is trusted. They have no limit of an address.
            limits: of its connections.
            on_close: called with the reason of each connection that the server closes.

        Raises:
            CannotListen: the address cannot be used.
            BadInput: the certificate cannot be used.
        """
        self._certificate = certificate
        self._tls = certificate.context() if certificate is not None else None
        self._taken = certificate.written() if certificate is not None else None
        self._socket = _listen(address)
        self.address = ListenAddress(address.host, int(self._socket.getsockname()[1]))
        self.url = f"{'http' if certificate is None else 'https'}://{self.address}"
        self._server = _Uvicorn(
            uvicorn.Config(
                app,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=bool(proxies),
                forwarded_allow_ips=list(proxies),
                timeout_graceful_shutdown=STOP_SECONDS,
                timeout_keep_alive=limits.idle_seconds,
                h11_max_incomplete_event_size=limits.head_bytes,
            )
        )
        networks = [ipaddress.ip_network(one) for one in proxies]
        self.connections = OpenConnections(
            limits,
            time.monotonic,
            lambda host: any(_within(host, one) for one in networks),
            on_close,
        )
        self._opening: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve. Canceling it finishes requests in flight first, for at most ``STOP_SECONDS``."""
        serving = asyncio.create_task(self._server.serve(sockets=[]), name=f"http {self.address}")
        renewing = asyncio.create_task(self._renew(), name=f"certificate {self.address}")
        accepting = asyncio.create_task(self._accept(), name=f"connections {self.address}")
        try:
            await asyncio.wait({serving, accepting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            renewing.cancel()
            accepting.cancel()
            self.stop()
            with suppress(asyncio.CancelledError):
                await accepting
            self._socket.close()
            for task in list(self._opening):
                task.cancel()
            await serving
            self.connections.close_waiting()

    def trust_clients(self, authorities: str) -> None:
        """Ask clients for a certificate. A new connection with one of another authority fails; one without a certificate does not.

        Idle connections end, and a session of :attr:`OpenConnection.tls` has another context than :attr:`tls_context` if it began before.

        Args:
            authorities: their certificates, PEM.

        Raises:
            BadInput: they cannot be read, or the server has no certificate.
        """
        if self._certificate is None:
            raise BadInput("a server without TLS cannot ask for certificates")
        trusting = self._certificate.context()
        trusting.verify_mode = ssl.CERT_OPTIONAL
        try:
            trusting.load_verify_locations(cadata=authorities)
        except (ssl.SSLError, ValueError) as error:
            raise BadInput(f"certificate authorities of clients: {error}") from error
        self._tls = trusting
        self.connections.close_waiting()

    @property
    def tls_context(self) -> ssl.SSLContext | None:
        """Of new connections; None without TLS."""
        return self._tls

    def stop(self) -> None:
        """Make :meth:`run` return soon."""
        self._server.should_exit = True

    async def _renew(self) -> None:
        """Reload a certificate that is renewed on disk, as cert-manager does every few weeks."""
        if self._certificate is None or self._tls is None:
            return
        while True:
            await asyncio.sleep(RENEWED_SECONDS)
            try:
                if (written := self._certificate.written()) != self._taken:
                    self._certificate.context()  # half written ones fail here, not on a connection
                    self._certificate.load(self._tls)
                    self._taken = written
                    _log.info("certificate_renewed", chain=str(self._certificate.chain))
            except (OSError, BadInput) as error:  # the old certificate stays in use
                _log.warning("certificate_not_renewed", error=str(error))

    async def _accept(self) -> None:
        """Accept one connection in each turn of the event loop, so that a flood does not delay what else the loop does."""
        loop = asyncio.get_running_loop()
        reported = -1.0
        while True:
            try:
                accepted, peer = await loop.sock_accept(self._socket)
            except OSError as error:  # for example, no file descriptor is left
                if loop.time() - reported >= 1.0:
                    reported = loop.time()
                    _log.warning("connection_not_accepted", error=str(error))
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            connection = self.connections.admit(str(peer[0]))
            if connection is None:
                accepted.close()
            else:
                self._open(loop, accepted, connection)
            await asyncio.sleep(0)

    def _open(
        self, loop: asyncio.AbstractEventLoop, accepted: socket.socket, connection: OpenConnection
    ) -> None:
        task = loop.create_task(self._handshake(loop, accepted, connection))
        connection.abort = task.cancel
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _handshake(
        self, loop: asyncio.AbstractEventLoop, accepted: socket.socket, connection: OpenConnection
    ) -> None:
        config, state = self._server.config, self._server.server_state
        encrypted = self._tls is not None
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, _USER_TIMEOUT, int(UNSEEN_SECONDS * 1000))
            await loop.connect_accepted_socket(
                lambda: BoundedProtocol(config, state, connection),
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=self.connections.limits.head_seconds if encrypted else None,
                ssl_shutdown_timeout=_SHUTDOWN_SECONDS if encrypted else None,
            )
        except (OSError, asyncio.CancelledError) as error:
            accepted.close()
            if isinstance(error, OSError):
                self.connections.count(Closed.HANDSHAKE)
            self.connections.remove(connection)

    def close(self) -> None:
        """Give the port back without ever having served."""
        self._socket.close()


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave SIGTERM and SIGINT to the supervisor."""
        yield


def _within(host: str, network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> bool:
    try:
        return ipaddress.ip_address(host) in network
    except ValueError:
        return False


def _listen(address: ListenAddress) -> socket.socket:
    try:
        family, kind, proto, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM
        )[0]
        bound = socket.socket(family, kind, proto)
    except OSError as error:
        raise CannotListen(f"cannot listen on {address}: {error.strerror or error}") from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(where)
        bound.listen(2048)
    except OSError as error:
        bound.close()
        raise CannotListen(f"cannot listen on {address}: {error.strerror or error}") from error
    bound.setblocking(False)
    return bound
