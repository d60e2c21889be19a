"""Sessions and the audit log: the real stores and their doubles fulfill the same contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from queuectl.db.audit import listing
from queuectl.db.engine import DatabaseSettings, make_engine
from queuectl.db.ports import Commit
from queuectl.domain.audit import AuditFilter, AuditLine, RequestOutcome
from queuectl.domain.identity import Caller, Session
from tests.api.support import LOCAL_QUEUE, job, live_through
from tests.db.test_plans import plan
from tests.doubles.store import MemoryStore
from tests.support.postgres import TestPostgres
from tests.support.stores import PostgresStore

AnyStore = MemoryStore | PostgresStore

ALICE = Caller("alice", ("dev", "ops"), "uid-1", {"scopes": ("a", "b"), "none": ()})
SESSION = Session(ALICE, 100.0, 200.0)
LINE = AuditLine(0, 5.0, "r-1", "alice", ("dev",), "PUT", "/api/v1/cohorts/all")


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
    await any_store.sessions.open("key", SESSION)
    assert await any_store.sessions.find("key", 150.0) == SESSION
    assert await any_store.sessions.find("another", 150.0) is None


async def test_an_expired_session_is_not_found(any_store: AnyStore) -> None:
    await any_store.sessions.open("key", SESSION)
    assert await any_store.sessions.find("key", 199.9) is not None
    assert await any_store.sessions.find("key", 200.0) is None


async def test_a_closed_session_is_deleted_and_closing_it_again_has_no_effect(
    any_store: AnyStore,
) -> None:
    await any_store.sessions.open("key", SESSION)
    await any_store.sessions.open("other", SESSION)
    for _ in range(2):
        await any_store.sessions.close("key")
    assert await any_store.sessions.find("key", 150.0) is None
    assert await any_store.sessions.find("other", 150.0) == SESSION


async def test_opening_a_session_deletes_expired_ones(any_store: AnyStore) -> None:
    await any_store.sessions.open("old", SESSION)
    await any_store.sessions.open("new", replace(SESSION, since=200.0, until=300.0))
    assert await any_store.sessions.find("old", 0.0) is None  # not even if clocks are set back


# ---- the audit log


async def lines(any_store: AnyStore, **wanted: object) -> list[AuditLine]:
    return list(await any_store.audit.lines(AuditFilter(**wanted), 100))  # type: ignore[arg-type]  # a table


async def test_a_line_is_written_first_and_completed_by_its_outcome(
    any_store: AnyStore,
) -> None:
    number = await any_store.audit.begin(LINE)
    assert await lines(any_store) == [replace(LINE, id=number)]
    await any_store.audit.end(number, RequestOutcome("putCohort", 201, "created"))
    done = replace(LINE, id=number, operation="putCohort", status=201, detail="created")
    assert await lines(any_store) == [done]


async def test_lines_are_listed_newest_first_in_pages(any_store: AnyStore) -> None:
    numbers = [await any_store.audit.begin(replace(LINE, at=float(n))) for n in range(5)]
    assert numbers == sorted(numbers)
    first = await any_store.audit.lines(AuditFilter(), 2)
    assert [line.id for line in first] == [numbers[4], numbers[3]]
    rest = await any_store.audit.lines(AuditFilter(before=first[-1].id), 100)
    assert [line.id for line in rest] == numbers[2::-1]


async def test_lines_are_found_by_caller_path_and_time(any_store: AnyStore) -> None:
    written = [
        replace(LINE, at=1.0, caller="alice", path="/api/v1/cohorts/a_b"),
        replace(LINE, at=2.0, caller="bob", path="/api/v1/cohorts/axb"),
        replace(LINE, at=3.0, caller="bob", path="/api/v1/workloads/x/hold"),
    ]
    for line in written:
        await any_store.audit.begin(line)
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


async def test_old_lines_are_deleted(any_store: AnyStore) -> None:
    for at in (1.0, 2.0, 3.0):
        await any_store.audit.begin(replace(LINE, at=at))
    assert await any_store.audit.prune(2.0) == 1
    assert await any_store.audit.prune(2.0) == 0
    assert [line.at for line in await lines(any_store)] == [3.0, 2.0]


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
