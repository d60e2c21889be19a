"""The request of each gang for the planner."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from queuectl.devices.gpu_sizes import GpuSizes
from queuectl.domain.arrays import growth_of
from queuectl.domain.checks import PodSetUpdate, updated
from queuectl.domain.devices import Claim
from queuectl.domain.fleet import Fleet
from queuectl.domain.jobs import JobRecord, podsets_joining
from queuectl.domain.ledger import Entry
from queuectl.domain.queues import QueueConfig
from queuectl.domain.workload import Duration, Placement, PodSet, Workload
from queuectl.state.claims import preempts
from queuectl.state.durations import LearnedDurations
from queuectl.state.held_podsets import held_podsets
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror

_Place = tuple[
    int,
    str,
    str,
    float,
    str | None,
    str | None,
    tuple[PodSetUpdate, ...],
    Placement | None,
    bool,
    tuple[Claim | None, ...],
    tuple[PodSet, ...],
]
"""The fields that decide the position of a gang: priority, LocalQueue, ClusterQueue, queue time, the ClusterQueue that is charged for it,
user; what admission checks add to it; the placement of the elastic gang that it extends; whether it evicts others; the claims that its
pods share, which have another size once they are allocated; and the podsets that its placement holds, if they are not those of the job."""


class _Asked(NamedTuple):
    """The request of a gang, and what it depends on. ``joins``: the nodes and queues of a pod that joins an elastic gang."""

    job: JobRecord
    place: _Place
    basis: object
    joins: tuple[Fleet, QueueConfig] | None
    workload: Workload

    def of(self, basis: object, joins: tuple[Fleet, QueueConfig] | None) -> bool:
        """Whether sizes, nodes and queues are the same objects."""
        if self.joins is None or joins is None:
            return self.basis is basis and self.joins is joins
        return self.basis is basis and all(a is b for a, b in zip(self.joins, joins, strict=True))


class GangRequests:
    """Makes the workloads of gangs. A workload is the same object until something changes it, so that the caches of the planner stay valid.

    Attributes:
        config: the policies of the queues.
        never_preempting: the PriorityClasses whose pods evict no others.
        sizes: the sizes of GPUs; None before the first snapshot.
        sharing: uids of the gangs whose pods share claims.
    """

    def __init__(
        self, mirror: Mirror, ledger: Ledger, durations: LearnedDurations, *, quota_free: bool
    ) -> None:
        """Make one without any workloads.

        Args:
            mirror: the copy of the cluster.
            ledger: the workloads that are not Finished.
            durations: how long gangs run.
            quota_free: gangs without a LocalQueue are planned without quota.
        """
        self._mirror = mirror
        self._ledger = ledger
        self._durations = durations
        self._quota_free = quota_free
        self._asked: dict[str, _Asked] = {}
        self.config = QueueConfig()
        self.never_preempting: frozenset[str] = frozenset()
        self.sizes: GpuSizes | None = None
        self.sharing: set[str] = set()

    def workload(self, entry: Entry, job: JobRecord) -> Workload:
        """The request of the gang for the planner; the same object until job or priority change."""
        last = self._asked.get(entry.uid)
        rules = self.config.rules
        user = job.user(rules.user_label, rules.trusted_submitters)
        updates = entry.checks.updates
        base = self._ledger.elastic_gang(job)
        gang = base.placement if base is not None else None
        evicts = preempts(entry, job, self.config, self.never_preempting)
        claims = self._mirror.devices.named_claims
        own = held_podsets(entry, job, self._mirror)
        shared = [claims.get((job.namespace, n)) for one in own for n in one.shared_claims]
        if shared:
            self.sharing.add(entry.uid)
        order = (entry.priority, entry.queue, entry.cluster_queue, entry.queue_order_time)
        held = own if own is not job.podsets else ()
        place = (*order, entry.charged_queue, user, updates, gang, evicts, tuple(shared), held)
        sizes = self.sizes if self.sizes is not None else self._mirror.gpus(self.config)
        joins = (self._mirror.fleet, self.config) if gang is not None else None
        # The version of the job is not a key: the requests of its pods also change with LimitRanges.
        if last and last.job is job and last.place == place and last.of(sizes.basis, joins):
            return last.workload
        config = self.config
        podsets, growth = updated(own, updates), growth_of(job)
        if gang is not None and growth is not None:
            growth = replace(growth, rules=podsets[0].shape.rules)
            podsets = podsets_joining(podsets, gang, config, self._mirror.fleet)
        workload = Workload(
            uid=entry.uid,
            kind=entry.kind,
            namespace=entry.namespace,
            name=entry.name,
            podsets=sizes.sized(podsets, entry.namespace, entry.cluster_queue, claims),
            queue=None if self._quota_free and not entry.queue else entry.queue,
            priority=entry.priority,
            queued_at=entry.queue_order_time,
            preemptible=job.preemptible,
            preempts=evicts,
            user=user,
            duration=last.workload.duration if last is not None else None,
            growth=growth,
            charged_queue=entry.charged_queue,
        )
        if last is not None and last.workload == workload:
            workload = last.workload
        self._asked[entry.uid] = _Asked(job, place, sizes.basis, joins, workload)
        return workload

    def begun(
        self, entry: Entry, job: JobRecord, config: QueueConfig, ends_at: float | None
    ) -> Workload:
        """The workload of a running gang. A process that did not see its start finds how long the attempt was expected to run."""
        workload = self.workload(entry, job)
        if workload.duration is not None or ends_at is None:
            return workload
        return self.lasting(workload, self._durations.at_start(entry, job, config))

    def lasting(self, workload: Workload, duration: Duration | None) -> Workload:
        """The workload with another duration, also for later snapshots."""
        workload = replace(workload, duration=duration)
        self._asked[workload.uid] = self._asked[workload.uid]._replace(workload=workload)
        return workload

    def forget(self, uid: str) -> None:
        """Forget a workload that has left the ledger."""
        self._asked.pop(uid, None)
        self.sharing.discard(uid)
