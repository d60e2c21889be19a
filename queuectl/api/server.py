"""An HTTP server as one task of the running event loop.

uvicorn brings its own loop, signal handlers and logging by default; a controller has those already. The socket is bound
when the server is made, so that a taken port is an error of the start and ``address`` is known before the first request.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from queuectl.domain.errors import BadInput, QueuectlError

STOP_SECONDS: Final = 5  # what a request in flight gets when the server stops


class CannotListen(QueuectlError):
    """The address is taken, not ours, or not allowed."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen; port 0 takes a free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read ``HOST:PORT``; an IPv6 host stands in brackets.

        Raises:
            BadInput: naming the text.
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

    @property
    def url(self) -> str:
        return f"http://{self}"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def require_loopback(address: Address) -> None:
    """Refuse to offer an API without authentication to other machines.

    Raises:
        CannotListen: naming the address and what to do.
    """
    if not address.loopback:
        raise CannotListen(
            f"refusing to serve the API on {address}: it has no authentication yet, so it listens on loopback only "
            "(127.0.0.1, ::1 or localhost); metrics and health may listen elsewhere: QUEUECTL_METRICS_LISTEN"
        )


class WebServer:
    """Serves one ASGI application on one address until it is cancelled or stopped."""

    def __init__(self, app: ASGIApp, address: Address) -> None:
        self._socket = _listen(address)
        self.address = Address(address.host, int(self._socket.getsockname()[1]))
        self._server = _Uvicorn(
            uvicorn.Config(
                app,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=STOP_SECONDS,
            )
        )

    async def run(self) -> None:
        """Serve. Cancelling it finishes requests in flight first, for at most ``STOP_SECONDS``."""
        serving = asyncio.create_task(
            self._server.serve(sockets=[self._socket]), name=f"http {self.address}"
        )
        try:
            await asyncio.shield(serving)
        finally:
            self.stop()
            await serving

    def stop(self) -> None:
        """Make :meth:`run` return soon."""
        self._server.should_exit = True

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
