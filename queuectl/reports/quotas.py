"""Quota and its use as bars and as trees of cohorts.

Bars are of ClusterQueues and their cohorts, with what they borrow and lend, and of LocalQueues. Trees show for each Cohort and
ClusterQueue its quota, what it uses, borrows and lends, and its fair share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from queuectl.domain.queues import WEIGHT_UNIT, ClusterQueue, QueueConfig
from queuectl.domain.snapshot import Snapshot
from queuectl.planner.cache import PlannerCache
from queuectl.planner.quota import (
    FlavorResource,
    QuotaNode,
    QuotaTree,
    QuotaUse,
    pools_of,
    share_of,
    use_of,
)
from queuectl.reports.report_cache import use_for_report

# ---- Bars


@dataclass(frozen=True, slots=True)
class QuotaBar:
    """One flavor and resource of a ClusterQueue or Cohort, in units of :mod:`queuectl.domain.quantity`.

    Attributes:
        used: by its gangs; None = this process does not know the cluster.
        limit: the most that it may use, borrowing included; None = no own limit, only that of its cohort.
        lending: the most of ``nominal`` that others may use; None = all of it.
        left: available now, borrowing included.
        lent: of ``nominal``, the part that it cannot use now because other members of the cohort hold it.
    """

    name: str
    flavor: str
    resource: str
    nominal: int
    used: int | None = None
    limit: int | None = None
    lending: int | None = None
    left: int | None = None
    lent: int = 0

    @property
    def borrowed(self) -> int:
        """Use beyond its own quota."""
        return max(0, (self.used or 0) - self.nominal)

    @property
    def own(self) -> int:
        """Use within its own quota."""
        return (self.used or 0) - self.borrowed

    @property
    def scale(self) -> int:
        """The amount that is the whole width of the bar."""
        return max(self.nominal, self.limit or 0, self.used or 0, 1)

    def width(self, amount: int) -> float:
        """The width of an amount on a bar that is 100 wide."""
        return round(100 * amount / self.scale, 2)


@dataclass(frozen=True, slots=True)
class Quotas:
    """The quotas of all ClusterQueues, and their use, at one time.

    Attributes:
        stated: the configuration as it is stored now.
        config: that of the snapshot, which can be a second older; its quota follows the nodes where it is to.
        pools: ClusterQueue name to its pool, of ``config``.
        use: None = this process does not know the cluster.
    """

    stated: QueueConfig
    config: QueueConfig
    pools: QuotaTree
    use: QuotaUse | None

    def of_queue(self, queue: ClusterQueue) -> tuple[QuotaBar, ...]:
        """A bar for each flavor and resource, in the queue's order of preference."""
        counted = self.config.cluster_queues.get(queue.name, queue)
        return tuple(
            self._bar(counted, quotas.flavor, resource, quotas.nominal, quotas.borrowing, quotas.lending)
            for group in counted.groups
            for resource in group.covered
            for quotas in group.flavors
        )  # fmt: skip

    def _bar(
        self,
        queue: ClusterQueue,
        flavor: str,
        resource: str,
        nominal: Mapping[str, int],
        borrowing: Mapping[str, int],
        lending: Mapping[str, int],
    ) -> QuotaBar:
        row, own = (flavor, resource), nominal.get(resource, 0)
        more = borrowing.get(resource) if queue.cohort is not None else 0
        use = self.use if queue.name in self.pools else None
        return QuotaBar(
            queue.name,
            flavor,
            resource,
            own,
            used=use.of(queue.name, row) if use is not None else None,
            limit=own + more if more is not None else None,
            lending=lending.get(resource),
            left=max(0, use.left(queue.name, row)) if use is not None else None,
            lent=_lent(use, queue.name, row, own) if use is not None else 0,
        )

    def of_cohort(self, cohort: str) -> tuple[QuotaBar, ...]:
        """The quota that the members of a cohort share, and its use; empty for a cohort without ClusterQueues."""
        for pool in self.pools.values():
            for above in pool.path[1:]:
                if above.name == cohort:
                    return self.of_pool(above)
        return ()

    def of_pool(self, pool: QuotaNode) -> tuple[QuotaBar, ...]:
        """The quota of a cohort: its own, and what its members lend; use beyond it is borrowed from the parent."""
        return tuple(
            QuotaBar(
                pool.name,
                *row,
                amount,
                used=self.use.used_of(pool, row) if self.use is not None else None,
                limit=amount,
            )
            for row, amount in pool.subtree.items()
        )


def _lent(use: QuotaUse, queue: str, row: FlavorResource, nominal: int) -> int:
    own = min(nominal, use.of(queue, row))
    return max(0, nominal - own - max(0, use.left(queue, row, borrows=False)))


def quotas_of(config: QueueConfig, snapshot: Snapshot | None, cache: PlannerCache) -> Quotas:
    """The quotas that the planner uses, and their use; without a snapshot, those that the configuration states."""
    if snapshot is None:
        return Quotas(config, config, pools_of(config, cache), None)
    pools = pools_of(snapshot.config, cache)
    held = use_for_report(snapshot, cache).quota_held
    return Quotas(config, snapshot.config, pools, use_of(pools, held))


def held_by(
    snapshot: Snapshot, cache: PlannerCache, namespace: str, queue: str
) -> dict[tuple[str, str], int]:
    """Flavor and resource to the quota that the gangs of a LocalQueue hold."""
    usage = use_for_report(snapshot, cache)
    held: Counter[tuple[str, str]] = Counter()
    for gang in usage.gangs:
        if (gang.workload.namespace, gang.workload.queue) == (namespace, queue):
            for (_, flavor, resource), amount in usage.charges(gang):
                held[flavor, resource] += amount
    return {row: amount for row, amount in sorted(held.items()) if amount}


# ---- Trees of cohorts


@dataclass(frozen=True, slots=True)
class FairShare:
    """A place in fair sharing.

    Attributes:
        weight: 1 is the default.
        share: of what the cohort can lend, the part that is borrowed, divided by the weight; None = not known.
        endless: the weight is 0 and quota is borrowed.
    """

    weight: float
    share: float | None
    endless: bool = False


@dataclass(frozen=True, slots=True)
class QueueLeaf:
    """A ClusterQueue in its cohort."""

    queue: ClusterQueue
    bars: tuple[QuotaBar, ...]
    fair: FairShare


@dataclass(frozen=True, slots=True)
class CohortNode:
    """A cohort.

    Attributes:
        bars: the quota that its members share, and its use.
        queues: its ClusterQueues that the caller may see.
        cohorts: its child cohorts that the caller may see.
        hidden: how many of its ClusterQueues the caller may not see.
    """

    name: str
    bars: tuple[QuotaBar, ...]
    fair: FairShare
    queues: tuple[QueueLeaf, ...]
    cohorts: tuple[CohortNode, ...]
    hidden: int


def cohort_trees(
    quotas: Quotas, sees: Callable[[str], bool]
) -> tuple[tuple[CohortNode, ...], tuple[QueueLeaf, ...]]:
    """The root cohorts, and the ClusterQueues without a cohort, by name.

    Args:
        quotas: of one moment.
        sees: whether the caller may see a ClusterQueue, by its name. A cohort is shown with its ClusterQueues.
    """
    roots: dict[str, QuotaNode] = {}
    alone = []
    for name, pool in sorted(quotas.pools.items()):
        if pool.parent is not None:
            roots[pool.root.name] = pool.root
        elif sees(name):
            alone.append(_leaf(quotas, pool))
    nodes = (_node(quotas, roots[name], sees) for name in sorted(roots))
    return tuple(node for node in nodes if node is not None), tuple(alone)


def _node(quotas: Quotas, pool: QuotaNode, sees: Callable[[str], bool]) -> CohortNode | None:
    """None for a cohort without a ClusterQueue that the caller may see."""
    members = sorted(pool.members, key=lambda member: member.name)
    leaves = [member for member in members if not _is_cohort(quotas, member)]
    shown = [member for member in leaves if sees(member.name)]
    below = (_node(quotas, member, sees) for member in members if _is_cohort(quotas, member))
    cohorts = tuple(node for node in below if node is not None)
    if not shown and not cohorts:
        return None
    return CohortNode(
        pool.name,
        quotas.of_pool(pool),
        _fair(quotas, pool),
        tuple(_leaf(quotas, member) for member in shown),
        cohorts,
        len(leaves) - len(shown),
    )


def _is_cohort(quotas: Quotas, pool: QuotaNode) -> bool:
    """A ClusterQueue and a Cohort can have the same name."""
    return quotas.pools.get(pool.name) is not pool


def _leaf(quotas: Quotas, pool: QuotaNode) -> QueueLeaf:
    queue = quotas.stated.cluster_queues.get(pool.name, quotas.config.cluster_queues[pool.name])
    return QueueLeaf(queue, quotas.of_queue(queue), _fair(quotas, pool))


def _fair(quotas: Quotas, pool: QuotaNode) -> FairShare:
    weight = pool.weight / WEIGHT_UNIT
    if quotas.use is None:
        return FairShare(weight, None)
    share = share_of(pool, quotas.use)
    return FairShare(weight, None if share.endless else float(share.ratio), share.endless)
