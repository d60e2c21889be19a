"""A real Postgres for tests: one embedded server per session, a fresh migrated database per test.

A conftest gets the fixtures by importing them::

    from tests.support.postgres import database_url, postgres  # noqa: F401
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TypeVar

import asyncpg
import pytest_asyncio

from queuectl.db.embedded import EmbeddedServer
from queuectl.db.migrate import upgrade
from queuectl.domain.errors import StoreUnavailable
from tests.support.engines import reused_engines

TEMPLATE = "queuectl_template"
SLOW_SECONDS = 3.0
PREFIX = "queuectl-pg-"
LEFTOVER_SECONDS = 3600.0
SHARED_MEMORY = Path("/dev/shm")
ROOM_BYTES = 2 << 30
T = TypeVar("T")


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Retry until the database answers, as the supervisor does."""
    while True:
        try:
            return await ask()
        except StoreUnavailable:
            await asyncio.sleep(0.01)


@dataclass
class TestPostgres:
    """A running server and the databases made on it."""

    __test__ = False

    server: EmbeddedServer
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))
    _free: list[str] = field(default_factory=list)  # names of databases that were dropped

    async def execute(self, statement: str, database: str = "postgres") -> list[asyncpg.Record]:
        """Run one statement as an administrator, outside any transaction."""
        connection = await asyncpg.connect(self.server.url(database))
        try:
            rows: list[asyncpg.Record] = await connection.fetch(statement)
            return rows
        finally:
            await connection.close()

    async def empty(self) -> str:
        """Name of a new database without a schema."""
        name = f"test_{next(self._numbers)}"
        await self.execute(f"CREATE DATABASE {name}")
        return name

    async def fresh(self, like: str = TEMPLATE) -> str:
        """Name of a new database, a copy made in some 20 ms: of the template, at the newest revision, or of another one."""
        name = self._free.pop() if self._free else f"test_{next(self._numbers)}"
        await self.execute(f"CREATE DATABASE {name} TEMPLATE {like} STRATEGY file_copy")
        return name

    @asynccontextmanager
    async def filled(self, *statements: str) -> AsyncIterator[str]:
        """URL of a new database with the rows of these statements, vacuumed: so no plan of a query depends on when autovacuum runs."""
        name = await self.fresh()
        for statement in (*statements, "VACUUM (ANALYZE)"):
            await self.execute(statement, name)
        yield self.server.url(name)
        await self.drop(name)

    async def drop(self, name: str) -> None:
        await self.execute(f"DROP DATABASE {name} WITH (FORCE)")
        self._free.append(name)


@contextmanager
def server_directory(*, on_disk: bool = False) -> Iterator[Path]:
    """A directory that the account of the server can reach. Directories of pytest are private to their owner.

    It is in memory if there is space, unless ``on_disk``: a copy of the template takes 10 ms there, and up to 300 ms on a disk.
    """
    memory = (
        not on_disk
        and SHARED_MEMORY.is_dir()
        and shutil.disk_usage(SHARED_MEMORY).free > ROOM_BYTES
    )
    parent = SHARED_MEMORY if memory else Path(tempfile.gettempdir())
    _remove_leftovers(parent)
    directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _remove_leftovers(parent: Path) -> None:
    """Remove old directories of killed sessions: those whose lock is free."""
    for directory in parent.glob(f"{PREFIX}*"):
        lock = directory / "lock"
        with contextlib.suppress(OSError), lock.open() as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - lock.stat().st_mtime > LEFTOVER_SECONDS:
                shutil.rmtree(directory, ignore_errors=True)


@asynccontextmanager
async def report_when_slow(what: str) -> AsyncIterator[None]:
    """Print the reason of a long wait, without pytest's capturing."""

    async def report() -> None:
        await asyncio.sleep(SLOW_SECONDS)
        print(f"\n{what} ...", file=sys.__stderr__, flush=True)

    speaker = asyncio.create_task(report())
    try:
        yield
    finally:
        speaker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await speaker


@asynccontextmanager
async def running_postgres() -> AsyncIterator[TestPostgres]:
    """A volatile server with the template database; for fixtures and benchmarks."""
    with server_directory() as directory:
        server = EmbeddedServer(directory, durable=False, settings={"max_connections": "100"})
        try:
            async with report_when_slow("starting the embedded Postgres for tests"):
                await server.start()
                postgres = TestPostgres(server)
                await postgres.execute(f"CREATE DATABASE {TEMPLATE}")
                await upgrade(server.url(TEMPLATE))
            yield postgres
        finally:
            await server.stop(immediate=True)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def postgres() -> AsyncIterator[TestPostgres]:
    """The server of the session. A test that stops it must start it again, or use its own server."""
    with reused_engines():
        async with running_postgres() as running:
            yield running


@pytest_asyncio.fixture
async def database_url(postgres: TestPostgres) -> AsyncIterator[str]:
    """URL of a new, migrated database for one test."""
    name = await postgres.fresh()
    yield postgres.server.url(name)
    await postgres.drop(name)


LOCK_WAITERS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


async def lock_waiters(connection: asyncpg.Connection) -> int:
    """The number of sessions of this database that wait for a lock."""
    return int(await connection.fetchval(LOCK_WAITERS))
