"""What-if plans over REST: what the planner would do after a change, compared with what it does without; nothing is written."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import httpx2
import pytest
import yaml
from fastapi import FastAPI
from structlog.testing import capture_logs

from queuectl.api import plans
from queuectl.api.app import create_app
from queuectl.api.auth.authentication import OpenPaths
from queuectl.api.auth.layers import AuthenticationLayer
from queuectl.api.server import WebServer
from queuectl.control.listen_address import ListenAddress
from queuectl.control.questions import throttle, what_if
from queuectl.demo import scenario as m
from queuectl.demo.scenario import PodSetManifest
from queuectl.domain.fleet import Fleet
from queuectl.domain.identity import Caller, Right
from queuectl.domain.redaction import ANOTHER_TEAM
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import Placement, PodSetPlacement
from queuectl.objects.configuration.queue_config import build
from queuectl.objects.documents import as_document
from queuectl.objects.kubernetes.nodes import read_node
from queuectl.objects.kubernetes.wire import WireNode
from queuectl.offline.what_if import changed
from queuectl.planner import StopSignal, plan
from queuectl.planner.cache import PlannerCache
from queuectl.telemetry.metrics import MetricsRecorder
from tests.api.conftest import talking_to
from tests.api.serving import running
from tests.api.signed import asking
from tests.api.support import FixedClusterReader, FixedHealth
from tests.control.rig import configuration, nodes
from tests.doubles.access import MemoryAccess
from tests.doubles.store import MemoryStore
from tests.planner.build import NOW, gang, podset

ADDRESS = ListenAddress("127.0.0.1", 0)
FLAVORS = dict.fromkeys(("nvidia.com/gpu", "cpu", "pods"), "gpu")


def of(uid: str, pods: int, *, priority: int = 10, namespace: str = "default") -> Any:
    workload = gang(uid, podset(count=pods, gpu=8, cpu=1000), priority=priority, queue="research")
    return replace(workload, namespace=namespace)


def runs(uid: str, *where: str, priority: int = 10, namespace: str = "default") -> Admitted:
    places = tuple((name, 1) for name in where)
    return Admitted(
        of(uid, len(where), priority=priority, namespace=namespace),
        Placement((PodSetPlacement("w", places, FLAVORS),)),
        started_at=NOW - 100.0,
    )


def job(name: str, pods: int, priority: str = "low", **options: Any) -> dict[str, Any]:
    shape = PodSetManifest(count=pods, gpus=8)
    return dict(m.job(name, "default", "research", shape, priority_class=priority, **options))


DOCUMENTS = [*configuration(32), m.local_queue("other", "research", "pool")]


def seen(*admitted: Admitted, waits: tuple[Any, ...] = (), machines: int = 4) -> Snapshot:
    """Four nodes of 8 GPUs in one rack, quota for all of them."""
    wires = [as_document(node).convert(WireNode) for node in nodes(machines)]
    fleet = Fleet(tuple(read_node(wire).node for wire in wires))
    return Snapshot(
        NOW,
        fleet,
        build(DOCUMENTS, 7),
        tuple(map(Pending, waits)),
        admitted,
        namespaces={"default": {}, "other": {}},
    )


async def app_of(snapshot: Snapshot | None) -> FastAPI:
    return (await store_and_app(snapshot))[1]


async def store_and_app(snapshot: Snapshot | None) -> tuple[MemoryStore, FastAPI]:
    store = MemoryStore()
    for document in DOCUMENTS:
        await store.put_config(document)
    cluster_reader = FixedClusterReader(snapshot, store)
    registry = MetricsRecorder().registry
    return store, create_app(store, FixedHealth(), registry, cluster_reader=cluster_reader)


async def tried(snapshot: Snapshot, **asked: Any) -> dict[str, Any]:
    """The answer to a what-if request."""
    async with talking_to(await app_of(snapshot)) as client:
        answer = await client.post("/api/v1/plans", json=asked)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def outcomes(body: Mapping[str, Any]) -> dict[str, tuple[str, str | None]]:
    """Of all gangs that are listed: with the change, and without it."""
    listed = [*body["starts"], *body["leaves"], *body["waits"]]
    return {each["workload"]: (each["outcome"], each["before"]) for each in listed}


async def test_an_empty_what_if_is_the_current_plan() -> None:
    body = await tried(seen(runs("a", "n0", "n1"), waits=(of("b", 2), of("c", 2))))
    assert outcomes(body) == {
        "default/b": ("starts", "starts"),
        "default/c": ("waits", "waits"),
    }
    assert body["before"] == body["after"]
    assert (body["after"]["starts"], body["after"]["gpusStarted"], body["after"]["waits"]) == (
        1,
        16,
        1,
    )
    assert body["revision"] == 7


async def test_a_what_if_with_a_job_shows_its_start() -> None:
    body = await tried(seen(runs("a", "n0", "n1")), submit=[job("new", 2)])
    (starts,) = body["starts"]
    assert (starts["workload"], starts["submitted"], starts["before"]) == (
        "default/new",
        True,
        None,
    )
    (placed,) = starts["placement"]["podSets"]
    assert placed["nodes"] == {"n2": 1, "n3": 1}
    assert placed["flavors"]["nvidia.com/gpu"] == "gpu"
    assert (starts["clusterQueue"], starts["gpus"]) == ("pool", 16)


async def test_a_what_if_with_a_job_that_waits_shows_its_reason_and_suggested_fixes() -> None:
    body = await tried(seen(runs("a", "n0", "n1", "n2")), submit=[job("new", 2)])
    (waits,) = body["waits"]
    assert (waits["workload"], waits["submitted"], waits["outcome"]) == (
        "default/new",
        True,
        "waits",
    )
    assert waits["reason"]["message"]
    assert waits["conflict"]
    assert waits["suggestedFixes"]


async def test_a_what_if_shows_victims_their_preemptors_and_the_lost_work() -> None:
    body = await tried(
        seen(runs("a", "n0", "n1"), runs("b", "n2", "n3")), submit=[job("urgent", 2, "high")]
    )
    (leaves,) = body["leaves"]
    (waits,) = body["waits"]
    assert (leaves["outcome"], leaves["before"], leaves["preemptor"]) == (
        "leaves",
        "runs",
        "default/urgent",
    )
    assert leaves["cost"]["gpus"] == 16
    assert leaves["cost"]["lostGpuSeconds"] == body["after"]["lostGpuSeconds"] > 0
    assert (waits["workload"], waits["outcome"]) == ("default/urgent", "reserves")
    assert waits["placement"]["planned"]


async def test_more_quota_starts_the_gang_that_waits_for_it() -> None:
    small = m.cluster_queue("pool", "gpu", {"nvidia.com/gpu": 16, "cpu": "1k", "pods": 1000})
    grown = m.cluster_queue("pool", "gpu", {"nvidia.com/gpu": 32, "cpu": "1k", "pods": 1000})
    documents = [small if d["kind"] == "ClusterQueue" else d for d in DOCUMENTS]
    now = seen(runs("a", "n0", "n1"), waits=(of("b", 2),))
    body = await tried(replace(now, config=build(documents, 7)), config=[grown])
    assert outcomes(body)["default/b"] == ("starts", "waits")


async def test_a_what_if_with_less_quota_shows_the_excess() -> None:
    small = m.cluster_queue("pool", "gpu", {"nvidia.com/gpu": 8, "cpu": "1k", "pods": 1000})
    body = await tried(seen(runs("a", "n0", "n1")), config=[small])
    (excess,) = body["overQuota"]
    assert (excess["name"], excess["used"], excess["allowed"]) == ("pool", 16, 8)
    assert excess["workloads"] == ["default/a"]


async def test_an_excess_that_exists_already_is_not_repeated() -> None:
    small = m.cluster_queue("pool", "gpu", {"nvidia.com/gpu": 8, "cpu": "1k", "pods": 1000})
    documents = [small if d["kind"] == "ClusterQueue" else d for d in DOCUMENTS]
    now = replace(seen(runs("a", "n0", "n1")), config=build(documents, 7))
    assert (await tried(now, submit=[job("new", 1)]))["overQuota"] == []


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("Hold", {"default/b": ("waits", "starts")}),
        (
            "HoldAndDrain",
            {"default/a": ("leaves", "runs"), "default/b": ("waits", "starts")},
        ),
    ],
)
async def test_a_queue_that_stops_holds_or_drains(policy: str, expected: object) -> None:
    stopped = dict(
        m.cluster_queue("pool", "gpu", {"nvidia.com/gpu": 32, "cpu": "1k", "pods": 1000})
    )
    stopped["spec"] = {**stopped["spec"], "stopPolicy": policy}
    body = await tried(seen(runs("a", "n0", "n1"), waits=(of("b", 2),)), config=[stopped])
    assert outcomes(body) == expected


async def test_without_its_queue_a_gang_waits() -> None:
    gone = {"kind": "LocalQueue", "namespace": "default", "name": "research"}
    body = await tried(seen(waits=(of("b", 2),)), delete=[gone])
    assert outcomes(body) == {"default/b": ("waits", "starts")}
    assert body["waits"][0]["reason"]["code"] == "Misconfigured"


async def test_a_drained_node_sends_its_pods_elsewhere() -> None:
    body = await tried(seen(runs("a", "n0", "n1")), drain=["n1"])
    (moved,) = body["starts"]
    assert (moved["workload"], moved["outcome"], moved["before"]) == (
        "default/a",
        "repaired",
        "runs",
    )
    where = moved["placement"]["podSets"][0]["nodes"]
    assert "n0" in where
    assert "n1" not in where


async def test_draining_without_free_nodes_stops_the_gangs_of_the_node() -> None:
    full = seen(runs("a", "n0", "n1"), runs("b", "n2", "n3", priority=100))
    body = await tried(full, drain=["n1"])
    assert outcomes(body)["default/a"][0] in ("leaves", "waits")
    assert "default/b" not in outcomes(body)


async def test_more_nodes_start_the_gang_that_waits_for_capacity() -> None:
    quota = m.cluster_queue("pool", "gpu", {"nvidia.com/gpu": 64, "cpu": "1k", "pods": 1000})
    full = seen(runs("a", "n0", "n1", "n2", "n3"), waits=(of("b", 2),))
    body = await tried(full, config=[quota], add=[{"like": "n0", "count": 2}])
    assert outcomes(body) == {"default/b": ("starts", "waits")}
    (placed,) = body["starts"][0]["placement"]["podSets"]
    assert sorted(placed["nodes"]) == ["n0-more-1", "n0-more-2"]


async def test_a_job_copied_from_the_cluster_counts_as_new() -> None:
    copied = job("copied", 1)
    copied["metadata"] |= {"uid": "1-2-3", "creationTimestamp": "2026-01-01T00:00:00Z"}
    copied["status"] = {"active": 1}
    copied["spec"]["suspend"] = False
    body = await tried(seen(), submit=[copied])
    assert [each["workload"] for each in body["starts"]] == ["default/copied"]


async def test_the_pods_of_a_deployment_are_submitted() -> None:
    pods = job("unused", 1)["spec"]["template"]
    web = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "labels": job("unused", 1)["metadata"]["labels"]},
        "spec": {"replicas": 2, "template": pods},
    }
    body = await tried(seen(), submit=[web])
    assert [each["workload"] for each in body["starts"]] == ["default/web-0", "default/web-1"]
    assert body["ignored"] == []


async def test_documents_without_effect_are_listed_with_their_reasons() -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}}
    older = {**job("older", 1), "apiVersion": "batch/v1beta1"}
    body = await tried(seen(), submit=[job("new", 1), service], manifests=as_yaml(older))
    assert [each["workload"] for each in body["starts"]] == ["default/new"]
    assert body["ignored"] == [
        {"object": "v1 submit: Service/web", "reason": "objects of kind Service are not read"},
        {
            "object": "batch/v1beta1 submit: Job/older",
            "reason": "apiVersion batch/v1beta1 of Job is not read; use batch/v1",
        },
    ]


async def test_unchanged_pending_gangs_beyond_a_limit_are_only_counted() -> None:
    many = tuple(of(f"w{n:03}", 5) for n in range(205))
    body = await tried(seen(waits=many), submit=[job("new", 5)])
    assert body["waits"][0]["workload"] == "default/new"
    assert (len(body["waits"]), body["omitted"]) == (201, 5)
    assert body["after"]["waits"] == 206


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"drain": ["n9"]}, "drain: node n9 does not exist"),
        ({"add": [{"like": "n9", "count": 1}]}, "add: node n9 does not exist"),
        ({"delete": [{"kind": "Cohort", "name": "none"}]}, "delete: Cohort none does not exist"),
        ({"submit": [job("a", 1), job("a", 2)]}, "given twice"),
        ({"submit": [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "x"}}]}, "v1 Node"),
        ({"submit": [{}]}, "kind"),
        ({"config": [{"kind": "ClusterQueue"}]}, "apiVersion"),
        ({"config": [m.cluster_queue("pool", "gpu", {"nvidia.com/gpu": -1})]}, "nominalQuota"),
    ],
)
async def test_an_impossible_change_is_named(asked: dict[str, Any], says: str) -> None:
    async with talking_to(await app_of(seen())) as client:
        answer = await client.post("/api/v1/plans", json=asked)
    assert answer.status_code == 422, answer.text
    assert answer.json()["type"].endswith("/invalid-document")
    assert says in answer.json()["detail"]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"submit": "x"}, "submit: must be a list"),
        ({"drain": ["Not A Name"]}, "drain.0: must match the pattern ^[a-z0-9]"),
        ({"add": [{"like": "n0", "count": 0}]}, "add.0.count: must be greater than or equal to 1"),
        ({"add": [{"like": "n0", "count": "many"}]}, "add.0.count: must be an integer"),
        ({"add": [1]}, "add.0: must be an object"),
        ({"delete": [{"kind": "Cohort"}]}, "delete.0.name: is required"),
        ({"x": 1}, "x: unknown field"),
    ],
)
async def test_a_body_of_another_shape_is_refused(asked: dict[str, Any], says: str) -> None:
    async with talking_to(await app_of(seen())) as client:
        answer = await client.post("/api/v1/plans", json=asked)
    assert answer.status_code == 422
    assert answer.json()["type"].endswith("/invalid-parameter")
    assert answer.json()["detail"].startswith(says)


class Rights:
    async def may(self, caller: Caller, right: Right) -> bool:
        return right.resource in ("plans", "clusterqueues") or right.namespace == "default"


async def asked_by_a_tenant(snapshot: Snapshot, **asked: Any) -> httpx2.Response:
    """With the rights of namespace default only."""
    app = await app_of(snapshot)
    app.state.guard._rights = Rights()
    async with talking_to(app) as client:
        return await client.post("/api/v1/plans", json=asked)


async def test_an_excess_of_quota_names_only_gangs_that_the_caller_may_see() -> None:
    small = m.cluster_queue("pool", "gpu", {"nvidia.com/gpu": 8, "cpu": "1k", "pods": 1000})
    both = seen(runs("a", "n0", "n1"), runs("secret", "n2", "n3", namespace="other"))
    (excess,) = (await asked_by_a_tenant(both, config=[small])).json()["overQuota"]
    assert sorted(excess["workloads"]) == [ANOTHER_TEAM, "default/a"]


async def test_gangs_of_others_are_anonymous() -> None:
    theirs = runs("secret", "n0", "n1", "n2", "n3", namespace="other")
    now = seen(theirs, waits=(of("hidden", 9, namespace="other"),))
    answer = await asked_by_a_tenant(now, submit=[job("mine", 2, "high")])
    body = answer.json()
    assert [each["workload"] for each in body["leaves"]] == [ANOTHER_TEAM]
    assert {each["workload"] for each in body["waits"]} == {"default/mine", ANOTHER_TEAM}
    assert "secret" not in answer.text
    assert "hidden" not in answer.text


async def test_local_queues_of_others_are_anonymous_in_warnings() -> None:
    deleted = [{"kind": "ClusterQueue", "name": "pool"}]
    text = (await asked_by_a_tenant(seen(), delete=deleted)).json()["warnings"]
    assert [one for one in text if one.startswith("LocalQueue")] == [
        "LocalQueue default/research: ClusterQueue pool does not exist",
        f"LocalQueue {ANOTHER_TEAM}: ClusterQueue pool does not exist",
    ]
    seen_by_all = (await tried(seen(), delete=deleted))["warnings"]
    assert "LocalQueue other/research: ClusterQueue pool does not exist" in seen_by_all


@pytest.mark.parametrize("name", ["research", "none"])
async def test_a_deletion_shows_no_object_that_the_caller_may_not_read(name: str) -> None:
    guess = [{"kind": "LocalQueue", "namespace": "other", "name": name}]
    answer = await asked_by_a_tenant(seen(), delete=guess)
    assert answer.status_code == 403, answer.text
    needed = Right("get", "localqueues", "other", name)
    assert answer.json()["detail"] == f"unauthenticated caller may not {needed}"
    own = [{"kind": "LocalQueue", "namespace": "default", "name": "research"}]
    assert (await asked_by_a_tenant(seen(), delete=own)).status_code == 200


async def test_an_unreadable_stored_document_is_an_error_of_the_server() -> None:
    store, app = await store_and_app(seen())
    stored = m.cluster_queue("broken", "gpu", {"nvidia.com/gpu": "many"})
    await store.put_config(stored)
    with capture_logs() as logs:
        async with talking_to(app) as client:
            answer = await client.post("/api/v1/plans", json={"drain": ["n0"]})
    assert answer.status_code == 503, answer.text
    assert answer.json()["type"].endswith("/not-known-yet")
    (line,) = (line for line in logs if line["event"] == "configuration_unreadable")
    assert "ClusterQueue/broken" in line["error"]


async def test_a_submitted_job_with_the_name_of_a_hidden_gang_reveals_nothing() -> None:
    """A caller cannot find the names of other teams' gangs by guessing."""
    theirs = runs("secret", "n0", "n1", "n2", "n3", namespace="other")
    guess = job("secret", 9)
    guess["metadata"]["namespace"] = "other"
    free = seen(runs("a", "n0", "n1", "n2", "n3"))
    taken = seen(theirs, waits=(of("hidden", 9, namespace="other"),))
    answers = [
        (await asked_by_a_tenant(now, submit=[guess, job("mine", 2, "high")])).json()
        for now in (free, taken)
    ]
    assert [each["workload"] for each in answers[1]["leaves"]] == [ANOTHER_TEAM]
    assert [answer["warnings"] for answer in answers] == [[], []]
    messages = [
        str([each for each in answer["waits"] if each["workload"] != "other/secret"])
        for answer in answers
    ]
    assert "secret" not in messages[1]


async def test_a_submitted_job_with_the_name_of_an_existing_gang_gives_a_remark() -> None:
    body = await tried(seen(runs("a", "n0", "n1")), submit=[job("a", 1)])
    assert body["warnings"] == ["default/a: there is a Job of this name already"]


async def test_without_a_snapshot_a_what_if_is_a_problem() -> None:
    async with talking_to(await app_of(None)) as client:
        answer = await client.post("/api/v1/plans", json={})
    assert answer.status_code == 503
    assert answer.json()["type"].endswith("/not-known-yet")


async def test_a_what_if_that_takes_too_long_is_canceled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(what_if, "TIMEOUT_SECONDS", 0.0)

    def slow(snapshot: Snapshot, stop: StopSignal, cache: PlannerCache) -> object:
        while not stop.stopped:
            pass
        return plan(snapshot, stop, cache)

    monkeypatch.setattr("queuectl.control.checked_plan.plan", slow)
    async with talking_to(await app_of(seen(waits=(of("b", 2),)))) as client:
        answer = await client.post("/api/v1/plans", json={})
    assert answer.status_code == 503
    assert answer.json()["type"].endswith("/took-too-long")
    assert answer.headers["Retry-After"]


async def test_a_what_if_ends_when_its_caller_disconnects_and_the_next_one_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a real connection. Its limit of 20 s is longer than the waits of this test."""
    began, ended = threading.Event(), threading.Event()

    def slow(snapshot: Snapshot, stop: StopSignal, cache: PlannerCache) -> object:
        first = not began.is_set()
        began.set()
        while first and not stop.stopped:
            time.sleep(0.001)  # the signal can only be polled, as a search polls it
        ended.set()
        return plan(snapshot, stop, cache)

    monkeypatch.setattr("queuectl.control.checked_plan.plan", slow)
    async with running(WebServer(await app_of(seen(waits=(of("b", 2),))), ADDRESS)) as server:
        host = f"127.0.0.1:{server.address.port}"
        head = f"POST /api/v1/plans HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json"
        _, writer = await asyncio.open_connection("127.0.0.1", server.address.port)
        writer.write(f"{head}\r\nContent-Length: 2\r\n\r\n{{}}".encode())
        assert await asyncio.to_thread(began.wait, 10)
        assert not ended.is_set()
        writer.close()
        assert await asyncio.to_thread(ended.wait, 10)
        async with httpx2.AsyncClient(base_url=server.url) as client:
            answer = await client.post("/api/v1/plans", json={})
    assert [one["workload"] for one in answer.json()["starts"]] == ["default/b"]


async def test_requests_beyond_the_limit_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(throttle, "MOST_WAITING", 2)
    async with talking_to(await app_of(seen())) as client:
        asked = [client.post("/api/v1/plans", json={}) for _ in range(6)]
        statuses = [answer.status_code for answer in await asyncio.gather(*asked)]
    assert sorted(set(statuses)) == [200, 503]
    assert statuses.count(200) == 2


YAML_OF_BOTH = """
# a queue that is larger, and a job that needs it
apiVersion: queuectl.dev/v1
kind: LocalQueue
metadata: {name: more, namespace: default}
spec: {clusterQueue: research}
---
"""


def as_yaml(document: dict[str, Any]) -> str:
    """Without the aliases that a value used twice would get."""
    return yaml.safe_dump(json.loads(json.dumps(document)))


async def test_manifests_are_sorted_into_jobs_and_configuration() -> None:
    body = await tried(seen(), manifests=YAML_OF_BOTH + as_yaml(job("train", 2)))
    assert [one["workload"] for one in body["starts"]] == ["default/train"]
    as_json = await tried(seen(), manifests=json.dumps([job("train", 2)]))
    assert as_json["starts"] == body["starts"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kind: Job", "manifests: document 1: apiVersion: is required"),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: p}",
            "submit: Pod/p: metadata.labels.queuectl.dev/queue-name: it has no queue label",
        ),
        (f"{YAML_OF_BOTH}\n- 1", "manifests: document 2: must be an object, not a number"),
        ("a: [", "is not YAML"),
        ("kind: a\nkind: b", "line 2, column 1: key 'kind' appears twice, first on line 1"),
        ("a: &a [1]\nb: *a", "line 2, column 4: is not YAML: aliases are not supported"),
    ],
)
async def test_a_wrong_manifest_is_named_by_document_object_and_field(text: str, says: str) -> None:
    async with talking_to(await app_of(seen())) as api:
        answer = await api.post("/api/v1/plans", json={"manifests": text})
    assert answer.status_code in (400, 422)
    assert says in answer.json()["detail"]


async def test_too_many_jobs_in_manifests_are_refused() -> None:
    text = "---\n".join(as_yaml(job(f"j{n}", 1)) for n in range(101))
    async with talking_to(await app_of(seen())) as api:
        answer = await api.post("/api/v1/plans", json={"manifests": text})
    assert answer.status_code == 422
    assert "101 jobs; at most 100" in answer.json()["detail"]


async def test_nothing_is_written() -> None:
    app = await app_of(seen(waits=(of("b", 2),)))
    async with talking_to(app) as client:
        before = (await client.get("/api/v1/clusterqueues")).json()
        small = m.cluster_queue("pool", "gpu", {"nvidia.com/gpu": 8, "cpu": "1k", "pods": 1000})
        await client.post("/api/v1/plans", json={"config": [small], "submit": [job("x", 1)]})
        assert (await client.get("/api/v1/clusterqueues")).json() == before
        assert (await client.get("/api/v1/workloads")).json()["items"] == []


async def test_an_expensive_what_if_ends_at_its_limit_and_blocks_no_other_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It does not read the signal to stop, so that it still runs in its thread when the others are answered."""
    monkeypatch.setattr(what_if, "TIMEOUT_SECONDS", 3.0)
    monkeypatch.setattr(throttle, "GRACE_SECONDS", 0.01)
    monkeypatch.setattr(throttle, "OTHERS_SECONDS", 0.0)
    began, end, read = threading.Event(), threading.Event(), changed

    def expensive(snapshot: Snapshot, documents: Any, asked: Any, *more: Any) -> Any:
        if asked.submit[0]["metadata"]["name"] == "expensive":
            began.set()
            end.wait(60)
        return read(snapshot, documents, asked, *more)

    monkeypatch.setattr(what_if, "changed", expensive)
    store, access = MemoryStore(), MemoryAccess()
    for document in DOCUMENTS:
        await store.put_config(document)
    for name in ("ana", "bo"):
        access.know(f"token-of-{name}", name, master=True)
    app = create_app(
        store,
        FixedHealth(),
        MetricsRecorder().registry,
        cluster_reader=FixedClusterReader(seen(), store),
        authenticated=AuthenticationLayer(access, secure=True, open_paths=OpenPaths()),
    )
    try:
        async with asking(app, "token-of-ana") as ana, asking(app, "token-of-bo") as bo:
            asked = [{"submit": [job(name, 1)]} for name in ("expensive", "cheap")]
            first = asyncio.create_task(ana.post("/api/v1/plans", json=asked[0]))
            await asyncio.to_thread(began.wait, 30)
            assert (await bo.post("/api/v1/plans", json=asked[1])).status_code == 200
            ended = await first
            assert (ended.status_code, ended.headers["Retry-After"] != "") == (503, True)
            assert "did not end in time" in ended.text
            again = await ana.post("/api/v1/plans", json=asked[1])
            assert again.status_code == 503, "its first question still runs"
            assert (await bo.post("/api/v1/plans", json=asked[1])).status_code == 200
    finally:
        end.set()


async def test_only_listed_gangs_are_presented_and_not_on_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    presented: list[str] = []
    view = plans._PlanPresenter.view

    def noted(presenter: Any, uid: str, *others: Any) -> Any:
        presented.append(threading.current_thread().name)
        return view(presenter, uid, *others)

    monkeypatch.setattr(plans._PlanPresenter, "view", noted)
    waits = tuple(of(f"w{number}", 2) for number in range(300))
    body = await tried(seen(runs("a", "n0", "n1", "n2", "n3"), waits=waits))
    assert (len(body["waits"]), body["omitted"]) == (200, 100)
    assert len(presented) == 200
    assert threading.main_thread().name not in presented
