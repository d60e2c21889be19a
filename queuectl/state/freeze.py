"""Cluster, ledger and configuration -> Snapshot: an immutable input for one cycle, cheap to make."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from math import inf
from typing import NamedTuple

from queuectl.devices.gpu_sizes import GpuSizes
from queuectl.devices.numa import with_numa_nodes_of_others
from queuectl.domain.arrays import growth_of
from queuectl.domain.checks import PodSetUpdate, updated
from queuectl.domain.containment import Boundary, SetAside, entering
from queuectl.domain.devices import Claim
from queuectl.domain.fleet import Fleet
from queuectl.domain.jobs import JobRecord, PodRecord, podsets_joining
from queuectl.domain.ledger import HOLDING, Entry, State, queues_again_at_once
from queuectl.domain.node_health import UnhealthyNodes
from queuectl.domain.node_quota import NodeQuota
from queuectl.domain.quantity import NOTHING, Resources
from queuectl.domain.queries import IN_QUEUE_ORDER
from queuectl.domain.queues import QueueConfig, needed_checks
from queuectl.domain.reasons import WAITS_TO_EVICT, Code, Reason
from queuectl.domain.records import NamespaceRecord
from queuectl.domain.snapshot import Admitted, CapacityLease, Pending, Snapshot, SolverLimits
from queuectl.domain.utilization import GangUse, UseState
from queuectl.domain.workload import Duration, Placement, PodSet, PodShape, Workload
from queuectl.objects.configuration.queue_config import (
    inadmissible_reason,
    refused_gpus,
    refused_job,
)
from queuectl.objects.kubernetes.nodes import never_preempting
from queuectl.state.arrays import (
    RETURN_SECONDS,
    after_lower_ranks,
    in_rank_order,
    opened_by_one,
    stalled_ranks,
)
from queuectl.state.claims import checkpoint_of, preempts
from queuectl.state.durations import LearnedDurations
from queuectl.state.holdings import allowances
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror, asked_of
from queuectl.state.readiness import in_the_way
from queuectl.state.usage import OtherPodUsage

IdleSince = Callable[[Entry, JobRecord, QueueConfig, float], float | None]
"""The start of the idle time of a gang that can be evicted as idle at a time (unix seconds); None for each other gang."""

_Place = tuple[
    int,
    str,
    str,
    float,
    str | None,
    tuple[PodSetUpdate, ...],
    Placement | None,
    bool,
    tuple[Claim | None, ...],
]
"""The fields that decide the position of a gang: priority, LocalQueue, ClusterQueue, queue time, user; what admission checks add to it; the
placement of the elastic gang that it extends; whether it evicts others; and the claims that its pods share, which have another size
once they are allocated."""


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


def never_idle(entry: Entry, job: JobRecord, config: QueueConfig, now: float) -> None:
    """No gang is idle without a source of utilization."""


class _Waiting(NamedTuple):
    """A pending gang with the objects from which it was made, and the unix seconds until which nothing else changes it."""

    entry: Entry
    job: JobRecord
    pending: Pending
    until: float


class _Holding(NamedTuple):
    """A gang that holds capacity, with the objects from which it was made."""

    entry: Entry
    job: JobRecord
    use: GangUse | None
    admitted: Admitted


class SnapshotBuilder:
    """Builds snapshots, and reuses the parts that have not changed since the last one."""

    def __init__(
        self,
        mirror: Mirror,
        ledger: Ledger,
        usage: OtherPodUsage,
        uses: Callable[[], Mapping[str, GangUse]] = dict,
        idle_since: IdleSince = never_idle,
        durations: LearnedDurations | None = None,
        *,
        quota_free: bool = False,
    ) -> None:
        """Make one without any parts.

        Args:
            mirror: the copy of the cluster.
            ledger: the workloads that are not Finished.
            usage: the use of nodes by pods that fill no slot.
            uses: the last measured GPU utilization of gangs, by uid.
            idle_since: finds gangs that can be evicted as idle.
            durations: None in a process that learns none.
            quota_free: gangs without a LocalQueue are planned without quota. Only for files: in a cluster, a user who removes the
                label of the queue would have no limit.
        """
        self._quota_free = quota_free
        self._durations = durations if durations is not None else LearnedDurations(mirror)
        self._uses = uses
        self._idle_since = idle_since
        self._containment = mirror.containment
        self._mirror = mirror
        self._ledger = ledger
        self._usage = usage
        self._node_quota = NodeQuota()
        self._asked: dict[str, _Asked] = {}
        self._sizes: GpuSizes | None = None
        self._sharing: set[str] = set()  # uids of the gangs whose pods share claims
        self._claims: Mapping[tuple[str, str], Claim] = {}
        self._resized = False
        self._avoided: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
        self._waiting: dict[str, _Waiting] = {}
        self._learned = 0
        self._frozen_at = -inf  # unix seconds
        self._holding: dict[str, _Holding] = {}
        # Of the last snapshot, and one with the same policies, which is the same object as long as these stay.
        self._last_config = self._config = QueueConfig()
        self._never_preempting: frozenset[str] = frozenset()
        self._fleet: Fleet | None = None
        self._records: list[NamespaceRecord] = []
        self._namespaces: dict[str, dict[str, str]] = {}
        self._ending: frozenset[str] = frozenset()
        self._inadmissible: dict[tuple[str, str], Reason | None] = {}

    def freeze(self, config: QueueConfig, now: float, limits: SolverLimits) -> Snapshot:
        """The snapshot at ``now`` (unix seconds), without workloads that the watch no longer shows, and without device rows."""
        sizes = self._mirror.gpus(config)
        config = self._node_quota.of(config, self._mirror.fleet)
        self._resized = self._sizes is None or sizes.basis is not self._sizes.basis
        self._sizes = sizes
        self._drop_outdated(config)
        if now < self._frozen_at:  # the clock was set back: what had passed is yet to come
            self._waiting, self._holding = {}, {}
        self._frozen_at = now
        device_mirror = self._mirror.devices
        devices = device_mirror.inventory(self._mirror.fleet)
        admitted = tuple(self._admitted(self._config, now))
        pending = tuple(self._pending(self._config, now))
        if self._mirror.arrays:
            pending = in_rank_order(opened_by_one(pending, self._mirror.jobs, self._ledger))
        other_pods = self._usage.other_pods
        return Snapshot(
            now=now,
            fleet=self._mirror.fleet,
            config=config,
            pending=pending,
            admitted=admitted,
            other_pods=other_pods,
            of_daemons=self._usage.of_daemons,
            namespaces=self._namespaces,
            limits=limits,
            allowances=allowances(self._mirror, self._ledger),
            devices=devices,
            other_devices=with_numa_nodes_of_others(
                self._usage.devices.by_node(
                    devices, _shared_claims(admitted, device_mirror.named_claims)
                ),
                devices,
                other_pods,
                self._usage.with_guaranteed,
            ),
            claims=device_mirror.named_claims,
        )

    def _drop_outdated(self, config: QueueConfig) -> None:
        """Drop the parts that depend on the queues, namespaces, priority classes, nodes or devices that have changed.

        No part depends on amounts of quota.
        """
        records = list(self._mirror.namespaces.values())
        if config is not self._last_config and not config.has_policies_of(self._config):
            self._drop_in(_queues_that_differ(self._config, config))
            self._config = config
        self._last_config = config
        if records != self._records:
            had, has = ({one.name: one for one in of} for of in (self._records, records))
            names = {name for name in had.keys() | has.keys() if had.get(name) != has.get(name)}
            self._records = records
            self._namespaces = {record.name: dict(record.labels) for record in records}
            self._ending = frozenset(record.name for record in records if record.deleting)
            self._drop_in(lambda namespace, _: namespace in names)
        if self._resized:
            self._holding = {}
        if self._mirror.fleet is not self._fleet:
            before, self._fleet = self._fleet, self._mirror.fleet
            self._drop_on(_nodes_that_differ(before, self._fleet))
        if self._mirror.devices.named_claims is not self._claims:
            self._claims = self._mirror.devices.named_claims
            for uid in self._sharing:
                self._waiting.pop(uid, None)
                self._holding.pop(uid, None)
        never = never_preempting(self._mirror.priority_classes.values())
        if never != self._never_preempting:
            self._never_preempting = never
            self._waiting = {}
            self._holding = {}
        nodes = self._mirror.nodes
        ending = frozenset(nodes.ending)  # of all queues; the second is of queues that drain nodes
        avoided = (ending, ending.union(nodes.failing))
        if avoided != self._avoided:
            self._avoided = avoided
            self._waiting = {}

    def _drop_in(self, concerned: Callable[[str, str], bool]) -> None:
        """Drop what depends on LocalQueues, by namespace and name."""
        for kept in (self._waiting, self._holding):
            for uid in [
                uid
                for uid, last in kept.items()
                if concerned(last.entry.namespace, last.entry.queue)
            ]:
                del kept[uid]
        self._inadmissible = {
            key: why for key, why in self._inadmissible.items() if not concerned(*key)
        }

    def _drop_on(self, nodes: Container[str]) -> None:
        """Drop running gangs with slots on these nodes, and the gangs that depend on all nodes."""
        on = [
            uid
            for uid, last in self._holding.items()
            if last.admitted.workload.growth is not None
            or any(name in nodes for p in last.admitted.placement.podsets for name, _ in p.nodes)
        ]
        for uid in on:
            del self._holding[uid]
        unsupported = [
            uid
            for uid, last in self._waiting.items()
            if (why := last.pending.blocked) is not None and why.code is Code.UNSUPPORTED
        ]
        for uid in unsupported:
            del self._waiting[uid]

    def workload(self, entry: Entry, job: JobRecord) -> Workload:
        """The request of the gang for the planner; the same object until job or priority change."""
        last = self._asked.get(entry.uid)
        rules = self._config.rules
        user = job.user(rules.user_label, rules.trusted_submitters)
        updates = entry.checks.updates
        base = self._ledger.get(job.index.job_uid) if job.index is not None else None
        gang = base.placement if base is not None else None
        evicts = preempts(job, self._config, self._never_preempting)
        claims = self._mirror.devices.named_claims
        shared = [claims.get((job.namespace, n)) for one in job.podsets for n in one.shared_claims]
        if shared:
            self._sharing.add(entry.uid)
        order = (entry.priority, entry.queue, entry.cluster_queue, entry.queue_order_time)
        place = (*order, user, updates, gang, evicts, tuple(shared))
        sizes = self._sizes if self._sizes is not None else self._mirror.gpus(self._config)
        joins = (self._mirror.fleet, self._config) if gang is not None else None
        # The version of the job is not a key: the requests of its pods also change with LimitRanges.
        if last and last.job is job and last.place == place and last.of(sizes.basis, joins):
            return last.workload
        config = self._config
        podsets, growth = updated(job.podsets, updates), growth_of(job)
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
        )
        if last is not None and last.workload == workload:
            workload = last.workload
        self._asked[entry.uid] = _Asked(job, place, sizes.basis, joins, workload)
        return workload

    def _begun(
        self, entry: Entry, job: JobRecord, config: QueueConfig, ends_at: float | None
    ) -> Workload:
        """The workload of a running gang. A process that did not see its start finds how long the attempt was expected to run."""
        workload = self.workload(entry, job)
        if workload.duration is not None or ends_at is None:
            return workload
        return self._lasting(workload, self._durations.at_start(entry, job, config))

    def _lasting(self, workload: Workload, duration: Duration | None) -> Workload:
        """The workload with another duration, also for later snapshots."""
        workload = replace(workload, duration=duration)
        self._asked[workload.uid] = self._asked[workload.uid]._replace(workload=workload)
        return workload

    def forget(self, uid: str) -> None:
        """Forget a workload that has left the ledger."""
        for kept in (self._asked, self._waiting, self._holding):
            kept.pop(uid, None)
        self._sharing.discard(uid)
        self._durations.forget(uid)

    def _pending(self, config: QueueConfig, now: float) -> Iterator[Pending]:
        """The gangs, with the same objects as before for gangs without a change, so that the caches of the planner stay valid.

        Tens of thousands can wait. One that is as it was costs two look-ups and three comparisons.
        """
        waiting, jobs = self._waiting, self._mirror.jobs
        recompute = self._resized or self._learned != self._durations.learned
        self._learned = self._durations.learned
        known = {} if recompute or not self._containment.empty else waiting
        stalled = stalled_ranks(self._ledger)
        for entry in self._ledger.entries(*IN_QUEUE_ORDER):
            uid = entry.uid
            job, last = jobs.get(uid), known.get(uid)
            if last is not None and last.entry is entry and last.job is job and now < last.until:
                yield last.pending
                continue
            if self._set_aside(entry, job) is not None:
                waiting.pop(uid, None)  # the nodes can give it another size until it is tried again
                continue
            try:
                pending = self._one_pending(entry, job, config, now)
                if pending is not None:
                    pending = after_lower_ranks(pending, stalled)
            except Exception as error:  # noqa: BLE001 - contained
                self._failed(entry, job, error)
                continue
            self._containment.passed(Boundary.SNAPSHOT, entry.uid)
            if pending is not None:
                yield pending

    def _one_pending(
        self, entry: Entry, job: JobRecord | None, config: QueueConfig, now: float
    ) -> Pending | None:
        """One gang; None for one that has nothing to plan."""
        uid = entry.uid
        last = self._waiting.get(uid)
        if job is not None and self._held(entry, job, config):
            self._waiting.pop(uid, None)
            return None
        changed = last is None or last.entry is not entry or last.job is not job or self._resized
        if job is not None and _depends_on_others(job):
            changed = True
        if last is None or changed:
            if job is None or not job.suspended:
                return None  # it runs without an entry: observations handle that first
            pending = self._made_pending(entry, job, config)
        else:
            job, pending = last.job, last.pending
        if pending.borrows_at is not None and pending.may_borrow(now):
            pending = replace(pending, borrows_at=None)
        if pending.returns_by is not None and not pending.returns(now):
            pending = replace(pending, returns_by=None)
        if changed or now >= self._durations.due_at(uid):
            duration = self._durations.attempt(entry, job, config, now)
            if duration != pending.workload.duration:
                pending = replace(pending, workload=self._lasting(pending.workload, duration))
        if last is not None and last.pending == pending:
            pending = last.pending
        self._waiting[uid] = _Waiting(entry, job, pending, self._stands_until(job, pending))
        if pending.lease is not None and not self._comes(pending.lease, now):
            pending = replace(pending, lease=None)
        return pending

    def _stands_until(self, job: JobRecord, pending: Pending) -> float:
        """The unix seconds until which a pending gang is the same while its entry and its job are; at no time if it depends on others."""
        if pending.lease is not None or _depends_on_others(job):
            return -inf
        times = (self._durations.due_at(job.uid), pending.borrows_at, pending.returns_by)
        return min(at for at in times if at is not None)

    def _set_aside(self, entry: Entry, job: JobRecord | None) -> SetAside | None:
        """The record of a workload that is not to be tried now; None if it is."""
        entering(Boundary.SNAPSHOT, entry.uid, f"{entry.kind}/{entry.ref}", entry.namespace)
        if self._containment.empty:
            return None
        version = asked_of(job) if job is not None else None
        return self._containment.waits(Boundary.SNAPSHOT, entry.uid, version, entry.namespace)

    def _failed(self, entry: Entry, job: JobRecord | None, error: Exception) -> None:
        """Leave a workload out of the snapshot. The capacity that it holds stays in it."""
        self.forget(entry.uid)
        self._containment.failed(
            Boundary.SNAPSHOT,
            entry.uid,
            error,
            f"{entry.kind}/{entry.ref}",
            namespace=entry.namespace,
            version=asked_of(job) if job is not None else None,
        )

    def _comes(self, lease: CapacityLease, now: float) -> bool:
        """Whether the capacity for a lease can become free: not if the API server denies the stop of a gang that holds it."""
        victims = (self._ledger.get(uid) for uid in lease.victims)
        return lease.expires_at > now and not any(v is not None and _stays(v) for v in victims)

    def _held(self, entry: Entry, job: JobRecord, config: QueueConfig) -> bool:
        """Whether it holds its quota and its nodes for admission checks, and has nothing to plan until they answer.

        It is planned again if its nodes are lost, its queue is closed, or its queue needs other checks.
        """
        queue = config.cluster_queue_of(entry.namespace, entry.queue)
        if not entry.awaits_checks or entry.lease is None or queue is None:
            return False
        placement = entry.lease.placement
        needed = needed_checks(queue, placement, entry.checks.ready)
        awaited = {status.name for status in entry.checks.unready}
        # When its nodes are made, it is placed on them, whatever it waits for then.
        if placement.awaits_nodes:
            awaited &= {rule.name for rule in queue.admission_checks if rule.provisions}
        return (
            set(needed) == {status.name for status in entry.checks.statuses}
            and not awaited.isdisjoint(needed)
            and self._blocked(entry, job, config) is None
            and self._on_good_nodes(entry.lease.placement)
        )

    def _checked(self, entry: Entry, config: QueueConfig) -> bool:
        """Whether each start needs admission checks, so that the end of a migration would not be known."""
        queue = config.cluster_queue_of(entry.namespace, entry.queue)
        return queue is not None and bool(queue.admission_checks)

    def _made_held(self, entry: Entry, job: JobRecord, lease: CapacityLease) -> Admitted:
        """A gang that waits for admission checks: it can be preempted, which loses no work."""
        return Admitted(
            workload=self.workload(entry, job),
            placement=lease.placement,
            started_at=entry.since,
            utilization=0.0,
            evictions=entry.preempted_at,
            held=True,
        )

    def _made_pending(self, entry: Entry, job: JobRecord, config: QueueConfig) -> Pending:
        blocked = self._blocked(entry, job, config)
        return Pending(
            workload=self.workload(entry, job),
            lease=entry.lease,
            budget=entry.budget,
            excluded=self._excluded(entry, config),
            blocked=blocked,
            borrows_at=entry.requeue_at,
            reclaim_since=_reclaim_since(entry),
            planned_start=entry.planned_start,
            ready_checks=entry.checks.ready,
            unasked=tuple(sorted(entry.checks.unasked.items())),
            returns_by=_returns_by(entry, job, blocked),
            past_seconds=entry.past_seconds,
        )

    def _excluded(self, entry: Entry, config: QueueConfig) -> frozenset[str]:
        """The nodes on which it does not start, whatever it tolerates: it would be evicted from them again."""
        queue = config.cluster_queues.get(entry.cluster_queue)
        drains = queue is not None and queue.unhealthy_nodes is UnhealthyNodes.DRAIN
        avoided = self._avoided[drains]
        return avoided | frozenset(entry.excluded) if entry.excluded else avoided

    def _blocked(self, entry: Entry, job: JobRecord, config: QueueConfig) -> Reason | None:
        if entry.queue_set is not None:
            text = f"moving to LocalQueue {entry.queue_set}; its object does not name that LocalQueue yet"
            return Reason(Code.QUEUE_SET, text)
        if (own := self._own_fault(job, config)) is not None:
            return own
        if self._quota_free and not entry.queue:
            return None
        queue = (entry.namespace, entry.queue)
        if queue in self._inadmissible:
            why = self._inadmissible[queue]
        else:
            labels = self._namespaces.get(entry.namespace, {})
            why = inadmissible_reason(*queue, config, labels)
            if queue in config.local_queues:  # users write any names
                self._inadmissible[queue] = why
        return why or refused_job(job, entry.queue, config)

    def _own_fault(self, job: JobRecord, config: QueueConfig) -> Reason | None:
        """The reason for which the gang cannot start, whatever its queue and its state are."""
        if (why := self._terminating(job)) is not None:
            return why
        if job.error is not None:
            return Reason(Code.UNSUPPORTED if job.unsupported else Code.MISCONFIGURED, job.error)
        if why := refused_gpus(job.podsets, self._mirror.fleet, config.rules.accounting.gpus):
            return why
        if job.forbidden is not None:
            return job.forbidden
        waits = job.awaits or in_the_way(job, self._mirror.pods_of(job))
        return Reason(Code.WAITING_FOR_PODS, waits) if waits else None

    def _terminating(self, job: JobRecord) -> Reason | None:
        """The reason for which the gang never starts again, if its object or its namespace is being deleted."""
        if job.deleting:
            text = "it is being deleted, and ends once its finalizers are removed"
        elif job.namespace in self._ending:
            text = f"namespace {job.namespace} is being deleted: no pods can be created in it"
        else:
            return None
        return Reason(Code.TERMINATING, text)

    def parked(self, config: QueueConfig) -> Iterator[Pending]:
        """The gangs that are held, deactivated or in back-off, with their reasons. The snapshot of a cycle is without them."""
        for entry in self._ledger.entries(State.HELD, State.DEACTIVATED, State.BACKOFF):
            job = self._mirror.jobs.get(entry.uid)
            if job is not None:
                why = self._own_fault(job, config) or entry.reason
                yield Pending(self.workload(entry, job), blocked=why)

    def _admitted(self, config: QueueConfig, now: float) -> Iterator[Admitted]:
        """The running gangs. Gangs that are leaving or on unusable nodes are computed each time, because their pods change."""
        uses, jobs = self._uses(), self._mirror.jobs
        known = self._holding if self._containment.empty else {}
        for entry in self._ledger.entries(State.RESERVED, *HOLDING):
            job, use, last = jobs.get(entry.uid), uses.get(entry.uid), known.get(entry.uid)
            if last is not None and self._stands(last, entry, job, use, config, now):
                yield last.admitted
                continue
            if self._set_aside(entry, job) is not None or self._mirror.hides(entry):
                yield from _as_recorded(entry, self._mirror.pods_of(entry))
                continue
            try:
                if entry.state is State.RESERVED:
                    gang = self._one_held(entry, job, config)
                else:
                    gang = self._one_admitted(entry, job, config, now, use)
            except Exception as error:  # noqa: BLE001 - contained
                self._failed(entry, job, error)
                yield from _as_recorded(entry, self._mirror.pods_of(entry))
                continue
            if entry.state is not State.RESERVED:
                self._containment.passed(Boundary.SNAPSHOT, entry.uid)
            if gang is not None:
                yield gang

    def _stands(
        self,
        last: _Holding,
        entry: Entry,
        job: JobRecord | None,
        use: GangUse | None,
        config: QueueConfig,
        now: float,
    ) -> bool:
        """Whether a running gang is as it was. Beyond these objects, only its idle time, its checkpoint and its end change it."""
        return (
            last.entry is entry
            and last.job is job
            and last.use is use
            and now < self._durations.due_at(entry.uid)
            and self._idle_since(entry, last.job, config, now) == last.admitted.idle_since
            and checkpoint_of(self._mirror, entry, last.job, config) == last.admitted.checkpoint_at
        )

    def _one_held(
        self, entry: Entry, job: JobRecord | None, config: QueueConfig
    ) -> Admitted | None:
        """A gang that is held for admission checks; None for each other one."""
        if job is not None and entry.lease is not None and self._held(entry, job, config):
            return self._made_held(entry, job, entry.lease)
        return None

    def _one_admitted(
        self,
        entry: Entry,
        job: JobRecord | None,
        config: QueueConfig,
        now: float,
        use: GangUse | None,
    ) -> Admitted | None:
        """One running gang; None for one that holds nothing."""
        if job is None or entry.placement is None:
            return None
        utilization = _utilization(entry, job, use)
        idle_since = self._idle_since(entry, job, config, now)
        known = self._holding.get(entry.uid)
        if known is not None and known.entry is entry and known.job is job:
            gang = known.admitted
            ends_at, end_enforced = self._durations.end(entry, job, config, now)
            changed = replace(
                gang,
                workload=self._begun(entry, job, config, ends_at),
                utilization=utilization,
                idle_since=idle_since,
                checkpoint_at=checkpoint_of(self._mirror, entry, job, config),
                ends_at=ends_at,
                end_enforced=end_enforced,
            )
            gang = gang if changed == gang else changed
            self._holding[entry.uid] = _Holding(entry, job, use, gang)
            return gang
        gang = self._made_admitted(entry, job, entry.placement, config, now)
        gang = replace(gang, utilization=utilization, idle_since=idle_since)
        if not gang.leaving and gang.lease is None and self._on_good_nodes(entry.placement):
            self._holding[entry.uid] = _Holding(entry, job, use, gang)
            self._waiting.pop(entry.uid, None)
        return gang

    def running(
        self, entry: Entry, job: JobRecord, config: QueueConfig, now: float
    ) -> Admitted | None:
        """One gang for a snapshot, without its idle time; None if it holds nothing."""
        if entry.placement is None:
            return None
        gang = self._made_admitted(entry, job, entry.placement, config, now)
        return replace(gang, utilization=_utilization(entry, job, self._uses().get(entry.uid)))

    def _made_admitted(
        self, entry: Entry, job: JobRecord, placement: Placement, config: QueueConfig, now: float
    ) -> Admitted:
        stays = _stays(entry)
        leaving = entry.state is State.EVICTING and not stays
        lease = entry.lease if not stays else None
        live = entry.state.live
        starts_again = self._terminating(job) is None
        ends = self._durations.end(entry, job, config, now) if live else (None, False)
        return Admitted(
            workload=self._begun(entry, job, config, ends[0]),
            placement=self._still_held(entry, job) if leaving else placement,
            leaving=leaving,
            returns=leaving and starts_again and not _grown(job) and queues_again_at_once(entry),
            started_at=entry.started_at or entry.since,
            checkpoint_at=checkpoint_of(self._mirror, entry, job, config),
            lost=() if leaving or stays else self._lost(entry, job, placement),
            evictions=entry.preempted_at,
            lease=lease if lease is not None and lease.expires_at > now else None,
            ends_at=ends[0],
            end_enforced=ends[1],
            evictable=not stays,
            final=job.final,
            restartable=starts_again
            and job.error is None
            and not job.final
            and not job.elastic
            and not stays
            and not self._checked(entry, config)
            and (job.priority_class is None or job.priority_class in config.priority_classes),
        )

    def _still_held(self, entry: Entry, job: JobRecord) -> Placement:
        """The use of an evicted gang: all its slots until its job is suspended, then the slots of its pods."""
        assert entry.placement is not None
        if not (job.suspended and job.attempt >= entry.attempt):
            return entry.placement
        held = self._usage.held_by(entry)
        return Placement(tuple(p.left_on(held.get(p.podset, {})) for p in entry.placement.podsets))

    def _on_good_nodes(self, placement: Placement) -> bool:
        nodes = self._mirror.nodes
        return all(
            name in nodes and nodes[name].node.takes(())
            for podset in placement.podsets
            for name, _ in podset.nodes
        )

    def _lost(
        self, entry: Entry, job: JobRecord, placement: Placement
    ) -> tuple[tuple[str, str, int], ...]:
        """Slots on nodes that take no new pods and that no pod of the attempt fills.

        Pods on a cordoned node continue to run: they fill their slots until they are deleted.
        """
        lost = []
        rules = {podset.name: podset.shape.rules for podset in job.podsets}
        for podset in placement.podsets:
            tolerations = rules[podset.podset].tolerations if podset.podset in rules else ()
            for node, count in podset.by_node.items():
                record = self._mirror.nodes.get(node)
                if record is not None and record.node.takes(tolerations):
                    continue
                ready = record is not None and record.node.ready
                gone = count - self._filled(entry, podset.podset, node, ending=ready)
                if gone > 0:
                    lost.append((podset.podset, node, gone))
        return tuple(lost)

    def _filled(self, entry: Entry, podset: str, node: str, *, ending: bool) -> int:
        """Slots that pods fill there. ``ending``: include pods that terminate or are not bound yet."""
        slot = node, entry.attempt
        return sum(
            (self._usage.node_and_attempt(pod) if ending else (pod.node, pod.attempt)) == slot
            and pod.podset == podset
            and (ending or not pod.terminating)
            and not pod.terminal
            for pod in self._mirror.pods_of(entry)
        )


def _queues_that_differ(before: QueueConfig, now: QueueConfig) -> Callable[[str, str], bool]:
    """Whether a LocalQueue (namespace, name), its ClusterQueue or a rule of all queues differs in more than amounts of quota."""
    particular = {"revision", "cluster_queues", "local_queues", "later"}
    general = {one.name for one in fields(now)} - particular
    if any(getattr(before, name) != getattr(now, name) for name in general):
        return lambda *_: True
    had, has = before.cluster_queues, now.cluster_queues
    differing = {
        name
        for name in had.keys() | has.keys()
        if name not in had or name not in has or not has[name].has_policies_of(had[name])
    }
    mine, earlier = now.local_queues, before.local_queues

    def differs(namespace: str, name: str) -> bool:
        queue = mine.get((namespace, name))
        same = queue == earlier.get((namespace, name))
        return not same or (queue is not None and queue.cluster_queue in differing)

    return differs


def _nodes_that_differ(before: Fleet | None, now: Fleet) -> set[str]:
    """Names of the nodes."""
    had, has = before.by_name if before is not None else {}, now.by_name
    return {name for name in had.keys() | has.keys() if had.get(name) is not has.get(name)}


def _depends_on_others(job: JobRecord) -> bool:
    """Whether a pending gang can differ without a change of its entry or job.

    The request of an elastic gang's pod depends on the placement of the gang. A gang whose controller keeps ended pods waits for their
    deletion.
    """
    return growth_of(job) is not None or bool(job.kept_podsets)


def _as_recorded(entry: Entry, pods: Iterable[PodRecord]) -> Iterator[Admitted]:
    """The gang as the ledger alone has it: it can be evicted, and is neither repaired nor moved."""
    placement = entry.placement
    if placement is None and entry.lease is not None and entry.state is State.RESERVED:
        placement = entry.lease.placement if entry.awaits_checks else None
    if placement is None:
        return
    largest: dict[str, Resources] = {}
    for pod in pods:
        known = largest.get(pod.podset, NOTHING)
        names = known.keys() | pod.requests.keys()
        most = {name: max(known.get(name, 0), pod.requests.get(name, 0)) for name in names}
        largest[pod.podset] = Resources(most)
    planned = entry.planned.requests if entry.planned is not None else largest
    podsets = tuple(
        PodSet(p.podset, p.count, PodShape(planned.get(p.podset, NOTHING)))
        for p in placement.podsets
    )
    yield Admitted(
        workload=Workload(
            uid=entry.uid,
            kind=entry.kind,
            namespace=entry.namespace,
            name=entry.name,
            podsets=podsets,
            queue=entry.queue,
            priority=entry.priority,
            queued_at=entry.queue_order_time,
        ),
        placement=placement,
        leaving=entry.state is State.EVICTING,
        started_at=entry.started_at or entry.since,
        evictions=entry.preempted_at,
        restartable=False,
    )


def _shared_claims(
    admitted: Iterable[Admitted], claims: Mapping[tuple[str, str], Claim]
) -> frozenset[str]:
    """Uids of the named claims that pods of these gangs share."""
    if not claims:
        return frozenset()
    named = {
        (gang.workload.namespace, name)
        for gang in admitted
        for podset in gang.workload.podsets
        if podset.shape.devices is not None
        for name in podset.shape.devices.shared
    }
    return frozenset(claims[key].uid for key in named if key in claims)


def _stays(entry: Entry) -> bool:
    """Whether it is evicted and the API server denies its suspension: until the API server accepts it, its capacity stays in use."""
    return entry.state is State.EVICTING and entry.refused_write is not None


def _utilization(entry: Entry, job: JobRecord, use: GangUse | None) -> float | None:
    """The measured utilization, or that of its annotation before the first measurement. In hundredths: the planner needs no more."""
    if use is None or use.attempt != entry.attempt or use.state is UseState.WARMUP:
        return job.utilization
    return None if use.weight is None else round(use.weight, 2)


def _returns_by(entry: Entry, job: JobRecord, blocked: Reason | None) -> float | None:
    """The time until which a blocked gang holds its place: it has started before, and its pods are to be created again.

    A pod above the gang of an elastic Job holds back no gang.
    """
    if blocked is None or blocked.code is not Code.WAITING_FOR_PODS or not job.awaits:
        return None
    return entry.since + RETURN_SECONDS if entry.attempt and not _grown(job) else None


def _grown(job: JobRecord) -> bool:
    """Whether it is a pod that was added to an elastic Job."""
    return job.index is not None and job.index.grown


def _reclaim_since(entry: Entry) -> float | None:
    """The time since which it has waited to evict borrowing gangs; None = the last plan did not make it wait."""
    if entry.reason.code not in WAITS_TO_EVICT:
        return None
    since = entry.reason.details.get("since")
    return None if since is None else float(since)
