"""Objects as a Kueue leaves them: jobs it let run or holds suspended, and the Workloads that say so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Document = dict[str, Any]

GPU = "nvidia.com/gpu"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
CREATED = "2026-01-01T00:00:00Z"
ADMITTED = "2026-01-01T00:10:00Z"


def of_kueue(document: Document, queue: str, *, running: bool, rack: str | None = None) -> Document:
    """A job in a queue of Kueue. A running one has in its templates what Kueue puts there when it lets a job go."""
    document["metadata"]["labels"] = {QUEUE_LABEL: queue}
    spec = document["spec"]
    if document["kind"] == "Job":
        spec["suspend"] = not running
        templates = [spec["template"]]
    else:
        spec.setdefault("runPolicy", {})["suspend"] = not running
        templates = [replica["template"] for replica in spec["pytorchReplicaSpecs"].values()]
    for template in templates if running else ():
        meta = template.setdefault("metadata", {})
        meta.setdefault("labels", {})["kueue.x-k8s.io/podset"] = "main"
        meta.setdefault("annotations", {})["kueue.x-k8s.io/workload"] = "job-x-12345"
        if rack is not None:
            template["spec"]["nodeSelector"] = {"topology.queuectl.dev/rack": rack}
    return document


def workload(
    job: Mapping[str, Any],
    podsets: Mapping[str, int],
    *,
    admitted: str | None = None,
    queue: str = "pool",
    hosts: Mapping[str, Sequence[tuple[str, int]]] | None = None,
    active: bool = True,
    version: str = "v1beta2",
    finished: bool = False,
    created: str = CREATED,
) -> Document:
    """The Workload of a stored job. ``admitted``: the flavor; ``hosts``: of each podset, if topology was assigned."""
    meta = job["metadata"]
    owner = {
        "apiVersion": job.get("apiVersion", ""),
        "kind": job["kind"],
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "none"}]}}
    sets = [{"name": name, "count": count, "template": template} for name, count in podsets.items()]
    conditions: list[Document] = []
    status: Document = {"conditions": conditions}
    if admitted is not None:
        conditions += [_true("QuotaReserved"), _true("Admitted")]
        status["admission"] = {
            "clusterQueue": queue,
            "podSetAssignments": [
                _assignment(name, count, admitted, (hosts or {}).get(name), version)
                for name, count in podsets.items()
            ],
        }
    if finished:
        conditions.append(_true("Finished"))
    spec: Document = {"queueName": "research", "active": active, "priority": 0, "podSets": sets}
    return {
        "apiVersion": f"kueue.x-k8s.io/{version}",
        "kind": "Workload",
        "metadata": {
            "name": f"{job['kind'].lower()}-{meta['name']}-1a2b3",
            "namespace": meta["namespace"],
            "creationTimestamp": created,
            "finalizers": ["kueue.x-k8s.io/resource-in-use"],
            "ownerReferences": [owner],
        },
        "spec": spec,
        "status": status,
    }


def _true(kind: str) -> Document:
    return {
        "type": kind,
        "status": "True",
        "reason": kind,
        "message": "",
        "lastTransitionTime": ADMITTED,
    }


def _assignment(
    name: str, count: int, flavor: str, hosts: Sequence[tuple[str, int]] | None, version: str
) -> Document:
    assignment: Document = {
        "name": name,
        "flavors": {GPU: flavor},
        "resourceUsage": {GPU: str(8 * count)},
        "count": count,
    }
    if hosts is None:
        return assignment
    levels = ["kubernetes.io/hostname"]
    if version == "v1beta1":
        domains = [{"values": [host], "count": pods} for host, pods in hosts]
        assignment["topologyAssignment"] = {"levels": levels, "domains": domains}
    else:
        slices = {
            "domainCount": len(hosts),
            "valuesPerLevel": [{"individual": {"roots": [host for host, _ in hosts]}}],
            "podCounts": {"individual": [pods for _, pods in hosts]},
        }
        assignment["topologyAssignment"] = {"levels": levels, "slices": [slices]}
    return assignment
