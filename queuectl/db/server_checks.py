"""Checks of a database server before its use: its version, and a connection pooler in front of it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Final

import asyncpg
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from queuectl.db.engine import DatabaseSettings, Pooling, open_connection
from queuectl.domain.errors import BadInput

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


async def check_pooling(engine: AsyncEngine, settings: DatabaseSettings) -> None:
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
