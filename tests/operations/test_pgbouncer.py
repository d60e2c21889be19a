"""queuectl works through PgBouncer in session mode and in transaction mode, and refuses settings that do not fit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import asyncpg
import pytest
import pytest_asyncio
from sqlalchemy import text

from queuectl.db.connections import Connections
from queuectl.db.engine import DatabaseSettings, Pooling
from queuectl.db.migrate import current, known_revisions, upgrade
from queuectl.db.replicas import Registration
from queuectl.domain.errors import BadInput, StoreError, StoreUnavailable
from tests.db.conformance import OpenStore, StoreConformance
from tests.operations.pgbouncer import PgBouncer, needs_pgbouncer, pgbouncer
from tests.support.postgres import TestPostgres, database_url, postgres
from tests.support.stores import PostgresStore

__all__ = ["database_url", "postgres"]

pytestmark = [pytest.mark.operations, needs_pgbouncer]

SESSION, TRANSACTION = Pooling.SESSION, Pooling.TRANSACTION
BACKEND = text("SELECT pg_backend_pid()")


@asynccontextmanager
async def stores(settings: DatabaseSettings) -> AsyncIterator[OpenStore]:
    opened: list[PostgresStore] = []

    async def open_one() -> PostgresStore:
        opened.append(await PostgresStore.connect(settings))
        return opened[-1]

    yield open_one
    for one in opened:
        await one.close()


@pytest.fixture
def in_transactions(postgres: TestPostgres) -> Iterator[PgBouncer]:
    with pgbouncer(postgres.server, "transaction") as running:
        yield running


@pytest.fixture
def in_sessions(postgres: TestPostgres) -> Iterator[PgBouncer]:
    with pgbouncer(postgres.server, "session", pool_size=40) as running:
        yield running


class TestTransactionModeWithDirectConnections(StoreConformance):
    """Three connections of the server for all clients. LISTEN uses its own connections."""

    @pytest_asyncio.fixture
    async def open_store(
        self, in_transactions: PgBouncer, database_url: str
    ) -> AsyncIterator[OpenStore]:
        url, direct = in_transactions.through(database_url), DatabaseSettings(database_url)
        async with stores(DatabaseSettings(url, pooling=TRANSACTION, direct=direct)) as opened:
            yield opened


class TestTransactionMode(StoreConformance):
    """Without LISTEN, a change is read at the next poll."""

    POLL = 0.05

    @pytest_asyncio.fixture
    async def open_store(
        self, in_transactions: PgBouncer, database_url: str
    ) -> AsyncIterator[OpenStore]:
        url = in_transactions.through(database_url)
        async with stores(DatabaseSettings(url, pooling=TRANSACTION)) as opened:
            yield opened

    async def test_a_waiter_is_notified_of_a_change_by_another_process(self, open_store: OpenStore):
        store, api = await open_store(), await open_store()
        version = await api.put_config({"kind": "Topology", "metadata": {"name": "t"}})
        assert await store.config_changed(0, poll=0.01) == version


class TestSessionMode(StoreConformance):
    @pytest_asyncio.fixture
    async def open_store(
        self, in_sessions: PgBouncer, database_url: str
    ) -> AsyncIterator[OpenStore]:
        url = in_sessions.through(database_url)
        async with stores(DatabaseSettings(url, pooling=SESSION)) as opened:
            yield opened


NAMED = "set QUEUECTL_DATABASE_PGBOUNCER to its pool mode, session or transaction"


@pytest.mark.parametrize(
    ("mode", "ignores", "pooling", "direct", "message"),
    [
        ("session", False, None, False, NAMED),
        ("transaction", False, None, False, NAMED),
        ("session", True, None, False, f"leads to a connection pooler: {NAMED}"),
        ("transaction", True, None, False, f"leads to a connection pooler: {NAMED}"),
        ("transaction", False, SESSION, False, "gives one connection of the server to several"),
        ("statement", False, TRANSACTION, False, "transaction blocks not allowed"),
        ("transaction", False, TRANSACTION, True, "DIRECT_URL leads to a connection pooler"),
    ],
)
async def test_settings_that_do_not_fit_are_refused(
    postgres: TestPostgres,
    database_url: str,
    mode: str,
    ignores: bool,
    pooling: Pooling | None,
    direct: bool,
    message: str,
):
    with pgbouncer(postgres.server, mode, ignores=ignores) as running:
        url = running.through(database_url)
        other = DatabaseSettings(url) if direct else None
        with pytest.raises((BadInput, StoreError)) as refused:
            await PostgresStore.connect(DatabaseSettings(url, pooling=pooling, direct=other))
        assert message in str(refused.value)


@pytest.mark.parametrize("mode", ["session", "transaction"])
async def test_the_schema_is_upgraded_by_several_programs_at_once(
    postgres: TestPostgres, mode: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("QUEUECTL_DATABASE_PGBOUNCER", mode)
    name = await postgres.empty()
    with pgbouncer(postgres.server, mode, pool_size=8) as running:
        url = running.through(postgres.server.url(name))
        states = await asyncio.gather(*(upgrade(url) for _ in range(4)))
        assert all(state.up_to_date for state in states)
    await postgres.drop(name)


async def test_limits_hold_in_each_transaction_and_in_no_other(
    in_transactions: PgBouncer, database_url: str
):
    url = in_transactions.through(database_url)
    limits = text("SELECT current_setting('lock_timeout'), current_setting('statement_timeout')")
    ours = Connections(DatabaseSettings(url, pooling=TRANSACTION, lock_timeout=3.0))
    for use in (ours.transaction, ours.snapshot, ours.statement):
        async with use("reading limits") as connection:
            assert tuple((await connection.execute(limits)).one()) == ("3s", "10s")
    await ours.close()
    other = await asyncpg.connect(url, statement_cache_size=0)
    async with other.transaction():
        assert tuple(await other.fetchrow(str(limits))) == ("0", "0")
    await other.close()


async def test_no_prepared_statement_stays_on_a_connection_of_the_server(
    in_transactions: PgBouncer, database_url: str
):
    settings = DatabaseSettings(in_transactions.through(database_url), pooling=TRANSACTION)
    one, two = [await PostgresStore.connect(settings) for _ in range(2)]
    for _ in range(20):
        await asyncio.gather(one.load(), two.load(), one.now(), two.configuration())
    statements = text("SELECT count(*) FROM pg_prepared_statements WHERE name <> ''")
    for _ in range(5):
        async with one.connections.transaction("counting") as connection:
            assert await connection.scalar(statements) == 0
    for each in (one, two):
        await each.close()


async def test_transactions_use_other_connections_of_the_server(
    in_transactions: PgBouncer, database_url: str
):
    """The test of transaction mode is one: a client does not keep its connection of the server."""
    settings = DatabaseSettings(in_transactions.through(database_url), pooling=TRANSACTION)
    ours, others = Connections(settings), Connections(settings)
    used = set()
    for _ in range(2):
        for one, two in ((ours, others), (others, ours)):
            async with one.transaction("one") as first, two.transaction("two") as second:
                backends = [await each.scalar(BACKEND) for each in (first, second)]
                used.add(backends[0])
    assert len(used) == 1, "each first transaction gets the same connection"
    for each in (ours, others):
        await each.close()


async def test_a_lost_pgbouncer_is_an_outage_that_ends(postgres: TestPostgres, database_url: str):
    with pgbouncer(postgres.server, "transaction") as running:
        store = await PostgresStore.connect(
            DatabaseSettings(running.through(database_url), pooling=TRANSACTION, answer_timeout=2)
        )
        await store.now()
        running.kill()
        with pytest.raises(StoreUnavailable):
            await store.now()
    await store.close()


@pytest.mark.parametrize("mode", [SESSION, TRANSACTION])
async def test_replicas_are_registered_and_seen_through_pgbouncer(
    postgres: TestPostgres, database_url: str, mode: Pooling, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("QUEUECTL_DATABASE_PGBOUNCER", mode)
    with pgbouncer(postgres.server, mode, pool_size=8) as running:
        url = running.through(database_url)
        connections = Connections(DatabaseSettings(url, pooling=mode))
        registration = Registration(connections.transaction, "one", known_revisions())
        async with registration.registered():
            await registration.beat()
            assert [one.name for one in (await current(url)).replicas] == ["one"]
        assert (await current(url)).replicas == ()
        await connections.close()
