"""The entries that a ledger would have for the gangs of files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from queuectl.domain.gates import Standing, held_by, remaining
from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import Entry, State
from queuectl.domain.queues import QueueConfig
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.words import format_time
from queuectl.domain.workload import DecidedRequest, Placement
from queuectl.objects.files.workloads import KIND as WORKLOAD
from queuectl.offline.gangs import DocumentedGang
from queuectl.offline.slots import Warn

SYSTEM_CLASSES: Final = frozenset({"system-cluster-critical", "system-node-critical"})
"""They exist in each cluster. Pods of each tenant can name them, so they do not show the importance of a gang."""

_EVICTED: Final = {
    "Preempted": Code.PREEMPTED,
    "PodsReadyTimeout": Code.PODS_READY_TIMEOUT,
    "AdmissionCheck": Code.ADMISSION_CHECK,
    "ClusterQueueStopped": Code.QUEUE_STOPPED,
    "LocalQueueStopped": Code.LOCAL_QUEUE_STOPPED,
}
_INACTIVE: Final = Reason(Code.HELD, "held by spec.active: false")
_WAITED: Final = Reason(Code.WAITING_TO_RECLAIM, "", {"since": 0.0})
"""Of a gang that waits: it has waited as long as it must before it evicts gangs that borrow."""

Statuses = Callable[[JobRecord, tuple[str, ...]], Mapping[str, Standing]]
"""The states of the jobs on which a job depends, by gate."""


@dataclass(frozen=True)
class Ledgers:
    """Makes the entries of one input.

    Attributes:
        config: the queues.
        now: unix seconds.
        classes: values of the PriorityClasses by name.
        priority_classes: the names of the PriorityClasses.
        statuses: of dependencies.
        warn: adds a warning about a gang.
    """

    config: QueueConfig
    now: float
    classes: Mapping[str, int]
    priority_classes: frozenset[str]
    statuses: Statuses
    warn: Warn

    def waiting(self, gang: DocumentedGang, job: JobRecord, queued_at: float) -> Entry:
        """Of a gang that waits. ``queued_at``: unix seconds."""
        entry, workload = self._entry(gang, job, queued_at), gang.workload
        if job.gates and remaining(job.gates, statuses := self.statuses(job, job.gates)):
            return replace(entry, state=State.HELD, reason=held_by(job.gates, statuses, job.error))
        if workload is not None and not workload.active:
            return replace(entry, state=State.HELD, parked=_INACTIVE, reason=_INACTIVE)
        again = workload.requeue_at if workload is not None else None
        if again is not None and again > self.now:
            until = format_time(again)
            why = Reason(Code.BACKOFF, f"in back-off until {until}", {"until": until})
            return replace(entry, state=State.BACKOFF, requeue_at=again, reason=why)
        return entry

    def running(self, gang: DocumentedGang, job: JobRecord, placement: Placement) -> Entry:
        """Of a gang that holds capacity."""
        entry, workload = self._entry(gang, job, gang.created_at or 0.0), gang.workload
        stated = workload.started_at if workload is not None else None
        known = next((at for at in (stated, gang.created_at) if at is not None), self.now)
        started = min(self.now, known)
        queue = self.config.cluster_queues.get(entry.cluster_queue)
        limit = queue.execution.limit(job.max_execution) if queue is not None else job.max_execution
        entry = replace(
            entry,
            state=State.RUNNING,
            since=started,
            started_at=started,
            placement=placement,
            planned=DecidedRequest({}, "", limit),
            reason=Reason(Code.QUEUED),
        )
        if workload is None or not workload.leaves:
            return entry
        reason = Reason(_EVICTED.get(workload.evicted or "", Code.REQUEUED))
        parked = None if workload.active else _INACTIVE
        return replace(entry, state=State.EVICTING, reason=reason, parked=parked)

    def _entry(self, gang: DocumentedGang, job: JobRecord, queued_at: float) -> Entry:
        """The entry of a gang that waits for nothing but its queue."""
        queue = self.config.cluster_queue_of(job.namespace, job.queue)
        stated = self._priority(gang, job)
        return Entry(
            uid=job.uid,
            kind=job.kind,
            namespace=job.namespace,
            name=job.name,
            state=State.PENDING,
            queue=job.queue or "",
            cluster_queue=queue.name if queue is not None else "",
            priority=queue.capped(stated) if queue is not None else stated,
            gpus=job.gpus,
            pods=job.pods,
            attempt=job.attempt,
            queued_at=queued_at,
            preempted_at=gang.evictions,
            past_seconds=gang.workload.past_seconds if gang.workload is not None else 0.0,
            reason=_WAITED,
        )

    def _priority(self, gang: DocumentedGang, job: JobRecord) -> int:
        """The number of its Workload, otherwise that of its classes. The class of a Workload is fixed when its job is created."""
        if gang.workload is not None and gang.workload.priority is not None:
            return gang.workload.priority
        named = job.priority_class
        if job.kind != WORKLOAD:
            named = self.config.priority_class_of(named)
        if named is not None:
            return self.config.priority_classes.get(named, 0)
        of_pods = job.pod_priority_class
        if of_pods is not None and of_pods not in self.priority_classes:
            self.warn(gang, f"PriorityClass {of_pods} is not in the input: priority 0 assumed")
        return self.classes.get(of_pods or "", 0)
