"""The runs of processes in Postgres: other releases, processes without a heartbeat, and a process that only reads."""

from __future__ import annotations

from dataclasses import replace

import asyncpg
import pytest

from queuectl.db.engine import DatabaseSettings
from queuectl.distribution import version
from queuectl.domain.errors import StoreError
from queuectl.domain.processes import KEPT_RUNS
from tests.support.stores import PostgresStore


async def test_ends_of_processes_of_another_release_do_not_count(database_url: str) -> None:
    store = await PostgresStore.connect(DatabaseSettings(database_url))
    connection = await asyncpg.connect(database_url)
    await store.begin_run("a")
    await store.begin_run("a")
    assert len(await store.unknown_ends(0.0)) == 1
    await connection.execute("UPDATE process_runs SET release = $1", f"not {version()}")
    assert await store.unknown_ends(0.0) == ()
    await connection.close()
    await store.close()


async def test_a_process_without_a_heartbeat_has_ended(database_url: str) -> None:
    store = await PostgresStore.connect(DatabaseSettings(database_url))
    async with store.registration("alive").registered():
        await store.begin_run("alive")
        await store.begin_run("gone")
        await store.begin_run("new")
        assert len(await store.unknown_ends(0.0)) == 1
    await store.close()


async def test_the_newest_runs_are_kept(database_url: str) -> None:
    store = await PostgresStore.connect(DatabaseSettings(database_url))
    connection = await asyncpg.connect(database_url)
    for _ in range(KEPT_RUNS + 5):
        await store.begin_run("a")
    assert await connection.fetchval("SELECT count(*) FROM process_runs") == KEPT_RUNS
    await connection.close()
    await store.close()


async def test_the_server_refuses_a_write_of_a_process_that_only_reads(database_url: str) -> None:
    settings = replace(DatabaseSettings(database_url), read_only=True)
    store = await PostgresStore.connect(settings)
    await store.load()
    with pytest.raises(StoreError, match="read-only"):
        await store.take_over("a", 0)
    await store.close()
