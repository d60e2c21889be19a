"""Stop and resume of queues over REST: one field, its own right, an entry in the audit log."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

from queuectl.domain.errors import Conflict
from queuectl.domain.identity import Right
from queuectl.domain.queries import DocumentKey
from queuectl.domain.what_if import DrainCost
from tests.api.conftest import AnyStore
from tests.api.signed import ADMIN, asking, people, signed_app
from tests.api.support import CLUSTER_QUEUE, LOCAL_QUEUE, QUEUE_PATH, FixedDiagnoser
from tests.doubles.store import MemoryStore

LOCAL_PATH = "/api/v1/namespaces/team-a/localqueues/default"
BOTH = pytest.mark.parametrize("path", [QUEUE_PATH, LOCAL_PATH], ids=["cluster", "local"])


@pytest.fixture
async def queues(api: httpx2.AsyncClient) -> httpx2.AsyncClient:
    """Stores a ClusterQueue and a LocalQueue of it."""
    for path, document in ((QUEUE_PATH, CLUSTER_QUEUE), (LOCAL_PATH, LOCAL_QUEUE)):
        assert (await api.put(path, json=document)).status_code == 201
    return api


async def stopped(api: httpx2.AsyncClient, path: str) -> str | None:
    policy: str | None = (await api.get(path)).json()["spec"].get("stopPolicy")
    return policy


@BOTH
async def test_a_stop_and_a_resume_change_one_field_and_nothing_the_second_time(
    queues: httpx2.AsyncClient, path: str
) -> None:
    before = (await queues.get(path)).json()["spec"]
    answers: list[tuple[Any, ...]] = []
    for verb, body in (
        ("stop", None), ("stop", {}), ("stop", {"drain": True}), ("stop", {"drain": True}),
        ("resume", None), ("resume", {"reason": "it is over"}),
    ):  # fmt: skip
        answer = await queues.post(f"{path}/{verb}", json=body)
        assert answer.status_code == 200, answer.text
        answers.append((answer.json()["stopPolicy"], answer.json()["result"]))
    assert answers == [
        ("Hold", "configured"),
        ("Hold", "unchanged"),
        ("HoldAndDrain", "configured"),
        ("HoldAndDrain", "unchanged"),
        ("None", "configured"),
        ("None", "unchanged"),
    ]
    assert (await queues.get(path)).json()["spec"] == before


async def test_the_answer_names_the_queue(queues: httpx2.AsyncClient) -> None:
    assert (await queues.post(f"{LOCAL_PATH}/stop")).json() == {
        "kind": "LocalQueue",
        "namespace": "team-a",
        "name": "default",
        "stopPolicy": "Hold",
        "result": "configured",
        "drains": None,
    }


@pytest.mark.parametrize("verb", ["stop", "resume"])
async def test_an_unknown_queue_is_not_found_by_its_name(
    queues: httpx2.AsyncClient, verb: str
) -> None:
    for path, named in (
        ("/api/v1/clusterqueues/nowhere", "ClusterQueue nowhere"),
        ("/api/v1/namespaces/team-b/localqueues/default", "LocalQueue team-b/default"),
    ):
        answer = await queues.post(f"{path}/{verb}")
        assert answer.status_code == 404
        assert answer.json()["detail"] == f"{named} does not exist"


@pytest.mark.parametrize(
    "body", [{"drain": "perhaps"}, {"reason": ""}, {"policy": "Hold"}, {"reason": "x" * 501}]
)
async def test_a_malformed_body_is_refused_and_changes_nothing(
    queues: httpx2.AsyncClient, body: dict[str, Any]
) -> None:
    assert (await queues.post(f"{QUEUE_PATH}/stop", json=body)).status_code == 422
    assert await stopped(queues, QUEUE_PATH) is None


async def test_stops_and_other_changes_at_the_same_time_all_take_effect(
    queues: httpx2.AsyncClient,
) -> None:
    """A stop is retried after a concurrent write."""
    headers = {"Content-Type": "application/merge-patch+json", "If-Match": "*"}
    body = {"spec": {"queueingStrategy": "BestEffortFIFO"}}
    answers = await asyncio.gather(
        queues.post(f"{QUEUE_PATH}/stop"),
        queues.patch(QUEUE_PATH, json=body, headers=headers),
        queues.post(f"{QUEUE_PATH}/stop"),
    )
    assert answers[0].status_code == answers[2].status_code == 200
    spec = (await queues.get(QUEUE_PATH)).json()["spec"]
    assert spec["stopPolicy"] == "Hold"
    if answers[1].status_code == 200:
        assert spec["queueingStrategy"] == "BestEffortFIFO"


async def test_a_queue_that_changes_too_often_is_a_conflict(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def changed(document: Any, if_match: int | None = None) -> int:
        raise Conflict("it was changed")

    async with asking(signed_app(memory, people()), ADMIN) as admin:
        await admin.put(QUEUE_PATH, json=CLUSTER_QUEUE)
        monkeypatch.setattr(memory, "put_config", changed)
        answer = await admin.post(f"{QUEUE_PATH}/stop")
    assert answer.status_code == 412
    assert answer.json()["detail"] == "ClusterQueue team-a is changed by others; try again"


async def test_a_dry_run_shows_what_a_drain_evicts_and_changes_nothing(
    memory: MemoryStore,
) -> None:
    diagnoser = FixedDiagnoser()
    async with asking(signed_app(memory, people(), diagnoser), ADMIN) as admin:
        await admin.put(QUEUE_PATH, json=CLUSTER_QUEUE)

        async def preview(drain: bool) -> Any:
            answer = await admin.post(f"{QUEUE_PATH}/stop?dry_run=true", json={"drain": drain})
            assert answer.status_code == 200
            assert answer.json()["result"] == "configured"
            return answer.json()["drains"]

        assert await preview(True) is None, "this process does not know the cluster yet"
        diagnoser.drains[DocumentKey("ClusterQueue", "", "team-a")] = DrainCost(2, 6, 48, 7200)
        assert await preview(False) is None, "no gang is evicted"
        assert await preview(True) == {"gangs": 2, "pods": 6, "gpus": 48, "lostGpuSeconds": 7200}
        assert await stopped(admin, QUEUE_PATH) is None


async def test_the_audit_log_has_the_change_and_the_reason(store: AnyStore) -> None:
    async with asking(signed_app(store, people()), ADMIN) as admin:
        await admin.put(QUEUE_PATH, json=CLUSTER_QUEUE)
        await admin.post(f"{QUEUE_PATH}/stop", json={"reason": "new racks"})
        await admin.post(f"{QUEUE_PATH}/stop")
        await admin.post(f"{QUEUE_PATH}/resume")
        lines = (await admin.get("/api/v1/audit")).json()["items"]
    assert [(line["operation"], line["detail"]) for line in lines[:3]] == [
        ("resumeClusterQueue", "configured; spec.stopPolicy: 'Hold' -> None"),
        ("stopClusterQueue", "unchanged"),
        ("stopClusterQueue", "configured; spec.stopPolicy: None -> 'Hold'; reason: new racks"),
    ]


async def test_the_right_to_stop_one_queue_permits_nothing_else(memory: MemoryStore) -> None:
    access = people()
    access.know("of-the-lead", "lead", Right("create", "clusterqueues/stop", "", "team-a"))
    app = signed_app(memory, access)
    other = {**CLUSTER_QUEUE, "metadata": {"name": "team-b"}}
    async with asking(app, ADMIN) as admin, asking(app, "of-the-lead") as lead:
        for document in (CLUSTER_QUEUE, other):
            await admin.put(f"/api/v1/clusterqueues/{document['metadata']['name']}", json=document)
        assert (await lead.post(f"{QUEUE_PATH}/stop")).status_code == 200
        for request in (
            lead.post(f"{QUEUE_PATH}/resume"),
            lead.post("/api/v1/clusterqueues/team-b/stop"),
            lead.put(QUEUE_PATH, json=CLUSTER_QUEUE),
            lead.get(QUEUE_PATH),
        ):
            assert (await request).status_code == 403
        assert await stopped(admin, QUEUE_PATH) == "Hold"
