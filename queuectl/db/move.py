"""Copies the content of one database of queuectl to another one, in one transaction of each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import asyncpg
from sqlalchemy import Table

from queuectl.db import migrate
from queuectl.db.migrate import driver_connection
from queuectl.db.tables import (
    metadata,
    replicas,
    usage_days,
    usage_queue_days,
    usage_queues,
    usage_spanning,
    usage_summed,
)
from queuectl.domain.errors import StoreError

_DOING: Final = "moving the database"
_PARTS: Final = 16  # of the copy that wait for the target
_LEFT_OUT: Final = {
    replicas,
    usage_summed,
    usage_days,
    usage_queue_days,
    usage_queues,
    usage_spanning,
}
"""The replicas of the source are not those of the target. Its leader adds up the days again."""
_TABLES: Final = tuple(table for table in metadata.sorted_tables if table not in _LEFT_OUT)


async def move(source: str, target: str) -> dict[str, int]:
    """Copy all rows. The source does not change, and a failure leaves the target without rows.

    Args:
        source: URL of the database that queuectl used until now.
        target: URL of an empty database, or of one with an unused schema.

    Returns:
        The number of rows of each table.

    Raises:
        StoreError: the schema of the source is not that of this release, replicas use it, or the target was used before.
        StoreUnavailable: no response.
        BadInput: a URL is wrong or a server too old.
    """
    await check(source, target)
    await migrate.upgrade(target)
    async with (
        driver_connection(source, _DOING) as reader,
        driver_connection(target, _DOING) as writer,
    ):
        return await _copied(reader, writer)


async def counted_rows(source: str) -> dict[str, int]:
    """The number of rows of each table that a move copies."""
    async with driver_connection(source, _DOING) as reader:
        return {table.name: await _count(table, reader) for table in _TABLES}


async def check(source: str, target: str) -> None:
    """Check both databases of a move. Nothing is written; the errors are those of :func:`move`."""
    state = await migrate.current(source)
    if not state.up_to_date:
        raise StoreError(
            f"the schema of the source is {state.current or 'missing'}, not {state.head}: run `queuectl db upgrade` on it"
        )
    live = [replica.name for replica in state.replicas if not replica.expired]
    if live:
        raise StoreError(
            f"replicas use the source ({', '.join(live)}): stop them, for example with "
            "`kubectl -n queuectl-system scale deployment queuectl --replicas=0`. A replica that was killed counts for a minute"
        )
    if await migrate.was_used(target):
        raise StoreError("queuectl has used the target before: give an empty database")


async def _copied(reader: asyncpg.Connection, writer: asyncpg.Connection) -> dict[str, int]:
    names = ", ".join(table.name for table in _TABLES)
    async with reader.transaction(isolation="repeatable_read"), writer.transaction():
        # No other process writes to the source in the meantime, or to the target.
        await reader.execute(f"LOCK TABLE {names} IN SHARE MODE")
        await writer.execute(f"LOCK TABLE {names} IN ACCESS EXCLUSIVE MODE")
        rows = {}
        for table in _TABLES:
            await _empty(table, writer)
            await _copy(table, reader, writer)
            rows[table.name] = await _count(table, writer)
            if rows[table.name] != await _count(table, reader):
                raise StoreError(f"{table.name}: the target has another number of rows")
            await _continue_numbers(table, reader, writer)
        return rows


async def _empty(table: Table, writer: asyncpg.Connection) -> None:
    """Remove the first row of a table that has exactly one. Raises StoreError if another table has rows."""
    if "singleton" in table.columns:
        await writer.execute(f"DELETE FROM {table.name}")  # noqa: S608 - a name of our schema
    elif await _count(table, writer):
        raise StoreError(f"{table.name}: the target has rows: give an empty database")


async def _copy(table: Table, reader: asyncpg.Connection, writer: asyncpg.Connection) -> None:
    parts: asyncio.Queue[bytes | None] = asyncio.Queue(_PARTS)
    columns = table.columns.keys()

    async def received() -> AsyncIterator[bytes]:
        while (part := await parts.get()) is not None:
            yield part

    async def read() -> None:
        await reader.copy_from_table(table.name, columns=columns, output=parts.put)
        await parts.put(None)

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(read())
            group.create_task(writer.copy_to_table(table.name, columns=columns, source=received()))
    except ExceptionGroup as errors:  # the first one has ended the other task
        raise errors.exceptions[0] from None


async def _count(table: Table, connection: asyncpg.Connection) -> int:
    return int(await connection.fetchval(f"SELECT count(*) FROM {table.name}"))  # noqa: S608 - a name of our schema


async def _continue_numbers(
    table: Table, reader: asyncpg.Connection, writer: asyncpg.Connection
) -> None:
    """Let the next row have the number that it would have in the source.

    The last row does not show it: others had later numbers and were deleted, and cursors of readers are behind them.
    """
    for column in table.columns:
        if column.identity is not None:
            sequence = "SELECT pg_get_serial_sequence($1, $2)"
            names = (table.name, column.name)
            source = await reader.fetchval(sequence, *names)
            state = await reader.fetchrow(f"SELECT last_value, is_called FROM {source}")  # noqa: S608 - a name of our schema
            await writer.execute(f"SELECT setval(({sequence}), $3, $4)", *names, *state)
