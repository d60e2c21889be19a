"""Writes of the controllers of the double: conditions of an object, and pods."""

from __future__ import annotations

from queuectl.domain.words import format_time
from tests.doubles.apiserver import Document, Server, copied
from tests.doubles.pod_admission import admit
from tests.doubles.quotas import lets_in


def condition(document: Document, kind: str, status: str, at: float, reason: str = "") -> None:
    """Set one status condition in place. As in the helpers of the API, only a change of the status sets the time."""
    conditions = document.setdefault("status", {}).setdefault("conditions", [])
    found = next((c for c in conditions if c["type"] == kind), None)
    if found is None:
        found = {"type": kind}
        conditions.append(found)
    if found.get("status") != status:
        found["lastTransitionTime"] = format_time(at)
    found |= {"status": status, "reason": reason}


def holds(document: Document, kind: str) -> bool:
    conditions = document.get("status", {}).get("conditions", ())
    return any(c["type"] == kind and c["status"] == "True" for c in conditions)


def make_pod(
    server: Server, job: Document, template: Document, name: str, labels: dict[str, str]
) -> None:
    """Create a pod from a template, unless one with that name exists."""
    meta = job["metadata"]
    if (meta["namespace"], name) in server.objects["pods"]:
        return
    own = template.get("metadata", {})
    owner = {"kind": job["kind"], "name": meta["name"], "uid": meta["uid"], "controller": True}
    pod: Document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": meta["namespace"],
            "labels": {**own.get("labels", {}), **labels},
            "annotations": dict(own.get("annotations", {})),
            "ownerReferences": [owner],
        },
        "spec": copied(template["spec"]),
        "status": {"phase": "Pending"},
    }
    if pod["spec"].get("schedulingGates"):  # as the API server sets it on a pod with gates
        condition(pod, "PodScheduled", "False", server.clock(), "SchedulingGated")
    if admit(server, pod) and lets_in(server, pod):
        server.create("pods", pod)
