"""``queuectl db`` as users and init containers run it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio
from typer.testing import CliRunner

from queuectl.cli.db import app
from queuectl.db import embedded
from queuectl.distribution import version as own_version
from tests.db.test_migrate import HEAD
from tests.support.cli import queuectl_with
from tests.support.postgres import TestPostgres, server_directory


@pytest_asyncio.fixture
async def empty_url(postgres: TestPostgres) -> AsyncIterator[str]:
    name = await postgres.empty()
    yield postgres.server.url(name)
    await postgres.drop(name)


def run(*arguments: str, **environ: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments, env={"QUEUECTL_DATABASE_URL": None, **environ})
    return result.exit_code, result.output.strip()


def test_an_old_schema_sets_the_exit_status_and_is_upgraded(empty_url: str):
    assert run("current", "--database-url", empty_url) == (1, f"empty: older than {HEAD}")
    assert run("upgrade", QUEUECTL_DATABASE_URL=empty_url) == (0, f"{HEAD}: up to date")
    assert run("current", QUEUECTL_DATABASE_URL=empty_url) == (0, f"{HEAD}: up to date")


def test_the_status_lists_the_replicas(empty_url: str):
    environ = {"QUEUECTL_DATABASE_URL": empty_url}
    unregistered = "no replica is registered"
    assert run("status", **environ) == (1, f"schema empty: older than {HEAD}\n{unregistered}")
    run("upgrade", **environ)
    assert run("status", **environ) == (0, f"schema {HEAD}: up to date\n{unregistered}")
    asyncio.run(register(empty_url))
    code, output = run("status", **environ)
    rows = [line.split() for line in output.splitlines()[1:]]
    version = own_version()
    assert code == 0
    assert rows == [
        ["REPLICA", "VERSION", "SCHEMA", "ROLE", "HEARTBEAT"],
        ["a", version, HEAD, "leader", "0s", "ago"],
        ["b", version, HEAD, "standby", "5s", "ago"],
        ["c", "0.0.1", "0000_pre", "-", "90s", "ago,", "expired"],
    ]


async def register(url: str) -> None:
    """Three replicas, as they have written their last heartbeats."""
    now = "extract(epoch FROM clock_timestamp())"
    version = own_version()
    connection = await asyncpg.connect(url)
    await connection.execute(
        f"INSERT INTO replicas SELECT name, release, revision, 0, {now} - age FROM (VALUES"
        f" ('a', '{version}', '{HEAD}', 0), ('b', '{version}', '{HEAD}', 5), ('c', '0.0.1', '0000_pre', 90)"
        ") AS given (name, release, revision, age)"
    )
    await connection.execute("UPDATE leadership SET holder = 'a'")
    await connection.close()


@pytest.mark.parametrize("command", ["upgrade", "upgrade --pre", "current", "status"])
def test_a_schema_of_another_program_is_refused_in_one_line(empty_url: str, command: str):
    statement = "CREATE TABLE alembic_version AS SELECT '4a1f0c2d9b7e' AS version_num"
    asyncio.run(execute(empty_url, statement))
    code, output = run(*command.split(), QUEUECTL_DATABASE_URL=empty_url)
    assert code == 1
    assert output.startswith("error: the schema (4a1f0c2d9b7e) belongs to an earlier commit")
    assert len(output.splitlines()) == 1


async def execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(statement)
    await connection.close()


@pytest.mark.parametrize(
    "words",
    [
        "db upgrade --dry-run",
        "db move --to postgresql://u@127.0.0.1:1/x --dry-run",
        "db move --to postgresql://u@127.0.0.1:1/x",
        "db status",
        "recover -f docs/examples/queues.yaml --dry-run",
        "recover -f docs/examples/queues.yaml",
    ],
)
def test_a_command_that_needs_a_database_creates_none(
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setattr(embedded, "default_directory", lambda _: tmp_path / "state")
    monkeypatch.delenv("QUEUECTL_DATABASE_URL", raising=False)
    result = queuectl_with(monkeypatch, capsys, *words.split())
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: no database is given, and ")
    assert not (tmp_path / "state").exists()


def test_the_pre_phase_can_be_run_alone(empty_url: str):
    assert run("upgrade", "--pre", QUEUECTL_DATABASE_URL=empty_url)[0] == 0


@pytest.mark.parametrize(
    ("url", "status", "message"),
    [
        ("mysql://host/db", 2, "only postgresql:// is supported"),
        ("postgresql://u@/d?host=/nowhere/at/all", 1, "reading the schema"),
    ],
)
def test_an_error_has_one_line(url: str, status: int, message: str):
    code, output = run("current", QUEUECTL_DATABASE_URL=url)
    assert code == status
    assert message in output
    assert len(output.splitlines()) == 1


def test_without_a_url_the_embedded_database_is_used():
    with server_directory() as directory:
        environ = {"XDG_STATE_HOME": str(directory)}
        assert run("upgrade", **environ) == (0, f"{HEAD}: up to date")
        assert run("current", **environ) == (0, f"{HEAD}: up to date")
        (cluster,) = Path(directory, "queuectl").iterdir()
        assert not (cluster / "data" / "postmaster.pid").exists()


def test_its_help_loads_no_database_library():
    code = (
        "import sys, queuectl.cli.db; print('sqlalchemy' in sys.modules, 'asyncpg' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["False"] * 2
