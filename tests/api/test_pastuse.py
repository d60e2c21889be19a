"""Past use over REST: the samples, as of one time, and the import from the LocalQueues of Kueue."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import httpx2
import pytest

from queuectl.domain.identity import Right
from queuectl.domain.ledger import Document
from queuectl.domain.pastuse import AccountScope, PastUseAccount, Used
from tests.api.conftest import AnyStore
from tests.api.signed import ADMIN, asking, people, signed_app
from tests.api.support import CLUSTER_QUEUE, LOCAL_QUEUE, QUEUE_PATH

PATH = "/api/v1/pastuse"
LOCAL_PATH = "/api/v1/namespaces/team-a/localqueues/default"
SETTINGS = {
    "apiVersion": "queuectl.dev/v1",
    "kind": "Configuration",
    "metadata": {"name": "default"},
    "admissionFairSharing": {"usageHalfLifeTime": "100s", "resourceWeights": {"cpu": 0.5}},
}
OWN = PastUseAccount.of_local_queue("team-a", "default")


def local_queue(name: str, **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "team-a"}
    return {**LOCAL_QUEUE, "metadata": metadata, "spec": {**LOCAL_QUEUE["spec"], **spec}}


async def configure(api: httpx2.AsyncClient) -> None:
    await api.put(QUEUE_PATH, json=CLUSTER_QUEUE)
    await api.put(LOCAL_PATH, json=LOCAL_QUEUE)
    other = local_queue("other", fairSharing={"weight": 2})
    await api.put("/api/v1/namespaces/team-a/localqueues/other", json=other)
    none = local_queue("none", fairSharing={"weight": 0})
    await api.put("/api/v1/namespaces/team-a/localqueues/none", json=none)
    await api.put("/api/v1/configurations/default", json=SETTINGS)


async def items(api: httpx2.AsyncClient) -> dict[str, dict[str, Any]]:
    answer = await api.get(PATH)
    assert answer.status_code == 200
    return {item["name"]: item for item in answer.json()["items"]}


async def test_every_figure_is_that_of_the_last_sample(
    api: httpx2.AsyncClient, store: AnyStore
) -> None:
    await configure(api)
    epoch = await store.take_over("test", 0)
    used = [
        Used(OWN, 200.0, {"cpu": 4000.0, "memory": 0.0, "nvidia.com/gpu": 4.0}),
        Used(PastUseAccount.of_local_queue("team-a", "other"), 100.0, {"nvidia.com/gpu": 8.0}),
        Used(PastUseAccount.of_local_queue("team-a", "none"), 200.0, {"nvidia.com/gpu": 1.0}),
        Used(PastUseAccount.of_local_queue("team-a", "deleted"), 200.0, {"nvidia.com/gpu": 9.0}),
        Used(PastUseAccount(AccountScope.USER, "ann"), 200.0, {"nvidia.com/gpu": 1.0}),
        Used(PastUseAccount(AccountScope.USER, "ben"), 200.0, {"nvidia.com/gpu": 3.0}),
    ]
    await store.keep_use(used, 0.0, epoch=epoch)
    assert (await api.get(PATH)).json()["asOf"] == "1970-01-01T00:03:20Z"
    found = await items(api)
    assert found["default"] == {
        "scope": "LocalQueue",
        "namespace": "team-a",
        "name": "default",
        "clusterQueue": CLUSTER_QUEUE["metadata"]["name"],
        "resources": {"cpu": 4.0, "memory": 0.0, "nvidia.com/gpu": 4.0},
        "usage": 6.0,
        "share": 0.75,
    }
    assert found["other"]["resources"] == {"nvidia.com/gpu": 4.0}, "a half-life later"
    assert (found["other"]["usage"], found["other"]["share"]) == (2.0, 0.25)
    assert (found["none"]["usage"], found["none"]["share"]) == (None, None)
    assert (found["deleted"]["clusterQueue"], found["deleted"]["usage"]) == (None, None)
    assert (found["ann"]["share"], found["ben"]["share"]) == (0.25, 0.75)
    assert found["ann"]["namespace"] is None


async def test_without_usage_based_fair_sharing_the_list_is_empty(
    api: httpx2.AsyncClient, store: AnyStore
) -> None:
    epoch = await store.take_over("test", 0)
    await store.keep_use([Used(OWN, 200.0, {"cpu": 1.0})], 0.0, epoch=epoch)
    assert (await api.get(PATH)).json() == {"asOf": None, "items": []}


def stated(amount: str, at: str = "2026-01-01T00:00:00Z") -> dict[str, Any]:
    status = {"consumedResources": {"nvidia.com/gpu": amount}, "lastUpdate": at}
    return {
        **LOCAL_QUEUE,
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "status": {"fairSharing": {"admissionFairSharingStatus": status}},
    }


async def test_past_use_that_kueue_states_is_taken_over_once(
    api: httpx2.AsyncClient, store: AnyStore
) -> None:
    assert (await api.put(LOCAL_PATH, json=stated("8"))).status_code == 201
    assert await store.past_use() == (Used(OWN, 1767225600.0, {"nvidia.com/gpu": 8.0}),)
    await api.put(LOCAL_PATH, json=stated("99"))
    assert [used.amounts for used in await store.past_use()] == [{"nvidia.com/gpu": 8.0}]


async def test_past_use_of_the_future_counts_from_now_on(
    api: httpx2.AsyncClient, store: AnyStore
) -> None:
    begun = time.time()
    await api.put(LOCAL_PATH, json=stated("8", "2099-01-01T00:00:00Z"))
    (used,) = await store.past_use()
    assert begun <= used.at <= time.time()


async def test_a_document_that_is_not_stored_starts_no_past_use(
    api: httpx2.AsyncClient, store: AnyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer changes the document between the check of its version and the write."""
    tag = (await api.put(LOCAL_PATH, json=LOCAL_QUEUE)).headers["ETag"]
    put_config = store.put_config

    async def second(document: Document, if_match: int | None, used: Sequence[Used]) -> int:
        await put_config({**LOCAL_QUEUE, "spec": {"clusterQueue": "another"}})
        return await put_config(document, if_match, used)

    monkeypatch.setattr(store, "put_config", second)
    answer = await api.put(LOCAL_PATH, json=stated("8"), headers={"If-Match": tag})
    assert answer.status_code == 412
    assert await store.past_use() == ()


@pytest.mark.parametrize("amount", ["many", "-1"])
async def test_malformed_past_use_is_refused(api: httpx2.AsyncClient, amount: str) -> None:
    answer = await api.put(LOCAL_PATH, json=stated(amount))
    assert answer.status_code == 422
    assert "admissionFairSharingStatus.consumedResources.nvidia.com/gpu" in answer.text


async def test_a_tenant_sees_the_local_queues_of_its_own_namespaces(store: AnyStore) -> None:
    access = people()
    access.know("token", "tenant", Right("get", "reports", "team-a"))
    app = signed_app(store, access)
    async with asking(app, ADMIN) as admin:
        await configure(admin)
        queue = {**LOCAL_QUEUE, "metadata": {"name": "theirs", "namespace": "team-b"}}
        await admin.put("/api/v1/namespaces/team-b/localqueues/theirs", json=queue)
        epoch = await store.take_over("test", 0)
        used = [
            Used(OWN, 200.0, {"cpu": 1.0}),
            Used(PastUseAccount.of_local_queue("team-b", "theirs"), 200.0, {"cpu": 1.0}),
            Used(PastUseAccount(AccountScope.USER, "ann"), 200.0, {"cpu": 1.0}),
        ]
        await store.keep_use(used, 0.0, epoch=epoch)
        assert set(await items(admin)) == {"default", "theirs", "ann"}
    async with asking(app, "token") as tenant:
        assert set(await items(tenant)) == {"default"}
