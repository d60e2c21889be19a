"""Connections of the server: how many the process can have, their time limits, and which one is closed to make room.

uvicorn limits only the pause between two requests, and each received byte ends that timer. Here the head and the body of a request
have deadlines that no byte extends, also before the first request, and a client that does not read its answer has one as well.

A connection belongs to the address of its peer, and to the caller of its last request once that has valid credentials. A new one is not
refused for want of room while another one waits for its client: the connection that waits longest is closed, of the owner with the most
connections. A client with many idle connections loses its own, and callers with valid credentials behind the same address keep theirs.
"""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import Any, Final

import h11
import structlog
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from queuectl.domain.pacing import Buckets

# ---- Open connections of all clients

_KEY: Final = "queuectl.connection"
"""Key of the connection in the state of an ASGI scope."""
_LOG_SECONDS: Final = 1.0  # between two lines
_log = structlog.get_logger(source="queuectl.api")


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many connections a server keeps, and how long it waits for a client.

    Attributes:
        most: all open connections.
        of_address: those of one address whose callers are not known; None = no limit for an address.
        of_caller: those whose last request is of one caller.
        new_per_second, new_burst: new connections from one address.
        head_seconds: for a TLS handshake, and again for the head of a request.
        body_seconds: from the end of the head to the end of the body.
        idle_seconds: between two requests.
        reading_seconds: without progress while the client does not read an answer.
        head_bytes: the largest head of a request.
    """

    most: int = 1000
    of_address: int | None = 200
    of_caller: int = 100
    new_per_second: float = 100.0
    new_burst: int = 500
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    # An idle connection stays open longer than the usual pause of clients and proxies: a close while the next request is on its way
    # breaks that request, and each new connection costs a handshake.
    idle_seconds: int = 75
    reading_seconds: float = 60.0
    head_bytes: int = 64 << 10


DEFAULT_LIMITS: Final = ConnectionLimits()


class Closed(StrEnum):
    """Why a connection was closed."""

    TOO_MANY_NEW = "too many new connections from its address"
    NO_ROOM = "no room, and no connection waits for its client"
    FOR_ANOTHER = "room for a newer one"
    HANDSHAKE = "TLS handshake failed"
    HEAD = "the head of a request took too long"
    BODY = "the body of a request took too long"
    READING = "the client does not read"


def network_of(host: str) -> str:
    """The part of an address that one host can own: for IPv6 the /64 network."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))


@dataclass(frozen=True, slots=True)
class _Owner:
    """An address or a caller. Of the connections that wait for their client, the first has waited longest."""

    open: set[OpenConnection] = field(default_factory=set)
    waiting: dict[OpenConnection, None] = field(default_factory=dict)


class OpenConnection:
    """One connection.

    Attributes:
        abort: ends it immediately; its server sets it.
        tls: its session; None without TLS.
    """

    def __init__(self, connections: OpenConnections, owner: str) -> None:
        self.connections = connections
        self.owner = owner
        self.abort: Callable[[], object] = lambda: None
        self.tls: ssl.SSLObject | None = None

    def waits(self, *, for_client: bool) -> None:
        """Note whether the server waits for the client, or the client for the server."""
        self.connections.note(self, waiting=for_client)

    def belongs_to(self, caller: str) -> bool:
        """Note the caller of the current request. False = the caller has too many connections, and none of the others waits."""
        return self.connections.claim(self, caller)

    def close(self, reason: Closed) -> None:
        """End it now."""
        self.connections.count(reason)
        self.connections.remove(self)
        self.abort()


class OpenConnections:
    """Those of one server.

    Attributes:
        closed: how many were closed before their client closed them, by reason.
    """

    def __init__(
        self,
        limits: ConnectionLimits,
        clock: Callable[[], float],
        trusted: Callable[[str], bool] = lambda _: False,
        on_close: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Start without a connection.

        Args:
            limits: of all.
            clock: of the process, in seconds.
            trusted: whether an address is a proxy, whose connections serve many clients.
            on_close: called with the reason of each connection that is closed.
        """
        self._on_close = on_close
        self.limits = limits
        self.closed: Counter[Closed] = Counter()
        self._clock = clock
        self._trusted = trusted
        self._owners: dict[str, _Owner] = {}
        self._new = Buckets(limits.new_per_second, limits.new_burst, clock)
        self._open = 0
        self._logged_at = -_LOG_SECONDS
        self._logged: Counter[Closed] = Counter()

    def __len__(self) -> int:
        return self._open

    def admit(self, host: str) -> OpenConnection | None:
        """A new connection from this host, which waits for its client; None = close it."""
        owner, limited = network_of(host), self.limits.of_address is not None
        limited = limited and not self._trusted(host)
        if limited and self._new.take(owner):
            self.count(Closed.TOO_MANY_NEW)
            return None
        owned = self._owners.get(owner, _Owner())
        full = limited and len(owned.open) >= (self.limits.of_address or 0)
        if (full and not self._close_one(owned)) or not self._make_room():
            self.count(Closed.NO_ROOM)
            return None
        connection = OpenConnection(self, owner)
        self._add(connection, waiting=True)
        return connection

    def note(self, connection: OpenConnection, *, waiting: bool) -> None:
        """See :meth:`OpenConnection.waits`."""
        owner = self._owners.get(connection.owner)
        if owner is None or connection not in owner.open:
            return
        owner.waiting.pop(connection, None)
        if waiting:
            owner.waiting[connection] = None

    def claim(self, connection: OpenConnection, caller: str) -> bool:
        """See :meth:`OpenConnection.belongs_to`."""
        owner = f"caller {caller}"  # no address begins like this
        if connection.owner == owner or not self._has(connection):
            return True
        owned = self._owners.get(owner, _Owner())
        if len(owned.open) >= self.limits.of_caller and not self._close_one(owned):
            return False
        waiting = connection in self._owners[connection.owner].waiting
        self.remove(connection)
        connection.owner = owner
        self._add(connection, waiting=waiting)
        return True

    def remove(self, connection: OpenConnection) -> None:
        """Forget a connection that has ended."""
        if not self._has(connection):
            return
        owner = self._owners[connection.owner]
        owner.open.discard(connection)
        owner.waiting.pop(connection, None)
        if not owner.open:
            del self._owners[connection.owner]
        self._open -= 1

    def close_waiting(self) -> None:
        """End those that wait for their client, because the server stops."""
        for owner in list(self._owners.values()):
            for connection in list(owner.waiting):
                self.remove(connection)
                connection.abort()

    def count(self, reason: Closed) -> None:
        """Count a connection that is closed, and log the numbers, at most once a second."""
        self.closed[reason] += 1
        self._on_close(reason.name.lower())
        if self._clock() - self._logged_at >= _LOG_SECONDS:
            self._logged_at = self._clock()
            new = self.closed - self._logged
            self._logged = self.closed.copy()
            _log.info("connections_closed", **{one.name.lower(): n for one, n in new.items()})

    def _has(self, connection: OpenConnection) -> bool:
        owner = self._owners.get(connection.owner)
        return owner is not None and connection in owner.open

    def _add(self, connection: OpenConnection, *, waiting: bool) -> None:
        owner = self._owners.setdefault(connection.owner, _Owner())
        owner.open.add(connection)
        if waiting:
            owner.waiting[connection] = None
        self._open += 1

    def _make_room(self) -> bool:
        """Whether there is room for one more, after closing one if needed."""
        if self._open < self.limits.most:
            return True
        waiting = (owner for owner in self._owners.values() if owner.waiting)
        largest = max(waiting, key=lambda owner: len(owner.open), default=None)
        return largest is not None and self._close_one(largest)

    def _close_one(self, owner: _Owner) -> bool:
        """Close the connection that waits longest. False = none waits."""
        longest = next(iter(owner.waiting), None)
        if longest is None:
            return False
        longest.close(Closed.FOR_ANOTHER)
        return True


def connection_of(scope: Any) -> OpenConnection | None:
    """The connection of a request; None where no server of queuectl received it."""
    found: OpenConnection | None = scope.get("state", {}).get(_KEY)
    return found


# ---- Protocol and deadlines of one connection


class RequestPhase(Enum):
    """Where a connection is in its current request. The server waits for the client in each of them but ANSWER."""

    HEAD = auto()
    BODY = auto()
    ANSWER = auto()
    IDLE = auto()


class BoundedProtocol(H11Protocol):
    """Closes a connection whose client is too slow."""

    def __init__(
        self, config: uvicorn.Config, state: ServerState, connection: OpenConnection
    ) -> None:
        super().__init__(config, state, {_KEY: connection})
        self._connection = connection
        self._limits = connection.connections.limits
        self._phase = RequestPhase.IDLE
        self._deadline: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Wait for the first request."""
        super().connection_made(transport)
        self._connection.abort = transport.abort
        self._connection.tls = transport.get_extra_info("ssl_object")
        self._enter(RequestPhase.HEAD)

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        super().data_received(data)
        self._follow()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._follow()

    def pause_writing(self) -> None:
        """Give the client a time limit to read."""
        super().pause_writing()
        self._connection.waits(for_client=True)
        self._reading = self.loop.call_later(
            self._limits.reading_seconds, self._connection.close, Closed.READING
        )

    def resume_writing(self) -> None:
        """Continue, because the client reads."""
        super().resume_writing()
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
            self._connection.waits(for_client=self._phase is not RequestPhase.ANSWER)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the timers."""
        self._connection.connections.remove(self._connection)
        for timer in (self._deadline, self._reading):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def _follow(self) -> None:
        """Compare the phase with what has been received."""
        state = self.conn.their_state
        if state is h11.SEND_BODY:
            phase = RequestPhase.BODY
        elif state is not h11.IDLE:
            phase = RequestPhase.ANSWER
        elif self._phase is RequestPhase.HEAD or self.conn.trailing_data[0]:
            phase = RequestPhase.HEAD
        else:
            phase = RequestPhase.IDLE
        if phase is not self._phase:
            self._enter(phase)

    def _enter(self, phase: RequestPhase) -> None:
        self._phase = phase
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        seconds, reason = {
            RequestPhase.HEAD: (self._limits.head_seconds, Closed.HEAD),
            RequestPhase.BODY: (self._limits.body_seconds, Closed.BODY),
        }.get(phase, (0.0, None))
        if reason is not None:
            self._deadline = self.loop.call_later(seconds, self._connection.close, reason)
        self._connection.waits(for_client=phase is not RequestPhase.ANSWER)


# ---- File descriptors of the process

RESERVED: Final = 512
"""For the database, the API server of the cluster, files, health and metrics."""
_MOST: Final = 65_536
"""Enough for all connections; some systems allow a billion."""
_LEAST: Final = 64
"""Connections that are allowed in any case."""


def raise_limit() -> int:
    """Raise the soft limit of open files to the hard limit. Returns the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _MOST if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def connections_within(limit: int, most: int) -> int:
    """The number of connections for which the limit of open files has room, at most ``most``."""
    return min(most, max(limit - RESERVED, _LEAST))
