"""Budgets over REST and on the command line: top-ups with their own right, and the report."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from queuectl.api import budgets
from queuectl.api.app import create_app
from queuectl.api.auth.authentication import OpenPaths
from queuectl.api.auth.layers import AuthenticationLayer
from queuectl.cli.main import run
from queuectl.domain.budgets import GPU_HOUR
from queuectl.domain.errors import StoreUnavailable
from queuectl.domain.identity import Right
from queuectl.domain.pastuse import Used
from queuectl.domain.snapshot import Snapshot
from queuectl.telemetry.metrics import MetricsRecorder
from tests.api.serving import serving
from tests.api.signed import ADMIN, asking, people, signed_app
from tests.api.support import FixedClusterReader, FixedHealth
from tests.doubles.store import MemoryStore
from tests.planner.test_budgets import budget, of, runs, spending

BUDGET = "/api/v1/budgets/b"
DOCUMENT: dict[str, Any] = {
    "apiVersion": "queuectl.dev/v1",
    "kind": "Budget",
    "metadata": {"name": "b"},
    "spec": {"clusterQueue": "main", "gpuHoursPerMonth": 10},
}
BODY = {"gpuHours": 2.5, "month": "2126-12", "reason": "paper deadline"}
TENANT = "of-the-tenant"
NEW_MONTH = datetime(2026, 12, 1, tzinfo=UTC).timestamp()


async def stored(store: MemoryStore) -> list[dict[str, Any]]:
    return [one.document["spec"] for one in await store.list_config("BudgetTopUp")]


async def test_a_top_up_is_an_object_with_its_user_and_a_line_of_the_audit_log() -> None:
    store, access = MemoryStore(), people()
    access.know(TENANT, "tenant", Right("create", "budgets/topups"))
    app = signed_app(store, access)
    async with asking(app, ADMIN) as admin:
        assert (await admin.put(BUDGET, json=DOCUMENT)).status_code == 201
    async with asking(app, TENANT) as tenant:
        assert (await tenant.put(BUDGET, json=DOCUMENT)).status_code == 403
        first = await tenant.post(f"{BUDGET}/topups", json=BODY)
        second = await tenant.post(f"{BUDGET}/topups", json={**BODY, "gpuHours": "1/2"})
    assert first.status_code == second.status_code == 201
    assert [a.json()["name"] for a in (first, second)] == ["b-2126-12-1", "b-2126-12-2"]
    assert [a.json()["gpuHours"] for a in (first, second)] == [2.5, 0.5]
    assert first.json()["by"] == "tenant"
    kept = await stored(store)
    assert {(spec["by"], spec["reason"]) for spec in kept} == {("tenant", "paper deadline")}
    async with asking(app, ADMIN) as admin:
        lines = (await admin.get("/api/v1/audit")).json()["items"]
    top_ups = [line for line in lines if line["operation"] == "topUpBudget"]
    assert {line["caller"] for line in top_ups} == {"tenant"}
    assert any("2.5 GPU-hours; reason: paper deadline" in line["detail"] for line in top_ups)


class AnswerLost(MemoryStore):
    """The first top-up is stored, but the answer of the database is lost."""

    lost = False

    async def put_config(
        self, document: Mapping[str, Any], if_match: int | None = None, used: Sequence[Used] = ()
    ) -> int:
        version = await super().put_config(document, if_match, used)
        if document["kind"] == "BudgetTopUp" and not self.lost:
            self.lost = True
            raise StoreUnavailable("the connection is lost")
        return version


async def test_a_top_up_that_is_sent_again_with_its_key_counts_once() -> None:
    store, access = AnswerLost(), people()
    access.know(TENANT, "tenant", Right("create", "budgets/topups"))
    app, key = signed_app(store, access), {"Idempotency-Key": "top-up-1"}
    topups = f"{BUDGET}/topups"
    async with asking(app, ADMIN) as admin:
        await admin.put(BUDGET, json=DOCUMENT)
        assert (await admin.post(topups, json=BODY, headers=key)).status_code == 503
        again = [await admin.post(topups, json=BODY, headers=key) for _ in range(2)]
        checked = await admin.post(f"{topups}?dry_run=true", json=BODY, headers=key)
        # Another month has begun: a request without a month is still the same.
        later = await admin.post(topups, json={**BODY, "month": None}, headers=key)
        others = [
            await admin.post(topups, json={**BODY, **change}, headers=key)
            for change in ({"gpuHours": 3}, {"reason": "another"}, {"month": "2127-01"})
        ]
    assert [a.status_code for a in [*again, checked, later]] == [201, 201, 201, 201]
    (kept,) = await store.list_config("BudgetTopUp")
    assert {a.json()["name"] for a in [*again, checked, later]} == {kept.key.name}
    assert {a.status_code for a in others} == {422}
    assert all(a.json()["type"].endswith("/request-id-reused") for a in others)
    async with asking(app, TENANT) as tenant:  # the key of another user
        assert (await tenant.post(topups, json=BODY, headers=key)).json()["by"] == "tenant"
    assert len(await stored(store)) == 2


async def test_requests_with_the_same_key_at_the_same_time_count_once() -> None:
    store = MemoryStore()
    async with asking(signed_app(store, people()), ADMIN) as admin:
        await admin.put(BUDGET, json=DOCUMENT)
        key = {"Idempotency-Key": "top-up-1"}
        sent = [admin.post(f"{BUDGET}/topups", json=BODY, headers=key) for _ in range(3)]
        answers = await asyncio.gather(*sent)
    assert [answer.status_code for answer in answers] == [201] * 3
    assert len(await stored(store)) == 1


def test_the_command_sends_a_top_up_again_whose_answer_is_lost(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = AnswerLost()
    asyncio.run(store.put_config(DOCUMENT))
    with serving(store) as url:
        monkeypatch.setenv("QUEUECTL_SERVER", url)
        line = "topup b --gpu-hours 2.5 --month 2126-12 --reason deadline"
        assert "created: 2.5 GPU-hours" in typed(capsys, monkeypatch, line)
    assert len(asyncio.run(stored(store))) == 1


def test_a_top_up_that_is_typed_again_with_its_key_counts_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = AnswerLost()
    asyncio.run(store.put_config(DOCUMENT))
    line = "topup b --gpu-hours 1200000 --month 2126-12 --reason deadline"
    with serving(store) as url:
        monkeypatch.setenv("QUEUECTL_SERVER", url)
        with monkeypatch.context() as once:
            once.setattr("queuectl.cli.client.RETRIES", 0)
            once.setattr("sys.argv", ["queuectl", *line.split()])
            with pytest.raises(SystemExit) as ended:
                run()
        said = capsys.readouterr().err
        assert ended.value.code == 1
        assert "the top-up is possibly created" in said
        option = said[said.index("--key") :].partition(" to ")[0]
        again = typed(capsys, monkeypatch, f"{line} {option}")
        assert "created: 1200000 GPU-hours" in again
    assert len(asyncio.run(stored(store))) == 1


async def test_budgets_with_long_names_have_top_ups_that_are_each_written_once() -> None:
    writes = list[str]()

    class Recorded(MemoryStore):
        async def put_config(
            self,
            document: Mapping[str, Any],
            if_match: int | None = None,
            used: Sequence[Used] = (),
        ) -> int:
            writes.append(document["metadata"]["name"])
            return await super().put_config(document, if_match, used)

    store = Recorded()
    names = [f"{'long-name' * 27}-{end}" for end in ("a", "b")]  # they have the same beginning
    async with asking(signed_app(store, people()), ADMIN) as admin:
        for name in names:
            made = await admin.put(
                f"/api/v1/budgets/{name}", json={**DOCUMENT, "metadata": {"name": name}}
            )
            assert made.status_code == 201, made.text
        writes.clear()
        topped = [
            await admin.post(f"/api/v1/budgets/{name}/topups", json=BODY) for name in names * 2
        ]
    assert [answer.status_code for answer in topped] == [201] * 4, topped[0].text
    assert [answer.json()["budget"] for answer in topped] == names * 2
    assert writes == [answer.json()["name"] for answer in topped]
    assert len(set(writes)) == 4


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/api/v1/budgets/other/topups", BODY, 404),
        (f"{BUDGET}/topups", None, 422),
        (f"{BUDGET}/topups", {**BODY, "reason": ""}, 422),
        (f"{BUDGET}/topups", {**BODY, "gpuHours": 0}, 422),
        (f"{BUDGET}/topups", {**BODY, "gpuHours": -1}, 422),
        (f"{BUDGET}/topups", {**BODY, "month": "2026-13"}, 422),
        (f"{BUDGET}/topups", {**BODY, "by": "another"}, 422),
    ],
)
async def test_a_wrong_top_up_is_refused_and_changes_nothing(
    api: httpx2.AsyncClient, path: str, body: dict[str, Any] | None, status: int
) -> None:
    assert (await api.put(BUDGET, json=DOCUMENT)).status_code == 201
    answer = await api.post(path, json=body) if body is not None else await api.post(path)
    assert answer.status_code == status, answer.text
    assert (await api.get("/api/v1/budgettopups")).json()["items"] == []


@pytest.mark.parametrize(("zone", "current"), [("UTC", "2026-12"), ("America/New_York", "2026-11")])
async def test_a_month_that_has_ended_in_the_time_zone_of_the_budget_is_refused(
    api: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch, zone: str, current: str
) -> None:
    monkeypatch.setattr(budgets, "time", SimpleNamespace(time=lambda: NEW_MONTH))
    spec = {**DOCUMENT["spec"], "timeZone": zone}
    assert (await api.put(BUDGET, json={**DOCUMENT, "spec": spec})).status_code == 201
    for month in ("0001-01", "2026-10", "2026-11", "2026-12"):
        answer = await api.post(f"{BUDGET}/topups?dry_run=true", json={**BODY, "month": month})
        if month >= current:
            assert answer.status_code == 201, answer.text
            continue
        assert answer.status_code == 422
        reason = f"month: {month} has ended; the current month of Budget b is {current}"
        assert answer.json()["errors"] == [{"field": "month", "reason": reason}]
        assert answer.json()["detail"] == reason


async def test_a_top_up_that_is_sent_again_after_its_month_is_still_the_first_one(
    api: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await api.put(BUDGET, json=DOCUMENT)).status_code == 201
    key, body = {"Idempotency-Key": "top-up-1"}, {**BODY, "month": "2026-11"}
    names = []
    for now in (NEW_MONTH - 1.0, NEW_MONTH):
        monkeypatch.setattr(budgets, "time", SimpleNamespace(time=lambda at=now: at))
        names.append((await api.post(f"{BUDGET}/topups", json=body, headers=key)).json()["name"])
    assert names[0] == names[1]


def snapshot() -> Snapshot:
    """8 of 10 GPU-hours are spent; a gang of 2 GPUs runs on, and one of 8 GPU-hours waits."""
    return spending(budget(), [of("p", 4, run=2)], [runs("r", 2, None)], 8.0)


async def report(token: str, *rights: Right) -> Any:
    access, store = people(), MemoryStore()
    access.know(TENANT, "tenant", *rights)
    app = create_app(
        store,
        FixedHealth(),
        MetricsRecorder().registry,
        cluster_reader=FixedClusterReader(snapshot(), store),
        authenticated=AuthenticationLayer(access, secure=True, open_paths=OpenPaths()),
    )
    async with asking(app, token) as client:
        return (await client.get("/api/v1/reports/budgets")).json()


async def test_the_report_has_the_use_and_the_forecast() -> None:
    (item,) = (await report(ADMIN))["items"]
    assert item["grantedGpuHours"] == 10
    assert item["spentGpuHours"] == item["ledgerGpuHours"] == 8
    assert item["committedGpuHours"] == 2  # one hour of the gang without a known end
    assert item["leftGpuHours"] == 0
    assert item["runningGpus"] == 2
    assert item["spentAt"] == "1970-01-12T14:46:40Z"
    assert item["pendingGpuHours"] == 8


async def test_a_tenant_sees_the_budgets_of_the_namespaces_in_which_it_gets_reports() -> None:
    assert (await report(TENANT, Right("get", "reports", "team")))["items"] == []
    assert (await report(TENANT))["items"] == []


@pytest.fixture
def server() -> Iterator[str]:
    store = MemoryStore()
    reader = FixedClusterReader(snapshot(), store)
    with serving(store, cluster_reader=reader) as url:
        yield url


def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, line: str) -> str:
    monkeypatch.setattr("sys.argv", ["queuectl", *line.split()])
    with pytest.raises(SystemExit) as ended:
        run()
    assert not ended.value.code
    return capsys.readouterr().out


def test_the_commands_show_budgets_and_top_them_up(
    server: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Any,
) -> None:
    monkeypatch.setenv("QUEUECTL_SERVER", server)
    file = tmp_path / "budget.json"
    file.write_text(httpx2.Response(200, json=DOCUMENT).text)

    def type_in(line: str) -> str:
        return typed(capsys, monkeypatch, line)

    assert "budget/b created" in type_in(f"apply -f {file}")
    made = type_in("topup b --gpu-hours 2.5 --month 2126-12 --reason deadline")
    created = "budgettopup/b-2126-12-[0-9a-f]{12} created: 2.5 GPU-hours for 2126-12\n"
    assert re.fullmatch(created, made)
    assert "clusterQueue main" in type_in("get budgets")
    assert "+2.5" in type_in("get budgettopups")
    head, row = type_in("report budgets").splitlines()[2:]
    assert head.split()[:3] == ["NAME", "FOR", "MONTH"]
    assert row.split()[-7:-3] == ["10.0", "8.0", "2.0", "0.0"]
    assert "deleted" in type_in("delete budget b")


def test_amounts_are_exact_units() -> None:
    assert GPU_HOUR == 3600 * 1000 * 100_800
