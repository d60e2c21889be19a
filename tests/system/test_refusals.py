"""What must not happen is refused by the API server; what cannot happen is explained on the object."""

from __future__ import annotations

from typing import Any

import pytest

from queuectl.demo import manifests as m
from queuectl.demo.manifests import Document, Pods
from queuectl.localcluster import RequestError
from tests.system.house import BLOCK, RACK, House, Room

pytestmark = pytest.mark.system

TEMPLATES = {"Job": "batch/v1", "PyTorchJob": "kubeflow.org/v1"}
RESUME: dict[str, Document] = {
    "Job": {"spec": {"suspend": False}},
    "PyTorchJob": {"spec": {"runPolicy": {"suspend": False}}},
}


def engineer(home: House) -> Any:
    return home.cluster.client_for_user("alice", ["engineers"])


@pytest.mark.parametrize("kind", ["Job", "PyTorchJob"])
def test_a_user_cannot_resume_a_managed_job(home: House, kind: str) -> None:
    with home.room(0) as room:
        room.gang(kind, "waits", 2)
        client = engineer(home)
        try:
            with pytest.raises(RequestError, match="queuectl"):
                client.patch(room.made[-1], RESUME[kind])
        finally:
            client.close()
        assert room.pods("waits") == []


def test_a_user_cannot_drop_the_gate_of_a_pod(home: House) -> None:
    with home.room(0) as room:
        # A pod of a job that waits, made by hand, so that it stays gated while we look.
        room.job("waits", Pods(1, gpus=8))
        job = room.client.get(room.made[-1])
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "waits", "controller": True}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "gated",
                "namespace": room.namespace,
                "ownerReferences": [owner | {"uid": job["metadata"]["uid"]}],
            },
            "spec": {
                "schedulingGates": [{"name": "queuectl.dev/placement"}],
                "containers": [{"name": "main", "image": "none"}],
            },
        }
        controller = home.cluster.client_for_user(
            "system:serviceaccount:kube-system:job-controller"
        )
        try:
            controller.create(f"/api/v1/namespaces/{room.namespace}/pods", pod)
        finally:
            controller.close()
        room.made.append(room.client.path_of(pod))
        client = engineer(home)
        try:
            with pytest.raises(RequestError, match="queuectl"):
                client.patch(room.made[-1], {"spec": {"schedulingGates": []}})
        finally:
            client.close()


def test_two_different_queue_labels_are_refused_at_creation(home: House) -> None:
    with home.room(8) as room:
        document = m.job("torn", room.namespace, "main", Pods(1, gpus=1))
        document["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "other"
        with pytest.raises(RequestError, match="queue-name"):
            room.submit(document)


def test_kueues_label_queues_as_well(home: House) -> None:
    with home.room(8) as room:
        document = m.job("moved", room.namespace, None, Pods(1, gpus=1), seconds=1)
        document["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "main"
        room.submit(document)
        room.until_state("moved", "Finished")


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


def told(room: Room, name: str, code: str) -> str:
    room.until(
        lambda: room.workload(name).get("reason", {}).get("code") == code, f"{name} says {code}"
    )
    room.until(lambda: code in {reason for reason, _ in room.events(name)}, f"an Event says {code}")
    return next(note for reason, note in room.events(name) if reason == code)


def test_every_mistake_is_told_on_the_object_and_disturbs_nobody(home: House) -> None:
    with home.room(128) as room:
        for mistake, _, _ in MISTAKES:
            document = m.job(
                mistake.__name__.replace("_", "-"), room.namespace, "main", Pods(1, gpus=8)
            )
            mistake(document)
            room.submit(document)
        room.job("fine", Pods(2, gpus=8), seconds=1)
        room.until_state("fine", "Finished")
        for mistake, code, word in MISTAKES:
            name = mistake.__name__.replace("_", "-")
            note = told(room, name, code)
            explained = room.rest.explain(room.namespace, name)
            assert word in note, (mistake.__name__, note)
            assert explained["code"] == code
            assert word in explained["message"]
