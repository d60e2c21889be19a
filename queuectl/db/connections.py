"""Access to the database server: transactions, snapshots, and waits for a change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection

from queuectl.db.engine import DatabaseSettings, limit, make_engine
from queuectl.db.failures import answers_within
from queuectl.db.notify import NotificationListener
from queuectl.db.server_checks import check_pooling, check_server

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
