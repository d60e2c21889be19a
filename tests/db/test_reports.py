"""A report of one day reads the hours of that day only, for any size of the usage ledger."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from sqlalchemy.ext.asyncio import AsyncConnection

from queuectl.db.engine import DatabaseSettings, make_engine
from queuectl.db.reports import course_of, hours_by, largest, losses_by
from queuectl.db.usage_days import SummedDay, queue_hours
from queuectl.domain.accounting import HOUR
from queuectl.domain.usage_reports import ALL_USAGE, DAY, Grouping, Period, UsageScope
from tests.db.test_plans import plan
from tests.support.postgres import TestPostgres

# A thousand workloads. A hundred of them are charged in every tenth hour of two years.
FILL_SUBJECTS = """
INSERT INTO usage_subjects
SELECT md5(n::text)::uuid, 'u' || n, 'Job', 'team-' || n % 7, 'job-' || n, 'q', 'cq', '', '', '{}'
FROM generate_series(1, 1000) n
"""
FILL_HOURS = """
INSERT INTO usage_hours
SELECT 36000 * h, md5((h % 10 * 100 + n)::text)::uuid, 'h100', '', 1, 0, 0, 0, 1, 0, 0, 0, 1
FROM generate_series(1, 1700) h, generate_series(1, 100) n
"""
FILL_LOSSES = """
INSERT INTO usage_losses
SELECT 36000 * h, md5((h % 10 * 100 + n)::text)::uuid, 'h100', 'Preempted', 1, 1
FROM generate_series(1, 1700) h, generate_series(1, 20) n
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def filled_url(postgres: TestPostgres) -> AsyncIterator[str]:
    async with postgres.filled(FILL_SUBJECTS, FILL_HOURS, FILL_LOSSES) as url:
        yield url


SUMMED = tuple(SummedDay(day, day + DAY) for day in (333 * DAY, 334 * DAY))
LATE_START = Period(SUMMED[0].day + HOUR, SUMMED[-1].until)


@pytest_asyncio.fixture
async def connection(filled_url: str) -> AsyncIterator[AsyncConnection]:
    engine = make_engine(DatabaseSettings(filled_url))
    async with engine.connect() as opened:
        yield opened
    await engine.dispose()


async def test_the_hours_of_a_chart_are_found_by_their_index(connection: AsyncConnection):
    lines = await plan(connection, queue_hours(Period(36000 * 800, 36000 * 800 + 24 * HOUR)))
    assert "usage_hours_pkey" in lines
    assert "Seq Scan on usage_hours" not in lines


async def test_a_chart_of_days_with_sums_reads_no_hours_of_workloads(connection: AsyncConnection):
    lines = await plan(connection, queue_hours(LATE_START, SUMMED))
    assert "usage_queues" in lines
    assert "usage_hours" not in lines


@pytest.mark.parametrize("by", ["hour", "queue,hour", "flavor,hour"])
async def test_a_report_by_hour_of_days_with_sums_reads_hours_of_moved_workloads_only(
    connection: AsyncConnection, by: str
):
    lines = await plan(connection, hours_by(LATE_START, Grouping.parse(by), summed=SUMMED))
    assert "usage_queues" in lines
    assert "Seq Scan on usage_hours" not in lines
    assert "usage_spanning" in lines


@pytest.mark.parametrize("by", ["queue", "workload", "workload,hour", "flavor", "label:team"])
async def test_the_hours_of_a_day_are_found_by_their_index(connection: AsyncConnection, by: str):
    day, grouping = Period(36000 * 800, 36000 * 800 + 24 * HOUR), Grouping.parse(by)
    for statement, index in (
        (hours_by(day, grouping), "usage_hours_pkey"),
        (losses_by(day, grouping), "usage_losses_pkey"),
    ):
        lines = await plan(connection, statement)
        assert index in lines
        assert "Seq Scan on usage_hours" not in lines
        assert "Seq Scan on usage_losses" not in lines


async def test_the_largest_groups_and_the_course_of_a_day_are_found_by_their_index(
    connection: AsyncConnection,
):
    day = Period(36000 * 800, 36000 * 800 + 24 * HOUR)
    for statement in (
        largest(day, Grouping.parse("user"), ALL_USAGE, 100),
        course_of(day, UsageScope(cluster_queue="cq")),
    ):
        lines = await plan(connection, statement)
        assert "usage_hours_pkey" in lines
        assert "Seq Scan on usage_hours" not in lines
