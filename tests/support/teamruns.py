"""Another in-house kind, with a simulated controller that creates Jobs: two podsets in one object, and conditions instead of a phase."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from queuectl.localcluster import ApiServerError
from queuectl.localcluster.client import Client

Document = dict[str, Any]
GROUP: Final = "teams.example.com"
_TEAMRUNS: Final = f"/apis/{GROUP}/v1/teamruns"
_TEMPLATE: Final = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_COUNT: Final = {"type": "integer"}
_SPEC: Final = {
    "type": "object",
    "properties": {
        "paused": {"type": "boolean"},
        "workers": _COUNT,
        "podsPerWorker": _COUNT,
        "driver": _TEMPLATE,
        "template": _TEMPLATE,
    },
}
_CONDITION: Final = {
    "type": "object",
    "properties": {"type": {"type": "string"}, "status": {"type": "string"}},
}
_STATUS: Final = {
    "type": "object",
    "properties": {"conditions": {"type": "array", "items": _CONDITION}},
}
DEFINITION: Final[Document] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"teamruns.{GROUP}"},
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {"kind": "TeamRun", "plural": "teamruns", "singular": "teamrun"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {"spec": _SPEC, "status": _STATUS},
                    }
                },
            }
        ],
    },
}
JOB_KIND: Final[Document] = {
    "kind": "TeamRun",
    "group": GROUP,
    "version": "v1",
    "plural": "teamruns",
    "suspend": "spec.paused",
    "podsets": [
        {"name": "driver", "path": "spec", "template": "driver", "count": []},
        {"name": "worker", "path": "spec", "count": [["workers"], ["podsPerWorker"]]},
    ],
    "conditions": {"succeeded": "Complete", "suspended": ""},
    "children": [{"kind": "Job", "group": "batch", "version": "v1", "plural": "jobs"}],
    "controller": {"namespace": "research", "serviceAccount": "gangrun-controller"},
}


def teamrun(
    name: str, where: str, template: Document, workers: int, each: int, labels: Document
) -> Document:
    spec = {"workers": workers, "podsPerWorker": each, "driver": template, "template": template}
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "TeamRun",
        "metadata": {"name": name, "namespace": where, "labels": labels},
        "spec": spec,
    }


def reconcile(client: Client) -> None:
    """One round of the simulated controller."""
    jobs = client.get("/apis/batch/v1/jobs")["items"]
    for run in client.get(_TEAMRUNS)["items"]:
        own = [job for job in jobs if _owns(run, job)]
        if "deletionTimestamp" in run["metadata"] or run.get("status", {}).get("conditions"):
            continue
        if run["spec"].get("paused", False):
            for job in own:
                client.delete(_path(job), missing_ok=True, propagationPolicy="Background")
        elif not own:
            for job in _jobs(run):
                with suppress(ApiServerError):  # the Job of the last start is still being deleted
                    client.create(_path(job).rsplit("/", 1)[0], job)
        elif all(job.get("status", {}).get("completionTime") for job in own):
            complete = {"type": "Complete", "status": "True"}
            path = f"/apis/{GROUP}/v1/namespaces/{run['metadata']['namespace']}/teamruns"
            status = {"status": {"conditions": [complete]}}
            client.patch(f"{path}/{run['metadata']['name']}/status", status)


def _owns(run: Document, job: Document) -> bool:
    owners = job["metadata"].get("ownerReferences", ())
    return any(owner["uid"] == run["metadata"]["uid"] for owner in owners)


def _path(job: Document) -> str:
    meta = job["metadata"]
    return f"/apis/batch/v1/namespaces/{meta['namespace']}/jobs/{meta['name']}"


def _jobs(run: Document) -> list[Document]:
    spec = run["spec"]
    pods = spec["workers"] * spec["podsPerWorker"]
    return [_job(run, "driver", 1, spec["driver"]), _job(run, "worker", pods, spec["template"])]


def _job(run: Document, podset: str, pods: int, template: Document) -> Document:
    meta = run["metadata"]
    owner = {"apiVersion": f"{GROUP}/v1", "kind": "TeamRun", "name": meta["name"]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": f"{meta['name']}-{podset}",
            "namespace": meta["namespace"],
            "ownerReferences": [{**owner, "uid": meta["uid"], "controller": True}],
        },
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "completionMode": "Indexed",
            "template": template,
        },
    }
