"""The password of the database changes while queuectl runs, and nothing restarts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy import make_url

from queuectl.cli.doctor.findings import Level
from queuectl.cli.doctor.server import database
from queuectl.db import migrate
from queuectl.db.engine import DatabaseSettings
from queuectl.domain.errors import StoreUnavailable
from tests.support.postgres import TestPostgres
from tests.support.stores import PostgresStore

HANG_UP = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'rotating'"


def insert(file: Path, rules: str, *, whole: bool = False) -> str:
    """Insert rules before the current ones, or replace these. Returns the current rules."""
    before = file.read_text()
    file.write_text(rules if whole else rules + before)
    return before


@pytest_asyncio.fixture
async def rotating_url(postgres: TestPostgres, database_url: str) -> AsyncIterator[str]:
    """The URL of a role that needs a password, without the password."""
    [(file,)] = await postgres.execute("SHOW hba_file")
    rules = insert(Path(file), "local all rotating scram-sha-256\n")
    await postgres.execute("CREATE ROLE rotating LOGIN SUPERUSER")
    await postgres.execute("SELECT pg_reload_conf()")
    yield make_url(database_url).set(username="rotating").render_as_string(hide_password=False)
    await postgres.execute(HANG_UP)
    await postgres.execute("DROP ROLE rotating")
    insert(Path(file), rules, whole=True)
    await postgres.execute("SELECT pg_reload_conf()")


async def test_a_password_is_rotated_without_a_restart(
    postgres: TestPostgres, rotating_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    monkeypatch.setenv("QUEUECTL_DATABASE_PASSWORD_FILE", str(file))
    await postgres.execute("ALTER ROLE rotating PASSWORD 'one'")
    file.write_text("one\n")
    await migrate.upgrade(rotating_url)
    store = await PostgresStore.connect(DatabaseSettings.from_environment(rotating_url))
    before = await store.configuration()

    await postgres.execute("ALTER ROLE rotating PASSWORD 'two'")
    assert await store.configuration() == before  # open connections stay open
    await postgres.execute(HANG_UP)
    for password in ("one", None):
        file.write_text(password) if password else file.unlink()
        with pytest.raises(StoreUnavailable) as refused:
            await store.configuration()
        assert "one" not in str(refused.value).split()
        [found] = await database(rotating_url)
        assert found.level is Level.PROBLEM
        assert ("the password of QUEUECTL_DATABASE_URL" in found.fix) is bool(password)
        assert " as rotating: reading the schema: " in found.message
    file.write_text("two\n")
    assert await store.configuration() == before
    assert {one.check: one.level for one in await database(rotating_url)} == {
        "database": Level.WARNING  # no replica is registered
    }
    await store.close()
