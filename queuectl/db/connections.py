"""Access to the database server: transactions, snapshots, and notifications of other processes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, TypeVar

import asyncpg
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from queuectl.db.engine import DatabaseSettings, limit, make_engine, open_connection
from queuectl.db.failures import answers_within
from queuectl.db.server_checks import check_pooling, check_server

# ---- Notifications

_LISTENER_CLOSE_SECONDS: Final = 2.0


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
                await connection.close(timeout=_LISTENER_CLOSE_SECONDS)
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                connection.terminate()

    def _on_message(self, *_: object) -> None:
        self._notified.set()

    def _on_loss(self, _: object) -> None:
        self._notified.set()


# ---- Transactions and snapshots

T = TypeVar("T")

_CLOSE_SECONDS: Final = 3.0


class Connections:
    """A pool of connections. Each use takes one for one transaction. All methods can raise StoreUnavailable."""

    def __init__(self, settings: DatabaseSettings) -> None:
        """Connect lazily."""
        self._engine = make_engine(settings)
        self._settings = settings
        self._listeners: list[NotificationListener] = []

    async def check(self) -> None:
        """Check that queuectl can use the server with these settings.

        Raises:
            BadInput: the server is too old, or a connection pooler is in front of it that the settings do not name.
        """
        async with self.transaction("connecting") as connection:
            await check_server(connection, self._settings)
        async with self._guarded("connecting"):
            await check_pooling(self._engine, self._settings)

    async def close(self) -> None:
        """Close all connections, without waiting for a server that does not respond."""
        for listener in self._listeners:
            await listener.close()
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._engine.dispose()
        except TimeoutError:
            await self._engine.dispose(close=False)

    def listener(self, channel: str) -> NotificationListener:
        """A listener for notifications on a channel. It closes with this pool."""
        listener = NotificationListener(self._engine, self._settings.listening, channel)
        self._listeners.append(listener)
        return listener

    async def found(
        self,
        query: Callable[[], Awaitable[T | None]],
        listener: NotificationListener,
        what: str,
        poll: float,
    ) -> T:
        """The result of a query: once now, again after each notification, and at the latest after ``poll`` seconds."""
        while True:
            async with self._guarded(f"listening for {what}"):
                await listener.listen()
            found = await query()
            if found is not None:
                return found
            await listener.wait(poll)

    @asynccontextmanager
    async def transaction(self, doing: str) -> AsyncIterator[AsyncConnection]:
        """A transaction that is committed at the end of the block, and rolled back by an error in it."""
        async with (
            self._guarded(doing),
            self._engine.connect() as connection,
            _begun(connection, self._settings),
        ):
            yield connection

    @asynccontextmanager
    async def statement(self, doing: str) -> AsyncIterator[AsyncConnection]:
        """A connection for one statement that is its own transaction: one round trip instead of three.

        PgBouncer can send the parts of a statement outside a transaction to several connections of the server.
        """
        if self._settings.pooling is not None:
            async with self.transaction(doing) as connection:
                yield connection
            return
        async with self._guarded(doing), self._engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            try:
                yield connection
            except asyncio.CancelledError:
                await connection.invalidate()
                raise

    @asynccontextmanager
    async def snapshot(self, doing: str) -> AsyncIterator[AsyncConnection]:
        """A transaction in which all reads see the same moment."""
        async with self._guarded(doing), self._engine.connect() as connection:
            await connection.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )
            async with _begun(connection, self._settings):
                yield connection

    def _guarded(self, doing: str) -> AbstractAsyncContextManager[None]:
        return answers_within(self._settings.answer_timeout, doing)


@asynccontextmanager
async def _begun(connection: AsyncConnection, settings: DatabaseSettings) -> AsyncIterator[None]:
    """A transaction whose connection is dropped on cancellation, because ROLLBACK waits for a server that does not respond."""
    try:
        await connection.begin()
        try:
            await limit(connection, settings)
            yield
        except asyncio.CancelledError:
            raise
        except BaseException:
            await connection.rollback()
            raise
        await connection.commit()
    except asyncio.CancelledError:
        await connection.invalidate()
        raise
