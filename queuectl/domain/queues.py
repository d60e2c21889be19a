"""Queues as configured: ClusterQueues, LocalQueues, Cohorts, flavors, quota for a limited time, and limits of run times.

Only supported fields are here. The parser (objects/configuration/queue_config.py) warns about the others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Final

from queuectl.domain.budgets import Budget, TopUp
from queuectl.domain.checks import AdmissionCheck, CheckRule, Checks, CheckStatus, PodSetUpdate
from queuectl.domain.fleet import (
    HOSTNAME,
    Effect,
    Node,
    NodeRules,
    NodeTemplate,
    Requirement,
    SelectorTerm,
    Taint,
    Toleration,
)
from queuectl.domain.gpus import SharedGpus
from queuectl.domain.mig import MigConfig, MigMode, MigPool
from queuectl.domain.node_health import UnhealthyNodes
from queuectl.domain.provisioning import ProvisioningConfig
from queuectl.domain.reservations import AdvanceReservation
from queuectl.domain.rules import Rules
from queuectl.domain.workload import Placement, PodSetPlacement, Workload

# ---- The longest run time of a gang


@dataclass(frozen=True, slots=True)
class ExecutionLimits:
    """The limits of a ClusterQueue, in seconds over all attempts of a gang; None = no limit.

    Attributes:
        default: of gangs whose job states none; None = ``most``.
        most: a gang whose job states more does not start.
    """

    default: float | None = None
    most: float | None = None

    def limit(self, stated: float | None) -> float | None:
        """The limit of a gang. ``stated``: that of its job; None = it states none."""
        own = stated if stated is not None else self.default
        known = [limit for limit in (own, self.most) if limit is not None]
        return min(known, default=None)

    def refuses(self, stated: float | None) -> bool:
        """Whether the job states more than the ClusterQueue permits."""
        return stated is not None and self.most is not None and stated > self.most


NO_LIMITS: Final = ExecutionLimits()


# ---- Queues, flavors, topologies and priorities


class QueueingStrategy(StrEnum):
    STRICT_FIFO = "StrictFIFO"
    BEST_EFFORT_FIFO = "BestEffortFIFO"
    BACKFILL = "Backfill"  # its first pending gangs have planned starts, which no later gang delays


MOST_PLANNED_STARTS = 16
"""The most planned starts of one line."""


class BackfillOrder(StrEnum):
    """The order of the gangs behind those with a planned start."""

    QUEUE = "Queue"
    SHORTEST = "Shortest"  # the shortest expected run first; a gang that waits longer gains


ONE_POD_DELAY: Final = 0.1
"""The part of its run time by which later gangs can delay the planned start of a gang with one pod, by default."""


@dataclass(frozen=True, slots=True)
class Backfill:
    """How gangs start before an earlier gang that waits.

    Attributes:
        planned_starts: the gangs that wait and have a planned start: the first ones in queue order.
        order: of the gangs behind them.
        delay: the part of its run time by which later gangs can delay a planned start; None = ``ONE_POD_DELAY`` for a gang of one
            pod, and no delay for a gang of several.
    """

    planned_starts: int = 1
    order: BackfillOrder = BackfillOrder.SHORTEST
    delay: float | None = None

    def delay_of(self, workload: Workload) -> float:
        """The part of its run time by which later gangs can delay the planned start of a gang."""
        if self.delay is not None:
            return self.delay
        return ONE_POD_DELAY if workload.pods == 1 else 0.0


class WithinClusterQueue(StrEnum):
    NEVER = "Never"
    LOWER_PRIORITY = "LowerPriority"
    LOWER_OR_NEWER_EQUAL_PRIORITY = "LowerOrNewerEqualPriority"


class ReclaimWithinCohort(StrEnum):
    """The gangs of borrowing ClusterQueues that a gang within nominal quota can evict."""

    NEVER = "Never"
    LOWER_PRIORITY = "LowerPriority"
    ANY = "Any"


class StopPolicy(StrEnum):
    NONE = "None"
    HOLD = "Hold"
    HOLD_AND_DRAIN = "HoldAndDrain"

    @property
    def strength(self) -> int:
        """By which policies compare: the stronger one stops more."""
        return tuple(StopPolicy).index(self)


class VictimKey(StrEnum):
    """Cost layers by which victims are chosen. A smaller value is better."""

    MAX_PRIORITY = "maxPriority"
    LOST_WORK = "lostWork"
    COUNT = "count"


DEFAULT_VICTIM_ORDER = (VictimKey.MAX_PRIORITY, VictimKey.LOST_WORK, VictimKey.COUNT)


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """A metav1.LabelSelector as a conjunction of requirements. Without requirements, it matches all labels."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(r.holds(labels.get(r.key)) for r in self.requirements)


@dataclass(frozen=True, slots=True)
class FlavorQuotas:
    """Quota per resource (units of :mod:`queuectl.domain.quantity`) of one flavor in a resource group.

    Attributes:
        borrowing: the most that can be used beyond nominal quota, by resource; absent = no limit.
        lending: the most of nominal quota that others in the cohort can use, by resource; absent = all of it.
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
    """Whether the search for flavors stops at a flavor that needs borrowing or preemption."""

    MAY_STOP_SEARCH = "MayStopSearch"
    TRY_NEXT_FLAVOR = "TryNextFlavor"


class FlavorOrder(StrEnum):
    """The order in which the flavors of a resource group are tried."""

    LISTED = "Listed"
    CHEAPEST = "Cheapest"  # by the price of a GPU hour; without a price last


class FlavorPreference(StrEnum):
    """The better of two flavors, if one needs borrowing and the other preemption."""

    BORROWING_OVER_PREEMPTION = "BorrowingOverPreemption"
    PREEMPTION_OVER_BORROWING = "PreemptionOverBorrowing"


@dataclass(frozen=True, slots=True)
class Fungibility:
    """When the search tries a later flavor of a resource group (Kueue's ``flavorFungibility``)."""

    when_can_borrow: WhenCan = WhenCan.MAY_STOP_SEARCH
    when_can_preempt: WhenCan = WhenCan.TRY_NEXT_FLAVOR
    preference: FlavorPreference = FlavorPreference.BORROWING_OVER_PREEMPTION


@dataclass(frozen=True, slots=True)
class Protection:
    """Protection of the running gangs of a queue from preemption and migration.

    Attributes:
        min_runtime: seconds after its start in which a gang cannot be a victim.
        max_evictions_per_day: the most evictions within 24 hours; None = no limit.
        cooldown: seconds after an eviction in which it cannot be a victim again.
    """

    min_runtime: float = 0.0
    max_evictions_per_day: int | None = None
    cooldown: float = 0.0


class OptOut(StrEnum):
    """When opt-outs of a job count: ``preemptible: "false"``, ``idle-reclaim: "false"``, ``warmup-seconds``."""

    NEVER = "Never"
    WITHIN_NOMINAL = "WithinNominal"  # not while its ClusterQueue borrows
    ALWAYS = "Always"

    def counts(self, *, borrowing: bool) -> bool:
        """``borrowing``: the ClusterQueue of the job uses more than its nominal quota."""
        return self is OptOut.ALWAYS or (self is OptOut.WITHIN_NOMINAL and not borrowing)


class Defragment(StrEnum):
    """Whether running gangs of a queue are migrated so that a pending gang fits."""

    OFF = "Off"
    PLAN = "Plan"  # suggested, not done
    EXECUTE = "Execute"


class ReclaimMode(StrEnum):
    """When a gang that does not use its GPUs is evicted."""

    OFF = "Off"
    DRY_RUN = "DryRun"  # recorded, not done
    ON_DEMAND = "OnDemand"  # if a pending gang then fits
    ALWAYS = "Always"


@dataclass(frozen=True, slots=True)
class IdleReclaim:
    """When gangs of a queue count as idle, and the effect. Times are in seconds, utilization is from 0 to 1.

    Attributes:
        window: the time for which all its GPUs must be idle.
        warmup: the time after all pods are ready in which the gang is not judged: images, data, compilation.
        idle_below: a gang is idle if its busiest GPU is at most this.
        active_above: an idle gang becomes active if one of its GPUs exceeds this.
        low_below: the state is Low if the average of its GPUs is below this.
        memory_above: a gang that uses more than this fraction of a GPU's memory must be idle for ``memory_window``.
        memory_window: the window of such a gang.
        grace: the time between the first warning and the eviction.
        cooldown: the time after its restart in which an evicted gang is not evicted for idleness, and the back-off of a gang
            that mode Always evicted.
        to_equal: with OnDemand, gangs of equal priority can take its place too, not only gangs of higher priority.
        max_warmup: the longest warm-up that a job can request. It does not limit the warm-up of the queue.
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


RECLAIM_PATIENCE = 30.0
"""Default of the longest wait, in seconds, before a gang evicts gangs that borrow."""

BORROW_BACKOFF_MOST = 600.0
"""Default of the longest back-off before borrowing, in seconds."""

DEFAULT_NAME = "default"
"""Name of the LocalQueue, and of the WorkloadPriorityClass, of jobs without one."""

PRICES = "flavorPrices"
"""Key of details of a reason: the prices by which flavors are tried."""

WEIGHT_UNIT = 1000  # of a fair sharing weight: 1000 = a weight of 1


@dataclass(frozen=True, slots=True)
class ClusterQueue:
    """Quota with its policies.

    Attributes:
        preempts_to_borrow: ``borrowWithinCohort``: a gang that must borrow can evict gangs of its own queue by
            ``withinClusterQueue``, and gangs of lower priority of other queues, up to ``borrow_threshold`` if it is set.
        weight: for fair sharing, in thousandths; 0 = its share is infinite as soon as it borrows.
        usage_fairness: whether past usage of LocalQueues counts for the queue order (``admissionScope``).
        split_flavors: whether a podset can use several flavors of one resource group.
        evicts_within_nominal: whether a gang that has quota and finds no placement can evict gangs of lower priority from other
            ClusterQueues of the cohort that are within their own quota.
        headroom: the fraction of capacity that stays free if nominal quota follows the nodes; None = nominal quota is as in
            the resource groups.
        stated_groups: if nominal quota follows the nodes, the resource groups of the configuration; empty = ``groups``.
        borrow_backoff: the longest back-off, in seconds, of an evicted gang before borrowing; 0 = none.
        reclaim_patience: the longest wait, in seconds, before a gang evicts gangs that borrow; 0 = none.
        admission_checks: what its gangs need in addition to quota and nodes. While one of them has no controller, no gang starts.
        max_per_user: the most that the gangs of one user can be charged at the same time, by resource; empty = no limit.
        max_priority: the highest priority of its gangs, from a command or a class; None = no limit.
        preemption_opt_out: when opt-outs of its jobs from preemption and idle reclaim count.
        backfill: for the strategy Backfill; one of its cohorts can set it for all its ClusterQueues instead.
        execution: how long its gangs can run.
        unhealthy_nodes: the policy for its running gangs on nodes whose hardware fails.
        time_slice: seconds after its start from which a gang can be evicted for a gang of its ClusterQueue that waits and has the
            same or a higher priority; it queues again behind the others. None = no time sharing.
        trusts_checkpoints: whether checkpoint times that its jobs declare count for lost work.
        flavor_order: CHEAPEST is applied to ``groups`` when a configuration is built.
        flavor_prices: then each flavor in this order, with the price of a GPU hour; None = it has none.
        shared_gpus: which pods of a gang can be on a node with shared GPUs; gangs can ask otherwise, unless it is Never.
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
    # GPU-seconds of lost work within 24 hours that migrations of this queue's gangs can cost.
    defragment_budget: int = 0
    preempts_to_borrow: bool = False
    reclaim_within_cohort: ReclaimWithinCohort = ReclaimWithinCohort.NEVER
    borrow_threshold: int | None = None
    weight: int = WEIGHT_UNIT
    usage_fairness: bool = False
    split_flavors: bool = False
    headroom: float | None = None
    stated_groups: tuple[ResourceGroup, ...] = field(default=(), compare=False, repr=False)
    evicts_within_nominal: bool = False
    idle_reclaim: IdleReclaim = IdleReclaim()
    max_per_user: tuple[tuple[str, int], ...] = ()
    max_priority: int | None = None
    admission_checks: tuple[CheckRule, ...] = ()
    borrow_backoff: float = BORROW_BACKOFF_MOST
    reclaim_patience: float = RECLAIM_PATIENCE
    preemption_opt_out: OptOut = OptOut.WITHIN_NOMINAL
    trusts_checkpoints: bool = True
    shared_gpus: SharedGpus = SharedGpus.ONE_PER_NODE
    unhealthy_nodes: UnhealthyNodes = UnhealthyNodes.STAY
    backfill: Backfill = Backfill()
    execution: ExecutionLimits = NO_LIMITS
    time_slice: float | None = None
    flavor_order: FlavorOrder = FlavorOrder.LISTED
    flavor_prices: tuple[tuple[str, float | None], ...] = ()

    @property
    def shown_prices(self) -> dict[str, object]:
        """Details of a reason: the prices by which the flavors are tried; empty if they are tried as listed."""
        prices = [{"flavor": name, "gpuHour": price} for name, price in self.flavor_prices]
        return {PRICES: prices} if prices else {}

    def capped(self, priority: int) -> int:
        """The priority, limited to the highest of the queue."""
        return priority if self.max_priority is None else min(priority, self.max_priority)

    def pause_before_borrowing(self, lost: float, evicted: int = 0) -> float:
        """The back-off before borrowing, in seconds, of a gang that is evicted.

        Args:
            lost: seconds of its loss: the GPU-seconds of its lost work and its restart, divided by its size in GPUs.
            evicted: how often it was evicted for others before, within 24 hours.
        """
        return min(self.borrow_backoff, (1 + evicted) * lost)

    @property
    def flavors(self) -> tuple[str, ...]:
        """Names of the flavors of which it has quota, each once, in order."""
        named = (quotas.flavor for group in self.groups for quotas in group.flavors)
        return tuple(dict.fromkeys(named))

    def has_policies_of(self, queue: ClusterQueue) -> bool:
        """Whether they differ at most in amounts of quota, the Cohort and the weight, which have effects only through plans."""
        return self is queue or self._policies() == queue._policies()

    def _policies(self) -> ClusterQueue:
        groups = (
            ResourceGroup(one.covered, tuple(FlavorQuotas(each.flavor, {}) for each in one.flavors))
            for one in self.groups
        )
        return replace(self, groups=tuple(groups), cohort=None, weight=WEIGHT_UNIT)

    @property
    def strict(self) -> bool:
        """Whether a gang that waits holds back the gangs behind it."""
        return self.strategy is QueueingStrategy.STRICT_FIFO

    @property
    def preempts(self) -> bool:
        """Whether its gangs can evict any gang."""
        return (
            self.within_cluster_queue is not WithinClusterQueue.NEVER
            or self.reclaim_within_cohort is not ReclaimWithinCohort.NEVER
            or self.evicts_within_nominal
            or self.time_slice is not None
        )


def needed_checks(
    queue: ClusterQueue, placement: Placement, ready: Collection[str] = ()
) -> tuple[str, ...]:
    """Names of the admission checks that a gang of this ClusterQueue needs on this placement.

    A gang on nodes that exist needs no check that makes nodes, unless this check is one of those that are ``ready`` for it: then the
    nodes belong to its request.
    """
    flavors = {flavor for podset in placement.podsets for flavor in podset.charged}
    return tuple(
        rule.name
        for rule in queue.admission_checks
        if rule.applies(flavors)
        and not (rule.provisions and placement.on_nodes and rule.name not in ready)
    )


@dataclass(frozen=True, slots=True)
class Cohort:
    """ClusterQueues and Cohorts that borrow from each other. A Cohort without a document has no own quota.

    ``backfill``: set if all its ClusterQueues are one line with the strategy Backfill, whatever their own strategies.
    """

    name: str
    parent: str | None = None
    groups: tuple[ResourceGroup, ...] = ()
    weight: int = WEIGHT_UNIT
    backfill: Backfill | None = None


@dataclass(frozen=True, slots=True)
class LocalQueue:
    """A name in a namespace that points to a ClusterQueue.

    Attributes:
        weight: the divisor of its past usage, in thousandths.
        max_pending: the most pending gangs that plans consider; None = as in :class:`~queuectl.domain.rules.Rules`.
    """

    namespace: str
    name: str
    cluster_queue: str
    stop_policy: StopPolicy = StopPolicy.NONE
    weight: int = WEIGHT_UNIT
    max_pending: int | None = None


@dataclass(frozen=True, slots=True)
class ResourceFlavor:
    name: str
    node_labels: tuple[tuple[str, str], ...] = ()
    node_taints: tuple[Taint, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    topology: str | None = None  # None = only quota is counted, and no placement is computed
    mig_configs: tuple[MigConfig, ...] = ()  # that its nodes can get, by name
    mig_reconfiguration: MigMode = MigMode.PLAN
    node_template: NodeTemplate | None = None  # of nodes that an autoscaler makes

    def rules_of(self, rules: NodeRules) -> NodeRules:
        """The node rules of pods that use the flavor: it restricts the nodes, and adds its tolerations."""
        selector = tuple(sorted({*rules.selector, *self.node_labels}))
        return NodeRules(selector, rules.affinity, rules.tolerations + self.tolerations)

    def refusal(self, rules: NodeRules) -> str | None:
        """Why pods with these node rules cannot use the flavor, judged by its taints and labels alone; None if they can.

        Labels that the flavor does not have are checked on nodes only.
        """
        tolerations = rules.tolerations + self.tolerations
        for taint in self.node_taints:
            if taint.effect is Effect.PREFER_NO_SCHEDULE:
                continue
            if not any(t.tolerates(taint) for t in tolerations):
                return f"taint {taint.key}:{taint.effect} is not tolerated"
        labels = dict(self.node_labels)
        for key, value in rules.selector:
            if labels.get(key, value) != value:
                return f"node selector {key}={value} does not match"
        terms = rules.affinity
        if terms is not None and not any(_may_match(term, labels) for term in terms):
            return "required node affinity does not match"
        return None


def added_tolerations(
    placed: PodSetPlacement, updates: Iterable[PodSetUpdate], flavors: Mapping[str, ResourceFlavor]
) -> list[Toleration]:
    """The tolerations that pods of a podset get with their nodes: those of its flavors and of its admission checks."""
    added: list[Toleration] = []
    for name in placed.charged:
        added += flavors[name].tolerations if name in flavors else ()
    for update in updates:
        added += update.tolerations if update.podset == placed.podset else ()
    return added


def _may_match(term: SelectorTerm, labels: Mapping[str, str]) -> bool:
    """Whether a term holds as far as the labels of a flavor decide it."""
    return bool(term.requirements) and all(
        r.holds(labels[r.key]) for r in term.requirements if not r.field and r.key in labels
    )


@dataclass(frozen=True, slots=True)
class Topology:
    """Levels as node labels, coarse to fine."""

    name: str
    levels: tuple[str, ...] = (HOSTNAME,)


def domain_of(node: Node, level: str, topologies: Iterable[Topology]) -> tuple[str, ...] | None:
    """The domain of a node at a level of the first topology with it, as the label values down to it; None if a label is missing."""
    levels: tuple[str, ...] = (level,)
    for topology in topologies:
        if level in topology.levels:
            levels = topology.levels[: topology.levels.index(level) + 1]
            break
    path = [node.hostname if key == HOSTNAME else node.labels.get(key) for key in levels]
    return tuple(value for value in path if value is not None) if None not in path else None


@dataclass(frozen=True, slots=True)
class QuotaOverride:
    """Nominal quota of one flavor and resource of a ClusterQueue for a time; see :mod:`queuectl.domain.queues`.

    Attributes:
        begins, ends: unix seconds; it is active from the first, included, to the second, excluded.
        nominal: replaces nominal quota; None = no replacement.
        add: is added to nominal quota; can be negative.
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
        """Whether it is active at ``now`` (unix seconds)."""
        return self.begins <= now < self.ends


@dataclass(frozen=True, slots=True)
class LaterQuota:
    """ClusterQueues whose quota changes although the configuration stays the same.

    Attributes:
        at: unix seconds at which an override begins or ends; None = as soon as the nodes have recovered from what passes.
        queues: by name, those with other quota than now.
    """

    at: float | None
    queues: Mapping[str, ClusterQueue]


@dataclass(frozen=True, eq=False)
class QueueConfig:
    """The configuration of one revision. It is compared by identity, so derived structures can be cached.

    ``overrides``: by name, those that are not yet applied to the quotas. ``later``: once they are applied, the quota after now.
    ``budgets`` and ``top_ups``: by name.
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
    later: tuple[LaterQuota, ...] = ()
    budgets: Mapping[str, Budget] = field(default_factory=dict)
    top_ups: Mapping[str, TopUp] = field(default_factory=dict)
    reservations: Mapping[str, AdvanceReservation] = field(default_factory=dict)
    checks: Mapping[str, AdmissionCheck] = field(default_factory=dict)

    def has_policies_of(self, config: QueueConfig) -> bool:
        """Whether they differ at most in the revision, in quota after now, and in what :meth:`ClusterQueue.has_policies_of` leaves out."""
        if self is config:
            return True
        mine, others = self.cluster_queues, config.cluster_queues
        if mine.keys() != others.keys():
            return False
        own = {one.name for one in fields(self)} - {"revision", "cluster_queues", "later"}
        same = all(getattr(self, name) == getattr(config, name) for name in own)
        return same and all(queue.has_policies_of(others[name]) for name, queue in mine.items())

    def cluster_queue_of(self, namespace: str, queue: str | None) -> ClusterQueue | None:
        """The ClusterQueue behind a LocalQueue, or None when either does not exist."""
        local = self.local_queues.get((namespace, queue)) if queue is not None else None
        return self.cluster_queues.get(local.cluster_queue) if local is not None else None

    def provisioning_checks(
        self, checks: Checks
    ) -> Iterator[tuple[CheckStatus, ProvisioningConfig]]:
        """The checks of a gang that make nodes, with their settings."""
        for status in checks.statuses:
            check = self.checks.get(status.name)
            if check is not None and check.provisioning is not None:
                yield status, check.provisioning

    def flavors_named(self, names: Iterable[str]) -> list[ResourceFlavor]:
        """Those of these flavors that exist."""
        return [self.flavors[name] for name in names if name in self.flavors]

    def max_pending(self, local: LocalQueue) -> int:
        """The most pending gangs of a LocalQueue that plans consider."""
        return self.rules.max_pending if local.max_pending is None else local.max_pending

    def backfill_cohort(self, queue: ClusterQueue) -> Cohort | None:
        """The Cohort whose ClusterQueues, this one among them, are one line with the strategy Backfill: the highest that sets it."""
        above = (self.cohorts.get(name) for name in self.cohorts_above(queue))
        setting = [cohort for cohort in above if cohort is not None and cohort.backfill is not None]
        return setting[-1] if setting else None

    def cohorts_above(self, queue: ClusterQueue) -> Iterator[str]:
        """Names of its Cohort and of those above that, to the root; each once, also where parents form a circle."""
        name, seen = queue.cohort, set[str]()
        while name is not None and name not in seen:
            yield name
            seen.add(name)
            cohort = self.cohorts.get(name)
            name = cohort.parent if cohort is not None else None

    def root_cohort(self, queue: ClusterQueue) -> str | None:
        """The name of the highest Cohort above it; None if it is in no Cohort."""
        above = list(self.cohorts_above(queue))
        return above[-1] if above else None

    @property
    def mig_pools(self) -> tuple[MigPool, ...]:
        """The nodes that can be reconfigured, in the order of their flavors' names."""
        flavors = sorted(self.flavors.values(), key=lambda flavor: flavor.name)
        return tuple(MigPool(f.node_labels, f.mig_configs) for f in flavors if f.mig_configs)

    def priority_class_of(self, named: str | None) -> str | None:
        """The WorkloadPriorityClass of a job: its own, else ``default`` if it exists."""
        if named is None and DEFAULT_NAME in self.priority_classes:
            return DEFAULT_NAME
        return named


# ---- Quota overrides
#
# Active overrides are applied when a configuration is loaded, and at the start and end of each override. Planning and all views of
# quota use only the result.


def in_force(config: QueueConfig, now: float) -> QueueConfig:
    """The configuration with the active overrides applied to its quotas, and without ``overrides``. ``now``: unix seconds.

    The quota that the others give, or leave when they end, is in ``later``. Without overrides, ``config`` itself.
    """
    if not config.overrides:
        return config
    queues = {**config.cluster_queues, **_queues_at(config, now)}
    later = []
    for at in _boundaries(config, now):
        then = {**config.cluster_queues, **_queues_at(config, at)}
        changed = {name: queue for name, queue in then.items() if queue != queues[name]}
        later += [LaterQuota(at, changed)] if changed else []
    return replace(config, cluster_queues=queues, overrides={}, later=tuple(later))


def next_boundary(config: QueueConfig, now: float) -> float | None:
    """The next start or end of an override after ``now``, or None."""
    return next(iter(_boundaries(config, now)), None)


def _boundaries(config: QueueConfig, now: float) -> list[float]:
    """The starts and ends of overrides after ``now``."""
    return sorted({m for o in config.overrides.values() for m in (o.begins, o.ends) if m > now})


def _queues_at(config: QueueConfig, now: float) -> dict[str, ClusterQueue]:
    """By name, the ClusterQueues with an override that is active at ``now``."""
    acting: dict[str, list[QuotaOverride]] = {}
    for override in config.overrides.values():
        if override.acts(now) and override.cluster_queue in config.cluster_queues:
            acting.setdefault(override.cluster_queue, []).append(override)
    return {name: _overridden(config.cluster_queues[name], acting[name]) for name in sorted(acting)}


def _overridden(queue: ClusterQueue, acting: Iterable[QuotaOverride]) -> ClusterQueue:
    by_row: dict[tuple[str, str], list[QuotaOverride]] = {}
    for override in acting:
        by_row.setdefault((override.flavor, override.resource), []).append(override)
    groups = tuple(
        replace(group, flavors=tuple(_flavor(quotas, by_row) for quotas in group.flavors))
        for group in queue.groups
    )
    return replace(queue, groups=groups)


def _flavor(
    quotas: FlavorQuotas, by_row: dict[tuple[str, str], list[QuotaOverride]]
) -> FlavorQuotas:
    nominal, lending = dict(quotas.nominal), dict(quotas.lending)
    for resource, stated in quotas.nominal.items():
        acting = by_row.get((quotas.flavor, resource))
        if not acting:
            continue
        nominal[resource] = _amount(stated, acting)
        if resource in lending:
            lending[resource] = min(lending[resource], nominal[resource])
    return replace(quotas, nominal=nominal, lending=lending)


def _amount(stated: int, acting: Iterable[QuotaOverride]) -> int:
    """The replacement that began last, otherwise the nominal quota, plus the sum of all additions."""
    listed = list(acting)
    instead = [o for o in listed if o.nominal is not None]
    last = max(instead, key=lambda o: (o.begins, o.name), default=None)
    base = last.nominal if last is not None and last.nominal is not None else stated
    return max(0, base + sum(o.add for o in listed))
