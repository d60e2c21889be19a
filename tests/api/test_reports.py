"""Reports over REST: sums of full hours, by whom, from either store."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from queuectl.api.reports import waste_report
from queuectl.api.routes import usage
from queuectl.api.usage_history import UsageHistory
from queuectl.domain.accounting import (
    HOUR,
    UNITS,
    AccountingTerms,
    Amounts,
    ClusterGpus,
    FlavorGpus,
    Free,
    LostWork,
    Mark,
    Subject,
    UsagePhase,
)
from queuectl.domain.folding import Fold
from queuectl.domain.identity import Right
from queuectl.domain.job_usage import JobUsage
from queuectl.domain.usage_reports import (
    By,
    Grouping,
    HistoryPoint,
    Period,
    QueueHour,
    Report,
    ReportRow,
    UsageHours,
)
from queuectl.domain.utilization import GangUse, UseState
from tests.api.conftest import AnyStore, commit
from tests.api.signed import ADMIN, NO_RIGHTS, asking, people, signed_app
from tests.api.support import job, live_through
from tests.doubles.store import MemoryStore
from tests.support.samples import all_along

# The hour before the last full one: two hours ago at least, and within every default.
HOUR_AT = float(int(time.time() // HOUR) * HOUR - 2 * HOUR)
NOW = HOUR_AT + 2.5 * HOUR
TERMS = AccountingTerms({"gpus": "all"}, {"spot": 2.0})


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reports are requested in the middle of an hour, even when the tests run across the end of one."""
    monkeypatch.setattr(usage, "time", SimpleNamespace(time=lambda: NOW))


def subject(name: str, user: str = "", team: str = "nlp", namespace: str = "team-a") -> Subject:
    labels = (("team", team),) if team else ()
    return Subject(
        f"uid-{name}", "PyTorchJob", namespace, name, "research", "gpus", "", user, labels
    )


def life(
    who: Subject, held: FlavorGpus, waits: float, evicted: LostWork | None = None
) -> list[Mark]:
    """It waits for ``waits`` seconds, runs until a quarter of an hour before the end of the hour, and is deleted."""
    begin, end = HOUR_AT + waits, HOUR_AT + 0.75 * HOUR

    def mark(at: float, phase: UsagePhase, loss: LostWork | None = None) -> Mark:
        return Mark(who.uid, at, at, phase, 1, held.gpus, (held,), who, loss)

    leaving = [mark(end - 60, UsagePhase.HOLDS, evicted)] if evicted is not None else []
    return [
        mark(HOUR_AT, UsagePhase.WAITS),
        mark(begin, UsagePhase.HOLDS),
        *leaving,
        mark(end, UsagePhase.GONE),
    ]


@pytest.fixture
async def stored(store: AnyStore) -> AnyStore:
    """Ann's gang uses a quarter of 8 spot GPUs for half an hour; Ben's, of another team, is idle and is evicted."""
    epoch = await store.take_over("test", 0)
    ann, ben = subject("ann", "ann"), subject("ben", "ben", "vision", "team-b")
    fold = Fold(HOUR_AT, HOUR_AT + HOUR, TERMS)
    active = GangUse("uid-ann", 1, UseState.ACTIVE, HOUR_AT, HOUR_AT + HOUR, 0.25, 1.0, "")
    idle = GangUse("uid-ben", 1, UseState.IDLE, HOUR_AT, HOUR_AT + HOUR, 0.0, 1.0, "")
    fold.workload(None, life(ann, FlavorGpus("h100", "spot", 8), 900.0), all_along(active, HOUR_AT))
    fold.workload(
        None,
        life(ben, FlavorGpus("a100", "", 4), 900.0, LostWork("Preempted", 1800.0)),
        all_along(idle, HOUR_AT),
    )
    none = Fold(HOUR_AT, HOUR_AT, TERMS)
    await store.usage.keep(none, over=None, until=HOUR_AT, marks=(), epoch=epoch, free={})
    free = {"h100": Free(16, 8, 2.5, 1, 0.5)}
    await store.usage.keep(
        fold, over=HOUR_AT, until=HOUR_AT + HOUR, marks=(), epoch=epoch, free=free
    )
    return store


async def report(api: httpx2.AsyncClient, kind: str, **query: str) -> dict[str, Any]:
    answer = await api.get(f"/api/v1/reports/{kind}", params=query)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def named(body: dict[str, Any], name: str) -> dict[str, dict[str, Any]]:
    return {item["group"][name]: item for item in body["items"]}


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


@pytest.mark.usefixtures("stored")
async def test_usage_by_user(api: httpx2.AsyncClient) -> None:
    body = await report(api, "usage", by="user", since="24h")
    assert body["asOf"] == stamp(HOUR_AT + HOUR)
    reported = named(body, "user")
    assert reported["ann"] == {
        "group": {**dict.fromkeys(reported["ann"]["group"]), "user": "ann"},
        "workloads": 1,
        "allocatedGpuHours": 4.0,
        "usedGpuHours": 1.0,
        "idleGpuHours": 0.0,
        "stuckGpuHours": 0.0,
        "unknownGpuHours": 0.0,
        "efficiency": 0.25,
    }
    assert reported["ben"]["idleGpuHours"] == reported["ben"]["allocatedGpuHours"] == 2.0
    total = body["total"]
    assert (total["allocatedGpuHours"], total["efficiency"]) == (6.0, pytest.approx(1 / 6))


async def test_the_usage_of_one_workload_is_that_of_its_rows(stored: AnyStore) -> None:
    ben = await stored.usage.job("uid-ben")
    assert (ben.as_of, ben.lost, [*ben.flavors]) == (HOUR_AT + HOUR, 1800.0, ["a100"])
    total = ben.amounts
    assert (total.allocated, total.idle, total.used) == (7200 * UNITS, 7200 * UNITS, 0)
    assert await stored.usage.job("nobody") == JobUsage(HOUR_AT + HOUR)


@pytest.mark.usefixtures("stored")
async def test_cost_reports_waste_and_gpus_without_a_price(api: httpx2.AsyncClient) -> None:
    settings = {
        "apiVersion": "queuectl.dev/v1",
        "kind": "Configuration",
        "metadata": {"name": "default"},
        "queuectl": {"accounting": {"currency": "EUR"}},
    }
    assert (await api.put("/api/v1/configurations/default", json=settings)).is_success
    body = await report(api, "cost", by="flavor")
    reported = named(body, "flavor")
    assert body["currency"] == "EUR"
    assert (reported["h100"]["cost"], reported["h100"]["wastedCost"]) == (8.0, 6.0)
    assert reported["h100"]["unpricedGpuHours"] == 0.0
    assert (reported["a100"]["cost"], reported["a100"]["unpricedGpuHours"]) == (0.0, 2.0)


@pytest.mark.usefixtures("stored")
async def test_waste_reports_lost_work_and_the_fleet(api: httpx2.AsyncClient) -> None:
    body = await report(
        api, "waste", by="label:team", since=stamp(HOUR_AT), until=stamp(HOUR_AT + HOUR)
    )
    reported = named(body, "label")
    assert reported["vision"]["lostToOthersGpuHours"] == 0.5
    assert reported["vision"]["lostGpuHoursByReason"] == {"Preempted": 0.5}
    assert (reported["vision"]["evictions"], reported["nlp"]["evictions"]) == (1, 0)
    assert (reported["nlp"]["wastedGpuHours"], reported["nlp"]["wastedGpus"]) == (3.0, 3.0)
    assert body["fleet"] == [
        {
            "flavor": "h100",
            "gpus": 16.0,
            "freeGpus": 8.0,
            "fragmentedGpus": 2.5,
            "strandedGpus": 1.0,
            "fragmentedInsideNodesGpus": 0.5,
        }
    ]


@pytest.mark.usefixtures("stored")
async def test_the_wasted_gpus_of_an_hour_are_an_average_of_this_hour(
    api: httpx2.AsyncClient,
) -> None:
    body = await report(api, "waste", by="label:team,hour", since="24h")
    reported = named(body, "label")
    assert (reported["nlp"]["wastedGpuHours"], reported["nlp"]["wastedGpus"]) == (3.0, 3.0)
    (whole,) = [
        item
        for item in (await report(api, "waste", by="label:team", since="24h"))["items"]
        if item["group"]["label"] == "nlp"
    ]
    assert whole["wastedGpus"] < 1.0


@pytest.mark.usefixtures("stored")
async def test_waits_by_hour_and_by_namespace(api: httpx2.AsyncClient) -> None:
    reported = named(await report(api, "waits", by="namespace"), "namespace")
    assert reported["team-a"]["waitedGpuHours"] == 2.0
    assert reported["team-a"]["waitingHoursPerWorkload"] == 0.25
    (hour,) = (await report(api, "waits", by="hour"))["items"]
    assert hour["group"]["hour"] == stamp(HOUR_AT)
    assert (hour["workloads"], hour["waitedGpuHours"]) == (2, 3.0)


@pytest.mark.usefixtures("stored")
async def test_a_total_states_no_workloads_where_one_can_have_several_rows(
    api: httpx2.AsyncClient,
) -> None:
    for by in ("hour", "queue,hour", "workload,hour", "flavor", "price"):
        body = await report(api, "waits", by=by)
        total, rows = body["total"], body["items"]
        assert (total["workloads"], total["waitingHoursPerWorkload"]) == (None, None), by
        assert (total["waitedGpuHours"], total["waitingHours"]) == (3.0, 0.5), by
        assert all(row["workloads"] and row["waitingHoursPerWorkload"] is not None for row in rows)
        for kind in ("usage", "cost"):
            assert (await report(api, kind, by=by))["total"]["workloads"] is None
    for by in ("queue", "namespace", "user", "workload", "label:team"):
        total = (await report(api, "waits", by=by))["total"]
        assert (total["workloads"], total["waitingHoursPerWorkload"]) == (2, 0.25), by


@pytest.mark.usefixtures("stored")
async def test_a_row_of_a_workload_has_every_join_key_of_cost_tools(
    api: httpx2.AsyncClient,
) -> None:
    group = named(await report(api, "usage", by="workload"), "name")["ann"]["group"]
    reported = {name: value for name, value in group.items() if value is not None}
    assert reported == {
        "namespace": "team-a",
        "kind": "PyTorchJob",
        "name": "ann",
        "uid": "uid-ann",
        "queue": "research",
        "clusterQueue": "gpus",
        "cohort": "all",
        "user": "ann",
        "labels": {"team": "nlp"},
    }


@pytest.mark.usefixtures("stored")
async def test_a_row_can_be_one_hour_and_has_its_time(
    stored: AnyStore, api: httpx2.AsyncClient
) -> None:
    """Ann's gang runs for another quarter of an hour in the next hour."""
    end = HOUR_AT + HOUR
    fold = Fold(end, end + 900.0, TERMS)
    who = subject("ann", "ann")
    again = Mark(who.uid, end, end, UsagePhase.HOLDS, 1, 8, (FlavorGpus("h100", "spot", 8),), who)
    fold.workload(None, [again], at_start=True)
    epoch = await stored.take_over("test", 0)
    await stored.usage.keep(fold, over=end, until=end + 900.0, marks=(), epoch=epoch, free={})
    for by in ("workload,hour", "label:team,hour", "namespace,hour"):
        body = await report(api, "usage", by=by)
        assert body["by"] == by
        reported = [
            (item["group"]["hour"], item["allocatedGpuHours"])
            for item in body["items"]
            if "nlp" in str(item["group"]) or item["group"]["namespace"] == "team-a"
        ]
        assert reported == [(stamp(HOUR_AT), 4.0), (stamp(end), 2.0)], by


@pytest.mark.usefixtures("stored")
async def test_lost_work_is_in_the_row_of_its_hour(api: httpx2.AsyncClient) -> None:
    body = await report(api, "waste", by="workload,hour")
    assert [
        (item["group"]["hour"], item["lostToOthersGpuHours"])
        for item in body["items"]
        if item["group"]["name"] == "ben"
    ] == [(stamp(HOUR_AT), 0.5)]


@pytest.mark.parametrize("by", ["queue", "clusterqueue", "cohort", "price"])
@pytest.mark.usefixtures("stored")
async def test_every_grouping_has_the_same_total(api: httpx2.AsyncClient, by: str) -> None:
    total = (await report(api, "usage", by=by))["total"]
    assert (total["allocatedGpuHours"], total["usedGpuHours"]) == (6.0, 1.0)


@pytest.mark.usefixtures("stored")
async def test_only_the_hours_of_the_range_are_reported(api: httpx2.AsyncClient) -> None:
    body = await report(api, "usage", since=stamp(HOUR_AT + HOUR), until=stamp(HOUR_AT + 2 * HOUR))
    assert body["items"] == []
    assert body["total"]["efficiency"] is None


@pytest.mark.usefixtures("stored")
async def test_a_report_that_is_too_long_is_refused(
    api: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("queuectl.db.reports", "tests.doubles.usage"):
        monkeypatch.setattr(f"{module}.MOST_ROWS", 1)
    answer = await api.get("/api/v1/reports/usage", params={"by": "workload"})
    assert answer.status_code == 422
    assert "more than 1 rows; ask for fewer hours" in answer.json()["detail"]
    assert (await api.get("/api/v1/reports/usage", params={"by": "cohort"})).status_code == 200


@pytest.mark.parametrize("as_of", [0.0, HOUR_AT - 1.0, HOUR_AT, HOUR_AT + 0.001, HOUR_AT + HOUR])
def test_a_row_of_an_hour_that_is_not_accounted_for_has_no_average(as_of: float) -> None:
    hour, held = int(HOUR_AT), round(1000 * max(0.0, as_of - HOUR_AT))
    rows = (ReportRow({"hour": str(hour)}, Amounts(held * UNITS // 1000), 1),)
    period = Period(hour - HOUR, hour + HOUR)
    found = waste_report(Report(period, Grouping(By.HOUR), as_of, rows))
    average = found.items[0].wasted_gpus
    assert average == pytest.approx(1.0 if as_of > HOUR_AT else 0.0, rel=0.1)


async def test_a_report_of_an_empty_ledger_has_no_rows(api: httpx2.AsyncClient) -> None:
    body = await report(api, "waste")
    assert (body["asOf"], body["items"], body["fleet"]) == (None, [], [])


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"by": "team"}, "by"),
        ({"by": "label:"}, "by"),
        ({"by": "hour,hour"}, "by"),
        ({"since": "yesterday"}, "since"),
        ({"since": "2026-11-20T00:00:00"}, "since"),
        ({"until": "never"}, "until"),
        ({"since": "1h", "until": "2h"}, "until"),
        ({"since": "9000h"}, "since"),
    ],
)
async def test_a_wrong_parameter_is_named(
    client: httpx2.AsyncClient, query: dict[str, str], field: str
) -> None:
    answer = await client.get("/api/v1/reports/usage", params=query)
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["field"] == field
    assert query[field] in error["reason"] or field in error["reason"]


# ---- rights


Seen = Callable[..., Awaitable[dict[str, Any]]]


@pytest.fixture
async def seen(stored: AnyStore) -> AsyncIterator[Seen]:
    """Reports for a caller with some rights. The API is made once, which takes longer than a report."""
    access = people()
    access.know("token", "tenant")
    async with asking(signed_app(stored, access), "token") as client:

        async def seen(kind: str, by: str, *rights: Right) -> dict[str, Any]:
            access.granted["tenant"] = set(rights)
            return await report(client, kind, by=by)

        yield seen


async def test_a_tenant_sees_the_sums_of_its_own_namespaces(stored: AnyStore, seen: Seen) -> None:
    await commit(stored, live_through(job("a", namespace="team-a")))
    await commit(stored, live_through(job("b", namespace="team-b")))
    own, all_of_it = Right("get", "reports", "team-a"), Right("get", "reports")
    for kind in ("usage", "cost", "waste", "waits"):
        for by, name in (("namespace", "namespace"), ("user", "user"), ("workload", "name")):
            mine = set(named(await seen(kind, by, own), name))
            assert mine <= {"team-a", "ann"}
            assert len(mine) == 1
            assert len(named(await seen(kind, by, all_of_it), name)) == 2
        assert (await seen(kind, "user"))["items"] == []
    flavors = set(named(await seen("usage", "flavor", own), "flavor"))
    assert "h100" in flavors
    assert "a100" not in flavors


async def test_a_selected_namespace_adds_no_rights(stored: AnyStore) -> None:
    await commit(stored, live_through(job("a", namespace="team-a")))
    await commit(stored, live_through(job("b", namespace="team-b")))
    access = people()
    access.know("token", "tenant")
    async with asking(signed_app(stored, access), "token") as client:

        async def seen(right: Right, namespace: str) -> dict[str, Any]:
            access.granted["tenant"] = {right}
            return await report(client, "waste", by="namespace", namespace=namespace)

        for right in (Right("get", "reports", "team-a"), Right("get", "reports")):
            mine = await seen(right, "team-a")
            assert set(named(mine, "namespace")) == {"team-a"}
            assert (mine["fleet"], mine["cluster"]) == ([], None)
        for own in ("team-b", "nowhere"):
            assert (await seen(Right("get", "reports", "team-a"), own))["items"] == []


async def test_a_tenant_sees_nothing_of_the_nodes(stored: AnyStore, seen: Seen) -> None:
    await commit(stored, live_through(job("a", namespace="team-a")))
    nodes = Right("list", "nodes")
    for rights in ([Right("get", "reports", "team-a"), nodes], [Right("get", "reports")]):
        mine = await seen("waste", "user", *rights)
        assert (mine["fleet"], mine["cluster"]) == ([], None)
    everything = await seen("waste", "user", Right("get", "reports"), nodes)
    assert everything["fleet"]


async def test_the_history_has_the_average_of_each_recent_hour(
    api: httpx2.AsyncClient, stored: AnyStore
) -> None:
    answer = await api.get("/api/v1/reports/history?hours=4")
    assert answer.status_code == 200, answer.text
    reported = answer.json()
    begins = [datetime.fromtimestamp(HOUR_AT + n * HOUR, UTC) for n in (-1, 0)]
    assert [item["since"] for item in reported["items"]] == [
        f"{at:%Y-%m-%dT%H:%M:%SZ}" for at in begins
    ]
    assert reported["asOf"] == reported["items"][-1]["until"]
    before, during = reported["items"]
    assert before["allocatedGpus"] == before["pendingGpus"] == 0
    usage = (await api.get("/api/v1/reports/usage", params={"by": "hour", "since": "4h"})).json()
    waits = (await api.get("/api/v1/reports/waits", params={"by": "hour", "since": "4h"})).json()
    assert during["allocatedGpus"] == usage["total"]["allocatedGpuHours"] > 0
    assert during["usedGpus"] == usage["total"]["usedGpuHours"] > 0
    assert during["unmeasuredGpus"] == usage["total"]["unknownGpuHours"]
    assert during["pendingGpus"] == waits["total"]["waitedGpuHours"] > 0


async def test_the_capacity_of_an_hour_counts_each_gpu_once(stored: AnyStore) -> None:
    """Two flavors select 16 GPUs, 6 of which fail; for half an hour, 8 others have a flavor that has ended since."""
    begins, epoch = HOUR_AT + HOUR, await stored.take_over("test", 0)
    half = begins + HOUR / 2
    both = {"any": Free(16, 8, 0, 0, 0), "h100": Free(16, 8, 0, 0, 0)}
    for over, until, gpus, unhealthy, free in (
        (begins, half, 24, 0, both | {"old": Free(8, 8, 0, 0, 0)}),
        (half, begins + HOUR, 16, 6, both),
    ):
        fold = Fold(over, until, TERMS)
        fold.divide(ClusterGpus(gpus, 0, unhealthy))
        await stored.usage.keep(fold, over=over, until=until, marks=(), epoch=epoch, free=free)
    found = await UsageHistory(stored).points(NOW, 4, lambda row: True, capacity=True)
    capacities = {point.since: point.capacity for point in found}
    assert capacities == {HOUR_AT - HOUR: None, HOUR_AT: None, begins: 17.0}


async def test_the_history_has_only_the_requested_queues(
    api: httpx2.AsyncClient, stored: AnyStore
) -> None:
    async def held(query: str) -> float:
        answer = await api.get(f"/api/v1/reports/history?hours=4{query}")
        assert answer.status_code == 200, answer.text
        return float(sum(item["allocatedGpus"] for item in answer.json()["items"]))

    every = await held("")
    mine, other = await held("&namespace=team-a"), await held("&namespace=team-b")
    assert mine > 0
    assert other > 0
    assert mine + other == pytest.approx(every)
    assert await held("&cluster_queue=gpus") == pytest.approx(every)
    assert await held("&queue=research&namespace=team-a") == mine
    assert await held("&cluster_queue=nowhere") == 0


@pytest.mark.parametrize("hours", ["0", "169", "x"])
async def test_a_history_has_at_most_one_week(api: httpx2.AsyncClient, hours: str) -> None:
    assert (await api.get(f"/api/v1/reports/history?hours={hours}")).status_code == 422


async def test_the_history_has_only_namespaces_whose_reports_the_caller_may_get(
    stored: AnyStore,
) -> None:
    access = people()
    access.know("of-ann", "ann", Right("get", "reports", "team-a"))
    app = signed_app(stored, access)
    await commit(stored, live_through(job("other")))  # the namespace is known by it

    async def held(token: str) -> list[float]:
        async with asking(app, token) as client:
            items = (await client.get("/api/v1/reports/history?hours=4")).json()["items"]
            return [item["allocatedGpus"] for item in items]

    without_rights, anns, admins = await held(NO_RIGHTS), await held("of-ann"), await held(ADMIN)
    assert sum(without_rights) == 0 < sum(anns) < sum(admins)


async def test_a_past_hour_is_read_again_only_for_corrections(
    stored: AnyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Period] = []
    hours = stored.usage.hours

    async def noted(period: Period) -> UsageHours:
        read.append(period)
        return await hours(period)

    monkeypatch.setattr(stored.usage, "hours", noted)
    history, now = UsageHistory(stored), HOUR_AT + 1.5 * HOUR

    async def ask(at: float) -> list[HistoryPoint]:
        return list(await history.points(at, 3, lambda row: True, capacity=False))

    first = await ask(now)
    assert read.pop() == Period(int(HOUR_AT - HOUR), int(HOUR_AT + 2 * HOUR))
    assert await ask(now + 10) == first
    assert read == []
    assert await ask(now + 31) == first
    assert read.pop() == Period(int(HOUR_AT + HOUR), int(HOUR_AT + 2 * HOUR))
    assert await ask(now + 601) == first
    assert read.pop() == Period(int(HOUR_AT - HOUR), int(HOUR_AT + 2 * HOUR))


async def test_an_hour_is_read_again_when_it_is_complete(
    stored: AnyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a reader of the next hour alone was first to learn that it is complete."""
    read: list[Period] = []
    as_of = HOUR_AT + 0.5 * HOUR

    async def hours(period: Period) -> UsageHours:
        read.append(period)
        return UsageHours(as_of, (), {})

    monkeypatch.setattr(stored.usage, "hours", hours)
    history = UsageHistory(stored)
    await history.points(HOUR_AT + 0.5 * HOUR, 1, lambda row: True, capacity=False)
    as_of = HOUR_AT + 1.1 * HOUR
    await history.points(HOUR_AT + 1.1 * HOUR, 1, lambda row: True, capacity=False)
    await history.points(HOUR_AT + 1.1 * HOUR, 2, lambda row: True, capacity=False)
    assert read[-1] == Period(int(HOUR_AT), int(HOUR_AT + 2 * HOUR))
    await history.points(HOUR_AT + 1.2 * HOUR, 2, lambda row: True, capacity=False)
    assert read[-1] == Period(int(HOUR_AT + HOUR), int(HOUR_AT + 2 * HOUR))


async def test_the_incomplete_hours_are_as_new_as_any_other_hour(
    stored: AnyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another viewer reads other hours, and all of them are averages up to the time of that read."""
    as_of = HOUR_AT + HOUR - 20.0

    async def hours(period: Period) -> UsageHours:
        rows = (
            QueueHour(hour, "team-a", "default", "gpus", 64.0 * (min(as_of, hour + HOUR) - hour), 0, 0, 0)
            for hour in range(period.since, period.until, HOUR)
            if hour < as_of
        )  # fmt: skip
        return UsageHours(as_of, tuple(rows), {})

    monkeypatch.setattr(stored.usage, "hours", hours)
    history = UsageHistory(stored)

    async def held(at: float, count: int) -> set[float]:
        found = await history.points(at, count, lambda row: True, capacity=False)
        return {round(point.allocated, 6) for point in found}

    assert await held(HOUR_AT + HOUR - 5.0, 2) == {64.0}
    as_of = HOUR_AT + HOUR + 10.0
    assert await held(HOUR_AT + HOUR + 15.0, 1) == {64.0}
    assert await held(HOUR_AT + HOUR + 16.0, 2) == {64.0}
    as_of = HOUR_AT + HOUR + 20.0
    assert await held(HOUR_AT + HOUR + 22.0, 24) == {64.0}
    assert await held(HOUR_AT + HOUR + 23.0, 2) == {64.0}


async def test_a_restored_database_is_read_again(stored: AnyStore) -> None:
    history = UsageHistory(stored)
    now = HOUR_AT + 1.5 * HOUR

    async def held(at: float) -> float:
        found = await history.points(at, 3, lambda row: True, capacity=False)
        return sum(point.allocated for point in found)

    assert await held(now) > 0
    empty = MemoryStore()
    history._store = empty
    assert await held(now + 31) == 0
