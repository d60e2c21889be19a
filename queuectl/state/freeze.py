"""Cluster, ledger and configuration -> Snapshot: an immutable input for one cycle, cheap to make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from math import inf
from typing import NamedTuple

from queuectl.devices.numa import with_numa_nodes_of_others
from queuectl.domain.arrays import growth_of
from queuectl.domain.checks import CheckState
from queuectl.domain.containment import Boundary
from queuectl.domain.devices import Claim
from queuectl.domain.fleet import Fleet
from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import Entry, State
from queuectl.domain.node_health import UnhealthyNodes
from queuectl.domain.node_quota import NodeQuota
from queuectl.domain.provisioning import JOIN_SECONDS
from queuectl.domain.queries import IN_QUEUE_ORDER
from queuectl.domain.queues import QueueConfig
from queuectl.domain.reasons import WAITS_TO_EVICT, Code, Reason
from queuectl.domain.records import NamespaceRecord
from queuectl.domain.snapshot import Admitted, CapacityLease, Pending, Snapshot, SolverLimits
from queuectl.domain.utilization import GangUse
from queuectl.domain.workload import Duration, Workload
from queuectl.objects.kubernetes.nodes import never_preempting
from queuectl.state.arrays import (
    RETURN_SECONDS,
    after_lower_ranks,
    in_rank_order,
    opened_by_one,
    stalled_ranks,
)
from queuectl.state.blocking_reasons import BlockingReasons
from queuectl.state.durations import LearnedDurations
from queuectl.state.gang_requests import GangRequests
from queuectl.state.holding_gangs import (
    GangMeasures,
    HoldingGangs,
    IdleSince,
    forget_in,
    is_grown,
    is_not_stopped,
    never_idle,
    set_aside,
)
from queuectl.state.holdings import allowances
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror, asked_of
from queuectl.state.usage import OtherPodUsage


class _Waiting(NamedTuple):
    """A pending gang with the objects from which it was made, and the unix seconds until which nothing else changes it."""

    entry: Entry
    job: JobRecord
    pending: Pending
    until: float


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
        self._durations = durations if durations is not None else LearnedDurations(mirror)
        self._containment = mirror.containment
        self._mirror = mirror
        self._ledger = ledger
        self._usage = usage
        self._node_quota = NodeQuota()
        self._requests = GangRequests(mirror, ledger, self._durations, quota_free=quota_free)
        self._blocking = BlockingReasons(mirror, quota_free=quota_free)
        self._waiting: dict[str, _Waiting] = {}
        self._running = HoldingGangs(
            mirror,
            ledger,
            usage,
            GangMeasures(uses, idle_since, self._durations),
            self._requests,
            self._blocking,
            excluded=self._excluded,
            failed=self._failed,
            began=lambda uid: self._waiting.pop(uid, None),
        )
        self._claims: Mapping[tuple[str, str], Claim] = {}
        self._resized = False
        self._avoided: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
        self._learned = 0
        self._frozen_at = -inf  # unix seconds
        # Of the last snapshot, and one with the same policies, which is the same object as long as these stay.
        self._last_config = self._config = QueueConfig()
        self._fleet: Fleet | None = None
        self._records: list[NamespaceRecord] = []

    def freeze(self, config: QueueConfig, now: float, limits: SolverLimits) -> Snapshot:
        """The snapshot at ``now`` (unix seconds), without workloads that the watch no longer shows, and without device rows."""
        sizes = self._mirror.gpus(config)
        config = self._node_quota.of(config, self._mirror.fleet)
        before, self._requests.sizes = self._requests.sizes, sizes
        self._resized = before is None or sizes.basis is not before.basis
        self._drop_outdated(config)
        if now < self._frozen_at:  # the clock was set back: what had passed is yet to come
            self._drop_all()
        self._frozen_at = now
        device_mirror = self._mirror.devices
        devices = device_mirror.inventory(self._mirror.fleet)
        admitted = tuple(self._running.freeze(self._config, now))
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
            namespaces=self._blocking.labels,
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
            self._running.forget_charged_to(_policies_that_differ(self._config, config))
            self._config = self._requests.config = config
        self._last_config = config
        if records != self._records:
            had, has = ({one.name: one for one in of} for of in (self._records, records))
            names = {name for name in had.keys() | has.keys() if had.get(name) != has.get(name)}
            self._records = records
            self._blocking.note_namespaces(records)
            self._drop_in(lambda namespace, _: namespace in names)
        if self._resized:
            self._running.forget_all()
        if self._mirror.fleet is not self._fleet:
            before, self._fleet = self._fleet, self._mirror.fleet
            self._drop_on(_nodes_that_differ(before, self._fleet))
        if self._mirror.devices.named_claims is not self._claims:
            self._claims = self._mirror.devices.named_claims
            for uid in self._requests.sharing:
                self._waiting.pop(uid, None)
                self._running.forget(uid)
        never = never_preempting(self._mirror.priority_classes.values())
        if never != self._requests.never_preempting:
            self._requests.never_preempting = never
            self._drop_all()
        nodes = self._mirror.nodes
        ending = frozenset(nodes.ending)  # of all queues; the second is of queues that drain nodes
        avoided = (ending, ending.union(nodes.failing))
        if avoided != self._avoided:
            self._avoided = avoided
            self._drop_all()

    def _drop_all(self) -> None:
        self._waiting.clear()
        self._running.forget_all()

    def _drop_in(self, concerned: Callable[[str, str], bool]) -> None:
        """Drop what depends on LocalQueues, by namespace and name."""
        forget_in(self._waiting, concerned)
        self._running.forget_in(concerned)
        self._blocking.forget(concerned)

    def _drop_on(self, nodes: set[str]) -> None:
        """Drop running gangs with slots on these nodes, and the gangs that depend on all nodes."""
        self._running.forget_on(nodes)
        unsupported = [
            uid
            for uid, last in self._waiting.items()
            if (why := last.pending.blocked) is not None and why.code is Code.UNSUPPORTED
        ]
        for uid in unsupported:
            del self._waiting[uid]

    def workload(self, entry: Entry, job: JobRecord) -> Workload:
        """The request of the gang for the planner; the same object until job or priority change."""
        return self._requests.workload(entry, job)

    def running(
        self, entry: Entry, job: JobRecord, config: QueueConfig, now: float
    ) -> Admitted | None:
        """One gang for a snapshot, without its idle time; None if it holds nothing, or if an error sets it aside."""
        try:
            return self._running.gang(entry, job, config, now)
        except Exception as error:  # noqa: BLE001 - contained
            self._failed(entry, job, error)
            return None

    def forget(self, uid: str) -> None:
        """Forget a workload that has left the ledger."""
        self._requests.forget(uid)
        self._waiting.pop(uid, None)
        self._running.forget(uid)
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
            if set_aside(self._containment, entry, job) is not None:
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
        if job is not None and self._running.waits_for_checks(entry, job, config):
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
            duration = self._attempt(entry, job, config, now)
            if duration != pending.workload.duration:
                pending = replace(
                    pending, workload=self._requests.lasting(pending.workload, duration)
                )
        if last is not None and last.pending == pending:
            pending = last.pending
        self._waiting[uid] = _Waiting(entry, job, pending, self._stands_until(job, pending))
        if pending.lease is not None and not self._comes(pending.lease, now):
            pending = replace(pending, lease=None)
        return pending

    def _attempt(
        self, entry: Entry, job: JobRecord, config: QueueConfig, now: float
    ) -> Duration | None:
        """How long it runs if it starts now; None = unknown. A pod that is added to a gang ends with it."""
        gang, own = self._running.ends_with(entry, job)
        if gang is entry:
            return self._durations.attempt(entry, job, config, now)
        return self._durations.remaining(gang, own, config, now)

    def _stands_until(self, job: JobRecord, pending: Pending) -> float:
        """The unix seconds until which a pending gang is the same while its entry and its job are; at no time if it depends on others."""
        if pending.lease is not None or _depends_on_others(job):
            return -inf
        times = (self._durations.due_at(job.uid), pending.borrows_at, pending.returns_by)
        return min(at for at in times if at is not None)

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
        return lease.expires_at > now and not any(
            v is not None and is_not_stopped(v) for v in victims
        )

    def _made_pending(self, entry: Entry, job: JobRecord, config: QueueConfig) -> Pending:
        blocked = self._blocking.of(entry, job, config)
        provisioned_at = _nodes_made_at(entry, config)
        return Pending(
            workload=self._requests.workload(entry, job),
            lease=entry.lease,
            budget=entry.budget,
            excluded=self._excluded(entry, config),
            blocked=blocked,
            borrows_at=entry.requeue_at,
            reclaim_since=_reclaim_since(entry) if provisioned_at is None else provisioned_at,
            planned_start=entry.planned_start,
            ready_checks=entry.checks.ready,
            spares_until=None if provisioned_at is None else provisioned_at + JOIN_SECONDS,
            unasked=tuple(sorted(entry.checks.unasked.items())),
            returns_by=_returns_by(entry, job, blocked),
            past_seconds=entry.past_seconds,
        )

    def _excluded(self, entry: Entry, config: QueueConfig) -> frozenset[str]:
        """The nodes on which none of its pods is placed, whatever it tolerates: it would be evicted from them again."""
        queue = config.cluster_queues.get(entry.cluster_queue)
        drains = queue is not None and queue.unhealthy_nodes is UnhealthyNodes.DRAIN
        avoided = self._avoided[drains]
        return avoided | frozenset(entry.excluded) if entry.excluded else avoided

    def parked(self, config: QueueConfig) -> Iterator[Pending]:
        """The gangs that are held, deactivated or in back-off, with their reasons. The snapshot of a cycle is without them."""
        for entry in self._ledger.entries(State.HELD, State.DEACTIVATED, State.BACKOFF):
            job = self._mirror.jobs.get(entry.uid)
            if job is not None:
                why = self._blocking.own_fault(job, config) or entry.reason
                yield Pending(self._requests.workload(entry, job), blocked=why)


def _queues_that_differ(before: QueueConfig, now: QueueConfig) -> Callable[[str, str], bool]:
    """Whether a LocalQueue (namespace, name), its ClusterQueue or a rule of all queues differs in more than amounts of quota."""
    particular = {"revision", "cluster_queues", "local_queues", "later"}
    general = {one.name for one in fields(now)} - particular
    if any(getattr(before, name) != getattr(now, name) for name in general):
        return lambda *_: True
    differing = _policies_that_differ(before, now)
    mine, earlier = now.local_queues, before.local_queues

    def differs(namespace: str, name: str) -> bool:
        queue = mine.get((namespace, name))
        same = queue == earlier.get((namespace, name))
        return not same or (queue is not None and queue.cluster_queue in differing)

    return differs


def _policies_that_differ(before: QueueConfig, now: QueueConfig) -> set[str]:
    """Names of the ClusterQueues that differ in more than amounts of quota."""
    had, has = before.cluster_queues, now.cluster_queues
    return {
        name
        for name in had.keys() | has.keys()
        if name not in had or name not in has or not has[name].has_policies_of(had[name])
    }


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


def _returns_by(entry: Entry, job: JobRecord, blocked: Reason | None) -> float | None:
    """The time until which a blocked gang holds its place: it has started before, and its pods are to be created again.

    A pod above the gang of an elastic Job holds back no gang.
    """
    if blocked is None or blocked.code is not Code.WAITING_FOR_PODS or not job.awaits:
        return None
    return entry.since + RETURN_SECONDS if entry.attempt and not is_grown(job) else None


def _nodes_made_at(entry: Entry, config: QueueConfig) -> float | None:
    """The last time at which a check that makes its nodes became Ready; None if none is."""
    made = (status for status, _ in config.provisioning_checks(entry.checks))
    ready = (status.since for status in made if status.state is CheckState.READY)
    return max(ready, default=None)


def _reclaim_since(entry: Entry) -> float | None:
    """The time since which it has waited to evict borrowing gangs; None = the last plan did not make it wait."""
    if entry.reason.code not in WAITS_TO_EVICT:
        return None
    since = entry.reason.details.get("since")
    return None if since is None else float(since)
