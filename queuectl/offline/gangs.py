"""The gangs of documents: jobs of any kind, Kueue Workloads, and jobs with their Workloads."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from queuectl.domain.admission import PodAdmission, created
from queuectl.domain.arrays import has_begun
from queuectl.domain.jobs import JobRecord
from queuectl.domain.queues import DEFAULT_NAME, LocalQueue, QueueConfig
from queuectl.domain.request_rules import ContainerNeeds
from queuectl.domain.workload import PodSet
from queuectl.objects.documents import Document
from queuectl.objects.errors import RequestError
from queuectl.objects.files.assignments import Assigned
from queuectl.objects.files.children import Children
from queuectl.objects.files.records import unseen
from queuectl.objects.files.workloads import KIND as WORKLOAD
from queuectl.objects.files.workloads import GivenWorkload
from queuectl.objects.kinds import JobKinds
from queuectl.objects.kinds.common import read_evictions, read_idle_since
from queuectl.objects.kinds.description import BATCH_JOB
from queuectl.objects.kinds.ray import cluster_of_service, is_service
from queuectl.objects.times import time_or_none

Key = tuple[str, str, str]
"""Kind, namespace and name."""


@dataclass(frozen=True, slots=True)
class DocumentedGang:
    """A gang, or an array, as its documents have it.

    Attributes:
        document: of the job; of the Workload without it; of the first pod for a gang of pods.
        position: in the order of the input.
        record: of the job, with the changes of its Workload.
        created_at: unix seconds; None without a time.
        workload: its Workload, if there is one.
        draft: it is a job that was not created yet. It would be suspended at its creation, so it waits.
    """

    document: Document
    position: int
    record: JobRecord
    created_at: float | None
    workload: GivenWorkload | None = None
    draft: bool = False

    @property
    def key(self) -> Key:
        """Of its job, or of its Workload without one."""
        return self.record.kind, self.record.namespace, self.record.name

    @property
    def has_uid(self) -> bool:
        """Whether its document has a uid. A uid from its names contains slashes."""
        return "/" not in self.record.uid

    @property
    def runs(self) -> bool:
        """Whether it holds capacity. An admission decides, whatever the job states."""
        if self.workload is not None:
            return self.workload.admitted
        return not self.record.suspended and not self.draft

    @property
    def leaves(self) -> bool:
        """Whether it runs, and is being evicted."""
        return self.workload is not None and self.workload.leaves

    @property
    def finished(self) -> bool:
        """Whether it has ended."""
        ended = self.workload is not None and self.workload.finished
        return ended or self.record.outcome is not None

    @property
    def assigned(self) -> Mapping[str, Assigned]:
        """Flavors and hosts by podset, of an admission."""
        return self.workload.assigned if self.workload is not None else {}

    @property
    def evictions(self) -> tuple[float, ...]:
        """The times of its preemptions and migrations, oldest first."""
        own = read_evictions(_annotations(self.document))
        return tuple(sorted({*own, *(self.workload.evictions if self.workload else ())}))

    @property
    def idle_since(self) -> float | None:
        """The declared start of its idleness."""
        of_workload = self.workload.annotations if self.workload is not None else {}
        return read_idle_since({**of_workload, **_annotations(self.document)})


def _annotations(document: Document) -> dict[str, Any]:
    return (document.body.get("metadata") or {}).get("annotations") or {}


def as_uid(text: str) -> str:
    """A uid without dots, which would divide it from the number of an index. No name and no uid of Kubernetes has a tilde."""
    return text.replace(".", "~")


def documented(document: Document, position: int, record: JobRecord) -> DocumentedGang:
    """The gang of a record. Without a uid, it gets one of its names."""
    meta = document.body.get("metadata") or {}
    uid = as_uid(record.uid or f"{record.kind}/{record.namespace}/{record.name}")
    return DocumentedGang(
        document=document,
        position=position,
        record=replace(record, uid=uid),
        created_at=time_or_none(meta.get("creationTimestamp")),
        draft=not record.suspended and record.queue is not None and unseen(document),
    )


def read_job(
    document: Document, position: int, kinds: JobKinds, children: Children
) -> DocumentedGang | None:
    """A job of any kind.

    A RayService that does not exist yet is the cluster that KubeRay would create for it, under the name of the service. Of one that
    exists, its RayClusters count, and it is None.

    Args:
        document: of the job.
        position: in the order of the input.
        kinds: of jobs.
        children: the objects of the input with the pod templates of other jobs.

    Raises:
        DocumentError: the API server would refuse the job, or its pods if it was not created yet.
    """
    if is_service(document.api_version, document.kind):
        if not unseen(document):
            return None
        document = replace(document, body=cluster_of_service(document.body))
    kind = kinds[document.kind]
    try:
        strict = unseen(document) or document.kind == BATCH_JOB.kind  # it checks their templates
        record = kind.read(document.convert(kind.wire), strict=strict)
    except RequestError as error:
        raise document.error("", str(error)) from None
    return documented(document, position, children.completed(document, record))


def of_workload(document: Document, position: int, workload: GivenWorkload) -> DocumentedGang:
    """A Workload as a separate gang."""
    found = replace(documented(document, position, workload.record), draft=False)
    return replace(found, created_at=workload.created_at, workload=workload)


def defaulted(gang: DocumentedGang, config: QueueConfig) -> DocumentedGang:
    """In the LocalQueue ``default`` of its namespace, if the job has no queue label and was not created yet.

    A job with an owner is left to its owner.
    """
    record = gang.record
    if record.queue is not None or (record.namespace, DEFAULT_NAME) not in config.local_queues:
        return gang
    owned = (gang.document.body.get("metadata") or {}).get("ownerReferences")
    if owned or not unseen(gang.document):
        return gang
    return replace(gang, record=replace(record, queue=DEFAULT_NAME), draft=not record.suspended)


def joined(
    jobs: Iterable[DocumentedGang], workloads: Iterable[DocumentedGang]
) -> tuple[list[DocumentedGang], dict[tuple[str, str], str]]:
    """Each gang once, and the uid of the gang of each Workload by namespace and name.

    Raises:
        DocumentError: two gangs have the same uid.
    """
    given_jobs, alone = list(jobs), list[DocumentedGang]()
    by_key = {job.key: job for job in given_jobs}
    names: dict[tuple[str, str], str] = {}
    for one in workloads:
        assert one.workload is not None
        job = _owner(one.workload, one.record.namespace, by_key)
        names[one.record.namespace, one.record.name] = (job or one).record.uid
        if job is None:
            alone.append(one)
        else:
            by_key[job.key] = _merged(job, one.workload)
    uids: dict[str, DocumentedGang] = {}
    for gang in sorted((*given_jobs, *alone), key=lambda one: one.position):
        other = uids.setdefault(gang.record.uid, gang)
        if other is not gang:
            uid = gang.record.uid.replace("~", ".")
            text = f"{uid!r} is also that of {other.document.address}"
            raise gang.document.error("metadata.uid", text)
    return sorted((*by_key.values(), *alone), key=lambda one: one.position), names


def _owner(
    workload: GivenWorkload, namespace: str, jobs: Mapping[Key, DocumentedGang]
) -> DocumentedGang | None:
    """The job in the input to which a Workload belongs. An array has none: its indexes have."""
    for owner in workload.owners:
        job = jobs.get((owner.kind, namespace, owner.name))
        if job is None or not job.record.queues:
            continue
        if not owner.uid or as_uid(owner.uid) == job.record.uid or not job.has_uid:
            return job
    return None


def _merged(job: DocumentedGang, workload: GivenWorkload) -> DocumentedGang:
    """A job with its Workload: the job's name and request, the Workload's place in the queue."""
    own, its = job.record, workload.record
    stated = its.priority_class or own.priority_class
    named = None if workload.priority is not None else stated
    same = [p.name for p in own.podsets] == [p.name for p in its.podsets]
    record = replace(
        own,
        podsets=own.podsets if same else its.podsets,
        queue=its.queue or own.queue,
        priority_class=named,
        pod_priority_class=None if stated else its.pod_priority_class or own.pod_priority_class,
        expected=own.expected or its.expected,
        followed=own.followed or bool(its.expected),
        preemptible=own.preemptible and its.preemptible,
        error=own.error or its.error,
        unsupported=own.unsupported if own.error else its.unsupported,
        utilization=own.utilization if own.utilization is not None else its.utilization,
        checkpoint_at=own.checkpoint_at or its.checkpoint_at,
        max_execution=own.max_execution or its.max_execution,
        expected_duration=own.expected_duration or its.expected_duration,
    )
    created = workload.created_at if job.created_at is None else job.created_at
    return replace(job, record=record, created_at=created, workload=workload, draft=False)


def as_admitted(
    gang: DocumentedGang, config: QueueConfig, offered: Collection[str]
) -> DocumentedGang:
    """The gang as admission and its ClusterQueue have made it. ``offered``: the resources that the nodes have."""
    record = gang.record
    queue = _charged(gang, config)
    podsets = (without_unoffered(one, offered) for one in record.podsets)
    podsets = (_as_large(one, gang.assigned.get(one.name)) for one in podsets)
    # While a gang is evicted, its job is suspended at some time. A Workload without its job does not show when.
    stops = gang.leaves and (record.suspended or record.kind == WORKLOAD)
    waits = stops or not gang.runs
    record = replace(record, podsets=tuple(podsets), queue=queue, suspended=waits)
    begun = not gang.draft and record.array is not None and not record.array.base
    if begun and has_begun(record):
        record = replace(record, gates=())  # its first indexes have passed them
    return replace(gang, record=record)


def _charged(gang: DocumentedGang, config: QueueConfig) -> str | None:
    """Its LocalQueue. A gang that runs is in one of the ClusterQueue of its admission, which a LocalQueue can have left since.

    The planner finds ClusterQueues through LocalQueues, so one is made up if the namespace has none: see :func:`with_made_up`.
    """
    record, workload = gang.record, gang.workload
    target = workload.charged_to if workload is not None and gang.runs else None
    now = config.cluster_queue_of(record.namespace, record.queue)
    if target is None or target not in config.cluster_queues or (now and now.name == target):
        return record.queue
    for (namespace, name), local in sorted(config.local_queues.items()):
        if namespace == record.namespace and local.cluster_queue == target:
            return name
    return _MADE_UP + target


_MADE_UP = "clusterqueue/"  # in no name of an object


def with_made_up(config: QueueConfig, gangs: Iterable[DocumentedGang]) -> QueueConfig:
    """The queues with the LocalQueues that were made up for the admissions of these gangs."""
    made = {
        (one.namespace, one.queue): LocalQueue(
            one.namespace, one.queue, one.queue.removeprefix(_MADE_UP)
        )
        for one in (gang.record for gang in gangs)
        if one.queue is not None and one.queue.startswith(_MADE_UP)
    }
    return replace(config, local_queues={**config.local_queues, **made}) if made else config


def _as_large(podset: PodSet, assigned: Assigned | None) -> PodSet:
    """A podset of which more pods were admitted than it states."""
    most = assigned.count or 0 if assigned is not None else 0
    return podset if most <= podset.count else replace(podset, count=most)


def without_unoffered(podset: PodSet, offered: Collection[str]) -> PodSet:
    """The podset without the resources that only machinery around its pods requests, and that no node has."""
    dropped = podset.shape.incidental.difference(offered)
    if not dropped or podset.needs is None:
        return podset

    def less(container: ContainerNeeds) -> ContainerNeeds:
        if not container.incidental:
            return container
        asked = {name: value for name, value in container.requests if name not in dropped}
        # Without a request, the limit would be the request. ResourceQuotas count the limit.
        asked |= {name: 0 for name, _ in container.limits if name in dropped}
        return replace(container, requests=tuple(asked.items()))

    needs = replace(
        podset.needs,
        containers=tuple(map(less, podset.needs.containers)),
        init=tuple(map(less, podset.needs.init)),
    )
    return created(replace(podset, needs=needs), PodAdmission())
