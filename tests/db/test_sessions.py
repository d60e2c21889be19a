"""Sessions and the audit log: the real stores and their doubles fulfill the same contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from sqlalchemy import select

from queuectl.db.audit import listing, outdated
from queuectl.db.engine import DatabaseSettings, make_engine
from queuectl.db.ports import Commit, ConfigurationBatch
from queuectl.db.tables import sessions
from queuectl.domain.audit import AuditFilter, AuditLine, RequestOutcome
from queuectl.domain.identity import Caller
from tests.api.support import LOCAL_QUEUE, job, live_through
from tests.db.test_plans import plan
from tests.doubles.store import MemoryStore
from tests.support.postgres import TestPostgres
from tests.support.stores import PostgresStore

AnyStore = MemoryStore | PostgresStore

ALICE = Caller("alice", ("dev", "ops"), "uid-1", {"scopes": ("a", "b"), "none": ()})
LONG = 3600.0
"""Seconds that no test takes."""
LINE = AuditLine(0, 0.0, "r-1", "alice", ("dev",), "PUT", "/api/v1/cohorts/all")


@pytest.fixture(params=["memory", "postgres"])
def location(request: pytest.FixtureRequest) -> str | None:
    """URL of a fresh database; None = in memory."""
    return request.getfixturevalue("database_url") if request.param == "postgres" else None


@pytest.fixture
async def any_store(location: str | None) -> AsyncIterator[AnyStore]:
    made: AnyStore = MemoryStore()
    if location is not None:
        made = await PostgresStore.connect(DatabaseSettings(location))
    yield made
    await made.close()


# ---- sessions


async def test_a_session_is_read_as_it_was_opened(any_store: AnyStore) -> None:
    opened = await any_store.sessions.open("key", ALICE, LONG, None)
    assert opened.caller == ALICE
    assert await any_store.sessions.find("key") == opened
    assert await any_store.sessions.find("another") is None


async def test_a_session_begins_and_ends_by_the_clock_of_the_database(any_store: AnyStore) -> None:
    before = await any_store.now()
    opened = await any_store.sessions.open("key", ALICE, LONG, None)
    assert before <= opened.since <= await any_store.now()
    assert opened.until - opened.since == pytest.approx(LONG, abs=60.0)


async def test_a_session_ends_with_the_token_of_its_caller(any_store: AnyStore) -> None:
    now = await any_store.now()
    short = await any_store.sessions.open("short", ALICE, LONG, now + 60.0)
    assert short.until == now + 60.0
    long = await any_store.sessions.open("long", ALICE, LONG, now + 10 * LONG)
    assert long.until - long.since == pytest.approx(LONG, abs=60.0)


async def test_an_expired_session_is_not_found(any_store: AnyStore) -> None:
    await any_store.sessions.open("key", ALICE, 0.0, None)
    await any_store.sessions.open("token", ALICE, LONG, await any_store.now())
    assert await any_store.sessions.find("key") is None
    assert await any_store.sessions.find("token") is None


async def test_a_closed_session_is_deleted_and_closing_it_again_has_no_effect(
    any_store: AnyStore,
) -> None:
    await any_store.sessions.open("key", ALICE, LONG, None)
    other = await any_store.sessions.open("other", ALICE, LONG, None)
    for _ in range(2):
        await any_store.sessions.close("key")
    assert await any_store.sessions.find("key") is None
    assert await any_store.sessions.find("other") == other


async def test_opening_a_session_deletes_expired_ones_alone(
    any_store: AnyStore, location: str | None
) -> None:
    await any_store.sessions.open("old", ALICE, 0.0, None)
    await any_store.sessions.open("valid", ALICE, LONG, None)
    await any_store.sessions.open("new", ALICE, LONG, None)
    assert await stored(any_store, location) == {"valid", "new"}


async def stored(any_store: AnyStore, location: str | None) -> set[str]:
    """The keys of all sessions, expired or not."""
    if location is None:
        return set(any_store.database.sessions)  # type: ignore[union-attr]  # it is in memory
    engine = make_engine(DatabaseSettings(location))
    async with engine.connect() as connection:
        keys = set(await connection.scalars(select(sessions.c.key)))
    await engine.dispose()
    return keys


# ---- the audit log


async def lines(any_store: AnyStore, **wanted: object) -> list[AuditLine]:
    return list(await any_store.audit.lines(AuditFilter(**wanted), 100))  # type: ignore[arg-type]  # a table


async def written(any_store: AnyStore, *of_leader: AuditLine) -> None:
    """Write lines with their times, as a leader does."""
    epoch = await any_store.take_over("test", 0)
    begun, _ = await any_store.configuration()
    batch = ConfigurationBatch(begun, (), (), of_leader)
    await any_store.write_configuration(batch, epoch=epoch)


async def test_a_line_is_written_first_and_completed_by_its_outcome(
    any_store: AnyStore,
) -> None:
    number = await any_store.audit.begin(LINE)
    [begun] = await lines(any_store)
    assert begun == replace(LINE, id=number, at=begun.at)
    await any_store.audit.end(number, RequestOutcome("putCohort", 201, "created"))
    done = replace(begun, operation="putCohort", status=201, detail="created")
    assert await lines(any_store) == [done]


async def test_a_line_has_the_time_of_the_database(any_store: AnyStore) -> None:
    before = await any_store.now()
    await any_store.audit.begin(replace(LINE, at=before + 10 * LONG))
    [line] = await lines(any_store)
    assert before <= line.at <= await any_store.now()


async def test_lines_are_listed_newest_first_in_pages(any_store: AnyStore) -> None:
    numbers = [await any_store.audit.begin(LINE) for _ in range(5)]
    assert numbers == sorted(numbers)
    first = await any_store.audit.lines(AuditFilter(), 2)
    assert [line.id for line in first] == [numbers[4], numbers[3]]
    rest = await any_store.audit.lines(AuditFilter(before=first[-1].id), 100)
    assert [line.id for line in rest] == numbers[2::-1]


async def test_lines_are_found_by_caller_path_and_time(any_store: AnyStore) -> None:
    await written(
        any_store,
        replace(LINE, at=1.0, caller="alice", path="/api/v1/cohorts/a_b"),
        replace(LINE, at=2.0, caller="bob", path="/api/v1/cohorts/axb"),
        replace(LINE, at=3.0, caller="bob", path="/api/v1/workloads/x/hold"),
    )
    assert [line.at for line in await lines(any_store, caller="bob")] == [3.0, 2.0]
    assert [line.at for line in await lines(any_store, caller="bo")] == []
    assert [line.at for line in await lines(any_store, path="/api/v1/cohorts")] == [2.0, 1.0]
    assert [line.at for line in await lines(any_store, path="/api/v1/cohorts/a_")] == [1.0]
    assert [line.at for line in await lines(any_store, path="%")] == []
    assert [line.at for line in await lines(any_store, since=2.0)] == [3.0, 2.0]
    assert [line.at for line in await lines(any_store, since=2.0, caller="alice")] == []


async def test_text_that_no_database_can_hold_does_not_stop_a_line(any_store: AnyStore) -> None:
    number = await any_store.audit.begin(replace(LINE, path="/a\x00b", caller="c\x00d"))
    await any_store.audit.end(number, RequestOutcome("", 404, "no \x00"))
    [line] = await lines(any_store)
    assert "\x00" not in line.path + line.caller + line.detail


async def test_old_lines_are_deleted_by_the_clock_of_the_database(any_store: AnyStore) -> None:
    now = await any_store.now()
    ages = (3 * LONG, LONG, 0.0)
    await written(any_store, *(replace(LINE, at=now - age) for age in ages))
    assert await any_store.audit.prune(2 * LONG) == 1
    assert await any_store.audit.prune(2 * LONG) == 0
    assert [line.at for line in await lines(any_store)] == [now, now - LONG]


async def test_a_page_of_the_log_is_read_by_an_index(
    postgres: TestPostgres,
) -> None:
    async with postgres.filled(FILL) as url:
        engine = make_engine(DatabaseSettings(url))
        async with engine.connect() as connection:
            for wanted in (AuditFilter(), AuditFilter(caller="user-7", before=15_000)):
                lines = await plan(connection, listing(wanted, 100))
                assert "Index" in lines
                assert "Seq Scan" not in lines
        await engine.dispose()


async def test_only_the_old_lines_are_read_to_delete_them(postgres: TestPostgres) -> None:
    async with postgres.filled(FILL) as url:
        engine = make_engine(DatabaseSettings(url))
        async with engine.connect() as connection:
            assert "Index Cond" in await plan(connection, outdated(LONG))
        await engine.dispose()


FILL = """
INSERT INTO audit (at, request_id, caller, groups, method, path, operation, status, detail)
SELECT n, n::text, 'user-' || n % 100, '[]', 'PUT', '/api/v1/cohorts/all', '', 200, ''
FROM generate_series(1, 20000) n
"""


# ---- namespaces


async def test_namespaces_are_those_of_queues_and_of_workloads(any_store: AnyStore) -> None:
    assert await any_store.namespaces() == frozenset()
    await any_store.put_config({**LOCAL_QUEUE, "metadata": {"name": "q", "namespace": "queues"}})
    await any_store.put_config({"kind": "Topology", "metadata": {"name": "t"}})
    epoch = await any_store.take_over("test", 0)
    for change in live_through(job("a", namespace="works")):
        await any_store.commit(Commit([change]), epoch=epoch, cycle=1)
    assert await any_store.namespaces() == {"queues", "works"}
