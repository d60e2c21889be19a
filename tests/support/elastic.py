"""Elastic jobs, as users write them."""

from __future__ import annotations

from typing import Any, Final

from queuectl.demo.scenario import Document
from queuectl.objects import keys

GROWING: Final = {"PyTorchJob": "worker", "RayCluster": "workers", "JobSet": "workers"}
"""By described kind, the podset of the jobs of the tests whose pods are added one by one."""


def elastic_of(
    kind: str, document: Document, least: int, mark: str = keys.PREFIX + keys.ELASTIC_JOB
) -> Document:
    """The job with this annotation, and with this minimum number of pods of its podset in GROWING."""
    meta, spec = document["metadata"], document["spec"]
    meta = {**meta, "annotations": {**meta.get("annotations", {}), mark: "true"}}
    return {**document, "metadata": meta, "spec": {**spec, **_least(kind, spec, least)}}


def _least(kind: str, spec: dict[str, Any], least: int) -> dict[str, Any]:
    if kind == "Job":
        ignored = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
        meta = {"annotations": {keys.PREFIX + keys.MIN_COUNT: str(least)}}
        return {
            "podFailurePolicy": {"rules": [ignored]},
            "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
            "template": {
                **spec["template"],
                "metadata": {**spec["template"].get("metadata", {}), **meta},
            },
        }
    if kind == "PyTorchJob":
        replicas = spec["pytorchReplicaSpecs"]
        worker = {**replicas["Worker"], "restartPolicy": "OnFailure"}
        return {
            "elasticPolicy": {"minReplicas": least, "maxReplicas": worker["replicas"]},
            "pytorchReplicaSpecs": {**replicas, "Worker": worker},
        }
    if kind == "RayCluster":
        [workers] = spec["workerGroupSpecs"]
        return {"workerGroupSpecs": [{**workers, "minReplicas": least}]}
    [leader, workers] = spec["replicatedJobs"]
    job = workers["template"]["spec"]
    pods = workers["replicas"] * job.get("parallelism", 1)
    marked = {**job, **_least("Job", job, least), "parallelism": pods, "completions": pods}
    return {"replicatedJobs": [leader, {**workers, "replicas": 1, "template": {"spec": marked}}]}
