"""RayClusters, RayJobs and RayServices as users write them."""

from __future__ import annotations

import json
from typing import Any, Final

from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.objects import keys

API: Final = "ray.io/v1"


def worker_group(name: str, pods: PodSetManifest, *, hosts: int = 1, **more: Any) -> Document:
    """A group of workers: so many pods, with ``hosts`` of them in each replica."""
    replicas = pods.count // hosts
    return {
        "groupName": name,
        "replicas": replicas,
        "minReplicas": 0,
        "maxReplicas": replicas,
        "numOfHosts": hosts,
        "rayStartParams": {},
        "template": pods.template("ray-worker", None, restart="Always"),
        **more,
    }


def cluster_spec(head: PodSetManifest, *groups: Document, **spec: Any) -> Document:
    """The spec of a RayCluster."""
    template = head.template("ray-head", None, restart="Always")
    return {
        "headGroupSpec": {"rayStartParams": {}, "template": template},
        "workerGroupSpecs": list(groups),
        **spec,
    }


def raycluster(
    name: str,
    namespace: str,
    head: PodSetManifest,
    *groups: Document,
    queue: str | None = "main",
    priority_class: str | None = None,
    **spec: Any,
) -> Document:
    """A RayCluster of a head and these groups of workers. ``queue``: None = without a label."""
    return {
        "apiVersion": API,
        "kind": "RayCluster",
        "metadata": _metadata(name, namespace, queue, priority_class),
        "spec": cluster_spec(head, *groups, **spec),
    }


def rayjob(
    name: str,
    namespace: str,
    head: PodSetManifest,
    *groups: Document,
    queue: str | None = "main",
    priority_class: str | None = None,
    **spec: Any,
) -> Document:
    """A RayJob, whose cluster has a head and these groups of workers. ``queue``: None = without a label."""
    own = {"entrypoint": "python main.py", "shutdownAfterJobFinishes": True}
    return {
        "apiVersion": API,
        "kind": "RayJob",
        "metadata": _metadata(name, namespace, queue, priority_class),
        "spec": {**own, "rayClusterSpec": cluster_spec(head, *groups), **spec},
    }


def rayservice(
    name: str,
    namespace: str,
    head: PodSetManifest,
    *groups: Document,
    queue: str | None = "main",
    priority_class: str | None = None,
    **spec: Any,
) -> Document:
    """A RayService of one application, whose cluster has a head and these groups of workers. ``queue``: None = without a label."""
    serve = json.dumps({"applications": [{"name": "echo", "import_path": "echo:app"}]})
    return {
        "apiVersion": API,
        "kind": "RayService",
        "metadata": _metadata(name, namespace, queue, priority_class),
        "spec": {"serveConfigV2": serve, "rayClusterConfig": cluster_spec(head, *groups), **spec},
    }


def _metadata(name: str, namespace: str, queue: str | None, priority_class: str | None) -> Document:
    written = {keys.QUEUE_LABEL: queue, keys.PREFIX + keys.PRIORITY_CLASS: priority_class}
    labels = {key: value for key, value in written.items() if value is not None}
    return {"name": name, "namespace": namespace, "labels": labels, "annotations": {}}
