"""`queuectl db move` copies everything that queuectl knows to another server, or nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from queuectl.db import migrate
from queuectl.db.engine import DatabaseSettings
from queuectl.db.move import move
from queuectl.db.tables import metadata
from queuectl.domain.errors import BadInput, StoreError
from tests.api.signed import ADMIN, asking, people, signed_app
from tests.api.support import COHORT
from tests.db.test_dump import dumped
from tests.support.postgres import TestPostgres
from tests.support.stores import PostgresStore

LIVE = "INSERT INTO replicas VALUES ('a', '0.1.0', 'r', extract(epoch FROM now()), extract(epoch FROM now()))"


@dataclass
class Databases:
    """A database that was used, and an empty one."""

    postgres: TestPostgres
    source: str
    target: str

    def url(self, name: str) -> str:
        return self.postgres.server.url(name)

    async def content(self, name: str) -> dict[str, str]:
        """Each table without the replicas, with its rows in a fixed order."""
        tables = await dumped(self.postgres, name)
        del tables["replicas"]
        return {table: "\n".join(sorted(rows.splitlines())) for table, rows in tables.items()}

    async def move(self) -> dict[str, int]:
        return await move(self.url(self.source), self.url(self.target))


async def change(url: str) -> None:
    """Write configuration and the audit log."""
    store = await PostgresStore.connect(DatabaseSettings(url))
    try:
        async with asking(signed_app(store, people()), ADMIN) as client:
            assert (await client.put("/api/v1/cohorts/all", json=COHORT)).is_success
    finally:
        await store.close()


@pytest_asyncio.fixture
async def databases(postgres: TestPostgres) -> AsyncIterator[Databases]:
    made = Databases(postgres, await postgres.fresh(), await postgres.empty())
    await change(made.url(made.source))
    await postgres.execute("UPDATE leadership SET epoch = 3, holder = 'a'", made.source)
    yield made
    await postgres.drop(made.source)
    await postgres.drop(made.target)


async def test_the_target_has_all_rows_and_the_source_does_not_change(databases: Databases) -> None:
    before = await databases.content(databases.source)
    rows = await databases.move()
    assert rows["documents"] == 1
    assert rows["audit"] == 1
    assert await databases.content(databases.target) == before
    assert await databases.content(databases.source) == before
    assert await migrate.was_used(databases.url(databases.target))


async def test_numbers_of_later_rows_continue(databases: Databases) -> None:
    await databases.move()
    await change(databases.url(databases.target))
    found = await databases.postgres.execute("SELECT id FROM audit ORDER BY id", databases.target)
    assert [row["id"] for row in found] == [1, 2]


IDENTITIES = [
    f"pg_get_serial_sequence('{table.name}', '{column.name}')"
    for table in metadata.sorted_tables
    for column in table.columns
    if column.identity is not None
]


async def test_numbers_continue_after_rows_that_were_deleted(databases: Databases) -> None:
    """The cursor of a receiver is behind the last notification even after all notifications are deleted."""
    for number, sequence in enumerate(IDENTITIES):
        await databases.postgres.execute(
            f"SELECT setval({sequence}, {1 + number // 2}, {number % 2 == 1})", databases.source
        )
    await databases.move()
    following = "SELECT " + ", ".join(f"nextval({sequence})" for sequence in IDENTITIES)
    (expected,) = await databases.postgres.execute(following, databases.source)
    (actual,) = await databases.postgres.execute(following, databases.target)
    assert list(actual) == list(expected)


async def test_a_schema_that_no_leader_has_used_is_a_target(databases: Databases) -> None:
    """A move that failed can be repeated."""
    await migrate.upgrade(databases.url(databases.target))
    assert not await migrate.was_used(databases.url(databases.target))
    assert (await databases.move())["documents"] == 1


async def test_a_target_that_was_used_is_refused_and_keeps_its_rows(databases: Databases) -> None:
    await databases.move()
    before = await databases.content(databases.target)
    with pytest.raises(StoreError, match="has used the target before"):
        await databases.move()
    assert await databases.content(databases.target) == before


async def test_rows_of_a_target_that_no_leader_has_used_are_not_lost(databases: Databases) -> None:
    """The REST API can write before the first leader."""
    await migrate.upgrade(databases.url(databases.target))
    await change(databases.url(databases.target))
    before = await databases.content(databases.target)
    with pytest.raises(StoreError, match="the target has rows"):
        await databases.move()
    assert await databases.content(databases.target) == before


async def test_replicas_that_use_the_source_are_named(databases: Databases) -> None:
    await databases.postgres.execute(LIVE, databases.source)
    with pytest.raises(StoreError, match=r"\(a\): stop them"):
        await databases.move()
    assert not await migrate.was_used(databases.url(databases.target))


async def test_a_source_without_a_schema_is_refused(databases: Databases) -> None:
    with pytest.raises(StoreError, match="missing"):
        await move(databases.url(databases.target), databases.url(databases.source))
    with pytest.raises(BadInput, match="postgresql://"):
        await move("mysql://x", databases.url(databases.target))


@pytest.mark.parametrize("side", ["reader", "writer"])
async def test_a_failure_in_the_middle_leaves_the_target_unused(
    databases: Databases, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the last tables cannot be copied."""
    name = "copy_from_table" if side == "reader" else "copy_to_table"
    original = getattr(asyncpg.Connection, name)

    async def fails(self: Any, table: str, **more: Any) -> Any:
        if table == "usage_cluster":
            raise asyncpg.PostgresConnectionError("the connection is lost")
        return await original(self, table, **more)

    monkeypatch.setattr(asyncpg.Connection, name, fails)
    with pytest.raises((StoreError, asyncpg.PostgresConnectionError)):
        await databases.move()
    monkeypatch.undo()
    assert not await migrate.was_used(databases.url(databases.target))
    assert (await databases.content(databases.target))["documents"] == ""
    assert (await databases.move())["documents"] == 1
