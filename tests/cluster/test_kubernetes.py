"""The adapter on a real control plane, under queuectl's own identity."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import pytest

from queuectl.cluster.adapter import KubernetesCluster
from queuectl.cluster.apply import apply, manifests, optional
from queuectl.cluster.client import APPLY_PATCH, Api, Forbidden, Query, ResponseBody
from queuectl.cluster.connection import Connection
from queuectl.cluster.reflector import NoHooks, Pace, Reflector
from queuectl.cluster.resources import Resource, watched
from queuectl.cluster.review import probe_policies, protecting
from queuectl.cluster.server import confirm_absent
from queuectl.control.composition import WatchMeter
from queuectl.domain.errors import (
    BadInput,
    ClusterUnavailable,
    ObjectGone,
    WriteConflict,
    WriteRefused,
)
from queuectl.domain.mig import ANNOTATION as MIG
from queuectl.domain.records import Delta, ListCompleted
from queuectl.objects.keys import DEFAULT_QUEUE_LABEL, GATE
from queuectl.objects.kinds import KINDS, path
from queuectl.objects.kinds.described import MERGE_PATCH
from queuectl.telemetry.metrics import MetricsRecorder
from tests.cluster.conformance import ClusterConformance
from tests.cluster.kubernetes_world import KubernetesWorld, refusals
from tests.cluster.world import RESOURCES, a_node, patched, place, start, submitted
from tests.doubles.admission import templates
from tests.support.controlplane import SYSTEM_NAMESPACE, ControlPlane, everything, restore_bindings
from tests.support.jobs import batch_job, pytorch_job

pytestmark = pytest.mark.system

PYTORCHJOBS = next(resource for resource in watched() if resource.name == "pytorchjobs")
POLICIES = "/apis/admissionregistration.k8s.io/v1"


class TestKubernetes(ClusterConformance):
    pass


# ---- rights


FORBIDDEN: list[tuple[Any, str, dict[str, Any] | None]] = [
    ("GET", "/api/v1/secrets", None),
    ("GET", f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets/queuectl-database", None),
    ("GET", "/api/v1/configmaps", None),
    ("GET", "/apis/apps/v1/deployments", None),
    ("PATCH", "/api/v1/nodes/b0-r0-h0", {"metadata": {"labels": {"x": "y"}}}),
    ("POST", "/api/v1/namespaces/default/pods", {"metadata": {"name": "x"}}),
    ("POST", "/apis/batch/v1/namespaces/default/jobs", {"metadata": {"name": "x"}}),
    ("PATCH", "/apis/batch/v1/namespaces/default/jobs/x/status", {"status": {}}),
    ("POST", "/apis/coordination.k8s.io/v1/namespaces/default/leases", {"metadata": {"name": "x"}}),
    ("PATCH", f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases/x", {"spec": {}}),
    ("PATCH", f"{POLICIES}/validatingadmissionpolicies/queuectl-jobs", {"spec": {}}),
    ("GET", f"{POLICIES}/validatingadmissionpolicies", None),
    ("PATCH", "/apis/rbac.authorization.k8s.io/v1/clusterroles/queuectl", {"rules": []}),
    ("PATCH", "/api/v1/namespaces/default", {"metadata": {"labels": {"x": "y"}}}),
    ("POST", "/api/v1/namespaces/default/pods/x/exec", {}),
    ("POST", "/api/v1/namespaces/default/serviceaccounts/default/token", {"spec": {}}),
]


@pytest.mark.parametrize(("method", "path", "body"), FORBIDDEN, ids=lambda one: str(one)[:60])
async def test_queuectl_may_not(
    own: Api, method: Any, path: str, body: dict[str, Any] | None
) -> None:
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    with pytest.raises(Forbidden):
        await own.request(method, path, body=body, content_type=kind)


@pytest.mark.parametrize("resource", ["nodes", "pods", "namespaces"])
async def test_queuectl_may_not_delete(control_plane: ControlPlane, resource: str) -> None:
    """It may not create or replace either, because it lacks these verbs."""
    role = control_plane.cluster.client.get(
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/queuectl"
    )
    verbs = {v for r in role["rules"] if resource in r["resources"] for v in r["verbs"]}
    policed = {"delete"} if resource == "pods" else set()  # tests/cluster/test_pod_policies.py
    assert verbs - policed <= {"get", "list", "watch", "patch"}


# ---- policies


async def test_an_added_owner_reference_permits_no_resume(world: KubernetesWorld) -> None:
    """The policy also applies if an owner reference is added together with the resume."""
    job = await submitted(world, batch_job("fake", namespace=world.namespace))
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "x", "uid": "u", "controller": True}
    patch = {"metadata": {"ownerReferences": [owner]}, "spec": {"suspend": False}}
    with pytest.raises(WriteRefused, match="only queuectl may resume"):
        await world.user_patch("Job", job.name, patch)


async def test_a_cluster_admin_is_not_an_exception(world: KubernetesWorld) -> None:
    job = await submitted(world, batch_job("admins", namespace=world.namespace))
    world.user = world.admin
    with pytest.raises(WriteRefused, match="only queuectl may resume"):
        await world.user_patch("Job", job.name, {"spec": {"suspend": False}})


async def test_a_placed_pod_costs_the_api_server_no_tracking_of_fields(
    world: KubernetesWorld,
) -> None:
    job = await submitted(world, batch_job("untracked", pods=1, namespace=world.namespace))
    [pod] = await start(world, job, 1)
    where = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
    client = world.admin
    assert client.get(where)["metadata"]["managedFields"]
    await place(world, [pod], a_node(world))
    running = client.get(where)
    assert running["status"]["phase"] == "Running"
    assert "managedFields" not in running["metadata"]


@pytest.mark.parametrize("make", [batch_job, pytorch_job])
async def test_a_started_job_costs_the_api_server_no_tracking_of_fields(
    world: KubernetesWorld, make: Callable[..., dict[str, Any]]
) -> None:
    job = await submitted(world, make("untracked", namespace=world.namespace))
    where, client = world.path_of(job.kind, job.name), world.admin
    assert client.get(where)["metadata"]["managedFields"]
    await start(world, job, 1)
    assert "managedFields" not in client.get(where)["metadata"]


async def test_a_server_side_applied_job_keeps_its_field_managers(
    world: KubernetesWorld, admin: Api
) -> None:
    document = batch_job("applied", namespace=world.namespace)
    query = [("fieldManager", "gitops")]
    where = world.path_of("Job", "applied")
    await admin.request("PATCH", where, query=query, body=document, content_type=APPLY_PATCH)
    await world.until(lambda: any(j.name == "applied" for j in world.view.jobs.values()), "the job")
    [job] = [j for j in world.view.jobs.values() if j.name == "applied"]
    await start(world, job, 1)
    kept = world.admin.get(where)["metadata"]["managedFields"]
    assert {"gitops", "queuectl"} <= {owner["manager"] for owner in kept}


async def test_a_new_job_keeps_the_fields_of_its_author(world: KubernetesWorld) -> None:
    document = batch_job("plain", namespace=world.namespace)
    template = document["spec"]["template"]
    template["metadata"] = {"labels": {"app": "x", "queuectl.dev/attempt": "7"}}
    template["spec"]["schedulingGates"] = [{"name": "other.dev/gate"}]
    template["spec"]["priorityClassName"] = "system-node-critical"
    document["metadata"]["annotations"] = {"note": "mine"}
    await submitted(world, document)
    stored = await asyncio.to_thread(world.admin.get, world.path_of("Job", "plain"))
    assert stored["metadata"]["annotations"] == {
        "note": "mine",
        "queuectl.dev/original-priority-class": "system-node-critical",
        "queuectl.dev/submitted-by": "alice",
    }
    assert stored["spec"]["suspend"]
    made = stored["spec"]["template"]
    assert made["metadata"]["labels"].items() >= {
        ("app", "x"),
        ("queuectl.dev/attempt", "0"),
        ("queuectl.dev/podset", "main"),
    }
    gates = [gate["name"] for gate in made["spec"]["schedulingGates"]]
    assert gates == ["other.dev/gate", "queuectl.dev/placement"]
    assert made["spec"]["priorityClassName"] == "queuectl-managed"


@pytest.mark.parametrize("make", [batch_job, pytorch_job])
async def test_the_values_of_a_priority_class_in_a_template_are_removed(
    world: KubernetesWorld, make: Callable[..., dict[str, Any]]
) -> None:
    """A template that was copied from a pod has them. With them, the API server refuses pods of the class queuectl-managed."""
    document = make("copied", namespace=world.namespace)
    for _, template in templates(document):
        template["spec"] |= {"priority": 0, "preemptionPolicy": "PreemptLowerPriority"}
    job = await submitted(world, document)
    stored = await asyncio.to_thread(world.admin.get, world.path_of(job.kind, job.name))
    assert not [
        field
        for _, template in templates(stored)
        for field in ("priority", "preemptionPolicy")
        if field in template["spec"]
    ]


async def test_a_gate_on_a_pod_without_an_owner_is_refused(world: KubernetesWorld) -> None:
    pod = {
        "metadata": {"name": "lonely"},
        "spec": {
            "containers": [{"name": "c", "image": "none"}],
            "schedulingGates": [{"name": "queuectl.dev/placement"}],
        },
    }
    await refused(world, f"/api/v1/namespaces/{world.namespace}/pods", pod, create=True)


async def test_gates_labels_and_annotations_of_the_user_stay(world: KubernetesWorld) -> None:
    document = pytorch_job("rich", namespace=world.namespace, workers=1)
    worker = document["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    worker["metadata"] = {"labels": {"app": "x", "queuectl.dev/attempt": "7"}}
    worker["spec"]["schedulingGates"] = [{"name": "other.dev/gate"}]
    await submitted(world, document)
    stored = await asyncio.to_thread(world.admin.get, world.path_of("PyTorchJob", "rich"))
    template = stored["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    assert template["metadata"]["labels"] == {
        "app": "x",
        "queuectl.dev/attempt": "0",
        "queuectl.dev/podset": "worker",
    }
    gates = [gate["name"] for gate in template["spec"]["schedulingGates"]]
    assert gates == ["other.dev/gate", "queuectl.dev/placement"]


@pytest.mark.parametrize(
    "binding",
    [
        "mutatingadmissionpolicybindings/queuectl-jobs",
        pytest.param(
            "mutatingadmissionpolicybindings/queuectl-pytorchjobs", marks=pytest.mark.kinds
        ),
        pytest.param("validatingadmissionpolicybindings/queuectl-jobs", marks=pytest.mark.kinds),
        "validatingadmissionpolicybindings/queuectl-pytorchjobs",
        "validatingadmissionpolicybindings/queuectl-pods",
    ],
)
async def test_a_policy_that_is_not_in_force_is_reported(
    own: Api, admin: Api, control_plane: ControlPlane, binding: str
) -> None:
    client = control_plane.cluster.client
    client.delete(f"{POLICIES}/{binding}")
    try:
        async with asyncio.timeout(20):
            missing: list[str] = []
            while not missing:
                missing = await probe_policies(own, SYSTEM_NAMESPACE)
        assert binding.split("/")[1] in missing[0]
        assert "is not in force" in missing[0]
    finally:
        await restore_bindings(admin)


async def test_a_job_from_before_the_policies_can_be_annotated_and_deleted(
    world: KubernetesWorld, admin: Api
) -> None:
    """It has no gate and no priority class of queuectl, and its labels can be invalid or too many. Its finalizers must still be removable."""
    kinds = ("mutatingadmissionpolicybindings", "validatingadmissionpolicybindings")
    names = [
        f"queuectl-{kind}{suffix}" for kind in ("jobs", "pytorchjobs") for suffix in ("", "-kueue")
    ]
    torn = {"queuectl.dev/queue-name": "a", "kueue.x-k8s.io/queue-name": "b"}
    documents = [
        batch_job("old", namespace=world.namespace, queue=""),
        pytorch_job("old", namespace=world.namespace, queue=None),
    ]
    documents[1]["metadata"]["labels"] = torn
    many = {f"key-{n}": "x" for n in range(600)}
    documents[0]["spec"]["template"].setdefault("metadata", {})["labels"] = many
    for document in documents:
        document["metadata"]["finalizers"] = ["example.org/keep"]
        document["metadata"].setdefault("labels", {}).update(many)
    for kind in kinds:
        for name in names:
            world.admin.delete(f"{POLICIES}/{kind}/{name}")
    try:
        for document in documents:
            await until_taken_as_it_is(admin, document)
            await world.submit(document)
    finally:
        await restore_bindings(admin)
    for kind in ("Job", "PyTorchJob"):
        await world.user_patch(kind, "old", {"metadata": {"annotations": {"x": "y"}}})
        await world.user_patch(kind, "old", {"metadata": {"finalizers": None}})
        await world.delete_job(kind, "old")
        assert not world.admin.exists(world.path_of(kind, "old"))


async def until_taken_as_it_is(api: Api, document: dict[str, Any]) -> None:
    """Wait until no policy refuses or gates a new job: each policy ends with a delay."""
    collection = path(KINDS[document["kind"]], document["metadata"]["namespace"])
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(WriteRefused):
                made = await api.request(
                    "POST", collection, query=(("dryRun", "All"),), body=document
                )
                if GATE.encode() not in made:
                    return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("make", [batch_job, pytorch_job])
async def test_a_queue_label_on_an_existing_job_is_refused_with_advice(
    world: KubernetesWorld, make: Callable[..., dict[str, Any]]
) -> None:
    document = make("late", namespace=world.namespace, queue=None)
    await world.submit(document)
    patch = {"metadata": {"labels": {"queuectl.dev/queue-name": "main"}}}
    with pytest.raises(WriteRefused, match="create it with the label it should have"):
        await world.user_patch(document["kind"], "late", patch)


@pytest.mark.parametrize("make", [batch_job, pytorch_job])
async def test_a_job_without_a_queue_gets_the_default_one_if_there_is_one(
    world: KubernetesWorld, make: Callable[..., dict[str, Any]]
) -> None:
    await world.cluster.patch_namespace(
        world.namespace, {"metadata": {"labels": {DEFAULT_QUEUE_LABEL: "true"}}}
    )
    owned = batch_job("part", namespace=world.namespace, queue=None)
    owner = {"apiVersion": "x.org/v1", "kind": "Flow", "name": "x", "uid": "u", "controller": True}
    owned["metadata"]["ownerReferences"] = [owner]
    taken, number = None, 0
    async with asyncio.timeout(20):  # the API server reads the namespace with a delay
        while taken is None:
            document = make(f"plain-{number}", namespace=world.namespace, queue=None)
            uid = await world.submit(document)
            await asyncio.sleep(0.3)
            taken, number = world.view.jobs.get(uid), number + 1
    assert (taken.queue, taken.suspended) == ("default", True)
    stored = await asyncio.to_thread(world.admin.get, world.path_of(taken.kind, taken.name))
    assert "queuectl.dev/placement" in str(stored["spec"]), "gated"
    uid = await world.submit(owned)
    await world.until(lambda: uid in world.view.jobs, "the job with an owner")
    await world.cluster.patch_namespace(
        world.namespace, {"metadata": {"labels": {DEFAULT_QUEUE_LABEL: None}}}
    )


async def test_queuectl_may_write_nothing_else_of_a_namespace(
    world: KubernetesWorld, own: Api
) -> None:
    for metadata in (
        {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}},
        {"annotations": {"x": "y"}},
        {"finalizers": ["x.org/y"]},
    ):
        with pytest.raises(Forbidden):
            await own.request(
                "PATCH",
                f"/api/v1/namespaces/{world.namespace}",
                body={"metadata": metadata},
                content_type="application/merge-patch+json",
            )


async def test_a_resource_quota_is_read_with_its_usage(world: KubernetesWorld) -> None:
    """Its usage is the sum of the requests of the pods, including gated pods."""
    collection = f"/api/v1/namespaces/{world.namespace}/resourcequotas"
    hard = {"pods": "9", "requests.nvidia.com/gpu": "64"}
    quota = {"metadata": {"name": "team"}, "spec": {"hard": hard}}
    await asyncio.to_thread(world.admin.create, collection, quota)
    job = await submitted(world, batch_job("counted", pods=2, gpus=4, namespace=world.namespace))
    await start(world, job, 1)

    def counted() -> bool:
        return any(
            [(limit.key, limit.hard, limit.used) for limit in record.allowance.limits]
            == [("pods", 9, 2), ("requests.nvidia.com/gpu", 64, 8)]
            for record in world.view.resource_quotas.values()
        )

    await world.until(counted, "two pods of four GPUs counted")


async def test_an_empty_label_is_refused(world: KubernetesWorld) -> None:
    with pytest.raises(WriteRefused, match="queue-name is empty"):
        await world.submit(batch_job("empty", namespace=world.namespace, queue=""))


async def test_policies_that_name_another_account_are_reported(admin: Api) -> None:
    """The administrator is not queuectl, so the policies name an account that differs from the caller."""
    found = await probe_policies(admin, SYSTEM_NAMESPACE, controller=True)
    assert len(found) == len(protecting())
    assert all("system:serviceaccount:queuectl-system:queuectl" in text for text in found)


# ---- setting up


async def test_applying_twice_changes_nothing(admin: Api, control_plane: ControlPlane) -> None:
    path = f"{POLICIES}/validatingadmissionpolicies/queuectl-jobs"
    policies = [one for one in everything() if one["kind"] == "ValidatingAdmissionPolicy"]
    # The first apply after the types were checked renews the times of the managed fields.
    await apply(admin, [one for one in policies if one["metadata"]["name"] == "queuectl-jobs"])
    before = control_plane.cluster.client.get(path)["metadata"]["resourceVersion"]
    await apply(admin, everything())
    assert control_plane.cluster.client.get(path)["metadata"]["resourceVersion"] == before


async def test_an_unknown_kind_is_named(admin: Api) -> None:
    with pytest.raises(BadInput, match=r"Widget of example\.org/v1"):
        await apply(admin, [{"apiVersion": "example.org/v1", "kind": "Widget", "metadata": {}}])


async def test_the_whole_of_deploy_is_valid(admin: Api) -> None:
    """This includes the Deployment and Services, as a dry run."""
    for document in manifests():
        if document["kind"] in ("Deployment", "Service"):
            group = "/apis/apps/v1" if document["kind"] == "Deployment" else "/api/v1"
            name = document["metadata"]["name"]
            plural = document["kind"].lower() + "s"
            await admin.request(
                "PATCH",
                f"{group}/namespaces/{SYSTEM_NAMESPACE}/{plural}/{name}",
                query=(("dryRun", "All"), ("fieldManager", "t"), ("fieldValidation", "Strict")),
                body=document,
                content_type=APPLY_PATCH,
            )


# ---- events, timeouts, streams


async def test_a_kind_that_is_not_served_differs_from_a_missing_answer(admin: Api) -> None:
    for absent in ("/apis/kubeflow.org/v1/nothings", "/apis/nothing.example/v1/nothings"):
        await confirm_absent(admin, absent)
    with pytest.raises(ClusterUnavailable, match="lists it as served"):
        await confirm_absent(admin, PYTORCHJOBS.path)


async def test_the_same_event_increments_its_count(world: KubernetesWorld, own: Api) -> None:
    now = 1_800_000_000.0
    cluster = KubernetesCluster(own, clock=lambda: now)
    job = await submitted(world, batch_job("noisy", namespace=world.namespace))
    for seconds in (0, 1, 2, 70):
        now = 1_800_000_000.0 + seconds
        await cluster.create_event(job, "Warning", "Misconfigured", "no such queue")
    await cluster.create_event(job, "Warning", "Misconfigured", "another reason")
    events = [e for e in await world.event_documents(job.uid) if e["reason"] == "Misconfigured"]
    counts = {event["note"]: event.get("series", {}).get("count") for event in events}
    assert counts == {"no such queue": 4, "another reason": None}


async def test_an_event_that_the_server_has_deleted_is_created_again(
    world: KubernetesWorld, own: Api, admin: Api
) -> None:
    now = 1_800_000_000.0
    cluster = KubernetesCluster(own, clock=lambda: now)
    job = await submitted(world, batch_job("rare", namespace=world.namespace))
    for seconds in (0, 7200):
        now = 1_800_000_000.0 + seconds
        await cluster.create_event(job, "Normal", "PodsReady", "all 2 pods are ready")
        [event] = [e for e in await world.event_documents(job.uid) if e["reason"] == "PodsReady"]
        assert "series" not in event
        name = event["metadata"]["name"]
        await admin.request("DELETE", f"/api/v1/namespaces/{world.namespace}/events/{name}")


async def test_a_label_for_a_namespace_that_is_deleted_finds_it_gone(own: Api) -> None:
    cluster = KubernetesCluster(own)
    with pytest.raises(ObjectGone):
        await cluster.patch_namespace("gone", {"metadata": {"labels": {DEFAULT_QUEUE_LABEL: "q"}}})


async def test_a_message_above_the_limit_is_shortened_and_not_refused(
    world: KubernetesWorld,
) -> None:
    job = await submitted(world, batch_job("wordy", namespace=world.namespace))
    await world.cluster.create_event(job, "Normal", "Queued", "ü" * 5000)
    [note] = [note for _, reason, note in await world.events_of(job.uid) if reason == "Queued"]
    assert len(note.encode()) <= 1024
    assert note.endswith("…")


async def test_a_misspelled_field_is_an_error(world: KubernetesWorld) -> None:
    job = await submitted(world, batch_job("typo", namespace=world.namespace))
    with pytest.raises(WriteRefused, match="suspendd"):
        await patched(world, job.uid, lambda _: {"spec": {"suspendd": True}})


async def test_a_request_to_a_server_that_hangs_fails_after_the_time_out(
    control_plane: ControlPlane,
) -> None:
    api = await Api.connect(Connection(kubeconfig=control_plane.kubeconfig, timeout=0.3))
    control_plane.cluster.pause("kube-apiserver")
    try:
        with pytest.raises(ClusterUnavailable, match="no answer"):
            await api.request("GET", "/version")
    finally:
        control_plane.cluster.resume("kube-apiserver")
        await api.close()


async def test_every_write_finds_a_connection_while_all_watches_run(
    control_plane: ControlPlane,
) -> None:
    connection = Connection(kubeconfig=control_plane.kubeconfig, in_flight=1)
    cluster = await KubernetesCluster.connect(connection)
    synced: list[str] = []
    watch = asyncio.create_task(cluster.watch(lambda _: None, synced.append))
    async with asyncio.timeout(20):
        while set(synced) != RESOURCES:  # noqa: ASYNC110 - of what the cluster does
            await asyncio.sleep(0.01)
        assert await cluster.probe_policies() == []
    watch.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watch
    await cluster.close()


@pytest.mark.parametrize("since", ["", "1.99"], ids=["not installed", "of a later release"])
async def test_a_kind_that_is_not_served_has_no_watch_age(admin: Api, since: str) -> None:
    """The alert on silent watches does not fire, however seldom queuectl checks the kind."""
    metrics = MetricsRecorder()
    absent = replace(PYTORCHJOBS, path="/apis/jobs.queuectl.test/v1/pytorchjobs", since=since)
    checked = asyncio.Event()

    async def pause(_: float) -> None:
        checked.set()
        await asyncio.Event().wait()

    reflector = Reflector(
        admin, absent, lambda _: None, lambda _: None, WatchMeter(metrics), Pace(), pause
    )
    following = asyncio.create_task(reflector.run())
    async with asyncio.timeout(20):
        await checked.wait()
    labels = {"kind": "pytorchjobs"}
    for name in ("queuectl_watch_relists_total", "queuectl_watch_last_event_timestamp_seconds"):
        assert metrics.registry.get_sample_value(name, labels) is None
    following.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await following


async def test_a_new_leader_does_not_list_again_what_has_not_changed(
    own: Api, world: KubernetesWorld
) -> None:
    """The API server ends a brief watch with a bookmark of its newest version."""
    nodes = next(resource for resource in watched() if resource.name == "nodes")
    received, synced = list[Delta](), asyncio.Event()
    sink, ready, pace = received.extend, lambda _: synced.set(), Pace(few=0)
    reflector = Reflector(own, nodes, sink, ready, NoHooks(), pace)
    following = asyncio.create_task(reflector.run())
    async with asyncio.timeout(60):
        await synced.wait()
        await submitted(world, batch_job("newer", namespace=world.namespace))
        assert await reflector.catch_up()
    following.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await following
    assert sum(isinstance(delta, ListCompleted) for delta in received) == 1


@pytest.mark.parametrize("resource", watched(), ids=lambda resource: resource.name)
async def test_queuectl_may_list_by_pages_if_a_watch_list_is_refused(
    own: Api, resource: Resource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server refuses a watch list, here because a parameter is missing."""
    stream, received = own.stream, list[Delta]()

    def incomplete(path: str, query: Query) -> AbstractAsyncContextManager[ResponseBody]:
        return stream(path, [one for one in query if one[0] != "resourceVersionMatch"])

    monkeypatch.setattr(own, "stream", incomplete)
    synced = asyncio.Event()
    sink, ready = received.extend, lambda _: synced.set()
    following = asyncio.create_task(Reflector(own, resource, sink, ready, NoHooks(), Pace()).run())
    async with asyncio.timeout(20):
        await synced.wait()
    following.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await following
    assert any(isinstance(delta, ListCompleted) for delta in received)


async def refused(
    world: KubernetesWorld, path: str, body: dict[str, Any], *, create: bool = False
) -> None:

    with pytest.raises(WriteRefused), refusals():
        await asyncio.to_thread(world.user.create if create else world.user.patch, path, body)


async def test_a_pod_is_deleted_by_force_only_with_the_right_of_the_opt_in(
    world: KubernetesWorld,
) -> None:
    job = await submitted(world, batch_job("hangs", namespace=world.namespace))
    pods = await start(world, job, 1)
    await place(world, pods, a_node(world))
    [pod] = world.view.pods_of(job.uid)
    with pytest.raises(WriteRefused, match="it can delete only such pods"):
        await world.cluster.delete_pod(pod.namespace, pod.name, pod.uid, pod.version)
    documents = optional("force-delete")
    await asyncio.to_thread(world.admin.apply, *documents)
    try:
        async with asyncio.timeout(20):  # rights take effect with a delay
            while pod.uid in world.view.pods:
                pod = world.view.pods.get(pod.uid, pod)
                with contextlib.suppress(WriteRefused, WriteConflict, ObjectGone):
                    await world.cluster.delete_pod(pod.namespace, pod.name, pod.uid, pod.version)
                await asyncio.sleep(0.1)
    finally:
        for document in documents:
            await asyncio.to_thread(world.admin.delete, world.admin.path_of(document))


def of_meta(**meta: Any) -> dict[str, Any]:
    return {"metadata": meta}


CORDON = {"spec": {"unschedulable": True}}
UNCORDON = {"spec": {"unschedulable": None}}
MARK = of_meta(annotations={MIG: "{}"})
UNMARK = of_meta(annotations={MIG: None})
NEVER = {
    "a label": of_meta(labels={"pool": "other"}),
    "a label removed": of_meta(labels={"kubernetes.io/hostname": None}),
    "an annotation": of_meta(annotations={"example.org/note": "x"}),
    "a finalizer": of_meta(finalizers=["example.org/keep"]),
    "a taint": {"spec": {"taints": [{"key": "example.org/x", "effect": "NoSchedule"}]}},
    "a provider": {"spec": {"providerID": "example://other"}},
}
"""Changes of a node that queuectl never makes."""
CONFIGURE = of_meta(labels={"nvidia.com/mig.config": "half", "nvidia.com/mig.config.state": None})


async def test_queuectl_changes_of_a_node_only_what_a_mig_reconfiguration_needs(
    world: KubernetesWorld, own: Api
) -> None:
    name = a_node(world)
    target = f"/api/v1/nodes/{name}"

    async def attempt(patch: Mapping[str, Any]) -> None:
        await own.request(
            "PATCH", target, query=(("dryRun", "All"),), body=patch, content_type=MERGE_PATCH
        )

    async def refused(*patches: Mapping[str, Any]) -> None:
        for patch in patches:
            with pytest.raises(WriteRefused, match="on a node, queuectl can change only"):
                await attempt(patch)

    with pytest.raises(WriteRefused, match="cannot patch resource"):
        await world.cluster.patch_node(name, {**MARK, **CORDON})
    documents = optional("mig-reconfiguration")
    await asyncio.to_thread(world.admin.apply, *documents)
    try:
        async with asyncio.timeout(20):  # rights and policies take effect with a delay
            message = ""
            while "on a node, queuectl can change only" not in message:
                with contextlib.suppress(ClusterUnavailable):
                    try:
                        await attempt(CORDON)
                    except WriteRefused as error:
                        message = str(error)
                await asyncio.sleep(0.1)
        await refused(*NEVER.values(), CORDON, CONFIGURE)
        await world.cluster.patch_node(name, {**MARK, **CORDON})
        await refused(*NEVER.values())
        with pytest.raises(WriteConflict):  # after a conflict, it reads the node
            await world.cluster.patch_node(
                name, of_meta(resourceVersion="1", annotations={MIG: ""})
            )
        await world.cluster.patch_node(name, CONFIGURE)
        await world.cluster.patch_node(name, {**UNMARK, **UNCORDON})
        await asyncio.to_thread(world.admin.patch, target, CORDON)
        await refused(UNCORDON)
    finally:
        await asyncio.to_thread(world.admin.patch, target, {**UNMARK, **UNCORDON})
        await asyncio.to_thread(
            world.admin.patch, target, of_meta(labels={"nvidia.com/mig.config": None})
        )
        for document in documents:
            await asyncio.to_thread(world.admin.delete, world.admin.path_of(document))
