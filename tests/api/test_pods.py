"""The pods of a workload over REST: with the rights of the workload, page by page, and none before the watch has listed them."""

from __future__ import annotations

from typing import Any

import pytest

from queuectl.api.app import create_app
from queuectl.api.auth.authentication import OpenPaths
from queuectl.api.auth.layers import AuthenticationLayer
from queuectl.domain.identity import Right
from queuectl.domain.jobs import PodPhase, PodRecord
from queuectl.telemetry.metrics import MetricsRecorder
from tests.api.signed import ADMIN, asking, people
from tests.api.support import FixedHealth, FixedLookout, job, live_through
from tests.doubles.store import MemoryStore

PATH = "/api/v1/namespaces/team-a/workloads/train/pods"
TENANT = "of-the-tenant"
GANG = tuple(
    PodRecord("team-a", f"train-{n:03}", f"p{n}", 1, podset="worker", rank=n, attempt=1, node="n1")
    for n in range(512)
)
FAILED = PodRecord(
    "team-a", "train-0", "p", 1, attempt=1, podset="worker", phase=PodPhase.FAILED,
    restarts=3, status_reason="OOMKilled (exit code 137)",
)  # fmt: skip


async def answer(
    *rights: Right,
    token: str = ADMIN,
    path: str = PATH,
    pods: tuple[PodRecord, ...] | None = GANG,
    **query: str | int,
) -> Any:
    access = people()
    access.know(TENANT, "tenant", *rights)
    store = MemoryStore()
    for change in live_through(job("train", namespace="team-a")):
        store._write(change, 1)
    app = create_app(
        store,
        FixedHealth(),
        MetricsRecorder().registry,
        cluster_reader=FixedLookout(None, pods=pods),
        authenticated=AuthenticationLayer(access, secure=True, open_paths=OpenPaths()),
    )
    async with asking(app, token) as client:
        return await client.get(path, params=query)


async def test_a_pod_has_its_node_and_the_reason_why_it_does_not_run() -> None:
    (item,) = (await answer(pods=(FAILED,))).json()["items"]
    assert item == {
        "name": "train-0",
        "podSet": "worker",
        "rank": None,
        "attempt": 1,
        "phase": "Failed",
        "ready": False,
        "terminating": False,
        "node": None,
        "restarts": 3,
        "reason": "OOMKilled (exit code 137)",
    }


async def test_the_pages_of_a_large_gang_join_to_all_its_pods() -> None:
    found: list[str] = []
    cursor = ""
    while True:
        body = (await answer(limit=200, cursor=cursor)).json()
        found += [item["name"] for item in body["items"]]
        if body["nextCursor"] is None:
            break
        cursor = body["nextCursor"]
    assert found == [pod.name for pod in GANG]


async def test_pods_are_shown_to_callers_that_may_read_the_workload() -> None:
    right = Right("get", "workloads", "team-a", "train")
    assert (await answer(right, token=TENANT)).status_code == 200
    assert (await answer(token=TENANT)).status_code == 403


async def test_another_teams_uid_is_not_found() -> None:
    by_uid = "/api/v1/workloads/u-train/pods"
    assert (await answer(token=TENANT, path=by_uid)).status_code == 404


async def test_pods_are_unknown_before_the_first_list_of_the_watch() -> None:
    refused = await answer(pods=None)
    assert (refused.status_code, refused.json()["type"].rpartition("/")[2]) == (
        503,
        "not-known-yet",
    )


@pytest.mark.parametrize("cursor", ["%", "a"])
async def test_an_invalid_cursor_is_refused(cursor: str) -> None:
    assert (await answer(cursor=cursor)).status_code == 422
