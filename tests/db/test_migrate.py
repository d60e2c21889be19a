"""The revisions define the schema. An upgrade is atomic, also with concurrent upgrades."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, inspect

from queuectl.control.composition import controller
from queuectl.control.settings import Settings
from queuectl.db.engine import DatabaseSettings, make_engine
from queuectl.db.migrate import SchemaState, current, migrations_directory, upgrade
from queuectl.db.replicas import LOCK
from queuectl.db.store import PostgresApiStore, PostgresLeaderStore
from queuectl.db.tables import metadata
from queuectl.domain.errors import StoreError, UnusableSchema
from tests.support.postgres import TestPostgres

HEAD = "0118_pre"
REVISION = """
from alembic import op

revision = {revision!r}
down_revision = {down!r}


def upgrade() -> None:
    op.execute({statement!r})
"""


@pytest_asyncio.fixture
async def empty_url(postgres: TestPostgres) -> AsyncIterator[str]:
    name = await postgres.empty()
    yield postgres.server.url(name)
    await postgres.drop(name)


@pytest.fixture
def revisions(tmp_path: Path) -> Path:
    """The real revisions, followed by invented pre, post and pre revisions."""
    directory = tmp_path / "migrations"
    shutil.copytree(migrations_directory(), directory)
    down = HEAD
    for revision in ("9001_pre", "9002_post", "9003_pre"):
        add(directory, revision, down, f"CREATE TABLE made_by_{revision} ()")
        down = revision
    return directory


def add(directory: Path, revision: str, down: str, statement: str) -> None:
    text = REVISION.format(revision=revision, down=down, statement=statement)
    (directory / "versions" / f"{revision}_made_up.py").write_text(text)


async def test_an_empty_database_is_upgraded_to_the_newest_revision(empty_url: str):
    assert await current(empty_url) == SchemaState(None, HEAD)
    assert (await upgrade(empty_url)).up_to_date
    assert await current(empty_url) == SchemaState(HEAD, HEAD)
    assert (await upgrade(empty_url)).up_to_date


async def test_concurrent_upgrades_do_not_interfere(empty_url: str):
    states = await asyncio.gather(*(upgrade(empty_url) for _ in range(4)))
    assert states == [SchemaState(HEAD, HEAD)] * 4


async def test_tables_and_revisions_give_the_same_schema(database_url: str):
    def differences(connection: Connection) -> list[object]:
        options = {"compare_type": True, "compare_server_default": True}
        context = MigrationContext.configure(connection, opts=options)
        return list(compare_metadata(context, metadata))

    engine = make_engine(DatabaseSettings(database_url))
    async with engine.connect() as connection:
        assert await connection.run_sync(differences) == []
    await engine.dispose()


Columns = dict[tuple[str, str], tuple[str, bool, bool]]
"""By table and name: the type, whether it can be null, and whether the database gives it a value."""
BEFORE_THE_FIRST_RELEASE = frozenset({"0114_pre", "0115_pre", "0116_pre"})
"""Revisions that change what earlier commits used."""


def columns_of(connection: Connection) -> Columns:
    found = inspect(connection)
    return {
        (table, one["name"]): (
            str(one["type"]),
            one["nullable"],
            one["default"] is not None or bool(one.get("identity")),
        )
        for table in found.get_table_names()
        for one in found.get_columns(table)
    }


def incompatible(before: Columns, after: Columns) -> list[str]:
    """The columns that the release before a revision cannot use afterwards, or does not write."""
    tables = {table for table, _ in before}
    changed = [
        f"{'.'.join(key)}: {was} is {after.get(key)}"
        for key, was in before.items()
        if after.get(key, ("", False, False))[:2] not in (was[:2], (was[0], True))
    ]
    return changed + [
        f"{'.'.join(key)}: is new, and needs a value"
        for key, (_, nullable, given) in after.items()
        if key not in before and key[0] in tables and not nullable and not given
    ]


async def test_the_release_before_a_pre_revision_still_works(empty_url: str, tmp_path: Path):
    directory = tmp_path / "migrations"
    shutil.copytree(migrations_directory(), directory)
    files = sorted((directory / "versions").glob("*.py"))
    for file in files:
        file.rename(file.with_suffix(".later"))
    engine = make_engine(DatabaseSettings(empty_url))
    columns: list[Columns] = []
    for file in files:
        file.with_suffix(".later").rename(file)
        await upgrade(empty_url, directory=directory)
        async with engine.connect() as connection:
            columns.append(await connection.run_sync(columns_of))
    await engine.dispose()
    found = {
        file.name[:8]: problems
        for file, before, after in zip(files[1:], columns, columns[1:], strict=False)
        if file.name[5:8] == "pre" and (problems := incompatible(before, after))
    }
    assert found.keys() == BEFORE_THE_FIRST_RELEASE, found


async def test_the_pre_phase_stops_before_the_first_post_revision(empty_url: str, revisions: Path):
    await upgrade(empty_url)
    (revisions / "versions" / "9003_pre_made_up.py").unlink()
    assert (await upgrade(empty_url, pre_only=True, directory=revisions)).current == "9001_pre"
    assert (await upgrade(empty_url, pre_only=True, directory=revisions)).current == "9001_pre"
    assert (await upgrade(empty_url, directory=revisions)).current == "9002_post"
    assert (await upgrade(empty_url, pre_only=True, directory=revisions)).current == "9002_post"


async def test_an_empty_database_has_no_old_replicas(empty_url: str, revisions: Path):
    assert (await upgrade(empty_url, pre_only=True, directory=revisions)).up_to_date


async def test_the_post_phase_of_an_earlier_release_precedes_this_one(
    empty_url: str, revisions: Path
):
    await upgrade(empty_url)
    with pytest.raises(StoreError, match="lacks 9002_post, the second half of an earlier release"):
        await upgrade(empty_url, pre_only=True, directory=revisions)
    assert (await current(empty_url)).up_to_date
    await upgrade(empty_url, directory=revisions)
    assert (await upgrade(empty_url, pre_only=True, directory=revisions)).up_to_date


@pytest.mark.parametrize("release", ["queuectl", "queuectl 0.0.1"])
async def test_the_post_phase_waits_for_the_last_replica_of_another_release(
    empty_url: str, revisions: Path, release: str
):
    """Its sessions belong to no registered replica."""
    await upgrade(empty_url)
    old = await asyncpg.connect(empty_url, server_settings={"application_name": release})
    with pytest.raises(StoreError, match=rf"another release are connected \({release}\)"):
        await upgrade(empty_url, directory=revisions)
    assert (await current(empty_url)).up_to_date
    await old.close()
    await until_closed(empty_url, release)
    assert (await upgrade(empty_url, directory=revisions)).up_to_date


async def until_closed(url: str, name: str) -> None:
    """Wait until the server has noticed the end of a session."""
    looks = await asyncpg.connect(url)
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1"
    while await looks.fetchval(count, name):  # noqa: ASYNC110 - of another process
        await asyncio.sleep(0.01)
    await looks.close()


async def test_a_failing_revision_changes_nothing(empty_url: str, revisions: Path):
    add(revisions, "9004_pre", "9003_pre", "SELECT 1 / 0")
    with pytest.raises(StoreError, match="division by zero"):
        await upgrade(empty_url, directory=revisions)
    assert (await current(empty_url)).current is None


async def test_a_schema_of_a_newer_release_is_not_changed(empty_url: str, revisions: Path):
    """tests/db/test_replicas.py: after its post half, this release cannot use it."""
    await upgrade(empty_url)
    (revisions / "versions" / "9003_pre_made_up.py").unlink()
    await upgrade(empty_url, pre_only=True, directory=revisions)
    state = await upgrade(empty_url)
    assert state == SchemaState("9001_pre", HEAD, recognized=False)
    assert (await current(empty_url, directory=revisions)).current == "9001_pre"


NOTHING = "SELECT"
REQUIREMENT = (
    "CREATE TABLE schema_requirement (revision text); INSERT INTO schema_requirement VALUES ('')"
)


@pytest.fixture(
    params=[
        (["0017_pre"], NOTHING),
        (["0028_pre"], REQUIREMENT),
        (["4a1f0c2d9b7e"], NOTHING),
        (["4a1f0c2d9b7e", "8c3e5d6f7a90"], NOTHING),
    ],
    ids=["commit-without-replicas", "commit", "other-program", "other-program-with-two-heads"],
)
async def foreign(empty_url: str, request: pytest.FixtureRequest) -> tuple[str, list[str]]:
    """The URL and the revisions of a database that no release of queuectl has made."""
    found, further = request.param
    connection = await asyncpg.connect(empty_url)
    await connection.execute("CREATE TABLE alembic_version (version_num text PRIMARY KEY)")
    await connection.executemany(
        "INSERT INTO alembic_version VALUES ($1)", [(one,) for one in found]
    )
    await connection.execute(further)
    await connection.close()
    return empty_url, found


@pytest.mark.parametrize(
    "use",
    [
        current,
        upgrade,
        partial(upgrade, pre_only=True),
        lambda url: PostgresLeaderStore.connect(DatabaseSettings(url)),
        lambda url: PostgresApiStore.connect(DatabaseSettings(url)),
    ],
    ids=["current", "upgrade", "pre", "leader", "api"],
)
async def test_a_schema_that_no_release_has_made_is_refused_with_the_next_steps(
    foreign: tuple[str, list[str]], use: Callable[[str], Awaitable[object]]
):
    url, found = foreign
    with pytest.raises(UnusableSchema) as refused:
        await use(url)
    message = str(refused.value)
    assert message.startswith(
        f"the schema ({', '.join(found)}) belongs to an earlier commit of queuectl or to another program"
    )
    steps = ("Create a new database", "`queuectl config export`", "`queuectl recover`")
    assert all(step in message for step in steps)
    connection = await asyncpg.connect(url)
    rows = await connection.fetch("SELECT version_num FROM alembic_version ORDER BY 1")
    tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    await connection.close()
    assert [one for (one,) in rows] == found
    assert {name for (name,) in tables} <= {"alembic_version", "schema_requirement"}


async def test_the_controller_does_not_start_on_a_schema_that_no_release_has_made(
    foreign: tuple[str, list[str]], database_url: str
):
    """Nor if only the database of its API has such a schema."""
    url, _ = foreign
    for settings in (
        Settings(database_url=url),
        Settings(database_url=database_url, api_database_url=url),
    ):
        with pytest.raises(UnusableSchema, match="belongs to an earlier commit"):
            async with controller(settings):
                pass


@pytest.mark.parametrize("place", ["package/_migrations", "migrations"])
def test_revisions_are_found_in_a_wheel_and_in_a_checkout(tmp_path: Path, place: str):
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / "env.py").touch()
    assert migrations_directory(tmp_path / "package") == tmp_path / place


def test_an_installation_without_revisions_is_reported(tmp_path: Path):
    with pytest.raises(StoreError, match="incomplete"):
        migrations_directory(tmp_path / "package")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_a_start_that_waits_for_the_migration_of_another_process(
    database_url: str, number: signal.Signals
) -> None:
    program = "from queuectl.cli.main import run; run()"
    migrating = await asyncpg.connect(database_url)
    await migrating.execute(f"SELECT pg_advisory_lock({LOCK})")
    starting = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, "serve"),
        env={**os.environ, "QUEUECTL_DATABASE_URL": database_url},
        stderr=asyncio.subprocess.PIPE,
    )
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    try:
        async with asyncio.timeout(40):
            while not await migrating.fetchval(waiting):
                assert starting.returncode is None
                await asyncio.sleep(0.1)
            starting.send_signal(number)
            _, written = await starting.communicate()
        assert (starting.returncode, b"Traceback" in written) == (0, False)
        assert await migrating.fetchval(waiting) == 0
    finally:
        if starting.returncode is None:
            starting.kill()
        await migrating.close()
