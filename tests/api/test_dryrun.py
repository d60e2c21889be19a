"""Dry runs of writes: the answer is that of the write, and nothing is stored."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator
from copy import deepcopy
from functools import partial
from typing import Any

import httpx2
import pytest

from queuectl.api import dry_run
from queuectl.api.app import create_app
from queuectl.api.body import Bodies
from queuectl.domain.queries import DocumentKey
from queuectl.objects.configuration.links import MAX_COHORTS
from queuectl.objects.errors import DocumentError
from queuectl.telemetry.metrics import MetricsRecorder
from tests.api.conftest import AnyStore, talking_to
from tests.api.support import (
    CLUSTER_QUEUE,
    COHORT,
    CONFIGURATION,
    DOCUMENTS,
    FLAVOR,
    LOCAL_QUEUE,
    QUEUE_PATH,
    FixedDiagnoser,
    FixedHealth,
    running,
)
from tests.support.work import lines_run

DRY = {"dry_run": "true"}
CONFIGURATION_PATH = "/api/v1/configurations/default"


@pytest.fixture
def diagnoser() -> FixedDiagnoser:
    """Two gangs of 32 GPUs run and use the queue's quota of 64 GPUs."""
    made = FixedDiagnoser()
    made.running = running(("old", 1.0), ("new", 2.0))
    return made


@pytest.fixture
async def api(
    store: AnyStore, health: FixedHealth, metrics: MetricsRecorder, diagnoser: FixedDiagnoser
) -> AsyncIterator[httpx2.AsyncClient]:
    async with talking_to(create_app(store, health, metrics.registry, diagnoser)) as made:
        yield made


def with_quota(gpus: int) -> dict[str, Any]:
    queue = deepcopy(CLUSTER_QUEUE)
    queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = gpus
    return queue


async def put_all(api: httpx2.AsyncClient) -> None:
    for path, document in DOCUMENTS.items():
        assert (await api.put(path, json=document)).status_code == 201


async def together(api: httpx2.AsyncClient, *documents: dict[str, Any]) -> httpx2.Response:
    return await api.post("/api/v1/dryrun", json={"kind": "List", "items": list(documents)})


async def test_the_answer_to_a_write_names_the_fields_that_it_changed(
    api: httpx2.AsyncClient,
) -> None:
    assert (await api.put(QUEUE_PATH, json=CLUSTER_QUEUE)).json()["changes"] == []
    changed = (await api.put(QUEUE_PATH, json=with_quota(32))).json()
    field = "spec.resourceGroups[0].flavors[h100].resources[nvidia.com/gpu].nominalQuota"
    assert changed["changes"] == [{"field": field, "before": 64, "after": 32}]
    assert (await api.put(QUEUE_PATH, json=with_quota(32))).json()["changes"] == []


async def test_a_dry_run_answers_like_the_write_and_stores_nothing(api: httpx2.AsyncClient) -> None:
    await put_all(api)
    before = (await api.get(QUEUE_PATH)).json()
    checked = await api.put(QUEUE_PATH, params=DRY, json=with_quota(32))
    assert checked.status_code == 200
    assert (await api.get(QUEUE_PATH)).json() == before
    done = await api.put(QUEUE_PATH, json=with_quota(32))
    for part in ("result", "warnings", "changes"):
        assert checked.json()[part] == done.json()[part]


@pytest.mark.parametrize(
    ("gpus", "over"), [(64, []), (63, ["team-a/new"]), (31, ["team-a/new", "team-a/old"])]
)
async def test_a_dry_run_names_the_gangs_that_would_be_over_quota_youngest_first(
    api: httpx2.AsyncClient, gpus: int, over: list[str]
) -> None:
    await put_all(api)
    answer = (await api.put(QUEUE_PATH, params=DRY, json=with_quota(gpus))).json()
    assert [w for excess in answer["overQuota"] for w in excess["workloads"]] == over
    for excess in answer["overQuota"]:
        assert (excess["kind"], excess["name"]) == ("ClusterQueue", "team-a")
        assert (excess["used"], excess["allowed"]) == (64, gpus)


async def test_a_process_that_does_not_lead_does_not_know_what_runs(
    api: httpx2.AsyncClient, diagnoser: FixedDiagnoser
) -> None:
    diagnoser.running = None
    answer = await api.put(QUEUE_PATH, params=DRY, json=CLUSTER_QUEUE)
    assert (answer.status_code, answer.json()["overQuota"]) == (200, None)
    assert (await together(api, CLUSTER_QUEUE)).json()["overQuota"] is None


async def test_documents_are_judged_together(api: httpx2.AsyncClient) -> None:
    """A cohort can provide the quota that a queue no longer has: alone, the second document would be over quota."""
    await put_all(api)
    member = with_quota(32)
    member["spec"]["cohortName"] = "all"
    cohort = {**COHORT, "spec": {"resourceGroups": CLUSTER_QUEUE["spec"]["resourceGroups"]}}
    alone = (await together(api, member)).json()
    assert [excess["name"] for excess in alone["overQuota"]] == ["all"]
    both = (await together(api, member, cohort)).json()
    assert both["overQuota"] == []
    assert [one["result"] for one in both["objects"]] == ["configured", "configured"]


async def test_names_can_refer_to_documents_of_the_same_list(api: httpx2.AsyncClient) -> None:
    queue = (await together(api, CLUSTER_QUEUE)).json()["objects"][0]
    assert queue["warnings"] == ["ClusterQueue team-a: ResourceFlavor h100 does not exist"]
    queue, _ = (await together(api, CLUSTER_QUEUE, FLAVOR)).json()["objects"]
    assert (queue["result"], queue["warnings"]) == ("created", [])


@pytest.mark.parametrize(
    ("items", "says"),
    [
        ([{**CLUSTER_QUEUE, "spec": {"color": "red"}}], "ClusterQueue/team-a: spec.color: unknown field"),
        ([{**COHORT, "spec": {"parentName": "b"}},
          {**COHORT, "metadata": {"name": "b"}, "spec": {"parentName": "all"}}], "is a cycle"),
        ([{**COHORT, "metadata": {"name": f"c-{n}"}, "spec": {"parentName": f"c-{n + 1}"}} for n in range(MAX_COHORTS)],
         "spec.parentName: makes a chain of 65 Cohorts; at most 64 are allowed"),
        ([{"kind": "Pod", "apiVersion": "v1"}], "'Pod' is not one of"),
        ([1], "items: must be a list of documents"),
    ],
)  # fmt: skip
async def test_wrong_documents_are_refused_as_in_a_write(
    api: httpx2.AsyncClient, items: list[Any], says: str
) -> None:
    answer = await api.post("/api/v1/dryrun", json={"items": items})
    assert answer.status_code == 422
    assert says in answer.json()["detail"]


async def test_preconditions_hold_in_a_dry_run_too(api: httpx2.AsyncClient) -> None:
    headers = {"if-match": '"99"'}
    answer = await api.put(QUEUE_PATH, params=DRY, json=CLUSTER_QUEUE, headers=headers)
    assert answer.status_code == 412


class TestTheOneConfiguration:
    """It is a cluster-wide singleton; the file of Kueue's manager gives it no name."""

    async def test_the_configuration_has_a_default_name(self, api: httpx2.AsyncClient) -> None:
        nameless = {k: v for k, v in CONFIGURATION.items() if k != "metadata"}
        answer = await api.put(CONFIGURATION_PATH, json=nameless)
        assert answer.status_code == 201
        assert answer.json()["object"]["metadata"]["name"] == "default"
        again = await api.put(CONFIGURATION_PATH, json=CONFIGURATION)
        assert again.json()["result"] == "unchanged"
        checked = (await together(api, nameless)).json()["objects"][0]
        assert checked["result"] == "unchanged"

    async def test_another_name_is_refused(self, api: httpx2.AsyncClient) -> None:
        other = {**CONFIGURATION, "metadata": {"name": "other"}}
        answer = await api.put("/api/v1/configurations/other", json=other)
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["field"] == "metadata.name"

    async def test_its_rules_apply_to_the_queues(self, api: httpx2.AsyncClient) -> None:
        """Each GPU is charged as four, so the running gangs are over quota."""
        await put_all(api)
        made = {"input": "nvidia.com/gpu", "strategy": "Replace", "outputs": {"nvidia.com/gpu": 4}}
        charged = {**CONFIGURATION, "resources": {"transformations": [made]}}
        answer = (await api.put(CONFIGURATION_PATH, params=DRY, json=charged)).json()
        (excess,) = answer["overQuota"]
        assert (excess["used"], excess["allowed"]) == (256, 64)
        assert [change["field"] for change in answer["changes"]] == ["resources"]


async def test_an_unreadable_stored_document_does_not_refuse_a_dry_run(
    client: httpx2.AsyncClient, memory: Any
) -> None:
    await memory.put_config({**DOCUMENTS["/api/v1/topologies/racks"], "spec": {"levels": []}})
    answer = await client.put(
        "/api/v1/namespaces/team-a/localqueues/default", params=DRY, json=LOCAL_QUEUE
    )
    assert answer.status_code == 200
    assert "not checked together with the other objects" in answer.json()["warnings"][0]


# ---- many documents


def dangling_queues(number: int) -> list[dict[str, Any]]:
    """LocalQueues of a ClusterQueue that does not exist: there is a warning about each."""
    return [
        {**LOCAL_QUEUE, "metadata": {"namespace": "team-a", "name": f"queue-{n}"}}
        for n in range(number)
    ]


def chained_cohorts(number: int) -> list[dict[str, Any]]:
    """Cohorts, each below the next one, in trees of the greatest height allowed."""
    return [
        {
            **COHORT,
            "metadata": {"name": f"cohort-{n}"},
            "spec": {"parentName": f"cohort-{n + 1}"} if (n + 1) % MAX_COHORTS else {},
        }
        for n in range(number)
    ]


@pytest.mark.parametrize("of", [dangling_queues, chained_cohorts])
def test_the_work_of_a_dry_run_grows_with_the_number_of_documents(of: Any) -> None:

    def tried(number: int) -> None:
        objects, _ = dry_run._tried(of(number), [], 1)
        assert len(objects) == number

    few, many = (lines_run(partial(tried, number)) for number in (50, 200))
    assert many < 5 * few


async def test_a_warning_belongs_to_the_document_that_causes_it(api: httpx2.AsyncClient) -> None:
    answer = await together(api, *dangling_queues(2), COHORT)
    warnings = [one["warnings"] for one in answer.json()["objects"]]
    name = LOCAL_QUEUE["spec"]["clusterQueue"]
    assert warnings == [
        [f"LocalQueue team-a/queue-0: ClusterQueue {name} does not exist"],
        [f"LocalQueue team-a/queue-1: ClusterQueue {name} does not exist"],
        [],
    ]


async def test_configurations_are_not_built_on_the_event_loop(
    store: AnyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def noted(name: str) -> None:
        real = getattr(dry_run, name)

        def work(*given: Any) -> Any:
            threads.append(threading.current_thread().name)
            return real(*given)

        monkeypatch.setattr(dry_run, name, work)

    for name in ("build", "validate", "dangling"):
        noted(name)
    for document in (FLAVOR, CLUSTER_QUEUE, LOCAL_QUEUE):
        await store.put_config(document)
    key = DocumentKey.of(LOCAL_QUEUE)
    reservation = {**LOCAL_QUEUE, "kind": "Reservation"}
    await dry_run.dry_run_removal(key, store, None, Bodies())
    with contextlib.suppress(DocumentError):
        await dry_run.dry_run_documents([reservation], store, FixedDiagnoser(), Bodies())
    assert len(threads) >= 4
    assert threading.main_thread().name not in threads
