"""Admission and validation of jobs and pods, as in deploy/ and the API server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from queuectl.domain.gates import MOST_DEPENDENCIES
from queuectl.domain.mig import ANNOTATION, CONFIG, STATE
from queuectl.objects import keys
from queuectl.objects.kinds.description import Description, PodLabels, labels_pods
from queuectl.objects.kinds.places import entries, field
from queuectl.objects.kubernetes.node_affinity import REQUIRED
from tests.doubles.apiserver import Document, copied, refuse
from tests.doubles.known import DESCRIBED

CONTROLLER = "system:serviceaccount:queuectl-system:queuectl"
OURS, THEIRS = keys.QUEUE_LABEL, keys.KUEUE_PREFIX + keys.QUEUE_NAME
_PARKED = re.compile(r"Deactivated: |(Held|Evicting): (Held|Deactivated)")
WRITTEN_BY_US = (
    keys.ATTEMPT_LABEL,
    keys.PODSET_LABEL,
    keys.WORKLOAD_LABEL,
    keys.KIND_LABEL,
    keys.RANKS_LABEL,
    keys.FIRST_RANK_LABEL,
)


def description_of(job: Document) -> Description:
    """The description of a job of any kind but ``batch/v1`` Job."""
    [found] = [one for one in DESCRIBED if one.kind == job["kind"]]
    return found


def suspender(job: Document) -> Document:
    """The part of a job's spec with ``suspend``."""
    if job["kind"] == "Job":
        spec: Document = job["spec"]
        return spec
    part = job
    for name in description_of(job).suspend.split(".")[:-1]:
        part = part.setdefault(name, {})
    return part


def suspended(job: Document) -> bool:
    return bool(suspender(job).get("suspend"))


def replicas(job: Document) -> Document:
    """The podsets of a job of ``kubeflow.org``, by replica type."""
    [where] = description_of(job).podsets
    found: Document = field(job, where.path)
    return found


def templates(job: Document) -> Iterator[tuple[str, Document]]:
    """(podset, template)."""
    if job["kind"] == "Job":
        yield "main", job["spec"]["template"]
        return
    for entry in entries(description_of(job).podsets, job):
        if entry.where.labels is not None:
            yield entry.podset, _after_admission(entry.content, entry.where.labels)
            continue
        template: Any = entry.template
        yield entry.podset, template


def _after_admission(content: Document, where: PodLabels) -> Document:
    """The fields of an entry that a template has: admission gates the pods with these labels."""
    labels = content.get(where.path, {})
    gates = [{"name": keys.GATE}] if keys.KIND_LABEL in labels else []
    return {"metadata": {"labels": labels}, "spec": {"schedulingGates": gates}}


def queue_of(document: Document) -> str | None:
    labels = document["metadata"].get("labels", {})
    queue: str | None = labels.get(OURS, labels.get(THEIRS))
    return queue


def gated(spec: Document) -> bool:
    return any(gate["name"] == keys.GATE for gate in spec.get("schedulingGates", ()))


def born(document: Document, namespace: Document | None = None, user: str = "alice") -> Document:
    """A job as admission stores it. With a queue label, or in a namespace with a default queue, it is suspended and gated."""
    job = copied(document)
    of_namespace = (namespace or {}).get("metadata", {}).get("labels", {})
    if queue_of(job) is None and of_namespace.get(keys.DEFAULT_QUEUE_LABEL) == "true":
        job["metadata"].setdefault("labels", {})[OURS] = "default"
    if queue_of(job) is None:
        return job
    labels = job["metadata"]["labels"]
    differ = OURS in labels and THEIRS in labels and labels[OURS] != labels[THEIRS]
    refuse(differ, "the labels queue-name name different queues: keep one of them")
    refuse(queue_of(job) == "", "the label queue-name is empty")
    refuse(_after_itself(job), "names this job, which would wait for itself")
    refuse(len(_after(job).split(",")) > MOST_DEPENDENCIES, "lists more than 100 jobs")
    suspender(job)["suspend"] = True
    job["metadata"].setdefault("annotations", {})[keys.SUBMITTED_BY] = user
    parent = job["kind"] if job["kind"] != "Job" and description_of(job).children else ""
    if job["kind"] != "Job" and labels_pods(description_of(job)):
        _label(job)
    else:
        for podset, template in templates(job):
            gate(job, podset, template, parent)
    if job["kind"] in keys.PARENT_KINDS:
        _mark(job)
    return job


def _after(job: Document) -> str:
    value: str = job["metadata"].get("annotations", {}).get(keys.PREFIX + keys.AFTER, "")
    return value


def _after_itself(job: Document) -> bool:
    listed = _after(job)
    own = f"{job['kind']}/{job['metadata']['name']}".lower()
    return any(one.strip().lower().split(":")[0] == own for one in listed.split(","))


def gate(job: Document, podset: str, template: Document, kind: str) -> None:
    """Gate a pod template of an object. ``kind``: of the workload, if another object controls the pods."""
    spec = template["spec"]
    own = spec.get("priorityClassName", keys.POD_PRIORITY_CLASS)
    if own != keys.POD_PRIORITY_CLASS:
        annotations = job["metadata"].setdefault("annotations", {})
        annotations.setdefault(keys.ORIGINAL_PRIORITY_CLASS, own)
    spec["priorityClassName"] = keys.POD_PRIORITY_CLASS
    if not gated(spec):
        spec.setdefault("schedulingGates", []).append({"name": keys.GATE})
    labels = template.setdefault("metadata", {}).setdefault("labels", {})
    labels |= {keys.PODSET_LABEL: podset, keys.ATTEMPT_LABEL: "0"}
    labels |= {keys.KIND_LABEL: kind} if kind else {}


def _label(job: Document) -> None:
    """Give the podsets of a job the labels by which admission gates their pods."""
    for entry in entries(description_of(job).podsets, job):
        assert entry.where.labels is not None
        own = {keys.ATTEMPT_LABEL: "0", keys.KIND_LABEL: job["kind"]}
        labels = entry.content.setdefault(entry.where.labels.path, {})
        labels |= {keys.PODSET_LABEL: entry.podset, **own}


def _mark(job: Document) -> None:
    """Give a TrainJob the entry of queuectl, by which admission recognizes its JobSet."""
    labels = {keys.KIND_LABEL: job["kind"], keys.ATTEMPT_LABEL: "0"}
    changes = {"template": {"metadata": {"labels": labels}}}
    entry = {"manager": keys.PATCHES_OWNER, "trainingRuntimeSpec": changes}
    others = job["spec"].get("runtimePatches", ())
    kept = [one for one in others if one["manager"] != keys.PATCHES_OWNER]
    job["spec"]["runtimePatches"] = [*kept, entry]


def pod_born(document: Document, user: str = "alice") -> Document:
    """A pod as admission stores it. With its own queue label, it is gated."""
    pod = copied(document)
    if queue_of(pod) is None:
        return pod
    refuse(queue_of(pod) == "", "the label queue-name is empty")
    refuse(any(_ours(pod)), "only queuectl writes")
    annotations = pod["metadata"].setdefault("annotations", {})
    annotations[keys.SUBMITTED_BY] = user
    spec = pod["spec"]
    if (own := spec.get("priorityClassName", "")) not in ("", keys.POD_PRIORITY_CLASS):
        annotations[keys.ORIGINAL_PRIORITY_CLASS] = own
    spec |= {"priorityClassName": keys.POD_PRIORITY_CLASS, "priority": keys.POD_PRIORITY}
    if not gated(spec):
        spec.setdefault("schedulingGates", []).append({"name": keys.GATE})
    pod["status"] = {"phase": "Pending"}
    return pod


def set_born(document: Document) -> Document:
    """A LeaderWorkerSet as admission stores it: its templates have the labels of its queue and priority."""
    one = copied(document)
    copies = (keys.QUEUE_NAME, keys.PRIORITY_CLASS)
    named = {prefix + key for prefix in (keys.PREFIX, keys.KUEUE_PREFIX) for key in copies}
    labels = {key: own for key, own in one["metadata"]["labels"].items() if key in named}
    group = one["spec"]["leaderWorkerTemplate"]
    for template in (group[key] for key in ("leaderTemplate", "workerTemplate") if key in group):
        template.setdefault("metadata", {}).setdefault("labels", {}).update(labels)
    return one


def check_job(user: str, old: Document, new: Document) -> None:
    """Raise WriteRefused unless this user may make this change."""
    running = not suspended(old)
    if old["kind"] == "AppWrapper" and user != CONTROLLER:
        changed = old["spec"]["components"] != new["spec"]["components"]
        refuse(
            changed and queue_of(old) is not None, "the components of an AppWrapper do not change"
        )
    if old["kind"] == "Job":
        status = old.get("status", {})
        fixed = running or bool(status.get("active"))
        refuse(fixed and old["spec"]["template"] != new["spec"]["template"], "field is immutable")
    if queue_of(old) is None and queue_of(new) is None:
        return
    refuse(
        any(gated(t["spec"]) for _, t in templates(old))
        and not all(gated(t["spec"]) for _, t in templates(new)),
        f"the scheduling gate {keys.GATE} cannot be removed",
    )
    if user == CONTROLLER:
        return
    refuse(queue_of(old) != queue_of(new), "a job cannot change its queue")
    refuse(suspended(old) and not suspended(new), "only queuectl may resume it")
    before, after = (d["metadata"].get("annotations", {}) for d in (old, new))
    array = keys.PREFIX + keys.ARRAY
    elastic = [prefix + keys.ELASTIC_JOB for prefix in (keys.PREFIX, keys.KUEUE_PREFIX)]
    resizes = old["kind"] == "Job" and any(after.get(key) == "true" for key in (array, *elastic))
    resized = _shape(old) != _shape(new) and not resizes
    refuse(running and resized, "its pods cannot change while it runs")
    lasting = (array, *elastic, keys.BASE_COUNT, keys.ORIGINAL_PARALLELISM)
    differs = any(before.get(key) != after.get(key) for key in lasting)
    refuse(running and differs, "it cannot become an array or elastic now, or stop being one")
    changed = before.get(keys.SUBMITTED_BY) != after.get(keys.SUBMITTED_BY)
    refuse(changed, "it is the name of the user who created the job")
    was, now = before.get(keys.STATUS_ANNOTATION, ""), after.get(keys.STATUS_ANNOTATION, "")
    refuse(bool(_PARKED.match(was)) and was != now, "only queuectl writes")
    refuse(_entry(old) != _entry(new), "only queuectl writes")
    earlier = dict(templates(old))
    for podset, template in templates(new):
        known = _ours(earlier.get(podset, {}))
        refuse(known != _ours(template), "only queuectl writes")


def check_pod(user: str, old: Document, new: Document) -> None:
    """Raise WriteRefused unless this user may make this change."""
    before, after = old["spec"], new["spec"]
    names = [gate["name"] for gate in before.get("schedulingGates", ())]
    added = [g for g in after.get("schedulingGates", ()) if g["name"] not in names]
    refuse(bool(added), "gates can only be removed")
    selector, wanted = before.get("nodeSelector", {}), after.get("nodeSelector", {})
    refuse(not names and selector != wanted, "nodeSelector is immutable once a pod has no gates")
    refuse(not selector.items() <= wanted.items(), "nodeSelector: additions only")
    required, needed = _terms(before), _terms(after)
    refuse(not names and required != needed, "affinity is immutable once a pod has no gates")
    extends = len(required) == len(needed) and all(map(_extends, needed, required))
    refuse(bool(required) and not extends, "nodeSelectorTerms: additions to each term only")
    kept = [one in after.get("tolerations", ()) for one in before.get("tolerations", ())]
    refuse(not all(kept), "tolerations: additions only")
    if user == CONTROLLER:
        return
    refuse(
        gated(before) and not gated(after), f"only queuectl removes the scheduling gate {keys.GATE}"
    )
    placed = selector != wanted or required != needed
    refuse(gated(before) and placed, "only queuectl decides where it runs")
    refuse(queue_of(old) != queue_of(new), "a pod cannot change its queue")
    refuse(
        (keys.ATTEMPT_LABEL in old["metadata"].get("labels", {})) and _ours(old) != _ours(new),
        "only queuectl writes",
    )


def _terms(spec: Document) -> list[Document]:
    """The terms of the required node affinity of a pod."""
    node = spec.get("affinity", {}).get("nodeAffinity", {})
    terms: list[Document] = node.get(REQUIRED, {}).get("nodeSelectorTerms", [])
    return terms


def _extends(new: Document, old: Document) -> bool:
    """Whether a term only has further requirements at the end of its lists. A term that matches no node stays so."""
    lists = ("matchExpressions", "matchFields")
    if not any(old.get(name) for name in lists):
        return new == old
    return all(new.get(name, [])[: len(old.get(name, []))] == old.get(name, []) for name in lists)


def _ours(document: Document) -> list[Any]:
    labels = document.get("metadata", {}).get("labels", {})
    return [labels.get(key) for key in WRITTEN_BY_US]


def _entry(job: Document) -> list[Document]:
    """The entry of queuectl in the list of a TrainJob."""
    entries: list[Document] = job["spec"].get("runtimePatches", [])
    return [one for one in entries if one["manager"] == keys.PATCHES_OWNER]


def _shape(job: Document) -> Any:
    """The fields that may not change while a job runs, except those that the API server protects (the template of a Job)."""
    if job["kind"] == "Job":
        return job["spec"].get("parallelism", 1)
    one = description_of(job)
    return [field(job, path) for path in (*(where.path for where in one.podsets), *one.fixed)]


def check_node(user: str, old: Document, new: Document) -> None:
    """Raise WriteRefused unless this user may make this change (deploy/optional/mig-reconfiguration.yaml)."""
    if user != CONTROLLER:
        return
    refuse(_without_mig(old) != _without_mig(new), "written by others alone")
    marked = [ANNOTATION in d["metadata"].get("annotations", {}) for d in (old, new)]
    closed = [bool(d["spec"].get("unschedulable")) for d in (old, new)]
    refuse(closed == [False, True] and not marked[1], "a cordon without the annotation")
    refuse(closed == [True, False] and not marked[0], "a cordon of others")


def _without_mig(node: Document) -> Document:
    rest = copied(node)
    for key in (CONFIG, STATE):
        rest["metadata"].get("labels", {}).pop(key, None)
    annotations = rest["metadata"].pop("annotations", {})
    rest["metadata"]["others"] = {k: v for k, v in annotations.items() if k != ANNOTATION}
    rest["spec"].pop("unschedulable", None)
    return rest
