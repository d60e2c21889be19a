"""``queuectl plan -f`` plans what the controller would plan of the same objects: from files to output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from queuectl.cli.plan import plan_command
from queuectl.domain.quantity import GPU

Body = dict[str, Any]
ROOT = Path(__file__).parent.parent.parent
CREATED = "2026-11-20T08:00:00Z"
app = typer.Typer()
app.command()(plan_command)


def planned(*documents: Body, options: Sequence[str] = ()) -> Body:
    given = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(documents)})
    result = CliRunner().invoke(
        app, ["-f", "-", "-o", "json", "--explain", "0", *options], input=given
    )
    assert result.exit_code == 0, result.output
    document: Body = json.loads(result.stdout)
    return document


def names(listed: list[Body]) -> list[str]:
    return [gang["workload"].partition("/")[2] for gang in listed]


CLUSTER_WIDE = ("Topology", "ResourceFlavor", "ClusterQueue", "AdmissionCheck")


def object_(version: str, kind: str, name: str, spec: Body, **more: Any) -> Body:
    place = {} if kind in CLUSTER_WIDE else {"namespace": "team-a"}
    metadata = {"name": name, **place, **more.pop("metadata", {})}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec, **more}


def containers(gpus: int) -> list[Body]:
    return [{"name": "c", "image": "c", "resources": {"limits": {GPU: str(gpus)}}}]


def template(gpus: int, **spec: Any) -> Body:
    return {"spec": {"restartPolicy": "Never", "containers": containers(gpus), **spec}}


def job(name: str, pods: int, gpus: int, *, runs: bool = False, **more: Any) -> Body:
    labels = {"queuectl.dev/queue-name": more.pop("queue", "main")}
    meta = {"labels": labels, "annotations": more.pop("annotations", {})}
    if runs:
        meta |= {"uid": name, "creationTimestamp": CREATED}
    status = {"status": more.pop("status")} if "status" in more else {}
    shape = template(gpus, **more.pop("pod_spec", {}))
    spec = {"suspend": not runs, "parallelism": pods, "completions": pods, "template": shape}
    spec |= {"completionMode": "Indexed", **more}
    return object_("batch/v1", "Job", name, spec, metadata=meta, **status)


def pod_of(
    owner: Body, index: int, node: str, gpus: int, phase: str = "Running", **labels: str
) -> Body:
    name, kind = owner["metadata"]["name"], owner["kind"]
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": kind,
        "name": name,
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }
    labels = {"batch.kubernetes.io/job-completion-index": str(index), **labels}
    return object_(
        "v1",
        "Pod",
        f"{name}-{index}",
        {"nodeName": node, "containers": containers(gpus)},
        metadata={
            "uid": f"{name}-{index}",
            "labels": labels,
            "ownerReferences": [reference],
            "creationTimestamp": CREATED,
        },
        status={"phase": phase},
    )


def node(name: str, **status: Any) -> Body:
    amounts = {GPU: "8", "cpu": "96", "memory": "1Ti", "pods": "110"}
    labels = {"kubernetes.io/hostname": name, "rack": "r"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": amounts, **status},
    }


def queues(quota: int, **spec: Any) -> list[Body]:
    covered = {"name": "f", "resources": [{"name": GPU, "nominalQuota": quota}]}
    groups = [{"coveredResources": [GPU], "flavors": [covered]}]
    levels = {"levels": [{"nodeLabel": "rack"}, {"nodeLabel": "kubernetes.io/hostname"}]}
    ours = "queuectl.dev/v1"
    return [
        object_(ours, "Topology", "t", levels),
        object_(ours, "ResourceFlavor", "f", {"topologyName": "t"}),
        object_(
            ours, "ClusterQueue", "cq", {"namespaceSelector": {}, "resourceGroups": groups, **spec}
        ),
        object_(ours, "LocalQueue", "main", {"clusterQueue": "cq"}),
    ]


# ---- migrations


def fragmented() -> list[Body]:
    """Two gangs with half of a node each, of which one is migrated for a gang that needs a whole node."""
    return list(yaml.safe_load_all((ROOT / "docs/examples/fragmented.yaml").read_text()))


def migrated(*documents: Body) -> list[str]:
    """The gangs that are migrated for the gang that waits."""
    found = planned(*documents, options=["--defrag"])
    assert names(found["pending"]) == ["pretrain"]
    return names(found["moves"])


def named(documents: list[Body], kind: str, name: str) -> Body:
    return next(d for d in documents if (d["kind"], d["metadata"]["name"]) == (kind, name))


def test_a_gang_that_can_start_again_is_migrated() -> None:
    assert migrated(*fragmented()) == ["tune-2"]


def test_gangs_whose_starts_need_admission_checks_are_not_migrated() -> None:
    documents = fragmented()
    queue = named(documents, "ClusterQueue", "research")
    # The gang that waits is in a queue without checks.
    documents.append({**queue, "metadata": {"name": "open"}, "spec": dict(queue["spec"])})
    documents.append(object_("queuectl.dev/v1", "LocalQueue", "open", {"clusterQueue": "open"}))
    queue["spec"] = {**queue["spec"], "admissionChecks": ["ext"]}
    check = object_(
        "queuectl.dev/v1", "AdmissionCheck", "ext", {"controllerName": "queuectl.dev/external"}
    )
    waits = named(documents, "Job", "pretrain")
    waits["metadata"]["labels"]["queuectl.dev/queue-name"] = "open"
    assert migrated(*documents, check) == []


def test_an_elastic_gang_is_not_migrated() -> None:
    documents = fragmented()
    for name in ("tune-1", "tune-2"):
        documents.remove(named(documents, "Workload", name))
    options = {
        "annotations": {
            "queuectl.dev/elastic-job": "true",
            "queuectl.dev/job-min-parallelism": "1",
            "queuectl.dev/last-checkpoint-time": "2026-11-20T09:28:00Z",
        },
        "podFailurePolicy": {
            "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]
        },
        "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
        "queue": "research",
    }
    for name, place in (("a", "gpu-1"), ("b", "gpu-2")):
        grows = job(name, 1, 4, runs=True, **options)
        documents += [grows, pod_of(grows, 0, place, 4)]
    assert migrated(*documents) == []


# ---- pods that have ended


def of_job(status: Body, ended: str, **spec: Any) -> list[Body]:
    """A Job with two indexes, of which the first has ended."""
    runs = job(
        "runs", 2, 8, runs=True, status={"active": 1, "startTime": CREATED, **status}, **spec
    )
    return [runs, pod_of(runs, 0, "n1", 8, ended), pod_of(runs, 1, "n2", 8)]


def of_jobset(**more: Any) -> list[Body]:
    """A JobSet with two Jobs, of which the first is complete. ``more``: fields of its spec."""
    jobs = [
        {
            "name": name,
            "replicas": 1,
            "template": {"spec": {"parallelism": 1, "completions": 1, "template": template(8)}},
        }
        for name in ("first", "second")
    ]
    runs = object_(
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        "runs",
        {"suspend": False, "replicatedJobs": jobs, **more},
        metadata={
            "uid": "runs",
            "creationTimestamp": CREATED,
            "labels": {"queuectl.dev/queue-name": "main"},
        },
    )
    known = {"queuectl.dev/kind": "JobSet", "queuectl.dev/workload": "runs"}
    return [
        runs,
        pod_of(runs, 0, "n1", 8, "Succeeded", **known, **{"queuectl.dev/podset": "first"}),
        pod_of(runs, 1, "n2", 8, **known, **{"queuectl.dev/podset": "second"}),
    ]


def of_foreign_jobset(*, jobs: bool) -> list[Body]:
    """The same in a cluster without queuectl: pods name their Job. ``jobs``: the Jobs are in the input."""
    runs, *_ = of_jobset()
    found = [runs]
    for name, place, phase in (("first", "n1", "Succeeded"), ("second", "n2", "Running")):
        made = job(f"runs-{name}-0", 1, 8, runs=True)
        pod = pod_of(made, 0, place, 8, phase)
        owner = {"apiVersion": runs["apiVersion"], "kind": "JobSet", "name": "runs", "uid": "runs"}
        del made["metadata"]["labels"]
        made["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
        pod["metadata"]["labels"] |= {
            "jobset.sigs.k8s.io/jobset-name": "runs",
            "jobset.sigs.k8s.io/replicatedjob-name": name,
        }
        found += [made, pod] if jobs else [pod]
    return found


def of_job_of_jobset(*, runs: bool = True, **more: Any) -> list[Body]:
    """A JobSet with one Job of two pods, of which the first has succeeded, and was deleted. ``more``: fields of its spec."""
    [jobset, *_] = of_jobset(suspend=not runs, **more)
    [first, _] = jobset["spec"]["replicatedJobs"]
    first["template"]["spec"] |= {"parallelism": 2, "completions": 2}
    jobset["spec"]["replicatedJobs"] = [first]
    made = job("runs-first-0", 2, 8, runs=True, status={"succeeded": 1, "completedIndexes": "0"})
    made["spec"]["suspend"] = not runs
    labels = {
        "jobset.sigs.k8s.io/jobset-name": "runs",
        "jobset.sigs.k8s.io/replicatedjob-name": "first",
    }
    owner = {"apiVersion": jobset["apiVersion"], "kind": "JobSet", "name": "runs", "uid": "runs"}
    made["metadata"] |= {"labels": labels, "ownerReferences": [{**owner, "controller": True}]}
    return [jobset, made, *([pod_of(made, 1, "n2", 8, **labels)] if runs else [])]


def of_group(first: str = "Succeeded", gpus: int = 8) -> list[Body]:
    """A group of two pods. ``first``: the phase of its first pod."""
    pods = []
    for number, (place, phase) in enumerate((("n1", first), ("n2", "Running"))):
        pods.append(
            object_(
                "v1",
                "Pod",
                f"runs-{number}",
                {"nodeName": place, "containers": containers(gpus)},
                metadata={
                    "uid": f"runs-{number}",
                    "creationTimestamp": CREATED,
                    "labels": {
                        "queuectl.dev/queue-name": "main",
                        "queuectl.dev/pod-group-name": "runs",
                    },
                    "annotations": {
                        "queuectl.dev/pod-group-total-count": "2",
                        "queuectl.dev/submitted-by": "alice",
                    },
                },
                status={"phase": phase},
            )
        )
    return pods


@pytest.mark.parametrize(
    "running",
    [
        pytest.param(of_job({"succeeded": 1, "completedIndexes": "0"}, "Succeeded"), id="index"),
        pytest.param(
            of_job({"failed": 1, "failedIndexes": "0"}, "Failed", backoffLimitPerIndex=0),
            id="failed index",
        ),
        pytest.param(of_jobset(), id="Job of a JobSet"),
        pytest.param(of_foreign_jobset(jobs=True), id="Job of a foreign JobSet"),
        pytest.param(of_foreign_jobset(jobs=False), id="pod of a foreign JobSet"),
        pytest.param(of_job_of_jobset(), id="index of a Job of a JobSet"),
        pytest.param(of_group(), id="pod of a group"),
    ],
)
def test_pods_that_have_ended_for_good_free_quota_and_nodes(running: list[Body]) -> None:
    cluster = [node("n1"), node("n2"), *queues(16)]
    found = planned(*cluster, *running, job("next", 1, 8))
    assert [(g["workload"], g["podSets"][0]["nodes"]) for g in found["admitted"]] == [
        ("team-a/next", {"n1": 1})
    ]
    assert found["warnings"] == []


def test_a_job_that_waits_to_start_again_requests_no_pods_that_have_ended() -> None:
    [jobset, *_] = of_jobset(suspend=True)
    jobset["status"] = {"replicatedJobsStatus": [{"name": "first", "succeeded": 1}]}
    a_job = job("runs", 2, 8, status={"succeeded": 1, "completedIndexes": "0"})
    for waits in ([a_job], [jobset], of_job_of_jobset(runs=False)):
        found = planned(node("n1"), *queues(8), *waits)
        assert [g["podSets"][0]["nodes"] for g in found["admitted"]] == [{"n1": 1}]


def test_a_pod_that_failed_and_is_created_again_keeps_its_place() -> None:
    running = of_job({"failed": 1}, "Failed")
    found = planned(node("n1"), node("n2"), *queues(16), *running, job("next", 1, 8))
    assert found["admitted"] == []


def test_each_pod_of_a_running_group_counts_once() -> None:
    found = planned(
        node("n1"), node("n2"), *queues(16), *of_group("Running", gpus=4), job("next", 2, 4)
    )
    assert names(found["admitted"]) == ["next"]


# ---- priorities


CLASSES = ("system-node-critical", "system-cluster-critical")


@pytest.mark.parametrize("name", CLASSES)
def test_a_priority_class_of_the_system_gives_no_priority(name: str) -> None:
    runs = job("runs", 1, 8, runs=True)
    cluster = [
        node("n1"),
        *queues(8, preemption={"withinClusterQueue": "LowerPriority"}),
        runs,
        pod_of(runs, 0, "n1", 8),
    ]
    found = planned(*cluster, job("urgent", 1, 8, pod_spec={"priorityClassName": name}))
    assert found["preempted"] == []
    assert names(found["pending"]) == ["urgent"]
    assert found["warnings"] == []


# ---- identity and state


def test_a_job_whose_name_ends_like_an_index_is_a_job() -> None:
    found = planned(node("n1"), *queues(16), job("sweep.001", 1, 8))
    assert names(found["admitted"]) == ["sweep.001"]


def test_a_job_that_is_being_deleted_does_not_start() -> None:
    away = job("away", 1, 8)
    away["metadata"] |= {"uid": "away", "deletionTimestamp": CREATED}
    found = planned(node("n1"), *queues(16), away)
    (pending,) = found["pending"]
    assert (found["admitted"], pending["reasons"][0]["code"]) == ([], "Terminating")


@pytest.mark.parametrize(
    ("since", "repaired"),
    [("2026-01-01T00:00:00Z", []), (None, ["runs"])],
    ids=["a dump", "a draft"],
)
def test_pods_on_a_node_that_is_not_ready_keep_their_slots_until_kubernetes_deletes_them(
    since: str | None, repaired: list[str]
) -> None:
    """A draft states no time: it asks what follows once the node is lost."""
    ready = {"type": "Ready", "status": "False"} | ({"lastTransitionTime": since} if since else {})
    runs = job("runs", 1, 8, runs=True)
    lost = node("n1", conditions=[ready])
    cluster = [lost, node("n2"), *queues(16), runs, pod_of(runs, 0, "n1", 8)]
    assert names(planned(*cluster)["admitted"]) == repaired
