"""Cohorts as trees: the quota of each Cohort and ClusterQueue, what it uses, borrows and lends, and its fair share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from queuectl.domain.queues import WEIGHT_UNIT, ClusterQueue
from queuectl.planner.quota import QuotaNode, share_of
from queuectl.web.quotas import QuotaBar, Quotas


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
