"""The report of the largest groups, with the period before and the course: Postgres and the double agree, and nothing is left out."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from queuectl.domain.accounting import (
    HOUR,
    UNITS,
    AccountingTerms,
    Amounts,
    Free,
    LostWorkSum,
    Subject,
)
from queuectl.domain.errors import BadInput
from queuectl.domain.folding import Fold
from queuectl.domain.usage_reports import (
    ALL_USAGE,
    DAY,
    By,
    ComparedReport,
    Grouping,
    Period,
    UsageScope,
    total_of,
)
from tests.doubles.store import MemoryStore
from tests.support.stores import PostgresStore

FIRST = 20_000 * DAY
DAYS = 6
LAST = FIRST + DAYS * DAY
TERMS = AccountingTerms({}, {})
SCOPES = (
    ALL_USAGE,
    UsageScope(namespaces=frozenset({"team-1", "team-2"})),
    UsageScope(namespaces=frozenset({"team-1"}), user="ann"),
    UsageScope(cluster_queue="cq-0"),
    UsageScope(user=""),
    UsageScope(namespaces=frozenset()),
)
GROUPINGS = (
    "namespace",
    "queue",
    "user",
    "clusterqueue",
    "workload",
    "label:team",
    "hour",
    "flavor",
    "price",
    "user,hour",
)


def fold_of(seed: int) -> Fold:
    """Hours and losses of 24 workloads. Amounts are whole numbers of GPU-seconds, so that sums of numbers are exact in any order."""
    rng, fold = Random(seed), Fold(FIRST, LAST, TERMS)
    for number in range(24):
        team = number % 4
        subject = Subject(
            *(f"u-{number:02}", "Job", f"team-{team}", f"job-{number:02}", f"q-{number % 2}", f"cq-{number % 3}"),
            user=("ann", "ben", "=cmd", "")[rng.randrange(4)],
            labels=(("team", str(team)),) if team else (),
        )  # fmt: skip
        account = fold.accounts.of(subject, "")
        for hour in (FIRST, *rng.sample(range(FIRST + HOUR, LAST, HOUR), 12)):
            held = rng.randrange(1, 9) * HOUR * UNITS
            waits = rng.random() < 0.2
            fold.hours[hour, account, "" if waits else "h100", ""] = (
                Amounts(waited=held, waiting=HOUR * 1000)
                if waits
                else Amounts(held, held // 2, 0, 0, held // 4, cost=float(rng.randrange(9)))
            )
            if not waits and rng.random() < 0.3:
                fold.losses[hour, account, "h100", "Preempted"] = LostWorkSum(60.0, 1)
    return fold


@pytest.fixture
async def stores(store: PostgresStore) -> tuple[PostgresStore, MemoryStore]:
    memory = MemoryStore()
    for one in (store, memory):
        epoch = await one.take_over("test", 0)
        free = {"h100": Free(64, 8, 4, 2, 0)}
        first = Fold(FIRST, FIRST, TERMS)
        await one.usage.keep(first, over=None, until=FIRST, marks=(), epoch=epoch, free=free)
        await one.usage.keep(fold_of(3), over=FIRST, until=LAST, marks=(), epoch=epoch, free=free)
    return store, memory


async def test_postgres_and_the_double_agree(stores: tuple[PostgresStore, MemoryStore]) -> None:
    half = product(enumerate(GROUPINGS), enumerate(SCOPES))
    pairs = [(by, scope) for (n, by), (m, scope) in half if (n + m) % 2 == 0]
    periods = (Period(FIRST + 3 * DAY, LAST), Period(FIRST + 4 * DAY + 5 * HOUR, LAST))
    for number, (by, scope) in enumerate(pairs):
        period, most = periods[number % 2], (1, 3, 100)[number % 3]
        one, other = [
            await each.usage.compared(period, Grouping.parse(by), scope, most) for each in stores
        ]
        assert one == other, (period, by, scope, most)


async def test_the_largest_groups_and_the_others_are_the_whole_report(
    stores: tuple[PostgresStore, MemoryStore],
) -> None:
    store, _ = stores
    period = Period(FIRST + 3 * DAY, LAST)
    for by in ("user", "workload"):
        grouping = Grouping.parse(by)
        whole = await store.usage.report(period, grouping)
        part = (await store.usage.compared(period, grouping, ALL_USAGE, 2)).report
        assert (len(part.rows), part.groups) == (2, len(whole.rows))
        assert part.unlisted is not None
        assert total_of(part) == total_of(whole)
        assert (part.fleet, part.cluster) == (whole.fleet, whole.cluster)
        least = part.rows[-1].amounts.allocated
        assert sum(row.amounts.allocated > least for row in whole.rows) < 2


async def test_the_largest_of_too_many_workloads_are_refused_and_of_all_groups_they_are_not(
    stores: tuple[PostgresStore, MemoryStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("queuectl.db.reports", "tests.doubles.usage"):
        monkeypatch.setattr(f"{module}.MOST_COMPARED", 20)
    period = Period(FIRST + 3 * DAY, LAST)
    for store in stores:
        with pytest.raises(BadInput, match="more than 20 rows; ask for fewer hours"):
            await store.usage.compared(period, Grouping(By.WORKLOAD), ALL_USAGE, 3)
        await store.usage.compared(period, Grouping(By.WORKLOAD), SCOPES[2], 3)
        await store.usage.compared(period, Grouping(By.USER), ALL_USAGE, 3)


async def test_the_period_before_is_that_of_the_reports_and_only_if_the_ledger_has_all_of_it(
    stores: tuple[PostgresStore, MemoryStore],
) -> None:
    store, _ = stores

    async def compared(period: Period) -> ComparedReport:
        return await store.usage.compared(period, Grouping(By.USER), ALL_USAGE, 100)

    half = Period(FIRST + 3 * DAY, LAST)
    found = await compared(half)
    assert found.before is not None
    assert found.before.period == Period(FIRST, FIRST + 3 * DAY)
    earlier = await store.usage.report(found.before.period, Grouping(By.USER))
    assert found.before.total == total_of(earlier).amounts.allocated > 0
    assert found.before.groups == {
        (row.names["user"],): row.amounts.allocated for row in earlier.rows
    }
    assert found.recorded_since is not None
    assert (await compared(Period(FIRST + 3 * DAY - HOUR, LAST))).before is None


@pytest.mark.parametrize(("hours", "step"), [(1, HOUR), (49, HOUR), (50, DAY), (72, DAY)])
async def test_the_course_has_all_hours_of_the_period(
    stores: tuple[PostgresStore, MemoryStore], hours: int, step: int
) -> None:
    store, _ = stores
    period = Period(LAST - hours * HOUR, LAST)
    found = await store.usage.compared(period, Grouping(By.USER), ALL_USAGE, 100)
    total = Amounts()
    for point in found.course:
        total.add(point.amounts)
    assert total == total_of(found.report).amounts
    assert found.step == step
    assert all(point.at % step == 0 for point in found.course)
    assert [point.at for point in found.course] == sorted({point.at for point in found.course})


async def test_an_empty_ledger_has_nothing_to_compare(store: PostgresStore) -> None:
    found = await store.usage.compared(Period(FIRST, LAST), Grouping(By.USER), ALL_USAGE, 100)
    assert (found.report.rows, found.report.unlisted, found.report.groups) == ((), None, 0)
    assert (found.recorded_since, found.before, found.course) == (None, None, ())
