"""Defaults of a job without queue and priority class: LocalQueue and WorkloadPriorityClass ``default``."""

from __future__ import annotations

from typing import Any

import pytest

from queuectl.domain.jobs import JobRecord
from queuectl.domain.queues import QueueConfig
from queuectl.domain.records import PriorityClassRecord
from queuectl.objects.documents import as_document
from queuectl.objects.kubernetes.nodes import priority_values
from queuectl.offline.inputs import read_snapshot
from queuectl.state.claims import priority_of

Doc = dict[str, Any]


def config(kind: str, name: str, spec: Doc | None = None, **more: Any) -> Doc:
    body = {"apiVersion": "queuectl.dev/v1", "kind": kind, "metadata": {"name": name}, **more}
    return body | ({"spec": spec} if spec is not None else {})


def local_queue(name: str = "default", namespace: str = "default") -> Doc:
    body = config("LocalQueue", name, {"clusterQueue": "cq"})
    body["metadata"]["namespace"] = namespace
    return body


QUEUE = config("ClusterQueue", "cq", {"namespaceSelector": {}})


def job(pod_class: str | None = None, labels: Doc | None = None, **meta: Any) -> Doc:
    """As its user writes it."""
    pod = {"containers": [{"name": "c"}], "restartPolicy": "Never"}
    if pod_class is not None:
        pod["priorityClassName"] = pod_class
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j", "labels": labels or {}, **meta},
        "spec": {"template": {"spec": pod}},
    }


def pending(*documents: Doc) -> list[tuple[str, str | None]]:
    """The pending gangs, each with its queue."""
    snapshot = read_snapshot([as_document(one) for one in documents]).snapshot
    return [(p.workload.ref, p.workload.queue) for p in snapshot.pending]


NAMED = {"kueue.x-k8s.io/queue-name": "own"}


@pytest.mark.parametrize(
    ("given", "waits"),
    [
        (job(), [("default/j", "default")]),
        (job(labels=NAMED), [("default/j", "own")]),
        (job(uid="seen"), []),  # a server has seen it, and it has no label
        (job(creationTimestamp="2026-08-22T10:00:00Z"), []),
        (job(ownerReferences=[{"kind": "JobSet", "name": "s", "uid": "u"}]), []),
        (job(namespace="other"), []),  # which has no LocalQueue of that name
    ],
)
def test_a_job_still_to_be_created_is_taken_in_by_the_queue_named_default(
    given: Doc, waits: list[tuple[str, str]]
) -> None:
    assert pending(QUEUE, local_queue(), local_queue("own"), given) == waits


def test_a_suspended_job_that_names_no_queue_is_taken_in_too() -> None:
    suspended = job()
    suspended["spec"]["suspend"] = True
    assert pending(QUEUE, local_queue(), suspended) == [("default/j", "default")]
    assert pending(QUEUE, local_queue("main"), suspended) == []


def test_without_a_queue_named_default_it_is_nobodys() -> None:
    assert pending(QUEUE, local_queue("main"), job()) == []


# ---- priority


def pod_class(name: str, value: int, **more: Any) -> Doc:
    head = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    return {**head, "metadata": {"name": name}, "value": value, **more}


DEFAULT_CLASS = config("WorkloadPriorityClass", "default", value=7)
URGENT_CLASS = config("WorkloadPriorityClass", "urgent", value=100)
URGENT = {"queuectl.dev/priority-class": "urgent"}
GLOBAL = pod_class("usual", 3, globalDefault=True)
POD = pod_class("pods", 50)

PRIORITIES = [
    # the job, the classes there are, its priority
    (job(), [], 0),
    (job("pods"), [POD], 50),
    (job(), [POD, GLOBAL], 3),
    (job("pods"), [POD, GLOBAL], 50),
    (
        job(),
        [GLOBAL, pod_class("also", 2, globalDefault=True)],
        2,
    ),  # the API server takes the least
    (job(), [DEFAULT_CLASS, GLOBAL], 7),
    (job("pods"), [DEFAULT_CLASS, POD], 7),  # as if its label named the class
    (job(labels=URGENT), [DEFAULT_CLASS, URGENT_CLASS], 100),
]


@pytest.mark.parametrize(("given", "classes", "priority"), PRIORITIES)
def test_the_classes_that_give_a_job_its_priority(given: Doc, classes: list[Doc], priority: int) -> None:  # fmt: skip
    documents = [QUEUE, local_queue(), *classes, given]
    (waiting,) = read_snapshot([as_document(one) for one in documents]).snapshot.pending
    assert waiting.workload.priority == priority
    assert waiting.blocked is None


def test_a_workload_without_a_class_has_none() -> None:
    """Its class was settled when its job was created, perhaps before there was a default."""
    pods = {"template": {"spec": {"containers": [{"name": "c"}]}}, "count": 1}
    body = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": "w"},
        "spec": {"queueName": "default", "podSets": [pods]},
    }
    documents = [QUEUE, local_queue(), DEFAULT_CLASS, body]
    (waiting,) = read_snapshot([as_document(one) for one in documents]).snapshot.pending
    assert waiting.workload.priority == 0


def test_priority_classes_of_the_system_give_no_priority() -> None:
    records = [
        PriorityClassRecord("highest", 1, 1_000_000_000),
        PriorityClassRecord("system-cluster-critical", 1, 2_000_000_000),
        PriorityClassRecord("system-node-critical", 1, 2_000_001_000),
    ]
    assert priority_values(records) == {"highest": 1_000_000_000}


@pytest.mark.parametrize(
    ("own", "pods", "priority"),
    [("urgent", "pods", 100), (None, "pods", 7), (None, None, 7), ("gone", "pods", 0)],
)
def test_the_controller_reads_priorities_by_the_same_rule(
    own: str | None, pods: str | None, priority: int
) -> None:
    queues = QueueConfig(priority_classes={"default": 7, "urgent": 100})
    record = JobRecord("Job", "default", "j", "u", 1, 0.0, "default", (), own, pods)
    values = priority_values([PriorityClassRecord("pods", 1, 50)])
    assert priority_of(record, queues, values) == priority
