"""TrainJobs as users write them, and runtimes for them."""

from __future__ import annotations

from typing import Any, Final

from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.objects import keys

API: Final = "trainer.kubeflow.org/v1alpha1"
STEP: Final = "trainer.kubeflow.org/trainjob-ancestor-step"


def replicated(name: str, pods: PodSetManifest, *, step: str = "", **more: Any) -> Document:
    """A replicated job of one Job. ``step``: the ancestor of the TrainJob from which it gets values."""
    container = "node" if step in ("", "trainer") else step
    labels = {"labels": {STEP: step}} if step else {}
    spec = {
        "parallelism": pods.count,
        "completions": pods.count,
        "backoffLimit": 6,
        "template": pods.template(container, None, restart="Never"),
    }
    return {"name": name, "template": {"metadata": labels, "spec": spec}, **more}


def training_runtime(
    name: str, namespace: str | None, *jobs: Document, policy: Document | None = None
) -> Document:
    """A runtime of these replicated jobs. ``namespace``: None = a ClusterTrainingRuntime."""
    place = {"namespace": namespace} if namespace is not None else {}
    return {
        "apiVersion": API,
        "kind": "TrainingRuntime" if place else "ClusterTrainingRuntime",
        "metadata": {"name": name, **place},
        "spec": {
            "mlPolicy": policy or {"numNodes": 1, "torch": {}},
            "template": {"spec": {"replicatedJobs": list(jobs)}},
        },
    }


def trainjob(
    name: str,
    namespace: str,
    runtime: str,
    *,
    nodes: int | None = None,
    queue: str | None = "main",
    priority_class: str | None = None,
    kind: str = "TrainingRuntime",
    **spec: Any,
) -> Document:
    """A TrainJob. ``nodes``: its number of nodes; None = that of the runtime. ``queue``: None = without a label."""
    written = {keys.QUEUE_LABEL: queue, keys.PREFIX + keys.PRIORITY_CLASS: priority_class}
    trainer = {"trainer": {"numNodes": nodes}} if nodes is not None else {}
    return {
        "apiVersion": API,
        "kind": "TrainJob",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {key: value for key, value in written.items() if value is not None},
        },
        "spec": {"runtimeRef": {"name": runtime, "kind": kind}, **trainer, **spec},
    }


def runtime() -> Document:
    """The ClusterTrainingRuntime of the double: one pod on each node."""
    return training_runtime("torch", None, replicated("node", PodSetManifest(1), step="trainer"))
