"""The controller of a GangRun, as tests/support/gangruns.py has it for a real control plane. It creates the pods itself."""

from __future__ import annotations

from typing import Final

from tests.doubles.admission import suspended
from tests.doubles.apiserver import Document, Server
from tests.doubles.writing import make_pod

_INDEX: Final = "research.example.com/index"


def sync(server: Server, job: Document) -> None:
    """One pass for a GangRun. A pod that has failed, or that was deleted, is created again."""
    if job.get("status", {}).get("phase") in ("Done", "Broken"):
        return
    pods = server.owned(job["metadata"]["uid"])
    if suspended(job):
        _delete(server, pods)
        _report(server, job, "Running" if pods else "Stopped")
        return
    _delete(server, [pod for pod in pods if _phase(pod) == "Failed"])
    there = {pod["metadata"]["labels"][_INDEX] for pod in pods}
    missing = [index for index in range(job["spec"]["workers"]) if str(index) not in there]
    for index in missing:
        name = f"{job['metadata']['name']}-{index}"
        make_pod(server, job, job["spec"]["template"], name, {_INDEX: str(index)})
    ended = not missing and all(_phase(pod) == "Succeeded" for pod in pods)
    _report(server, job, "Done" if ended else "Running")


def _phase(pod: Document) -> str:
    return str(pod["status"]["phase"])


def _delete(server: Server, pods: list[Document]) -> None:
    for pod in pods:
        if "deletionTimestamp" not in pod["metadata"]:
            server.delete("pods", pod)


def _report(server: Server, job: Document, phase: str) -> None:
    server.edit("gangruns", job, lambda d: d.setdefault("status", {}).update(phase=phase))
