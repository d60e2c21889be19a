"""Mirror + ledger + configuration -> Snapshot: a cheap immutable picture for one cycle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from queuectl.domain.ledger import Entry, State
from queuectl.domain.machine import FAILED_START
from queuectl.domain.queues import QueueConfig
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.records import JobRecord
from queuectl.domain.snapshot import Admitted, Pending, Snapshot, SolverLimits
from queuectl.domain.workload import Placement, Workload
from queuectl.objects.standing import standing
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror
from queuectl.state.usage import Usage


class Freezer:
    """Builds snapshots; keeps what did not change since the last one."""

    def __init__(self, mirror: Mirror, ledger: Ledger, usage: Usage) -> None:
        self._mirror = mirror
        self._ledger = ledger
        self._usage = usage
        self._asked: dict[str, tuple[int, int, str, Workload]] = {}

    def freeze(self, config: QueueConfig, now: float, limits: SolverLimits) -> Snapshot:
        """The picture at ``now`` (unix seconds). Workloads the watch no longer shows are left out."""
        return Snapshot(
            now=now,
            fleet=self._mirror.fleet,
            config=config,
            pending=tuple(self._pending(config, now)),
            admitted=tuple(self._admitted(config, now)),
            strangers=self._usage.strangers,
            namespaces={ns.name: dict(ns.labels) for ns in self._mirror.namespaces.values()},
            limits=limits,
        )

    def workload(self, entry: Entry, job: JobRecord) -> Workload:
        """What the gang asks, as the planner reads it; the same object until job or priority change."""
        known = self._asked.get(entry.uid)
        key = (job.version, entry.priority, entry.queue)
        if known is not None and known[:3] == key:
            return known[3]
        workload = Workload(
            uid=entry.uid,
            kind=entry.kind,
            namespace=entry.namespace,
            name=entry.name,
            podsets=job.podsets,
            queue=entry.queue,
            priority=entry.priority,
            queued_at=entry.queued_at,
            preemptible=job.preemptible,
        )
        if known is not None and known[3] == workload:
            workload = known[3]
        self._asked[entry.uid] = (*key, workload)
        return workload

    def forget(self, uid: str) -> None:
        """A workload left the ledger."""
        self._asked.pop(uid, None)

    def _pending(self, config: QueueConfig, now: float) -> list[Pending]:
        pending = []
        for entry in self._ledger.entries(State.PENDING, State.RESERVED):
            job = self._mirror.jobs.get(entry.uid)
            if (
                job is None or not job.suspended
            ):  # what runs without us is for observe.py to settle first
                continue
            lease = entry.lease
            pending.append(
                Pending(
                    workload=self.workload(entry, job),
                    lease=lease if lease is not None and lease.expires_at > now else None,
                    budget=entry.budget,
                    excluded=frozenset(entry.excluded),
                    blocked=self._blocked(entry, job, config),
                )
            )
        return pending

    def _blocked(self, entry: Entry, job: JobRecord, config: QueueConfig) -> Reason | None:
        if job.error is not None:
            return Reason(Code.UNSUPPORTED if job.unsupported else Code.MISCONFIGURED, job.error)
        namespace = self._mirror.namespaces.get(entry.namespace)
        labels = dict(namespace.labels) if namespace is not None else {}
        why = standing(entry.namespace, entry.queue, config, labels)
        if why is None and job.priority_class not in (None, *config.priority_classes):
            text = f"WorkloadPriorityClass {job.priority_class} does not exist"
            return Reason(Code.MISCONFIGURED, text)
        return why

    def _admitted(self, config: QueueConfig, now: float) -> list[Admitted]:
        admitted = []
        classes = {None, *config.priority_classes}
        for entry in self._ledger.entries(State.STARTING, State.RUNNING, State.EVICTING):
            job = self._mirror.jobs.get(entry.uid)
            if job is None or entry.placement is None:
                continue
            leaving = entry.state is State.EVICTING
            lease = entry.lease
            admitted.append(
                Admitted(
                    workload=self.workload(entry, job),
                    placement=self._still_held(entry, job) if leaving else entry.placement,
                    leaving=leaving,
                    returns=leaving and entry.reason.code not in FAILED_START,
                    started_at=entry.started_at or entry.since,
                    checkpoint_at=job.checkpoint_at,
                    utilization=job.utilization,
                    lost=() if leaving else self._lost(entry, entry.placement),
                    evictions=entry.preempted_at,
                    lease=lease if lease is not None and lease.expires_at > now else None,
                    restartable=job.error is None and job.priority_class in classes,
                )
            )
        return admitted

    def _still_held(self, entry: Entry, job: JobRecord) -> Placement:
        """What an evicted gang still uses: all its slots until its job is seen suspended, then what its pods hold."""
        assert entry.placement is not None
        if not (job.suspended and job.attempt >= entry.attempt):
            return entry.placement
        held = self._usage.held_by(entry)
        return Placement(
            tuple(
                replace(p, nodes=tuple(held.get(p.podset, {}).items()))
                for p in entry.placement.podsets
            )
        )

    def _lost(self, entry: Entry, placement: Placement) -> tuple[tuple[str, str, int], ...]:
        """Slots on nodes that are gone or not ready and that no healthy pod of the attempt still fills."""
        lost = []
        for podset in placement.podsets:
            for node, count in podset.by_node.items():
                record = self._mirror.nodes.get(node)
                if record is not None and record.node.ready:
                    continue
                gone = count - self._healthy(entry, podset.podset, node)
                if gone > 0:
                    lost.append((podset.podset, node, gone))
        return tuple(lost)

    def _healthy(self, entry: Entry, podset: str, node: str) -> int:
        return sum(
            pod.node == node
            and pod.podset == podset
            and pod.attempt == entry.attempt
            and not pod.terminating
            and not pod.terminal
            for pod in self._mirror.pods_of(entry.uid)
        )


def priority_of(job: JobRecord, config: QueueConfig, pod_classes: Mapping[str, int]) -> int:
    """WorkloadPriorityClass by label, else the pods' own PriorityClass, else 0."""
    if job.priority_class is not None:
        return config.priority_classes.get(job.priority_class, 0)
    return pod_classes.get(job.pod_priority_class or "", 0)
