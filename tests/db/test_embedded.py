"""The embedded server is private, ends with its owner, starts again after any failure, and affects no other program."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from queuectl.db import embedded
from queuectl.db.embedded import (
    EmbeddedFailed,
    EmbeddedServer,
    default_directory,
    find_binaries,
    provided,
)
from queuectl.domain.errors import BadInput
from tests.support.postgres import server_directory

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root needs another account")

OWNER = """
import asyncio, sys, time
from pathlib import Path
from queuectl.db.embedded import EmbeddedServer

async def main():
    server = EmbeddedServer(Path(sys.argv[1]), durable=False)
    await server.start()
    print(server.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.fixture
def directory() -> Iterator[Path]:
    with server_directory() as made:
        yield made


async def query(server: EmbeddedServer, statement: str) -> object:
    connection = await asyncpg.connect(server.url())
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


def gone(pid: int, within: float = 30.0) -> bool:
    deadline = time.monotonic() + within
    while Path(f"/proc/{pid}").exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def user_ids(pid: int) -> set[int]:
    """Real, effective, saved and file system user of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("Uid:"))
    return {int(uid) for uid in line.split()[1:]}


def owner_of(directory: Path) -> tuple[subprocess.Popen[str], int]:
    """Another process that owns a running server, and the pid of the server."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, directory], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    return owner, int(owner.stdout.readline())


async def test_it_listens_on_a_private_socket_only(directory: Path):
    async with EmbeddedServer(directory, durable=False) as server:
        assert await query(server, "SHOW listen_addresses") == ""
        assert await query(server, "SELECT current_database()") == "queuectl"
        assert server.data_directory.stat().st_mode & 0o077 == 0
        assert server.sockets.stat().st_mode & 0o077 == 0
        assert [entry.name for entry in server.sockets.iterdir() if entry.is_socket()] == [
            ".s.PGSQL.5432"
        ]


async def test_it_is_durable_by_default(directory: Path):
    async with EmbeddedServer(directory) as server:
        assert await query(server, "SHOW fsync") == "on"
        assert await query(server, "SHOW synchronous_commit") == "on"


@pytest.mark.parametrize("durable", [True, False])
async def test_a_durable_cluster_is_on_the_disk_before_its_first_start(
    directory: Path, durable: bool, monkeypatch: pytest.MonkeyPatch
):
    commands: list[tuple[str, ...]] = []

    def recorded(server: EmbeddedServer, program: Path, *arguments: str) -> subprocess.Popen[bytes]:
        commands.append((program.name, *arguments))
        return spawn(server, program, *arguments)

    spawn = EmbeddedServer._spawn
    monkeypatch.setattr(EmbeddedServer, "_spawn", recorded)
    async with EmbeddedServer(directory, durable=durable):
        [initdb] = [command for command in commands if command[0] == "initdb"]
    assert ("--no-sync" in initdb) is not durable


async def test_a_server_that_ends_before_it_is_stopped_does_not_fail_the_start(
    directory: Path, monkeypatch: pytest.MonkeyPatch
):
    sent = []

    def ended(pid: int, number: int) -> None:
        sent.append((pid, number))
        raise ProcessLookupError

    stopping = [4711, 4711, None]
    monkeypatch.setattr(
        "queuectl.db.embedded._running_postmaster", lambda _: stopping.pop(0) if stopping else None
    )
    monkeypatch.setattr("queuectl.db.embedded._until", not_at_once)
    monkeypatch.setattr("queuectl.db.embedded.os.kill", ended)
    await EmbeddedServer(directory, durable=False)._settle()
    assert sent == [(4711, signal.SIGINT)]


async def not_at_once(*_: object) -> bool:
    return False


@pytest.mark.parametrize("immediate", [False, True], ids=["stopped", "crashed"])
async def test_data_survive_a_stop(directory: Path, immediate: bool):
    server = EmbeddedServer(directory, durable=False)
    await server.start()
    await query(server, "CREATE TABLE kept AS SELECT 42 AS answer")
    await server.stop(immediate=immediate)
    assert server.pid is None
    await server.start()
    assert await query(server, "SELECT answer FROM kept") == 42
    await server.stop()


async def test_a_second_start_or_stop_has_no_effect(directory: Path):
    server = EmbeddedServer(directory, durable=False)
    await server.stop()
    await server.start()
    pid = server.pid
    await server.start()
    assert server.pid == pid
    await server.stop()
    await server.stop()
    assert not list(server.sockets.iterdir())


async def test_a_directory_has_one_owner_at_a_time(directory: Path):
    async with EmbeddedServer(directory, durable=False) as server:
        with pytest.raises(EmbeddedFailed, match=f"in use by process {os.getpid()}"):
            await EmbeddedServer(directory, durable=False).start()
        assert await query(server, "SELECT 1") == 1


async def test_it_ends_with_its_owner_and_starts_again_at_once(directory: Path):
    owner, pid = owner_of(directory)
    server = EmbeddedServer(directory, durable=False)
    with owner:
        with pytest.raises(EmbeddedFailed, match=f"in use by process {owner.pid}"):
            await server.start()
        owner.send_signal(signal.SIGKILL)
    await server.start()  # while the old one can still be shutting down
    assert gone(pid)
    assert await query(server, "SELECT 1") == 1
    await server.stop()


async def test_it_starts_again_after_a_kill_of_the_postmaster(directory: Path):
    server = EmbeddedServer(directory, durable=False)
    await server.start()
    await query(server, "CREATE TABLE kept AS SELECT 42 AS answer")
    client = await asyncpg.connect(server.url())
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    assert server.data_directory.joinpath("postmaster.pid").exists()
    await server.stop()
    await server.start()
    assert await query(server, "SELECT answer FROM kept") == 42
    client.terminate()
    await server.stop()


async def test_a_stale_pid_of_another_program_does_not_count_as_a_server(directory: Path):
    server = EmbeddedServer(directory, durable=False)
    await server.start()
    pid_file = server.data_directory / "postmaster.pid"
    lines = pid_file.read_text().splitlines()
    await server.stop(immediate=True)
    pid_file.write_text("\n".join([str(os.getpid()), *lines[1:]]))
    if os.geteuid() == 0:
        shutil.chown(pid_file, "nobody")
    await server.start()
    assert await query(server, "SELECT 1") == 1
    await server.stop()


async def test_an_interrupted_initialization_is_done_again(directory: Path):
    (directory / "data.new" / "half").mkdir(parents=True)
    async with EmbeddedServer(directory, durable=False) as server:
        assert await query(server, "SELECT 1") == 1
    assert not (directory / "data.new").exists()


async def test_a_path_too_long_for_a_socket_gets_a_short_one(directory: Path):
    async with EmbeddedServer(directory / ("deep" * 30), durable=False) as server:
        assert server.directory not in server.sockets.parents
        assert await query(server, "SELECT 1") == 1
    assert not server.sockets.exists()


async def test_a_socket_directory_of_another_account_is_refused(directory: Path):
    server = EmbeddedServer(directory / ("deep" * 30), durable=False)
    server.sockets.mkdir(mode=0o755)
    server.sockets.chmod(0o755)
    try:
        with pytest.raises(BadInput, match="not a private directory"):
            await server.start()
    finally:
        server.sockets.rmdir()


async def test_a_failed_start_quotes_the_log_and_leaves_nothing_running(directory: Path):
    server = EmbeddedServer(directory, durable=False, settings={"shared_buffers": "lots"})
    with pytest.raises(EmbeddedFailed, match="shared_buffers"):
        await server.start()
    assert server.pid is None
    async with EmbeddedServer(directory, durable=False):
        pass


async def test_the_log_of_a_server_that_runs_has_a_limit(
    directory: Path, monkeypatch: pytest.MonkeyPatch
):
    limit, words = 100_000, 60_000 * "x"
    monkeypatch.setattr(embedded, "_LOG_BYTES", limit)
    monkeypatch.setattr(embedded, "_LOG_SECONDS", 0.01)
    log = directory / "log"
    async with EmbeddedServer(directory, durable=False) as server:
        for number in range(5):
            with pytest.raises(asyncpg.PostgresError):
                await query(server, f"SELECT '{number} {words}'::int")
            async with asyncio.timeout(30):
                while log.stat().st_size > limit:  # noqa: ASYNC110 - another task changes it
                    await asyncio.sleep(0.01)
        assert "4 xx" in log.read_text() + log.with_suffix(".1").read_text()
    assert log.stat().st_size + log.with_suffix(".1").stat().st_size < 4 * limit


async def test_a_start_that_takes_too_long_fails(directory: Path):
    server = EmbeddedServer(directory, durable=False, timeout=0.0)
    with pytest.raises(EmbeddedFailed, match="not ready after 0 s"):
        await server.start()
    assert server.pid is None


async def test_a_cluster_of_another_major_version_is_refused(directory: Path):
    (directory / "data").mkdir()
    (directory / "data" / "PG_VERSION").write_text("13\n")
    with pytest.raises(BadInput, match="PostgreSQL 13 cluster"):
        await EmbeddedServer(directory).start()


@as_root
async def test_as_root_it_runs_as_an_unprivileged_account(directory: Path):
    async with EmbeddedServer(directory, durable=False) as server:
        assert server.pid is not None
        assert user_ids(server.pid) == {pwd.getpwnam("nobody").pw_uid}


@as_root
async def test_as_root_a_directory_that_the_unprivileged_account_cannot_enter_is_refused(
    directory: Path,
):
    closed = directory / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(BadInput, match="nobody"):
        await EmbeddedServer(closed / "pg", durable=False).start()
    assert closed.stat().st_mode & 0o777 == 0o700


def test_its_directory_follows_xdg(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(embedded, "reachable", lambda _: True)
    state = {"XDG_STATE_HOME": "/state"}
    assert default_directory(18, state) == Path("/state/queuectl/pg18")
    assert default_directory(18, {}) == Path.home() / ".local/state/queuectl/pg18"
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    with pytest.raises(BadInput, match="set XDG_STATE_HOME"):
        default_directory(18, {})


@as_root
def test_the_directory_for_root_is_accessible_to_the_unprivileged_account(directory: Path):
    closed = directory / "closed"
    closed.mkdir(mode=0o700)
    state = {"XDG_STATE_HOME": str(closed / "state")}
    assert default_directory(18, state) == Path("/var/lib/queuectl/pg18")


async def test_a_server_starts_only_without_a_url(directory: Path, monkeypatch: pytest.MonkeyPatch):
    async with provided("postgresql://db.example/q") as url:
        assert url == "postgresql://db.example/q"
    monkeypatch.setenv("XDG_STATE_HOME", str(directory))
    major = find_binaries().major
    async with provided(None) as url:
        assert f"{directory}/queuectl/pg{major}" in url
        connection = await asyncpg.connect(url)
        assert await connection.fetchval("SELECT 1") == 1
        await connection.close()


async def test_a_command_that_reads_creates_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(embedded, "default_directory", lambda _: tmp_path / "state")
    with pytest.raises(BadInput, match="set QUEUECTL_DATABASE_URL"):
        async with provided(None, existing=True):
            pass
    assert not (tmp_path / "state").exists()
    async with provided("postgresql://example", existing=True) as url:
        assert url == "postgresql://example"
