"""Requests of tenants and of queuectl itself that the admission policies refuse, on a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from queuectl.cluster.apply import apply, optional
from queuectl.cluster.client import Api
from queuectl.domain.checks import PodSetUpdate
from queuectl.domain.errors import WriteRefused
from queuectl.domain.jobs import JobRecord
from queuectl.localcluster import ApiServerError
from queuectl.objects import keys
from queuectl.objects.kinds import DESCRIPTIONS, KINDS
from queuectl.objects.kinds import path as kind_path
from queuectl.objects.kubernetes.pods import pin_patch
from tests.cluster.kubernetes_world import KubernetesWorld
from tests.cluster.world import a_node, first_role, place, replicas_patch, start, submitted
from tests.doubles.admission import templates
from tests.support.controlplane import SYSTEM_NAMESPACE
from tests.support.jobs import ALL_KINDS, WITH_TRAINING_OPERATOR, batch_job, job_of

pytestmark = pytest.mark.system

Document = dict[str, Any]
GATES = [{"name": keys.GATE}]
MERGE = "application/merge-patch+json"


def owner(job: JobRecord | None = None, kind: str = "Job", **changes: Any) -> Document:
    """A controller reference, to an existing job or to none."""
    name, uid = (job.name, job.uid) if job is not None else ("x", "no-such-uid")
    return {
        "apiVersion": "batch/v1",
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
        **changes,
    }


def a_pod(spec: Mapping[str, Any] | None = None, **metadata: Any) -> Document:
    containers = {"containers": [{"name": "main", "image": "none"}]}
    return {"metadata": {"name": "forged", **metadata}, "spec": {**containers, **(spec or {})}}


def a_job(kind: str, name: str, **options: Any) -> Document:
    return job_of(kind, name, pods=1, **options)


# ---- tenants: pods


def forged_pods(job: JobRecord) -> dict[str, Document]:
    """Pods that claim to be part of a gang."""
    of = [owner(job)]
    label = {keys.ATTEMPT_LABEL: "1", keys.PODSET_LABEL: "main", keys.WORKLOAD_LABEL: job.uid}
    return {
        "with all the labels of a pod of the gang": a_pod(labels=label, ownerReferences=of),
        **{f"with label {key}": a_pod(labels={key: value}) for key, value in label.items()},
        "with the gate and an owner": a_pod({"schedulingGates": GATES}, ownerReferences=of),
        "with the gate and no owner": a_pod({"schedulingGates": GATES}),
    }


async def test_a_tenant_cannot_create_a_pod_with_the_labels_or_the_gate_of_a_gang(
    world: KubernetesWorld,
) -> None:
    job = await submitted(world, batch_job("mine", namespace=world.namespace))
    pods = f"/api/v1/namespaces/{world.namespace}/pods"
    accepted = []
    for what, document in forged_pods(job).items():
        try:
            await asyncio.to_thread(world.user.create, pods, document, dryRun="All")
        except ApiServerError as error:
            assert "only the controllers of Jobs" in str(error)  # noqa: PT017 - each is tried
        else:
            accepted.append(what)
    assert accepted == []


async def test_a_tenant_cannot_put_the_labels_of_a_gang_on_a_pod(
    world: KubernetesWorld,
) -> None:
    pods = f"/api/v1/namespaces/{world.namespace}/pods"
    await asyncio.to_thread(world.user.create, pods, a_pod(labels={"app": "x"}))
    await world.user_patch("Pod", "forged", {"metadata": {"labels": {"app": "y"}}})
    for key in (keys.ATTEMPT_LABEL, keys.PODSET_LABEL, keys.WORKLOAD_LABEL):
        with pytest.raises(WriteRefused, match="only queuectl writes"):
            await world.user_patch("Pod", "forged", {"metadata": {"labels": {key: "1"}}})


# ---- tenants: jobs


@ALL_KINDS
async def test_the_submitter_is_the_user_who_created_the_job(
    world: KubernetesWorld, kind: str
) -> None:
    document = a_job(kind, "mine", namespace=world.namespace)
    document["metadata"]["annotations"] = {keys.SUBMITTED_BY: "bob", "note": "mine"}
    await submitted(world, document)
    stored = await asyncio.to_thread(world.admin.get, world.path_of(kind, "mine"))
    assert stored["metadata"]["annotations"] == {keys.SUBMITTED_BY: "alice", "note": "mine"}
    for other in ("bob", None):
        patch = {"metadata": {"annotations": {keys.SUBMITTED_BY: other}}}
        with pytest.raises(WriteRefused, match="the user who created the job"):
            await world.user_patch(kind, "mine", patch)


def forge(where: str, key: str, value: Any) -> Callable[[Document], None]:
    """Write a field of the job, or of each of its templates."""

    def into(document: Document) -> None:
        job = [document] if document["kind"] == "Job" else []
        of = [template for _, template in templates(document)]
        match where:
            case "template labels":
                for template in of:
                    template["metadata"].setdefault("labels", {})[key] = value
            case "spec":
                part = document["spec"]
                (part if job else part.setdefault("runPolicy", {}))[key] = value
            case "status":
                document.setdefault("status", {})[key] = value
            case _:
                document["metadata"].setdefault(where, {})[key] = value

    return into


ENDED = [{"type": one, "status": "True"} for one in ("Complete", "Succeeded", "Suspended")]
FORGED: dict[str, Callable[[Document], None]] = {
    "attempt of its pods": forge("template labels", keys.ATTEMPT_LABEL, "7"),
    "podset of its pods": forge("template labels", keys.PODSET_LABEL, "worker"),
    "workload of its pods": forge("template labels", keys.WORKLOAD_LABEL, "another"),
    "attempt": forge("labels", keys.ATTEMPT_LABEL, "7"),
    "that it runs": forge("annotations", keys.STATUS_ANNOTATION, "Running: Running"),
    "that it is held": forge("annotations", keys.STATUS_ANNOTATION, "Held: Held"),
    "that it is not suspended": forge("spec", "suspend", False),
    "that it ended": forge("status", "conditions", ENDED),
    "that its pods run": forge("status", "active", 1),
    "submitter": forge("annotations", keys.SUBMITTED_BY, "bob"),
}


@ALL_KINDS
async def test_a_new_job_counts_as_not_started_for_any_manifest(
    world: KubernetesWorld, kind: str
) -> None:
    """Recovery after a loss of the database relies on it. A start then sets the correct labels of its pods."""
    found, plain = {}, await submitted(world, a_job(kind, "plain", namespace=world.namespace))
    for number, (what, write) in enumerate(FORGED.items()):
        document = a_job(kind, f"forged-{number}", namespace=world.namespace)
        write(document)
        job = await submitted(world, document)
        found[what] = (job.attempt, job.suspended, job.outcome, job.submitter, job.podsets)
    assert found == dict.fromkeys(FORGED, (0, True, None, "alice", plain.podsets))

    document = a_job(kind, "started", namespace=world.namespace)
    for write in FORGED.values():
        write(document)
    [pod] = await start(world, await submitted(world, document), 1)
    path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
    labels = (await asyncio.to_thread(world.admin.get, path))["metadata"]["labels"]
    assert (pod.attempt, pod.podset) == (1, plain.podsets[0].name)
    assert labels[keys.WORKLOAD_LABEL] == pod.owner


@ALL_KINDS
async def test_an_owner_reference_does_not_remove_a_job_from_its_queue(
    world: KubernetesWorld, kind: str
) -> None:
    """This holds for a reference at its creation, and for one that is added before it is resumed."""
    real = await submitted(world, batch_job("real", namespace=world.namespace))
    child = a_job(kind, "child", namespace=world.namespace)
    child["metadata"]["ownerReferences"] = [owner(real)]
    assert (await submitted(world, child)).suspended
    await submitted(world, a_job(kind, "later", namespace=world.namespace))
    adopt = {"metadata": {"ownerReferences": [owner(real)]}}
    await world.user_patch(kind, "later", adopt)
    resume: Document = {"suspend": False}
    spec = resume if kind == "Job" else {"runPolicy": resume}
    for name in ("child", "later"):
        with pytest.raises(WriteRefused, match="only queuectl may resume"):
            await world.user_patch(kind, name, {"spec": spec})


@ALL_KINDS
@pytest.mark.parametrize("owned_by", ["JobSet", "Job", "CronJob"])
async def test_a_job_with_an_owner_reference_gets_the_default_queue(
    world: KubernetesWorld, kind: str, owned_by: str
) -> None:
    label = {"metadata": {"labels": {keys.DEFAULT_QUEUE_LABEL: "true"}}}
    namespace = f"/api/v1/namespaces/{world.namespace}"
    await asyncio.to_thread(world.admin.patch, namespace, label)
    document = a_job(kind, "child", namespace=world.namespace, queue=None)
    document["metadata"]["ownerReferences"] = [owner(kind=owned_by)]
    plain = a_job(kind, "plain", namespace=world.namespace, queue=None)
    async with asyncio.timeout(20):  # the API server reads the label with a delay
        while await asyncio.to_thread(queue_given, world, plain) is None:
            pass
    assert await asyncio.to_thread(queue_given, world, document) == "default"


def queue_given(world: KubernetesWorld, document: Document) -> str | None:
    """The queue label with which the API server would store a job."""
    collection = world.path_of(document["kind"], "x").rsplit("/", 1)[0]
    made = world.user.create(collection, document, dryRun="All")
    label: str | None = made["metadata"].get("labels", {}).get(keys.QUEUE_LABEL)
    return label


# ---- the opt-in that restricts GPUs to queued jobs


def requesting(resources: Mapping[str, str], part: str = "containers") -> Document:
    """A pod with a container that requests these resources."""
    container = {"name": "asks", "image": "none", "resources": {"limits": dict(resources)}}
    spec = {"containers": [{"name": "main", "image": "none"}]}
    return a_pod({**spec, part: [container]})


ASKS = [
    (requesting({"nvidia.com/gpu": "1"}), False),
    (requesting({"nvidia.com/gpu.shared": "1"}), False),
    (requesting({"nvidia.com/mig-1g.5gb": "1"}), False),
    (requesting({"amd.com/gpu": "1"}), False),
    (requesting({"amd.com/cpx_nps4": "1"}), False),
    (requesting({"gpu.intel.com/i915": "1"}), False),
    (requesting({"gpu.intel.com/i915_monitoring": "1"}), True),
    (requesting({"nvidia.com/gpu": "1"}, "initContainers"), False),
    (requesting({"cpu": "1", "example.com/gpu-license": "1"}), True),
    (a_pod(), True),
]


async def test_only_queued_jobs_get_gpus_in_a_namespace_that_opts_in(
    world: KubernetesWorld, admin: Api
) -> None:
    await apply(admin, optional("queued-gpus"))
    pods = f"/api/v1/namespaces/{world.namespace}/pods"

    def taken(document: Document) -> bool:
        try:
            world.user.create(pods, document, dryRun="All")
        except ApiServerError as error:
            if "only jobs in a queue get GPUs" not in str(error):
                raise
            return False
        return True

    assert await asyncio.to_thread(taken, ASKS[0][0]), "it is an opt-in"
    label = {"metadata": {"labels": {"queuectl.dev/require-queue": "true"}}}
    await asyncio.to_thread(world.admin.patch, f"/api/v1/namespaces/{world.namespace}", label)
    async with asyncio.timeout(20):  # both take effect with a delay
        while await asyncio.to_thread(taken, ASKS[0][0]):
            pass
    for document, expected in ASKS:
        assert await asyncio.to_thread(taken, document) is expected, document
    job = await submitted(world, batch_job("queued", namespace=world.namespace, gpus=1))
    [pod] = await start(world, job, 1)
    assert pod.gated


async def test_a_namespace_is_deleted_although_a_job_that_runs_in_it_has_a_finalizer(
    world: KubernetesWorld,
) -> None:
    """Its pods are deleted with the namespace. The owner of the finalizer waits for the deletion of the job."""
    for name in ("first", "second"):
        job = await submitted(world, batch_job(name, namespace=world.namespace, pods=1))
        await start(world, job, 1)
    first, second = (world.path_of("Job", name) for name in ("first", "second"))
    kept = {"metadata": {"finalizers": ["example.org/x"]}}
    await world.user_patch("Job", "first", kept)
    with pytest.raises(ApiServerError, match="is not deleted while it has finalizers"):
        await world.delete_job("Job", "first")
    namespace = f"/api/v1/namespaces/{world.namespace}"
    await asyncio.to_thread(world.admin.delete, namespace)

    def deleted() -> bool:
        found = world.admin.get(first)["metadata"]
        return "deletionTimestamp" in found and not world.admin.exists(second)

    try:
        async with asyncio.timeout(30):
            while not await asyncio.to_thread(deleted):
                pass
    finally:
        await asyncio.to_thread(world.admin.patch, first, {"metadata": {"finalizers": None}})


# ---- the identity of queuectl


async def refused_to_us(own: Api, method: Any, path: str, body: Any) -> None:
    patch = "application/json-patch+json" if isinstance(body, list) else MERGE
    kind = patch if method == "PATCH" else "application/json"
    with pytest.raises(WriteRefused, match=r"in a (queued job|pod), queuectl can change only"):
        await own.request(method, path, body=body, content_type=kind)


IMAGE = {"op": "replace", "path": "/spec/containers/0/image", "value": "evil"}
UNGATE = {"op": "remove", "path": "/spec/schedulingGates"}
META: dict[str, Document] = {
    "a label": {"metadata": {"labels": {"x": "y"}}},
    "an annotation": {"metadata": {"annotations": {"x": "y"}}},
    "a finalizer": {"metadata": {"finalizers": ["example.org/x"]}},
    "an owner": {"metadata": {"ownerReferences": [owner()]}},
}
RUNNING_POD: dict[str, Document | list[Document]] = {
    **META,
    "the image": [IMAGE],
    "the deadline": {"spec": {"activeDeadlineSeconds": 1}},
    "a toleration": [{"op": "add", "path": "/spec/tolerations/-", "value": {"operator": "Exists"}}],
}
GATED_POD: dict[str, Document | list[Document]] = {
    **META,
    "the image, with the gate": [IMAGE, UNGATE],
    "affinity": {
        "spec": {
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": "x", "operator": "Exists"}]}
                        ]
                    }
                }
            }
        }
    },
}


async def test_queuectl_may_only_place_pods(world: KubernetesWorld, own: Api) -> None:
    job = await submitted(world, batch_job("mine", namespace=world.namespace))
    [pod] = await start(world, job, 1)
    path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
    for patch in GATED_POD.values():
        await refused_to_us(own, "PATCH", path, patch)
    await place(world, [pod], a_node(world))
    for patch in RUNNING_POD.values():
        await refused_to_us(own, "PATCH", path, patch)


async def test_queuectl_may_add_labels_and_annotations_to_a_pod_that_it_places(
    world: KubernetesWorld, own: Api
) -> None:
    job = await submitted(world, batch_job("updated", namespace=world.namespace))
    [pod] = await start(world, job, 1)
    path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
    added = PodSetUpdate("main", (("site", "north"),), (("example.com/volume", "vol-7"),))
    wrong: list[Document] = [
        {"labels": {keys.ATTEMPT_LABEL: "7"}},
        {"labels": {"queuectl.dev/other": "x"}},
        {"annotations": {"kueue.x-k8s.io/other": "x"}},
    ]
    placement = pin_patch(pod, a_node(world))
    for metadata in wrong:
        patch = {**placement, "metadata": {**placement["metadata"], **metadata}}
        await refused_to_us(own, "PATCH", path, patch)
    await world.cluster.patch_pod(
        pod.namespace, pod.name, pin_patch(pod, a_node(world), updates=(added,))
    )
    await world.until(lambda: not world.view.pods[pod.uid].gated, "the pod is placed")


def edits(kind: str) -> dict[str, Document]:
    """Patches of a waiting job that RBAC allows."""

    def template(change: Document) -> Document:
        if kind == "Job":
            return {"spec": {"template": change}}
        return replicas_patch(kind, {first_role(kind): {"template": change}})

    tolerations = {"spec": {"tolerations": [{"operator": "Exists"}]}}
    found = {
        **META,
        "the submitter": {"metadata": {"annotations": {keys.SUBMITTED_BY: "bob"}}},
        "its template's annotations": template({"metadata": {"annotations": {"x": "y"}}}),
        "its template's labels": template({"metadata": {"labels": {"x": "y"}}}),
        "its template's tolerations": template(tolerations),
        "its template's node selector": template({"spec": {"nodeSelector": {"x": "y"}}}),
    }
    if kind == "Job":
        return {**found, "its time": {"spec": {"activeDeadlineSeconds": 1}}}
    [one] = [described for described in DESCRIPTIONS if described.kind == kind]
    container = {"containers": [{"name": one.container, "image": "evil"}]}
    return {
        **found,
        "its images": template({"spec": container}),
        "its account": template({"spec": {"serviceAccountName": "evil"}}),
        "its size": replicas_patch(kind, {first_role(kind): {"replicas": 2}}),
        "its time": {"spec": {"runPolicy": {"activeDeadlineSeconds": 1}}},
    }


@ALL_KINDS
async def test_queuectl_may_only_queue_and_start_jobs(
    world: KubernetesWorld, own: Api, kind: str
) -> None:
    await submitted(world, a_job(kind, "mine", namespace=world.namespace))
    await world.submit(a_job(kind, "free", namespace=world.namespace, queue=None))
    for patch in edits(kind).values():
        await refused_to_us(own, "PATCH", world.path_of(kind, "mine"), patch)
    suspend: Document = {"suspend": True}
    spec = suspend if kind == "Job" else {"runPolicy": suspend}
    await refused_to_us(own, "PATCH", world.path_of(kind, "free"), {"spec": spec})


RESTRICTED: Document = {
    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    "containers": [
        {
            "name": "main",
            "image": "none",
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            },
        }
    ],
}
"""A pod that the strictest Pod Security level accepts."""


@pytest.mark.parametrize("kind", ["Pod", *WITH_TRAINING_OPERATOR])
async def test_queuectl_may_create_only_by_dry_run(own: Api, kind: str) -> None:
    """This is in its own namespace with the Secret of its database. In other namespaces it has no such right."""
    if kind == "Pod":
        path, body = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods", a_pod(RESTRICTED)
    else:
        path = kind_path(KINDS[kind], SYSTEM_NAMESPACE)
        body = a_job(kind, "made", namespace=SYSTEM_NAMESPACE)
    await refused_to_us(own, "POST", path, body)


DRY = (("dryRun", "All"),)


async def test_the_rules_of_users_apply_to_dry_runs_of_queuectl_alone(own: Api) -> None:
    """queuectl finds by a dry run of a pod with the gate whether the policy is in force."""
    path = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods"
    gated = a_pod({**RESTRICTED, "schedulingGates": GATES})
    await refused_to_us(own, "POST", path, gated)
    with pytest.raises(WriteRefused, match=r"'queuectl-pods'.* only the controllers of Jobs"):
        await own.request("POST", path, query=DRY, body=gated)
    await own.request("POST", path, query=DRY, body=a_pod(RESTRICTED))


NO_GATES = (
    "after the review",
    "example.com/data,after Job/x:ok",
    "x\x1b[31mred",
    "a" * 64,
    "/x",
    "UPPER/x",
    "x," * 4_001,
)


@ALL_KINDS
@pytest.mark.parametrize("prefix", [keys.PREFIX, keys.KUEUE_PREFIX])
async def test_a_wrong_name_of_an_admission_gate_is_refused(
    world: KubernetesWorld, kind: str, prefix: str
) -> None:
    key = prefix + keys.ADMISSION_GATED_BY
    for listed in NO_GATES:
        document = a_job(kind, "mine", namespace=world.namespace)
        document["metadata"]["annotations"] = {key: listed}
        with pytest.raises(WriteRefused, match="admission-gated-by is a list of names"):
            await world.submit(document)
    document["metadata"]["annotations"] = {key: "example.com/a/b:c, data,"}
    job = await submitted(world, document)
    assert job.gates == ("example.com/a/b:c", "data")
    with pytest.raises(WriteRefused, match="admission-gated-by is a list of names"):
        await world.user_patch(kind, "mine", {"metadata": {"annotations": {key: "a b"}}})
    await world.user_patch(kind, "mine", {"metadata": {"annotations": {key: "data"}}})


# ---- tenants: the number of labels and annotations

MOST_KEYS = 500
MOST_KEYS_OF_A_TEMPLATE = 100


def made_up(number: int) -> dict[str, str]:
    return {f"key-{n}": "x" for n in range(number)}


@ALL_KINDS
@pytest.mark.parametrize("keyed", ["labels", "annotations"])
async def test_a_job_in_a_queue_has_few_labels_and_annotations(
    world: KubernetesWorld, kind: str, keyed: str
) -> None:
    """With 30,000 of them, the API server took 10 s for each loop of a policy over them, and the job could not be stopped."""
    document = a_job(kind, "mine", namespace=world.namespace)
    document["metadata"].setdefault(keyed, {}).update(made_up(MOST_KEYS + 1))
    with pytest.raises(WriteRefused, match="at most 500 labels and 500 annotations"):
        await world.submit(document)
    job = await submitted(world, a_job(kind, "mine", namespace=world.namespace))
    await start(world, job, 1)
    with pytest.raises(WriteRefused, match="at most 500 labels and 500 annotations"):
        await world.user_patch(kind, "mine", {"metadata": {keyed: made_up(MOST_KEYS + 1)}})
    await world.user_patch(kind, "mine", {"metadata": {keyed: made_up(MOST_KEYS - 20)}})


@ALL_KINDS
async def test_a_template_in_a_queue_has_few_labels(world: KubernetesWorld, kind: str) -> None:
    document = a_job(kind, "mine", namespace=world.namespace)
    for _, template in templates(document):
        template.setdefault("metadata", {})["labels"] = made_up(MOST_KEYS_OF_A_TEMPLATE + 1)
    with pytest.raises(WriteRefused, match="and its pod template 100 of each"):
        await world.submit(document)
    for _, template in templates(document):
        template["metadata"]["labels"] = made_up(MOST_KEYS_OF_A_TEMPLATE - 20)
    await world.submit(document)
