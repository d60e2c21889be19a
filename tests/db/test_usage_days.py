"""Reports state the same whether the days of a period are added up or not: also after late changes and after old hours were deleted."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

import asyncpg
import pytest

from queuectl.domain.accounting import (
    HOUR,
    UNITS,
    AccountingTerms,
    Amounts,
    FlavorGpus,
    Free,
    Meter,
    Subject,
    UsagePhase,
)
from queuectl.domain.budgets import Budget, BudgetScope
from queuectl.domain.errors import Fenced
from queuectl.domain.folding import Fold
from queuectl.domain.gpus import MOST_GPUS
from queuectl.domain.usage_reports import ALL_USAGE, DAY, Grouping, Period, UsageScope
from tests.doubles.store import MemoryStore
from tests.support.stores import PostgresStore

FIRST = 20_000 * DAY
DAYS = 5
LAST = FIRST + DAYS * DAY
LATER = LAST + 2.0 * HOUR
WORKLOADS = 30
GROUPINGS = (
    *("namespace", "queue", "clusterqueue", "user", "cohort", "label:team", "flavor", "price"),
    *("hour", "namespace,hour", "queue,hour", "clusterqueue,hour", "user,hour", "cohort,hour"),
    *("label:team,hour", "flavor,hour", "price,hour", "workload", "workload,hour"),
)
SCOPES = (
    ALL_USAGE,
    UsageScope(namespaces=frozenset({"team-1", "team-2"}), user="ann"),
    UsageScope(namespaces=frozenset({"team-0", "team-3"})),
    UsageScope(cluster_queue="cq-0"),
)
PERIODS = (
    Period(FIRST, LAST),
    Period(FIRST + DAY + 5 * HOUR, LAST - 7 * HOUR),
    Period(FIRST + 2 * DAY, FIRST + 4 * DAY),
    Period(FIRST - 2 * DAY, LAST + 2 * DAY),
)
BUDGETS = (
    Budget("a", BudgetScope.NAMESPACE, "team-1", 1),
    Budget("b", BudgetScope.USER, "ann", 1),
)


def subject_of(number: int, queue: int) -> Subject:
    labels = (("team", str(number % 3)),) if number % 3 else ()
    return Subject(
        *(f"u-{number:02}", "Job", f"team-{number % 4}", f"job-{number:02}", f"q-{queue}", f"cq-{queue}"),
        user=("ann", "ben", "")[number % 3],
        labels=labels,
    )  # fmt: skip


def some_hours(rng: Random, progress: tuple[float | None, float], workloads: range) -> Fold:
    """Hours of workloads: of one day or of several, of one or two flavors, prices and queues, with pauses. Some have not ended."""
    since, until = progress
    fold = Fold(until if since is None else since, until, AccountingTerms({"cq-1": "all"}, {}))
    for number in workloads:
        begins = FIRST + rng.randrange(DAYS * 24) * HOUR
        queues = (0, 1) if rng.random() < 0.2 else (rng.randrange(2),)
        flavors = ("h100", "a100") if rng.random() < 0.2 else ("h100",)
        for hour in range(begins, min(LAST, begins + rng.choice((1, 2, 30)) * HOUR), HOUR):
            if rng.random() < 0.3:
                continue
            # A workload that moves has rows of both queues in the same hour.
            at_once = queues if rng.random() < 0.5 else (rng.choice(queues),)
            for queue in at_once:
                who = subject_of(number, queue)
                account = fold.accounts.of(who, "all" if who.cluster_queue == "cq-1" else "")
                held = rng.randrange(1, 9) * UNITS
                row = (
                    Amounts(waited=held, waiting=1000)
                    if rng.random() < 0.3
                    else Amounts(held, held // 2, 0, 0, held // 4, cost=float(rng.randrange(9)))
                )
                flavor = "" if row.waited else rng.choice(flavors)
                price = rng.choice(("spot", "on-demand")) if flavor else ""
                fold.hours[hour, account, flavor, price] = row
        if rng.random() < 0.3:
            holds = (FlavorGpus("h100", "", 1),)
            fold.meters[f"u-{number:02}"] = Meter(
                UsagePhase.HOLDS, 1, 1, holds, subject_of(number, queues[0])
            )
    return fold


class Stores:
    """The ledger in Postgres and its double, which has no sums of days."""

    def __init__(self, store: PostgresStore) -> None:
        self.both: tuple[PostgresStore | MemoryStore, ...] = (store, MemoryStore())
        self.until: float | None = None

    async def lead(self) -> None:
        self.epochs = [await one.take_over("test", 0) for one in self.both]

    async def keep(self, seed: int, until: float, workloads: range) -> None:
        for one, epoch in zip(self.both, self.epochs, strict=True):
            fold = some_hours(Random(seed), (self.until, until), workloads)
            free = {"h100": Free(64, 8, 4, 2, 0)}
            await one.usage.keep(
                fold, over=self.until, until=until, marks=(), epoch=epoch, free=free
            )
        self.until = until

    async def add_up(self, since: float = 0.0, *, now: float = LATER) -> int:
        store, epoch = self.both[0], self.epochs[0]
        count = 0
        while await store.usage.add_up(now, since, epoch=epoch):
            count += 1
        return count

    async def agree(self, seed: int) -> None:
        rng = Random(seed)
        for by in GROUPINGS:
            period, scope = rng.choice(PERIODS), rng.choice(SCOPES)
            grouping = Grouping.parse(by)
            one, other = [
                await each.usage.compared(period, grouping, scope, 3) for each in self.both
            ]
            assert one == other, (period, by, scope)
            first, second = [await each.usage.report(period, grouping, scope) for each in self.both]
            assert first.rows == second.rows, (period, by, scope)
        for period in PERIODS:
            chart, other_chart = [await each.usage.hours(period) for each in self.both]
            assert chart.rows, period
            assert chart == other_chart, period
        spent = [await each.usage.spent(BUDGETS, float(FIRST)) for each in self.both]
        assert spent[0] == spent[1]


@pytest.mark.parametrize("seed", [1])
async def test_reports_do_not_depend_on_the_sums_of_days(
    store: PostgresStore, database_url: str, seed: int
) -> None:
    stores = Stores(store)
    await stores.lead()
    await stores.keep(seed, LATER, range(WORKLOADS))
    for number, left in enumerate((20, 12, 3)):  # hours of the last day
        part = LAST - left * HOUR
        assert await stores.add_up(now=part) >= (1 if number else DAYS - 1)
        await stores.agree(seed + left)
        await stores.keep(seed + 20 + left, LATER + 1 + number, range(30, 33))
        await stores.agree(seed + left)
    assert await stores.add_up() > 0
    assert await stores.add_up() == 0
    await stores.agree(seed)
    await stores.keep(seed + 10, LATER + 60, range(20, WORKLOADS + 10))  # late, and again
    await stores.agree(seed + 1)
    assert await stores.add_up() > 0
    await stores.agree(seed + 2)
    cutoff = FIRST + 1.5 * DAY
    for one, epoch in zip(stores.both, stores.epochs, strict=True):
        while await one.usage.prune(cutoff, epoch=epoch):
            pass
    await stores.agree(seed + 3)
    assert await stores.add_up(cutoff) == 0
    connection = await asyncpg.connect(database_url)
    days = [row["day"] for row in await connection.fetch("SELECT DISTINCT day FROM usage_days")]
    await connection.close()
    assert days
    assert min(days) >= cutoff


async def test_a_day_has_sums_however_many_gpus_wait(
    store: PostgresStore, database_url: str
) -> None:
    """Gangs as large as possible wait in one LocalQueue: their sums have more than 64 bits."""
    stores = Stores(store)
    await stores.lead()
    who = [replace(subject_of(number, 0), uid=f"w-{number}") for number in range(3)]
    waiting = Amounts(waited=(MOST_GPUS - 1) * UNITS * HOUR, waiting=1000 * HOUR)
    for one, epoch in zip(stores.both, stores.epochs, strict=True):
        fold = Fold(float(FIRST), LATER, AccountingTerms({}, {}))
        for hour in range(FIRST, FIRST + DAY, HOUR):
            for each in who:
                fold.hours[hour, fold.accounts.of(each, ""), "", ""] = waiting
        await one.usage.keep(fold, over=None, until=LATER, marks=(), epoch=epoch, free={})
    whole = Period(FIRST, FIRST + DAY)
    for summed in (0, DAYS):
        assert await stores.add_up(now=LATER if summed else 0.0) == summed
        for by in ("queue", "user", "namespace,hour", "workload"):
            grouping = Grouping.parse(by)
            reports = [await each.usage.report(whole, grouping) for each in stores.both]
            assert reports[0].rows == reports[1].rows, by
        charts = [await each.usage.hours(whole) for each in stores.both]
        assert charts[0] == charts[1]


async def test_sums_of_expired_days_are_deleted_day_by_day(
    store: PostgresStore, database_url: str
) -> None:
    stores = Stores(store)
    await stores.lead()
    await stores.keep(1, LATER, range(WORKLOADS))
    await stores.add_up()
    connection = await asyncpg.connect(database_url)
    left = []
    while await store.usage.prune(LAST - DAY, epoch=stores.epochs[0]):
        rows = await connection.fetch("SELECT day FROM usage_summed ORDER BY day")
        first = await connection.fetchval("SELECT min(hour) FROM usage_hours")
        left.append([(row["day"] - FIRST) // DAY for row in rows])
        assert first >= rows[0]["day"]
    assert left[:4] == [[1, 2, 3, 4], [2, 3, 4], [3, 4], [4]]
    assert set(map(tuple, left[4:])) <= {(4,)}
    assert await connection.fetchval("SELECT min(hour) FROM usage_hours") >= LAST - DAY
    await connection.close()


async def test_a_deletion_of_hours_waits_for_the_adding_up_of_another_leader(
    store: PostgresStore, database_url: str
) -> None:
    stores = Stores(store)
    await stores.lead()
    await stores.keep(1, LATER, range(WORKLOADS))
    connection = await asyncpg.connect(database_url)
    other = connection.transaction()
    await other.start()
    await connection.execute("UPDATE usage_progress SET until = until")  # as add_up begins
    deletion = asyncio.create_task(store.usage.prune(FIRST + 1.5 * DAY, epoch=stores.epochs[0]))
    done, _ = await asyncio.wait([deletion], timeout=0.2)
    assert not done
    await other.rollback()
    assert await deletion > 0
    await connection.close()


async def test_a_change_of_an_hour_and_a_new_row_of_an_ended_workload_delete_the_sums_of_their_days(
    store: PostgresStore, database_url: str
) -> None:
    stores = Stores(store)
    await stores.lead()
    connection = await asyncpg.connect(database_url)
    await connection.execute("UPDATE usage_progress SET until = $1", LATER)
    add = (
        "INSERT INTO usage_hours VALUES ($1, md5($2)::uuid, 'h100', '', 1, 0, 0, 0, 1, 0, 0, 0, 0)"
    )
    subject = "INSERT INTO usage_subjects VALUES (md5($1)::uuid, $1, 'Job', 'a', $1, 'q', 'cq', '', '', '{}')"

    async def days() -> set[int]:
        rows = await connection.fetch("SELECT day FROM usage_summed")
        return {(row["day"] - FIRST) // DAY for row in rows}

    for name, day in (("ended", 0), ("goes-on", 1), ("other", 2)):
        await connection.execute(subject, name)
        await connection.execute(add, FIRST + day * DAY, name)
    await connection.execute("INSERT INTO usage_meters VALUES ('goes-on', '{}')")
    await stores.add_up()
    assert await days() == {0, 1, 2, 3, 4}
    await connection.execute(add, LAST, "goes-on")  # its days are among those of several days
    assert await days() == {0, 1, 2, 3, 4}
    await connection.execute(add, LAST, "ended")
    assert await days() == {1, 2, 3, 4}
    await connection.execute("INSERT INTO usage_meters VALUES ('other', '{}')")
    assert await days() == {1, 3, 4}
    await connection.execute("UPDATE usage_hours SET used = 1 WHERE hour = $1", FIRST + DAY)
    assert await days() == {3, 4}
    await connection.execute(add, FIRST + 3 * DAY, "other")
    assert await days() == {4}
    await connection.execute("DELETE FROM usage_summed")

    async def add_up_a_part() -> None:
        await stores.add_up(now=LAST - 11.0 * HOUR)
        assert await connection.fetchval("SELECT max(until) FROM usage_summed") == LAST - 12 * HOUR

    for name in ("early", "late", "new"):
        await connection.execute(subject, name)
    await connection.execute(add, LAST - 20 * HOUR, "early")
    await add_up_a_part()
    await connection.execute(add, LAST - 12 * HOUR, "late")
    await connection.execute(add, LAST - 10 * HOUR, "late")
    assert 4 in await days()
    await connection.execute(add, LAST - 12 * HOUR, "early")
    assert 4 not in await days()
    await add_up_a_part()
    await connection.execute(add, LAST - 13 * HOUR, "new")
    assert 4 not in await days()
    await connection.close()
    with pytest.raises(Fenced):
        await store.usage.add_up(LATER, 0.0, epoch=stores.epochs[0] + 1)
