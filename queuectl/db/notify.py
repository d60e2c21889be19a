"""Notifications of other processes: LISTEN on a separate connection, and a poll in case a message is lost."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import asyncpg
from sqlalchemy.ext.asyncio import AsyncEngine

from queuectl.db.engine import DatabaseSettings, open_connection

_CLOSE_SECONDS: Final = 2.0


class NotificationListener:
    """Reports when any process has notified a channel, and when the listening connection is lost.

    A notification can be lost or have no cause, so the caller always reads the data, and polls as well.
    """

    def __init__(
        self, engine: AsyncEngine, settings: DatabaseSettings | None, channel: str
    ) -> None:
        """``settings``: of the listening connection; None = it does not listen, and the caller polls alone."""
        self._engine = engine
        self._settings = settings
        self._channel = channel
        self._notified = asyncio.Event()
        self._connection: asyncpg.Connection | None = None

    async def listen(self) -> None:
        """Make sure that the connection listens. Raises the errors of the driver."""
        if self._settings is None:
            return
        if self._connection is not None and not self._connection.is_closed():
            return
        connection = await open_connection(self._engine, self._settings)
        try:
            await connection.add_listener(self._channel, self._on_message)
        except BaseException:
            connection.terminate()
            raise
        connection.add_termination_listener(self._on_loss)
        self._connection = connection

    async def wait(self, seconds: float) -> bool:
        """Wait for a notification, at most this many seconds. Returns whether there was one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._notified.wait()
        notified = self._notified.is_set()
        self._notified.clear()
        return notified

    async def close(self) -> None:
        """Close the listening connection, without a long wait for a server that has stopped."""
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            connection.remove_termination_listener(self._on_loss)
            try:
                await connection.close(timeout=_CLOSE_SECONDS)
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                connection.terminate()

    def _on_message(self, *_: object) -> None:
        self._notified.set()

    def _on_loss(self, _: object) -> None:
        self._notified.set()
