"""Past use in files: it is in a LocalQueue's status, and a label of the job names the user."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from queuectl.domain.snapshot import Snapshot
from queuectl.objects.documents import read_documents
from queuectl.objects.errors import DocumentError
from queuectl.offline.inputs import read_snapshot
from queuectl.planner import plan

KUEUE = "kueue.x-k8s.io/v1beta2"
FLAVOR = {
    "name": "gpu",
    "resources": [
        {"name": "nvidia.com/gpu", "nominalQuota": 8},
        {"name": "cpu", "nominalQuota": 9},
    ],
}


def named(kind: str, name: str, **parts: Any) -> dict[str, Any]:
    return {"apiVersion": KUEUE, "kind": kind, "metadata": {"name": name}, **parts}


def local_queue(name: str, used: dict[str, Any] | None = None, weight: int = 1) -> dict[str, Any]:
    queue = named(
        "LocalQueue", name, spec={"clusterQueue": "pool", "fairSharing": {"weight": weight}}
    )
    queue["metadata"]["namespace"] = "team"
    if used is not None:
        stated = {"consumedResources": used, "lastUpdate": "2026-01-01T00:00:00Z"}
        queue["status"] = {
            "pendingWorkloads": 1,
            "fairSharing": {"admissionFairSharingStatus": stated},
        }
    return queue


def job(name: str, queue: str, at: int, **labels: str) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": 8}
    metadata = {
        "name": name,
        "namespace": "team",
        "uid": name,
        "creationTimestamp": f"2026-01-02T00:00:{at:02}Z",
        "labels": {"kueue.x-k8s.io/queue-name": queue, **labels},
    }
    containers = [{"name": "t", "resources": {"limits": limits}}]
    template = {"spec": {"containers": containers, "restartPolicy": "Never"}}
    spec = {"suspend": True, "parallelism": 1, "completions": 1, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def load(*documents: dict[str, Any], own: dict[str, Any] | None = None) -> Snapshot:
    group = {"coveredResources": ["nvidia.com/gpu", "cpu"], "flavors": [FLAVOR]}
    spec = {
        "namespaceSelector": {},
        "resourceGroups": [group],
        "admissionScope": {"admissionMode": "UsageBasedAdmissionFairSharing"},
    }
    settings = {
        "apiVersion": "queuectl.dev/v1",
        "kind": "Configuration",
        "admissionFairSharing": {"usageHalfLifeTime": "24h", "resourceWeights": {"cpu": 0.5}},
        "queuectl": own or {},
    }
    common = [named("ResourceFlavor", "gpu"), named("ClusterQueue", "pool", spec=spec), settings]
    text = "---\n".join(yaml.safe_dump(one) for one in (*common, *documents))
    return read_snapshot(read_documents(text, "f.yaml")).snapshot


def started(snapshot: Snapshot) -> list[str]:
    return [gang.uid for gang in plan(snapshot).admitted]


def test_the_status_of_local_queues_is_their_past_use_and_its_sum_that_of_their_cluster_queue() -> (
    None
):
    past = load(
        local_queue("busy", {"nvidia.com/gpu": "8", "cpu": "3500m"}, weight=2),
        local_queue("idle", {"nvidia.com/gpu": "500m"}),
        local_queue("new"),
    ).past_use
    assert past.local_queues == {("team", "busy"): (8 + 3.5 / 2) / 2, ("team", "idle"): 0.5}
    assert past.cluster_queues == {"pool": 8 + 3.5 / 2 + 0.5}
    assert past.users == {}


def test_the_queue_with_less_past_use_is_first_although_its_job_is_newer() -> None:
    jobs = job("earlier", "busy", 1), job("later", "idle", 2)
    unused = local_queue("busy"), local_queue("idle")
    assert started(load(*unused, *jobs)) == ["earlier"]
    used = local_queue("busy", {"nvidia.com/gpu": 8}), local_queue("idle", {"nvidia.com/gpu": 7})
    assert started(load(*used, *jobs)) == ["later"]


@pytest.mark.parametrize("amount", ["many", "-8", "1e400", "1e999999999", "NaN"])
def test_an_invalid_amount_is_an_error(amount: str) -> None:
    with pytest.raises(DocumentError, match=r"consumedResources.nvidia.com/gpu"):
        load(local_queue("busy", {"nvidia.com/gpu": amount}))


@pytest.mark.parametrize(
    ("label", "user"),
    [("example.com/user", "ann"), ("example.com/empty", None), ("example.com/none", None)],
)
def test_the_user_is_who_the_label_names(label: str, user: str | None) -> None:
    labeled = job("j", "busy", 1, **{"example.com/user": "ann", "example.com/empty": ""})
    snapshot = load(local_queue("busy"), labeled, own={"userLabel": label})
    assert [pending.workload.user for pending in snapshot.pending] == [user]


def test_a_workload_names_its_user_too() -> None:
    podset = {"name": "main", "count": 1, "template": job("t", "busy", 1)["spec"]["template"]}
    workload = named("Workload", "w", spec={"queueName": "busy", "podSets": [podset]})
    workload["metadata"] |= {"namespace": "team", "labels": {"example.com/user": "ann"}}
    snapshot = load(local_queue("busy"), workload, own={"userLabel": "example.com/user"})
    assert [pending.workload.user for pending in snapshot.pending] == ["ann"]


def test_without_a_label_users_are_not_distinguished() -> None:
    snapshot = load(local_queue("busy"), job("j", "busy", 1, **{"example.com/user": "ann"}))
    assert [pending.workload.user for pending in snapshot.pending] == [None]
