"""The operator of AppWrappers, one deterministic pass at a time. The components are Jobs."""

from __future__ import annotations

from tests.doubles.admission import suspended
from tests.doubles.apiserver import Document, Server, copied, owner_of
from tests.doubles.writing import holds


def sync(server: Server, wrapper: Document) -> None:
    """Create the Jobs of a resumed AppWrapper, delete those of a suspended one, and follow their ends."""
    phase = wrapper.get("status", {}).get("phase", "Suspended")
    uid = wrapper["metadata"]["uid"]
    jobs = [job for job in server.all("jobs") if owner_of(job) == uid]
    if phase in ("Succeeded", "Failed"):
        return
    if suspended(wrapper):
        left = [pod for job in jobs for pod in server.owned(job["metadata"]["uid"])]
        for job in jobs:
            server.remove("jobs", job)
        phase = "Suspending" if jobs or left else "Suspended"
    else:
        for component in wrapper["spec"]["components"]:
            _create(server, wrapper, component)
        phase = "Running"
        if any(holds(job, "Failed") for job in jobs):
            phase = "Failed"
        elif jobs and all(holds(job, "Complete") for job in jobs):
            phase = "Succeeded"
    server.edit("appwrappers", wrapper, lambda d: d.setdefault("status", {}).update(phase=phase))


def _create(server: Server, wrapper: Document, component: Document) -> None:
    """Create a component with the labels and the gates of ``podSetInfos``, unless it exists."""
    meta, job = wrapper["metadata"], copied(component["template"])
    name = job["metadata"]["name"]
    if (meta["namespace"], name) in server.objects["jobs"]:
        return
    [info] = component.get("podSetInfos") or [{}]
    template = job["spec"]["template"]
    own = {"workload.codeflare.dev/appwrapper": meta["name"]}
    labels = template.setdefault("metadata", {}).setdefault("labels", {})
    labels |= {**info.get("labels", {}), **own}
    gates = template["spec"].setdefault("schedulingGates", [])
    gates += [gate for gate in info.get("schedulingGates", ()) if gate not in gates]
    owner = {"kind": "AppWrapper", "name": meta["name"], "uid": meta["uid"], "controller": True}
    job["metadata"] |= {"namespace": meta["namespace"], "ownerReferences": [owner]}
    server.create("jobs", job)
