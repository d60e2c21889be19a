"""Frequent statements use their indexes, on tables where a scan would be slow."""

from __future__ import annotations

from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import ClauseElement, select
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.compiler import SQLCompiler

from queuectl.db import commands, decisions, reads, rows, search
from queuectl.db.bulk import arrays, update_rows
from queuectl.db.engine import DatabaseSettings, make_engine
from queuectl.db.ports import Commit
from queuectl.db.prune import kept_enough
from queuectl.db.reports import started
from queuectl.db.tables import workloads
from queuectl.db.usage import runs_before
from queuectl.domain.commands import CommandFilter
from queuectl.domain.events import Admit
from queuectl.domain.ledger import State
from queuectl.domain.queries import BY_NAME, MOST_URGENT_FIRST, PagePosition, WorkloadFilter
from queuectl.domain.rules import Retention
from queuectl.domain.search import SearchText
from queuectl.domain.selectors import label_selector
from queuectl.domain.usage_reports import Period
from tests.db.histories import HERE, step, submitted
from tests.support.postgres import TestPostgres
from tests.support.stores import PostgresStore

FILL = """
INSERT INTO workloads (
    uid, version, kind, namespace, name, state, queue, cluster_queue, priority, gpu_parts, pods, attempt, queued_at, since,
    finished_at, failures, evictions, preempted_at, budget, excluded, reason_code, reason_message, reason_details,
    past_seconds, gates, "user"
)
SELECT 'u' || n, 1, 'Job', 'team-' || n % 50, 'job-' || n, CASE WHEN n % 100 = 0 THEN 'Pending' ELSE 'Finished' END,
       'q', 'cq-' || n % 20, 0, 8, 1, 1, n, n, CASE WHEN n % 100 = 0 THEN NULL ELSE n END, 0, 0, '[]', 0, '[]',
       'Queued', '', '{}', 0, '[]', ''
FROM generate_series(1, 20000) n
"""
FILL_LABELS = (
    "UPDATE workloads SET labels = jsonb_build_object('run', 'run-' || queued_at::int % 1000)"
)
FILL_USERS = "UPDATE workloads SET \"user\" = 'user-' || queued_at::int % 100"
FILL_HISTORY = """
INSERT INTO history (uid, kind, namespace, name, at, epoch, cycle, attempt, event, to_state, code, message, details)
SELECT 'u' || n % 5000, 'Job', 'team-' || n % 50, 'n', n, 1, 1, 1, 'Queued',
       CASE WHEN n % 40 = 0 THEN 'Evicting' ELSE 'Pending' END, 'Queued', '', '{}'
FROM generate_series(1, 20000) n
"""
FILL_SUBJECTS = """
INSERT INTO usage_subjects
SELECT gen_random_uuid(), 'u' || n, 'Job', 'n', 'n', 'q', 'cq', '', '', '{}' FROM generate_series(1, 20000) n
"""
FILL_DECISIONS = """
INSERT INTO decisions (at, epoch, cycle, revision, history_after, history_upto, counts, reasons, proof, seconds, stats)
SELECT n, 1, n, 1, n, n, '{}', '{}', 'optimal', 0.1, '{}'
FROM generate_series(1, 20000) n
"""
FILL_COMMANDS = """
INSERT INTO commands (uid, action, by, request_id, at, why, admin)
SELECT 'u' || n % 5000, 'hold', 'somebody', 'r' || n, n, '', false FROM generate_series(1, 20000) n
"""
AFTER = PagePosition(BY_NAME, ("team-7", "job-1057", "u1057"))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def filled_url(postgres: TestPostgres):
    fills = (
        FILL,
        FILL_USERS,
        FILL_LABELS,
        FILL_HISTORY,
        FILL_DECISIONS,
        FILL_SUBJECTS,
        FILL_COMMANDS,
    )
    async with postgres.filled(*fills) as url:
        yield url


@pytest_asyncio.fixture
async def connection(filled_url: str):
    engine = make_engine(DatabaseSettings(filled_url))
    async with engine.connect() as opened:
        yield opened
    await engine.dispose()


async def plan(
    connection: AsyncConnection, statement: ClauseElement, given: dict[str, Any] | None = None
) -> str:
    compiled = statement.compile(
        dialect=connection.dialect, compile_kwargs={"render_postcompile": True}
    )
    assert isinstance(compiled, SQLCompiler)
    values = {**compiled.params, **(given or {})}
    parameters = tuple(values[name] for name in compiled.positiontup or ())
    lines = await connection.exec_driver_sql(f"EXPLAIN {compiled}", parameters)
    return "\n".join(lines.scalars())


def page(after: PagePosition | None = None, **wanted: Any) -> ClauseElement:
    return reads.listing(WorkloadFilter(**wanted), after, 101)


def urgent(urgency: int, after: tuple[float, str, str, str] | None = None) -> ClauseElement:
    return reads.urgent(WorkloadFilter(), urgency, after, 101, MOST_URGENT_FIRST)


@pytest.mark.parametrize(
    ("statement", "index"),
    [
        (reads.LIVE, "workloads_live_idx"),
        (page(), "workloads_listing_idx"),
        (page(AFTER), "workloads_listing_idx"),
        (page(namespace="team-7"), "workloads_listing_idx"),
        (
            page(AFTER, namespace="team-7", states=frozenset({State.FINISHED})),
            "workloads_listing_idx",
        ),
        (reads.live_users(None, 200), "workloads_live_idx"),
        (urgent(3), "workloads_newest_idx"),
        (urgent(2, (900.0, "team-7", "job-1057", "u1057")), "workloads_newest_idx"),
        (urgent(0), "workloads_finished_idx"),
        (urgent(0, (900.0, "team-7", "job-1057", "u1057")), "workloads_finished_idx"),
        (page(cluster_queue="cq-7"), "workloads_cluster_queue_idx"),
        (page(user="user-7"), "workloads_user_idx"),
        (page(labels=label_selector("run=run-7")), "workloads_labels_idx"),
        (page(AFTER, labels=label_selector("run in (run-7,run-8)")), "workloads_labels_idx"),
        (page(AFTER, user="user-7"), "workloads_user_idx"),
        (page(AFTER, cluster_queue="cq-7"), "workloads_cluster_queue_idx"),
        (select(workloads).where(workloads.c.uid == "u5"), "workloads_pkey"),
        (reads.named("Job", "team-7", "job-57"), "workloads_listing_idx"),
        (reads.all_named("team-7", "job-57"), "workloads_listing_idx"),
        (reads.history_after("u7", 100, 100), "history_uid_id_idx"),
        (reads.history_before_end("u7", 100), "history_uid_id_idx"),
        (reads.history_after(None, 19000, 100), "history_pkey"),
        (decisions.page(None, 100), "decisions_pkey"),
        (commands.listing(CommandFilter(), 100), "commands_pkey"),
        (commands.listing(CommandFilter(by="somebody", before=9000), 100), "commands_pkey"),
        (decisions.page(19000, 100), "decisions_pkey"),
        (reads.moves_since(86_400.0), "history_moves_idx"),
        (reads.evicting(None, None, 100), "history_evictions_idx"),
        (reads.evicting(None, 5000, 100), "history_evictions_idx"),
        (reads.evicting({"team-10", "team-20"}, 5000, 100), "history_evictions_idx"),
        (kept_enough(Retention(after_finished=0.0), 1.0), "workloads_finished_idx"),
        (kept_enough(Retention(0.0, 0.0), 1.0), "workloads_finished_idx"),
        (runs_before(100), "workloads_finished_idx"),
        (started(Period(0, 3600), "u5", 101), "workloads_pkey"),
        (search.by_trigrams(SearchText("job-1234"), None, 50), "workloads_search_idx"),
        (
            search.by_trigrams(SearchText("7/job-123"), frozenset({"team-7"}), 50),
            "workloads_search_idx",
        ),
        (search.among_newest(SearchText("job"), None, 50), "workloads_finished_idx"),
        (search.exactly(SearchText("team-7/job-57"), None, 50), "workloads_listing_idx"),
        (search.exactly(SearchText("u1234567"), None, 50), "workloads_pkey"),
    ],
)
async def test_reads_use_their_index(
    connection: AsyncConnection, statement: ClauseElement, index: str
):
    lines = await plan(connection, statement)
    assert index in lines
    assert "Seq Scan" not in lines


async def test_namespaces_are_listed_without_reading_all_workloads(
    connection: AsyncConnection,
):
    lines = await plan(connection, reads.known_namespaces())
    assert "workloads_listing_idx" in lines
    assert "Seq Scan on workloads" not in lines


async def test_a_queue_is_counted_without_reading_finished_workloads(
    connection: AsyncConnection,
):
    lines = await plan(connection, reads.lines(["u1", "u2"]))
    assert "Seq Scan" not in lines


@pytest.mark.parametrize(
    "statement",
    [
        page(),
        page(AFTER),
        page(cluster_queue="cq-7"),
        urgent(3),
        urgent(2, (19_900.0, "team-7", "job-19907", "u19907")),
        reads.history_after(None, 5000, 100),
        reads.evicting(None, 5000, 100),
    ],
)
async def test_a_page_of_many_rows_is_read_in_order_without_sorting_the_rest(
    connection: AsyncConnection, statement: ClauseElement
):
    assert "Sort" not in await plan(connection, statement)


async def test_an_update_of_some_rows_finds_them_by_key(connection: AsyncConnection):
    columns = [c for c in rows.UPDATED_COLUMNS if c.name in ("uid", "version", "state")]
    key, version = workloads.c.uid, workloads.c.version
    statement = update_rows(workloads, columns, key=key, over=version, was="was")
    given = arrays(columns, [{"uid": f"u{n}", "version": 2, "state": "Pending"} for n in range(50)])
    lines = await plan(connection, statement, {**given, "all_was": [1] * 50})
    assert "workloads_pkey" in lines
    assert "Seq Scan" not in lines


async def test_a_change_of_state_updates_no_index(postgres: TestPostgres, database_url: str):
    store = await PostgresStore.connect(DatabaseSettings(database_url))
    epoch = await store.take_over("test", 0)
    new = [submitted(f"u{n}") for n in range(5)]
    admitted = [step(change.after, Admit(HERE)) for change in new]
    for changes in (new, admitted):
        await store.commit(Commit(changes), epoch=epoch, cycle=1)
    await store.close()  # a session reports its counts at its end
    counts = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'workloads'"
    for _ in range(500):
        ((updated, heap_only),) = await postgres.execute(
            counts, database_url.split("?", maxsplit=1)[0].rsplit("/", maxsplit=1)[-1]
        )
        if updated:
            break
    assert (updated, heap_only) == (5, 5)
