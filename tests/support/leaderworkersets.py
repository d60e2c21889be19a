"""LeaderWorkerSets as users write them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.objects import keys

API: Final = "leaderworkerset.x-k8s.io/v1"


def leaderworkerset(
    name: str,
    namespace: str,
    pods: PodSetManifest,
    *,
    replicas: int = 1,
    leader: PodSetManifest | None = None,
    queue: str | None = "main",
    priority_class: str | None = None,
    annotations: dict[str, str] | None = None,
    **more: Any,
) -> Document:
    """Groups of so many pods each. ``leader``: of another template, one of these pods. ``more``: fields of the groups and of the spec."""
    written = {keys.QUEUE_LABEL: queue, keys.PREFIX + keys.PRIORITY_CLASS: priority_class}
    labels = {key: value for key, value in written.items() if value is not None}
    group: Document = {
        "size": pods.count,
        "workerTemplate": pods.template("main", None, restart="Always"),
    }
    if leader is not None:
        group["leaderTemplate"] = replace(leader, count=1).template("main", None, restart="Always")
    spec = {"replicas": replicas, "leaderWorkerTemplate": group}
    for key, value in more.items():
        (group if key == "restartPolicy" else spec)[key] = value
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    metadata["annotations"] = dict(annotations or {})
    return {"apiVersion": API, "kind": "LeaderWorkerSet", "metadata": metadata, "spec": spec}
