"""Why a pending gang cannot start, whatever the free capacity is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import Entry
from queuectl.domain.queues import QueueConfig
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.records import NamespaceRecord
from queuectl.objects.configuration.queue_config import (
    inadmissible_reason,
    refused_gpus,
    refused_job,
)
from queuectl.state.mirror import Mirror
from queuectl.state.readiness import in_the_way


class BlockingReasons:
    """The reasons that follow from a gang, its namespace and its queue.

    Attributes:
        labels: of the namespaces, by name.
    """

    def __init__(self, mirror: Mirror, *, quota_free: bool) -> None:
        """Make one without namespaces.

        Args:
            mirror: the copy of the cluster.
            quota_free: gangs without a LocalQueue are planned without quota.
        """
        self._mirror = mirror
        self._quota_free = quota_free
        self.labels: Mapping[str, Mapping[str, str]] = {}
        self._ending: frozenset[str] = frozenset()  # names of the namespaces that are being deleted
        self._inadmissible: dict[tuple[str, str], Reason | None] = {}  # by namespace and LocalQueue

    def note_namespaces(self, namespaces: Iterable[NamespaceRecord]) -> None:
        """Follow the namespaces. Call :meth:`forget` for the LocalQueues in those that changed."""
        records = list(namespaces)
        self.labels = {record.name: dict(record.labels) for record in records}
        self._ending = frozenset(record.name for record in records if record.deleting)

    def forget(self, concerned: Callable[[str, str], bool]) -> None:
        """Forget what is known of LocalQueues, by namespace and name."""
        self._inadmissible = {
            key: why for key, why in self._inadmissible.items() if not concerned(*key)
        }

    def of(self, entry: Entry, job: JobRecord, config: QueueConfig) -> Reason | None:
        """The reason for which a pending gang cannot start, whatever the free capacity is."""
        if entry.queue_set is not None:
            text = f"moving to LocalQueue {entry.queue_set}; its object does not name that LocalQueue yet"
            return Reason(Code.QUEUE_SET, text)
        if (own := self.own_fault(job, config)) is not None:
            return own
        if self._quota_free and not entry.queue:
            return None
        queue = (entry.namespace, entry.queue)
        if queue in self._inadmissible:
            why = self._inadmissible[queue]
        else:
            labels = self.labels.get(entry.namespace, {})
            why = inadmissible_reason(*queue, config, labels)
            if queue in config.local_queues:  # users write any names
                self._inadmissible[queue] = why
        return why or refused_job(job, entry.queue, config)

    def own_fault(self, job: JobRecord, config: QueueConfig) -> Reason | None:
        """The reason for which the gang cannot start, whatever its queue and its state are."""
        if (why := self.terminating(job)) is not None:
            return why
        if job.error is not None:
            return Reason(Code.UNSUPPORTED if job.unsupported else Code.MISCONFIGURED, job.error)
        if why := refused_gpus(job.podsets, self._mirror.fleet, config.rules.accounting.gpus):
            return why
        if job.forbidden is not None:
            return job.forbidden
        waits = job.awaits or in_the_way(job, self._mirror.pods_of(job))
        return Reason(Code.WAITING_FOR_PODS, waits) if waits else None

    def terminating(self, job: JobRecord) -> Reason | None:
        """The reason for which the gang never starts again, if its object or its namespace is being deleted."""
        if job.deleting:
            text = "it is being deleted, and ends once its finalizers are removed"
        elif job.namespace in self._ending:
            text = f"namespace {job.namespace} is being deleted: no pods can be created in it"
        else:
            return None
        return Reason(Code.TERMINATING, text)
