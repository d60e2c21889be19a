"""How the ledger's store talks to its server: transactions, snapshots, and waiting for a change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection

from queuectl.db.engine import DatabaseSettings, check_version, make_engine
from queuectl.db.failures import answers_within
from queuectl.db.notify import NotificationListener

T = TypeVar("T")

_GOODBYE_SECONDS: Final = 3.0


class Connections:
    """A pool, from which each use takes a connection for one transaction. All methods may raise StoreUnavailable."""

    def __init__(self, settings: DatabaseSettings) -> None:
        """Connect lazily."""
        self._engine = make_engine(settings)
        self._settings = settings
        self._bells: list[NotificationListener] = []

    async def check(self) -> None:
        """See that the server is one we support.

        Raises:
            BadInput: it is too old.
        """
        async with self.transaction("connecting") as connection:
            await check_version(connection)

    async def close(self) -> None:
        """Give back all connections; a server that does not say goodbye is not waited for."""
        for bell in self._bells:
            await bell.close()
        try:
            async with asyncio.timeout(_GOODBYE_SECONDS):
                await self._engine.dispose()
        except TimeoutError:
            await self._engine.dispose(close=False)

    def bell(self, channel: str) -> NotificationListener:
        """What rings when something is notified on a channel; it ends with this."""
        bell = NotificationListener(self._engine, self._settings, channel)
        self._bells.append(bell)
        return bell

    async def found(
        self,
        look: Callable[[], Awaitable[T | None]],
        bell: NotificationListener,
        what: str,
        poll: float,
    ) -> T:
        """What a look finds: looks at once, and again whenever the bell rings, or else after ``poll`` seconds."""
        while True:
            async with self._guarded(f"listening for {what}"):
                if not self._settings.pgbouncer:
                    await bell.listen()
            found = await look()
            if found is not None:
                return found
            await bell.heard(poll)

    @asynccontextmanager
    async def transaction(self, doing: str) -> AsyncIterator[AsyncConnection]:
        """A transaction that is committed at the end of the block, and rolled back by an error in it."""
        async with (
            self._guarded(doing),
            self._engine.connect() as connection,
            _begun(connection),
        ):
            yield connection

    @asynccontextmanager
    async def statement(self, doing: str) -> AsyncIterator[AsyncConnection]:
        """For one statement that is a transaction by itself: one round trip, not three."""
        async with self._guarded(doing), self._engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            try:
                yield connection
            except asyncio.CancelledError:
                await connection.invalidate()
                raise

    @asynccontextmanager
    async def snapshot(self, doing: str) -> AsyncIterator[AsyncConnection]:
        """Reads that all see one moment."""
        async with self._guarded(doing), self._engine.connect() as connection:
            await connection.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )
            async with _begun(connection):
                yield connection

    def _guarded(self, doing: str) -> AbstractAsyncContextManager[None]:
        return answers_within(self._settings.answer_timeout, doing)


@asynccontextmanager
async def _begun(connection: AsyncConnection) -> AsyncIterator[None]:
    """A transaction whose connection is dropped when it is given up: ROLLBACK would wait for a server that is silent."""
    try:
        await connection.begin()
        try:
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
