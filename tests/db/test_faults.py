"""The database is down, silent or slow, or an answer is lost: the store reports it, and works again afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from queuectl.db import embedded, engine
from queuectl.db.embedded import DATABASE, EmbeddedServer
from queuectl.db.engine import DatabaseSettings
from queuectl.db.migrate import upgrade
from queuectl.domain.errors import StaleSnapshot, StoreError, StoreUnavailable
from queuectl.domain.events import Admit
from tests.db.conformance import QUEUE, commit, loaded
from tests.db.histories import HERE, step, submitted
from tests.support.postgres import lock_waiters, patiently, server_directory
from tests.support.relay import LATE, LOST, SILENT, Fault, Request, postgres_relay
from tests.support.stores import PostgresStore


@pytest_asyncio.fixture
async def server() -> AsyncIterator[EmbeddedServer]:
    """A server for one test, which can damage it."""
    with server_directory() as directory:
        async with EmbeddedServer(directory, durable=False) as started:
            await upgrade(started.url())
            yield started


@asynccontextmanager
async def opened(settings: DatabaseSettings) -> AsyncIterator[PostgresStore]:
    store = await PostgresStore.connect(settings)
    try:
        yield store
    finally:
        await store.close()


def family(pid: int) -> list[int]:
    """The postmaster and all processes that it started."""
    pids = [pid]
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            pids.append(int(status.parent.name))
    return pids


@pytest.mark.parametrize("immediate", [False, True], ids=["shutdown", "crash"])
async def test_a_stop_during_commits_loses_no_confirmed_commit(
    server: EmbeddedServer, immediate: bool
):
    async with opened(DatabaseSettings(server.url())) as store:
        epoch = await store.take_over("test", 0)
        promised: set[str] = set()
        unknown: set[str] = set()
        enough = asyncio.Event()

        async def work(worker: int) -> None:
            for number in range(10_000):
                change = submitted(f"w{worker}-{number}")
                try:
                    await commit(store, epoch, change)
                except StoreUnavailable:
                    unknown.add(change.after.uid)
                    return
                promised.add(change.after.uid)
                if len(promised) == 40:
                    enough.set()

        workers = [asyncio.create_task(work(n)) for n in range(4)]
        await enough.wait()
        await server.stop(immediate=immediate)
        await asyncio.gather(*workers)
        with pytest.raises(StoreUnavailable):
            await store.load()
        await server.start()
        present = set(await loaded(store))
        assert promised <= present <= promised | unknown
        await commit(store, epoch, submitted("after"))


def of_commits(fault: Fault) -> Callable[[Request], Fault | None]:
    return lambda request: fault if request.does.startswith("COMMIT") else None


async def test_a_lost_answer_to_a_commit_is_unavailable_and_a_reload_shows_the_outcome(
    server: EmbeddedServer,
):
    async with (
        postgres_relay(server.sockets) as (relay, sockets),
        opened(DatabaseSettings(through(server, sockets))) as store,
    ):
        epoch = await store.take_over("test", 0)
        change = submitted("u1")
        relay.judge = of_commits(LOST)
        with pytest.raises(StoreUnavailable):
            await commit(store, epoch, change)
        relay.judge = lambda _: None
        assert await loaded(store) == {"u1": change.after}
        with pytest.raises(StaleSnapshot):
            await commit(store, epoch, change)


def through(server: EmbeddedServer, sockets: Path) -> str:
    """The server's URL through a relay."""
    return server.url().replace(str(server.sockets), str(sockets))


@pytest.mark.parametrize("fault", [LATE, SILENT], ids=["cut off", "timed out"])
async def test_an_abandoned_commit_can_succeed_later_and_a_new_epoch_waits_for_it(
    server: EmbeddedServer, fault: Fault, monkeypatch: pytest.MonkeyPatch
):
    # The server has no limit for idle transactions.
    monkeypatch.setattr(engine, "_limits", lambda _: {})
    async with (
        postgres_relay(server.sockets) as (relay, sockets),
        opened(DatabaseSettings(server.url())) as direct,
        opened(DatabaseSettings(through(server, sockets), answer_timeout=1.0)) as store,
    ):
        epoch = await direct.take_over("test", 0)
        await until_it_answers(store)
        change = submitted("u1")
        relay.judge = of_commits(fault)
        with pytest.raises(StoreUnavailable):
            await commit(store, epoch, change)
        relay.judge = lambda _: None
        assert await loaded(direct) == {}, "it has not arrived yet"
        await direct.take_over("test", 0)
        assert await loaded(direct) == {"u1": change.after}


async def test_a_frozen_server_is_unavailable_within_the_answer_timeout(server: EmbeddedServer):
    settings = DatabaseSettings(server.url(), connect_timeout=0.5, answer_timeout=1.0)
    async with opened(settings) as store, opened(DatabaseSettings(server.url())) as direct:
        epoch = await direct.take_over("test", 0)
        await until_it_answers(store)
        assert server.pid is not None
        frozen = family(server.pid)
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        try:
            for attempt in (commit(store, epoch, submitted("u1")), store.load(), store.load()):
                with pytest.raises(StoreUnavailable):
                    await attempt
        finally:
            for pid in frozen:
                os.kill(pid, signal.SIGCONT)
        await until_it_answers(store)
        await commit(store, epoch, submitted("u2"))
        await until_it_answers(store)
        assert "u2" in await loaded(store)


async def until_it_answers(store: PostgresStore) -> None:
    """Read the ledger within the answer timeout. On a busy machine, the first statements can take longer."""
    async with asyncio.timeout(60.0):
        await patiently(store.load)


async def test_a_store_on_a_frozen_server_can_be_closed(server: EmbeddedServer):
    store = await PostgresStore.connect(DatabaseSettings(server.url()))
    assert server.pid is not None
    frozen = family(server.pid)
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        await store.close()
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)


async def test_a_held_lock_makes_a_commit_unavailable_after_a_time_out(server: EmbeddedServer):
    async with opened(DatabaseSettings(server.url(), lock_timeout=0.2)) as store:
        epoch = await store.take_over("test", 0)
        other = await asyncpg.connect(server.url())
        async with other.transaction():
            await other.execute("SELECT epoch FROM leadership FOR UPDATE")
            with pytest.raises(StoreUnavailable, match="lock"):
                await commit(store, epoch, submitted("u1"))
        await other.close()
        await commit(store, epoch, submitted("u1"))


async def test_a_canceled_commit_gives_its_connection_back(server: EmbeddedServer):
    async with opened(DatabaseSettings(server.url(), pool_size=1)) as store:
        epoch = await store.take_over("test", 0)
        other = await asyncpg.connect(server.url())
        async with other.transaction():
            await other.execute("SELECT epoch FROM leadership FOR UPDATE")
            pending = asyncio.create_task(commit(store, epoch, submitted("u1")))
            await asyncio.sleep(0.1)
            pending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await pending
        await other.close()
        await commit(store, epoch, submitted("u1"))


def take_over(store: PostgresStore) -> Awaitable[int]:
    return store.take_over("new", 0)


def change_quota(store: PostgresStore) -> Awaitable[int]:
    return store.put_config(QUEUE)


def wait_for_commits(store: PostgresStore) -> Awaitable[None]:
    return store.commits_ended(epoch=1)


@pytest.mark.parametrize("other", [take_over, change_quota, wait_for_commits])
async def test_a_write_that_would_make_a_commit_stale_waits_for_the_commit_in_flight(
    store: PostgresStore, database_url: str, other: Callable[[PostgresStore], Awaitable[object]]
):
    epoch = await store.take_over("old", 0)
    change = submitted("u1")
    await commit(store, epoch, change)
    held = await asyncpg.connect(database_url)
    async with held.transaction():
        # The commit has passed its checks and waits for this row, so the test decides how long it is in flight.
        await held.execute("SELECT uid FROM workloads FOR UPDATE")
        admitted = step(change.after, Admit(HERE))
        inflight = asyncio.create_task(commit(store, epoch, admitted, revision=0))
        await until_waiting(held, 1)
        late = asyncio.ensure_future(other(store))
        await until_waiting(held, 2)
        assert not late.done()
    await inflight
    await late
    await held.close()
    assert await loaded(store) == {"u1": admitted.after}


async def test_history_becomes_visible_in_the_order_of_its_ids(
    store: PostgresStore, database_url: str
):
    epoch = await store.take_over("test", 0)
    first = submitted("u1")
    await commit(store, epoch, first)
    held = await asyncpg.connect(database_url)
    async with held.transaction():
        await held.execute("SELECT uid FROM workloads FOR UPDATE")
        slow = asyncio.create_task(commit(store, epoch, step(first.after, Admit(HERE))))
        await until_waiting(held, 1)
        quick = asyncio.create_task(commit(store, epoch, submitted("u2")))
        await until_waiting(held, 2)  # it must not overtake, though it writes no row of the other
    await asyncio.gather(slow, quick)
    await held.close()
    assert [line.uid for line in await store.history(None)] == ["u1", "u1", "u2"]


async def until_waiting(connection: asyncpg.Connection, number: int) -> None:
    """Wait until this many sessions of the database wait for a lock."""
    for _ in range(500):
        if await lock_waiters(connection) >= number:
            return
        await connection.execute("SELECT pg_stat_clear_snapshot(), pg_sleep(0.01)")
    raise AssertionError(f"never {number} sessions waiting for a lock")


async def test_waiting_for_configuration_survives_a_restart_of_the_database(server: EmbeddedServer):
    async with opened(DatabaseSettings(server.url())) as store:
        changed = patiently(lambda: store.config_changed(0, poll=3600))
        waiter = asyncio.create_task(changed)
        await asyncio.sleep(0.2)
        await server.stop()
        await server.start()
        async with opened(DatabaseSettings(server.url())) as api:
            version = await api.put_config(QUEUE)
            assert await waiter == version


async def test_idle_connections_that_were_cut_are_replaced_without_an_error(
    server: EmbeddedServer,
):
    async with opened(DatabaseSettings(server.url())) as store:
        epoch = await store.take_over("test", 0)
        await server.stop()
        await server.start()
        await asyncio.sleep(1.1)  # longer than a connection is used without a test
        await commit(store, epoch, submitted("u1"))
        assert await loaded(store)


async def test_connections_to_a_server_that_refuses_writes_are_replaced(server: EmbeddedServer):
    admin = await asyncpg.connect(server.url("postgres"))
    database = f"ALTER DATABASE {DATABASE}"
    await admin.execute(f"{database} SET default_transaction_read_only = on")
    async with opened(DatabaseSettings(server.url())) as store:
        with pytest.raises(StoreUnavailable, match="read-only"):
            await store.take_over("test", 0)
        await admin.execute(f"{database} RESET default_transaction_read_only")  # of new sessions
        assert await store.take_over("test", 0)
    await admin.close()


async def test_a_server_that_became_a_standby_is_not_used_until_it_is_promoted(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
):
    """It would answer all reads with old data."""
    status = embedded._status

    def ready(*server: Any) -> str:
        return status(*server).replace("standby", "ready")

    monkeypatch.setattr(embedded, "_status", ready)
    async with opened(DatabaseSettings(server.url())) as store:
        await store.take_over("test", 0)
        await server.stop()
        (server.data_directory / "standby.signal").touch()
        await server.start()
        await asyncio.sleep(1.1)  # longer than a connection is used without a test
        for read in (store.now, store.load, store.now):
            with pytest.raises(StoreUnavailable, match="cannot use a standby"):
                await read()
        admin = await asyncpg.connect(server.url())
        assert await admin.fetchval("SELECT pg_promote()")
        await admin.close()
        assert await store.take_over("test", 0)


@pytest.mark.parametrize(
    "statement",
    ["UPDATE history SET event = 'x'", "DELETE FROM history", "TRUNCATE history"],
)
async def test_history_cannot_be_changed_even_by_the_owner(
    store: PostgresStore, database_url: str, statement: str
):
    epoch = await store.take_over("test", 0)
    await commit(store, epoch, submitted("u1"))
    connection = await asyncpg.connect(database_url)
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="append-only"):
        await connection.execute(statement)
    await connection.close()
    assert len(await store.history("u1")) == 1


async def test_a_value_that_no_column_can_hold_is_an_error_and_not_an_outage(store: PostgresStore):
    epoch = await store.take_over("test", 0)
    with pytest.raises(StoreError) as refused:
        await commit(store, epoch, submitted("u\x00"))
    assert not isinstance(refused.value, StoreUnavailable)
    assert DATABASE not in str(refused.value)
