"""Access to the database server: transactions, snapshots, notifications of other processes, and checks before the first use.

The checks are about the version of the server, and about a connection pooler in front of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Final, TypeVar

import asyncpg
from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from queuectl.db.engine import (
    DatabaseSettings,
    Pooling,
    answers_within,
    limit,
    make_engine,
    open_connection,
)
from queuectl.domain.errors import BadInput

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
            await _check_pooling(self._engine, self._settings)

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

    async def until_available(
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
    async def transaction(
        self, doing: str, seconds: float | None = None
    ) -> AsyncIterator[AsyncConnection]:
        """A transaction that is committed at the end of the block, and rolled back by an error in it.

        Args:
            doing: in words, for errors.
            seconds: time limit of the transaction, and of each statement in it; None = those of the settings.
        """
        async with (
            answers_within(seconds or self._settings.answer_timeout, doing),
            self._engine.connect() as connection,
            _begun(connection, self._settings),
        ):
            if seconds is not None:
                limited = func.set_config("statement_timeout", f"{seconds:.0f}s", True)
                await connection.execute(select(limited))
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


# ---- Checks of the server

MINIMUM_VERSION: Final = 150000  # as server_version_num counts
_BACKEND: Final = "SELECT pg_backend_pid()"
_ROUNDS: Final = 3


async def check_server(connection: AsyncConnection, settings: DatabaseSettings) -> None:
    """Check that queuectl can use a server with these settings.

    Raises:
        BadInput: it is older than queuectl supports, or a connection pooler is in front of it that the settings do not name.
    """
    await _check_version(connection)
    if settings.pooling is None:
        raw = await connection.get_raw_connection()
        if await _is_pooled(raw.driver_connection):
            raise BadInput(
                "the database URL leads to a connection pooler: set QUEUECTL_DATABASE_PGBOUNCER to its pool mode, "
                "session or transaction"
            )


async def _check_pooling(engine: AsyncEngine, settings: DatabaseSettings) -> None:
    """Check the pool mode, and that the connection for LISTEN is direct. Raises the errors of the driver.

    Raises:
        BadInput: the pool mode is transaction and the settings name session, or LISTEN would go through a pooler.
    """
    if settings.pooling is Pooling.SESSION and await _shares_sessions(engine, settings):
        raise BadInput(
            "QUEUECTL_DATABASE_PGBOUNCER is session, but the pooler gives one connection of the server to several clients: "
            "set pool_mode = session for this database in PgBouncer, or QUEUECTL_DATABASE_PGBOUNCER=transaction"
        )
    if settings.direct is not None and not await _is_direct(engine, settings.direct):
        raise BadInput(
            "QUEUECTL_DATABASE_DIRECT_URL leads to a connection pooler: LISTEN needs the server itself"
        )


async def _check_version(connection: AsyncConnection) -> None:
    number = int((await connection.scalar(text("SHOW server_version_num"))) or 0)
    if number < MINIMUM_VERSION:
        raise BadInput(
            f"PostgreSQL {MINIMUM_VERSION // 10000} or newer is needed; "
            f"{connection.engine.url.host or 'the server'} runs {number // 10000}.{number % 10000}"
        )


async def _is_pooled(connection: asyncpg.Connection) -> bool:
    """Whether a pooler has answered the start of the session. It does not know the process of the server."""
    async with connection.transaction():
        backend = await connection.fetchval(_BACKEND)
    return bool(backend != connection.get_server_pid())


async def _is_direct(engine: AsyncEngine, settings: DatabaseSettings) -> bool:
    try:
        connection = await open_connection(engine, settings)
    except asyncpg.ProtocolViolationError:  # PgBouncer does not accept the parameters
        return False
    try:
        return not await _is_pooled(connection)
    finally:
        await connection.close()


async def _shares_sessions(engine: AsyncEngine, settings: DatabaseSettings) -> bool:
    """Whether a client gets another connection of the server after a transaction of another client."""
    unprepared = replace(settings, pooling=Pooling.TRANSACTION)
    async with AsyncExitStack() as stack:
        first, second = [await open_connection(engine, unprepared) for _ in range(2)]
        for each in (first, second):
            stack.callback(each.terminate)
        for _ in range(_ROUNDS):
            async with first.transaction():
                before = await first.fetchval(_BACKEND)
            async with second.transaction(), first.transaction():
                between = await second.fetchval(_BACKEND)
                after = await first.fetchval(_BACKEND)
            if before == between or before != after:
                return True
    return False
