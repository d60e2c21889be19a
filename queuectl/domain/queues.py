"""ClusterQueue, LocalQueue, ResourceFlavor, Topology and priorities, with Kueue's meanings and field names.

Only what this release honours is here; the reader (objects/configuration/queue_config.py) says what else it met and did not honour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from queuectl.domain.fleet import HOSTNAME, Requirement, Taint, Toleration
from queuectl.domain.rules import Rules


class QueueingStrategy(StrEnum):
    STRICT_FIFO = "StrictFIFO"
    BEST_EFFORT_FIFO = "BestEffortFIFO"


class WithinClusterQueue(StrEnum):
    NEVER = "Never"
    LOWER_PRIORITY = "LowerPriority"
    LOWER_OR_NEWER_EQUAL_PRIORITY = "LowerOrNewerEqualPriority"


class ReclaimWithinCohort(StrEnum):
    """Whom a gang that stays within its nominal quota may evict from ClusterQueues that borrow."""

    NEVER = "Never"
    LOWER_PRIORITY = "LowerPriority"
    ANY = "Any"


class StopPolicy(StrEnum):
    NONE = "None"
    HOLD = "Hold"
    HOLD_AND_DRAIN = "HoldAndDrain"


class VictimKey(StrEnum):
    """Layers of the preemption objective, least first in each."""

    MAX_PRIORITY = "maxPriority"
    LOST_WORK = "lostWork"
    COUNT = "count"


DEFAULT_VICTIM_ORDER = (VictimKey.MAX_PRIORITY, VictimKey.LOST_WORK, VictimKey.COUNT)


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """A metav1.LabelSelector as requirements that must all hold; none at all matches everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(r.holds(labels.get(r.key)) for r in self.requirements)


@dataclass(frozen=True, slots=True)
class FlavorQuotas:
    """Quota per resource (units of :mod:`queuectl.domain.quantity`) of one flavor in a resource group.

    Attributes:
        borrowing: most that may be used beyond nominal, by resource; a resource that is absent has no limit.
        lending: most of nominal that others of the cohort may use, by resource; absent = all of it.
    """

    flavor: str
    nominal: Mapping[str, int]
    borrowing: Mapping[str, int] = field(default_factory=dict)
    lending: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResourceGroup:
    """Resources that always get the same flavor, and the flavors in order of preference."""

    covered: tuple[str, ...]
    flavors: tuple[FlavorQuotas, ...]


class WhenCan(StrEnum):
    """What a flavor that would need borrowing, or preemption, means to the search for flavors."""

    MAY_STOP_SEARCH = "MayStopSearch"
    TRY_NEXT_FLAVOR = "TryNextFlavor"


class FlavorPreference(StrEnum):
    """Which of two imperfect flavors is better, once every flavor may be looked at."""

    BORROWING_OVER_PREEMPTION = "BorrowingOverPreemption"
    PREEMPTION_OVER_BORROWING = "PreemptionOverBorrowing"


@dataclass(frozen=True, slots=True)
class Fungibility:
    """How the flavors of a resource group stand in for each other (Kueue's ``flavorFungibility``)."""

    when_can_borrow: WhenCan = WhenCan.MAY_STOP_SEARCH
    when_can_preempt: WhenCan = WhenCan.TRY_NEXT_FLAVOR
    preference: FlavorPreference = FlavorPreference.BORROWING_OVER_PREEMPTION


@dataclass(frozen=True, slots=True)
class Protection:
    """What shields running gangs of a queue from preemption (and from being moved).

    Attributes:
        min_runtime: seconds after its start in which a gang is no victim.
        max_evictions_per_day: so often within 24 hours may it be evicted; None = no limit.
        cooldown: seconds after an eviction in which it is no victim again.
    """

    min_runtime: float = 0.0
    max_evictions_per_day: int | None = None
    cooldown: float = 0.0


class OptOut(StrEnum):
    """When what a job says to keep its GPUs counts: ``preemptible: "false"``, ``idle-reclaim: "false"``, ``warmup-seconds``."""

    NEVER = "Never"
    WITHIN_NOMINAL = "WithinNominal"  # not at the cost of those from whom its ClusterQueue borrows
    ALWAYS = "Always"

    def counts(self, *, borrowing: bool) -> bool:
        """``borrowing``: the ClusterQueue of the job uses more than its nominal quota."""
        return self is OptOut.ALWAYS or (self is OptOut.WITHIN_NOMINAL and not borrowing)


class Defragment(StrEnum):
    """Whether running gangs of a queue may be moved so that a blocked gang fits."""

    OFF = "Off"
    PLAN = "Plan"  # said, not done
    EXECUTE = "Execute"


class ReclaimMode(StrEnum):
    """Whether a gang that does not use its GPUs may lose them for it."""

    OFF = "Off"
    DRY_RUN = "DryRun"  # said, not done
    ON_DEMAND = "OnDemand"  # when a named pending gang then fits
    ALWAYS = "Always"


@dataclass(frozen=True, slots=True)
class IdleReclaim:
    """When gangs of a queue count as idle, and what follows from it. Times in seconds, use in parts of 1.

    Attributes:
        window: so long must all its GPUs have been seen idle.
        warmup: after its pods were all ready, before anything is judged: images, data, compilation.
        idle_below: a gang is idle when its busiest GPU stayed below this.
        active_above: an idle gang is idle no more when one of its GPUs goes above this.
        low_below: a gang whose GPUs are used less than this on average uses them little.
        memory_above: a gang that holds more of a GPU's memory than this has loaded something:
        memory_window: so long must it have been seen idle.
        grace: between being told and being stopped.
        cooldown: so long after its restart is a gang that was evicted before, for whatever reason, not taken for idleness;
            one that mode Always took also stays out of the queue for so long.
        to_equal: on demand it yields to gangs of its own priority too; else only to higher ones.
        max_warmup: the longest warm-up that a job may ask for; no bound on that of the queue.
    """

    mode: ReclaimMode = ReclaimMode.DRY_RUN
    window: float = 1800.0
    warmup: float = 1800.0
    idle_below: float = 0.02
    active_above: float = 0.05
    low_below: float = 0.2
    memory_above: float = 0.2
    memory_window: float = 7200.0
    grace: float = 600.0
    cooldown: float = 3600.0
    to_equal: bool = False
    max_warmup: float = 7200.0


BORROW_BACKOFF_FACTOR = 2.0
"""A gang that was evicted does not borrow for so many times the seconds of work that it lost."""

RECLAIM_WAIT_MOST = 30.0
"""The most seconds for which a gang waits before it evicts gangs that borrow, where its ClusterQueue does not say."""

BORROW_BACKOFF_MOST = 600.0
"""The most seconds of that, where its ClusterQueue does not say."""

DEFAULT_NAME = "default"
"""Name of the LocalQueue, and of the WorkloadPriorityClass, of jobs that name none."""

WEIGHT_UNIT = 1000  # of a fair sharing weight: 1000 = a weight of 1


@dataclass(frozen=True, slots=True)
class ClusterQueue:
    """A pool of quota with its rules.

    Attributes:
        preempts_to_borrow: ``borrowWithinCohort``: a gang that must borrow may evict too: of its own queue by
            ``withinClusterQueue``; of others, only gangs of lower priority, up to ``borrow_threshold`` if that is set.
        weight: in fair sharing, in thousandths; 0 = its share counts as infinite as soon as it borrows.
        usage_fairness: its gangs go by past usage of their LocalQueues where the rules say how (``admissionScope``).
        split_flavors: a podset may use several flavors of one resource group.
        evicts_within_nominal: a gang of it that has the quota but finds no room may evict gangs of lower priority from other
            ClusterQueues of the cohort although those stay within their own.
        headroom: nominal quota of flavors with node labels follows the nodes' capacity, less this part of it;
            None = nominal quota is what the resource groups say.
        borrow_backoff: the most seconds for which a gang of it that was evicted for others does not borrow; 0 = it may at once.
        reclaim_wait: the most seconds for which a gang of it that could evict gangs that borrow waits for their end; 0 = it
            evicts at once.
        admission_checks: names of the checks that its gangs would have to pass. None is run, so while there are any nothing of
            it starts; what runs is left alone.
        max_per_user: resource to the most that one user's gangs may be charged of it at once, by resource; empty = all.
        max_priority: the highest priority of its gangs, whether by hand or by a class; None = any.
        preemption_opt_out: when it spares its gangs that are not ``preemptible``, or exempt from idle reclaim.
        trusts_checkpoints: times of checkpoints that its jobs declare count when lost work is priced.
    """

    name: str
    groups: tuple[ResourceGroup, ...] = ()
    strategy: QueueingStrategy = QueueingStrategy.BEST_EFFORT_FIFO
    within_cluster_queue: WithinClusterQueue = WithinClusterQueue.NEVER
    stop_policy: StopPolicy = StopPolicy.NONE
    namespace_selector: LabelSelector | None = None  # None admits no namespace, as in Kueue
    victim_order: tuple[VictimKey, ...] = DEFAULT_VICTIM_ORDER
    cohort: str | None = None
    fungibility: Fungibility = Fungibility()
    protection: Protection = Protection()
    defragment: Defragment = Defragment.OFF
    # GPU-seconds of lost work a day that moving this queue's gangs may cost.
    defragment_budget: int = 0
    preempts_to_borrow: bool = False
    reclaim_within_cohort: ReclaimWithinCohort = ReclaimWithinCohort.NEVER
    borrow_threshold: int | None = None
    weight: int = WEIGHT_UNIT
    usage_fairness: bool = False
    split_flavors: bool = False
    headroom: float | None = None
    evicts_within_nominal: bool = False
    idle_reclaim: IdleReclaim = IdleReclaim()
    max_per_user: tuple[tuple[str, int], ...] = ()
    max_priority: int | None = None
    admission_checks: tuple[str, ...] = ()
    borrow_backoff: float = BORROW_BACKOFF_MOST
    reclaim_wait: float = RECLAIM_WAIT_MOST
    preemption_opt_out: OptOut = OptOut.WITHIN_NOMINAL
    trusts_checkpoints: bool = True

    def capped(self, priority: int) -> int:
        """A priority, or the highest that its gangs may have."""
        return priority if self.max_priority is None else min(priority, self.max_priority)

    def pause_before_borrowing(self, lost: float) -> float:
        """Seconds for which a gang that was evicted for others, and lost so many seconds of work, does not borrow."""
        return min(self.borrow_backoff, BORROW_BACKOFF_FACTOR * max(0.0, lost))

    @property
    def preempts(self) -> bool:
        """Whether its gangs may evict anybody at all."""
        return (
            self.within_cluster_queue is not WithinClusterQueue.NEVER
            or self.reclaim_within_cohort is not ReclaimWithinCohort.NEVER
            or self.evicts_within_nominal
        )


@dataclass(frozen=True, slots=True)
class Cohort:
    """ClusterQueues and cohorts that borrow from each other. One that is only named by others has no quota of its own."""

    name: str
    parent: str | None = None
    groups: tuple[ResourceGroup, ...] = ()
    weight: int = WEIGHT_UNIT


@dataclass(frozen=True, slots=True)
class LocalQueue:
    """``weight`` divides its past usage where usage decides the order; in thousandths."""

    namespace: str
    name: str
    cluster_queue: str
    stop_policy: StopPolicy = StopPolicy.NONE
    weight: int = WEIGHT_UNIT


@dataclass(frozen=True, slots=True)
class ResourceFlavor:
    name: str
    node_labels: tuple[tuple[str, str], ...] = ()
    node_taints: tuple[Taint, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    topology: str | None = None  # None = quota only: no placement is computed for it


@dataclass(frozen=True, slots=True)
class Topology:
    """Levels as node labels, coarse to fine."""

    name: str
    levels: tuple[str, ...] = (HOSTNAME,)


@dataclass(frozen=True, slots=True)
class QuotaOverride:
    """Nominal quota of one flavor and resource of a ClusterQueue for a time; see :mod:`queuectl.domain.overrides`.

    Attributes:
        begins, ends: unix seconds; it acts from the first until just before the second.
        nominal: in place of what is stated; None = in place of nothing.
        add: on top of that; may be below 0.
    """

    name: str
    cluster_queue: str
    flavor: str
    resource: str
    begins: float
    ends: float
    nominal: int | None = None
    add: int = 0

    def acts(self, now: float) -> bool:
        """Whether it does at ``now`` (unix seconds)."""
        return self.begins <= now < self.ends


@dataclass(frozen=True, eq=False)
class QueueConfig:
    """All configuration of one revision. Compared by identity, so derived structures can be cached on it.

    ``overrides``: by name, those that are not worked into the quotas yet.
    """

    revision: int = 0
    cluster_queues: Mapping[str, ClusterQueue] = field(default_factory=dict)
    local_queues: Mapping[tuple[str, str], LocalQueue] = field(default_factory=dict)
    flavors: Mapping[str, ResourceFlavor] = field(default_factory=dict)
    topologies: Mapping[str, Topology] = field(default_factory=dict)
    priority_classes: Mapping[str, int] = field(default_factory=dict)
    cohorts: Mapping[str, Cohort] = field(default_factory=dict)
    rules: Rules = Rules()
    overrides: Mapping[str, QuotaOverride] = field(default_factory=dict)

    def cluster_queue_of(self, namespace: str, queue: str | None) -> ClusterQueue | None:
        """The ClusterQueue behind a LocalQueue, or None when either does not exist."""
        local = self.local_queues.get((namespace, queue)) if queue is not None else None
        return self.cluster_queues.get(local.cluster_queue) if local is not None else None

    def priority_class_of(self, named: str | None) -> str | None:
        """The WorkloadPriorityClass of a job: the one it names, else the one named ``default`` if there is one."""
        if named is None and DEFAULT_NAME in self.priority_classes:
            return DEFAULT_NAME
        return named
