"""A post revision is applied only when no registered replica needs what it removes, and an older release does not start after it."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import asyncpg
import pytest

from queuectl.control.leader.schedule import supervised
from queuectl.control.progress import SteadyClock
from queuectl.db import replicas
from queuectl.db.connections import Connections
from queuectl.db.engine import DatabaseSettings
from queuectl.db.migrate import current, known_revisions, planned, upgrade
from queuectl.db.replicas import Registration
from queuectl.domain.containment import Containment
from queuectl.domain.errors import StoreError, StoreUnavailable, UnusableSchema
from tests.db.test_migrate import HEAD, add, revisions
from tests.support.postgres import LOCK_WAITERS
from tests.support.stores import PostgresStore

__all__ = ["revisions"]

OLD: Final = known_revisions()
SOON: Final = 0.3

RUN = """
import asyncio, sys
from queuectl.db.engine import DatabaseSettings
from queuectl.db.store import PostgresLeaderStore

async def main():
    store = await PostgresLeaderStore.connect(DatabaseSettings(sys.argv[1]))
    registration = store.registration("killed")
    async with registration.registered():
        print("registered", flush=True)
        await registration.keep()

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "GRACE_SECONDS", SOON)


@pytest.fixture
def url(database_url: str) -> str:
    """A database with the schema of the current release, which is the earlier one here."""
    return database_url


@asynccontextmanager
async def replica(
    url: str, name: str = "old", known: tuple[str, ...] = OLD
) -> AsyncIterator[Registration]:
    connections = Connections(DatabaseSettings(url, lock_timeout=20.0))
    registration = Registration(connections.transaction, name, known)
    try:
        async with registration.registered():
            yield registration
    finally:
        await connections.close()


async def execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(statement)
    await connection.close()


async def silent(url: str, seconds: float) -> None:
    """Let the last heartbeat of all replicas be earlier."""
    await execute(url, f"UPDATE replicas SET seen_at = seen_at - {seconds}")


async def until(connection: asyncpg.Connection, count: str) -> None:
    """Wait until a query returns a number above zero."""
    while not await connection.fetchval(count):  # noqa: ASYNC110 - of another process
        await asyncio.sleep(0.01)


async def applied(url: str, directory: Path) -> str | None:
    return (await current(url, directory=directory)).current


@pytest.mark.parametrize(
    ("newest", "silent_seconds", "refused"),
    [
        (HEAD, 0, True),
        (HEAD, replicas.EXPIRY_SECONDS - 10, True),
        (HEAD, replicas.EXPIRY_SECONDS + 1, False),
        ("9001_pre", 0, True),  # it knows the first half of the change only
        ("9002_post", 0, False),
        ("9003_pre", 0, False),
        ("other", 0, True),  # a release of another branch
    ],
)
async def test_a_post_revision_waits_for_replicas_that_do_not_know_it(
    url: str, revisions: Path, newest: str, silent_seconds: float, refused: bool
):
    async with replica(url, known=(*OLD, newest)):
        await silent(url, silent_seconds)
        if not refused:
            assert (await upgrade(url, directory=revisions)).up_to_date
            return
        with pytest.raises(StoreError, match="9002_post removes what replicas of an earlier"):
            await upgrade(url, directory=revisions)
        assert await applied(url, revisions) == HEAD


async def test_a_dry_run_waits_for_a_heartbeat_as_long_as_an_upgrade(
    url: str, revisions: Path, monkeypatch: pytest.MonkeyPatch
):
    """A replica that was killed is registered until another one starts a day later."""
    monkeypatch.setattr(replicas, "GRACE_SECONDS", 1.5)
    hasty = classmethod(lambda cls, url: cls(url, statement_timeout=1.0))
    monkeypatch.setattr(DatabaseSettings, "from_environment", hasty)
    async with replica(url):
        await silent(url, replicas.EXPIRY_SECONDS + 1)
        assert await planned(url, directory=revisions) == ("9001_pre", "9002_post", "9003_pre")


async def test_the_refusal_names_each_replica_and_the_next_step(url: str, revisions: Path):
    async with replica(url, "queuectl-a"), replica(url, "queuectl-b"):
        with pytest.raises(StoreError) as refused:
            await upgrade(url, directory=revisions)
    text = str(refused.value)
    named = rf"(queuectl-[ab]) \(version \S+, schema {HEAD}, last heartbeat \d+ s ago\)"
    assert re.findall(named, text) == ["queuectl-a", "queuectl-b"]
    assert "run `queuectl db upgrade` again" in text
    assert "counts for 60 s after its last heartbeat" in text


async def test_the_pre_half_runs_alongside_replicas_of_the_earlier_release(
    url: str, revisions: Path
):
    (revisions / "versions" / "9003_pre_made_up.py").unlink()
    async with replica(url):
        state = await upgrade(url, pre_only=True, directory=revisions)
    assert state.current == "9001_pre"


async def test_a_replica_that_ends_in_order_is_forgotten_at_once(url: str, revisions: Path):
    async with replica(url):
        assert [one.name for one in (await current(url)).replicas] == ["old"]
    assert (await current(url)).replicas == ()
    assert (await upgrade(url, directory=revisions)).up_to_date


async def test_a_heartbeat_during_the_upgrade_counts(url: str, revisions: Path):
    """After an outage of the database, all registrations have expired although the replicas run."""
    async with replica(url) as old:
        await silent(url, 3600)
        upgrading = asyncio.create_task(upgrade(url, directory=revisions))
        await asyncio.sleep(SOON / 3)
        await old.beat()
        with pytest.raises(StoreError, match="last heartbeat"):
            await upgrading
    assert await applied(url, revisions) == HEAD


async def test_a_killed_replica_counts_until_it_expires(url: str, revisions: Path):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", RUN, url, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"registered\n"
    process.kill()
    await process.communicate()
    with pytest.raises(StoreError, match="killed"):
        await upgrade(url, directory=revisions)
    await silent(url, replicas.EXPIRY_SECONDS + 1)
    assert (await upgrade(url, directory=revisions)).up_to_date


async def test_an_upgrade_that_is_killed_changes_nothing(url: str, revisions: Path):
    """The next replica of the earlier release starts: the requirement was not recorded either."""
    add(revisions, "9004_post", "9003_pre", "SELECT pg_sleep(60)")
    upgrading = asyncio.create_task(upgrade(url, directory=revisions))
    looks = await asyncpg.connect(url)
    asleep = "FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
    await until(looks, f"SELECT count(*) {asleep}")
    starting = asyncio.create_task(started(url))
    await until(looks, LOCK_WAITERS)
    await looks.execute(f"SELECT pg_terminate_backend(pid) {asleep}")
    await looks.close()
    with pytest.raises(StoreUnavailable):
        await upgrading
    assert await starting == ["old"]
    assert await applied(url, revisions) == HEAD


async def started(url: str) -> list[str]:
    """The registered replicas after one of the earlier release has started."""
    async with replica(url):
        return [one.name for one in (await current(url)).replicas]


async def test_a_replica_that_starts_during_the_upgrade_waits_and_is_refused(
    url: str, revisions: Path
):
    add(revisions, "9004_post", "9003_pre", "SELECT pg_sleep(0.5)")
    upgrading = asyncio.create_task(upgrade(url, directory=revisions))
    looks = await asyncpg.connect(url)
    await until(looks, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
    await looks.close()
    with pytest.raises(StoreError, match="the schema has 9004_post, the second half"):
        async with replica(url):
            pass
    assert (await upgrading).replicas == ()


async def test_an_earlier_release_does_not_start_after_the_post_half(url: str, revisions: Path):
    await upgrade(url, directory=revisions)
    with pytest.raises(StoreError, match="run the newer release, or restore a backup"):
        async with replica(url):
            pass
    for pre_only in (True, False):
        with pytest.raises(StoreError, match="has 9002_post"):
            await upgrade(url, pre_only=pre_only)
    with pytest.raises(StoreError, match="has 9002_post"):
        await current(url)
    async with replica(url, known=known_revisions(revisions)):
        found = (await current(url, directory=revisions)).replicas
        assert [one.revision for one in found] == ["9003_pre"]


async def test_an_earlier_release_starts_again_before_the_post_half(url: str, revisions: Path):
    """A rollback."""
    (revisions / "versions" / "9003_pre_made_up.py").unlink()
    await upgrade(url, pre_only=True, directory=revisions)
    assert not (await upgrade(url, pre_only=True)).recognized
    async with replica(url):
        assert len((await current(url)).replicas) == 1


async def test_a_replica_that_was_frozen_during_the_post_half_ends(
    url: str, revisions: Path, monkeypatch: pytest.MonkeyPatch
):
    """The error is not contained, so it ends `queuectl serve`."""
    monkeypatch.setattr(replicas, "HEARTBEAT_SECONDS", 0.01)
    async with replica(url) as old:
        await silent(url, replicas.EXPIRY_SECONDS + 1)
        await upgrade(url, directory=revisions)
        async with asyncio.timeout(20):
            with pytest.raises(UnusableSchema, match="cannot use it"):
                await supervised("registration", old.keep, Containment(SteadyClock()))
    assert (await current(url, directory=revisions)).replicas == ()


async def test_a_release_without_registration_does_not_connect_after_the_post_half(
    url: str, revisions: Path
):
    """For example `queuectl recover` of the earlier release."""
    await upgrade(url, directory=revisions)
    with pytest.raises(StoreError, match="the schema has 9002_post, the second half"):
        await PostgresStore.connect(DatabaseSettings(url))


async def test_a_restarted_replica_replaces_its_registration(url: str):
    async with replica(url, "pod") as first, replica(url, "pod", (*OLD, "9001_pre")):
        await first._leave()  # the late end of the first process
        assert [one.revision for one in (await current(url)).replicas] == ["9001_pre"]


async def test_a_deleted_registration_is_written_again_by_the_next_heartbeat(url: str):
    async with replica(url) as one:
        await execute(url, "DELETE FROM replicas")
        await one.beat()
        assert len((await current(url)).replicas) == 1


async def test_registrations_of_past_days_are_deleted_by_the_next_start(url: str):
    async with replica(url, "lost"):
        await silent(url, 90000)
        async with replica(url, "new"):
            assert [one.name for one in (await current(url)).replicas] == ["new"]


async def test_heartbeats_do_not_wait_for_a_long_pre_revision(url: str, revisions: Path):
    """Otherwise the replicas of the earlier release would expire in the meantime, and a post revision would follow."""
    async with replica(url) as old:
        holder = await asyncpg.connect(url)
        await holder.execute("BEGIN")
        await holder.execute(f"SELECT pg_advisory_xact_lock({replicas.LOCK})")
        async with asyncio.timeout(5):
            await old.beat()
        await holder.execute("ROLLBACK")
        await holder.close()


async def test_the_leader_is_shown(url: str):
    async with replica(url, "a"), replica(url, "b"):
        await execute(url, "UPDATE leadership SET holder = 'b'")
        assert [(one.name, one.leads) for one in (await current(url)).replicas] == [
            ("a", False),
            ("b", True),
        ]


async def test_a_lost_database_does_not_end_the_heartbeats(
    url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(replicas, "HEARTBEAT_SECONDS", 0.01)
    answers: list[None] = []
    async with replica(url) as one:
        keeping = asyncio.create_task(one.keep(lambda: answers.append(None)))
        for _ in range(3):
            await execute(
                url,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()",
            )
            await asyncio.sleep(0.05)
        assert not keeping.done()
        await silent(url, 30)
        await asyncio.sleep(0.1)
        assert (await current(url)).replicas[0].age < 5
        assert len(answers) > 1
        keeping.cancel()
