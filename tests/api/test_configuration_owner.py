"""Where objects of the cluster own the configuration: writes are refused with the command of kubectl, operations are not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from queuectl.api.app import create_app
from queuectl.cli.followed import described
from queuectl.domain.followed import (
    FaultyObject,
    FollowedReport,
    FollowedSource,
    PendingDeletion,
)
from queuectl.domain.queries import DocumentKey
from queuectl.objects.configuration.config_kinds import BY_KIND
from queuectl.objects.configuration.owners import FOLLOWED, Owner
from queuectl.objects.configuration.queue_config import read, validate
from queuectl.objects.configuration.stops import STOP_ANNOTATION, stop_of
from queuectl.telemetry.metrics import MetricsRecorder
from queuectl.web.app import add_dashboard
from tests.api.support import CLUSTER_QUEUE, LOCAL_QUEUE, QUEUE_PATH, FixedHealth
from tests.doubles.store import MemoryStore

LOCAL_PATH = "/api/v1/namespaces/team-a/localqueues/default"
QUEUE = DocumentKey("ClusterQueue", "", CLUSTER_QUEUE["metadata"]["name"])
OWNED = pytest.mark.parametrize(
    ("owner", "group"),
    [(Owner.KUEUE, "kueue.x-k8s.io"), (Owner.KUBERNETES, "queuectl.dev")],
    ids=["kueue", "kubernetes"],
)


@pytest.fixture
def owner() -> Owner:
    return Owner.KUEUE


@pytest.fixture
async def owned(owner: Owner) -> AsyncIterator[tuple[httpx2.AsyncClient, MemoryStore]]:
    """An API over stored queues that objects own."""
    store = MemoryStore()
    for document in (CLUSTER_QUEUE, LOCAL_QUEUE):
        await store.put_config(validate(document)[0])
    app = create_app(store, FixedHealth(), MetricsRecorder().registry, owner=owner)
    add_dashboard(app, store, app.state.guard)
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client, store


@OWNED
async def test_each_write_is_refused_with_the_command_that_does_the_same(
    owned: tuple[httpx2.AsyncClient, MemoryStore], group: str
) -> None:
    api, store = owned
    name = QUEUE.name
    fresh = {**CLUSTER_QUEUE, "metadata": {"name": "fresh"}}
    patch = {"If-Match": "*", "Content-Type": "application/merge-patch+json"}
    before = dict(store.database.documents)
    for answer, command in (
        (
            await api.put(QUEUE_PATH, json=CLUSTER_QUEUE),
            f"kubectl edit clusterqueue.{group} {name}",
        ),
        (
            await api.patch(QUEUE_PATH, content=b'{"spec": {"stopPolicy": "Hold"}}', headers=patch),
            f"kubectl edit clusterqueue.{group} {name}",
        ),
        (await api.delete(QUEUE_PATH), f"kubectl delete clusterqueue.{group} {name}"),
        (await api.put("/api/v1/clusterqueues/fresh", json=fresh), "kubectl apply -f FILE"),
        (await api.delete(LOCAL_PATH), f"kubectl delete localqueue.{group} default -n team-a"),
    ):
        problem = answer.json()
        assert answer.status_code == 409, answer.text
        assert problem["type"].endswith("/not-the-owner")
        assert problem["command"] == command
        assert f"`{command}`" in problem["detail"]
    assert store.database.documents == before


@OWNED
async def test_every_followed_kind_is_refused_and_every_other_kind_is_not(
    owned: tuple[httpx2.AsyncClient, MemoryStore], owner: Owner, group: str
) -> None:
    api, _ = owned
    for one in FOLLOWED[owner]:
        answer = await api.delete(one.kind.path("team-a", "absent"))
        assert answer.status_code == 409, f"{one.definition}: {answer.text}"
        assert group in answer.json()["command"]
    kept = {"ProvisioningRequestConfig", "AdmissionCheck"} if owner is Owner.KUBERNETES else set()
    for kind in {"Budget", "QuotaOverride", "Reservation"} | kept:
        assert (await api.delete(BY_KIND[kind].path("", "absent"))).status_code == 404
    budget = {
        "apiVersion": "queuectl.dev/v1",
        "kind": "Budget",
        "metadata": {"name": "year"},
        "spec": {"clusterQueue": QUEUE.name, "gpuHoursPerMonth": 100},
    }
    assert (await api.put("/api/v1/budgets/year", json=budget)).status_code == 201


async def test_a_dry_run_is_refused_as_the_write_and_that_of_several_documents_shows_it(
    owned: tuple[httpx2.AsyncClient, MemoryStore],
) -> None:
    api, _ = owned
    spec = {**CLUSTER_QUEUE["spec"], "stopPolicy": "Hold"}
    changed = {**CLUSTER_QUEUE, "spec": spec}
    fresh = {**CLUSTER_QUEUE, "metadata": {"name": "fresh"}}
    patch = {"If-Match": "*", "Content-Type": "application/merge-patch+json"}
    edit, create = f"kubectl edit clusterqueue.kueue.x-k8s.io {QUEUE.name}", "kubectl apply -f FILE"
    path, fresh_path = f"{QUEUE_PATH}?dry_run=true", "/api/v1/clusterqueues/fresh?dry_run=true"
    for answer, command in (
        (await api.put(path, json=changed), edit),
        (await api.patch(path, content=b'{"spec": {"stopPolicy": "Hold"}}', headers=patch), edit),
        (await api.put(fresh_path, json=fresh), create),
    ):
        assert answer.status_code == 409, answer.text
        assert answer.json()["command"] == command
    budget = {
        "apiVersion": "queuectl.dev/v1",
        "kind": "Budget",
        "metadata": {"name": "year"},
        "spec": {"clusterQueue": QUEUE.name, "gpuHoursPerMonth": 100},
    }
    several = await api.post("/api/v1/dryrun", json={"items": [changed, fresh, budget]})
    objects = several.json()["objects"]
    assert [one["result"] for one in objects] == ["configured", "created", "created"]
    owns = "the objects of kueue.x-k8s.io own this configuration; use `{}`"
    refused = [one["refused"] for one in objects]
    assert refused == [owns.format(edit), owns.format(create), None]


async def test_the_editor_of_the_dashboard_shows_the_refusal(
    owned: tuple[httpx2.AsyncClient, MemoryStore],
) -> None:
    api, store = owned
    before = dict(store.database.documents)
    form = {"do": "delete", "version": "1"}
    answer = await api.post(
        f"/ui/config/clusterqueues/{QUEUE.name}",
        data=form,
        headers={"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"},
    )
    assert answer.status_code == 409, answer.text
    assert "kubectl delete clusterqueue.kueue.x-k8s.io" in answer.text
    assert store.database.documents == before


@pytest.mark.parametrize("path", [QUEUE_PATH, LOCAL_PATH], ids=["cluster", "local"])
async def test_a_stop_acts_and_leaves_the_field_to_the_object(
    owned: tuple[httpx2.AsyncClient, MemoryStore], path: str
) -> None:
    api, store = owned
    before = (await api.get(path)).json()
    for verb, body, policy, outcome in (
        ("stop", {}, "Hold", "configured"),
        ("stop", {"drain": True}, "HoldAndDrain", "configured"),
        ("stop", {"drain": True}, "HoldAndDrain", "unchanged"),
        ("resume", {}, "None", "configured"),
    ):
        answer = (await api.post(f"{path}/{verb}", json=body)).json()
        assert (answer["stopPolicy"], answer["result"]) == (policy, outcome)
        shown = (await api.get(path)).json()
        assert shown["spec"] == before["spec"]
        [stored] = [
            one.document
            for key, one in store.database.documents.items()
            if key.kind == before["kind"]
        ]
        assert read(stored).content.stop_policy == policy
        assert stop_of(stored) == policy
    assert STOP_ANNOTATION not in (shown["metadata"].get("annotations") or {})


async def test_a_queue_that_its_object_stops_is_resumed_by_its_object(
    owned: tuple[httpx2.AsyncClient, MemoryStore],
) -> None:
    api, store = owned
    held = {**CLUSTER_QUEUE, "spec": {**CLUSTER_QUEUE["spec"], "stopPolicy": "Hold"}}
    await store.put_config(validate(held)[0])
    assert (await api.post(f"{QUEUE_PATH}/stop", json={})).json()["result"] == "unchanged"
    assert (await api.post(f"{QUEUE_PATH}/stop", json={"drain": True})).status_code == 200
    answer = await api.post(f"{QUEUE_PATH}/resume", json={})
    assert answer.status_code == 409
    assert answer.json()["command"] == f"kubectl edit clusterqueue.kueue.x-k8s.io {QUEUE.name}"


async def test_without_another_owner_a_resume_ends_an_operation_of_the_time_before() -> None:
    store = MemoryStore()
    marked: dict[str, Any] = {
        **CLUSTER_QUEUE,
        "metadata": {"name": QUEUE.name, "annotations": {STOP_ANNOTATION: "HoldAndDrain"}},
    }
    await store.put_config(validate(marked)[0])
    app = create_app(store, FixedHealth(), MetricsRecorder().registry)
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as api:
        answer = (await api.post(f"{QUEUE_PATH}/resume", json={})).json()
    assert (answer["stopPolicy"], answer["result"]) == ("None", "configured")
    stored = await store.get_config(QUEUE)
    assert stored is not None
    assert stop_of(stored.document) == "None"


async def test_a_wrong_operation_is_an_error_of_the_document() -> None:
    marked = {
        **CLUSTER_QUEUE,
        "metadata": {"name": QUEUE.name, "annotations": {STOP_ANNOTATION: "Pause"}},
    }
    with pytest.raises(Exception, match="is not one of None, Hold, HoldAndDrain"):
        validate(marked)


REPORT = FollowedReport(
    1000.0,
    "kueue",
    (FollowedSource("cohorts.kueue.x-k8s.io", "", 3, "403: forbidden"),),
    (FaultyObject("LocalQueue", "team-a", "x", "spec: is wrong", False),),
    4,
    ("ClusterQueue b",),
    PendingDeletion("1a2b", ("ClusterQueue c", "ClusterQueue d"), 3),
)


async def test_a_person_confirms_only_the_deletion_that_the_report_names(
    owned: tuple[httpx2.AsyncClient, MemoryStore],
) -> None:
    api, store = owned
    path = "/api/v1/configurationowner"
    empty = (await api.get(path)).json()
    assert (empty["owner"], empty["at"], empty["deletion"]) == ("kueue", None, None)
    assert (await api.post(f"{path}/confirm", json={"id": "1a2b"})).status_code == 404
    store.database.followed = REPORT
    shown = (await api.get(path)).json()
    assert shown["sources"][0]["fault"] == "403: forbidden"
    assert shown["faulty"][0]["namespace"] == "team-a"
    assert shown["deletion"] == {
        "id": "1a2b",
        "objects": ["ClusterQueue c", "ClusterQueue d"],
        "count": 3,
    }
    for body, status in (({"id": "other"}, 404), ({"id": ""}, 422), ([], 422), (None, 404)):
        answer = await api.post(f"{path}/confirm", json=body)
        assert answer.status_code in (status, 400), answer.text
        assert not store.database.confirmed
    answer = await api.post(f"{path}/confirm", json={"id": "1a2b"})
    assert answer.json()["count"] == 3
    assert store.database.confirmed == "1a2b"


async def test_the_report_of_an_earlier_owner_is_not_shown() -> None:
    store = MemoryStore()
    store.database.followed = REPORT
    app = create_app(store, FixedHealth(), MetricsRecorder().registry)
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as api:
        shown = (await api.get("/api/v1/configurationowner")).json()
    assert (shown["owner"], shown["at"], shown["sources"]) == ("database", None, [])
    assert described(shown) == ["the database owns the configuration"]


async def test_the_command_shows_what_would_go(
    owned: tuple[httpx2.AsyncClient, MemoryStore],
) -> None:
    api, store = owned
    store.database.followed = REPORT
    assert described((await api.get("/api/v1/configurationowner")).json()) == [
        "objects of the cluster own the configuration (kueue)",
        "  cohorts.kueue.x-k8s.io: 3 objects; NOT KNOWN: 403: forbidden",
        "LocalQueue team-a/x: it has no effect: spec: is wrong",
        "and 3 more with errors",
        "ClusterQueue b: its edit waits until no object is edited",
        "3 objects would be deleted:",
        "  ClusterQueue c",
        "  ClusterQueue d",
        "  and 1 more",
        "to delete: queuectl config confirm 1a2b",
    ]
