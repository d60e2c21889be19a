"""An HTTP server as one task of the running event loop.

By default, uvicorn has its own loop, signal handlers and logging; the controller has those already. The socket is bound when the server
is created, so that a port in use is an error of the start, and ``address`` is known before the first request. The server reloads a
certificate that is renewed on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
import uvicorn
from starlette.types import ASGIApp

from queuectl.domain.errors import BadInput, QueuectlError

STOP_SECONDS: Final = 5  # for requests in progress when the server stops
# An idle connection stays open longer than the usual pause of clients and proxies: a close while the next request is on its way breaks
# that request, and each new connection costs a handshake.
IDLE_SECONDS: Final = 75
RENEWED_SECONDS: Final = 10.0  # between checks for a renewed certificate


_log = structlog.get_logger(source="queuectl.api")


class CannotListen(QueuectlError):
    """The address is in use, not of this machine, or not allowed."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen; port 0 takes a free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read ``HOST:PORT``, with an IPv6 host in brackets.

        Raises:
            BadInput: the text is invalid; the message quotes it.
        """
        host, _, port = text.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise BadInput(f"{text!r} is not HOST:PORT, for example 127.0.0.1:8000 or [::1]:8000")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Certificate:
    """Files of a certificate with its chain, and of its key, both PEM."""

    chain: Path
    key: Path

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
    """Serves one ASGI application on one address until it is cancelled or stopped.

    Attributes:
        address: where it listens.
        url: the same for clients.
    """

    def __init__(
        self,
        app: ASGIApp,
        address: Address,
        certificate: Certificate | None = None,
        proxies: Sequence[str] = (),
    ) -> None:
        """Listen.

        Args:
            app: what is served.
            address: where.
            certificate: None = without TLS.
            proxies: addresses and networks whose X-Forwarded-For is trusted.

        Raises:
            CannotListen: the address cannot be used.
            BadInput: the certificate cannot be used.
        """
        self._certificate = certificate
        self._tls = certificate.context() if certificate is not None else None
        self._taken = certificate.written() if certificate is not None else None
        self._socket = _listen(address)
        self.address = Address(address.host, int(self._socket.getsockname()[1]))
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
                timeout_keep_alive=IDLE_SECONDS,
                ssl_context_factory=self._context if certificate is not None else None,
            )
        )

    async def run(self) -> None:
        """Serve. Cancelling it finishes requests in flight first, for at most ``STOP_SECONDS``."""
        serving = asyncio.create_task(
            self._server.serve(sockets=[self._socket]), name=f"http {self.address}"
        )
        renewing = asyncio.create_task(self._renew(), name=f"certificate {self.address}")
        try:
            await asyncio.shield(serving)
        finally:
            renewing.cancel()
            self.stop()
            await serving

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

    def _context(self, *_: object) -> ssl.SSLContext:
        """For uvicorn, which would read the files once."""
        assert self._tls is not None
        return self._tls

    def close(self) -> None:
        """Give the port back without ever having served."""
        self._socket.close()


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave SIGTERM and SIGINT to the supervisor."""
        yield


def _listen(address: Address) -> socket.socket:
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
