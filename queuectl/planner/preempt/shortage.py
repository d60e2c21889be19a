"""The quota that a pending gang lacks, in the pools of its ClusterQueue, and how evictions free it.

The gang asks each pool from its ClusterQueue to the root for more than the pool may use, or not (:meth:`QuotaUse.rooms`). A gang
evicted from its own ClusterQueue makes up for what it used, in each pool. One of another ClusterQueue lowers what the pools up to
the common one pass up, and that not below 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np

from queuectl.domain.queues import ReclaimWithinCohort
from queuectl.planner.capacity.state import CycleState
from queuectl.planner.problem.fleet import Ints
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.quota import FlavorResource, QuotaNode, QuotaRow, QuotaUse

Charges: TypeAlias = Mapping[
    int, tuple[tuple[QuotaRow, int], ...]
]  # gang of a table to what it is charged
Deficits: TypeAlias = list[
    tuple[int, Ints]
]  # what must come free, and what each gang frees of it at most


@dataclass(frozen=True, slots=True)
class Shortage:
    """By ``amount`` the pool at ``level`` of the gang's path is asked for more of ``row`` than it may use."""

    row: FlavorResource
    amount: int
    level: int


@dataclass(frozen=True, slots=True)
class CommonPool:
    """Where another ClusterQueue meets the gang's side of the tree.

    Attributes:
        level: index in the gang's path of the lowest pool that both are in.
        below: the other's pools from its queue up to below that one.
    """

    level: int
    below: tuple[QuotaNode, ...]

    @property
    def top(self) -> QuotaNode:
        """The member of the common pool that the other queue is in."""
        return self.below[-1]


@dataclass(eq=False)
class QuotaShortfall:
    """One gang under one choice of flavors, against what others use.

    Attributes:
        use: what is used once everything leaving has left.
        path: the pools from the gang's ClusterQueue to the root; empty for a gang that has none.
        needs: what it is charged; of contested rows that it is not charged for, 0.
        borrows: whether it may use more than the nominal quota of its ClusterQueue.
        rows: flavors and resources it contends for: those it is short of, and all that its pods on nodes use.
    """

    use: QuotaUse
    path: tuple[QuotaNode, ...]
    needs: Mapping[FlavorResource, int]
    rows: frozenset[FlavorResource]
    borrows: bool = True
    _common_pools: dict[str, CommonPool | None] = field(default_factory=dict)

    @property
    def queue(self) -> str:
        return self.path[0].name

    def over(self, pool: QuotaNode) -> bool:
        """Whether a pool uses more than its own quota of something that the gang contends for."""
        return self.use.over(pool, self.rows)

    @cached_property
    def within_nominal(self) -> bool:
        """Whether the gang's ClusterQueue stays within its nominal quota with it, of all that it contends for."""
        own = self.path[0]
        return all(self.use.beyond(own, row) + self.needs[row] <= 0 for row in self.rows)

    @cached_property
    def nearest_quota(self) -> int:
        """Index in the path of the lowest pool that has the quota for all that is asked; beyond the path if none has."""
        needs = {row: need for row, need in self.needs.items() if need or row in self.rows}
        climbs = zip(*(self.use.climb(self.queue, row) for row in needs), strict=True)
        for level, steps in enumerate(climbs):
            pairs = zip(steps, needs.items(), strict=True)
            if all(
                used + max(0, need - kept) <= pool.subtree.get(row, 0)
                for (pool, used, kept), (row, need) in pairs
            ):
                return level
        return len(self.path)

    def common_pool(self, queue: str) -> CommonPool | None:
        """Where another queue meets the gang's side; None for its own and for those that share nothing with it."""
        if queue not in self._common_pools:
            pool = self.use.pools.get(queue)
            self._common_pools[queue] = common_pool_of(pool.path if pool else (), self.path)
        return self._common_pools[queue]

    @cached_property
    def lenders_keep(self) -> bool:
        """Whether lending limits of others keep part of the missing quota, so that :meth:`deficits` is too optimistic."""
        return any(
            _keeps(other, short.row)
            for short in self.shortages()
            for pool in self.path[1 : short.level + 1]
            for other in pool.members
            if other not in self.path
        )

    def shortages(self) -> Iterator[Shortage]:
        """Where on its path the gang asks for more than the pool can ever have."""
        for row, need in self.needs.items():
            if need:
                for level, headroom in self.use.headrooms(self.queue, row, borrows=self.borrows):
                    if need > headroom:
                        yield Shortage(row, need - headroom, level)

    def deficits(
        self, quota: Mapping[QuotaRow, Ints], size: int, *, borrows: bool = True
    ) -> Deficits:
        """The shortages with what each candidate could make up of them at most; too much where lending limits keep some of it.

        Args:
            quota: what each of the candidates is charged. Shape (C,).
            size: how many they are.
            borrows: whether the gang's queue may use more than its nominal quota; if not, the rest must leave its own queue.
        """
        most_short: dict[tuple[FlavorResource, tuple[str, ...]], tuple[int, Ints]] = {}
        for short in self.shortages():
            frees = np.zeros(size, dtype=np.int64)
            helpers = []
            for queue in (queue for queue, *row in quota if (*row,) == short.row):
                most = self.makes_up(queue, short)
                if most is None or most > 0:
                    amounts = quota[(queue, *short.row)]
                    frees += amounts if most is None else np.minimum(amounts, most)
                    helpers.append(queue)
            key = (short.row, tuple(helpers))
            if key not in most_short or most_short[key][0] < short.amount:
                most_short[key] = (short.amount, frees)
        deficits = list(most_short.values())
        repairs = not any(self.needs.values())  # its charges are part of what is used
        for asked, need in self.needs.items() if not borrows else ():
            amount = need + self.use.beyond(self.path[0], asked)
            if (need or repairs) and amount > 0:
                frees = quota.get((self.queue, *asked), np.zeros(size, dtype=np.int64))
                deficits.append((amount, frees))
        return deficits

    def makes_up(self, queue: str, short: Shortage) -> int | None:
        """The most of a shortage that all exits from one queue make up; None = all that leaves it."""
        if queue == self.queue:
            return None
        common_pool = self.common_pool(queue)
        if common_pool is None or common_pool.level > short.level:
            return 0
        if all(pool.local.get(short.row, 0) == 0 for pool in common_pool.below):
            return None
        return min(self.use.lends(pool, short.row) for pool in common_pool.below)

    def met_without(self, victims: Iterable[int], charges: Charges) -> bool:
        """Whether the gang has its quota once these have left: exact."""
        rows = [charge for victim in victims for charge in charges[victim]]
        with self.use.hypothetically(rows, -1):
            return self.use.fits(self.queue, self.needs, borrows=self.borrows)


def common_pool_of(
    other_path: Sequence[QuotaNode], path: Sequence[QuotaNode | None]
) -> CommonPool | None:
    """Where the path of another ClusterQueue to its root meets a path; None if it does not, or if the queue is part of that path."""
    below = tuple(itertools.takewhile(lambda pool: pool not in path, other_path))
    if not below or len(below) == len(other_path):
        return None
    return CommonPool(path.index(other_path[len(below)]), below)


def _keeps(pool: QuotaNode, row: FlavorResource) -> bool:
    """Whether a lending limit at or below a pool keeps some of a row."""
    return pool.local.get(row, 0) > 0 or any(_keeps(member, row) for member in pool.members)


def shortfall_of(state: CycleState, request: GangRequest, queue: str) -> QuotaShortfall:
    """The rows that a request contends for, with a ClusterQueue's name to be used where it is charged nothing (a repair)."""
    use = state.later.quota
    pool = use.pools.get(queue)
    path = pool.path if pool is not None else ()
    needs = dict(request.charges) if request.queue is not None else {}
    borrows = state.quota.may_borrow(request)
    rows = {row for row, _ in use.short(queue, needs, borrows=borrows)} if path else set()
    for pods in request.pods:
        rows |= {(flavor, resource) for resource, flavor in request.flavors[pods.podset].items()}
    asked = dict.fromkeys(sorted(rows), 0) | needs
    return QuotaShortfall(use, path, asked, frozenset(rows), borrows)


Heights: TypeAlias = tuple[int, ...]  # per podset, how far up the cohorts it borrows; 0 = not


def borrows(
    state: CycleState, request: GangRequest, views: Sequence[QuotaUse] | None = None
) -> Heights:
    """How far up its cohorts each podset borrows, those before it charged already, in the tightest of some views: now and later."""
    views = (state.now.quota, state.later.quota) if views is None else views
    heights = [0] * len(request.flavors)
    if request.queue is None or state.later.quota.pools[request.queue].parent is None:
        return tuple(heights)
    charged_for = state.problem.snapshot.config.rules.charged
    charged: dict[FlavorResource, int] = {}
    for i, (podset, flavors) in enumerate(
        zip(request.pending.workload.podsets, request.flavors, strict=True)
    ):
        amounts = charged_for(podset.shape.requests)
        for resource, flavor in flavors.items():
            need = amounts[resource] * podset.count
            row = (flavor, resource)
            charged[row] = charged.get(row, 0) + need
            for use in views:
                reach = use.reach(request.queue, row, charged[row])
                heights[i] = max(heights[i], reach.height if need else 0)
    return tuple(heights)


def entitled(state: CycleState, request: GangRequest) -> bool:
    """Whether what a request lacks of quota is its ClusterQueue's to take from running gangs.

    Kueue's rule: what fits the queue's own nominal quota, or that of a cohort below the root, is; more than that only
    where the queue may preempt to borrow, or where shares decide.
    """
    queue, use = request.queue, state.later.quota
    if queue is None:
        return False
    config = state.problem.snapshot.config
    policy = config.cluster_queues[queue]
    reclaims = policy.reclaim_within_cohort is not ReclaimWithinCohort.NEVER
    if policy.preempts_to_borrow or (config.rules.fair_sharing and reclaims):
        return True
    nominal = state.quota.nominal(queue)
    return all(
        need <= max(nominal.get(row, 0), use.left(queue, row))
        or use.reach(queue, row, need).parent is not None
        for row, need in request.charges.items()
    )
