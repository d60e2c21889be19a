"""The fate of each job when Kueue starts after queuectl: Kueue adopts it, queues it, or stops it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import msgspec

from queuectl.domain.fleet import Node
from queuectl.domain.jobs import JobRecord, OwnerKey, PodGroupMember, PodRecord, PriorAdmissions
from queuectl.domain.queues import QueueConfig
from queuectl.domain.workload import Placement
from queuectl.handover.podsets import HANDED_OVER, JOBSET, running_podsets
from queuectl.handover.scope import KueueScope
from queuectl.handover.templates import group_marks, of_pod, queue_labels, without_queuectl
from queuectl.handover.trainjobs import TRAINJOB, jobset_for_kueue, queued_patches
from queuectl.handover.workloads import (
    AdmittedGang,
    RunningPodSet,
    WorkloadOwner,
    group_metadata,
    pod_patch,
    workload_of,
)
from queuectl.lifecycle.adoption import running_placement
from queuectl.objects import keys
from queuectl.objects.errors import UNREADABLE, RequestError
from queuectl.objects.kinds import KINDS, JobKind
from queuectl.objects.kinds.places import field as field_of
from queuectl.objects.kinds.pods import POD, POD_GROUP, WireMember, read_member
from queuectl.objects.kinds.trainjob import composed, runtime_of
from queuectl.objects.kubernetes.pods import read_pod
from queuectl.objects.kubernetes.wire import WirePod
from queuectl.state.kueue_pods import KueuePods
from queuectl.state.pod_groups import PodGroups

Document = Mapping[str, Any]
PodDocument = tuple[PodRecord, Document]

MANAGED_LABEL: Final = "kueue.x-k8s.io/managed"
POD_FINALIZER: Final = "kueue.x-k8s.io/managed"
_KEEP_CLASS: Final = frozenset({"Job", "JobSet"})
"""The kinds whose API servers refuse another PriorityClass in a template."""
_RAY_SERVICE: Final = "RayService"
_STATEFUL_SET: Final = "StatefulSet"
_POD_INDEX: Final = "kueue.x-k8s.io/pod-group-pod-index"
_MOST_PODSETS: Final = 8
_GATED: Final = "a gate cannot be added to a pod that exists: create it again"
_STOPS: Final = "Kueue suspends a running job without an admitted Workload"
_OUTSIDE: Final = "it neither stops this job nor starts it"


@dataclass(frozen=True, slots=True)
class HandoverObjects:
    """The objects that decide about the jobs.

    Attributes:
        jobs: by kind.
        pods: all pods.
        nodes: by name.
        config: from the objects of Kueue.
        priority_classes: numbers of the PriorityClasses of Kubernetes, by name.
        prior: what Kueue decided before queuectl.
        runtimes: of TrainJobs, by kind, namespace ("" = none) and name.
        namespaces: their labels, by name.
        scope: the jobs that Kueue manages.
        now: unix seconds.
    """

    jobs: Mapping[str, Sequence[Document]]
    pods: Sequence[Document]
    nodes: Mapping[str, Node]
    config: QueueConfig
    now: float
    priority_classes: Mapping[str, int] = field(default_factory=dict)
    prior: PriorAdmissions = field(default_factory=PriorAdmissions)
    runtimes: Mapping[tuple[str, str, str], Document] = field(default_factory=dict)
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    scope: KueueScope = KueueScope()

    def runtime_of(self, trainjob: Document) -> Document | None:
        """None if it does not exist."""
        kind, name = runtime_of(trainjob)
        namespace = "" if kind.startswith("Cluster") else _name(trainjob)[0]
        return self.runtimes.get((kind, namespace, name))


@dataclass(frozen=True, slots=True)
class Adopted:
    """Kueue keeps it running.

    Attributes:
        workload: to be created, with its status.
        labels: of Kueue that the owner lacks; a pod gets them with its patch.
        pods: (namespace, name, merge patch) of its pods.
    """

    owner: WorkloadOwner
    workload: Document
    labels: Mapping[str, str]
    pods: Sequence[tuple[str, str, Document]]


@dataclass(frozen=True, slots=True)
class Queued:
    """It is suspended, and Kueue queues it.

    Attributes:
        document: the whole object without queuectl's gate.
        clear_start: it ran before, so the API server may refuse another template while its start time is set.
        children: the objects that its controller has created with the gate. They are written before it: its controller reads them.
    """

    owner: WorkloadOwner
    document: Document
    clear_start: bool
    children: Sequence[Queued] = ()


@dataclass(frozen=True, slots=True)
class Stopped:
    """Kueue stops it, or never starts it.

    Attributes:
        reason: a sentence.
    """

    owner: WorkloadOwner
    reason: str


Fate = Adopted | Queued | Stopped


def fates(cluster: HandoverObjects) -> Iterator[Fate]:
    """The fate of each job in a queue that has not ended, by kind, namespace and name."""
    for fate in _fates(cluster):
        owner = fate.owner
        labels = cluster.namespaces.get(owner.namespace, {})
        outside = cluster.scope.reason_outside(owner.group, owner.kind, owner.namespace, labels)
        yield fate if outside is None else Stopped(owner, f"{outside}: {_OUTSIDE}")


def _fates(cluster: HandoverObjects) -> Iterator[Fate]:
    jobs = [
        _read_job(kind, document)
        for name, kind in KINDS.items()
        for document in sorted(cluster.jobs.get(name, ()), key=_name)
    ]
    owned = _owned(cluster, jobs)
    for job in jobs:
        fate = _fate(job, owned, cluster)
        if fate is not None:
            yield fate
    yield from _queued_pods(cluster)


def _owned(cluster: HandoverObjects, jobs: Sequence[_Job]) -> _Owned:
    """The pods of each job, including those that Kueue started and queuectl adopted."""
    of_kueue = KueuePods(KINDS)
    for job in jobs:
        if job.record is not None:
            of_kueue.put_job(job.record)
    pods = defaultdict[OwnerKey, list[PodDocument]](list)
    for document in cluster.pods:
        pod = _pod(document)
        if pod is not None:
            owned = of_kueue.put(pod)
            pods[owned.owned_by].append((owned, document))
    children = defaultdict[OwnerKey, list[_Job]](list)
    for job in jobs:
        for one in _controllers(job.document):
            key = OwnerKey(str(one.get("kind")), job.owner.namespace, str(one.get("uid", "")))
            children[key].append(job)
    return _Owned(pods, children)


def _name(document: Document) -> tuple[str, str]:
    meta = document["metadata"]
    return meta.get("namespace") or "default", meta["name"]


def _pod(document: Document) -> PodRecord | None:
    try:
        return read_pod(msgspec.convert(document, WirePod, strict=False))
    except UNREADABLE:
        return None


def _owner(group: str, version: str, kind: str, document: Document) -> WorkloadOwner:
    namespace, name = _name(document)
    return WorkloadOwner(
        group, version, kind, namespace, name, str(document["metadata"].get("uid", ""))
    )


def _controlled(document: Document) -> bool:
    """Whether the controller of another job made it."""
    return any(one.get("kind") in KINDS for one in _controllers(document))


def _controllers(document: Document) -> list[Document]:
    owners = document["metadata"].get("ownerReferences") or ()
    return [one for one in owners if one.get("controller")]


# ---- Jobs


@dataclass(frozen=True, slots=True)
class _Job:
    """A job as it was read. ``record``: None if it cannot be read, with the ``error``."""

    kind: JobKind
    document: Document
    owner: WorkloadOwner
    record: JobRecord | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class _Owned:
    """Objects that the controllers of jobs have created, by the job: pods, and other jobs."""

    pods: Mapping[OwnerKey, Sequence[PodDocument]]
    jobs: Mapping[OwnerKey, Sequence[_Job]]

    def jobset_of(self, trainjob: OwnerKey, name: str) -> _Job | None:
        """It has the name of the TrainJob."""
        jobs = self.jobs.get(trainjob, ())
        return next(
            (one for one in jobs if (one.kind.kind, one.owner.name) == (JOBSET, name)), None
        )


def _read_job(kind: JobKind, document: Document) -> _Job:
    owner = _owner(kind.group, kind.version, kind.kind, document)
    try:
        record = kind.read(msgspec.convert(document, kind.wire, strict=False))
    except UNREADABLE as error:
        return _Job(kind, document, owner, None, str(error))
    return _Job(kind, document, owner, record)


def _fate(job: _Job, owned: _Owned, cluster: HandoverObjects) -> Fate | None:
    """Its fate; None if it is in no queue, or has ended."""
    record, owner, document = job.record, job.owner, job.document
    if record is None:
        return Stopped(owner, f"it cannot be read: {job.error}")
    if record.queue is None or record.outcome or record.deleting or _controlled(document):
        return None
    if record.suspended:
        if record.kind not in HANDED_OVER:
            text = f"the templates of a {record.kind} keep the gate of queuectl: create it again in Kueue"
            return Stopped(owner, text)
        children = tuple(_gated_children(owner, owned))
        return Queued(owner, _queued(job.kind, record, document), _has_started(document), children)
    try:
        return _adopted(owner, document, record, owned, cluster)
    except UNREADABLE as error:
        return Stopped(owner, f"{error}. {_STOPS}")


def _has_started(document: Document) -> bool:
    return bool((document.get("status") or {}).get("startTime"))


def _gated_children(parent: WorkloadOwner, owned: _Owned) -> Iterator[Queued]:
    """The suspended jobs under a job whose templates have the gate. Their controllers do not remove it from jobs that exist."""
    for child in owned.jobs.get(OwnerKey.of(parent), ()):
        yield from _gated_children(child.owner, owned)
        record, document = child.record, child.document
        if record is not None and record.suspended and _is_gated(child.kind, document):
            cleaned = _cleaned(child.kind, record, document)
            yield Queued(child.owner, cleaned, _has_started(document))


def _is_gated(kind: JobKind, document: Document) -> bool:
    gates = (field_of(one, "spec.schedulingGates") or () for one in kind.templates(document))
    return any(gate.get("name") == keys.GATE for listed in gates for gate in listed)


def _queued(kind: JobKind, record: JobRecord, document: Document) -> Document:
    """A suspended job as Kueue queues it."""
    queued = _cleaned(kind, record, document)
    meta = queued["metadata"]
    labels = meta.get("labels") or {}
    meta["labels"] = labels | queue_labels(labels)
    if kind.kind == TRAINJOB:
        queued["spec"]["runtimePatches"] = queued_patches(document, record.queue or "")
    return queued


def _cleaned(kind: JobKind, record: JobRecord, document: Document) -> dict[str, Any]:
    """A suspended job without the gate in its templates. The API server keeps the PriorityClass of a Job."""
    cleaned = deepcopy(dict(document))
    for template in kind.templates(cleaned):
        without = without_queuectl(
            template, record.pod_priority_class, keep_class=kind.kind in _KEEP_CLASS
        )
        assert isinstance(template, dict)  # it is a part of the copy
        template.clear()
        template.update(without)
    cleaned["metadata"].pop("managedFields", None)
    cleaned.pop("status", None)
    return cleaned


def _adopted(
    owner: WorkloadOwner,
    document: Document,
    record: JobRecord,
    owned: _Owned,
    cluster: HandoverObjects,
) -> Adopted:
    """Raises RequestError with the reason why Kueue would stop it."""
    if record.kind not in HANDED_OVER:
        raise RequestError(f"no Workload is written for a {record.kind}")
    if _RAY_SERVICE in (one.get("kind") for one in _controllers(document)):
        raise RequestError(f"Kueue queues its {_RAY_SERVICE}, and no Workload is written for one")
    if record.array is not None:
        raise RequestError(
            "Kueue has no arrays, and the Workloads of elastic jobs have another form"
        )
    key = OwnerKey.of(record)
    of_job = owned.pods.get(key, ())
    holder = document
    if record.kind == TRAINJOB:
        record = _with_jobset(record, owned.jobset_of(key, record.name))
        holder = jobset_for_kueue(document, cluster.runtime_of(document))
    placement = _placement(record, [pod for pod, _ in of_job], cluster)
    podsets = list(running_podsets(holder, record, placement))
    return _with_workload(owner, document, record, podsets, of_job, cluster)


def _with_jobset(record: JobRecord, jobset: _Job | None) -> JobRecord:
    """The record of a TrainJob with the request of its JobSet in the cluster, whose pods run."""
    if jobset is None:
        raise RequestError("its JobSet does not exist")
    if jobset.record is None:
        raise RequestError(f"its JobSet cannot be read: {jobset.error}")
    return composed(record, jobset.record)


def _placement(record: JobRecord, pods: Sequence[PodRecord], cluster: HandoverObjects) -> Placement:
    if record.error is not None:
        raise RequestError(f"its request cannot be honored: {record.error}")
    if cluster.config.cluster_queue_of(record.namespace, record.queue) is None:
        raise RequestError(f"Kueue has no LocalQueue {record.queue}, or it has no ClusterQueue")
    prior = cluster.prior.of(record)
    placement = running_placement(record, pods, cluster.nodes, cluster.config, prior)
    if placement is None:
        raise RequestError("some of its pods do not run")
    return placement


# ---- Pods


def _queued_pods(cluster: HandoverObjects) -> Iterator[Fate]:
    """The fates of the pods with their own queue, and of their groups."""
    groups = PodGroups()
    documents: dict[str, Document] = {}
    for document in sorted(cluster.pods, key=_name):
        owner = _owner("", "v1", POD, document)
        try:
            member = _member(document)
        except UNREADABLE as error:
            yield Stopped(owner, f"it cannot be read: {error}")
            continue
        if member is None:
            continue
        pod, queued = member
        if queued.group and not queued.parent:
            documents[pod.uid] = document
            groups.put(pod)
        elif pod.gated:
            yield Stopped(owner, _GATED)
        else:
            yield _or_stopped(owner, partial(_adopted_pod, owner, document, pod, queued, cluster))
    for key in groups.changed():
        _, record, pods = groups.settle(key)
        if record is not None and record.outcome is None:
            yield _pod_group(record, [(one, documents[one.uid]) for one in pods.values()], cluster)


def _or_stopped(owner: WorkloadOwner, adopt: Callable[[], Adopted]) -> Fate:
    try:
        return adopt()
    except UNREADABLE as error:
        return Stopped(owner, f"{error}. It runs on outside the queues of Kueue")


def _member(document: Document) -> tuple[PodRecord, PodGroupMember] | None:
    """A pod with its own queue, and its request; None if it has none, or has ended. Raises one of UNREADABLE."""
    meta = document["metadata"]
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    taken_in = keys.SUBMITTED_BY in annotations or labels.get(MANAGED_LABEL) == "true"
    if not taken_in or _controlled(document):
        return None
    record = read_pod(msgspec.convert(document, WirePod, strict=False))
    member = read_member(msgspec.convert(document, WireMember, strict=False))
    if member.job.queue is None or member.job.outcome or record.terminating:
        return None
    podset = next((one.name for one in member.job.podsets), record.podset)
    return replace(record, member=member, podset=podset), member


def _pod_group(record: JobRecord, pods: Sequence[PodDocument], cluster: HandoverObjects) -> Fate:
    """The fate of a group of pods."""
    owner = WorkloadOwner("", "v1", POD_GROUP, record.namespace, record.name, record.uid)
    if record.suspended:
        return Stopped(owner, _GATED)
    return _or_stopped(owner, partial(_adopted_group, owner, record, pods, cluster))


def _adopted_group(
    owner: WorkloadOwner,
    record: JobRecord,
    pods: Sequence[PodDocument],
    cluster: HandoverObjects,
) -> Adopted:
    """Raises RequestError with the reason why Kueue would not manage it."""
    for _, document in pods:
        if _STATEFUL_SET in (one.get("kind") for one in _controllers(document)):
            # Kueue would keep a deleted pod until its replacement runs, and both have the same name.
            raise RequestError(f"no Workload is written for a {_STATEFUL_SET}")
    members = [pod.member for pod, _ in pods if pod.member is not None]
    total = members[0].total or 1
    if len(pods) != total or record.pods != total:
        text = f"{len(pods)} of its {total} pods run, and Kueue counts those that have ended"
        raise RequestError(text)
    placement = _placement(record, [pod for pod, _ in pods], cluster)
    placed = {one.podset: one for one in placement.podsets}
    first = {pod.podset: document for pod, document in reversed(pods)}
    podsets = [
        RunningPodSet(
            one,
            of_pod(first[one.name], record.pod_priority_class),
            one.count,
            one.count,
            placed[one.name],
            index_label=_POD_INDEX,
        )
        for one in sorted(record.podsets, key=lambda one: one.name)
    ]
    document = {"metadata": {"labels": first[podsets[0].request.name]["metadata"].get("labels")}}
    return _with_workload(owner, document, record, podsets, pods, cluster)


def _adopted_pod(
    owner: WorkloadOwner,
    document: Document,
    pod: PodRecord,
    member: PodGroupMember,
    cluster: HandoverObjects,
) -> Adopted:
    """Raises RequestError with the reason why Kueue would not manage it."""
    if member.parent:
        raise RequestError("no Workload is written for a LeaderWorkerSet")
    if not member.job.podsets:
        raise RequestError(f"its request cannot be honored: {member.job.error}")
    podset = replace(member.job.podsets[0], name=keys.JOB_PODSET)
    job = replace(member.job, podsets=(podset,), suspended=False)
    pod = replace(pod, podset=podset.name, attempt=job.attempt)
    [placed] = _placement(job, [pod], cluster).podsets
    template = of_pod(document, job.pod_priority_class)
    running = RunningPodSet(podset, template, 1, 1, placed, index_label=_POD_INDEX)
    return _with_workload(owner, document, job, [running], [(pod, document)], cluster)


# ---- Workloads


def _with_workload(
    owner: WorkloadOwner,
    document: Document,
    record: JobRecord,
    podsets: Sequence[RunningPodSet],
    pods: Sequence[PodDocument],
    cluster: HandoverObjects,
) -> Adopted:
    queue = cluster.config.cluster_queue_of(record.namespace, record.queue)
    assert queue is not None  # _placement checks it
    if len(podsets) > _MOST_PODSETS:
        raise RequestError(
            f"a Workload of Kueue has at most {_MOST_PODSETS} podsets, not {len(podsets)}"
        )
    labels = dict(document["metadata"].get("labels") or {})
    added = queue_labels(labels)
    flavors = {flavor for one in podsets for flavor in one.placement.flavors.values()}
    priority, reference = _priority(record, cluster)
    prior = cluster.prior.of(record)
    started = [pod.started_at for pod, _ in pods if pod.started_at is not None]
    admitted_at = prior.admitted_at if prior is not None else None
    gang = AdmittedGang(
        owner,
        record.queue or "",
        queue,
        podsets,
        labels | added,
        admitted_at or min(started, default=cluster.now),
        priority,
        reference,
        [rule.name for rule in queue.admission_checks if rule.applies(flavors)],
    )
    workload = workload_of(gang, cluster.config, cluster.nodes)
    names = {one.request.name for one in podsets}
    patches = [
        (pod.namespace, pod.name, _patched(owner, found, workload, pod.podset, added))
        for pod, found in pods
        if not pod.terminal and pod.podset in names
    ]
    if owner.kind == POD_GROUP:
        workload["metadata"] |= group_metadata([document for _, document in pods])
    return Adopted(owner, workload, added if owner.group else {}, patches)


def _patched(
    owner: WorkloadOwner, pod: Document, workload: Document, podset: str, added: Mapping[str, str]
) -> Document:
    patch = pod_patch(pod, workload, podset)
    if not owner.group:
        # One patch: a second one would meet another resourceVersion.
        patch["metadata"]["labels"] |= {**added, MANAGED_LABEL: "true"}
        if owner.kind == POD_GROUP:
            labels, annotations = group_marks(pod, podset)
            patch["metadata"]["labels"] |= labels
            patch["metadata"]["annotations"] |= annotations
        present = pod["metadata"].get("finalizers") or []
        if POD_FINALIZER not in present:
            patch["metadata"]["finalizers"] = [*present, POD_FINALIZER]
            # A patch of a list replaces it: another writer must not lose its finalizer.
            patch["metadata"]["resourceVersion"] = pod["metadata"]["resourceVersion"]
    return patch


def _priority(record: JobRecord, cluster: HandoverObjects) -> tuple[int, Mapping[str, str] | None]:
    """The number, and the reference to the class, as Kueue reads them from the job."""
    name = record.priority_class
    if name is not None:
        value = cluster.config.priority_classes.get(name)
        if value is None:
            raise RequestError(f"Kueue has no WorkloadPriorityClass {name}")
        reference = {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": name}
        return value, reference
    name = record.pod_priority_class
    if name is not None and name in cluster.priority_classes:
        reference = {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": name}
        return cluster.priority_classes[name], reference
    return 0, None
