"""The Kubeflow trainer of the double, and the JobSets that it creates from one runtime."""

from __future__ import annotations

from typing import Final

from queuectl.objects import keys
from queuectl.objects.kinds.trainjob import jobset_of
from tests.doubles.admission import gate, suspended
from tests.doubles.apiserver import Document, Server, merge, owner_of
from tests.doubles.writing import condition, holds
from tests.support.trainjobs import runtime

_ENDS: Final = {"Completed": "Complete", "Failed": "Failed"}


def sync(server: Server, job: Document) -> None:
    """One pass for a TrainJob. As long as both run, the JobSet stays as it is."""
    if any(holds(job, end) for end in _ENDS.values()):
        return
    child = _child(server, job)
    ended = next((end for cause, end in _ENDS.items() if holds(child, cause)), None)
    if ended is not None:
        server.edit("trainjobs", job, lambda d: condition(d, ended, "True", server.clock()))
        return
    if suspended(job) or suspended(child):
        made = jobset_of(job, runtime())
        server.edit("jobsets", child, lambda d: _apply(d, made))
    active = {str(name): count for name, count in _active(server, child).items()}

    def change(d: Document) -> None:
        if suspended(job) or holds(d, "Suspended"):
            status = "True" if suspended(job) else "False"
            condition(d, "Suspended", status, server.clock())
        statuses = [{"name": name, "active": count} for name, count in active.items()]
        d.setdefault("status", {})["jobsStatus"] = statuses

    server.edit("trainjobs", job, change)


def _child(server: Server, job: Document) -> Document:
    """Its JobSet, which exists even while it is suspended."""
    for found in server.all("jobsets"):
        if owner_of(found) == job["metadata"]["uid"]:
            return found
    made = jobset_of(job, runtime())
    if made["metadata"]["labels"].get(keys.KIND_LABEL):
        for one in made["spec"]["replicatedJobs"]:
            gate(made, one["name"], one["template"]["spec"]["template"], job["kind"])
    return server.create("jobsets", made)


def _apply(child: Document, made: Document) -> None:
    """A server-side apply: fields of other owners stay."""
    child["spec"]["suspend"] = made["spec"]["suspend"]
    child["metadata"]["labels"] = child["metadata"].get("labels", {}) | made["metadata"]["labels"]
    for old, new in zip(
        child["spec"]["replicatedJobs"], made["spec"]["replicatedJobs"], strict=True
    ):
        here, there = (one["template"]["spec"]["template"] for one in (old, new))
        here["metadata"] = merge(here.get("metadata"), there.get("metadata", {}))
        gates = there["spec"].get("schedulingGates")
        here["spec"] |= {"schedulingGates": gates} if gates else {}


def _active(server: Server, child: Document) -> dict[str, int]:
    """The number of Jobs with pods of each replicated job."""
    found: dict[str, int] = {}
    for one in server.all("jobs"):
        if owner_of(one) == child["metadata"]["uid"]:
            name = one["metadata"]["labels"]["jobset.sigs.k8s.io/replicatedjob-name"]
            found[name] = found.get(name, 0) + bool(one.get("status", {}).get("active"))
    return found
