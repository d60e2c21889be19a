"""The webhook without an API server: mutations, answers, the configuration and its process."""

from __future__ import annotations

import asyncio
import base64
import ssl
from copy import deepcopy
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
import yaml
from prometheus_client import CollectorRegistry
from starlette.testclient import TestClient

from queuectl.cel.expression import CompiledExpression, EvaluationError
from queuectl.cluster.apply import manifests, older_manifests
from queuectl.cluster.client import Api
from queuectl.cluster.connection import Connection
from queuectl.cluster.writes import BINDING, CONFIGURATION, NAME, PATH, POLICY
from queuectl.control.listen_address import ListenAddress
from queuectl.domain.errors import BadInput, ObjectGone
from queuectl.objects import keys
from queuectl.objects.kinds import DESCRIPTIONS, KINDS
from queuectl.objects.kinds.description import Description, below, merged, nested
from queuectl.objects.kinds.places import field
from queuectl.webhook.app import (
    LARGEST,
    SMALL,
    TOGETHER,
    WebhookSettings,
    application,
    serve,
)
from queuectl.webhook.mutations import (
    MOST_ENTRIES,
    Mutation,
    expression,
    mutations,
    read_mutations,
)
from tests.doubles.certificate_objects import CertificateObjects
from tests.support.jobs import job_of
from tests.support.polling import until

DEPLOYED = manifests()
KNOWN = mutations(DEPLOYED)
NAMES = ["queuectl-webhook-0.queuectl-system.svc", "127.0.0.1"]
JOB: dict[str, Any] = {
    "metadata": {"name": "a", "labels": {keys.QUEUE_LABEL: "main"}},
    "spec": {"template": {"spec": {"containers": [{"name": "main"}]}}},
}


# ---- mutations


def test_each_mutating_policy_can_be_evaluated() -> None:
    of_pods = ("pods", "labeled-pods", "statefulsets", "deployments", "leaderworkersets")
    of_all = ("queue-labels", "submitters", "submitters-default")
    of_kinds = [kind.plural for kind in KINDS.values()]
    of_children = ["trainjobs-jobsets"]
    named = (*of_pods, *of_all, *of_kinds, *of_children)
    assert set(KNOWN) == {f"queuectl-{plural}" for plural in named}


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    """The file of the pods of deploy/older-servers."""
    file = tmp_path / "policies.yaml"
    file.write_text(named(older_manifests(), "ConfigMap")[NAME]["data"][file.name])
    return file


def test_the_file_of_the_webhook_has_the_policies_that_it_replaces(policies: Path) -> None:
    assert named(list(yaml.load_all(policies.read_text(), yaml.CSafeLoader)), POLICY) == named(
        DEPLOYED, POLICY
    )
    found = read_mutations(policies)
    assert found.keys() == KNOWN.keys()
    document = job_of("PyTorchJob", "a", pods=2)
    request = {"userInfo": {"username": "alice"}, "operation": "CREATE"}
    patch = found["queuectl-pytorchjobs"].patch(document, request)
    assert patch == KNOWN["queuectl-pytorchjobs"].patch(document, request) != []


def test_a_file_of_policies_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"absent: No such file"):
        read_mutations(tmp_path / "absent")
    wrong = tmp_path / "wrong"
    wrong.write_text("a: [")
    with pytest.raises(BadInput, match="wrong"):
        read_mutations(wrong)


def test_a_policy_with_a_part_that_is_not_supported_is_refused() -> None:
    [policy, *_] = [one for one in DEPLOYED if one["kind"] == "MutatingAdmissionPolicy"]
    conditions = {**policy, "spec": {**policy["spec"], "paramKind": {}}}
    twice = {**policy, "spec": {**policy["spec"], "mutations": policy["spec"]["mutations"] * 2}}
    for document in (conditions, twice):
        with pytest.raises(BadInput, match="queuectl-jobs"):
            Mutation(document)


def test_an_expression_that_is_not_valid_is_refused() -> None:
    with pytest.raises(BadInput, match="object"):
        expression("object +")


def test_a_missing_field_is_an_error_and_an_optional_one_is_not() -> None:
    data: dict[str, Any] = {"object": {}, "request": {}, "variables": {}}
    with pytest.raises(EvaluationError, match="spec"):
        expression("object.spec").evaluate(data)
    assert expression("object.?spec.orValue('none')").evaluate(data) == "none"


def test_a_key_is_escaped_as_part_of_a_pointer() -> None:
    data: dict[str, Any] = {"object": {}, "request": {}, "variables": {}}
    assert expression("jsonpatch.escapeKey('a/b~c')").evaluate(data) == "a~1b~0c"


# ---- answers


MOST = 128
"""Podsets of a gang, of docs/reference/object-limits.md."""
WITH_LISTS = [one for one in DESCRIPTIONS if any(where.key for where in one.podsets)]


@pytest.mark.parametrize(
    ("one", "policy"),
    [
        *((one, f"queuectl-{one.plural}") for one in WITH_LISTS),
        *((one, "queuectl-trainjobs-jobsets") for one in WITH_LISTS if one.kind == "JobSet"),
    ],
    ids=lambda one: getattr(one, "kind", one),
)
def test_a_new_job_can_have_as_many_podsets_as_a_gang(one: Description, policy: str) -> None:
    """The library limits the steps of an expression."""
    [place] = (where for where in one.podsets if where.key)
    template = {"spec": {"containers": [{"name": "main"}], "priorityClassName": "mine"}}
    added = [{place.key: f"Set-{n}", **nested(place.template, template)} for n in range(MOST)]
    singles = [nested(below(where.path, where.template), template)
        for where in one.podsets if where.name]  # fmt: skip
    document = merged(
        [{"metadata": {"name": "a"}}, deepcopy(nested(place.path, added)), *deepcopy(singles)]
    )
    del field(document, place.path)[1][place.template.partition(".")[0]]
    request = {"userInfo": {"username": "alice"}, "namespace": "team"}
    patch = KNOWN[policy].patch(document, request)
    gates = "/spec/schedulingGates"
    gated = [each["path"] for each in patch if each["path"].endswith(gates)]
    at = place.path.replace(".", "/")
    of_list = [path for path in gated if path.startswith(f"/{at}/")]
    below_entry = place.template.replace(".", "/")
    assert of_list == [f"/{at}/{n}/{below_entry}{gates}" for n in range(MOST) if n != 1]
    assert len(gated) == MOST - 1 + len(singles)
    names = [each["value"] for each in patch if each["path"].endswith("/queuectl.dev~1podset")]
    assert names[-1] in ("set-127", "submitter")
    assert "set-127" in names


def review(document: Any) -> bytes:
    request = {
        "uid": "7",
        "operation": "CREATE",
        "userInfo": {"username": "alice"},
        "object": document,
    }
    return msgspec.json.encode({"request": request})


def test_the_answer_has_the_patch_of_the_policy() -> None:
    with TestClient(application(KNOWN, CollectorRegistry())) as client:
        response = client.post("/mutate/queuectl-jobs", content=review(JOB))
    said = response.json()["response"]
    patch = msgspec.json.decode(base64.b64decode(said["patch"]))
    assert (said["uid"], said["allowed"], said["patchType"]) == ("7", True, "JSONPatch")
    assert {"op": "add", "path": "/spec/suspend", "value": True} in patch
    assert [one["value"] for one in patch if "submitted-by" in one["path"]] == ["alice"]


def test_the_patch_of_a_job_without_labels_has_the_default_queue() -> None:
    """The API server would copy the labels of the template to it."""
    request = {"userInfo": {"username": "alice"}}
    for labels, number in (({}, 2), ({"app": "mine"}, 0), (None, 2)):
        metadata = {"name": "a"} if labels is None else {"name": "a", "labels": labels}
        patch = KNOWN["queuectl-jobs"].patch({**JOB, "metadata": metadata}, request)
        written = [one for one in patch if one["path"].startswith("/metadata/labels")]
        assert len(written) == number
        assert [one["value"] for one in written][1:] == ["default"] * (number // 2)


@pytest.mark.parametrize(("kind", "gated"), [("ReplicaSet", True), ("Job", False)])
def test_a_pod_with_a_queue_label_is_gated_unless_it_is_of_a_job(kind: str, gated: bool) -> None:
    owner = {"kind": kind, "name": "a", "uid": "u", "controller": True}
    metadata = {**JOB["metadata"], "ownerReferences": [owner]}
    pod = {"metadata": metadata, "spec": {"priorityClassName": "urgent", "priority": 1000}}
    with TestClient(application(KNOWN, CollectorRegistry())) as client:
        response = client.post("/mutate/queuectl-pods", content=review(pod))
    said = response.json()["response"]
    patch = msgspec.json.decode(base64.b64decode(said.get("patch", "") or b"W10="))
    written = {one["path"]: one["value"] for one in patch}
    if not gated:
        assert written == {}
        return
    assert written["/spec/schedulingGates"] == [{"name": keys.GATE}]
    assert (written["/spec/priority"], written["/spec/preemptionPolicy"]) == (
        keys.POD_PRIORITY,
        "Never",
    )
    assert isinstance(written["/spec/priority"], int), "the API server accepts no 0.0"


def test_an_object_without_a_value_is_refused_with_the_reason() -> None:
    with TestClient(application(KNOWN, CollectorRegistry())) as client:
        response = client.post("/mutate/queuectl-pytorchjobs", content=review({"spec": {}}))
    said = response.json()["response"]
    assert said["allowed"] is False
    assert "policy queuectl-pytorchjobs" in said["status"]["message"]


def test_a_policy_knows_the_lists_and_maps_from_which_it_makes_others() -> None:
    """Of each kind these include its gates, and its podsets if their number is not fixed."""
    of_types = {
        "pytorch": "pytorch",
        "tf": "tf",
        "xgboost": "xgb",
        "paddle": "paddle",
        "jax": "jax",
        "mpi": "mpi",
    }
    podsets = {f"queuectl-{kind}jobs": f"{field}ReplicaSpecs" for kind, field in of_types.items()}
    podsets |= {f"queuectl-{kind}": "replicatedJobs" for kind in ("jobsets", "trainjobs-jobsets")}
    podsets |= {f"queuectl-{kind}": "workerGroupSpecs" for kind in ("rayclusters", "rayjobs")}
    for name in (*podsets, "queuectl-jobs", "queuectl-pods", "queuectl-labeled-pods"):
        known = {"schedulingGates", podsets.get(name, "schedulingGates")}
        assert KNOWN[name].iterated == known, name


@pytest.mark.parametrize("number", [MOST_ENTRIES, MOST_ENTRIES + 1, 50_000])
def test_a_list_that_is_made_to_cost_is_refused_before_it_is_evaluated(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of 9,000 entries is seconds, in which no thread of the process runs."""
    evaluated = []
    evaluate = CompiledExpression.evaluate

    def counted(expression: CompiledExpression, data: Any) -> Any:
        evaluated.append(expression)
        return evaluate(expression, data)

    monkeypatch.setattr(CompiledExpression, "evaluate", counted)
    document = deepcopy(JOB)
    pod = document["spec"]["template"]["spec"]
    pod["schedulingGates"] = [{"name": f"example.com/{n}"} for n in range(number)]
    with TestClient(application(KNOWN, CollectorRegistry())) as client:
        response = client.post("/mutate/queuectl-jobs", content=review(document))
    assert bool(evaluated) is (number <= MOST_ENTRIES)
    said = response.json()["response"]
    assert said["allowed"] is (number <= MOST_ENTRIES)
    if number > MOST_ENTRIES:
        assert f"schedulingGates has {number:,} entries" in said["status"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/mutate/queuectl-jobs", b"{}", 400),
        ("/mutate/queuectl-jobs", b"no JSON", 400),
        (
            "/mutate/queuectl-jobs",
            review({"x": "@"}).replace(b'"@"', b"[" * 2000 + b"]" * 2000),
            400,
        ),
        ("/mutate/queuectl-jobs", review(None), 400),
        ("/mutate/queuectl-jobs", b" " * (LARGEST + 1), 413),
        ("/mutate/other", review(JOB), 404),
    ],
)
def test_other_requests_are_refused(path: str, body: bytes, status: int) -> None:
    with TestClient(application(KNOWN, CollectorRegistry())) as client:
        assert client.post(path, content=body).status_code == status


async def test_requests_that_do_not_end_take_limited_memory_and_delay_no_small_one() -> None:
    """Any pod can open hundreds of connections to the webhook."""
    app, never, statuses = application(KNOWN, CollectorRegistry()), asyncio.Event(), list[int]()

    async def post(body: bytes, *, ends: bool) -> None:
        parts = [body[at : at + SMALL] for at in range(0, len(body), SMALL)]

        async def receive() -> dict[str, Any]:
            if not parts:
                await never.wait()
            part = parts.pop(0)
            more = bool(parts) or not ends
            return {"type": "http.request", "body": part, "more_body": more}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        path = "/mutate/queuectl-jobs"
        scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b""}
        await app(scope, receive, send)

    most = TOGETHER // (LARGEST - SMALL)
    waiting = [asyncio.create_task(post(b" " * LARGEST, ends=False)) for _ in range(most + 1)]
    await until(lambda: statuses)
    assert statuses == [503]
    await post(review(JOB), ends=True)
    assert statuses == [503, 200]
    for one in waiting:
        one.cancel()
    await asyncio.wait(waiting)
    large = review({**JOB, "status": " " * (LARGEST // 2)})
    await post(large, ends=True)
    assert statuses == [503, 200, 200], "the memory is free again"


# ---- the configuration


def named(documents: list[Any], kind: str) -> dict[str, Any]:
    return {one["metadata"]["name"]: one for one in documents if one["kind"] == kind}


WEBHOOKS = {
    one["name"].removesuffix(".queuectl.dev"): one
    for one in named(older_manifests(), "MutatingWebhookConfiguration")[CONFIGURATION]["webhooks"]
}


def test_the_configuration_has_a_webhook_of_each_replica_for_each_binding() -> None:
    bindings, policies = named(DEPLOYED, BINDING), named(DEPLOYED, POLICY)
    assert list(WEBHOOKS) == [f"{name}-{number}" for number in (0, 1) for name in bindings]
    for name, webhook in WEBHOOKS.items():
        bound, _, number = name.rpartition("-")
        binding = bindings[bound]["spec"]
        policy = policies[binding["policyName"]]["spec"]
        selected = {key: webhook[key] for key in webhook if key.endswith("Selector")}
        assert selected == binding["matchResources"]
        assert webhook["rules"] == policy["matchConstraints"]["resourceRules"]
        assert webhook["reinvocationPolicy"] == policy["reinvocationPolicy"]
        called = webhook["clientConfig"]["service"]
        assert (called["name"], called["path"]) == (
            f"{NAME}-{number}",
            PATH + binding["policyName"],
        )


def test_the_last_replica_fails_closed_and_is_called_for_unchanged_jobs_only() -> None:
    for name, webhook in WEBHOOKS.items():
        last = name.endswith("-1")
        assert webhook["failurePolicy"] == ("Fail" if last else "Ignore")
        conditions = {one["name"] for one in webhook.get("matchConditions", ())}
        assert ("not-changed-by-another-replica" in conditions) is last
        assert ("not-for-a-queued-job" in conditions) is name.startswith(
            (
                "queuectl-jobs-",
                "queuectl-jobsets-",
                "queuectl-pytorchjobs-",
                "queuectl-queue-labels-",
                "queuectl-rayclusters-",
            )
        )


def test_the_account_of_the_webhook_and_the_right_to_the_status_are_only_in_the_older_set() -> None:
    older = older_manifests()

    names = {one["metadata"]["name"] for one in older if "Role" in one["kind"]}
    assert names - {one["metadata"]["name"] for one in DEPLOYED} == {
        "queuectl-webhook",
        "queuectl-job-status",
    }
    assert not [one for one in older if one["kind"].startswith(POLICY)]


# ---- the process


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EVERY_SECONDS", "FIRST_SECONDS"):
        monkeypatch.setattr(f"queuectl.control.certificate_keeper.{name}", 0.01)
    monkeypatch.setattr("queuectl.control.leader.schedule.FIRST_PAUSE", 0.01)


@pytest.mark.sets_aside
@pytest.mark.usefixtures("soon")
async def test_a_webhook_answers_during_an_error_of_its_certificates_and_counts_it(
    monkeypatch: pytest.MonkeyPatch, policies: Path
) -> None:
    """The certificates fail each time from then on."""
    cluster, stop, urls = CertificateObjects(), asyncio.Event(), list[str]()

    async def connect(_: Connection) -> CertificateObjects:
        return cluster

    monkeypatch.setattr(Api, "connect", connect)
    settings = WebhookSettings(ListenAddress("127.0.0.1", 0), "queuectl-system", NAMES, policies)
    running = asyncio.create_task(serve(settings, stop, urls.append))
    await until(lambda: urls or running.done())
    verify = ssl.create_default_context(cadata=cluster.trusted_by_api_servers.decode())
    cluster.configuration["webhooks"] = 5

    async def counted(client: httpx2.AsyncClient) -> bool:
        shown = (await client.get(f"{urls[0]}/metrics")).text
        return 'queuectl_set_aside{boundary="task"} 1.0' in shown

    async with httpx2.AsyncClient(verify=verify, trust_env=False) as client, asyncio.timeout(30):
        while not await counted(client):
            pass
        answer = await client.post(f"{urls[0]}/mutate/queuectl-jobs", content=review(JOB))
        assert answer.json()["response"]["allowed"] is True
    assert not running.done()
    stop.set()
    await running


async def test_a_webhook_without_its_secret_names_the_missing_part_of_the_installation(
    monkeypatch: pytest.MonkeyPatch, policies: Path
) -> None:
    cluster = CertificateObjects()
    cluster.answers = [ObjectGone("secrets: 404")]

    async def connect(_: Connection) -> CertificateObjects:
        return cluster

    monkeypatch.setattr(Api, "connect", connect)
    settings = WebhookSettings(ListenAddress("127.0.0.1", 0), "queuectl-system", NAMES, policies)
    with pytest.raises(BadInput, match="deploy/older-servers: secrets: 404"):
        await serve(settings, asyncio.Event(), print)
