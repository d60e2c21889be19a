"""Files of ordinary objects to a Snapshot: what waits, what runs, what is another pod, what counts once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.errors import BadInput
from queuectl.domain.quantity import Resources
from queuectl.domain.reasons import Code
from queuectl.domain.workload import PodSetPlacement, Slice, TopologyMode, TopologyRequest
from queuectl.objects.documents import read_documents
from queuectl.objects.errors import DocumentError
from queuectl.objects.times import parse_time
from queuectl.offline.inputs import SnapshotInput, read_snapshot

PLANS = Path(__file__).parent.parent / "fixtures" / "plan"
CLUSTER = (PLANS / "cluster.yaml").read_text()
HOST = "kubernetes.io/hostname"
RACK = "topology.example.com/rack"


def load(
    *bodies: dict[str, Any], cluster: str = CLUSTER, now: float | None = None
) -> SnapshotInput:
    text = "---\n".join([cluster, *(yaml.safe_dump(body) for body in bodies)])
    return read_snapshot(read_documents(text, "f.yaml"), now)


def template(gpus: int = 8, **annotations: str) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": gpus}
    return {
        "metadata": {"annotations": annotations},
        "spec": {"containers": [{"name": "t", "resources": {"limits": limits}}]},
    }


def workload(name: str = "w", count: int = 2, **parts: Any) -> dict[str, Any]:
    spec = {
        "queueName": "main",
        "podSets": [{"name": "main", "count": count, "template": template()}],
    }
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": name, "namespace": "team-a", **parts.pop("metadata", {})},
        "spec": {**spec, **parts.pop("spec", {})},
        **parts,
    }  # fmt: skip


def admission(**topology: Any) -> dict[str, Any]:
    assignment: dict[str, Any] = {"name": "main", "flavors": {"nvidia.com/gpu": "h100"}, "count": 2}
    if topology:
        assignment["topologyAssignment"] = topology
    return {
        "admission": {"clusterQueue": "team-a", "podSetAssignments": [assignment]},
        "conditions": [
            {
                "type": "QuotaReserved",
                "status": "True",
                "lastTransitionTime": "2026-08-22T09:00:00Z",
            }
        ],
    }


def on_hosts(**hosts: int) -> dict[str, Any]:
    domains = [{"values": [host.replace("_", "-")], "count": n} for host, n in hosts.items()]
    return admission(levels=[HOST], domains=domains)


def job(
    name: str = "j",
    labels: dict[str, str] | None = None,
    *,
    suspend: bool = True,
    uid: str | None = None,
) -> dict[str, Any]:
    queue = {"queuectl.dev/queue-name": "main"}
    meta: dict[str, Any] = {"name": name, "namespace": "team-a", "labels": labels or queue}
    if uid:
        meta["uid"] = uid
    spec = {"suspend": suspend, "parallelism": 2, "completions": 2, "template": template()}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}


def pod(
    name: str, node: str | None, *, owner: str = "", gpus: int = 8, **parts: Any
) -> dict[str, Any]:
    meta: dict[str, Any] = {"name": name, "namespace": "team-a", **parts.pop("metadata", {})}
    if owner:
        meta["ownerReferences"] = [{"kind": "Job", "name": "j", "uid": owner, "controller": True}]
    spec = {**template(gpus)["spec"], "nodeName": node, **parts.pop("spec", {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, **parts}


def one_gpu_less(count: int) -> Resources:
    return Resources({"nvidia.com/gpu": count, "pods": 1})


# ---- what waits


def test_a_suspended_job_waits_in_its_queue() -> None:
    (pending,) = load(job()).snapshot.pending
    assert pending.workload.ref == "team-a/j"
    assert pending.workload.queue == "main"
    assert pending.blocked is None


def written(labels: dict[str, str] | None = None, **meta: str) -> dict[str, Any]:
    """A job as users write it, with what a server would have added in ``meta``."""
    body = job(labels=labels)
    del body["spec"]["suspend"]
    body["metadata"].update(meta)
    return body


def test_a_job_as_its_user_writes_it_waits_because_it_would_be_born_suspended() -> None:
    given_ = load(written())
    (pending,) = given_.snapshot.pending
    assert (pending.workload.ref, pending.blocked) == ("team-a/j", None)
    assert (given_.snapshot.admitted, given_.warnings) == ((), ())


def test_a_mistake_in_a_job_of_a_user_gives_a_warning() -> None:
    body = written()
    body["spec"]["template"]["metadata"]["annotations"] = {
        "queuectl.dev/podset-required-topology": RACK,
        "queuectl.dev/podset-preferred-topology": RACK,
    }
    (pending,) = load(body).snapshot.pending
    assert pending.blocked is not None
    assert pending.blocked.code == "Misconfigured"


def test_a_job_as_its_user_writes_it_without_queue_is_nobodys() -> None:
    snapshot = load(written(labels={"app": "x"})).snapshot
    assert (snapshot.pending, snapshot.admitted) == ((), ())


SUBMITTED = {
    "uid": {**written(uid="job-1")},
    "creation time": {**written(creationTimestamp="2026-08-22T10:00:00Z")},
    "status": {**written(), "status": {"active": 2}},
}


@pytest.mark.parametrize("what", SUBMITTED)
def test_a_job_that_a_server_has_seen_unsuspended_runs(what: str) -> None:
    given_ = load(SUBMITTED[what])
    assert given_.snapshot.pending == ()
    (ignored,) = given_.account.ignored
    assert ignored.reason == (
        "it is not suspended, but neither its pods nor its admission are in the input"
    )


def test_a_job_with_pods_of_its_own_runs_whatever_else_its_file_leaves_out() -> None:
    labels = {"batch.kubernetes.io/job-name": "j"}
    pods = [pod(name, "r1-a", metadata={"labels": labels}) for name in "ab"]
    snapshot = load(written(), *pods).snapshot
    assert (len(snapshot.pending), len(snapshot.admitted)) == (0, 1)


def test_a_workload_without_admission_waits_with_its_topology_request() -> None:
    spec = {
        "priority": 7,
        "podSets": [
            {"name": n, "count": c, "template": template(),
             "topologyRequest": {"required": RACK, "podSetGroupName": "g", "podIndexLabel": "i"}}
            for n, c in (("leader", 1), ("workers", 3), ("unused", 0))
        ],
    }  # fmt: skip
    (pending,) = load(workload(spec=spec)).snapshot.pending
    asked = pending.workload
    assert asked.priority == 7
    assert [(p.name, p.count, p.group) for p in asked.podsets] == [
        ("leader", 1, "g"),
        ("workers", 3, "g"),
    ]
    assert {p.topology for p in asked.podsets} == {TopologyRequest(TopologyMode.REQUIRED, RACK)}


def test_undated_gangs_queue_behind_the_dated_in_the_order_of_the_file() -> None:
    dated = job("dated")
    dated["metadata"]["creationTimestamp"] = "2026-08-22T10:00:00Z"
    names = [f"w{i}" for i in range(12)]
    snapshot = load(*(job(name) for name in names), dated).snapshot
    ordered = sorted(snapshot.pending, key=lambda p: p.workload.queued_at)
    assert [p.workload.name for p in ordered] == ["dated", *names]


def test_a_suspended_job_without_a_queue_is_not_planned() -> None:
    given_ = load(job("j", {"app": "x"}))
    assert given_.snapshot.pending == ()
    assert [each.reason for each in given_.account.ignored] == ["it has no queue label"]


def test_a_gang_in_no_namespace_is_in_default() -> None:
    body = job()
    del body["metadata"]["namespace"]
    (pending,) = load(body).snapshot.pending
    assert pending.workload.ref == "default/j"
    assert pending.blocked is not None
    assert pending.blocked.message == "LocalQueue main does not exist in namespace default"


BLOCKED: dict[str, tuple[dict[str, Any], Code, str]] = {
    "unknown queue": (
        workload(spec={"queueName": "nope"}), Code.MISCONFIGURED, "LocalQueue nope does not exist in namespace team-a",
    ),
    "unknown priority class": (
        job("j", {"queuectl.dev/queue-name": "main", "queuectl.dev/priority-class": "nope"}),
        Code.MISCONFIGURED, "WorkloadPriorityClass nope does not exist",
    ),
    "gated": (
        job() | {"metadata": {**job()["metadata"], "annotations": {"kueue.x-k8s.io/admission-gated-by": "a.com/x"}}},
        Code.ADMISSION_GATED, "held until these admission gates are removed: a.com/x",
    ),
    "after a job that is not in the input": (
        job() | {"metadata": {**job()["metadata"], "annotations": {"queuectl.dev/after": "Job/prep"}}},
        Code.DEPENDENCY, "held until Job/prep succeeds (no such job with a queue is in its namespace)",
    ),
    "after a word": (
        job() | {"metadata": {**job()["metadata"], "annotations": {"queuectl.dev/after": "Job/a, prep"}}},
        Code.MISCONFIGURED,
        "metadata.annotations: queuectl.dev/after: 'prep' is not KIND/NAME, KIND/NAME:ok, KIND/NAME:any or KIND/NAME:failed",
    ),
    "after a kind that runs until it is deleted": (
        job() | {"metadata": {**job()["metadata"], "annotations": {"queuectl.dev/after": "StatefulSet/web"}}},
        Code.MISCONFIGURED,
        "metadata.annotations: queuectl.dev/after: 'StatefulSet/web' names a StatefulSet, which does not end",
    ),
    "held": (workload(spec={"active": False}), Code.HELD, "held by spec.active: false"),
    "backing off": (
        workload(status={"requeueState": {"count": 1, "requeueAt": "2027-01-01T00:00:00Z"}}),
        Code.BACKOFF, "in back-off until 2027-01-01T00:00:00Z",
    ),
    "slices": (
        workload(spec={"podSets": [{"template": template(), "topologyRequest": {"podSetSliceRequiredTopology": RACK}}]}),
        Code.MISCONFIGURED, "spec.podSets[0].topologyRequest.podSetSliceSize: is required with podSetSliceRequiredTopology",
    ),
    "two modes": (
        workload(spec={"podSets": [{"template": template(), "topologyRequest": {"required": RACK, "preferred": RACK}}]}),
        Code.MISCONFIGURED, f"spec.podSets[0].topologyRequest.required='{RACK}' and preferred='{RACK}' contradict each other: keep one of them",
    ),
    "no pods": (
        workload(count=0), Code.MISCONFIGURED, "spec.podSets: no podset has any pods",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BLOCKED)
def test_a_workload_that_cannot_be_planned_has_its_reason(name: str) -> None:
    body, code, message = BLOCKED[name]
    (pending,) = load(body, now=1.8e9 - 3e7).snapshot.pending
    assert pending.blocked is not None
    assert (pending.blocked.code, pending.blocked.message) == (code, message)


def test_a_stopped_queue_and_a_foreign_namespace_keep_gangs_out() -> None:
    stopped = CLUSTER.replace("namespaceSelector: {}", "namespaceSelector: {}\n  stopPolicy: Hold")
    (pending,) = load(job(), cluster=stopped).snapshot.pending
    assert pending.blocked is not None
    assert pending.blocked.code is Code.QUEUE_STOPPED
    foreign = CLUSTER.replace(
        "namespaceSelector: {}", "namespaceSelector: {matchLabels: {team: b}}"
    )
    (pending,) = load(job(), cluster=foreign).snapshot.pending
    assert pending.blocked is not None
    assert pending.blocked.message == (
        "spec.namespaceSelector of ClusterQueue team-a does not select namespace team-a"
    )
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "team-a", "labels": {"team": "b"}},
    }
    (pending,) = load(job(), namespace, cluster=foreign).snapshot.pending
    assert pending.blocked is None  # fmt: skip


def test_priority_is_the_named_class_of_the_queue_or_of_the_pods() -> None:
    urgent = job(
        "a", {"queuectl.dev/queue-name": "main", "kueue.x-k8s.io/priority-class": "urgent"}
    )
    pods = job("b")
    pods["spec"]["template"]["spec"]["priorityClassName"] = "research"
    unknown = job("c")
    unknown["spec"]["template"]["spec"]["priorityClassName"] = "gone"
    ref = workload(
        "d",
        spec={
            "priorityClassRef": {
                "group": "kueue.x-k8s.io",
                "kind": "WorkloadPriorityClass",
                "name": "urgent",
            }
        },
    )
    research = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "research"},
        "value": 50,
    }
    given_ = load(urgent, pods, unknown, ref, research)
    assert [p.workload.priority for p in given_.snapshot.pending] == [1000, 50, 0, 1000]
    assert given_.warnings == ("f.yaml: document 9 (Job/c): PriorityClass gone is not in the input: priority 0 assumed",)  # fmt: skip


@pytest.mark.parametrize(
    ("labels", "beside", "named"),
    [
        ({}, {HOST: "m"}, True),
        ({"size": "big"}, {HOST: "m"}, True),
        ({RACK: "r1"}, {RACK: "r1"}, False),
        ({RACK: "r1"}, {RACK: "r1", HOST: "m"}, False),
        ({RACK: "r1", HOST: "h"}, {}, True),
    ],
    ids=[
        "no labels",
        "its own labels",
        "in a topology, no gang is named",
        "in a topology, others are named",
        "named",
    ],
)
def test_a_node_gets_the_hostname_label_that_people_leave_out(
    labels: dict[str, str], beside: dict[str, str], named: bool
) -> None:
    topology = {"levels": [{"nodeLabel": RACK}, {"nodeLabel": HOST}]}
    head = {"apiVersion": "queuectl.dev/v1", "kind": "Topology", "metadata": {"name": "t"}}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": labels}}
    other = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "m", "labels": beside}}
    given_ = load(head | {"spec": topology}, node, other, cluster="")
    assert (HOST in given_.snapshot.fleet.by_name["n"].labels) is named


INCOMPLETE = {
    "a size without a level": ({"required": RACK, "podSetSliceSize": 2}, (), None),
    "a leader's slices without a size": (
        {"required": RACK, "podSetSliceRequiredTopology": HOST, "podSetGroupName": "g"}, (Slice(HOST, 1),), "g",
    ),
    "a group that may sit anywhere": ({"unconstrained": True, "podSetGroupName": "g"}, (), "g"),
    "a group and nothing else": ({"podSetGroupName": "g"}, None, "g"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("request_", "slices", "group"), INCOMPLETE.values(), ids=INCOMPLETE.keys()
)
def test_what_kueue_passes_over_in_a_topology_request_asks_for_nothing(
    request_: dict[str, Any], slices: tuple[Slice, ...] | None, group: str | None
) -> None:
    podsets = [{"template": template(), "topologyRequest": request_}]
    (pending,) = load(workload(spec={"podSets": podsets})).snapshot.pending
    (podset,) = pending.workload.podsets
    assert pending.blocked is None
    assert (podset.topology and podset.topology.slices, podset.group) == (slices, group)


@pytest.mark.parametrize("memory", [True, False], ids=["nodes say their memory", "no node does"])
def test_an_operators_own_init_container_needs_no_more_than_nodes_speak_of(memory: bool) -> None:
    room = {"nvidia.com/gpu": "8", "cpu": "8"} | ({"memory": "1Gi"} if memory else {})
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
    needs = {"requests": {"cpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}
    pods = {"spec": {"containers": [{"name": "pytorch", "resources": needs}]}}
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "p", "namespace": "team-a"},
        "spec": {
            "runPolicy": {"suspend": True},
            "pytorchReplicaSpecs": {
                "Master": {"replicas": 1, "template": pods},
                "Worker": {"replicas": 2, "template": pods},
            },
        },
    }
    given_ = load(node | {"status": {"allocatable": room}}, job, cluster="")
    (pending,) = given_.snapshot.pending
    assert [bool(p.shape.requests["memory"]) for p in pending.workload.podsets] == [False, memory]


def test_pods_that_have_finished_for_good_are_not_asked_for_again() -> None:
    finished = {"reclaimablePods": [{"name": "main", "count": 3}]}
    (pending,) = load(workload(count=5, status=finished)).snapshot.pending
    assert [p.count for p in pending.workload.podsets] == [2]


@pytest.mark.parametrize(("done", "left"), [(1, 1), (2, 0), (9, 0), (0, None)])
def test_pods_of_an_admitted_workload_that_have_finished_free_their_quota(
    done: int, left: int | None
) -> None:
    status = {**admission(), "reclaimablePods": [{"name": "main", "count": done}]}
    plain = CLUSTER.replace("spec: {topologyName: racks}", "spec: {}")
    given_ = load(workload(status=status), cluster=plain)
    assert placed(given_) == (PodSetPlacement("main", (), FLAVOR, pods=left),)
    assert given_.warnings == ()


def test_a_request_that_is_too_large_to_count_waits_indefinitely_and_blocks_no_other_gang() -> None:
    huge = workload("huge")
    huge["spec"]["podSets"][0]["template"]["spec"]["containers"][0]["resources"] = {
        "requests": {"cpu": "9223372036854776"}
    }
    pending = {p.workload.name: p.blocked for p in load(huge, workload()).snapshot.pending}
    assert pending["w"] is None
    assert pending["huge"] is not None
    assert "too large" in pending["huge"].message


# ---- what runs


def placed(given_: SnapshotInput) -> tuple[PodSetPlacement, ...]:
    (gang,) = given_.snapshot.admitted
    return gang.placement.podsets


FLAVOR = {"nvidia.com/gpu": "h100"}


@pytest.mark.parametrize(
    "topology",
    [
        {"domains": [{"values": ["r1-a"], "count": 1}, {"values": ["r1-b"], "count": 1}]},
        {"slices": [{"domainCount": 2, "valuesPerLevel": [{"individual": {"prefix": "r1-", "roots": ["a", "b"]}}], "podCounts": {"universal": 1}}]},
        {"slices": [{"domainCount": 1, "valuesPerLevel": [{"universal": "r1-a"}], "podCounts": {"individual": [1]}},
                    {"domainCount": 1, "valuesPerLevel": [{"individual": {"roots": ["r1-b"]}}], "podCounts": {"individual": [1]}}]},
    ],
    ids=["v1beta1", "v1beta2", "v1beta2 in two slices"],
)  # fmt: skip
def test_an_admitted_workload_occupies_the_hosts_of_its_admission(
    topology: dict[str, Any],
) -> None:
    given_ = load(workload(status=admission(levels=[HOST], **topology)))
    assert placed(given_) == (PodSetPlacement("main", (("r1-a", 1), ("r1-b", 1)), FLAVOR),)
    assert given_.snapshot.pending == ()


def test_nodes_a_workload_calls_unhealthy_are_lost_to_it() -> None:
    status = on_hosts(r1_a=1, r1_b=1) | {"unhealthyNodes": [{"name": "r1-b"}]}
    (gang,) = load(workload(status=status)).snapshot.admitted
    assert gang.lost == (("main", "r1-b", 1),)


def test_pods_on_nodes_count_whatever_the_number_of_admitted_pods() -> None:
    status = on_hosts(r1_a=1, r1_b=1)
    status["admission"]["podSetAssignments"][0]["count"] = 1
    (gang,) = load(workload(status=status)).snapshot.admitted
    assert [p.count for p in gang.workload.podsets] == [2]


@pytest.mark.parametrize("named", ["main", "gone", None], ids=["leads there", "missing", "unnamed"])
def test_what_runs_is_charged_to_the_cluster_queue_of_its_admission(named: str | None) -> None:
    given_ = load(workload(spec={"queueName": named}, status=on_hosts(r1_a=1, r1_b=1)))
    (gang,) = given_.snapshot.admitted
    queue = given_.snapshot.config.cluster_queue_of("team-a", gang.workload.queue)
    assert queue is not None
    assert queue.name == "team-a"


@pytest.mark.parametrize(
    ("annotations", "conditions", "times"),
    [
        ({}, [], ()),
        (
            {"queuectl.dev/evictions": "2026-08-22T08:00:00Z, 2026-08-22T06:30:00Z"},
            [],
            ("2026-08-22T06:30:00Z", "2026-08-22T08:00:00Z"),
        ),
        (
            {"queuectl.dev/evictions": "2026-08-22T08:00:00Z,yesterday,,2026-08-22T08:00:00Z"},
            [],
            ("2026-08-22T08:00:00Z",),
        ),
        (
            {},
            [("Evicted", "False", "QuotaReserved"), ("Preempted", "False", "QuotaReserved")],
            ("2026-08-22T08:30:00Z",),
        ),
        ({}, [("Evicted", "True", "Preempted")], ("2026-08-22T08:30:00Z",)),
        ({}, [("Evicted", "True", "PodsReadyTimeout")], ()),
    ],
    ids=["never", "listed", "twice and unreadable", "Kueue's, past", "Kueue's, now", "for itself"],
)
def test_when_a_gang_was_preempted(
    annotations: dict[str, str], conditions: list[tuple[str, str, str]], times: tuple[str, ...]
) -> None:
    body = workload(metadata={"annotations": annotations}, status=on_hosts(r1_a=1, r1_b=1))
    body["status"]["conditions"] += [
        {
            "type": kind,
            "status": status,
            "reason": why,
            "lastTransitionTime": "2026-08-22T08:30:00Z",
        }
        for kind, status, why in conditions
    ]
    (gang,) = load(body).snapshot.admitted
    assert gang.evictions == tuple(parse_time(at) for at in times)


def test_pods_that_fill_slots_count_once_and_one_more_is_another_pod() -> None:
    owner = {
        "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "job-1"}]
    }
    given_ = load(
        workload(metadata=owner, status=on_hosts(r1_a=2)),
        pod("a", "r1-a", owner="job-1"),
        pod("b", "r1-a", owner="job-1"),
        pod("c", "r1-a", owner="job-1", gpus=1),
        pod("d", "r2-b", owner="job-1", gpus=2),
    )
    assert placed(given_) == (PodSetPlacement("main", (("r1-a", 2),), FLAVOR),)
    assert given_.snapshot.other_pods == {"r1-a": one_gpu_less(1), "r2-b": one_gpu_less(2)}


@pytest.mark.parametrize(
    "claim",
    [
        {"owner": "job-1"},
        {"metadata": {"labels": {"queuectl.dev/workload": "job-1"}}},
    ],
)
def test_a_pod_of_another_namespace_fills_no_slot_whatever_its_labels(
    claim: dict[str, Any],
) -> None:
    forged = pod("0", "r1-a", **claim)  # before the gang's own
    forged["metadata"]["namespace"] = "team-b"
    given_ = load(
        job(uid="job-1", suspend=False), forged, pod("a", "r1-b", owner="job-1"), pod("b", "r1-b", owner="job-1"),
    )  # fmt: skip
    assert placed(given_)[0].nodes == (("r1-b", 2),)
    assert given_.snapshot.other_pods == {"r1-a": one_gpu_less(8)}


def test_a_job_and_its_workload_are_one_gang_under_the_jobs_name() -> None:
    owner = {"ownerReferences": [{"kind": "Job", "name": "j", "uid": "job-1", "controller": True}]}
    given_ = load(
        job(uid="job-1", suspend=False),
        workload("job-j-1a2b3", metadata=owner, status=on_hosts(r1_a=2)),
        pod("a", "r1-a", owner="job-1"),
    )
    (gang,) = given_.snapshot.admitted
    assert (gang.workload.kind, gang.workload.ref) == ("Job", "team-a/j")
    assert gang.started_at == 1787389200.0
    assert given_.snapshot.other_pods == {}


def test_a_workload_that_was_admitted_after_the_time_of_the_plan_starts_at_this_time() -> None:
    given_ = load(workload("w", status=on_hosts(r1_a=2)), now=1787380000.0)
    assert [gang.started_at for gang in given_.snapshot.admitted] == [1787380000.0]


def test_a_resumed_job_occupies_the_nodes_of_its_pods_and_is_charged_their_flavor() -> None:
    given_ = load(
        job(uid="job-1", suspend=False),
        pod("a", "r1-b", owner="job-1", metadata={"labels": {"batch.kubernetes.io/job-completion-index": "1"}}),
        pod("b", "r1-a", owner="job-1", metadata={"labels": {"batch.kubernetes.io/job-completion-index": "0"}}),
    )  # fmt: skip
    assert placed(given_) == (PodSetPlacement("main", (("r1-a", 1), ("r1-b", 1)), FLAVOR),)
    assert given_.snapshot.other_pods == {}


def test_a_job_that_was_started_with_fewer_pods_holds_these_and_no_more() -> None:
    body = job(uid="job-1", suspend=False)
    body["metadata"]["annotations"] = {
        "kueue.x-k8s.io/job-min-parallelism": "1",
        "queuectl.dev/original-parallelism": "2",
    }
    body["spec"]["parallelism"] = 1
    given_ = load(body, pod("a", "r1-b", owner="job-1"))
    assert placed(given_) == (PodSetPlacement("main", (("r1-b", 1),), FLAVOR, pods=1),)
    assert given_.warnings == ()
    body["spec"]["suspend"] = True
    (waits,) = load(body).snapshot.pending
    assert [(p.count, p.min_count) for p in waits.workload.podsets] == [(2, 1)]


@pytest.mark.parametrize(("asked", "least"), [(2, 2), (0, 1)])
def test_a_workload_may_start_with_its_least_count(asked: int, least: int) -> None:
    """It does not start without pods."""
    body = workload(count=4)
    body["spec"]["podSets"][0]["minCount"] = asked
    given_ = load(body)
    (pending,) = given_.snapshot.pending
    assert [(p.count, p.min_count) for p in pending.workload.podsets] == [(4, least)]
    assert given_.warnings == ()


def test_pods_without_uids_are_known_by_their_job_name_label() -> None:
    labels = {"batch.kubernetes.io/job-name": "j"}
    given_ = load(
        job(suspend=False),
        pod("a", "r1-a", metadata={"labels": labels}),
        pod("b", "r1-a", metadata={"labels": labels}, status={"phase": "Succeeded"}),
        pod("c", "r1-b", metadata={"labels": labels}),
    )
    assert placed(given_)[0].nodes == (("r1-a", 1), ("r1-b", 1))


def test_kueues_annotation_names_the_workload_of_a_pod() -> None:
    mark = {
        "annotations": {"kueue.x-k8s.io/workload": "w"},
        "labels": {"kueue.x-k8s.io/podset": "main"},
    }
    given_ = load(workload(status=on_hosts(r1_a=2)), pod("a", "r1-a", metadata=mark))
    assert given_.snapshot.other_pods == {}


def test_a_pod_that_queuectl_pinned_counts_before_it_is_bound_and_no_other_one_does() -> None:
    pin = {"nodeSelector": {HOST: "r1-a"}}
    gate = {"schedulingGates": [{"name": "queuectl.dev/placement"}]}
    started = {"labels": {"queuectl.dev/attempt": "1"}}
    given_ = load(
        pod("a", None, spec=pin, gpus=1, metadata=started),
        pod("b", None, spec=pin | gate, metadata=started),
        pod("c", None, metadata=started),
        pod("of a user", None, spec=pin),
    )
    assert given_.snapshot.other_pods == {"r1-a": one_gpu_less(1)}


def test_pods_of_waiting_gangs_and_of_no_job_are_other_pods() -> None:
    given_ = load(
        job(uid="job-1"), pod("a", "r1-a", owner="job-1", gpus=3), pod("b", "r1-a", gpus=1)
    )
    assert given_.snapshot.other_pods == {
        "r1-a": Resources({"nvidia.com/gpu": 4, "pods": 2}),
    }


def test_a_flavor_without_topology_is_quota_only() -> None:
    plain = CLUSTER.replace("spec: {topologyName: racks}", "spec: {}")
    given_ = load(workload(status=admission()), cluster=plain)
    assert placed(given_) == (PodSetPlacement("main", (), FLAVOR),)
    assert given_.warnings == ()


def test_without_nodes_everything_is_quota_only() -> None:
    queues = CLUSTER.split("---", 1)[1]
    given_ = load(workload(status=on_hosts(r1_a=2)), cluster=queues)
    assert placed(given_) == (PodSetPlacement("main", (), FLAVOR),)
    assert given_.snapshot.admitted[0].lost == ()


def test_a_gang_whose_nodes_are_unknown_still_uses_its_quota() -> None:
    given_ = load(workload(status=admission()))
    assert placed(given_)[0].count == 2
    assert given_.warnings == (
        "f.yaml: document 7 (Workload/w): podset main: 2 pods without a node in the input",
    )


def test_slots_on_nodes_that_are_deleted_or_not_ready_are_lost() -> None:
    down = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "down"},
        "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]},
    }
    given_ = load(workload(status=on_hosts(gone=1, down=1)), down)
    (gang,) = given_.snapshot.admitted
    assert gang.lost == (("main", "gone", 1), ("main", "down", 1))


def test_an_evicted_workload_holds_what_its_pods_still_hold() -> None:
    owner = {"ownerReferences": [{"kind": "Job", "name": "j", "uid": "job-1"}]}
    status = on_hosts(r1_a=1, r1_b=1)
    status["conditions"].append({"type": "Evicted", "status": "True"})
    given_ = load(workload(metadata=owner, status=status), pod("a", "r1-b", owner="job-1"))
    (gang,) = given_.snapshot.admitted
    assert gang.leaving
    assert gang.placement.podsets[0].nodes == (("r1-b", 1),)


@pytest.mark.parametrize(
    ("reason", "active", "returns"),
    [("Preempted", True, True), ("PodsReadyTimeout", True, False), ("Deactivated", False, False)],
)
def test_a_gang_that_queues_again_at_once_keeps_its_place(
    reason: str, active: bool, returns: bool
) -> None:
    status = on_hosts(r1_a=1, r1_b=1)
    status["conditions"].append({"type": "Evicted", "status": "True", "reason": reason})
    (gang,) = load(workload(spec={"active": active}, status=status)).snapshot.admitted
    assert (gang.leaving, gang.returns) == (True, returns)


def test_an_evicted_gang_whose_job_is_not_suspended_yet_holds_the_slots_of_its_pods() -> None:
    owner = {"ownerReferences": [{"kind": "Job", "name": "j", "uid": "job-1"}]}
    status = on_hosts(r1_a=1, r1_b=1)
    status["conditions"].append({"type": "Evicted", "status": "True"})
    documents = (workload(metadata=owner, status=status), pod("a", "r1-b", owner="job-1"))
    for suspended in (False, True):
        (gang,) = load(job(uid="job-1", suspend=suspended), *documents).snapshot.admitted
        assert gang.placement.podsets[0].nodes == (("r1-b", 1),)


def test_finished_gangs_are_not_gangs() -> None:
    done = job("done", suspend=False)
    done["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    over = workload(status={"conditions": [{"type": "Finished", "status": "True"}]})
    snapshot = load(
        done, over, pod("a", "r1-a", metadata={"annotations": {"kueue.x-k8s.io/workload": "w"}})
    ).snapshot
    assert (snapshot.pending, snapshot.admitted) == ((), ())
    assert set(snapshot.other_pods) == {"r1-a"}


def test_work_lost_in_the_last_eviction_is_read_from_its_annotation() -> None:
    meta = {
        "annotations": {
            "queuectl.dev/gpu-utilization": "0.5",
            "queuectl.dev/last-checkpoint-time": "2026-08-22T11:00:00Z",
            "queuectl.dev/preemptible": "false",
        }
    }
    (gang,) = load(workload(metadata=meta, status=on_hosts(r1_a=2))).snapshot.admitted
    assert (gang.utilization, gang.checkpoint_at) == (0.5, 1787396400.0)
    assert not gang.workload.preemptible


# ---- the input as a whole


def test_now_is_the_newest_time_of_the_input_unless_it_is_given() -> None:
    body = workload(
        status=on_hosts(r1_a=2),
        metadata={
            "creationTimestamp": "2026-08-22T08:00:00Z",
            "deletionTimestamp": "2030-01-01T00:00:00Z",
            "annotations": {"example.com/culledTime": "2099-01-01T00:00:00Z"},
        },
    )
    assert load(body).snapshot.now == 1787389200.0
    assert load(body, now=5.0).snapshot.now == 5.0
    assert load().snapshot.now == 0.0  # fmt: skip


def test_unknown_kinds_are_listed_and_have_no_effect() -> None:
    web = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}}
    (ignored,) = load(web).account.ignored
    assert ignored.object == "apps/v1 f.yaml: document 7 (Deployment/web)"


def test_a_node_without_a_pod_limit_gets_kubelets_default() -> None:
    bare = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n"},
        "status": {"allocatable": {"nvidia.com/gpu": 8}},
    }
    given_ = load(bare, cluster="")
    (node,) = given_.snapshot.fleet.nodes
    assert node.allocatable["pods"] == 110
    assert node.labels[HOST] == "n"
    assert given_.warnings == ("f.yaml: document 1 (Node/n): status.allocatable.pods: missing, 110 assumed",)  # fmt: skip


def generated(prefix: str = "train-") -> dict[str, Any]:
    """A Job as ``kubectl create`` takes it: the API server is to name it."""
    body = job(suspend=True)
    del body["metadata"]["name"]
    return {**body, "metadata": {**body["metadata"], "generateName": prefix}}


def test_jobs_without_a_name_are_numbered_under_the_one_to_be_generated() -> None:
    taken = job("train-2", suspend=True)
    given_ = load(generated(), taken, generated(), generated("other-"))
    names = {pending.workload.name for pending in given_.snapshot.pending}
    assert names == {"train-1", "train-2", "train-3", "other-1"}


def test_what_planning_has_no_use_for_needs_no_name() -> None:
    kind = {"apiVersion": "kind.x-k8s.io/v1alpha4", "kind": "Cluster", "nodes": []}
    assert [each.object for each in load(kind, kind, cluster="").account.ignored] == [
        "kind.x-k8s.io/v1alpha4 f.yaml: document 1 (Cluster/)",
        "kind.x-k8s.io/v1alpha4 f.yaml: document 2 (Cluster/)",
    ]


UNHONORED: dict[str, dict[str, Any]] = {
    "spec.preemptionGates": {"spec": {"preemptionGates": [{"name": "elsewhere"}]}},
    "metadata.annotations.kueue.x-k8s.io/workload-slice-replacement-for": {
        "metadata": {
            "annotations": {"kueue.x-k8s.io/workload-slice-replacement-for": "team-a/smaller"}
        }
    },
    "metadata.annotations.kueue.x-k8s.io/priority-boost": {
        "metadata": {"annotations": {"kueue.x-k8s.io/priority-boost": "10"}}
    },
}


@pytest.mark.parametrize("field", UNHONORED)
def test_what_a_workload_asks_in_vain_is_named(field: str) -> None:
    assert load(workload(**UNHONORED[field])).warnings == (
        f"f.yaml: document 7 (Workload/w): {field}: not supported",
    )


def test_a_gang_that_only_quota_limits_in_an_input_without_nodes_gives_a_warning() -> None:
    _, _, queues = CLUSTER.partition("---\n")  # the Nodes come first
    text = (
        "no Node in the input: quota alone decides, also of ResourceFlavors with a Topology (h100)"
    )
    assert load(workload(), cluster=queues).warnings == (text,)
    assert load(cluster=queues).warnings == ()  # no gang is pending


def test_many_nodes_without_a_pod_limit_are_one_warning() -> None:
    bare = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name},
            "status": {"allocatable": {"nvidia.com/gpu": 8}},
        }
        for name in "abc"
    ]
    (warning,) = load(*bare, cluster="").warnings
    assert warning == (
        "f.yaml: document 1 (Node/a) and 2 other Nodes: status.allocatable.pods: missing, 110 assumed"
    )


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "quantity of a node": (
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "many"}}},
        "f.yaml: document 7 (Node/n): status.allocatable: cpu: 'many' is not a quantity",
    ),
    "quantity of a pod": (
        pod("p", "r1-a", spec={"containers": [{"resources": {"requests": {"cpu": "x"}}}]}),
        "f.yaml: document 7 (Pod/p): spec: containers[0].resources.requests: cpu: 'x' is not a quantity",
    ),
    "quantity of a job": (
        {**job(), "spec": {"suspend": True, "template": {"spec": {"containers": [{"resources": {"requests": {"cpu": "x"}}}]}}}},
        "f.yaml: document 7 (Job/j): spec.template.spec.containers[0].resources.requests: cpu: 'x' is not a quantity",
    ),
    "type of a field": (
        {**job(), "spec": {"parallelism": "two"}},
        "f.yaml: document 7 (Job/j): spec.parallelism: expected `int | null`, got `str`",
    ),
    "policy of a PriorityClass": (
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "p"}, "preemptionPolicy": "never"},
        "f.yaml: document 7 (PriorityClass/p): preemptionPolicy: invalid enum value 'never'; the values are Never, PreemptLowerPriority",
    ),
    "field of a workload": (workload(spec={"queue": "x"}), "f.yaml: document 7 (Workload/w): spec.queue: unknown field"),
    "unknown field of a podset": (
        workload(spec={"podSets": [{"size": 1}]}), "f.yaml: document 7 (Workload/w): spec.podSets[0].size: unknown field",
    ),
    "workload without podsets": (workload(spec={"podSets": []}), "f.yaml: document 7 (Workload/w): spec.podSets: is required"),
    "version of a workload": (
        {**workload(), "apiVersion": "kueue.x-k8s.io/v9"},
        "f.yaml: document 7 (Workload/w): apiVersion: 'kueue.x-k8s.io/v9' is not one of",
    ),
    "podset that does not exist": (
        workload(spec={"podSets": [{"name": "other", "template": template()}]}, status=on_hosts(r1_a=1)),
        "f.yaml: document 7 (Workload/w): status.admission.podSetAssignments: 'main' is not one of spec.podSets",
    ),
    "field of a queue": (
        {"apiVersion": "queuectl.dev/v1", "kind": "ClusterQueue", "metadata": {"name": "q"}, "spec": {"x": 1}},
        "f.yaml: document 7 (ClusterQueue/q): spec.x: unknown field",
    ),
    "no name": (
        {"apiVersion": "v1", "kind": "Pod", "metadata": {}},
        "f.yaml: document 7 (Pod/): metadata.name: is required",
    ),
    "given twice": (
        {"apiVersion": "queuectl.dev/v1", "kind": "Topology", "metadata": {"name": "racks"}, "spec": {"levels": [{"nodeLabel": "a"}]}},
        "f.yaml: document 7 (Topology/racks): is given twice, first as f.yaml: document 2 (Topology/racks)",
    ),
    "given for queuectl and for Kueue": (
        {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Topology", "metadata": {"name": "racks"}, "spec": {"levels": [{"nodeLabel": "a"}]}},
        "f.yaml: document 7 (Topology/racks): is given twice, first as f.yaml: document 2 (Topology/racks)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_naming_file_document_and_field(name: str) -> None:
    body, sentence = BAD[name]
    with pytest.raises(DocumentError) as caught:
        load(body)
    assert str(caught.value).startswith(sentence)


def test_two_objects_with_one_uid_are_refused() -> None:
    with pytest.raises(
        DocumentError, match=r"metadata\.uid: 'u' is also that of f\.yaml: document 7"
    ):
        load(job("a", uid="u"), job("b", uid="u"))


leaves = st.none() | st.booleans() | st.integers(-3, 10**12) | st.text(max_size=4) | st.sampled_from(
    ["8", "1Gi", "True", "2026-08-22T10:00:00Z", "main", "u", "r1-a", HOST, "Always", "In"]
)  # fmt: skip
fields = st.sampled_from(
    ["name", "uid", "labels", "annotations", "ownerReferences", "containers", "initContainers", "resources", "requests",
     "limits", "cpu", "template", "spec", "metadata", "podSets", "count", "queueName", "admission", "podSetAssignments",
     "topologyAssignment", "levels", "slices", "domainCount", "valuesPerLevel", "roots", "domains", "values", "conditions",
     "type", "status", "parallelism", "completions", "suspend", "pytorchReplicaSpecs", "Master", "Worker", "replicas",
     "runPolicy", "allocatable", "taints", "effect", "nodeName", "nodeSelector", "affinity", "tolerations",
     "kubernetes.io/hostname", "queuectl.dev/queue-name", "queuectl.dev/attempt"]
)  # fmt: skip
trees = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(fields, inner, max_size=5),
    max_leaves=20,
)
kinds = st.sampled_from(
    [("v1", "Node"), ("v1", "Pod"), ("batch/v1", "Job"), ("kubeflow.org/v1", "PyTorchJob"),
     ("kueue.x-k8s.io/v1beta2", "Workload"), ("queuectl.dev/v1", "Workload"), ("v1", "Namespace"),
     ("scheduling.k8s.io/v1", "PriorityClass"), ("queuectl.dev/v1", "Configuration"), ("x/v1", "Y")]
)  # fmt: skip


@given(st.lists(st.tuples(kinds, trees, trees, trees), max_size=3))
def test_any_objects_make_a_snapshot_or_are_refused(parts: list[Any]) -> None:
    bodies = [
        {"apiVersion": version, "kind": kind, "metadata": {"name": f"n{i}", **(meta if isinstance(meta, dict) else {})},
         "spec": spec, "status": status}
        for i, ((version, kind), meta, spec, status) in enumerate(parts)
    ]  # fmt: skip
    try:
        snapshot = load(*bodies).snapshot
    except BadInput as error:
        assert str(error).startswith("f.yaml: ")  # noqa: PT017 - refusing is one of two right answers
    else:
        assert {p.workload.uid for p in snapshot.pending}.isdisjoint(
            a.workload.uid for a in snapshot.admitted
        )


@pytest.mark.parametrize(("outcome", "code"), [("Complete", None), ("Failed", Code.DEPENDENCY_NEVER_SATISFIED)])  # fmt: skip
def test_a_finished_job_of_the_input_counts_for_those_that_depend_on_it(
    outcome: str, code: Code | None
) -> None:
    late = job("late")
    late["metadata"]["annotations"] = {"queuectl.dev/after": "job/prep"}
    prep = job("prep") | {"status": {"conditions": [{"type": outcome, "status": "True"}]}}
    (pending,) = load(prep, late).snapshot.pending
    assert (pending.blocked.code if pending.blocked else None) == code


def _array(name: str, after: str | None, **status: Any) -> dict[str, Any]:
    body = job(name)
    keys = {"queuectl.dev/array": "true"} | ({"queuectl.dev/after": after} if after else {})
    body["metadata"]["annotations"] = keys
    body["spec"] |= {"completionMode": "Indexed", "parallelism": 2, "completions": 2}
    body["spec"]["podFailurePolicy"] = {
        "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]
    }
    return body | {"status": status}


COMPLETE = {"conditions": [{"type": "Complete", "status": "True"}], "completedIndexes": "0,1"}
AFTER_ARRAYS: list[tuple[str, list[dict[str, Any]], Code | None]] = [
    ("an array that has ended", [_array("prep", None, **COMPLETE), _array("late", "Job/prep")], None),
    ("one that runs", [_array("prep", None, completedIndexes="0"), _array("late", "Job/prep")], Code.DEPENDENCY),
    ("one that is not there", [_array("late", "Job/prep")], Code.DEPENDENCY),
    ("itself, in a cluster", [_array("late", "Job/late", active=0)], Code.DEPENDENCY_NEVER_SATISFIED),
    ("one that no longer exists", [_array("late", "Job/prep", completedIndexes="0")], None),
]  # fmt: skip


@pytest.mark.parametrize(("what", "bodies", "code"), AFTER_ARRAYS)
def test_an_array_of_the_input_depends_on_others_by_its_own_name(
    what: str, bodies: list[dict[str, Any]], code: Code | None
) -> None:
    pending = [p for p in load(*bodies).snapshot.pending if p.workload.name.startswith("late_")]
    assert pending, what
    assert {p.blocked.code if p.blocked else None for p in pending} == {code}, what


def _after(name: str, other: str) -> dict[str, Any]:
    body = job(name)
    body["metadata"]["annotations"] = {"queuectl.dev/after": other}
    return body


CYCLES: list[tuple[list[dict[str, Any]], str]] = [
    ([_after("a", "Job/a")], " waits for ".join(2 * ["Job/a"])),
    ([_array("a", "Job/a")], " waits for ".join(2 * ["Job/a"])),
    ([_after("a", "Job/b"), _after("b", "job/c:any"), _after("c", "Job/a")],
     "Job/a waits for Job/b, which waits for job/c, which waits for Job/a"),
    ([_after("b", "Job/a"), job("x"), _after("a", "Job/x, Job/b")], "Job/b waits for Job/a, which waits for Job/b"),
]  # fmt: skip


@pytest.mark.parametrize(("bodies", "cycle"), CYCLES)
def test_new_jobs_of_a_cycle_are_refused_with_its_members_in_their_order(
    bodies: list[dict[str, Any]], cycle: str
) -> None:
    expected = f"metadata.annotations: queuectl.dev/after: is a cycle: {cycle}"
    with pytest.raises(BadInput, match=re.escape(expected)):
        load(*bodies)


def test_jobs_of_a_cycle_in_a_cluster_are_pending_with_this_reason() -> None:
    bodies = [_after("a", "Job/b"), _after("b", "Job/a")]
    for body in bodies:
        body["metadata"]["uid"] = body["metadata"]["name"]
    found = {p.workload.name: p.blocked for p in load(*bodies).snapshot.pending}
    assert found["a"] is not None
    assert "Job/a waits for Job/b, which waits for Job/a" in found["a"].message


@pytest.mark.parametrize(("phase", "code"), [
    ("Succeeded", None), ("Running", Code.DEPENDENCY), ("Failed", Code.DEPENDENCY),
])  # fmt: skip
def test_a_group_of_the_input_counts_for_those_that_depend_on_it(
    phase: str, code: Code | None
) -> None:
    """A failed pod of a group can be replaced, so the group has not ended."""
    late = job("late")
    late["metadata"]["annotations"] = {"queuectl.dev/after": "podgroup/prep"}
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"prep-{number}",
                "namespace": "team-a",
                "uid": f"prep-{number}",
                "labels": {"queuectl.dev/queue-name": "main", "queuectl.dev/pod-group-name": "prep"},
                "annotations": {"queuectl.dev/pod-group-total-count": "2", "queuectl.dev/submitted-by": "ana"},
            },
            "spec": template()["spec"] | {"nodeName": "r1-a"},
            "status": {"phase": phase},
        }
        for number in range(2)
    ]  # fmt: skip
    pending = [p for p in load(late, *pods).snapshot.pending if p.workload.name == "late"]
    assert [p.blocked.code if p.blocked else None for p in pending] == [code]


# ---- objects between a job and its pods


def test_the_jobs_of_a_jobset_are_not_gangs_and_their_pods_hold_its_slots() -> None:
    meta: dict[str, Any] = {"name": "llama", "namespace": "team-a", "uid": "set"}
    labels = {"queuectl.dev/queue-name": "main"}
    marks = {
        "queuectl.dev/workload": "set",
        "queuectl.dev/workload-kind": "JobSet",
        "queuectl.dev/podset": "main",
        "queuectl.dev/attempt": "1",
    }
    job = {"spec": {"parallelism": 2, "completions": 2, "template": template()}}
    jobset = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {**meta, "labels": labels},
        "spec": {"suspend": False, "replicatedJobs": [{"name": "main", "template": job}]},
        "status": {"conditions": []},
    }
    of_set = {"kind": "JobSet", "name": "llama", "uid": "set", "controller": True}
    child = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": "llama-main-0",
            "namespace": "team-a",
            "uid": "child",
            "labels": labels,
            "ownerReferences": [of_set],
        },
        **job,
    }
    of_child = {"kind": "Job", "name": "llama-main-0", "uid": "child", "controller": True}
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"llama-main-0-{n}",
                "namespace": "team-a",
                "uid": f"pod-{n}",
                "labels": marks,
                "ownerReferences": [of_child],
            },
            "spec": {**template()["spec"], "nodeName": "b0-r0-h0"},
            "status": {"phase": "Running"},
        }
        for n in range(2)
    ]
    for pod, node in zip(pods, ("r1-a", "r1-b"), strict=True):
        pod["spec"]["nodeName"] = node  # type: ignore[index]
    snapshot = load(jobset, child, *pods).snapshot
    [running] = snapshot.admitted
    assert (running.workload.name, running.workload.kind) == ("llama", "JobSet")
    assert [p.by_node for p in running.placement.podsets] == [{"r1-a": 1, "r1-b": 1}]
    assert not snapshot.other_pods


def test_the_launcher_of_an_mpijob_is_not_a_gang_and_the_pods_hold_the_slots_of_their_podsets() -> (
    None
):
    def pod(name: str, podset: str, owner: dict[str, Any], node: str) -> dict[str, Any]:
        labels = {
            "queuectl.dev/workload": "mpi",
            "queuectl.dev/workload-kind": "MPIJob",
            "queuectl.dev/podset": podset,
            "queuectl.dev/attempt": "1",
        }
        own = {"name": name, "namespace": "team-a", "uid": name, "labels": labels}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": own | {"ownerReferences": [owner]},
            "spec": {**template()["spec"], "nodeName": node},
            "status": {"phase": "Running"},
        }

    of_job = {"kind": "MPIJob", "name": "mpi", "uid": "mpi", "controller": True}
    of_child = {"kind": "Job", "name": "mpi-launcher", "uid": "child", "controller": True}
    meta: dict[str, Any] = {"namespace": "team-a", "labels": {"queuectl.dev/queue-name": "main"}}
    replicas = {
        "Launcher": {"replicas": 1, "template": template()},
        "Worker": {"replicas": 1, "template": template()},
    }
    mpijob = {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": "mpi", "uid": "mpi", **meta},
        "spec": {"runPolicy": {"suspend": False}, "mpiReplicaSpecs": replicas},
    }
    launcher = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "mpi-launcher", "uid": "child", "ownerReferences": [of_job], **meta},
        "spec": {"template": template()},
    }
    pods = [
        pod("launcher", "launcher", of_child, "r1-a"),
        pod("worker", "worker", of_job, "r1-b"),
    ]
    snapshot = load(mpijob, launcher, *pods).snapshot
    [running] = snapshot.admitted
    assert (running.workload.name, running.workload.kind) == ("mpi", "MPIJob")
    placed = {p.podset: p.by_node for p in running.placement.podsets}
    assert placed == {"launcher": {"r1-a": 1}, "worker": {"r1-b": 1}}
    assert not snapshot.other_pods
    assert not snapshot.pending
