"""The MPI operator, as :mod:`tests.doubles.controllers` has the others: a Job for the launcher, and the pods of the workers."""

from __future__ import annotations

from typing import Final

from tests.doubles.admission import replicas, suspended
from tests.doubles.apiserver import Document, Server, copied, owner_of
from tests.doubles.writing import condition, holds, make_pod

_ENDS: Final = {"Complete": "Succeeded", "Failed": "Failed"}


def sync(server: Server, job: Document) -> None:
    """One pass for an MPIJob. As with cleanPodPolicy None, workers run on after its end."""
    if holds(job, "Succeeded") or holds(job, "Failed"):
        return
    launcher = _launcher(server, job)
    ended = next((end for cause, end in _ENDS.items() if holds(launcher, cause)), None)
    if ended is not None:
        server.edit("mpijobs", job, lambda d: condition(d, ended, "True", server.clock()))
        return
    if suspended(job):
        for pod in server.owned(job["metadata"]["uid"]):
            server.delete("pods", pod)
    else:
        _make_workers(server, job)
    _align(server, job, launcher)
    status = "True" if suspended(job) else "False"
    server.edit("mpijobs", job, lambda d: condition(d, "Suspended", status, server.clock()))


def _labels(job: Document, role: str) -> dict[str, str]:
    name = job["metadata"]["name"]
    return {"training.kubeflow.org/job-name": name, "training.kubeflow.org/job-role": role}


def _launcher(server: Server, job: Document) -> Document:
    """Its Job. The operator creates it also for a suspended MPIJob."""
    meta = job["metadata"]
    for found in server.all("jobs"):
        if owner_of(found) == meta["uid"]:
            return found
    template = copied(replicas(job)["Launcher"]["template"])
    template.setdefault("metadata", {}).setdefault("labels", {}).update(_labels(job, "launcher"))
    owner = {"kind": "MPIJob", "name": meta["name"], "uid": meta["uid"], "controller": True}
    own = {"name": f"{meta['name']}-launcher", "namespace": meta["namespace"]}
    made: Document = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": own | {"ownerReferences": [owner]},
        "spec": {"suspend": suspended(job), "template": template},
    }
    server.create("jobs", made)
    return server.get("jobs", meta["namespace"], own["name"])


def _align(server: Server, job: Document, launcher: Document) -> None:
    """Suspend or resume the Job of the launcher. The labels of the template change when it is resumed."""
    if suspended(job) == suspended(launcher):
        return
    labels = replicas(job)["Launcher"]["template"]["metadata"]["labels"]

    def change(d: Document) -> None:
        d["spec"]["suspend"] = suspended(job)
        if not suspended(job):
            d["spec"]["template"]["metadata"]["labels"] |= labels

    server.edit("jobs", launcher, change)


def _make_workers(server: Server, job: Document) -> None:
    worker: Document = replicas(job).get("Worker", {"replicas": 0})
    shift = int(bool(job["spec"].get("runLauncherAsWorker")))
    for index in range(worker["replicas"]):
        labels = _labels(job, "worker")
        labels["training.kubeflow.org/replica-index"] = str(index + shift)
        name = f"{job['metadata']['name']}-worker-{index}"
        make_pod(server, job, worker["template"], name, labels)
