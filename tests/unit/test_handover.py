"""The way back to Kueue: Workloads of running gangs, and the reasons why Kueue stops a job."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from queuectl.demo import scenario as m
from queuectl.demo.scenario import PodSetManifest
from queuectl.domain.fleet import HOSTNAME, Node
from queuectl.domain.jobs import JobRecord, PriorAdmission, PriorAdmissions, PriorPodSet
from queuectl.domain.quantity import GPU
from queuectl.domain.queues import QueueConfig
from queuectl.handover.gangs import Adopted, Fate, HandoverObjects, Queued, Stopped, fates
from queuectl.handover.templates import without_queuectl
from queuectl.handover.workloads import WorkloadOwner
from queuectl.objects import keys
from queuectl.objects.configuration.queue_config import build
from queuectl.objects.files.assignments import AdmissionStatus, read_admission
from queuectl.objects.kubernetes.node_affinity import pinned, write_required
from tests.support.kueue import QUEUE_LABEL

SPACE = "research"
UID = "11111111-2222-3333-4444-555555555555"
BLOCK, RACK = "topology.queuectl.dev/block", "topology.queuectl.dev/rack"
Document = dict[str, Any]


def config(**queue: Any) -> list[Document]:
    return [
        m.topology("gpus", BLOCK, RACK),
        m.flavor("gpu", topology="gpus", pool="gpu"),
        m.flavor("spot", pool="spot"),
        m.cluster_queue("pool", "gpu", {GPU: 64, "cpu": 1000}, **queue),
        m.local_queue(SPACE, "team", "pool"),
        m.priority_class("urgent", 100),
    ]


def node(name: str, pool: str = "gpu") -> Node:
    return Node(name, {HOSTNAME: name, RACK: "r0", BLOCK: "b0", "pool": pool})


def job(name: str = "train", pods: int = 2, *, suspend: bool = False) -> Document:
    """A Job as queuectl started it: with its gate, class and labels in the template."""
    document = m.job(name, SPACE, "team", PodSetManifest(pods, gpus=8))
    document["metadata"] |= {"uid": UID, "resourceVersion": "7"}
    document["spec"]["suspend"] = suspend
    template = document["spec"]["template"]
    labels = {keys.ATTEMPT_LABEL: "1", keys.WORKLOAD_LABEL: UID, "controller-uid": UID}
    template.setdefault("metadata", {}).setdefault("labels", {}).update(labels, app="mine")
    template["spec"]["schedulingGates"] = [{"name": keys.GATE}, {"name": "example.com/other"}]
    template["spec"]["priorityClassName"] = keys.POD_PRIORITY_CLASS
    return document


def pod(rank: int, host: str | None, **labels: str) -> Document:
    owner = {"kind": "Job", "name": "train", "uid": UID, "controller": True}
    own = {keys.ATTEMPT_LABEL: "1", keys.PODSET_LABEL: "main", keys.RANK_LABELS[0]: str(rank)}
    meta = {"name": f"train-{rank}", "namespace": SPACE, "uid": f"pod-{rank}"}
    return {
        "metadata": {**meta, "labels": own | labels, "ownerReferences": [owner]},
        "spec": {"nodeName": host, "containers": []},
        "status": {"phase": "Running", "startTime": "2026-01-01T00:00:05Z"},
    }


def cluster(*jobs: Document, **changes: Any) -> HandoverObjects:
    parts: Document = {
        "jobs": {"Job": jobs},
        "pods": [pod(0, "h1"), pod(1, "h0")],
        "nodes": {name: node(name) for name in ("h0", "h1")},
        "config": build(config(), 1),
        "now": 1e9,
    }
    return HandoverObjects(**parts | changes)


def only(given: HandoverObjects) -> Fate:
    [fate] = fates(given)
    return fate


def adopted(given: HandoverObjects) -> Adopted:
    fate = only(given)
    assert isinstance(fate, Adopted), fate
    return fate


def test_the_workload_of_a_running_job_is_as_kueue_writes_it() -> None:
    document = job()
    fate = adopted(cluster(document))
    workload = fate.workload
    assert workload["metadata"]["ownerReferences"][0]["uid"] == UID
    assert workload["metadata"]["finalizers"] == ["kueue.x-k8s.io/resource-in-use"]
    assert (workload["spec"]["queueName"], workload["spec"]["priority"]) == ("team", 0)
    [podset] = workload["spec"]["podSets"]
    assert (podset["name"], podset["count"]) == ("main", 2)
    template = podset["template"]
    assert template["spec"]["containers"] == document["spec"]["template"]["spec"]["containers"]
    assert template["spec"]["schedulingGates"] == [{"name": "example.com/other"}]
    assert "priorityClassName" not in template["spec"]
    assert template["metadata"]["labels"] == {"app": "mine"}
    conditions = {one["type"]: one for one in workload["status"]["conditions"]}
    assert {one["status"] for one in conditions.values()} == {"True"}
    assert conditions.keys() == {"QuotaReserved", "Admitted"}
    assert conditions["Admitted"]["lastTransitionTime"] == "2026-01-01T00:00:05Z"
    [assigned] = workload["status"]["admission"]["podSetAssignments"]
    assert assigned["flavors"][GPU] == "gpu"
    assert (assigned["resourceUsage"][GPU], assigned["count"]) == ("16", 2)
    assert fate.labels == {QUEUE_LABEL: "team"}


def test_its_admission_is_read_back_as_at_a_takeover() -> None:
    import msgspec

    status = adopted(cluster(job())).workload["status"]["admission"]
    read = read_admission(msgspec.convert(status, AdmissionStatus, strict=False))
    assert sorted(read["main"].hosts or ()) == [("h0", 1), ("h1", 1)]
    assert read["main"].count == 2


def two_flavors(*flavors: Document) -> QueueConfig:
    """The ClusterQueue offers both flavors. ``flavors``: instead of those that select nodes."""
    documents = config()
    [group] = next(one for one in documents if one["kind"] == "ClusterQueue")["spec"][
        "resourceGroups"
    ]
    group["flavors"].append({**group["flavors"][0], "name": "spot"})
    kept = [one for one in documents if not flavors or one["kind"] != "ResourceFlavor"]
    return build([*kept, *flavors], 1)


def earlier_admission(flavor: str) -> PriorAdmission:
    """By the Kueue that ran before queuectl."""
    podsets = {"main": PriorPodSet({GPU: flavor, "cpu": flavor})}
    return PriorAdmission(
        UID, "Job", SPACE, "train", cluster_queue="pool", admitted_at=1e3, podsets=podsets
    )


def test_the_earlier_admission_counts_for_the_pods_that_kueue_started() -> None:
    document = job()
    del document["spec"]["template"]["metadata"]["labels"][keys.ATTEMPT_LABEL]
    by_kueue = cluster(
        document,
        config=two_flavors(m.flavor("gpu"), m.flavor("spot")),
        pods=[pod(rank, f"h{rank}", **{keys.ATTEMPT_LABEL: "0"}) for rank in (0, 1)],
        prior=PriorAdmissions([earlier_admission("spot")]),
    )
    workload = adopted(by_kueue).workload
    assert _charged(workload) == ("spot", "1970-01-01T00:16:40Z")


@pytest.mark.parametrize("backwards", [False, True])
def test_of_several_workloads_of_a_job_the_one_that_was_admitted_last_counts(
    *, backwards: bool
) -> None:
    last = earlier_admission("spot")
    first = replace(last, admitted_at=1.0)
    listed = [last, first, replace(last, admitted_at=None, podsets={})]
    record = JobRecord(
        kind="Job", namespace=SPACE, name="train", uid=UID, version=1, created_at=0, queue="a"
    )
    prior = PriorAdmissions(reversed(listed) if backwards else listed)
    assert prior.of(record) == last


def test_the_earlier_admission_does_not_count_for_pods_that_queuectl_started_since() -> None:
    nodes = {name: node(name, "spot") for name in ("h0", "h1")}
    restarted = cluster(
        job(),
        config=two_flavors(),
        nodes=nodes,
        prior=PriorAdmissions([earlier_admission("gpu")]),
    )
    assert _charged(adopted(restarted).workload) == ("spot", "2026-01-01T00:00:05Z")


def test_an_earlier_flavor_that_the_nodes_do_not_have_is_not_charged() -> None:
    document = job()
    del document["spec"]["template"]["metadata"]["labels"][keys.ATTEMPT_LABEL]
    relabeled = cluster(
        document,
        config=two_flavors(),
        pods=[pod(rank, f"h{rank}", **{keys.ATTEMPT_LABEL: "0"}) for rank in (0, 1)],
        prior=PriorAdmissions([earlier_admission("spot")]),
    )
    assert _charged(adopted(relabeled).workload)[0] == "gpu"


def _charged(workload: Any) -> tuple[str, str]:
    """The flavor of its GPUs, and the time of its admission."""
    [assigned] = workload["status"]["admission"]["podSetAssignments"]
    [admitted] = [one for one in workload["status"]["conditions"] if one["type"] == "Admitted"]
    return assigned["flavors"][GPU], admitted["lastTransitionTime"]


def test_pods_get_the_annotations_by_which_kueue_does_not_count_them_twice() -> None:
    fate = adopted(cluster(job()))
    assert [name for _, name, _ in fate.pods] == ["train-0", "train-1"]
    meta = fate.pods[0][2]["metadata"]
    assert meta["uid"] == "pod-0"
    assert meta["annotations"] == {
        "kueue.x-k8s.io/workload": fate.workload["metadata"]["name"],
        "kueue.x-k8s.io/podset-unconstrained-topology": "true",
    }


def test_the_name_of_a_long_job_has_at_most_253_characters() -> None:
    owner = WorkloadOwner("batch", "v1", "Job", SPACE, "x" * 253, UID)
    assert len(owner.workload_name) == 253
    assert (
        owner.workload_name
        != WorkloadOwner("batch", "v1", "Job", SPACE, "x" * 253, "2").workload_name
    )


def test_a_suspended_job_loses_the_gate_and_stays_suspended() -> None:
    document = job(suspend=True)
    before = deepcopy(document)
    fate = only(cluster(document, pods=[]))
    assert isinstance(fate, Queued)
    assert document == before, "the document is not changed"
    spec = fate.document["spec"]
    assert spec["suspend"] is True
    assert spec["template"]["spec"]["schedulingGates"] == [{"name": "example.com/other"}]
    assert spec["template"]["spec"]["priorityClassName"] == keys.POD_PRIORITY_CLASS
    assert fate.document["metadata"]["labels"][QUEUE_LABEL] == "team"
    assert fate.document["metadata"]["resourceVersion"] == "7"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pods": [pod(0, "h0")]}, "some of its pods do not run"),
        ({"pods": [pod(0, "h0"), pod(1, "gone")]}, "some of its pods do not run"),
        ({"config": build(config()[:-2], 1)}, "Kueue has no LocalQueue team"),
        (
            {"nodes": {"h0": node("h0"), "h1": node("h1", "other")}},
            "ClusterQueue pool has no flavor for node h1",
        ),
        ({"config": build([*config()[:1], *config()[3:]], 1)}, "ResourceFlavor gpu does not exist"),
        ({"config": build(config()[1:], 1)}, "Topology gpus does not exist"),
    ],
)
def test_a_gang_that_kueue_would_stop_is_named_with_the_reason(
    changes: Document, reason: str
) -> None:
    fate = only(cluster(job(), **changes))
    assert isinstance(fate, Stopped)
    assert reason in fate.reason
    assert "Kueue suspends a running job without an admitted Workload" in fate.reason


@pytest.mark.parametrize(
    ("kind", "spec", "reason"),
    [
        (
            "SparkApplication",
            {"suspend": True},
            "the templates of a SparkApplication keep the gate",
        ),
        ("SparkApplication", {"suspend": False}, "no Workload is written for a SparkApplication"),
        ("TrainJob", {"suspend": False}, "its JobSet does not exist"),
    ],
)
def test_a_job_of_another_kind_is_named(kind: str, spec: Document, reason: str) -> None:
    meta = {"name": "set", "namespace": SPACE, "uid": "u", "labels": {QUEUE_LABEL: "team"}}
    fate = only(cluster(jobs={kind: [{"metadata": meta, "spec": spec}]}, pods=[]))
    assert isinstance(fate, Stopped)
    assert reason in fate.reason


def test_jobs_outside_the_queues_and_ended_jobs_are_left_alone() -> None:
    other, ended = job("other"), job("ended")
    del other["metadata"]["labels"][keys.QUEUE_LABEL]
    ended["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    assert list(fates(cluster(other, ended, pods=[]))) == []


def test_a_class_that_kueue_lacks_stops_the_gang_and_one_it_has_is_referred_to() -> None:
    document = job()
    document["metadata"]["labels"][keys.PREFIX + keys.PRIORITY_CLASS] = "urgent"
    spec = adopted(cluster(document)).workload["spec"]
    assert spec["priority"] == 100
    assert spec["priorityClassRef"]["name"] == "urgent"
    document["metadata"]["labels"][keys.PREFIX + keys.PRIORITY_CLASS] = "strange"
    fate = only(cluster(document))
    assert isinstance(fate, Stopped)
    assert "WorkloadPriorityClass strange" in fate.reason


def single_pod(**labels: str) -> Document:
    document = pod(0, "h0")
    meta = document["metadata"]
    del meta["ownerReferences"]
    meta["labels"] = {keys.QUEUE_LABEL: "team", keys.ATTEMPT_LABEL: "1"} | labels
    meta["annotations"] = {keys.SUBMITTED_BY: "ada"}
    meta["resourceVersion"] = "3"
    meta["finalizers"] = ["example.com/own"]
    document["spec"] |= {
        "nodeSelector": {"disk": "ssd"},
        "affinity": {**write_required(pinned(None, "h0")), "podAntiAffinity": {}},
        "priority": 1000000000,
        "priorityClassName": keys.POD_PRIORITY_CLASS,
        "containers": [{"name": "c", "resources": {"requests": {GPU: "8"}}}],
    }
    return document


def test_a_single_pod_gets_a_workload_and_the_finalizer_of_kueue() -> None:
    fate = adopted(cluster(pods=[single_pod()]))
    spec = fate.workload["spec"]["podSets"][0]["template"]["spec"]
    assert (spec["nodeSelector"], spec["affinity"]) == ({"disk": "ssd"}, {"podAntiAffinity": {}})
    assert not {"nodeName", "priority", "priorityClassName"} & spec.keys()
    [(_, _, patch)] = fate.pods
    assert patch["metadata"]["labels"] == {
        "kueue.x-k8s.io/managed": "true",
        "kueue.x-k8s.io/podset": "main",
        QUEUE_LABEL: "team",
    }
    assert patch["metadata"]["finalizers"] == ["example.com/own", "kueue.x-k8s.io/managed"]
    assert patch["metadata"]["resourceVersion"] == "3"


def test_a_gated_pod_is_named() -> None:
    gated = single_pod()
    gated["spec"] |= {"nodeName": None, "schedulingGates": [{"name": keys.GATE}]}
    fate = only(cluster(pods=[gated]))
    assert isinstance(fate, Stopped)
    assert "create it again" in fate.reason


def group_pod(number: int, total: int, **changes: Any) -> Document:
    document = single_pod(**{keys.PREFIX + keys.POD_GROUP: "g"})
    document["metadata"] |= {"name": f"g-{number}", "uid": f"pod-{number}"}
    document["metadata"]["annotations"][keys.PREFIX + keys.POD_GROUP_TOTAL] = str(total)
    document["status"] |= changes
    return document


def test_a_group_of_pods_gets_a_workload_that_its_pods_own() -> None:
    fate = adopted(cluster(pods=[group_pod(0, 2), group_pod(1, 2)]))
    meta = fate.workload["metadata"]
    assert meta["name"] == "g"
    assert [one["uid"] for one in meta["ownerReferences"]] == ["pod-0", "pod-1"]
    assert not any("controller" in one for one in meta["ownerReferences"])
    [podset] = fate.workload["spec"]["podSets"]
    assert podset["count"] == 2
    for _, _, patch in fate.pods:
        changed = patch["metadata"]
        assert changed["labels"]["kueue.x-k8s.io/pod-group-name"] == "g"
        assert changed["labels"]["kueue.x-k8s.io/managed"] == "true"
        # Kueue reads the podset of a pod from this annotation.
        assert changed["annotations"]["kueue.x-k8s.io/role-hash"] == podset["name"]
        assert changed["annotations"]["kueue.x-k8s.io/pod-group-total-count"] == "2"


@pytest.mark.parametrize(
    "pods", [[group_pod(0, 2)], [group_pod(0, 2), group_pod(1, 2, phase="Succeeded")]]
)
def test_a_group_of_which_pods_have_ended_is_named(pods: list[Document]) -> None:
    fate = only(cluster(pods=pods))
    assert isinstance(fate, Stopped)
    assert "1 of its 2 pods run" in fate.reason


def test_the_pods_of_a_statefulset_are_named() -> None:
    """As a group, a pod that is deleted would wait for a replacement of the same name."""
    pods = [group_pod(number, 2) for number in range(2)]
    for one in pods:
        owner = {"kind": "StatefulSet", "name": "g", "uid": "s", "controller": True}
        one["metadata"]["ownerReferences"] = [owner]
    fate = only(cluster(pods=pods))
    assert isinstance(fate, Stopped)
    assert "no Workload is written for a StatefulSet" in fate.reason


def test_topology_annotations_of_queuectl_become_those_of_kueue() -> None:
    template = {"metadata": {"annotations": {keys.PREFIX + keys.REQUIRED_TOPOLOGY: RACK}}}
    annotations = without_queuectl(template, None)["metadata"]["annotations"]
    assert annotations[keys.KUEUE_PREFIX + keys.REQUIRED_TOPOLOGY] == RACK
