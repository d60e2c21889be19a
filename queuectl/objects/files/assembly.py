"""Assembles the parts of a file: running gangs with their capacity, pending gangs, and reasons against planning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from queuectl.devices.numa import with_numa_nodes_of_others
from queuectl.domain.fleet import Fleet, Node
from queuectl.domain.gates import JobName, held_by, remaining
from queuectl.domain.growth import beside
from queuectl.domain.job_records import user_of
from queuectl.domain.quantity import NOTHING, Resources
from queuectl.domain.queues import ClusterQueue, QueueConfig
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.records import ResourceQuotaRecord
from queuectl.domain.resource_quota import Allowance, with_promises
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import (
    Placement,
    PodSet,
    PodSetPlacement,
    Workload,
)
from queuectl.objects.configuration.admissibility import inadmissible_reason, refused_gpus, too_long
from queuectl.objects.files.assignments import Assigned
from queuectl.objects.files.charging import charge
from queuectl.objects.files.cycles import graph_of
from queuectl.objects.files.devices import GivenDevices, left_out, named_by
from queuectl.objects.files.durations import attempt, end
from queuectl.objects.files.gangs import Gang, merged, owned
from queuectl.objects.files.placements import FreeCapacity
from queuectl.objects.files.pods import GivenPod
from queuectl.objects.files.slots import Owners, Slots
from queuectl.objects.files.workloads import KIND as WORKLOAD
from queuectl.objects.times import format_time

_SYSTEM_CLASSES: Final = {
    "system-cluster-critical": 2_000_000_000,
    "system-node-critical": 2_000_001_000,
}
_NAMESPACE_LABEL: Final = "kubernetes.io/metadata.name"
_NOWHERE: Final = "(unknown node)"
_TICK: Final = 1e-5  # between undated gangs, so that they queue in the order of the file


@dataclass
class Parts:
    """The content of the documents, in their order."""

    nodes: list[Node] = field(default_factory=list)
    pods: list[GivenPod] = field(default_factory=list)
    gangs: list[Gang] = field(default_factory=list)
    namespaces: dict[str, Mapping[str, str]] = field(default_factory=dict)
    pod_classes: dict[str, int] = field(default_factory=lambda: dict(_SYSTEM_CLASSES))
    warnings: list[str] = field(default_factory=list)
    allowances: dict[str, list[ResourceQuotaRecord]] = field(default_factory=dict)
    devices: GivenDevices = field(default_factory=GivenDevices)


class Assembly:
    """Assembles the parts, once."""

    def __init__(self, parts: Parts, queues: QueueConfig, now: float) -> None:
        self._parts = parts
        self._now = now
        self._fleet = Fleet(tuple(sorted(parts.nodes, key=lambda node: node.name)))
        self._hosts = {node.hostname: node.name for node in self._fleet.nodes}
        self._offered = frozenset(name for node in parts.nodes for name in node.allocatable)
        joined, self._workload_names = self._join()
        self._graph = graph_of(parts.gangs)
        self._owners = Owners(joined, self._workload_names)
        self._placements: dict[str, Placement] = {}  # of running gangs, by uid
        self._gangs, self._queues = charge(self._with_drafts_waiting(joined), queues)

    def snapshot(self) -> Snapshot:
        slots = Slots(self._fleet)
        running = [gang for gang in self._gangs if gang.running and self._holds(gang)]
        for gang in running:
            self._state(gang, slots)
        slots.fill(self._parts.pods, self._owners)
        self._assume(running, slots)
        admitted = [self._admitted(gang, slots) for gang in running]
        self._placements = {g.workload.uid: g.placement for g in admitted if g is not None}
        pending = [gang for gang in self._gangs if not gang.running]
        given = self._parts.devices
        devices = given.inventory(self._fleet)
        self._parts.warnings.extend((*left_out(devices), *given.strangers(devices)))
        return Snapshot(
            now=self._now,
            fleet=self._fleet,
            config=self._queues,
            pending=tuple(self._pending(gang, i) for i, gang in enumerate(pending)),
            admitted=tuple(gang for gang in admitted if gang is not None),
            other_pods=slots.other_pods,
            namespaces=self._namespaces(),
            allowances=self._allowances(gang for gang in admitted if gang is not None),
            devices=devices,
            other_devices=with_numa_nodes_of_others(
                given.held_by_others(devices, slots.filled, named_by(running)),
                devices,
                slots.other_pods,
                slots.guaranteed.intersection,
            ),
            claims=given.named_claims,
        )

    def _allowances(self, admitted: Iterable[Admitted]) -> dict[str, tuple[Allowance, ...]]:
        """For a quota without a stated use, the running gangs of the input count as its use."""
        podsets: dict[str, list[tuple[PodSet, int]]] = {}
        for gang in admitted if self._parts.allowances else ():
            held = podsets.setdefault(gang.workload.namespace, [])
            held.extend((podset, podset.count) for podset in gang.workload.podsets)
        return {
            namespace: tuple(
                r.allowance if r.counted else with_promises(r.allowance, podsets.get(namespace, ()))
                for r in sorted(records, key=lambda r: r.allowance.name)
                if r.allowance.limits
            )
            for namespace, records in sorted(self._parts.allowances.items())
        }

    def _join(self) -> tuple[list[Gang], dict[tuple[str, str], str]]:
        """Each gang once, without finished ones, and the gang of each Workload name."""
        jobs = {gang.key: gang for gang in self._parts.gangs if gang.kind != WORKLOAD}
        names: dict[tuple[str, str], str] = {}
        alone: set[str] = set()
        for workload in self._parts.gangs:
            if workload.kind != WORKLOAD:
                continue
            job = owned(workload, jobs)
            if job is not None:
                jobs[job.key] = merged(job, workload)
            else:
                alone.add(workload.uid)
            names[workload.namespace, workload.name] = (job or workload).uid
        gangs: dict[str, Gang] = {}
        for given in self._parts.gangs:
            gang = jobs.get(given.key, given)
            if gang.finished or (given.kind == WORKLOAD and given.uid not in alone):
                continue
            if gang.uid in gangs:
                other = gangs[gang.uid].document.address
                raise gang.document.error("metadata.uid", f"{gang.uid!r} is also that of {other}")
            gangs[gang.uid] = gang
        return list(gangs.values()), {key: uid for key, uid in names.items() if uid in gangs}

    def _with_drafts_waiting(self, gangs: list[Gang]) -> list[Gang]:
        """A job with pods was submitted, whatever its file omits."""
        drafts = {gang.uid for gang in gangs if gang.draft}
        if drafts:
            owners = ((self._owners.of(pod), pod.record) for pod in self._parts.pods)
            drafts -= {
                gang.uid
                for gang, pod in owners
                if gang is not None and (gang.index is None or not pod.gated)
            }
        return [replace(gang, running=False) if gang.uid in drafts else gang for gang in gangs]

    # ---- running gangs

    def _holds(self, gang: Gang) -> bool:
        """Whether the capacity of a running gang is known; if not, it adds a warning."""
        if gang.error is not None:
            self._warn(gang, f"runs, but its request is not understood: {gang.error}")
            return False
        # Resumed and in no queue: its pods are other pods.
        return bool(gang.assigned) or gang.queue is not None

    def _state(self, gang: Gang, slots: Slots) -> None:
        hosts = [assigned.hosts for assigned in gang.assigned.values()]
        if (gang.leaving and self._parts.pods) or not hosts or None in hosts:
            slots.derive(gang)
            return
        stated: dict[tuple[str, str], int] = {}
        for podset, assigned in gang.assigned.items():
            for host, count in assigned.hosts or ():
                slot = (podset, self._hosts.get(host, host))
                if self._fleet.nodes and count:
                    stated[slot] = stated.get(slot, 0) + count
        slots.state(gang, stated)

    def _assume(self, running: list[Gang], slots: Slots) -> None:
        """Assign nodes to pods of which only a domain above the host is known. Pods without room use no node.

        An admission without domains uses none, as in Kueue: its pods count if they are in the input.
        """
        capacity: FreeCapacity | None = None
        for gang in running:
            held = slots.held[gang.uid]
            for podset in gang.podsets if gang.assigned and not gang.leaving else ():
                assigned = gang.assigned.get(podset.name, Assigned())
                sitting = sum(count for (name, _), count in held.items() if name == podset.name)
                missing = self._counted(podset, gang, held).count - sitting
                if (
                    missing <= 0
                    or not assigned.domains
                    or assigned.hosts is not None
                    or not self._on_nodes(assigned.flavors)
                ):
                    continue
                capacity = capacity or FreeCapacity(self._fleet, self._used(running, slots))
                known = (self._queues.flavors.get(name) for name in assigned.flavors.values())
                flavors = {flavor.name: flavor for flavor in known if flavor is not None}
                found = capacity.place(podset, missing, assigned, flavors.values())
                for node, count in found.items():
                    held[podset.name, node] = held.get((podset.name, node), 0) + count
                if found:
                    text = f"{sum(found.values())} pods have no stated nodes"
                    names = ", ".join(sorted(found))
                    self._warn(gang, f"podset {podset.name}: {text}; assumed on {names}")

    def _used(self, running: list[Gang], slots: Slots) -> dict[str, Resources]:
        """The use of each node, by slots and other pods."""
        used = dict(slots.other_pods)
        for gang in running:
            for podset in gang.podsets:
                for (name, node), count in slots.held[gang.uid].items():
                    if name == podset.name:
                        held = self._without_incidental(podset).shape.requests * count
                        used[node] = used.get(node, NOTHING) + held
        return used

    def _admitted(self, gang: Gang, slots: Slots) -> Admitted | None:
        held = slots.held[gang.uid]
        if not held and not gang.assigned:
            self._warn(gang, "is not suspended, but neither its pods nor its admission are given")
            return None
        podsets = tuple(self._counted(podset, gang, held) for podset in gang.podsets)
        placed = tuple(self._placed(gang, podset, held) for podset in podsets)
        ready = {node.name for node in self._fleet.nodes if node.ready}
        ready -= {self._hosts.get(name, name) for name in gang.unhealthy}
        lost = [(name, node, count) for (name, node), count in held.items() if node not in ready]
        started = gang.started_at if gang.started_at is not None else gang.created_at
        started = self._now if started is None else started
        ends_at, enforced = end(gang, self._queues, started, self._now)
        idle = gang.idle_since
        return Admitted(
            workload=self._workload(gang, podsets, gang.created_at or 0.0),
            placement=Placement(placed),
            leaving=gang.leaving,
            started_at=started,
            checkpoint_at=self._checkpoint(gang),
            utilization=gang.utilization,
            lost=() if gang.leaving else tuple(lost),
            evictions=tuple(sorted(set(gang.evictions))),
            restartable=gang.error is None,
            idle_since=idle if idle is not None and idle <= self._now else None,
            ends_at=None if gang.leaving else ends_at,
            end_enforced=enforced and not gang.leaving,
        )

    def _counted(self, podset: PodSet, gang: Gang, held: Mapping[tuple[str, str], int]) -> PodSet:
        """With the stated number of admitted pods. Pods on nodes always count."""
        assigned = gang.assigned.get(podset.name)
        if assigned is None or not assigned.count:
            return podset
        placed = sum(count for (name, _), count in held.items() if name == podset.name)
        return replace(podset, count=max(assigned.count, placed))

    def _placed(
        self, gang: Gang, podset: PodSet, held: Mapping[tuple[str, str], int]
    ) -> PodSetPlacement:
        nodes = tuple((node, count) for (name, node), count in held.items() if name == podset.name)
        assigned = gang.assigned.get(podset.name)
        flavors = assigned.flavors if assigned is not None else self._flavors(gang, podset, nodes)
        missing = podset.count - sum(count for _, count in nodes)
        if missing > 0 and not gang.leaving and self._on_nodes(flavors):
            # With a topology, quota is charged by slots, so a pod without a known node needs a slot too.
            self._warn(gang, f"podset {podset.name}: {missing} pods sit on no node of the input")
            nodes = (*nodes, (_NOWHERE, missing))
        return PodSetPlacement(podset.name, nodes, flavors)

    def _on_nodes(self, flavors: Mapping[str, str]) -> bool:
        known = [self._queues.flavors.get(name) for name in flavors.values()]
        return bool(self._fleet.nodes) and any(flavor and flavor.topology for flavor in known)

    def _flavors(
        self, gang: Gang, podset: PodSet, nodes: tuple[tuple[str, int], ...]
    ) -> dict[str, str]:
        """The flavors of a resumed job without a Workload: the first that match the node of its first pod."""
        queue = self._queues.cluster_queue_of(gang.namespace, gang.queue)
        node = self._fleet.by_name.get(nodes[0][0]) if nodes else None
        charged = self._queues.rules.charged(podset.shape.requests)
        chosen: dict[str, str] = {}
        for group in queue.groups if queue is not None else ():
            names = [quotas.flavor for quotas in group.flavors]
            fitting = [name for name in names if self._matches(name, node)] or names
            chosen.update({r: fitting[0] for r in group.covered if charged[r]})
        return chosen

    def _matches(self, flavor: str, node: Node | None) -> bool:
        known = self._queues.flavors.get(flavor)
        if known is None or node is None:
            return False
        return node.has_labels(known.node_labels)

    # ---- pending gangs

    def _pending(self, gang: Gang, position: int) -> Pending:
        queued = gang.created_at
        if queued is None:  # not created yet: behind created gangs, in the order of the file
            queued = self._now + (position + 1) * _TICK
        podsets, base = gang.podsets, self._base(gang)
        if base is not None:
            podsets = beside(podsets, base, self._queues, self._fleet)
        return Pending(workload=self._workload(gang, podsets, queued), blocked=self._blocked(gang))

    def _base(self, gang: Gang) -> Placement | None:
        """The placement of the elastic gang that a pod extends."""
        return self._placements.get(gang.growth.base) if gang.growth is not None else None

    def _awaits(self, gang: Gang) -> str:
        extends = gang.growth is not None and self._base(gang) is None
        return "the gang that it extends does not run" if extends else gang.awaits

    def _blocked(self, gang: Gang) -> Reason | None:
        if gang.error is not None:
            return Reason(Code.UNSUPPORTED if gang.unsupported else Code.MISCONFIGURED, gang.error)
        if why := refused_gpus(gang.podsets, self._fleet, self._queues.rules.accounting.gpus):
            return why
        if gang.forbidden is not None:
            return gang.forbidden
        if awaits := self._awaits(gang):
            return Reason(Code.WAITING_FOR_PODS, awaits)
        if any(podset.claims and podset.shape.devices is None for podset in gang.podsets):
            text = "resourceClaims: dynamic resource allocation is not supported in this question"
            return Reason(Code.UNSUPPORTED, text)
        name = gang.priority_class
        if gang.priority is None and name and name not in self._queues.priority_classes:
            return Reason(Code.MISCONFIGURED, f"WorkloadPriorityClass {name} does not exist")
        if gang.gates:
            statuses = self._graph.statuses(JobName.of(*gang.job), gang.gates)
            if remaining(gang.gates, statuses):
                return held_by(gang.gates, statuses)
        if gang.inactive:
            return Reason(Code.HELD, "held by spec.active: false")
        if gang.requeue_at is not None and gang.requeue_at > self._now:
            until = format_time(gang.requeue_at)
            return Reason(Code.BACKOFF, f"in back-off until {until}", {"until": until})
        if gang.queue is None:
            return None
        labels = self._namespaces()[gang.namespace]
        queue = (gang.namespace, gang.queue, self._queues)
        return inadmissible_reason(*queue, labels) or too_long(*queue, gang.max_execution)

    # ---- both

    def _workload(self, gang: Gang, podsets: tuple[PodSet, ...], queued_at: float) -> Workload:
        return Workload(
            uid=gang.uid,
            kind=gang.kind,
            namespace=gang.namespace,
            name=gang.name,
            podsets=tuple(map(self._without_incidental, podsets)),
            queue=gang.queue,
            priority=self._priority(gang),
            queued_at=queued_at,
            preemptible=gang.preemptible,
            user=self._user(gang),
            duration=attempt(gang, self._queues),
            growth=gang.growth,
        )

    def _queue(self, gang: Gang) -> ClusterQueue | None:
        return self._queues.cluster_queue_of(gang.namespace, gang.queue)

    def _checkpoint(self, gang: Gang) -> float | None:
        queue = self._queue(gang)
        return gang.checkpoint_at if queue is None or queue.trusts_checkpoints else None

    def _user(self, gang: Gang) -> str | None:
        rules = self._queues.rules
        return user_of(gang.submitter, gang.labels, rules.user_label, rules.trusted_submitters)

    def _without_incidental(self, podset: PodSet) -> PodSet:
        """Requests of sidecars and overhead count only for resources that a node of the input has."""
        shape = podset.shape
        not_offered = shape.incidental - self._offered
        if not not_offered:
            return podset
        requests = {name: v for name, v in shape.requests.items() if name not in not_offered}
        shape = replace(
            shape, requests=Resources(requests), incidental=shape.incidental - not_offered
        )
        return replace(podset, shape=shape)

    def _priority(self, gang: Gang) -> int:
        queue, priority = self._queue(gang), self._stated_priority(gang)
        return priority if queue is None else queue.capped(priority)

    def _stated_priority(self, gang: Gang) -> int:
        if gang.priority is not None:
            return gang.priority
        job = gang.kind != WORKLOAD  # the class of a Workload is fixed at the creation of its job
        named = self._queues.priority_class_of(gang.priority_class) if job else gang.priority_class
        if named is not None:
            return self._queues.priority_classes.get(named, 0)
        name = gang.pod_priority_class
        if name is not None and name not in self._parts.pod_classes:
            self._warn(gang, f"PriorityClass {name} is not in the input: priority 0 assumed")
        return self._parts.pod_classes.get(name or "", 0)

    def _namespaces(self) -> dict[str, Mapping[str, str]]:
        """The namespaces of all gangs, with the name label of the API server."""
        named = {gang.namespace for gang in self._gangs} | self._parts.namespaces.keys()
        return {
            name: {_NAMESPACE_LABEL: name, **self._parts.namespaces.get(name, {})}
            for name in sorted(named)
        }

    def _warn(self, gang: Gang, text: str) -> None:
        self._parts.warnings.append(f"{gang.document.address}: {text}")
