"""``queuectl plan -f`` reads plain pods and groups of pods as the controller does."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Snapshot
from queuectl.objects import keys
from queuectl.objects.documents import read_documents
from queuectl.objects.errors import DocumentError
from queuectl.offline.inputs import read_snapshot

Document = dict[str, Any]


def pod(name: str, total: int = 0, *, labels: Document | None = None, **more: Any) -> Document:
    found = {keys.QUEUE_LABEL: "q", **(labels or {})}
    annotations = dict(more.pop("annotations", {}))
    if total:
        found[keys.KUEUE_PREFIX + keys.POD_GROUP] = "g"
        annotations[keys.KUEUE_PREFIX + keys.POD_GROUP_TOTAL] = str(total)
    container = {"name": "main", "resources": {"requests": {"cpu": more.pop("cpu", "1")}}}
    metadata = {"name": name, "namespace": "n", "labels": found, "annotations": annotations}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, **more},
        "spec": {"containers": [container]},
    }


def snapshot(*documents: Document) -> Snapshot:
    return read_snapshot(read_documents(yaml.safe_dump_all(documents), "-")).snapshot


def test_a_pod_with_a_queue_label_is_a_gang_of_one() -> None:
    [pending] = snapshot(pod("alone")).pending
    workload = pending.workload
    assert (workload.kind, workload.name, workload.queue) == ("Pod", "alone", "q")
    assert [(p.name, p.count) for p in workload.podsets] == [("main", 1)]


def test_pods_of_a_group_are_one_gang_with_a_podset_for_each_shape() -> None:
    found = snapshot(pod("a", 3), pod("b", 3), pod("c", 3, cpu="2"))
    [pending] = found.pending
    assert (pending.workload.kind, pending.workload.name) == ("PodGroup", "g")
    assert [p.count for p in pending.workload.podsets] == [2, 1]
    assert pending.blocked is not None
    assert pending.blocked.code is Code.MISCONFIGURED, "the LocalQueue does not exist"


def test_a_group_without_all_its_pods_waits_for_them() -> None:
    [pending] = snapshot(pod("a", 3)).pending
    assert pending.blocked is not None
    assert pending.blocked.code is Code.WAITING_FOR_PODS
    assert pending.blocked.message == "1 of 3 pods of the group exist"


def test_a_group_with_fast_admission_requests_all_its_pods_at_once() -> None:
    fast = {keys.KUEUE_PREFIX + keys.POD_GROUP_FAST: "true"}
    [pending] = snapshot(pod("a", 3, annotations=fast)).pending
    assert [p.count for p in pending.workload.podsets] == [3]
    assert pending.blocked is not None
    assert pending.blocked.code is not Code.WAITING_FOR_PODS


@pytest.mark.parametrize(
    "other",
    [
        pod(
            "of-a-job",
            ownerReferences=[{"kind": "Job", "uid": "u", "name": "j", "controller": True}],
        ),
        pod("created-before-the-policies", uid="u-1", creationTimestamp="2026-01-01T00:00:00Z"),
        {**pod("in-no-queue"), "metadata": {"name": "x", "namespace": "n"}},
    ],
    ids=lambda document: document["metadata"]["name"],
)
def test_other_pods_are_not_gangs(other: Document) -> None:
    assert snapshot(other).pending == ()


def serving(kind: str, replicas: int, *, in_template: bool = False) -> Document:
    label, shape = {keys.QUEUE_LABEL: "q"}, pod("x")["spec"]
    template = {"metadata": {"labels": label if in_template else {}}, "spec": shape}
    metadata = {"name": "web", "namespace": "n", "labels": {} if in_template else label}
    spec = {"replicas": replicas, "template": template}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": spec}


@pytest.mark.parametrize("in_template", [False, True])
def test_each_pod_of_a_deployment_is_a_gang_of_one(in_template: bool) -> None:
    found = snapshot(serving("Deployment", 2, in_template=in_template)).pending
    assert [(p.workload.kind, p.workload.name) for p in found] == [
        ("Pod", "web-0"),
        ("Pod", "web-1"),
    ]


def test_the_pods_of_a_statefulset_are_one_gang_with_its_name() -> None:
    [pending] = snapshot(serving("StatefulSet", 3)).pending
    assert (pending.workload.kind, pending.workload.name) == ("PodGroup", "web")
    assert [p.count for p in pending.workload.podsets] == [3]


@pytest.mark.parametrize("replicas", [2, 10**18])
def test_a_new_leaderworkerset_that_cannot_start_is_refused_however_many_groups_it_has(
    replicas: int,
) -> None:
    document = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {
            "name": "web",
            "namespace": "n",
            "labels": {keys.QUEUE_LABEL: "q"},
            "annotations": {"leaderworkerset.sigs.k8s.io/exclusive-topology": "rack"},
        },
        "spec": {
            "replicas": replicas,
            "leaderWorkerTemplate": {"size": 2, "workerTemplate": {"spec": pod("x")["spec"]}},
        },
    }
    with pytest.raises(DocumentError, match="exclusive-topology"):
        snapshot(document)
