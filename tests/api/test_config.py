"""Configuration over REST: a read returns the document that was written, and no edit is lost."""

from __future__ import annotations

import json
from collections.abc import Collection
from copy import deepcopy
from typing import Any

import httpx2
import pytest
import yaml

from queuectl.api.app import create_app
from queuectl.domain.queries import ConfigDocument, DocumentKey
from queuectl.objects.configuration.links import MAX_COHORTS
from queuectl.telemetry.metrics import MetricsRecorder
from tests.api.conftest import AnyStore, talking_to
from tests.api.support import CLUSTER_QUEUE, DOCUMENTS, LOCAL_QUEUE, QUEUE_PATH, FixedHealth
from tests.doubles.store import MemoryStore

FLAVOR_PATH = "/api/v1/resourceflavors/h100"
TOPOLOGY_PATH = "/api/v1/topologies/racks"
LOCAL_PATH = "/api/v1/namespaces/team-a/localqueues/default"
USE_PATH = "/api/v1/queueuse"


async def put(
    api: httpx2.AsyncClient, path: str, document: object, **headers: str
) -> httpx2.Response:
    return await api.put(
        path, json=document, headers={k.replace("_", "-"): v for k, v in headers.items()}
    )


def with_spec(document: dict[str, Any], **fields: str) -> dict[str, Any]:
    return {**document, "spec": {**document["spec"], **fields}}


@pytest.mark.parametrize("path", DOCUMENTS)
async def test_a_document_is_created_read_listed_and_deleted(
    api: httpx2.AsyncClient, path: str
) -> None:
    document = DOCUMENTS[path]
    created = await put(api, path, document)
    assert created.status_code == 201
    assert created.headers["location"] == path
    assert created.json()["result"] == "created"

    read = await api.get(path)
    assert read.status_code == 200
    assert read.json() == created.json()["object"]
    assert read.json()["apiVersion"] == "queuectl.dev/v1"
    assert read.json()["metadata"]["name"] == document["metadata"]["name"]
    assert read.headers["etag"] == f'"{read.json()["metadata"]["resourceVersion"]}"'

    listed = (await api.get(path.rpartition("/")[0])).json()
    assert listed["kind"] == f"{document['kind']}List"
    assert listed["items"] == [read.json()]

    assert (await api.delete(path)).status_code == 204
    assert (await api.get(path)).status_code == 404


async def test_writing_a_document_as_it_was_read_changes_nothing(api: httpx2.AsyncClient) -> None:
    first = await put(api, QUEUE_PATH, CLUSTER_QUEUE)
    again = await put(api, QUEUE_PATH, (await api.get(QUEUE_PATH)).json())
    assert (again.status_code, again.json()["result"]) == (200, "unchanged")
    assert again.headers["etag"] == first.headers["etag"]


async def test_a_changed_document_gets_a_new_version(api: httpx2.AsyncClient) -> None:
    first = await put(api, QUEUE_PATH, CLUSTER_QUEUE)
    changed = deepcopy(CLUSTER_QUEUE)
    changed["spec"]["queueingStrategy"] = "BestEffortFIFO"
    second = await put(api, QUEUE_PATH, changed)
    assert (second.status_code, second.json()["result"]) == (200, "configured")
    assert second.headers["etag"] != first.headers["etag"]


async def test_yaml_is_read_like_json(api: httpx2.AsyncClient) -> None:
    body = yaml.safe_dump(CLUSTER_QUEUE)
    answer = await api.put(QUEUE_PATH, content=body, headers={"content-type": "application/yaml"})
    assert answer.status_code == 201
    assert (await put(api, QUEUE_PATH, CLUSTER_QUEUE)).json()["result"] == "unchanged"


@pytest.mark.parametrize(
    ("path", "given", "warning"),
    [
        (QUEUE_PATH, (), "ClusterQueue team-a: ResourceFlavor h100 does not exist"),
        (
            QUEUE_PATH,
            (FLAVOR_PATH,),
            None,
        ),  # the missing topology is a mistake of the flavor
        (FLAVOR_PATH, (QUEUE_PATH,), "ResourceFlavor h100: Topology racks does not exist"),
        (FLAVOR_PATH, (TOPOLOGY_PATH,), None),
        (LOCAL_PATH, (), "LocalQueue team-a/default: ClusterQueue team-a does not exist"),
        (LOCAL_PATH, (QUEUE_PATH,), None),
    ],
)
async def test_the_answer_to_a_write_names_references_to_missing_objects(
    api: httpx2.AsyncClient, path: str, given: tuple[str, ...], warning: str | None
) -> None:
    for before in given:
        await put(api, before, DOCUMENTS[before])
    answer = await put(api, path, DOCUMENTS[path])
    assert (answer.status_code, answer.json()["result"]) == (201, "created")
    assert answer.json()["warnings"] == ([warning] if warning else [])


async def test_an_unreadable_document_of_another_release_does_not_fail_a_put(
    client: httpx2.AsyncClient, memory: MemoryStore
) -> None:
    await memory.put_config({**DOCUMENTS[TOPOLOGY_PATH], "spec": {"levels": []}})
    answer = await put(client, FLAVOR_PATH, DOCUMENTS[FLAVOR_PATH])
    assert answer.status_code == 201
    (warning,) = answer.json()["warnings"]
    assert warning.startswith("ResourceFlavor h100: the names it refers to were not checked: ")
    assert "Topology/racks" in warning


async def test_a_read_follows_the_last_configuration_without_an_invalid_document(
    memory: MemoryStore, metrics: MetricsRecorder
) -> None:
    """As the leader does."""
    async with talking_to(create_app(memory, FixedHealth(), metrics.registry)) as running:
        await put(running, QUEUE_PATH, CLUSTER_QUEUE)
        before = await running.get(USE_PATH)
        assert before.status_code == 200
        await memory.put_config({**DOCUMENTS[TOPOLOGY_PATH], "spec": {"levels": []}})
        assert (await running.get(USE_PATH)).json() == before.json()
    async with talking_to(create_app(memory, FixedHealth(), metrics.registry)) as started:
        refused = await started.get(USE_PATH)
        assert refused.status_code == 503
        assert refused.json()["type"].endswith("/not-known-yet")
        assert "racks" not in refused.text
        await put(started, TOPOLOGY_PATH, DOCUMENTS[TOPOLOGY_PATH])
        assert (await started.get(USE_PATH)).json() == before.json()


async def test_a_put_reads_only_the_documents_that_the_object_refers_to(
    client: httpx2.AsyncClient, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[set[str]] = []
    get_configs = memory.get_configs

    async def noted(keys: Collection[DocumentKey]) -> tuple[ConfigDocument, ...]:
        asked.append({str(key) for key in keys})
        return await get_configs(keys)

    async def never(*_: object) -> Any:
        raise AssertionError("it reads the whole configuration")

    list_config = memory.list_config

    async def cohorts(kind: str, namespace: str | None = None) -> tuple[ConfigDocument, ...]:
        assert kind == "Cohort"  # for cycles and for the height of the tree
        return await list_config(kind, namespace)

    monkeypatch.setattr(memory, "get_configs", noted)
    monkeypatch.setattr(memory, "configuration", never)
    monkeypatch.setattr(memory, "list_config", cohorts)
    await memory.put_config({**DOCUMENTS[TOPOLOGY_PATH], "spec": {"levels": []}})  # not read
    for path in DOCUMENTS:
        if path != TOPOLOGY_PATH:
            assert (await put(client, path, DOCUMENTS[path])).status_code == 201
    of_queue = {"ClusterQueue team-a"}
    assert asked == [{"ResourceFlavor h100"}, of_queue, {"Topology racks"}, of_queue]


async def test_the_answer_to_a_write_warns_about_known_fields_without_effect(
    api: httpx2.AsyncClient,
) -> None:
    await put(api, FLAVOR_PATH, DOCUMENTS[FLAVOR_PATH])
    document = deepcopy(CLUSTER_QUEUE)
    document["spec"]["concurrentAdmissionPolicy"] = {"a": 1}
    warnings = (await put(api, QUEUE_PATH, document)).json()["warnings"]
    assert len(warnings) == 1
    assert "spec.concurrentAdmissionPolicy" in warnings[0]


async def test_a_cycle_of_cohorts_is_refused(api: httpx2.AsyncClient) -> None:
    def cohort(name: str, parent: str) -> dict[str, Any]:
        body = {"apiVersion": "queuectl.dev/v1", "kind": "Cohort", "metadata": {"name": name}}
        return {**body, "spec": {"parentName": parent}}

    assert (await put(api, "/api/v1/cohorts/a", cohort("a", "b"))).status_code == 201
    answer = await put(api, "/api/v1/cohorts/b", cohort("b", "a"))
    assert answer.status_code == 422
    assert "is a cycle: b -> a -> b" in answer.json()["detail"]
    assert (await api.get("/api/v1/cohorts/b")).status_code == 404
    assert (await put(api, "/api/v1/cohorts/c", cohort("c", "a"))).status_code == 201
    answer = await put(api, "/api/v1/cohorts/b", cohort("b", "c"))
    assert "is a cycle: b -> c -> a -> b" in answer.json()["detail"]


async def test_the_height_of_a_cohort_tree_is_limited(api: httpx2.AsyncClient) -> None:
    """Whether it grows at the top, at the bottom, or by joining two."""

    async def joined(name: str, parent: str) -> httpx2.Response:
        body = {"apiVersion": "queuectl.dev/v1", "kind": "Cohort", "metadata": {"name": name}}
        return await put(api, f"/api/v1/cohorts/{name}", {**body, "spec": {"parentName": parent}})

    half = MAX_COHORTS // 2
    for tree in ("upper", "lower"):
        for n in range(half - 1):
            assert (await joined(f"{tree}-{n}", f"{tree}-{n + 1}")).status_code == 201
    assert (await joined(f"lower-{half - 1}", "upper-0")).status_code == 201
    for name, parent in ((f"upper-{half - 1}", "one-more"), ("one-more", "lower-0")):
        answer = await joined(name, parent)
        assert answer.status_code == 422
        assert f"makes a chain of 65 Cohorts; at most {MAX_COHORTS} are" in answer.json()["detail"]
    assert (await joined("beside", "upper-0")).status_code == 201


async def test_a_document_without_namespace_gets_the_namespace_of_its_path(
    api: httpx2.AsyncClient,
) -> None:
    document = deepcopy(LOCAL_QUEUE)
    del document["metadata"]["namespace"]
    answer = await put(api, "/api/v1/namespaces/team-b/localqueues/default", document)
    assert answer.json()["object"]["metadata"]["namespace"] == "team-b"


async def test_local_queues_are_listed_by_namespace(api: httpx2.AsyncClient) -> None:
    for namespace in ("team-a", "team-b"):
        document = deepcopy(LOCAL_QUEUE)
        document["metadata"]["namespace"] = namespace
        await put(api, f"/api/v1/namespaces/{namespace}/localqueues/default", document)

    async def namespaces(path: str, **query: str) -> list[str]:
        items = (await api.get(path, params=query)).json()["items"]
        return [item["metadata"]["namespace"] for item in items]

    assert await namespaces("/api/v1/localqueues") == ["team-a", "team-b"]
    assert await namespaces("/api/v1/localqueues", namespace="team-b") == ["team-b"]
    assert await namespaces("/api/v1/namespaces/team-a/localqueues") == ["team-a"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"kind": "Cohort"}, "kind"),
        ({"metadata": {"name": "team-b"}}, "metadata.name"),
        ({"metadata": {"name": "team-a", "namespace": "x"}}, "metadata.namespace"),
        ({"apiVersion": "apps/v1"}, "apiVersion"),
        ({"spec": {"color": "red"}}, "spec.color"),
        ({"spec": {"queueingStrategy": "LIFO"}}, "spec.queueingStrategy"),
    ],
)
async def test_a_wrong_document_is_refused_with_its_field(
    api: httpx2.AsyncClient, change: dict[str, Any], field: str
) -> None:
    answer = await put(api, QUEUE_PATH, {**CLUSTER_QUEUE, **change})
    assert answer.status_code == 422
    assert answer.json()["type"].endswith("/invalid-document")
    assert [error["field"] for error in answer.json()["errors"]] == [field]
    assert (await api.get(QUEUE_PATH)).status_code == 404


class TestPreconditions:
    """Two users edit one object: the second must not silently overwrite the first."""

    async def test_an_edit_of_a_stale_version_is_refused(self, api: httpx2.AsyncClient) -> None:
        mine = (await put(api, QUEUE_PATH, CLUSTER_QUEUE)).headers["etag"]
        theirs = deepcopy(CLUSTER_QUEUE)
        theirs["spec"]["stopPolicy"] = "Hold"
        assert (await put(api, QUEUE_PATH, theirs, if_match=mine)).status_code == 200

        stale = await put(api, QUEUE_PATH, CLUSTER_QUEUE, if_match=mine)
        assert stale.status_code == 412
        assert stale.json()["type"].endswith("/precondition-failed")
        assert (await api.get(QUEUE_PATH)).json()["spec"]["stopPolicy"] == "Hold"

        assert (await api.delete(QUEUE_PATH, headers={"if-match": mine})).status_code == 412
        now = (await api.get(QUEUE_PATH)).headers["etag"]
        assert (await api.delete(QUEUE_PATH, headers={"if-match": now})).status_code == 204

    async def test_create_only_does_not_replace(self, api: httpx2.AsyncClient) -> None:
        assert (await put(api, QUEUE_PATH, CLUSTER_QUEUE, if_none_match="*")).status_code == 201
        assert (await put(api, QUEUE_PATH, CLUSTER_QUEUE, if_none_match="*")).status_code == 412

    async def test_replace_only_does_not_create(self, api: httpx2.AsyncClient) -> None:
        assert (await put(api, QUEUE_PATH, CLUSTER_QUEUE, if_match="*")).status_code == 412
        await put(api, QUEUE_PATH, CLUSTER_QUEUE)
        assert (await put(api, QUEUE_PATH, CLUSTER_QUEUE, if_match="*")).status_code == 200

    @pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
    async def test_a_write_over_each_version_is_not_refused_for_another_write_in_between(
        self,
        api: httpx2.AsyncClient,
        store: AnyStore,
        monkeypatch: pytest.MonkeyPatch,
        method: str,
    ) -> None:
        await put(api, QUEUE_PATH, CLUSTER_QUEUE)
        get_config = store.get_config
        fields = iter([{"stopPolicy": "Hold"}])

        async def changed_after(key: DocumentKey) -> ConfigDocument | None:
            read = await get_config(key)
            for field in fields:
                await store.put_config(with_spec(CLUSTER_QUEUE, **field))
            return read

        monkeypatch.setattr(store, "get_config", changed_after)
        own = {"queueingStrategy": "BestEffortFIFO"}
        body = {"PUT": with_spec(CLUSTER_QUEUE, **own), "PATCH": {"spec": own}, "DELETE": None}
        media = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"If-Match": "*", "Content-Type": media}
        answer = await api.request(
            method, QUEUE_PATH, content=json.dumps(body[method]), headers=headers
        )
        assert answer.is_success, answer.text
        spec = {} if method == "DELETE" else answer.json()["object"]["spec"]
        assert [spec.get(name) for name in ("queueingStrategy", "stopPolicy")] == {
            "PUT": ["BestEffortFIFO", None],
            "PATCH": ["BestEffortFIFO", "Hold"],
            "DELETE": [None, None],
        }[method]

    async def test_one_matching_tag_of_several_is_enough(self, api: httpx2.AsyncClient) -> None:
        tag = (await put(api, QUEUE_PATH, CLUSTER_QUEUE)).headers["etag"]
        either = f'"none", {tag}'
        assert (await put(api, QUEUE_PATH, CLUSTER_QUEUE, if_match=either)).status_code == 200

    async def test_a_weak_tag_does_not_allow_a_write(self, api: httpx2.AsyncClient) -> None:
        tag = (await put(api, QUEUE_PATH, CLUSTER_QUEUE)).headers["etag"]
        assert (await put(api, QUEUE_PATH, CLUSTER_QUEUE, if_match=f"W/{tag}")).status_code == 412

    async def test_an_unreadable_tag_is_a_bad_request(self, api: httpx2.AsyncClient) -> None:
        answer = await put(api, QUEUE_PATH, CLUSTER_QUEUE, if_match="7")
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["field"] == "If-Match"

    async def test_an_unchanged_object_is_not_sent_again(self, api: httpx2.AsyncClient) -> None:
        tag = (await put(api, QUEUE_PATH, CLUSTER_QUEUE)).headers["etag"]
        for same in (tag, f"W/{tag}", "*"):
            answer = await api.get(QUEUE_PATH, headers={"if-none-match": same})
            assert (answer.status_code, answer.content) == (304, b"")
        other = await api.get(QUEUE_PATH, headers={"if-none-match": '"0"'})
        assert other.status_code == 200


@pytest.mark.parametrize(
    "value", ["0", "-1", "true", "1.5", '"many"', "2147483648", "9" * 400, "1e400", "[]"]
)
async def test_a_limit_of_pending_gangs_that_is_not_a_positive_number_is_refused(
    api: httpx2.AsyncClient, value: str
) -> None:
    spec = {"clusterQueue": "team-a", "policy": {"maxPending": "VALUE"}}
    document = {**LOCAL_QUEUE, "apiVersion": "queuectl.dev/v1", "spec": spec}
    document["metadata"] = {"name": "x", "namespace": "team-a"}
    body, accepted = (
        json.dumps(document).replace('"VALUE"', text) for text in (value, "2147483647")
    )
    path = "/api/v1/namespaces/team-a/localqueues/x"
    answer = await api.put(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 422), answer.text
    if answer.status_code == 422:
        assert "spec.policy.maxPending" in answer.json()["detail"]
    answer = await api.put(path, content=accepted, headers={"content-type": "application/json"})
    assert answer.status_code == 201, answer.text
    assert (await api.get(path)).json()["spec"]["policy"] == {"maxPending": 2147483647}


@pytest.mark.parametrize(
    "body",
    [
        '{"value": 1000000000000000000000000000000}',
        '{"value": 1e400}',
        '{"value": 1.5}',
        '{"value": NaN}',
        '{"description": "\\ud800"}',
        '{"description": "\\u0000"}',
        '{"description": "\\u2028 \U0001f600 \\u001b"}',
        '{"\\u0000": 1}',
        '{"metadata": {"name": "high", "labels": {"a\\u0000": "b"}}}',
        '{"metadata": {"name": "high", "annotations": {"": "\\uffff"}}}',
        '{"metadata": null}',
        '{"apiVersion": 1}',
    ],
)
async def test_strange_values_are_refused_or_kept_as_they_are(
    api: httpx2.AsyncClient, body: str
) -> None:
    path = "/api/v1/priorityclasses/high"
    text = json.dumps(DOCUMENTS[path])[:-1] + "," + body[1:]  # a later key wins
    answer = await api.put(path, content=text, headers={"content-type": "application/json"})
    assert answer.status_code in (201, 400, 422), answer.text
    if answer.status_code == 201:
        assert (await api.get(path)).json() == answer.json()["object"]
