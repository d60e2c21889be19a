"""Jobs as users write them, for the double and the real control plane alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest

from queuectl.domain.jobs import JobRecord
from queuectl.objects.documents import as_document
from queuectl.objects.kinds import DESCRIPTIONS, KINDS
from queuectl.objects.kinds.description import nested

Document = dict[str, Any]

QUEUE_LABEL = "queuectl.dev/queue-name"


def read_job(document: Mapping[str, Any]) -> JobRecord:
    """The record of an object as the watch reads it."""
    kind = KINDS[document["kind"]]
    return kind.read(as_document(dict(document)).convert(kind.wire))


def template(
    gpus: int = 0, *, container: str = "main", annotations: Mapping[str, str] | None = None
) -> Document:
    """A pod template. For what pods do on the real control plane see ``queuectl.localcluster``'s annotations."""
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    resources = {"requests": {"cpu": "1", **limits}, "limits": limits}
    return {
        "metadata": {"annotations": dict(annotations or {})},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 5,
            "containers": [{"name": container, "image": "none", "resources": resources}],
        },
    }


def _job(
    api: str, kind: str, name: str, namespace: str, queue: str | None, spec: Document
) -> Document:
    labels = {QUEUE_LABEL: queue} if queue is not None else {}
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}


def batch_job(
    name: str,
    *,
    queue: str | None = "main",
    pods: int = 1,
    gpus: int = 0,
    namespace: str = "default",
    indexed: bool = True,
    backoff_limit: int = 6,
    annotations: Mapping[str, str] | None = None,
) -> Document:
    """A ``batch/v1`` Job of as many completions as pods. ``annotations``: of the template; ``queue`` None: no label."""
    spec = {
        "parallelism": pods,
        "completions": pods,
        "completionMode": "Indexed" if indexed else "NonIndexed",
        "backoffLimit": backoff_limit,
        "template": template(gpus, annotations=annotations),
    }
    return _job("batch/v1", "Job", name, namespace, queue, spec)


WITH_TRAINING_OPERATOR: Final = (
    "Job",
    *(one.kind for one in DESCRIPTIONS if one.operator == "trainingOperator"),
)
"""The kinds of a control plane with the training operator alone. tests/system has the tests of the others with their operators."""


def _kinds(*in_make_test: str) -> pytest.MarkDecorator:
    """All kinds, of which some have the mark ``kinds``."""
    kinds = [
        kind if kind in in_make_test else pytest.param(kind, marks=pytest.mark.kinds)
        for kind in WITH_TRAINING_OPERATOR
    ]
    return pytest.mark.parametrize("kind", kinds)


ALL_KINDS: Final = _kinds("Job", "PyTorchJob")
"""On a control plane, `make test` runs the test of a Job and of a PyTorchJob, and `make test-kinds` that of the others."""

FIRST_KIND: Final = _kinds("Job")
"""The same for a longer test: `make test` runs that of a Job."""

LEADERS: Final = {
    one.kind: next((each for each in place.types if each != "Worker"), None)
    for one in DESCRIPTIONS
    for place in one.podsets[:1]
    if place.types
}
"""By kind with replica types: that of the first pod of :func:`job_of`; the others are workers. None: all are workers."""


def pytorch_job(
    name: str,
    *,
    queue: str | None = "main",
    workers: int = 1,
    gpus: int = 0,
    namespace: str = "default",
    annotations: Mapping[str, str] | None = None,
) -> Document:
    """A ``kubeflow.org/v1`` PyTorchJob of one master and some workers."""
    return _replicated_job(
        "PyTorchJob",
        name,
        1 + workers,
        queue=queue,
        gpus=gpus,
        namespace=namespace,
        annotations=annotations,
    )


def job_of(kind: str, name: str, *, pods: int, **options: Any) -> Document:
    """A job of any kind, with this many pods in all."""
    if kind == "Job":
        return batch_job(name, pods=pods, **options)
    if kind == "JobSet":
        return job_set(name, pods=pods, **options)
    if kind == "RayCluster":
        return ray_cluster(name, pods=pods, **options)
    if kind == "RayJob":
        return ray_job(name, pods=pods, **options)
    if kind == "GangRun":
        return gang_run(name, pods=pods, **options)
    if kind == "TrainJob":
        return train_job(name, pods=pods, **options)
    if kind == "AppWrapper":
        return app_wrapper(name, pods=pods, **options)
    if kind == "SparkApplication":
        return spark_application(name, pods=pods, **options)
    return _replicated_job(kind, name, pods, **options)


def train_job(
    name: str,
    *,
    pods: int,
    queue: str | None = "main",
    gpus: int = 0,
    namespace: str = "default",
    annotations: Mapping[str, str] | None = None,
) -> Document:
    """A TrainJob of this many nodes, of the runtime of the double."""
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    trainer = {"numNodes": pods, "resourcesPerNode": {"requests": limits, "limits": limits}}
    spec: Document = {"runtimeRef": {"name": "torch"}, "trainer": trainer}
    if annotations:
        change = {"spec": {"template": {"metadata": {"annotations": dict(annotations)}}}}
        jobs = {"spec": {"replicatedJobs": [{"name": "node", "template": change}]}}
        patch = {"manager": "example.com/user", "trainingRuntimeSpec": {"template": jobs}}
        spec["runtimePatches"] = [patch]
    return _job("trainer.kubeflow.org/v1alpha1", "TrainJob", name, namespace, queue, spec)


def app_wrapper(
    name: str,
    *,
    pods: int,
    queue: str | None = "main",
    gpus: int = 0,
    namespace: str = "default",
    annotations: Mapping[str, str] | None = None,
) -> Document:
    """An AppWrapper: a Job of one pod, and a Job of the other pods."""
    jobs = [
        batch_job(
            f"{name}-{role}",
            queue=None,
            pods=count,
            gpus=gpus,
            namespace=namespace,
            annotations=annotations,
        )
        for role, count in (("leader", 1), ("workers", pods - 1))
        if count
    ]
    spec = {"components": [{"template": job} for job in jobs]}
    return _job("workload.codeflare.dev/v1beta2", "AppWrapper", name, namespace, queue, spec)


def job_set(
    name: str,
    *,
    pods: int,
    queue: str | None = "main",
    gpus: int = 0,
    namespace: str = "default",
    annotations: Mapping[str, str] | None = None,
) -> Document:
    """A JobSet: a Job of one pod, and Jobs of one pod each."""
    jobs = [
        {
            "name": role,
            "replicas": count,
            "template": {"spec": {"template": template(gpus, annotations=annotations)}},
        }
        for role, count in (("leader", 1), ("workers", pods - 1))
        if count
    ]
    spec = {"replicatedJobs": jobs}
    return _job("jobset.x-k8s.io/v1alpha2", "JobSet", name, namespace, queue, spec)


def ray_cluster(
    name: str,
    *,
    pods: int,
    queue: str | None = "main",
    gpus: int = 0,
    namespace: str = "default",
    annotations: Mapping[str, str] | None = None,
) -> Document:
    """A RayCluster: the head, and a group of workers with one host each."""
    own = template(gpus, annotations=annotations)
    workers = {"replicas": pods - 1, "minReplicas": 0, "maxReplicas": pods, "numOfHosts": 1}
    groups = [{"groupName": "workers", **workers, "template": own}]
    spec: Document = {"headGroupSpec": {"template": template(gpus, annotations=annotations)}}
    spec |= {"workerGroupSpecs": groups} if pods > 1 else {}
    return _job("ray.io/v1", "RayCluster", name, namespace, queue, spec)


def ray_job(
    name: str,
    *,
    pods: int,
    gpus: int = 0,
    annotations: Mapping[str, str] | None = None,
    **options: Any,
) -> Document:
    """A RayJob: a cluster, and the pod that submits the entrypoint."""
    document = ray_cluster(name, pods=pods - 1, gpus=gpus, annotations=annotations, **options)
    document["kind"] = "RayJob"
    document["spec"] = {
        "entrypoint": "python main.py",
        "shutdownAfterJobFinishes": True,
        "rayClusterSpec": document["spec"],
        "submitterPodTemplate": template(gpus, annotations=annotations),
    }
    return document


def gang_run(
    name: str,
    *,
    pods: int,
    queue: str | None = "main",
    gpus: int = 0,
    namespace: str = "default",
    annotations: Mapping[str, str] | None = None,
) -> Document:
    """A GangRun, the declared kind of docs/examples/own-kind."""
    own = template(gpus, annotations=annotations)
    spec = {"workers": pods, "script": "train.py", "template": own}
    return _job("research.example.com/v1", "GangRun", name, namespace, queue, spec)


def spark_application(
    name: str,
    *,
    pods: int,
    queue: str | None = "main",
    gpus: int = 0,
    namespace: str = "default",
    annotations: Mapping[str, str] | None = None,
) -> Document:
    """A SparkApplication of a driver and the other pods as executors; memory is only that of Spark's defaults."""
    driver, executor = (
        {"template": template(gpus, container=f"spark-kubernetes-{role}", annotations=annotations)}
        for role in ("driver", "executor")
    )
    spec = {
        "type": "Scala",
        "mode": "cluster",
        "sparkVersion": "4.0.1",
        "mainApplicationFile": "local:///opt/train.jar",
        "driver": driver,
        "executor": {**executor, "instances": pods - 1},
    }
    api = "sparkoperator.k8s.io/v1beta2"
    return _job(api, "SparkApplication", name, namespace, queue, spec)


def _replicated_job(
    kind: str,
    name: str,
    pods: int,
    *,
    queue: str | None = "main",
    gpus: int = 0,
    namespace: str = "default",
    annotations: Mapping[str, str] | None = None,
) -> Document:
    [one] = [described for described in DESCRIPTIONS if described.kind == kind]
    leader = LEADERS[kind]
    counts = {"Worker": pods} if leader is None else {leader: 1, "Worker": pods - 1}
    own = template(gpus, container=one.container, annotations=annotations)
    replicas = {
        role: {"restartPolicy": "Never", "replicas": count, "template": own}
        for role, count in counts.items()
        if count
    }
    spec: Any = nested(one.podsets[0].path, replicas)["spec"]
    return _job(f"{one.group}/{one.version}", kind, name, namespace, queue, spec)
