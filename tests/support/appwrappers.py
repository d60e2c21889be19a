"""AppWrappers as users write them."""

from __future__ import annotations

from typing import Any, Final

from queuectl.demo import scenario as m
from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.objects import keys

API: Final = "workload.codeflare.dev/v1beta2"


def pod(name: str, pods: PodSetManifest, **metadata: Any) -> Document:
    """A component of one pod."""
    template = pods.template("main", None, restart="Never")
    inner = template.get("metadata", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**inner, "name": name, **metadata},
        "spec": template["spec"],
    }


def job(name: str, pods: PodSetManifest, **metadata: Any) -> Document:
    """A component: an Indexed Job without a queue."""
    document = m.job(name, "-", "main", pods, retries=6)
    kept = {key: document["metadata"][key] for key in ("name",)}
    return {**document, "metadata": {**kept, **metadata}}


def appwrapper(
    name: str,
    namespace: str,
    *components: Document,
    queue: str | None = "main",
    priority_class: str | None = None,
    **spec: Any,
) -> Document:
    """An AppWrapper of these objects. ``queue``: None = without a label."""
    written = {keys.QUEUE_LABEL: queue, keys.PREFIX + keys.PRIORITY_CLASS: priority_class}
    labels = {key: value for key, value in written.items() if value is not None}
    return {
        "apiVersion": API,
        "kind": "AppWrapper",
        "metadata": {"name": name, "namespace": namespace, "labels": labels, "annotations": {}},
        "spec": {"components": [{"template": one} for one in components], **spec},
    }
