"""Old hours of the usage ledger are deleted in batches, and no other rows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
import pytest_asyncio
from sqlalchemy.ext.asyncio import AsyncConnection

from queuectl.control.leader.periodic import RowUpkeep
from queuectl.db import prune as pruning
from queuectl.db.engine import DatabaseSettings, make_engine
from queuectl.db.tables import usage_hours
from queuectl.domain.accounting import HOUR, Accounting, AccountingTerms
from queuectl.domain.errors import Fenced, StoreError
from queuectl.domain.estimates import DAY
from queuectl.domain.folding import Fold
from queuectl.domain.rules import Rules
from queuectl.domain.usage_reports import Grouping, Period, Report
from tests.db.test_plans import plan
from tests.support.postgres import TestPostgres
from tests.support.stores import PostgresStore

CUTOFF = 100 * HOUR
LEDGER = """
INSERT INTO usage_subjects
SELECT md5(uid)::uuid, uid, 'Job', 'team', uid, 'q', 'cq', '', '', '{}'
FROM unnest(ARRAY['ended', 'goes-on', 'waits', 'noted', 'young']) uid;
INSERT INTO usage_hours
SELECT 3600 * h, md5(uid)::uuid, 'h100', '', 100, 50, 10, 0, 5, 0, 0, 2, 0
FROM (VALUES ('ended', 90, 95), ('goes-on', 95, 104), ('waits', 97, 97), ('noted', 98, 98), ('young', 100, 103))
     life(uid, first, last), generate_series(first, last) h;
INSERT INTO usage_losses
SELECT 3600 * h, md5('goes-on')::uuid, 'h100', 'Preempted', 7, 1 FROM generate_series(97, 102) h;
INSERT INTO usage_fleet SELECT 3600 * h, 'h100', 3600, 64, 8, 4, 2, 0 FROM generate_series(90, 104) h;
INSERT INTO usage_containers SELECT uid, 0, 0, 0, 0, 0, 0, 0 FROM unnest(ARRAY['ended', 'waits', 'young']) uid;
INSERT INTO usage_curves SELECT uid, 0, 60, '' FROM unnest(ARRAY['ended', 'waits', 'young']) uid;
INSERT INTO usage_meters VALUES ('waits', '{}');
INSERT INTO usage_marks (uid, mark) VALUES ('noted', '[]');
"""


@pytest_asyncio.fixture
async def ledger(store: PostgresStore, database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A ledger with workloads that ended before the cut-off, span it, and began after it."""
    connection = await asyncpg.connect(database_url)
    await connection.execute(LEDGER)
    yield connection
    await connection.close()


async def report(store: PostgresStore, first: int, last: int) -> Report:
    return await store.usage.report(Period(first * HOUR, last * HOUR), Grouping.parse("workload"))


async def subjects(ledger: asyncpg.Connection) -> set[str]:
    return {row["uid"] for row in await ledger.fetch("SELECT uid FROM usage_subjects")}


async def test_hours_before_the_cut_off_are_deleted_and_the_others_are_unchanged(
    store: PostgresStore, ledger: asyncpg.Connection
) -> None:
    epoch = await store.take_over("test", 0)
    after = await report(store, 100, 110)
    assert after.rows
    assert after.rows[0].losses
    assert await store.usage.prune(CUTOFF, epoch=epoch) == (6 + 5 + 1 + 1) + 3 + 10
    assert await store.usage.prune(CUTOFF, epoch=epoch) == 0
    before = await report(store, 0, 100)
    assert (before.rows, before.fleet) == ((), ())
    assert await report(store, 100, 110) == after


async def test_a_workload_without_hours_is_forgotten_unless_it_can_get_more(
    store: PostgresStore, ledger: asyncpg.Connection
) -> None:
    epoch = await store.take_over("test", 0)
    await store.usage.prune(CUTOFF, epoch=epoch)
    assert await subjects(ledger) == {"goes-on", "waits", "noted", "young"}
    for table in ("usage_containers", "usage_curves"):
        kept = await ledger.fetch(f"SELECT uid FROM {table} ORDER BY uid")
        assert [row["uid"] for row in kept] == ["waits", "young"]


async def test_a_workload_that_ends_after_its_hours_were_deleted_is_forgotten(
    store: PostgresStore, ledger: asyncpg.Connection
) -> None:
    """The name of its user is kept no longer than the hours."""
    epoch = await store.take_over("test", 0)
    await store.usage.prune(CUTOFF, epoch=epoch)
    fold = Fold(CUTOFF, CUTOFF, AccountingTerms())
    fold.meters = dict.fromkeys(("waits", "goes-on"))
    await store.usage.keep(fold, over=None, until=CUTOFF, marks=(), epoch=epoch, free={})
    assert await subjects(ledger) == {"goes-on", "noted", "young"}
    assert await ledger.fetchval("SELECT array_agg(uid) FROM usage_curves") == ["young"]


async def test_a_batch_deletes_the_oldest_rows_up_to_its_limit(
    store: PostgresStore, ledger: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "USAGE_BATCH", 4)
    epoch = await store.take_over("test", 0)
    deleted = []
    while number := await store.usage.prune(CUTOFF, epoch=epoch):
        deleted.append(number)
        if len(deleted) == 1:
            assert await ledger.fetchval("SELECT min(hour) FROM usage_hours") == 94 * HOUR
            assert "ended" in await subjects(ledger)
    assert deleted == [4 + 3 + 4, 4 + 4, 4 + 2, 1]
    assert await ledger.fetchval("SELECT min(hour) FROM usage_hours") == CUTOFF


async def test_a_process_that_does_not_lead_deletes_nothing(
    store: PostgresStore, ledger: asyncpg.Connection
) -> None:
    epoch = await store.take_over("test", 0)
    with pytest.raises(Fenced):
        await store.usage.prune(CUTOFF, epoch=epoch + 1)
    assert await ledger.fetchval("SELECT min(hour) FROM usage_hours") == 90 * HOUR


async def until_deleted(upkeep: RowUpkeep, ledger: asyncpg.Connection) -> None:
    """Run the deletion until no hour before the cut-off is left."""
    running = asyncio.create_task(upkeep.delete())
    try:
        async with asyncio.timeout(30):
            # Postgres does not notify of the deletion: the test polls the table.
            while await ledger.fetchval("SELECT min(hour) FROM usage_hours") != CUTOFF:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        running.cancel()


async def test_the_leader_keeps_the_days_of_the_retention_rules(
    store: PostgresStore, ledger: asyncpg.Connection
) -> None:
    epoch = await store.take_over("test", 0)
    rules = Rules(accounting=Accounting(keep_days=3))
    upkeep = RowUpkeep(store, lambda: rules, lambda: CUTOFF + 3 * DAY, epoch)
    await until_deleted(upkeep, ledger)
    assert await ledger.fetchval("SELECT count(*) FROM usage_hours") == 5 + 4


async def test_nothing_is_deleted_or_added_up_while_the_configuration_cannot_be_read() -> None:
    """It states how long rows are kept."""
    no_store: Any = object()
    upkeep = RowUpkeep(no_store, lambda: None, lambda: CUTOFF, 1)
    for task in (upkeep.delete, upkeep.add_up):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(task(), 0.05)


class FailingSums:
    """The store of a leader, with a usage ledger of which no day can be added up."""

    def __init__(self, store: Any) -> None:
        self._store = store

    @property
    def usage(self) -> FailingSums:
        return FailingSums(self._store.usage)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def add_up(self, now: float, since: float, *, epoch: int) -> bool:
        raise StoreError("adding up a day of usage: out of range")


async def test_a_day_that_cannot_be_added_up_does_not_stop_the_deletion(
    store: PostgresStore, ledger: asyncpg.Connection
) -> None:
    epoch = await store.take_over("test", 0)
    rules = Rules(accounting=Accounting(keep_days=3))
    failing: Any = FailingSums(store)
    upkeep = RowUpkeep(failing, lambda: rules, lambda: CUTOFF + 3 * DAY, epoch)
    with pytest.raises(StoreError, match="out of range"):
        await upkeep.add_up()
    await until_deleted(upkeep, ledger)


# -- on a large ledger ------------------------------------------------------------------------------------------------

FILL_SUBJECTS = """
INSERT INTO usage_subjects
SELECT md5(n::text)::uuid, 'u' || n, 'Job', 'team', 'job-' || n, 'q', 'cq', '', '', '{}'
FROM generate_series(1, 20000) n
"""
FILL_HOURS = """
INSERT INTO usage_hours
SELECT 3600 * h, md5((h * 10 + n)::text)::uuid, 'h100', '', 1, 0, 0, 0, 1, 0, 0, 0, 1
FROM generate_series(1, 1900) h, generate_series(1, 100) n
"""
FILL_METERS = "INSERT INTO usage_meters SELECT 'u' || n, '{}' FROM generate_series(1, 5000) n"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def filled_url(postgres: TestPostgres) -> AsyncIterator[str]:
    async with postgres.filled(FILL_SUBJECTS, FILL_HOURS, FILL_METERS) as url:
        yield url


@pytest_asyncio.fixture
async def connection(filled_url: str) -> AsyncIterator[AsyncConnection]:
    engine = make_engine(DatabaseSettings(filled_url))
    async with engine.connect() as opened:
        yield opened
    await engine.dispose()


async def test_a_batch_does_not_read_the_whole_ledger(connection: AsyncConnection) -> None:
    lines = await plan(connection, pruning.older(usage_hours, 50 * HOUR))
    assert "usage_hours_pkey" in lines
    assert "Tid Scan on usage_hours" in lines
    assert "Seq Scan on usage_hours" not in lines
    found = await connection.exec_driver_sql("SELECT id FROM usage_subjects LIMIT 200")
    lines = await plan(connection, pruning.without_hours(list(found.scalars())))
    assert "usage_hours_subject_idx" in lines
    assert "Seq Scan on usage_hours" not in lines
