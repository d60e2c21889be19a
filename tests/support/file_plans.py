"""Plans of files with a Job, whose indexes are separate gangs, on nodes of one GPU each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from queuectl.demo import scenario as m
from queuectl.domain.ledger import Document
from queuectl.objects.documents import as_document
from queuectl.offline.inputs import read_snapshot
from queuectl.planner import plan


def planned(nodes: int, *documents: Document) -> tuple[list[str], list[str], list[str]]:
    """Names of what starts, what waits, and what runs, with so many nodes."""
    pool = m.cluster_queue("pool", "gpu", {"nvidia.com/gpu": 8, "cpu": "1k", "pods": 100})
    given: list[Document] = [m.topology("t", "rack"), m.flavor("gpu", topology="t"), pool]
    given.append(m.local_queue("default", "main", "pool"))
    given += [_node(f"n{number}") for number in range(nodes)]
    read = [as_document(dict(one)) for one in (*given, *documents)]
    snapshot = read_snapshot(read, now=1_800_000_000.0).snapshot
    found = plan(snapshot)
    names = {one.workload.uid: one.workload.name for one in snapshot.pending}
    return (
        [names[one.uid] for one in found.admitted],
        sorted(names[one.uid] for one in found.pending),
        [one.workload.name for one in snapshot.admitted],
    )


def pod_of_index(job: str, number: int, placed: Mapping[str, Any]) -> Document:
    """A pod of the Job with the uid ``u``. ``placed``: its node, or its gate."""
    labels = {"batch.kubernetes.io/job-completion-index": str(number)}
    owner = {"kind": "Job", "name": job, "uid": "u", "controller": True, "apiVersion": "batch/v1"}
    requests = {"requests": {"nvidia.com/gpu": "1", "cpu": "1"}}
    metadata = {"name": f"{job}-{number}", "namespace": "default", "labels": labels}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata | {"ownerReferences": [owner]},
        "spec": {"containers": [{"name": "main", "resources": requests}], **placed},
        "status": {"phase": "Pending"},
    }


def _node(name: str) -> Document:
    labels = {"kubernetes.io/hostname": name, "rack": "r"}
    capacity = {"cpu": "8", "memory": "8Gi", "pods": "10", "nvidia.com/gpu": "1"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": capacity},
    }
