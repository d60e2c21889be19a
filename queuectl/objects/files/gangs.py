"""One gang of a file: a job of any kind, a Kueue Workload, or a job with its Workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from queuectl.domain.arrays import growth_of, index_of, numbers
from queuectl.domain.job_records import JobRecord, Outcome
from queuectl.domain.reasons import Reason
from queuectl.domain.workload import Growth, PodSet
from queuectl.objects.documents import Document
from queuectl.objects.errors import RequestError
from queuectl.objects.files.assignments import Assigned
from queuectl.objects.files.children import NO_CHILDREN, Children
from queuectl.objects.kinds import KINDS, JobKind, JobKinds, descriptions_of
from queuectl.objects.kinds.common import (
    read_checkpoint,
    read_evictions,
    read_idle_since,
    read_utilization,
)
from queuectl.objects.kinds.ray import cluster_of_service, is_service
from queuectl.objects.kubernetes.wire import Owner
from queuectl.objects.times import time_or_none


@dataclass(frozen=True, slots=True)
class Gang:
    """The content of a document about a gang. Times are unix seconds.

    Attributes:
        document: its source.
        uid: from the document, else ``kind/namespace/name``.
        priority: if the document has the number.
        created_at: None without a time.
        error: why its request can never be fulfilled, or None.
        forbidden: the violation of a LimitRange of its namespace, or None.
        running: whether it holds capacity: it is admitted, or a job that is not suspended.
        draft: whether it is a job that was not created yet. It would be suspended at its creation, so it is pending
            unless the input has pods of it.
        leaving: whether it is being evicted.
        assigned: its flavors and hosts by podset, from a Workload.
        charged_to: the ClusterQueue of its admission.
        inactive: whether ``spec.active: false`` holds it.
        requeue_at: end of its back-off.
        owners: objects that own its Workload.
        evictions: times of its preemptions and migrations, in any order.
        unhealthy: lost nodes, from its Workload, by name or hostname label.
        gates: its admission gates.
        labels: its labels, without those of queuectl.
        submitter: name of the user who created it, if admission recorded it.
        idle_since: the declared start of its idleness.
        max_execution: the longest time that it can run, in seconds over all attempts, if its job states one.
        expected_duration: the seconds that its user expects it to run.
        past_seconds: for which its earlier attempts ran.
        awaits: the pods of its group that are not in the input; empty if all are.
        index: of an array or elastic Job, whose indexes are gangs of their own; None = it is a job.
        growth: of an index of an elastic Job.
    """

    document: Document
    uid: str
    kind: str
    namespace: str
    name: str
    podsets: tuple[PodSet, ...] = ()
    queue: str | None = None
    priority: int | None = None
    priority_class: str | None = None
    pod_priority_class: str | None = None
    created_at: float | None = None
    preemptible: bool = True
    error: str | None = None
    unsupported: bool = False
    forbidden: Reason | None = None
    running: bool = False
    draft: bool = False
    leaving: bool = False
    finished: bool = False
    outcome: Outcome | None = None
    assigned: Mapping[str, Assigned] = field(default_factory=dict)
    charged_to: str | None = None
    started_at: float | None = None
    inactive: bool = False
    requeue_at: float | None = None
    utilization: float | None = None
    checkpoint_at: float | None = None
    owners: tuple[Owner, ...] = ()
    evictions: tuple[float, ...] = ()
    unhealthy: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    submitter: str = ""
    idle_since: float | None = None
    max_execution: float | None = None
    expected_duration: float | None = None
    past_seconds: float = 0.0
    awaits: str = ""
    index: int | None = None
    growth: Growth | None = None

    @property
    def has_uid(self) -> bool:
        """Whether its document has a uid. A uid from its names contains slashes."""
        return "/" not in self.uid

    @property
    def job(self) -> tuple[str, str, str]:
        """The key of its job, which several indexes share."""
        name = self.name if self.index is None else self.name.rpartition("_")[0]
        return self.kind, self.namespace, name

    @property
    def key(self) -> tuple[str, str, str]:
        return self.kind, self.namespace, self.name


def is_job(document: Document, kinds: JobKinds = KINDS) -> bool:
    """Whether queuectl runs jobs of its kind, or the clusters of a service."""
    if is_service(document.api_version, document.kind):
        return True
    kind = kinds.get(document.kind)
    return kind is not None and document.api_version == f"{kind.group}/{kind.version}"


def is_child(document: Document, kinds: JobKinds = KINDS) -> bool:
    """Whether the controller of another job made it, so that its pods belong to that job."""
    makers = {
        one.kind
        for one in descriptions_of(kinds)
        if document.kind in [child.kind for child in one.children]
    }
    meta = document.body.get("metadata") or {}
    return any(
        owner.get("controller") and owner.get("kind") in makers
        for owner in meta.get("ownerReferences") or ()
    )


def read_job_gangs(
    document: Document, kinds: JobKinds = KINDS, children: Children = NO_CHILDREN
) -> list[Gang]:
    """A job of any kind; the indexes of an array that its controller would run now; an elastic Job with the indexes above its gang.

    A pod of an index that is not gated shows that the index runs. A RayService that does not exist yet is the cluster that KubeRay would
    create for it, under the name of the service. Of one that exists, its RayClusters count.

    ``children``: the objects of the input with the pod templates of other jobs.

    Raises:
        DocumentError: an error that the API server would refuse.
    """
    if is_service(document.api_version, document.kind):
        if not unseen(document, (document.body.get("metadata") or {}).get("uid") or ""):
            return []
        document = replace(document, body=cluster_of_service(document.body))
    kind: JobKind = kinds[document.kind]
    try:
        record = kind.read(document.convert(kind.wire), strict=True)
    except RequestError as error:
        raise document.error("", str(error)) from None
    record = children.completed(document, record)
    job = gang_of(document, record)
    array = record.array
    if array is None or record.outcome is not None:
        return [job]
    if array.base and (record.suspended or job.draft):
        return [job]
    record = replace(record, uid=job.uid)
    if array.succeeded | array.failed:
        job = replace(job, gates=())  # its first indexes have passed them
    indexes = [index_of(record, number, ()) for number in numbers(record)]
    return [job] * (array.base > 0) + [
        replace(
            job,
            uid=one.uid,
            name=one.name,
            podsets=one.podsets,
            index=one.index.number if one.index is not None else None,
            growth=growth_of(one),
            draft=True,
            running=True,
        )
        for one in indexes
    ]


def _known_as(record: JobRecord) -> str:
    return f"{record.kind}/{record.namespace}/{record.name}"


def gang_of(document: Document, record: JobRecord) -> Gang:
    """The gang of a record. ``document``: of the job, or of its first pod."""
    meta = document.body.get("metadata") or {}
    return Gang(
        document=document,
        uid=record.uid or _known_as(record),
        kind=record.kind,
        namespace=record.namespace,
        name=record.name,
        podsets=tuple(_as_running(podset, record) for podset in record.podsets),
        queue=record.queue,
        priority_class=record.priority_class,
        pod_priority_class=record.pod_priority_class,
        created_at=time_or_none(meta.get("creationTimestamp")),
        preemptible=record.preemptible,
        error=record.error,
        unsupported=record.unsupported,
        running=not record.suspended,
        draft=not record.suspended and record.queue is not None and unseen(document, record.uid),
        finished=record.outcome is not None,
        outcome=record.outcome,
        utilization=record.utilization,
        checkpoint_at=record.checkpoint_at,
        evictions=read_evictions(meta.get("annotations")),
        gates=record.gates,
        labels=record.labels,
        submitter=record.submitter,
        idle_since=read_idle_since(meta.get("annotations")),
        max_execution=record.max_execution,
        expected_duration=record.expected_duration,
        awaits=record.awaits,
    )


def _as_running(podset: PodSet, record: JobRecord) -> PodSet:
    """A job that was started with fewer pods holds only these."""
    shrunk = record.parallelism is not None and record.parallelism.shrunk and not record.suspended
    return replace(podset, count=record.expects(podset), min_count=None) if shrunk else podset


def unseen(document: Document, uid: str) -> bool:
    """Whether the object was not created yet: it has no fields of the API server."""
    meta = document.body.get("metadata") or {}
    return not (uid or meta.get("creationTimestamp") or document.body.get("status"))


def owned(workload: Gang, jobs: Mapping[tuple[str, str, str], Gang]) -> Gang | None:
    """The job in the input to which this Workload belongs."""
    for owner in workload.owners:
        job = jobs.get((owner.kind, workload.namespace, owner.name))
        if job is not None and (not owner.uid or owner.uid == job.uid or not job.has_uid):
            return job
    return None


def merged(job: Gang, workload: Gang) -> Gang:
    """A job and its Workload as one gang: the job's name and request, the Workload's place in the queue."""
    annotations = workload.document.body["metadata"].get("annotations")
    own = job.document.body["metadata"].get("annotations")
    same = [p.name for p in job.podsets] == [p.name for p in workload.podsets]
    return replace(
        job,
        podsets=job.podsets if same else workload.podsets,
        queue=workload.queue or job.queue,
        priority=workload.priority,
        priority_class=workload.priority_class or job.priority_class,
        pod_priority_class=workload.pod_priority_class or job.pod_priority_class,
        created_at=workload.created_at if job.created_at is None else job.created_at,
        preemptible=job.preemptible and workload.preemptible,
        error=job.error or workload.error,
        unsupported=job.unsupported if job.error else workload.unsupported,
        running=workload.running,
        draft=False,
        leaving=workload.leaving,
        finished=job.finished or workload.finished,
        outcome=job.outcome,
        assigned=workload.assigned,
        charged_to=workload.charged_to,
        started_at=workload.started_at,
        inactive=workload.inactive,
        requeue_at=workload.requeue_at,
        utilization=job.utilization
        if job.utilization is not None
        else read_utilization(annotations),
        checkpoint_at=job.checkpoint_at or read_checkpoint(annotations),
        evictions=(*job.evictions, *workload.evictions),
        unhealthy=workload.unhealthy,
        idle_since=read_idle_since({**(annotations or {}), **(own or {})}),
        max_execution=job.max_execution or workload.max_execution,
        expected_duration=job.expected_duration or workload.expected_duration,
        past_seconds=workload.past_seconds,
    )
