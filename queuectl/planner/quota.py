"""The quota that is left to a ClusterQueue, through its cohorts, and dominant resource shares: the one place that computes them.

Kueue's rules. Every ClusterQueue and Cohort has a *subtree quota* per flavor and resource: its own nominal quota and what
its members lend. The part that a lending limit withholds is its *local* quota, which no other pool can use. Use beyond the local quota
is passed up and counts against the parent, so a cohort's use is what its members take from the common pool. A borrowing
limit bounds what a member takes from there beyond what it put in.

Amounts are as in :mod:`queuectl.domain.quantity`; a flavor and resource without a quota has none.

The *dominant resource share* of a pool is the largest part of what its cohort can lend that the pool takes. A pool *borrows* of a flavor
and resource what it uses beyond its subtree quota. Per resource, what it borrows over all flavors is set against what its parent could
get hold of if nothing were used; the largest of these ratios, divided by the pool's weight, is its share. A pool that borrows nothing, or has no parent, has a share of 0; one of weight 0
that borrows has an endless one. Ratios are exact fractions, so that comparing them depends on nothing but the amounts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil
from typing import Final, TypeAlias

from queuectl.domain.queues import WEIGHT_UNIT, Cohort, QueueConfig, ResourceGroup
from queuectl.planner.cache import PlannerCache

FlavorResource: TypeAlias = tuple[str, str]
QuotaRow: TypeAlias = tuple[str, str, str]  # ClusterQueue, flavor, resource


@dataclass(eq=False, slots=True)
class QuotaNode:
    """A ClusterQueue or a Cohort as a node of its tree; compared by identity.

    Attributes:
        subtree: own nominal quota plus what the members lend.
        local: the part of ``subtree`` that the parent never sees; absent = none of it.
        borrowing: most taken from the parent beyond what was put in; absent = no limit.
        height: 0 for a ClusterQueue; for a Cohort, levels of members below it.
        weight: in fair sharing, in thousandths.
        lendable: resource to what it could get hold of, over all flavors; filled by :mod:`queuectl.planner.quota`.
    """

    name: str
    parent: QuotaNode | None = None
    members: list[QuotaNode] = field(default_factory=list)
    subtree: dict[FlavorResource, int] = field(default_factory=dict)
    local: dict[FlavorResource, int] = field(default_factory=dict)
    borrowing: dict[FlavorResource, int] = field(default_factory=dict)
    height: int = 0
    weight: int = WEIGHT_UNIT
    lendable: dict[str, int] | None = None
    _queues: tuple[str, ...] | None = None

    @property
    def queues(self) -> tuple[str, ...]:
        """Names of the ClusterQueues in it, itself included if it is one."""
        if self._queues is None:
            below = [name for member in self.members for name in member.queues]
            own = [self.name] if not self.height and not self.members else []
            self._queues = tuple(sorted(own + below))
        return self._queues

    @property
    def path(self) -> tuple[QuotaNode, ...]:
        """Itself and every pool above it, the root last."""
        return (self,) if self.parent is None else (self, *self.parent.path)

    @property
    def root(self) -> QuotaNode:
        """The pool at the top of its tree; itself if it has no parent."""
        return self.path[-1]

    def most(self, row: FlavorResource) -> int:
        """Its usable quota if nothing else were used."""
        subtree = self.subtree.get(row, 0)
        if self.parent is None:
            return subtree
        most = self.local.get(row, 0) + self.parent.most(row)
        limit = self.borrowing.get(row)
        return most if limit is None else min(most, subtree + limit)

    def limit(self, row: FlavorResource) -> int | None:
        """Its limit; None where only the pools above limit it."""
        limit = self.borrowing.get(row)
        if self.parent is None:
            return self.subtree.get(row, 0)
        return None if limit is None else self.subtree.get(row, 0) + limit

    def passed_up(self, row: FlavorResource, used: int) -> int:
        """The part of its use that counts against the parent."""
        return max(0, used - self.local.get(row, 0))

    def shifts_parent(self, row: FlavorResource, used: int, more: int) -> int:
        """By how much the parent's use changes when this, which uses ``used``, uses so much more (or, below 0, less)."""
        return self.passed_up(row, used + more) - self.passed_up(row, used)


class QuotaTree(dict[str, QuotaNode]):
    """ClusterQueue name to its pool; compared by identity, as the pools are."""

    __eq__ = object.__eq__
    __ne__ = object.__ne__
    __hash__ = object.__hash__  # type: ignore[assignment]  # dict declares None: it compares by content


def pools_of(config: QueueConfig, cache: PlannerCache) -> QuotaTree:
    """The pools of a configuration, built at first use."""
    known = cache.get(config, QuotaTree)
    return known if known is not None else cache.keep(config, build_pools(config))


class LaterPools(tuple[tuple[float | None, QuotaTree], ...]):
    """The pools whenever quota changes without a change of the configuration: see :class:`~queuectl.domain.queues.LaterQuota`."""

    __slots__ = ()


def later_pools_of(config: QueueConfig, cache: PlannerCache) -> LaterPools:
    """The pools of a configuration after now, built at first use."""
    known = cache.get(config, LaterPools)
    if known is None:
        later = (
            (each.at, replace(config, cluster_queues={**config.cluster_queues, **each.queues}))
            for each in config.later
        )
        pools = LaterPools((at, build_pools(changed)) for at, changed in later)
        known = cache.keep(config, pools)
    return known


def build_pools(config: QueueConfig) -> QuotaTree:
    """The pools of a configuration, not kept."""
    named = {queue.cohort for queue in config.cluster_queues.values()}
    named |= {cohort.parent for cohort in config.cohorts.values()} | config.cohorts.keys()
    cohorts = {name: QuotaNode(name) for name in sorted(n for n in named if n is not None)}
    limits: dict[QuotaNode, dict[FlavorResource, int]] = {}
    for name, pool in cohorts.items():
        stated = config.cohorts.get(name, Cohort(name))
        pool.weight = stated.weight
        limits[pool] = _own(pool, stated.groups)
        _join(pool, cohorts, stated.parent)
    queues = QuotaTree({name: QuotaNode(name) for name in sorted(config.cluster_queues)})
    for name, pool in queues.items():
        pool.weight = config.cluster_queues[name].weight
        limits[pool] = _own(pool, config.cluster_queues[name].groups)
        _join(pool, cohorts, config.cluster_queues[name].cohort)
    for pool in [*cohorts.values(), *queues.values()]:
        if pool.parent is None:
            _add_up(pool, limits)
    return queues


def _own(pool: QuotaNode, groups: Iterable[ResourceGroup]) -> dict[FlavorResource, int]:
    """Note a pool's own quotas; its lending limits are returned."""
    lending: dict[FlavorResource, int] = {}
    for group in groups:
        for quotas in group.flavors:
            for resource in group.covered:
                row = (quotas.flavor, resource)
                pool.subtree[row] = quotas.nominal.get(resource, 0)
                if resource in quotas.borrowing:
                    pool.borrowing[row] = quotas.borrowing[resource]
                if resource in quotas.lending:
                    lending[row] = quotas.lending[resource]
    return lending


def _join(pool: QuotaNode, cohorts: Mapping[str, QuotaNode], parent: str | None) -> None:
    if parent is not None:
        pool.parent = cohorts[parent]
        pool.parent.members.append(pool)


def _add_up(pool: QuotaNode, lending: Mapping[QuotaNode, Mapping[FlavorResource, int]]) -> None:
    """Subtree and local quotas and heights, members first."""
    for member in pool.members:
        _add_up(member, lending)
        for row, amount in member.subtree.items():
            lent = amount - member.local.get(row, 0)
            pool.subtree[row] = pool.subtree.get(row, 0) + lent
        pool.height = max(pool.height, member.height + 1)
    for row, limit in lending[pool].items():
        pool.local[row] = max(0, pool.subtree.get(row, 0) - limit)


@dataclass(eq=False, slots=True)
class QuotaUse:
    """The use of every pool of one configuration, in one view of time.

    Attributes:
        pools: ClusterQueue name to its pool.
        used: per pool, flavor and resource.
        changes: how often it was changed.
    """

    pools: QuotaTree
    used: dict[QuotaNode, dict[FlavorResource, int]] = field(default_factory=dict)
    changes: int = 0
    _over: dict[tuple[QuotaNode, frozenset[FlavorResource]], bool] = field(default_factory=dict)
    _over_at: int = 0  # the changes before them

    def add(self, row: QuotaRow, amount: int) -> None:
        """Use so much more (or, below 0, less) of a ClusterQueue's flavor and resource."""
        self.changes += 1
        for pool, more in self._shifts(row, amount, {}):
            used = self.used.setdefault(pool, {})
            used[row[1:]] = used.get(row[1:], 0) + more

    @contextmanager
    def hypothetically(self, rows: Iterable[tuple[QuotaRow, int]], sign: int = 1) -> Iterator[None]:
        """Use these amounts more (with ``sign`` -1: less) for the time of a ``with`` block."""
        sums: dict[QuotaRow, int] = {}
        for row, amount in rows:  # many gangs of one ClusterQueue change each pool above it once
            sums[row] = sums.get(row, 0) + amount
        for row, amount in sums.items():
            self.add(row, sign * amount)
        try:
            yield
        finally:
            for row, amount in sums.items():
                self.add(row, -sign * amount)

    def _shifts(
        self, row: QuotaRow, amount: int, more: Mapping[tuple[QuotaNode, FlavorResource], int]
    ) -> Iterator[tuple[QuotaNode, int]]:
        """The pools whose use changes with an amount of a ClusterQueue, lowest first, and by how much each.

        ``more``: what is used besides.
        """
        pool, flavor_resource = self.pools.get(row[0]), row[1:]
        while pool is not None and amount:
            used = self.used_of(pool, flavor_resource) + more.get((pool, flavor_resource), 0)
            yield pool, amount
            amount = pool.shifts_parent(flavor_resource, used, amount)
            pool = pool.parent

    def copy(self) -> QuotaUse:
        """The same, to be changed by itself."""
        return QuotaUse(self.pools, {pool: dict(used) for pool, used in self.used.items()})

    def shifts(
        self, rows: Iterable[tuple[QuotaRow, int]]
    ) -> dict[tuple[QuotaNode, FlavorResource], int]:
        """By how much the use of every pool would change with these amounts more (or, below 0, less)."""
        shifts: dict[tuple[QuotaNode, FlavorResource], int] = {}
        for row, amount in rows:
            for pool, more in self._shifts(row, amount, shifts):
                shifts[pool, row[1:]] = shifts.get((pool, row[1:]), 0) + more
        return shifts

    def keep(
        self,
        now: QuotaUse,
        rows: Iterable[tuple[QuotaRow, int]],
        back: Iterable[tuple[QuotaRow, int]],
    ) -> None:
        """Keep quota for one gang: in every pool, the part of ``rows`` beyond the quota that ``back`` returns first.

        Computed twice, alongside the quota kept for others and alongside the use ``now`` alone; the more of the two counts,
        because it is not known which of the others takes its share first.
        """
        change = [*((row, -amount) for row, amount in back), *rows]
        beside, alone = self.shifts(change), now.shifts(change)
        self.changes += 1
        for (pool, row), shift in beside.items():
            used = self.used.setdefault(pool, {})
            used[row] = used.get(row, 0) + max(0, shift, alone.get((pool, row), 0))

    def of(self, queue: str, row: FlavorResource) -> int:
        """The use of a ClusterQueue itself."""
        return self.used_of(self.pools[queue], row)

    def left(self, queue: str, row: FlavorResource, *, borrows: bool = True) -> int:
        """The quota left to a ClusterQueue; below 0 when more is used than quota allows.

        One podset group that the queue itself gives back adds exactly one to it, whatever the limits.

        Args:
            queue: name of the ClusterQueue.
            row: flavor and resource.
            borrows: whether it may use more than its nominal quota for this.
        """
        return min(headroom for _, headroom in self.headrooms(queue, row, borrows=borrows))

    def headrooms(
        self, queue: str, row: FlavorResource, *, borrows: bool = True
    ) -> Iterator[tuple[int, int]]:
        """The quota that each limiting pool leaves to a ClusterQueue: the index of the pool in the path, and the amount.

        The least of them is the quota left to the ClusterQueue. Below 0, the pool has more use than quota.
        """
        for level, (pool, used, kept) in enumerate(self.climb(queue, row)):
            limit = pool.limit(row) if borrows or level else pool.subtree.get(row, 0)
            if limit is not None:
                yield level, limit - used + kept

    def climb(self, queue: str, row: FlavorResource) -> Iterator[tuple[QuotaNode, int, int]]:
        """The pools from a ClusterQueue to the root, with what each uses.

        The third number is how much of what the ClusterQueue uses more does not count there, because lending limits of
        the pools below keep so much quota unused.
        """
        pool, kept = self.pools.get(queue), 0
        while pool is not None:
            used = self.used_of(pool, row)
            yield pool, used, kept
            kept += max(0, pool.local.get(row, 0) - used)
            pool = pool.parent

    def fits(
        self, queue: str, charges: Mapping[FlavorResource, int], *, borrows: bool = True
    ) -> bool:
        """Whether a ClusterQueue may use all of this more."""
        return not any(True for _ in self.short(queue, charges, borrows=borrows))

    def short(
        self, queue: str, charges: Mapping[FlavorResource, int], *, borrows: bool = True
    ) -> Iterator[tuple[FlavorResource, int]]:
        """Of what a ClusterQueue may not use this much more, and how much is left of it."""
        for row, need in charges.items():
            if need and need > (left := self.left(queue, row, borrows=borrows)):
                yield row, left

    def reach(self, queue: str, row: FlavorResource, need: int) -> QuotaNode:
        """The lowest pool whose own subtree has room for ``need`` more; the root when none has.

        The queue's own pool = nothing is borrowed; the higher the pool, the more of others' quota is used.
        """
        for pool, used, kept in self.climb(queue, row):
            if used + need - kept <= pool.subtree.get(row, 0):
                return pool
        return self.pools[queue].root

    def used_of(self, pool: QuotaNode, row: FlavorResource) -> int:
        """The use of a pool: the use that its members pass up, or that of a ClusterQueue itself."""
        used = self.used.get(pool)
        return used.get(row, 0) if used is not None else 0

    def beyond(self, pool: QuotaNode, row: FlavorResource) -> int:
        """The use of a pool beyond its own quota and the quota that its members lend; 0 or less = nothing."""
        return self.used_of(pool, row) - pool.subtree.get(row, 0)

    def over(self, pool: QuotaNode, rows: frozenset[FlavorResource]) -> bool:
        """Whether a pool uses more than its own quota of some row. Asked for many gangs, and kept until the use changes."""
        if self._over_at != self.changes:
            self._over, self._over_at = {}, self.changes
        key = (pool, rows)
        if key not in self._over:
            self._over[key] = any(self.beyond(pool, row) > 0 for row in rows)
        return self._over[key]

    def lends(self, pool: QuotaNode, row: FlavorResource) -> int:
        """The use that a pool passes up: the most that exits below it can lower the use of its parent."""
        return pool.passed_up(row, self.used_of(pool, row))


def cohort_pools(queues: QuotaTree) -> Mapping[str, QuotaNode]:
    """Cohort name to its pool, of the Cohorts above the ClusterQueues."""
    pools: dict[str, QuotaNode] = {}
    for queue in queues.values():
        pool = queue.parent
        while pool is not None and pool.name not in pools:
            pools[pool.name] = pool
            pool = pool.parent
    return pools


def use_of(pools: QuotaTree, rows: Mapping[QuotaRow, int]) -> QuotaUse:
    """The use that these amounts add up to."""
    use = QuotaUse(pools)
    for row, amount in rows.items():
        use.add(row, amount)
    return use


# ---- Dominant resource shares

_NONE_ADDED: Final[Mapping[FlavorResource, int]] = {}
_NOTHING: Final = Fraction(0)


@dataclass(frozen=True, slots=True)
class Share:
    """The borrowed part of a pool; ``a.rank < b.rank``: a borrows less, is earlier in order, and is evicted from last.

    Attributes:
        endless: the pool has weight 0 and borrows. Two of them compare by their ratios.
        ratio: borrowed by lendable of the dominant resource, divided by the weight unless the share is endless;
            1 = a pool of weight 1 borrows all there is.
        resource: the dominant one, of equal ones the first by name; empty when the ratio is 0.
        borrowed: flavors and resources that are borrowed. There can be some while the ratio is 0: those of which nothing is lent.
    """

    endless: bool = False
    ratio: Fraction = _NOTHING
    resource: str = ""
    borrowed: frozenset[FlavorResource] = frozenset()

    @property
    def rank(self) -> tuple[bool, Fraction]:
        """Sort key, smallest share first."""
        return self.endless, self.ratio

    @property
    def weighted(self) -> int | None:
        """In whole thousandths, rounded up, as Kueue's ``weightedShare`` shows it; None when endless."""
        return None if self.endless else ceil(1000 * self.ratio)

    def borrows_any(self, rows: Collection[FlavorResource]) -> bool:
        """Whether one of these flavors and resources is borrowed."""
        return bool(self.borrowed) and not self.borrowed.isdisjoint(rows)


NO_SHARE: Final = Share()


def share_of(
    pool: QuotaNode, use: QuotaUse, added: Mapping[FlavorResource, int] = _NONE_ADDED
) -> Share:
    """The share of a pool if it used so much more (or, below 0, less) than ``use``."""
    if pool.parent is None:
        return NO_SHARE
    used = use.used.get(pool, _NONE_ADDED)
    borrowed: dict[str, int] = {}
    rows: list[FlavorResource] = []
    for row, quota in pool.subtree.items():
        beyond = used.get(row, 0) + added.get(row, 0) - quota
        if beyond > 0:
            borrowed[row[1]] = borrowed.get(row[1], 0) + beyond
            rows.append(row)
    if not rows:
        return NO_SHARE
    resource, ratio = _dominant(pool.parent, borrowed)
    if pool.weight == 0:
        return Share(ratio > 0, ratio, resource, frozenset(rows))
    return Share(False, ratio * WEIGHT_UNIT / pool.weight, resource, frozenset(rows))


def _dominant(parent: QuotaNode, borrowed: Mapping[str, int]) -> tuple[str, Fraction]:
    """The resource of which the largest part is borrowed, and that part."""
    lendable = lendable_at(parent)
    best, name = _NOTHING, ""
    for resource in sorted(borrowed):
        most = lendable.get(resource, 0)
        if most > 0 and borrowed[resource] * best.denominator > best.numerator * most:
            best, name = Fraction(borrowed[resource], most), resource
    return name, best


def lendable_at(pool: QuotaNode) -> Mapping[str, int]:
    """Resource to what a pool could get hold of if nothing were used, over all flavors of its tree."""
    if pool.lendable is None:
        sums: dict[str, int] = {}
        for row in pool.root.subtree:
            sums[row[1]] = sums.get(row[1], 0) + pool.most(row)
        pool.lendable = sums
    return pool.lendable


def passed_up(
    pool: QuotaNode, use: QuotaUse, charges: Mapping[FlavorResource, int]
) -> Mapping[FlavorResource, int]:
    """By how much the use of a pool's parent changes when the pool uses so much more (or less)."""
    if not pool.local:
        return charges
    used = use.used.get(pool, _NONE_ADDED)
    return {
        row: pool.shifts_parent(row, used.get(row, 0), amount) for row, amount in charges.items()
    }
