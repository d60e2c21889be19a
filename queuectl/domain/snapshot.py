"""The input of one cycle, clock included: the planner reads nothing else, and a replay needs nothing else.

Capacity is counted from three disjoint parts, never from job status:

- ``admitted``: committed slots of live attempts, whether or not their pods exist yet, and what an evicted gang still
  holds (``leaving``);
- ``other_pods``: every non-terminal pod that fills no such slot;
- leases of pending gangs: capacity freed for them, to be kept from others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Final

from queuectl.domain.budgets import BudgetBalance
from queuectl.domain.devices import NO_DEVICES, AllocatedDevice, Claim, DeviceInventory
from queuectl.domain.fleet import Fleet
from queuectl.domain.limits import Allowance
from queuectl.domain.quantity import Resources
from queuectl.domain.queues import ClusterQueue, QueueConfig
from queuectl.domain.reasons import Reason
from queuectl.domain.reservations import Occurrence
from queuectl.domain.words import LAST_TIME
from queuectl.domain.workload import Placement, Workload, gpus_of


@dataclass(frozen=True, slots=True)
class CapacityLease:
    """Freed capacity held for the gang it was freed for, until it starts or is deleted, or the lease ends.

    Attributes:
        placement: where the gang will run once ``victims`` have left.
        victims: uids of all whose leaving it waits for: those evicted for it, and those leaving anyway whose room it needs.
        expires_at: unix seconds.
    """

    placement: Placement
    victims: tuple[str, ...]
    created_at: float
    expires_at: float


NO_END: Final = float(LAST_TIME)
"""The end of a lease that ends with what it waits for: the last second of the year 9999."""


@dataclass(frozen=True, slots=True)
class PlannedStart:
    """The start that a plan gives to a gang that waits. It moves later only for a cause (``SlipCause``).

    Attributes:
        at: unix seconds.
        placement: where it would start then. A later plan can choose other nodes.
        promised: unix seconds that ``at`` does not exceed without a cause, except for the time that gangs take to stop. None =
            the last plan found no time, for a cause: the gang has no planned start until a plan finds one.
        awaits: the gangs that must end before, by uid, and the unix seconds at which this was expected.
        revision: of the configuration.
        made_at: unix seconds of the plan that gave the gang this time.
        overruns: how often it moved later because a gang ran longer than expected.
    """

    at: float
    placement: Placement
    promised: float | None
    awaits: tuple[tuple[str, float], ...] = ()
    revision: int = 0
    made_at: float = 0.0
    overruns: int = 0


@dataclass(frozen=True, slots=True)
class Pending:
    """A gang that can be admitted in this cycle.

    Attributes:
        lease: set while it waits for its victims (state Reserved).
        budget: 0 at first; +1 for every earlier ``Undecided``: the solver's limit grows with it.
        excluded: nodes kube-scheduler refused for it after a pin, and those from which it would be evicted again: their hardware
            fails and its queue drains them, or they are taken away.
        borrows_at: unix seconds before which it must not borrow: it was evicted while others needed what it held. Within its
            ClusterQueue's nominal quota it may start in the meantime. None = it may borrow.
        reclaim_since: unix seconds since when it could evict gangs that borrow and waited instead, because the eviction loses
            more than the wait; None = since now. 0: it has waited as long as it must; gangs that are read from files have 0.
        planned_start: as the last plan has it; None = it had none.
        ready_checks: names of its admission checks that are ready.
        spares_until: unix seconds before which it evicts no gang, because nodes that were made for it can still join. None = it
            spares none for this reason.
        unasked: flavors for which no nodes are requested before these unix seconds, because its requests failed.
        blocked: set when it must not be planned (unknown queue, contradictory request, held...): it stays pending with
            this reason and holds no place in a StrictFIFO order.
        own_priority: the priority that the one of a spent Budget replaces; None = that of ``workload``.
        returns_by: of a blocked gang that has started before and waits for its controller to create its pods again: unix seconds
            until which it still holds its place in a StrictFIFO order. None = it does not.
        past_seconds: for which its earlier attempts ran, all together. A limit of its run time counts them.
    """

    workload: Workload
    lease: CapacityLease | None = None
    budget: int = 0
    excluded: frozenset[str] = frozenset()
    blocked: Reason | None = None
    borrows_at: float | None = None
    reclaim_since: float | None = 0.0
    planned_start: PlannedStart | None = None
    ready_checks: frozenset[str] = frozenset()
    spares_until: float | None = None
    unasked: tuple[tuple[str, float], ...] = ()
    own_priority: int | None = None
    returns_by: float | None = None
    past_seconds: float = 0.0

    @property
    def requested(self) -> Workload:
        """The gang with its own priority, as the ledger has it."""
        if self.own_priority is None:
            return self.workload
        return replace(self.workload, priority=self.own_priority)

    def may_borrow(self, now: float) -> bool:
        """Whether it may use more than its ClusterQueue's nominal quota at ``now`` (unix seconds)."""
        return self.borrows_at is None or self.borrows_at <= now

    def spares(self, now: float) -> bool:
        """Whether it evicts no gang at ``now`` (unix seconds) although nodes were made for it."""
        return self.spares_until is not None and now < self.spares_until

    def waits_since(self, now: float) -> float:
        """The time since which it waits to evict gangs that borrow, in unix seconds; ``now`` if it begins to."""
        return now if self.reclaim_since is None else min(self.reclaim_since, now)

    def returns(self, now: float) -> bool:
        """Whether it is blocked and holds its place at ``now`` (unix seconds)."""
        return self.returns_by is not None and now < self.returns_by


@dataclass(frozen=True, slots=True)
class Admitted:
    """A gang that holds capacity.

    Attributes:
        placement: its slots, less those of pods that are done for good. While ``leaving``, only what its pods still hold.
        leaving: it is being evicted: it still uses capacity and quota now, but will not.
        started_at: unix seconds of the attempt's commit.
        checkpoint_at: unix seconds of the last declared checkpoint, None if none was declared.
        utilization: 0..1 of its GPUs, None if unknown (counts as 1).
        lost: slots of ``placement`` whose node is deleted or unusable: (podset, node, count). To be placed again.
        evictions: unix seconds at which it was preempted or moved, oldest first: those of the last 24 hours and the last one.
        returns: leaving, and will queue again at its old place: a StrictFIFO queue keeps that place for it.
        lease: leaving only to be moved: the place where it will start again, held for it.
        restartable: its job, as it is now, could be admitted again; otherwise it is never moved.
        idle_since: unix seconds since when none of its GPUs did anything; only of one that its queue's ``idleReclaim`` may
            evict for it now: idle at the last evaluation, warned before the grace, not exempt, not evicted lately. None = not so,
            or not known to be so.
        evictable: False: the API server refuses to suspend its job, or does not answer, so no eviction frees anything.
        ends_at: unix seconds at which it leaves, as planning assumes; None = unknown.
        end_enforced: the controller ends it then; otherwise it can run longer.
        final: it does not start again after an eviction, which loses all its work.
        held: it has not started: it holds its place for its admission checks, and will run from some time on.
        excluded: nodes to which none of its pods is moved, as of :class:`Pending`.
    """

    workload: Workload
    placement: Placement
    leaving: bool = False
    started_at: float = 0.0
    checkpoint_at: float | None = None
    utilization: float | None = None
    lost: tuple[tuple[str, str, int], ...] = ()
    returns: bool = False
    evictions: tuple[float, ...] = ()
    lease: CapacityLease | None = None
    restartable: bool = True
    idle_since: float | None = None
    evictable: bool = True
    ends_at: float | None = None
    end_enforced: bool = False
    final: bool = False
    held: bool = False
    excluded: frozenset[str] = frozenset()

    @property
    def queued_again(self) -> Workload:
        """The gang when it queues again after it has left: in the ClusterQueue to which its LocalQueue leads now."""
        if self.workload.charged_queue is None:
            return self.workload
        return replace(self.workload, charged_queue=None)

    @property
    def gpus(self) -> Fraction:
        """GPUs that its pods hold; none for pods it started without, or that are done."""
        podsets = self.workload.podsets
        placed = ((podset, self.placement.of(podset.name)) for podset in podsets)
        return gpus_of((p, p.count if at is None else at.pods_of(p)) for p, at in placed)


@dataclass(frozen=True, slots=True)
class SolverLimits:
    """Deterministic time (CP-SAT's own unit, not seconds) for one solve at budget 0, and the largest budget's factor.

    ``wall_seconds`` is a safety net only: a plan cut by it is discarded.

    Where ``cycle_time`` or ``search_steps`` is used up, gangs that fit on free capacity still start. :mod:`queuectl.planner.cycle_work` has the
    searches after that.
    """

    deterministic_time: float = 0.25
    growth: float = 4.0
    max_budget: int = 4
    wall_seconds: float = 10.0
    window: int = 1000  # pending gangs considered in one cycle
    lease_seconds: float = 600.0
    solver_time: float = 2.0  # deterministic time of the search for one gang, or of one question, before each solve has one short try
    cycle_time: float = 0.5  # deterministic time of one cycle, before gangs are left out
    search_steps: int = 2000  # of searches in which gangs move or leave, likewise; 0.4 ms each


@dataclass(frozen=True, slots=True)
class PastUse:
    """Past use, decayed by the half-life, resources weighed and summed; accounts without use are absent.

    Attributes:
        local_queues: by (namespace, LocalQueue), divided by the LocalQueue's weight.
        cluster_queues: by ClusterQueue.
        users: by user.
    """

    local_queues: Mapping[tuple[str, str], float] = field(default_factory=dict)
    cluster_queues: Mapping[str, float] = field(default_factory=dict)
    users: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MakeRoom:
    """A question, not a policy: gangs of every queue can migrate, whatever their queues allow and whatever it costs.

    ``gang``: uid of the pending gang that room is wanted for; None = the first in queue order that moving helps.
    """

    gang: str | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The input of one cycle.

    Attributes:
        moved_work: ClusterQueue to the GPU-seconds that moving its gangs cost in the last 24 hours.
        seek_room: gangs can migrate in this cycle; the loop searches for such moves only at intervals.
        past_use: for fairness by usage.
        make_room: set when an administrator asks which gangs to move; None in the loop, where queues decide.
        allowances: namespace to its ResourceQuotas; a namespace without any is absent.
        devices: of dynamic resource allocation.
        other_devices: node name to the devices that claims hold whose pods are in no admitted gang.
        claims: (namespace, name) to the ResourceClaims that gangs share.
        budgets: in the current month, by name.
        reservations: the current or next occurrence of each Reservation, in the order of their starts.
        of_daemons: the part of ``other_pods`` that pods of DaemonSets use, before device rows. Reasons read it, no decision does.
        mixed_nodes: only of reports: ``other_pods`` with the device rows of nodes that are kept for no kind of request.
    """

    now: float
    fleet: Fleet
    config: QueueConfig
    pending: tuple[Pending, ...] = ()
    admitted: tuple[Admitted, ...] = ()
    other_pods: Mapping[str, Resources] = field(default_factory=dict)
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # name -> labels
    limits: SolverLimits = SolverLimits()
    moved_work: Mapping[str, int] = field(default_factory=dict)
    seek_room: bool = True
    make_room: MakeRoom | None = None
    past_use: PastUse = PastUse()
    allowances: Mapping[str, tuple[Allowance, ...]] = field(default_factory=dict)
    devices: DeviceInventory = NO_DEVICES
    other_devices: Mapping[str, tuple[AllocatedDevice, ...]] = field(default_factory=dict)
    claims: Mapping[tuple[str, str], Claim] = field(default_factory=dict)
    mixed_nodes: Mapping[str, Resources] | None = None
    budgets: tuple[BudgetBalance, ...] = ()
    reservations: tuple[Occurrence, ...] = ()
    of_daemons: Mapping[str, Resources] = field(default_factory=dict)

    def queue_of(self, workload: Workload) -> ClusterQueue | None:
        """The ClusterQueue of a workload; None when its LocalQueue or ClusterQueue does not exist."""
        return queue_of(workload, self.config)

    def admitted_of(self, uids: Collection[str]) -> list[Admitted]:
        """The admitted gangs with one of these uids, in the order of ``admitted``."""
        return [gang for gang in self.admitted if gang.workload.uid in uids]


def queue_of(workload: Workload, config: QueueConfig) -> ClusterQueue | None:
    """The ClusterQueue of a workload; None when its LocalQueue or ClusterQueue does not exist."""
    if workload.charged_queue is not None:
        return config.cluster_queues.get(workload.charged_queue)
    return config.cluster_queue_of(workload.namespace, workload.queue)


def added_pods(snapshot: Snapshot) -> dict[str, list[Admitted]]:
    """By uid of an elastic gang, the running pods that were added to it: they end with it."""
    added: dict[str, list[Admitted]] = {}
    for gang in snapshot.admitted:
        if gang.workload.grows:
            added.setdefault(gang.workload.family, []).append(gang)
    return added


def nodes_of_added(pods: Iterable[Admitted]) -> dict[str, list[str]]:
    """Podset to the nodes of these pods, which were added to one gang, without pods that leave or are lost."""
    nodes: dict[str, list[str]] = {}
    for pod in pods:
        for placed in pod.placement.podsets if not (pod.leaving or pod.lost) else ():
            nodes.setdefault(placed.podset, []).extend(name for name, _ in placed.nodes)
    return nodes
