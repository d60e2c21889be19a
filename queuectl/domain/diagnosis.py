"""Why one pending gang does not start, and the changes that would let it start.

Both parts are computed by solving, never guessed: drop any one member of the conflict and the gang fits; make any one of the changes and the
planner starts it. Each change is data that can be applied to a snapshot, and exact: the new snapshot differs from the old one in this
change only. Changes of policy free nothing at once: the gang evicts whom it may now, and starts when they have left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any, Protocol

from queuectl.domain.budgets import BudgetBalance
from queuectl.domain.fleet import HOSTNAME, UNSCHEDULABLE_TAINT, Fleet, Node, NodeRules
from queuectl.domain.node_quota import quota_from_nodes
from queuectl.domain.plan import Proof
from queuectl.domain.quantity import NOTHING
from queuectl.domain.queues import (
    ClusterQueue,
    FlavorQuotas,
    Protection,
    ReclaimMode,
    ReclaimWithinCohort,
    ResourceGroup,
    WithinClusterQueue,
)
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.spending import with_new_month
from queuectl.domain.workload import (
    Duration,
    Placement,
    PodSet,
    TopologyMode,
    TopologyRequest,
    Workload,
)


class SuggestedChange(Protocol):
    """One thing that could be done."""

    def apply(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot after it was done."""


def apply_all(changes: Iterable[SuggestedChange], snapshot: Snapshot) -> Snapshot:
    """The snapshot after all of them, in order."""
    for change in changes:
        snapshot = change.apply(snapshot)
    return snapshot


@dataclass(frozen=True, slots=True)
class AddQuota:
    """More nominal quota of one flavor and resource in one ClusterQueue; ``amount`` in the resource's unit."""

    queue: str
    flavor: str
    resource: str
    amount: int

    def apply(self, snapshot: Snapshot) -> Snapshot:
        def more(quotas: FlavorQuotas, group: ResourceGroup) -> FlavorQuotas:
            if quotas.flavor != self.flavor or self.resource not in group.covered:
                return quotas
            nominal = quotas.nominal.get(self.resource, 0) + self.amount
            return replace(quotas, nominal={**quotas.nominal, self.resource: nominal})

        def raised(queue: ClusterQueue) -> ClusterQueue:
            groups = (
                replace(g, flavors=tuple(more(q, g) for q in g.flavors)) for g in queue.groups
            )
            return replace(queue, groups=tuple(groups))

        return _queue_changed(snapshot, self.queue, raised)


@dataclass(frozen=True, slots=True)
class RaiseUserCap:
    """One user may hold ``most`` of a resource in a ClusterQueue (``maxPerUser``); in the resource's unit."""

    queue: str
    resource: str
    most: int

    def apply(self, snapshot: Snapshot) -> Snapshot:
        def raised(queue: ClusterQueue) -> ClusterQueue:
            caps = {**dict(queue.max_per_user), self.resource: self.most}
            return replace(queue, max_per_user=tuple(sorted(caps.items())))

        return _queue_changed(snapshot, self.queue, raised)


@dataclass(frozen=True, slots=True)
class TopUpBudget:
    """More of a budget in its current month; ``units`` of the usage ledger."""

    budget: str
    units: int

    def apply(self, snapshot: Snapshot) -> Snapshot:
        def topped_up(balance: BudgetBalance) -> BudgetBalance:
            return replace(balance, granted=balance.granted + self.units)

        return _budgets_changed(snapshot, (self.budget,), topped_up)


@dataclass(frozen=True, slots=True)
class NewMonth:
    """The next month of these budgets has begun."""

    budgets: tuple[str, ...]

    def apply(self, snapshot: Snapshot) -> Snapshot:
        return _budgets_changed(snapshot, self.budgets, partial(with_new_month, snapshot))


@dataclass(frozen=True, slots=True)
class LimitRun:
    """A gang has a limit of its run time, in seconds."""

    uid: str
    seconds: float

    def apply(self, snapshot: Snapshot) -> Snapshot:
        duration = Duration(self.seconds, enforced=True)
        return _workload_changed(snapshot, self.uid, lambda w: replace(w, duration=duration))


@dataclass(frozen=True, slots=True)
class AllowFlavor:
    """One more flavor, the least preferred, in the resource group of a ClusterQueue that has number ``group``."""

    queue: str
    group: int
    quotas: FlavorQuotas

    def apply(self, snapshot: Snapshot) -> Snapshot:
        def extended(queue: ClusterQueue) -> ClusterQueue:
            groups = list(queue.groups)
            known = groups[self.group]
            groups[self.group] = replace(known, flavors=(*known.flavors, self.quotas))
            return replace(queue, groups=tuple(groups))

        return _queue_changed(snapshot, self.queue, extended)


@dataclass(frozen=True, slots=True)
class RelaxLevel:
    """The podsets ask for another level, slices and all; or for no topology at all."""

    uid: str
    levels: Mapping[str, str | None]  # podset to its new required level

    def apply(self, snapshot: Snapshot) -> Snapshot:
        return _podsets_changed(snapshot, self.uid, self._relaxed)

    def _relaxed(self, podset: PodSet) -> PodSet:
        if podset.name not in self.levels:
            return podset
        level = self.levels[podset.name]
        if level is None:
            return replace(podset, topology=None, group=None)
        asked = podset.topology or TopologyRequest(TopologyMode.REQUIRED)
        return replace(podset, topology=replace(asked, mode=TopologyMode.REQUIRED, level=level))


@dataclass(frozen=True, slots=True)
class RelaxRules:
    """The podsets have other node rules: one selector, affinity or missing toleration less."""

    uid: str
    rules: Mapping[str, NodeRules]

    def apply(self, snapshot: Snapshot) -> Snapshot:
        def relaxed(podset: PodSet) -> PodSet:
            rules = self.rules.get(podset.name)
            return (
                podset
                if rules is None
                else replace(podset, shape=replace(podset.shape, rules=rules))
            )

        return _podsets_changed(snapshot, self.uid, relaxed)


@dataclass(frozen=True, slots=True)
class FewerPods:
    """A podset starts with ``count`` pods."""

    uid: str
    podset: str
    count: int

    def apply(self, snapshot: Snapshot) -> Snapshot:
        def smaller(podset: PodSet) -> PodSet:
            if podset.name != self.podset:
                return podset
            return replace(podset, count=self.count, min_count=None)

        return _podsets_changed(snapshot, self.uid, smaller)


@dataclass(frozen=True, slots=True)
class RaisePriority:
    """The gang gets another priority, and with it another place in the order."""

    uid: str
    priority: int

    def apply(self, snapshot: Snapshot) -> Snapshot:
        return _workload_changed(snapshot, self.uid, lambda w: replace(w, priority=self.priority))


@dataclass(frozen=True, slots=True)
class AddNodes:
    """``count`` healthy nodes like ``like``, under ``labels`` (its domain's) where they differ, with its DaemonSets and no other pod."""

    like: str
    count: int
    labels: Mapping[str, str]

    def apply(self, snapshot: Snapshot) -> Snapshot:
        fleet = snapshot.fleet
        new = self.nodes(fleet.by_name[self.like], fleet.by_name)
        if (daemons := snapshot.of_daemons.get(self.like)) is not None:
            held = {node.name: daemons for node in new}
            snapshot = replace(
                snapshot,
                other_pods={**snapshot.other_pods, **held},
                of_daemons={**snapshot.of_daemons, **held},
            )
        nodes = sorted((*fleet.nodes, *new), key=lambda n: n.name)
        return with_fleet(snapshot, Fleet(tuple(nodes)))

    def nodes(self, like: Node, used_names: Iterable[str] = ()) -> list[Node]:
        """The new nodes; none has a name in ``used_names``."""
        names = set(used_names)
        made = []
        for number in range(1, self.count + 1):
            name = f"{like.name}-more-{number}"
            while name in names:
                name += "x"
            labels = {**like.labels, **self.labels, HOSTNAME: name}
            made.append(replace(like, name=name, labels=labels).recovered)
        return made


@dataclass(frozen=True, slots=True)
class HealNodes:
    """These nodes are ready, uncordoned, without the taints of the node life cycle, and trusted again by the gang."""

    uid: str
    names: tuple[str, ...]

    def apply(self, snapshot: Snapshot) -> Snapshot:
        well = frozenset(self.names)
        nodes = tuple(
            replace(n, occupied=NOTHING).recovered if n.name in well else n
            for n in snapshot.fleet.nodes
        )
        if nodes != snapshot.fleet.nodes:
            snapshot = with_fleet(snapshot, Fleet(nodes))
        pending = tuple(
            replace(p, excluded=p.excluded - well) if p.workload.uid == self.uid else p
            for p in snapshot.pending
        )
        return replace(snapshot, pending=pending)


@dataclass(frozen=True, slots=True)
class Leave:
    """These running gangs have ended and released all that they held."""

    uids: tuple[str, ...]

    def apply(self, snapshot: Snapshot) -> Snapshot:
        gone = frozenset(self.uids)
        stay = tuple(a for a in snapshot.admitted if a.workload.uid not in gone)
        return replace(snapshot, admitted=stay)


@dataclass(frozen=True, slots=True)
class Relocate:
    """These running gangs (by uid) run elsewhere instead."""

    places: Mapping[str, Placement]

    def apply(self, snapshot: Snapshot) -> Snapshot:
        moved = tuple(
            replace(a, placement=self.places.get(a.workload.uid, a.placement))
            for a in snapshot.admitted
        )
        return replace(snapshot, admitted=moved)


@dataclass(frozen=True, slots=True)
class Withdraw:
    """These pending gangs have left the queue, and their reservations are released."""

    uids: tuple[str, ...]

    def apply(self, snapshot: Snapshot) -> Snapshot:
        gone = frozenset(self.uids)
        pending = tuple(p for p in snapshot.pending if p.workload.uid not in gone)
        return replace(snapshot, pending=pending)


def _queue_changed(
    snapshot: Snapshot, name: str, change: Callable[[ClusterQueue], ClusterQueue]
) -> Snapshot:
    """The snapshot with one ClusterQueue changed."""
    config = snapshot.config
    queues = {**config.cluster_queues, name: change(config.cluster_queues[name])}
    return replace(snapshot, config=replace(config, cluster_queues=queues))


def with_fleet(snapshot: Snapshot, fleet: Fleet) -> Snapshot:
    """The snapshot with other nodes; nominal quota that follows the nodes changes with them."""
    return replace(snapshot, fleet=fleet, config=quota_from_nodes(snapshot.config, fleet))


def _budgets_changed(
    snapshot: Snapshot, names: Collection[str], change: Callable[[BudgetBalance], BudgetBalance]
) -> Snapshot:
    changed = (
        change(balance) if balance.budget.name in names else balance for balance in snapshot.budgets
    )
    return replace(snapshot, budgets=tuple(changed))


def _workload_changed(
    snapshot: Snapshot, uid: str, change: Callable[[Workload], Workload]
) -> Snapshot:
    def changed(pending: Pending) -> Pending:
        if pending.workload.uid != uid:
            return pending
        return replace(pending, workload=change(pending.workload))

    return replace(snapshot, pending=tuple(changed(p) for p in snapshot.pending))


def _podsets_changed(snapshot: Snapshot, uid: str, change: Callable[[PodSet], PodSet]) -> Snapshot:
    return _workload_changed(
        snapshot, uid, lambda w: replace(w, podsets=tuple(map(change, w.podsets)))
    )


def is_cordoned(node: Node) -> bool:
    """Whether a person or a program keeps new pods off the node on purpose."""
    return node.unschedulable or any(t.key == UNSCHEDULABLE_TAINT for t in node.taints)


# ---- Changes of policy


class PolicyField(StrEnum):
    """Fields of a ClusterQueue's policy, by their names in the object; the comment names the gangs that its gangs can evict by it."""

    WITHIN = "withinClusterQueue"  # gangs of the same ClusterQueue
    RECLAIM = "reclaimWithinCohort"  # gangs of ClusterQueues that use more than their own quota
    BORROW = "borrowWithinCohort"  # the same, of lower priority, even while it borrows itself
    ROOM = "evictWithinNominal"  # gangs within their own quota, of lower priority, for room alone


@dataclass(frozen=True, slots=True)
class AllowPreemption:
    """One field of a ClusterQueue's preemption policy gets another value.

    Attributes:
        value: as the object has it; of ``borrowWithinCohort``, its ``policy``, without a ``maxPriorityThreshold``.
    """

    queue: str
    field: PolicyField
    value: str

    def apply(self, snapshot: Snapshot) -> Snapshot:
        return _queue_changed(snapshot, self.queue, self.of)

    def of(self, queue: ClusterQueue) -> ClusterQueue:
        """The ClusterQueue after the change."""
        match self.field:
            case PolicyField.WITHIN:
                return replace(queue, within_cluster_queue=WithinClusterQueue(self.value))
            case PolicyField.RECLAIM:
                return replace(queue, reclaim_within_cohort=ReclaimWithinCohort(self.value))
            case PolicyField.BORROW:
                return replace(queue, preempts_to_borrow=True, borrow_threshold=None)
            case PolicyField.ROOM:
                return replace(queue, evicts_within_nominal=True)


@dataclass(frozen=True, slots=True)
class LiftProtection:
    """No gang of a ClusterQueue is shielded by its age or by earlier evictions."""

    queue: str

    def apply(self, snapshot: Snapshot) -> Snapshot:
        return _queue_changed(snapshot, self.queue, lambda q: replace(q, protection=Protection()))


@dataclass(frozen=True, slots=True)
class ReclaimIdle:
    """Gangs of a ClusterQueue that do not use their GPUs go for others on demand (``idleReclaim``)."""

    queue: str

    def apply(self, snapshot: Snapshot) -> Snapshot:
        return _queue_changed(snapshot, self.queue, _on_demand)


def _on_demand(queue: ClusterQueue) -> ClusterQueue:
    rule = replace(queue.idle_reclaim, mode=ReclaimMode.ON_DEMAND)
    return replace(queue, idle_reclaim=rule)


@dataclass(frozen=True, slots=True)
class MakePreemptible:
    """These running gangs (by uid) become preemptible, whatever they requested."""

    uids: tuple[str, ...]

    def apply(self, snapshot: Snapshot) -> Snapshot:
        named = frozenset(self.uids)

        def exposed(gang: Admitted) -> Admitted:
            if gang.workload.uid not in named:
                return gang
            return replace(gang, workload=replace(gang.workload, preemptible=True))

        return replace(snapshot, admitted=tuple(map(exposed, snapshot.admitted)))


class Limit(StrEnum):
    """Kinds of things that can stand in a gang's way."""

    QUOTA = "Quota"  # of one ClusterQueue, flavor and resource, through its cohorts
    FLAVOR = "Flavor"  # which flavors the ClusterQueue has, their labels and taints
    RULES = "NodeRules"  # its own node selector, affinity and tolerations
    TOPOLOGY = "Topology"  # the domain that its pods must share
    SHAPE = "Shape"  # what one node must hold of it
    ORDER = "Order"  # the gangs before it, in this cycle or by StrictFIFO
    LEASE = "Lease"  # capacity held for others
    HEALTH = "NodeHealth"  # nodes that are not ready, cordoned, or refused to it
    RUNNING = "Running"  # what runs now, on nodes and in quota
    FLEET = "Fleet"  # all there is
    USER = "MaxPerUser"  # what its ClusterQueue lets one user hold at once
    BUDGET = "Budget"  # the GPU-hours that are left of a month


@dataclass(frozen=True, slots=True)
class Obstacle:
    """One member of a conflict. ``details`` holds plain JSON values only."""

    limit: Limit
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)


class Remedy(StrEnum):
    """Kinds of suggested fixes; the comment names the person who can apply them."""

    WAIT = "Wait"  # no action: it ends without one
    FEWER_PODS = "StartWithFewerPods"  # the submitter
    RELAX_TOPOLOGY = "RelaxTopology"  # the submitter
    RELAX_RULES = "RelaxNodeRules"  # the submitter
    RAISE_PRIORITY = "RaisePriority"  # the submitter or an admin
    SHORTEN_RUN = "ShortenRun"  # the submitter
    ADD_QUOTA = "AddQuota"  # an admin
    TOP_UP_BUDGET = "TopUpBudget"  # an admin
    RAISE_USER_CAP = "RaiseMaxPerUser"  # an admin
    ALLOW_FLAVOR = "AllowFlavor"  # an admin
    HEAL_NODES = "RepairNodes"  # an operator of the nodes
    REMOVE_TAINTS = "RemoveDeviceTaints"  # an operator of the nodes
    RECONFIGURE_MIG = "ReconfigureMIG"  # an operator of the nodes
    ADD_NODES = "AddNodes"  # an owner of the cluster
    MOVE_OTHERS = "MoveOthers"  # an admin, or the controller where queues allow it
    ALLOW_PREEMPTION = "AllowPreemption"  # an admin, or the owners of gangs that shield themselves
    END_OTHERS = "EndOthers"  # the owners of gangs that policy protects


@dataclass(frozen=True, slots=True)
class SuggestedFix:
    """One suggested fix. With all of ``changes`` the gang starts, or it evicts others and starts when they have stopped.

    Attributes:
        remedy: its main part.
        message: a sentence.
        details: sizes as plain JSON values.
        changes: what to do, exactly.
        least: no smaller size of this kind would do, proved.
    """

    remedy: Remedy
    message: str
    details: Mapping[str, Any]
    changes: tuple[SuggestedChange, ...]
    least: bool = False


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why one gang is pending, and what would change that.

    Attributes:
        conflict: a minimal set; empty when no constraint of the cluster blocks it (it is held, or it fits).
        suggested_fixes: cheapest kind first.
        proof: OPTIMAL, or FEASIBLE when a limit ended a search: the conflict may hold a member too many then.
        cut: it was stopped: the result is not complete.
        under_way: what is being done for the gang, and what of it has failed, in sentences.
    """

    uid: str
    conflict: tuple[Obstacle, ...] = ()
    suggested_fixes: tuple[SuggestedFix, ...] = ()
    proof: Proof = Proof.OPTIMAL
    cut: bool = False
    under_way: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Excess:
    """More use than a quota allows.

    Attributes:
        kind, name: whose quota: a ClusterQueue's or a Cohort's.
        used, allowed: of the flavor's resource, in its unit; borrowing is allowed for.
        gangs: ``namespace/name`` of those without which it would be gone, the ones started last first.
    """

    kind: str
    name: str
    flavor: str
    resource: str
    used: int
    allowed: int
    gangs: tuple[str, ...] = ()
