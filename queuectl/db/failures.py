"""Errors of the driver as errors of the domain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import asyncpg
from sqlalchemy.exc import DBAPIError, InterfaceError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from queuectl.domain.errors import BadInput, StoreError, StoreUnavailable

# SQLSTATE classes and codes after which a retry with new reads is correct.
_CLASSES: Final = (
    "08",  # connection exceptions
    "53",  # out of disk, memory, connections
    "57",  # shutdown, starting up, canceled by statement_timeout
    "58",  # I/O errors of the server
)
_CODES: Final = {
    "28000": "access denied: a rotated certificate or a new pg_hba.conf",
    "28P01": "the password was rotated, and the file does not have the new one yet",
    "25006": "the server is read-only: a standby, or a demoted primary",
    "25P03": "the transaction was idle for too long",
    "40001": "serialization failure",
    "40P01": "deadlock",
    "55P03": "a lock was not available in time",
}
_NO_SCHEMA: Final = {"42P01", "42703"}
_POOLER: Final = ("08P01", "startup parameter")  # PgBouncer accepts few of them


@asynccontextmanager
async def answers_within(seconds: float, doing: str) -> AsyncIterator[None]:
    """Limit the time of one operation, and raise errors of the domain only.

    Raises:
        StoreUnavailable: no response, a lost connection or a server that shuts down: the outcome is unknown.
        StoreError: the server rejected the statement.
        BadInput: a PgBouncer answered that the settings do not name.
    """
    try:
        async with asyncio.timeout(seconds):
            yield
    except (TimeoutError, PoolTimeout) as error:
        raise StoreUnavailable(
            f"{doing}: no answer from the database within {seconds:g} s"
        ) from error
    except (DBAPIError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        raise _translated(error, doing) from error


def _translated(error: BaseException, doing: str) -> StoreError | BadInput:
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    text = f"{doing}: {str(cause).splitlines()[0] if str(cause) else type(cause).__name__}"
    state = getattr(cause, "sqlstate", None)
    if state is None:
        lost = isinstance(error, DBAPIError) and (
            error.connection_invalidated or isinstance(error, InterfaceError)
        )
        plain = isinstance(error, OSError | asyncpg.InterfaceError)
        return StoreUnavailable(text) if lost or plain else StoreError(text)
    if state == _POOLER[0] and _POOLER[1] in text:
        return BadInput(
            f"{text}: the database URL leads to PgBouncer; set QUEUECTL_DATABASE_PGBOUNCER to its pool mode, session or transaction"
        )
    if state[:2] in _CLASSES or state in _CODES:
        return StoreUnavailable(text)
    if state in _NO_SCHEMA:
        text += " (run `queuectl db upgrade`)"
    return StoreError(text)
