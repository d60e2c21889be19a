"""Dominant resource share: how much of what its cohort can lend a ClusterQueue or Cohort takes, by weight.

Kueue's definition. A pool *borrows* of a flavor and resource what it uses beyond its subtree quota. Per resource, what it
borrows over all flavors is set against what its parent could get hold of if nothing were used; the largest of these ratios,
divided by the pool's weight, is its share. A pool that borrows nothing, or has no parent, has a share of 0; one of weight 0
that borrows has an endless one. Ratios are exact fractions, so that comparing them depends on nothing but the amounts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Final

from queuectl.domain.queues import WEIGHT_UNIT
from queuectl.planner.quota.tree import FlavorResource, QuotaNode, QuotaUse

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
