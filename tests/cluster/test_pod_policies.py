"""Admission of pods with their own queue label, on a real API server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from queuectl.domain.errors import ObjectGone, WriteRefused
from queuectl.domain.jobs import PodRecord
from queuectl.localcluster import ApiServerError
from queuectl.objects import keys
from queuectl.objects.kinds.description import merged
from queuectl.objects.kinds.pods import queue_patch, released, status_patch, withdraw_patch
from queuectl.objects.kubernetes.pods import pin_patch
from tests.cluster.kubernetes_world import KubernetesWorld
from tests.cluster.test_policies import a_pod, owner
from tests.cluster.world import start, submitted
from tests.support.jobs import batch_job

pytestmark = pytest.mark.system

Document = dict[str, Any]
QUEUE = {keys.QUEUE_LABEL: "team-a"}
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
CONTROLLER_MANAGER = "system:kube-controller-manager"
"""The user of all its controllers where they have no own ServiceAccounts."""
OF_CONTROLLERS = "system:serviceaccount:kube-system:"
OPERATOR = "system:serviceaccount:kubeflow:training-operator"


def path(world: KubernetesWorld, name: str = "") -> str:
    return f"/api/v1/namespaces/{world.namespace}/pods" + (f"/{name}" if name else "")


def pods_of(world: KubernetesWorld) -> list[PodRecord]:
    return [p for p in world.view.pods.values() if p.namespace == world.namespace]


async def created(world: KubernetesWorld, document: Document, **query: str) -> Document:
    stored: Document = await asyncio.to_thread(world.user.create, path(world), document, **query)
    return stored


async def watched(world: KubernetesWorld, name: str) -> PodRecord:
    """The pod as the watch has it."""

    def find() -> PodRecord | None:
        return next((p for p in pods_of(world) if p.name == name), None)

    await world.until(find, f"pod {name} is seen")
    found = find()
    assert found is not None
    return found


async def released_pod(world: KubernetesWorld) -> None:
    """Release the pod ``forged`` to the nodes that it allows itself."""
    gated = await watched(world, "forged")
    assert gated.member is not None
    patch = released(pin_patch(gated, None), gated, gated.member.job, 1)
    version = await world.cluster.patch_pod(world.namespace, "forged", patch)
    await world.until(lambda: any(p.version >= version for p in pods_of(world)), "it is released")


@pytest.mark.parametrize("label", [keys.QUEUE_LABEL, keys.KUEUE_PREFIX + keys.QUEUE_NAME])
async def test_a_pod_with_a_queue_label_is_gated_and_has_the_class_of_managed_pods(
    world: KubernetesWorld, label: str
) -> None:
    """The Priority plugin has written the value of the user's class before the policy changes the class."""
    name = f"{world.namespace}-urgent"
    body = {"metadata": {"name": name}, "value": 1000, "preemptionPolicy": "PreemptLowerPriority"}
    await asyncio.to_thread(world.admin.create, CLASSES, body)
    try:
        document = a_pod({"priorityClassName": name}, labels={label: "team-a"})
        pod = await created(world, document)
    finally:
        await asyncio.to_thread(world.admin.delete, f"{CLASSES}/{name}")
    spec = pod["spec"]
    assert spec["schedulingGates"] == [{"name": keys.GATE}]
    found = (spec["priorityClassName"], spec["priority"], spec["preemptionPolicy"])
    assert found == (keys.POD_PRIORITY_CLASS, keys.POD_PRIORITY, "Never")
    expected = {keys.SUBMITTED_BY: "alice", keys.ORIGINAL_PRIORITY_CLASS: name}
    assert pod["metadata"]["annotations"] == expected


async def test_a_pod_without_a_queue_label_stays_as_it_is(world: KubernetesWorld) -> None:
    pod = await created(world, a_pod())
    assert "schedulingGates" not in pod["spec"]
    assert "annotations" not in pod["metadata"]


@pytest.mark.parametrize("node", [None, "n1"], ids=["not bound", "bound"])
async def test_a_pod_of_a_job_that_copies_the_keys_of_a_workload_is_not_one(
    world: KubernetesWorld, node: str | None
) -> None:
    """The job is in no queue, so its pod runs like that of any such job. A Job without labels would get those of its template."""
    document = batch_job("mine", namespace=world.namespace, pods=1)
    document["metadata"] = {"name": "mine", "namespace": world.namespace, "labels": {"app": "x"}}
    document["spec"] |= {"suspend": False}
    template = document["spec"]["template"]
    template["metadata"] = {"labels": dict(QUEUE), "annotations": {keys.SUBMITTED_BY: "bob"}}
    template["spec"] |= {"nodeName": node} if node else {}
    target = f"/apis/batch/v1/namespaces/{world.namespace}/jobs"
    await asyncio.to_thread(world.user.create, target, document)

    def found() -> list[PodRecord]:
        return [p for p in pods_of(world) if p.owner_kind == "Job"]

    await world.until(found, "the job controller creates the pod")
    assert [(p.gated, p.member) for p in found()] == [(False, None)]
    [pod] = (await asyncio.to_thread(world.admin.get, path(world)))["items"]
    assert keys.SUBMITTED_BY not in pod["metadata"].get("annotations", {})


async def test_no_job_adopts_a_pod_of_a_queue(world: KubernetesWorld) -> None:
    """The pod would no longer be a workload, and would run on outside the queue."""
    await created(world, a_pod(labels={**QUEUE, "app": "x"}))
    await released_pod(world)
    for kind in ("Job", "PyTorchJob"):
        adopted = {"metadata": {"ownerReferences": [owner(kind=kind)]}}
        for account in (f"{OF_CONTROLLERS}job-controller", CONTROLLER_MANAGER, OPERATOR):
            with (
                world.plane.engineer(account) as client,
                pytest.raises(ApiServerError, match="gets no job as its controller"),
            ):
                await asyncio.to_thread(client.patch, path(world, "forged"), adopted)


@pytest.mark.parametrize("kind", ["StatefulSet", "ReplicaSet"])
async def test_a_set_adopts_a_pod_that_another_one_left_behind(
    world: KubernetesWorld, kind: str
) -> None:
    """Without it, the controller of the set does nothing for the set."""
    await created(world, a_pod(labels={**QUEUE, "app": "x"}))
    await released_pod(world)
    account = f"{OF_CONTROLLERS}{kind.lower()}-controller"
    adopted: Document = {"metadata": {"ownerReferences": [owner(kind=kind, apiVersion="apps/v1")]}}
    with world.plane.engineer(account) as client:
        target = path(world, "forged")
        with pytest.raises(ApiServerError, match=r"of a pod.* cannot change"):
            await asyncio.to_thread(
                client.patch, target, merged([adopted, {"metadata": {"labels": {"app": None}}}])
            )
        with pytest.raises(WriteRefused, match=r"of a pod.* cannot change"):
            await world.user_patch("Pod", "forged", adopted)
        # It is not stored: the garbage collector deletes pods of an owner that does not exist.
        dry = f"{target}?dryRun=All"
        await asyncio.to_thread(client.patch, dry, adopted)


FORGED = {
    "an attempt": (a_pod(labels={**QUEUE, keys.ATTEMPT_LABEL: "1"}), "only queuectl writes"),
    "a workload": (a_pod(labels={**QUEUE, keys.WORKLOAD_LABEL: "x"}), "only queuectl writes"),
    "a podset": (a_pod(labels={**QUEUE, keys.PODSET_LABEL: "x"}), "only queuectl writes"),
    "no name of a queue": (a_pod(labels={keys.QUEUE_LABEL: ""}), "queue-name is empty"),
    "two queues": (
        a_pod(labels={**QUEUE, keys.KUEUE_PREFIX + keys.QUEUE_NAME: "team-b"}),
        "name different queues",
    ),
    "a wait for itself": (
        a_pod(labels=QUEUE, annotations={keys.PREFIX + keys.AFTER: "Job/a, pod/forged:any"}),
        "which would wait for itself",
    ),
    "a wait for too many jobs": (
        a_pod(labels=QUEUE, annotations={keys.PREFIX + keys.AFTER: ",".join(["Job/a"] * 101)}),
        "lists more than 100 jobs",
    ),
    "a wait for its group": (
        a_pod(
            labels={**QUEUE, keys.PREFIX + keys.POD_GROUP: "team"},
            annotations={keys.PREFIX + keys.AFTER: "PodGroup/team"},
        ),
        "which would wait for itself",
    ),
    "an admission gate with spaces": (
        a_pod(
            labels=QUEUE,
            annotations={
                keys.PREFIX + keys.ADMISSION_GATED_BY: "example.com/data,after the review"
            },
        ),
        "admission-gated-by is a list of names",
    ),
    "more than 500 labels": (
        a_pod(labels={**QUEUE, **{f"key-{n}": "x" for n in range(500)}}),
        "at most 500 labels",
    ),
    "more than 500 annotations": (
        a_pod(labels=QUEUE, annotations={f"key-{n}": "x" for n in range(501)}),
        "at most 500 labels and 500 annotations",
    ),
    "a node": (a_pod({"nodeName": "n"}, labels=QUEUE), "nodeName"),
    "a gate and a job as its owner": (
        a_pod({"schedulingGates": [{"name": keys.GATE}]}, labels=QUEUE, ownerReferences=[owner()]),
        "only the controllers of Jobs",
    ),
}


@pytest.mark.parametrize("what", FORGED)
async def test_a_new_pod_in_a_queue_cannot_have(world: KubernetesWorld, what: str) -> None:
    document, message = FORGED[what]
    with pytest.raises(ApiServerError, match=message):
        await created(world, document, dryRun="All")


CHANGES: dict[str, tuple[Document, str]] = {
    "the gate": ({"spec": {"schedulingGates": None}}, "only queuectl removes the scheduling gate"),
    "the node selector": ({"spec": {"nodeSelector": {"a": "b"}}}, "only queuectl decides where"),
    "the queue": (
        {"metadata": {"labels": {keys.QUEUE_LABEL: "other"}}},
        "submitter of a pod cannot change",
    ),
    "that it is in a queue": (
        {"metadata": {"labels": {keys.QUEUE_LABEL: None}}},
        "submitter of a pod cannot change",
    ),
    "the group": (
        {"metadata": {"labels": {keys.PREFIX + keys.POD_GROUP: "other"}}},
        "submitter of a pod cannot change",
    ),
    "the size of the group": (
        {"metadata": {"annotations": {keys.PREFIX + keys.POD_GROUP_TOTAL: "1"}}},
        "submitter of a pod cannot change",
    ),
    "the submitter": (
        {"metadata": {"annotations": {keys.SUBMITTED_BY: "bob"}}},
        "submitter of a pod cannot change",
    ),
    "the attempt": ({"metadata": {"labels": {keys.ATTEMPT_LABEL: "9"}}}, "only queuectl writes"),
}


async def test_a_tenant_cannot_change_what_decides_about_a_pod_in_a_queue(
    world: KubernetesWorld,
) -> None:
    labels = {**QUEUE, keys.PREFIX + keys.POD_GROUP: "g"}
    annotations = {keys.PREFIX + keys.POD_GROUP_TOTAL: "2"}
    await created(world, a_pod(labels=labels, annotations=annotations))
    for patch, message in CHANGES.values():
        with pytest.raises(WriteRefused, match=message):
            await world.user_patch("Pod", "forged", patch)
    await world.user_patch("Pod", "forged", {"metadata": {"labels": {"mine": "x"}}})


async def test_a_tenant_cannot_change_the_status_of_a_held_pod(world: KubernetesWorld) -> None:
    """After the loss of the database, it is held again by it."""
    await created(world, a_pod(labels=QUEUE))
    pod = await watched(world, "forged")
    assert pod.member is not None
    assert pod.member.job.face is not None
    held = status_patch(pod.member.job.face, "Held: Held: by alice")
    await world.cluster.patch_pod(world.namespace, "forged", held)
    for status in ("Pending: Queued", None):
        change = {"metadata": {"annotations": {keys.STATUS_ANNOTATION: status}}}
        with pytest.raises(WriteRefused, match="only queuectl writes"):
            await world.user_patch("Pod", "forged", change)


async def test_a_tenant_cannot_put_an_existing_pod_into_a_queue(world: KubernetesWorld) -> None:
    await created(world, a_pod())
    patch = {"metadata": {"labels": QUEUE, "annotations": {keys.SUBMITTED_BY: "alice"}}}
    with pytest.raises(WriteRefused, match="submitter of a pod cannot change"):
        await world.user_patch("Pod", "forged", patch)


async def test_the_controller_writes_to_a_pod_in_a_queue_only_what_the_protocol_needs(
    world: KubernetesWorld,
) -> None:
    await created(world, a_pod(labels=QUEUE))
    pod = await watched(world, "forged")
    patch = world.cluster.patch_pod
    assert pod.member is not None
    assert pod.member.job.face is not None

    async def write(change: Any) -> None:
        known = await watched(world, "forged")
        version = await patch(world.namespace, "forged", change(known))
        await world.until(lambda: any(p.version >= version for p in pods_of(world)), "it is seen")

    def face(known: PodRecord) -> Any:
        assert known.member is not None
        return known.member.job.face

    await write(lambda known: status_patch(face(known), "Pending: Queued"))
    await write(lambda known: queue_patch(known, "team-b"))
    await write(lambda known: withdraw_patch(known, known.uid, 3))
    for change in (
        {"metadata": {"labels": {"mine": "x"}}},
        {"metadata": {"annotations": {"mine": "x"}}},
        {"metadata": {"annotations": {keys.SUBMITTED_BY: "bob"}}},
        {"spec": {"nodeSelector": {"a": "b"}}},
        {"spec": {"activeDeadlineSeconds": 1}},
    ):
        with pytest.raises(WriteRefused, match="in a pod, queuectl can change only"):
            await patch(world.namespace, "forged", change)
    await write(lambda known: pin_patch(known, "n1"))
    moved = await watched(world, "forged")
    assert (moved.gated, moved.pin, moved.attempt) == (False, "n1", 3)


async def test_the_controller_deletes_only_pods_in_their_own_queue(
    world: KubernetesWorld,
) -> None:
    await created(world, a_pod(labels=QUEUE))
    mine = await watched(world, "forged")
    other = await created(world, {**a_pod(), "metadata": {"name": "other"}})
    uid = other["metadata"]["uid"]
    with pytest.raises(WriteRefused, match="it can delete only such pods"):
        await world.cluster.stop_pod(world.namespace, "other", uid)
    await world.cluster.stop_pod(world.namespace, "forged", mine.uid)
    await world.until(lambda: mine.uid not in world.view.pods, "it is deleted")
    with pytest.raises(ObjectGone):
        await world.cluster.stop_pod(world.namespace, "forged", mine.uid)


async def test_a_tenant_may_delete_each_pod(world: KubernetesWorld) -> None:
    """The policy of pods matches deletions, and limits those by queuectl alone."""
    await created(world, a_pod(labels=QUEUE))
    await created(world, {**a_pod(), "metadata": {"name": "free"}})
    job = await submitted(world, batch_job("gang", namespace=world.namespace))
    [pod] = await start(world, job, 1)
    for name in ("forged", "free", pod.name):
        await asyncio.to_thread(world.user.delete, path(world, name), dryRun=["All"])


async def test_the_pods_of_a_managed_job_are_not_workloads(world: KubernetesWorld) -> None:
    document = batch_job("gang", namespace=world.namespace, pods=1)
    document["spec"]["template"]["metadata"] = {"labels": dict(QUEUE)}
    job = await submitted(world, document)
    await start(world, job, 1)
    await world.until(lambda: pods_of(world), "its pod exists")
    assert [(p.owner, p.member) for p in pods_of(world)] == [(job.uid, None)]


OF_REPLICAS = [owner(kind="ReplicaSet", apiVersion="apps/v1")]
OF_DEPLOYMENTS = {
    "the gate": a_pod({"schedulingGates": [{"name": keys.GATE}]}, ownerReferences=OF_REPLICAS),
    "an attempt": a_pod(labels={keys.ATTEMPT_LABEL: "1"}, ownerReferences=OF_REPLICAS),
    "a queue and an attempt": a_pod(
        labels={**QUEUE, keys.ATTEMPT_LABEL: "1"}, ownerReferences=OF_REPLICAS
    ),
}


@pytest.mark.parametrize("what", OF_DEPLOYMENTS)
async def test_the_controller_manager_creates_no_pod_of_a_deployment_with(
    world: KubernetesWorld, what: str
) -> None:
    with (
        world.plane.engineer(CONTROLLER_MANAGER) as client,
        pytest.raises(ApiServerError, match="attempt, podset"),
    ):
        await asyncio.to_thread(client.create, path(world), OF_DEPLOYMENTS[what])


async def test_the_controller_manager_creates_the_pods_of_jobs(world: KubernetesWorld) -> None:
    gate = {"schedulingGates": [{"name": keys.GATE}]}
    labels = {keys.ATTEMPT_LABEL: "1", keys.PODSET_LABEL: "main"}
    document = a_pod(gate, labels=labels, ownerReferences=[owner()])
    with world.plane.engineer(CONTROLLER_MANAGER) as client:
        await asyncio.to_thread(client.create, path(world), document, dryRun="All")


@pytest.mark.parametrize("runs", [False, True])
@pytest.mark.parametrize("keyed", ["labels", "annotations"])
async def test_a_pod_in_a_queue_gets_few_labels_and_annotations(
    world: KubernetesWorld, runs: bool, keyed: str
) -> None:
    """queuectl could not remove the gate, or write the notice of an eviction."""
    await created(world, a_pod(labels=QUEUE))
    if runs:
        await released_pod(world)
    many = {"metadata": {keyed: {f"key-{n}": "x" for n in range(501)}}}
    with pytest.raises(WriteRefused, match="at most 500 labels and 500 annotations"):
        await world.user_patch("Pod", "forged", many)
    await world.user_patch("Pod", "forged", {"metadata": {keyed: {"key": "x"}}})
