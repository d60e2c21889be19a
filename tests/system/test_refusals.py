"""The API server refuses forbidden writes; a gang that cannot start has its reason on the object."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from queuectl.demo import scenario as m
from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.localcluster import ApiServerError
from tests.system.actions import run_command
from tests.system.installation import BLOCK, RACK, Installation, Workspace

pytestmark = pytest.mark.system

TEMPLATES = {"Job": "batch/v1", "PyTorchJob": "kubeflow.org/v1"}
RESUME: dict[str, Document] = {
    "Job": {"spec": {"suspend": False}},
    "PyTorchJob": {"spec": {"runPolicy": {"suspend": False}}},
}


def engineer(installation: Installation) -> Any:
    return installation.cluster.client_for_user("alice", ["engineers"])


@pytest.mark.parametrize("kind", ["Job", "PyTorchJob"])
def test_a_user_cannot_resume_a_managed_job(installation: Installation, kind: str) -> None:
    with installation.workspace(0) as workspace:
        workspace.gang(kind, "waits", 2)
        client = engineer(installation)
        try:
            with pytest.raises(ApiServerError, match="queuectl"):
                client.patch(workspace.made[-1], RESUME[kind])
        finally:
            client.close()
        assert workspace.pods("waits") == []


def test_a_user_cannot_drop_the_gate_of_a_pod(installation: Installation) -> None:
    with installation.workspace(0) as workspace:
        # A pod of a job that waits, made by hand, so that it stays gated while we look.
        workspace.job("waits", PodSetManifest(1, gpus=8))
        job = workspace.client.get(workspace.made[-1])
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "waits", "controller": True}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "gated",
                "namespace": workspace.namespace,
                "ownerReferences": [owner | {"uid": job["metadata"]["uid"]}],
            },
            "spec": {
                "schedulingGates": [{"name": "queuectl.dev/placement"}],
                "containers": [{"name": "main", "image": "none"}],
            },
        }
        controller = installation.cluster.client_for_user(
            "system:serviceaccount:kube-system:job-controller"
        )
        try:
            controller.create(f"/api/v1/namespaces/{workspace.namespace}/pods", pod)
        finally:
            controller.close()
        workspace.made.append(workspace.client.path_of(pod))
        client = engineer(installation)
        try:
            with pytest.raises(ApiServerError, match="queuectl"):
                client.patch(workspace.made[-1], {"spec": {"schedulingGates": []}})
        finally:
            client.close()


def test_two_different_queue_labels_are_refused_at_creation(installation: Installation) -> None:
    with installation.workspace(8) as workspace:
        document = m.job("torn", workspace.namespace, "main", PodSetManifest(1, gpus=1))
        document["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "other"
        with pytest.raises(ApiServerError, match="queue-name"):
            workspace.submit(document)


def test_kueues_label_queues_as_well(installation: Installation) -> None:
    with installation.workspace(8) as workspace:
        document = m.job("moved", workspace.namespace, None, PodSetManifest(1, gpus=1), seconds=1)
        document["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "main"
        workspace.submit(document)
        workspace.until_state("moved", "Finished")


def two_modes(document: Document) -> None:
    document["spec"]["template"]["metadata"]["annotations"] |= {
        "queuectl.dev/podset-required-topology": RACK,
        "queuectl.dev/podset-preferred-topology": BLOCK,
    }


def unknown_level(document: Document) -> None:
    document["spec"]["template"]["metadata"]["annotations"] |= {
        "queuectl.dev/podset-required-topology": "example.com/row"
    }


def anti_affinity(document: Document) -> None:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    document["spec"]["template"]["spec"]["affinity"] = {"podAntiAffinity": required}


def other_queue(document: Document) -> None:
    document["metadata"]["labels"]["queuectl.dev/queue-name"] = "nowhere"


def other_class(document: Document) -> None:
    document["metadata"]["labels"]["queuectl.dev/priority-class"] = "urgent"


def larger_than_the_cluster(document: Document) -> None:
    document["spec"]["parallelism"] = document["spec"]["completions"] = 40


def larger_than_a_rack(document: Document) -> None:
    document["spec"]["parallelism"] = document["spec"]["completions"] = 5
    document["spec"]["template"]["metadata"]["annotations"] |= {
        "queuectl.dev/podset-required-topology": RACK
    }


def larger_than_a_node(document: Document) -> None:
    for side in document["spec"]["template"]["spec"]["containers"][0]["resources"].values():
        side["nvidia.com/gpu"] = "16"


# (what is wrong, the reason's code, what the sentence names)
MISTAKES = [
    (two_modes, "Misconfigured", "podset-"),
    (unknown_level, "NoMatchingFlavor", "example.com/row"),
    (anti_affinity, "UnsupportedConstraint", "nti-affinity"),
    (other_queue, "Misconfigured", "LocalQueue nowhere"),
    (other_class, "Misconfigured", "WorkloadPriorityClass urgent"),
    (larger_than_the_cluster, "ExceedsMaxQuota", "320"),
    (larger_than_a_rack, "ShapeNeverFits", "rack"),
    (larger_than_a_node, "ShapeNeverFits", "nvidia.com/gpu"),
]


def reason_note(workspace: Workspace, name: str, code: str) -> str:
    workspace.until(
        lambda: workspace.workload(name).get("reason", {}).get("code") == code, f"{name} {code}"
    )
    return event_note(workspace, name, code)


def test_every_mistake_is_reported_on_the_object_and_affects_no_other_gang(
    installation: Installation,
) -> None:
    with installation.workspace(128) as workspace:
        for mistake, _, _ in MISTAKES:
            document = m.job(
                mistake.__name__.replace("_", "-"),
                workspace.namespace,
                "main",
                PodSetManifest(1, gpus=8),
            )
            mistake(document)
            workspace.submit(document)
        workspace.job("fine", PodSetManifest(2, gpus=8), seconds=1)
        workspace.until_state("fine", "Finished")
        for mistake, code, word in MISTAKES:
            name = mistake.__name__.replace("_", "-")
            note = reason_note(workspace, name, code)
            explained = workspace.rest.explain(workspace.namespace, name)
            assert word in note, (mistake.__name__, note)
            assert explained["code"] == code
            assert word in explained["message"]


FROZEN = {"metadata": {"annotations": {"example.com/frozen": "true"}}}
QUEUECTL: Final = "system:serviceaccount:queuectl-system:queuectl"


PROBE: Final = "asks-whether-it-acts"
FROZEN_BY_US = (
    f"request.userInfo.username in ['{QUEUECTL}', '{PROBE}']"
    " && oldObject.metadata.?annotations[?'example.com/frozen'].hasValue()"
)
JOBS = [
    {"apiGroups": [group], "apiVersions": ["v1"], "resources": [plural], "operations": ["UPDATE"]}
    for group, plural in (("batch", "jobs"), ("kubeflow.org", "pytorchjobs"))
]


def refusing(workspace: Workspace) -> list[Document]:
    """A policy of the cluster that refuses queuectl's updates of frozen jobs with 422."""
    meta = admission(workspace)
    validation = {
        "expression": f"!({FROZEN_BY_US})",
        "message": "it is frozen",
        "reason": "Invalid",
    }
    policy = {"matchConstraints": {"resourceRules": JOBS}, "validations": [validation]}
    binding = {
        "policyName": meta["metadata"]["name"],
        "matchResources": {"namespaceSelector": only(workspace)},
        "validationActions": ["Deny"],
    }
    return [
        meta | {"kind": "ValidatingAdmissionPolicy", "spec": policy},
        meta | {"kind": "ValidatingAdmissionPolicyBinding", "spec": binding},
    ]


def silent(workspace: Workspace) -> list[Document]:
    """A webhook that nothing answers, asked about queuectl's updates of frozen jobs: the API server answers 500."""
    webhook = {
        "name": "frozen.example.com",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": JOBS,
        "namespaceSelector": only(workspace),
        "matchConditions": [{"name": "frozen", "expression": FROZEN_BY_US}],
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    return [
        admission(workspace) | {"kind": "ValidatingWebhookConfiguration", "webhooks": [webhook]}
    ]


def admission(workspace: Workspace) -> Document:
    meta = {"name": f"frozen-{workspace.namespace}"}
    return {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": meta}


def only(workspace: Workspace) -> Document:
    return {"matchLabels": {"kubernetes.io/metadata.name": workspace.namespace}}


@contextmanager
def in_force(workspace: Workspace, documents: list[Document], says: str) -> Iterator[None]:
    """These objects of admission are there, and act: they do so with a delay."""
    probe = m.job("probe", workspace.namespace, None, PodSetManifest(1, gpus=1))
    probe["metadata"]["annotations"] = FROZEN["metadata"]["annotations"]
    probe["spec"]["suspend"] = True
    workspace.submit(probe)
    target, probing = (
        workspace.made[-1],
        workspace.installation.cluster.client_for_user(PROBE, ["system:masters"]),
    )

    tries = itertools.count(1)  # a patch that changes nothing is not asked about

    def in_effect() -> bool:
        try:
            tried = {"example.com/tries": str(next(tries))}
            probing.patch(target, {"metadata": {"annotations": tried}})
        except ApiServerError as error:
            return says in str(error)
        return False

    workspace.client.apply(*documents)
    try:
        workspace.until(in_effect, f"a write is answered {says}")
        yield
    finally:
        probing.close()
        for one in reversed(documents):
            workspace.client.delete(workspace.client.path_of(one), missing_ok=True)


def submit_frozen(workspace: Workspace, kind: str, name: str, pods: int) -> None:
    if kind == "Job":
        document = m.job(name, workspace.namespace, "main", PodSetManifest(pods, gpus=4))
    else:
        master, worker = PodSetManifest(1, gpus=4), PodSetManifest(pods - 1, gpus=4)
        document = m.pytorchjob(name, workspace.namespace, "main", master=master, worker=worker)
    document["metadata"]["annotations"] = FROZEN["metadata"]["annotations"]
    workspace.submit(document)


@pytest.mark.parametrize("kind", ["Job", "PyTorchJob"])
def test_refused_writes_are_reported_and_hold_no_capacity(
    installation: Installation, kind: str
) -> None:
    with installation.workspace(16) as workspace:
        with in_force(workspace, refusing(workspace), "it is frozen"):
            submit_frozen(workspace, kind, "frozen", 4)
            workspace.until_state("frozen", "Backoff")
            message = workspace.rest.explain(workspace.namespace, "frozen")["message"]
            assert "StartRefused" in message
            assert " 422: " in message
            assert "it is frozen" in message
            workspace.gang(kind, "other", 2)
            workspace.until_state("other", "Running")
            workspace.client.patch(workspace.made[-1], FROZEN)
            run_command(workspace, "other", "hold")
            assert "422" in event_note(workspace, "other", "WriteRefused")
            assert workspace.state("other") == "Evicting"
            assert len(workspace.running("other")) == 2
        workspace.until_state("other", "Held")
        assert workspace.pods("frozen") == []


@pytest.mark.parametrize("kind", ["Job", "PyTorchJob"])
def test_a_template_that_grows_before_the_start_is_planned_again(
    installation: Installation, kind: str
) -> None:
    with installation.workspace(16) as workspace:
        with in_force(workspace, silent(workspace), "failed calling webhook"):
            submit_frozen(workspace, kind, "grows", 2)
            workspace.until_state("grows", "Starting")
            document = workspace.client.get(workspace.made[-1])
            replicas = document["spec"].get("pytorchReplicaSpecs", {"": document["spec"]})
            for replica in replicas.values():
                resources = replica["template"]["spec"]["containers"][0]["resources"]
                for side in resources.values():
                    side["nvidia.com/gpu"] = "8"
            workspace.client.patch(workspace.made[-1], {"spec": document["spec"]})
        again = workspace.until_state("grows", "Running")
        assert again["attempt"] == 2
        assert {pod.requests["nvidia.com/gpu"] for pod in workspace.running("grows")} == {8}
        assert "ChangedOutside" in [line["reason"]["code"] for line in workspace.history("grows")]


def test_pods_of_a_drained_node_go_elsewhere(installation: Installation) -> None:
    with installation.workspace(32) as workspace:
        workspace.job("train", PodSetManifest(2, gpus=8), retries=3)
        workspace.until_state("train", "Running")
        pod = workspace.running("train")[0]
        node = f"/api/v1/nodes/{pod.node}"
        workspace.client.patch(node, {"spec": {"unschedulable": True}})
        try:
            workspace.client.delete(f"/api/v1/namespaces/{workspace.namespace}/pods/{pod.name}")
            workspace.until_running(
                "train",
                2,
                lambda p: p.node != pod.node,
                "it is whole again, off the cordoned node",
            )
            found = workspace.workload("train")
            assert (found["state"], found["evictions"], found["attempt"]) == ("Running", 0, 1)
        finally:
            workspace.client.patch(node, {"spec": {"unschedulable": False}})


def event_note(workspace: Workspace, name: str, code: str) -> str:
    workspace.until(
        lambda: code in {reason for reason, _ in workspace.events(name)}, f"an Event {code}"
    )
    return next(note for reason, note in workspace.events(name) if reason == code)
