"""MPIJobs as users write them."""

from __future__ import annotations

from typing import Any, Final

from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.objects import keys

API: Final = "kubeflow.org/v2beta1"


def mpijob(
    name: str,
    namespace: str,
    workers: PodSetManifest,
    *,
    launcher: PodSetManifest | None = None,
    queue: str | None = "main",
    clean: str | None = None,
    restart: str = "OnFailure",
    **spec: Any,
) -> Document:
    """Of a launcher, which is small by default, and workers. All run until they are deleted. ``clean``: its cleanPodPolicy."""
    pods = {"Launcher": launcher or PodSetManifest(1), "Worker": workers}
    replicas = {
        role: {
            "replicas": one.count,
            "restartPolicy": restart,
            "template": one.template("main", None, restart="OnFailure"),
        }
        for role, one in pods.items()
    }
    labels = {keys.QUEUE_LABEL: queue} if queue is not None else {}
    policy = {"runPolicy": {"cleanPodPolicy": clean}} if clean is not None else {}
    return {
        "apiVersion": API,
        "kind": "MPIJob",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"mpiReplicaSpecs": replicas, **policy, **spec},
    }
