"""The gangs of a snapshot that hold capacity."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol, TypeVar

from queuectl.domain.containment import Boundary, Containment, SetAside, entering
from queuectl.domain.fleet import NodeRules
from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import HOLDING, Entry, State, queues_again_at_once
from queuectl.domain.quantity import NOTHING
from queuectl.domain.queues import QueueConfig, added_tolerations, needed_checks
from queuectl.domain.snapshot import Admitted, CapacityLease
from queuectl.domain.utilization import GangUse, UseState
from queuectl.domain.workload import Placement, Workload
from queuectl.objects.kinds.pods import POD
from queuectl.state.blocking_reasons import BlockingReasons
from queuectl.state.claims import checkpoint_of
from queuectl.state.durations import LearnedDurations
from queuectl.state.gang_requests import GangRequests
from queuectl.state.held_podsets import recorded_podset
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror, asked_of
from queuectl.state.usage import OtherPodUsage

IdleSince = Callable[[Entry, JobRecord, QueueConfig, float], float | None]
"""The start of the idle time of a gang that can be evicted as idle at a time (unix seconds); None for each other gang."""


def never_idle(entry: Entry, job: JobRecord, config: QueueConfig, now: float) -> None:
    """No gang is idle without a source of utilization."""


class _Holding(NamedTuple):
    """A gang that holds capacity, with the objects from which it was made."""

    entry: Entry
    job: JobRecord
    use: GangUse | None
    admitted: Admitted


@dataclass(frozen=True)
class GangMeasures:
    """The measurements that change a running gang while its entry and its job stay the same.

    Attributes:
        uses: the last measured GPU utilization of gangs, by uid.
        idle_since: finds gangs that can be evicted as idle.
        durations: how long gangs run.
    """

    uses: Callable[[], Mapping[str, GangUse]]
    idle_since: IdleSince
    durations: LearnedDurations


class HoldingGangs:
    """Makes the running gangs and those that are held for admission checks, and reuses those that have not changed."""

    def __init__(
        self,
        mirror: Mirror,
        ledger: Ledger,
        usage: OtherPodUsage,
        measures: GangMeasures,
        requests: GangRequests,
        blocking: BlockingReasons,
        *,
        excluded: Callable[[Entry, QueueConfig], frozenset[str]],
        failed: Callable[[Entry, JobRecord | None, Exception], None],
        began: Callable[[str], object],
    ) -> None:
        """Make one without any gangs.

        Args:
            mirror: the copy of the cluster.
            ledger: the workloads that are not Finished.
            usage: the use of nodes by pods that fill no slot.
            measures: utilization, idle time and durations.
            requests: the workloads of gangs.
            blocking: the reasons for which a gang cannot start.
            excluded: the nodes to which none of the pods of a gang is moved.
            failed: called if an error leaves a gang out. The capacity that it holds stays in the snapshot.
            began: called with the uid of a gang that runs and is kept here.
        """
        self._mirror = mirror
        self._ledger = ledger
        self._usage = usage
        self._uses = measures.uses
        self._idle_since = measures.idle_since
        self._durations = measures.durations
        self._requests = requests
        self._blocking = blocking
        self._containment = mirror.containment
        self._excluded = excluded
        self._failed = failed
        self._began = began
        self._holding: dict[str, _Holding] = {}

    def forget(self, uid: str) -> None:
        """Make a gang again."""
        self._holding.pop(uid, None)

    def forget_all(self) -> None:
        """Make each gang again."""
        self._holding = {}

    def forget_in(self, concerned: Callable[[str, str], bool]) -> None:
        """Make the gangs in these LocalQueues (by namespace and name) again."""
        forget_in(self._holding, concerned)

    def forget_charged_to(self, cluster_queues: Container[str]) -> None:
        """Make the gangs again that these ClusterQueues are charged for, wherever their LocalQueues lead."""
        kept = self._holding.items()
        self._holding = {u: one for u, one in kept if one.entry.cluster_queue not in cluster_queues}

    def forget_on(self, nodes: Container[str]) -> None:
        """Make gangs with slots on these nodes again, and the gangs that depend on all nodes."""
        on = [
            uid
            for uid, last in self._holding.items()
            if last.admitted.workload.growth is not None
            or any(name in nodes for p in last.admitted.placement.podsets for name, _ in p.nodes)
        ]
        for uid in on:
            del self._holding[uid]

    def freeze(self, config: QueueConfig, now: float) -> Iterator[Admitted]:
        """The running gangs. Gangs that are leaving or on unusable nodes are computed each time, because their pods change."""
        uses, jobs = self._uses(), self._mirror.jobs
        known = self._holding if self._containment.empty else {}
        for entry in self._ledger.entries(State.RESERVED, *HOLDING):
            job, use, last = jobs.get(entry.uid), uses.get(entry.uid), known.get(entry.uid)
            if last is not None and self._stands(last, entry, job, use, config, now):
                yield last.admitted
                continue
            if set_aside(self._containment, entry, job) is not None or self._mirror.hides(entry):
                yield from _as_recorded(entry, job, self._mirror)
                continue
            try:
                if entry.state is State.RESERVED:
                    gang = self._one_held(entry, job, config)
                else:
                    gang = self._one_admitted(entry, job, config, now, use)
            except Exception as error:  # noqa: BLE001 - contained
                self._failed(entry, job, error)
                yield from _as_recorded(entry, job, self._mirror)
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
            and now < self._durations.due_at(self.ends_with(entry, last.job)[0].uid)
            and self._idle_since(entry, last.job, config, now) == last.admitted.idle_since
            and checkpoint_of(self._mirror, entry, last.job, config) == last.admitted.checkpoint_at
        )

    def _one_held(
        self, entry: Entry, job: JobRecord | None, config: QueueConfig
    ) -> Admitted | None:
        """A gang that is held for admission checks; None for each other one."""
        if (
            job is not None
            and entry.lease is not None
            and self.waits_for_checks(entry, job, config)
        ):
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
            ends_at, end_enforced = self._end(entry, job, config, now)
            changed = replace(
                gang,
                workload=self._requests.begun(entry, job, config, ends_at),
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
        lasting = not gang.leaving and gang.lease is None
        if lasting and not any(closed_slots(self._mirror, entry, job, entry.placement, config)):
            self._holding[entry.uid] = _Holding(entry, job, use, gang)
            self._began(entry.uid)
        return gang

    def gang(
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
        stays = is_not_stopped(entry)
        leaving = entry.state is State.EVICTING and not stays
        lease = entry.lease if not stays else None
        live = entry.state.live
        final = job.final or job.kind == POD  # a new pod in its place is a new gang
        starts_again = not final and self._blocking.terminating(job) is None
        ends = self._end(entry, job, config, now) if live else (None, False)
        return Admitted(
            workload=self._requests.begun(entry, job, config, ends[0]),
            placement=self._still_held(entry, job) if leaving else placement,
            leaving=leaving,
            returns=leaving and starts_again and not is_grown(job) and queues_again_at_once(entry),
            started_at=entry.started_at or entry.since,
            checkpoint_at=checkpoint_of(self._mirror, entry, job, config),
            lost=() if leaving or stays else tuple(self._lost(entry, job, placement, config)),
            evictions=entry.preempted_at,
            lease=lease if lease is not None and lease.expires_at > now else None,
            ends_at=ends[0],
            end_enforced=ends[1],
            evictable=not stays,
            final=final,
            excluded=self._excluded(entry, config),
            restartable=starts_again
            and job.error is None
            and not job.elastic
            and not stays
            and not self._checked(entry, config)
            and (job.priority_class is None or job.priority_class in config.priority_classes),
        )

    def _end(
        self, entry: Entry, job: JobRecord, config: QueueConfig, now: float
    ) -> tuple[float | None, bool]:
        """When a live gang leaves, in unix seconds, and whether the controller ends it then."""
        return self._durations.end(*self.ends_with(entry, job), config, now)

    def ends_with(self, entry: Entry, job: JobRecord) -> tuple[Entry, JobRecord]:
        """The elastic gang of a pod that was added to it, which ends with the gang; otherwise the gang itself."""
        base = self._ledger.elastic_gang(job)
        if base is None or not base.state.live:
            return entry, job
        own = self._mirror.jobs.get(base.uid)
        return (base, own) if own is not None else (entry, job)

    def _still_held(self, entry: Entry, job: JobRecord) -> Placement:
        """The use of an evicted gang: all its slots until its job is suspended, then the slots of its pods."""
        assert entry.placement is not None
        if not (job.suspended and job.attempt >= entry.attempt):
            return entry.placement
        held = self._usage.held_by(entry)
        return Placement(tuple(p.left_on(held.get(p.podset, {})) for p in entry.placement.podsets))

    def _lost(
        self, entry: Entry, job: JobRecord, placement: Placement, config: QueueConfig
    ) -> Iterator[tuple[str, str, int]]:
        """Slots on nodes that take no new pods and that no pod of the attempt fills.

        Pods on a cordoned node continue to run: they fill their slots until they are deleted.
        """
        for podset, node, count in closed_slots(self._mirror, entry, job, placement, config):
            record = self._mirror.nodes.get(node)
            ready = record is not None and record.node.ready
            gone = count - self._filled(entry, podset, node, ending=ready)
            if gone > 0:
                yield podset, node, gone

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

    def waits_for_checks(self, entry: Entry, job: JobRecord, config: QueueConfig) -> bool:
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
            and self._blocking.of(entry, job, config) is None
            and not any(closed_slots(self._mirror, entry, job, placement, config))
        )

    def _checked(self, entry: Entry, config: QueueConfig) -> bool:
        """Whether each start needs admission checks, so that the end of a migration would not be known."""
        queue = config.cluster_queue_of(entry.namespace, entry.queue)
        return queue is not None and bool(queue.admission_checks)

    def _made_held(self, entry: Entry, job: JobRecord, lease: CapacityLease) -> Admitted:
        """A gang that waits for admission checks: it can be preempted, which loses no work. It has no pods that could move."""
        return Admitted(
            workload=self._requests.workload(entry, job),
            placement=lease.placement,
            started_at=entry.since,
            evictions=entry.preempted_at,
            restartable=False,
            held=True,
        )


class _Kept(Protocol):
    """A gang with its entry."""

    @property
    def entry(self) -> Entry: ...


_K = TypeVar("_K", bound=_Kept)


def forget_in(gangs: dict[str, _K], concerned: Callable[[str, str], bool]) -> None:
    """Drop the gangs in these LocalQueues, by namespace and name."""
    uids = [uid for uid, one in gangs.items() if concerned(one.entry.namespace, one.entry.queue)]
    for uid in uids:
        del gangs[uid]


def set_aside(containment: Containment, entry: Entry, job: JobRecord | None) -> SetAside | None:
    """The record of a workload that is not to be tried now; None if it is."""
    entering(Boundary.SNAPSHOT, entry.uid, f"{entry.kind}/{entry.ref}", entry.namespace)
    if containment.empty:
        return None
    version = asked_of(job) if job is not None else None
    return containment.waits(Boundary.SNAPSHOT, entry.uid, version, entry.namespace)


def _as_recorded(entry: Entry, job: JobRecord | None, mirror: Mirror) -> Iterator[Admitted]:
    """The gang as the ledger has it, with the devices of its job: it can be evicted, and is neither repaired nor moved."""
    placement = entry.placement
    if placement is None and entry.lease is not None and entry.state is State.RESERVED:
        placement = entry.lease.placement if entry.awaits_checks else None
    if placement is None:
        return
    devices = {podset.name: podset.shape.devices for podset in job.podsets} if job else {}
    podsets = []
    for placed in placement.podsets:
        podset = recorded_podset(entry, placed, mirror)
        shape = replace(podset.shape, devices=devices.get(placed.podset))
        podsets.append(replace(podset, shape=shape))
    yield Admitted(
        workload=Workload(
            uid=entry.uid,
            kind=entry.kind,
            namespace=entry.namespace,
            name=entry.name,
            podsets=tuple(podsets),
            queue=entry.queue,
            priority=entry.priority,
            queued_at=entry.queue_order_time,
            charged_queue=entry.charged_queue,
        ),
        placement=placement,
        leaving=entry.state is State.EVICTING,
        started_at=entry.started_at or entry.since,
        evictions=entry.preempted_at,
        restartable=False,
        held=entry.state is State.RESERVED,
    )


_NO_RULES: Final = NodeRules()


def closed_slots(
    mirror: Mirror, entry: Entry, job: JobRecord | None, placement: Placement, config: QueueConfig
) -> Iterator[tuple[str, str, int]]:
    """The slots of a gang on nodes that take no new pods of it: podset, node and number of pods."""
    podsets, backed = job.podsets if job is not None else (), mirror.devices.backed
    for placed in placement.podsets:
        nodes = [
            (name, count, record.node if (record := mirror.nodes.get(name)) is not None else None)
            for name, count in placed.by_node.items()
        ]
        shape = next((podset.shape for podset in podsets if podset.name == placed.podset), None)
        requests = shape.requests if shape is not None else NOTHING
        if all(
            node is not None and node.takes(_NO_RULES, requests, backed) for _, _, node in nodes
        ):
            continue  # whatever it tolerates
        own = shape.rules.tolerations if shape is not None else ()
        added = added_tolerations(placed, entry.checks.updates, config.flavors)
        rules = NodeRules(tolerations=(*own, *added))
        for name, count, node in nodes:
            if node is None or not node.takes(rules, requests, backed):
                yield placed.podset, name, count


def is_not_stopped(entry: Entry) -> bool:
    """Whether it is evicted and the API server denies its suspension: until the API server accepts it, its capacity stays in use."""
    return entry.state is State.EVICTING and entry.refused_write is not None


def _utilization(entry: Entry, job: JobRecord, use: GangUse | None) -> float | None:
    """The measured utilization, or that of its annotation before the first measurement. In hundredths: the planner needs no more."""
    if use is None or use.attempt != entry.attempt or use.state is UseState.WARMUP:
        return job.utilization
    return None if use.weight is None else round(use.weight, 2)


def is_grown(job: JobRecord) -> bool:
    """Whether it is a pod that was added to an elastic Job."""
    return job.index is not None and job.index.grown
