"""States of admission checks are reported through REST, and shown with the workload."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from queuectl.domain.checks import CheckReport, CheckState, CheckStatus, PodSetUpdate
from queuectl.domain.events import Reserve
from queuectl.domain.fleet import Effect, Toleration
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import NO_END, CapacityLease
from tests.api.conftest import AnyStore, commit
from tests.api.support import PLACED, job, live_through

PATH = "/api/v1/namespaces/team-a/workloads/checked"
UPDATES = [
    {
        "name": "main",
        "labels": {"site": "north"},
        "nodeSelector": {"zone": "b"},
        "tolerations": [{"key": "staged", "operator": "Exists", "effect": "NoSchedule"}],
    }
]


@pytest.fixture(autouse=True)
async def waiting(store: AnyStore) -> None:
    """A gang that waits for two checks."""
    lease = CapacityLease(PLACED, (), 1.0, NO_END)
    checks = (CheckStatus("budget", since=1000.0, due=4600.0), CheckStatus("data", since=1000.0))
    reserve = Reserve(lease, Reason(Code.WAITING_FOR_CHECKS), checks)
    await commit(store, live_through(job("checked"), reserve))


async def test_a_report_is_stored_for_the_leader(api: httpx2.AsyncClient, store: AnyStore) -> None:
    body = {"check": "budget", "state": "Ready", "message": "approved\nby  finance"}
    answer = await api.post(f"{PATH}/check", json={**body, "podSetUpdates": UPDATES})
    assert answer.status_code == 202, answer.text
    assert answer.json() | {"check": "budget", "checkState": "Ready"} == answer.json()
    (kept,) = await store.commands()
    toleration = Toleration("staged", "Exists", "", Effect.NO_SCHEDULE)
    update = PodSetUpdate("main", (("site", "north"),), (), (("zone", "b"),), (toleration,))
    expected = CheckReport("budget", CheckState.READY, "approved by finance", None, (update,))
    assert kept.report == expected


async def test_the_checks_of_a_workload_are_shown(api: httpx2.AsyncClient) -> None:
    workload = (await api.get(PATH)).json()
    assert [(c["name"], c["state"], c["due"]) for c in workload["checks"]] == [
        ("budget", "Pending", "1970-01-01T01:16:40Z"),
        ("data", "Pending", None),
    ]
    explained = (await api.get(f"{PATH}/explain")).json()
    assert explained["checks"] == workload["checks"]
    assert explained["reservation"]["expiresAt"] is None
    assert "budget (Pending), data (Pending)" in explained["sentence"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"check": "budget"}, "state"),
        ({"check": "other", "state": "Ready"}, "check"),
        ({"check": "budget", "state": "Perhaps"}, "state"),
        ({"check": "budget", "state": "Ready", "requeueAfterSeconds": 5}, "requeueAfterSeconds"),
        ({"check": "budget", "state": "Retry", "requeueAfterSeconds": -1}, "requeueAfterSeconds"),
        ({"check": "budget", "state": "Retry", "requeueAfterSeconds": 9e15}, "requeueAfterSeconds"),
        ({"check": "budget", "state": "Retry", "podSetUpdates": UPDATES}, "podSetUpdates"),
        ({"check": "budget", "state": "Ready", "podSetUpdates": [{"name": "Main!"}]}, "name"),
    ],
)
async def test_a_malformed_report_is_refused_with_its_field(
    api: httpx2.AsyncClient, store: AnyStore, body: dict[str, Any], field: str
) -> None:
    answer = await api.post(f"{PATH}/check", json=body)
    assert answer.status_code == 422
    assert field in answer.text
    assert await store.commands() == ()


async def test_a_workload_without_a_reservation_waits_for_no_check(
    api: httpx2.AsyncClient, store: AnyStore
) -> None:
    await commit(store, live_through(job("pending")))
    body = {"check": "budget", "state": "Ready"}
    answer = await api.post("/api/v1/namespaces/team-a/workloads/pending/check", json=body)
    assert answer.status_code == 409
    assert (
        answer.json()["detail"] == "team-a/pending is Pending; it waits for no admission check now"
    )


async def test_a_time_that_no_calendar_has_is_shown_as_its_end(
    api: httpx2.AsyncClient, store: AnyStore
) -> None:
    lease = CapacityLease(PLACED, (), 1.0, NO_END)
    checks = (CheckStatus("budget", since=1000.0, due=1000.0 + 2.0**53),)
    await commit(
        store, live_through(job("later"), Reserve(lease, Reason(Code.WAITING_FOR_CHECKS), checks))
    )
    until = {"priority": 1, "until": "9999-12-31T23:59:59-23:59"}
    posted = await api.post(f"{PATH}/priority", json=until)
    assert posted.status_code == 202
    assert posted.json()["until"] == "9999-12-31T23:59:59Z"
    for path in ("workloads", "commands"):
        answer = await api.get(f"/api/v1/{path}")
        assert answer.status_code == 200
        assert "9999-12-31T23:59:59Z" in answer.text
