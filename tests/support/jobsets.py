"""JobSets as users write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.objects import keys

API: Final = "jobset.x-k8s.io/v1alpha2"


def replicated(
    name: str, replicas: int, pods: PodSetManifest, *, seconds: float | None = None, **more: Any
) -> Document:
    """Jobs of so many pods each, which run for ``seconds``; None = until they are deleted."""
    job = {
        "parallelism": pods.count,
        "completions": pods.count,
        "backoffLimit": 6,
        "template": pods.template("main", seconds, restart="Never"),
    }
    return {"name": name, "replicas": replicas, "template": {"spec": job}, **more}


def jobset(
    name: str,
    namespace: str,
    *jobs: Document,
    queue: str | None = "main",
    priority_class: str | None = None,
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> Document:
    """A JobSet of these replicated jobs. ``queue``: None = without a label."""
    written = {keys.QUEUE_LABEL: queue, keys.PREFIX + keys.PRIORITY_CLASS: priority_class}
    labels = {key: value for key, value in written.items() if value is not None}
    return {
        "apiVersion": API,
        "kind": "JobSet",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": labels,
            "annotations": dict(annotations or {}),
        },
        "spec": {"replicatedJobs": list(jobs), **spec},
    }
