"""The HTTP protocol of one connection, with the time limits that uvicorn lacks.

uvicorn limits only the pause between two requests, and each received byte ends that timer. Here the head and the body of a request
have deadlines that no byte extends, also before the first request, and a client that does not read its answer has one, too.
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from queuectl.api.connections import KEY, Closed, OpenConnection


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
        super().__init__(config, state, {KEY: connection})
        self._connection = connection
        self._limits = connection.connections.limits
        self._phase = RequestPhase.IDLE
        self._deadline: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Wait for the first request."""
        super().connection_made(transport)
        self._connection.abort = transport.abort
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
