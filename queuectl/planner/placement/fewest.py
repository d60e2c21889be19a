"""Choosing sets of domains: the fewest that hold enough, the tightest of those, and the split that is best further down.

Amounts are pods, or whole slices where pods come in multiples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from queuectl.planner.problem.topology import Ints

_EXACT_WORK: Final = 6000  # items times domains for the exact choice of several domains
SPLIT_WORK: Final = 400_000  # amounts times steps for the exact split over domains
_PRICES: Final = 12  # compared for one bound
_NEVER: Final = 1 << 61

Steps: TypeAlias = tuple[Ints, Ints]
"""A staircase: the most a domain holds at each cost, both ascending, without the first step of nothing at no cost."""


def fewest_then_tightest(sizes: Ints, count: int) -> Ints:
    """Indexes of the fewest domains that hold ``count`` together, least left over among those; ascending.

    The number is exact always; the left-over up to ``_EXACT_WORK``, beyond it the last domain alone is the tightest.
    """
    by_size = (-sizes).argsort(kind="stable")
    sums = sizes[by_size].cumsum()
    k = int(sums.searchsorted(count)) + 1
    if int(sums[k - 1]) == count:
        return np.sort(by_size[:k])
    least = least_share(sizes, count)
    usable = by_size[sizes[by_size] >= least]
    if k * len(usable) <= _EXACT_WORK:
        return np.sort(_tightest(sizes, usable, k, count))
    last = [i for i in usable[k - 1 :] if sizes[i] >= least]
    return np.sort(np.array([*by_size[: k - 1], last[-1]], dtype=np.int64))


def fewest_of(sizes: Ints, count: int) -> int:
    """How few of some domains hold ``count`` together; one more than there are where all of them do not."""
    return int(np.sort(sizes)[::-1].cumsum().searchsorted(count)) + 1


def _tightest(sizes: Ints, usable: Ints, k: int, count: int) -> Ints:
    """Among all sets of exactly ``k`` domains with a sum of at least ``count``, one of least sum.

    ``reach[i][j]`` is a bit set: the sums of j of the first i domains.
    """
    values = [int(sizes[i]) for i in usable]
    reach: list[list[int]] = [[1] + [0] * k]
    for value in values:
        before = reach[-1]
        reach.append([1] + [before[j] | before[j - 1] << value for j in range(1, k + 1)])
    enough = reach[-1][k] >> count
    total = count + ((enough & -enough).bit_length() - 1)
    chosen: list[int] = []
    need = k
    for i in range(len(values), 0, -1):
        if need and not reach[i - 1][need] >> total & 1:
            chosen.append(int(usable[i - 1]))
            total -= values[i - 1]
            need -= 1
    return np.array(chosen, dtype=np.int64)


def most_even(sizes: Ints, count: int) -> tuple[Ints, Ints] | None:
    """Indexes of domains and their shares of ``count``, which differ by at most one; None when there is no way.

    Over the fewest domains for which it is possible, each as tight as can be.
    """
    by_size = np.argsort(sizes, kind="stable")
    ordered = sizes[by_size]
    for k in range(1, int(np.count_nonzero(sizes)) + 1):
        low, larger = divmod(count, k)
        if low == 0:
            return None
        first, above = (int(i) for i in np.searchsorted(ordered, [low, low + 1]))
        if len(sizes) - first < k or len(sizes) - above < larger:
            continue
        high = by_size[above : above + larger]
        rest = by_size[first:]
        chosen = np.concatenate([high, rest[~np.isin(rest, high)][: k - larger]])
        shares = np.full(k, low, dtype=np.int64)
        shares[:larger] += 1
        order = np.argsort(chosen)
        return chosen[order], shares[order]
    return None


def needed(sizes: Ints, owner: Ints, owners: int, count: int | Ints) -> Ints:
    """How few of its own domains each owner needs to hold ``count``; one too many where all of them do not.

    Args:
        sizes: of the domains.
        owner: of each of them, ascending.
        owners: how many there are.
        count: one for all owners, or one of each.
    """
    block = owner * (sizes.max(initial=0) + 1)
    running = (block - np.sort(block - sizes)).cumsum()  # each owner's own, the largest first
    first = owner.searchsorted(np.arange(owners))
    before = np.concatenate([[0], running])[first]
    wanted = before + count
    short = owner[running < wanted[owner]]
    return np.bincount(short, minlength=owners) + 1


def fewest_inside(sizes: Ints, starts: Ints, k: int, count: int) -> tuple[int, Ints]:
    """A lower bound of the items that hold ``count`` when they are of exactly ``k`` groups, and the groups that suggests.

    For any price p of an item, what groups hold is at most p times the items taken plus, per group, what its items hold
    above p each; so the k groups richest at that price bound them all (Lagrangian duality; tight but for whole numbers).

    Args:
        sizes: of the items, group after group.
        starts: where each group begins.
        k: groups to take.
        count: to be held.
    """
    prices = np.unique(sizes[sizes > 0])
    if len(prices) > _PRICES:
        prices = prices[np.linspace(0, len(prices) - 1, _PRICES).astype(np.int64)]
    above = np.maximum(sizes - prices[:, None], 0)
    rich = np.add.reduceat(above, starts, axis=1)
    richest = np.sort(rich, axis=1)[:, -k:].sum(axis=1)
    bounds = -(-(count - richest) // prices)
    at = int(bounds.argmax())
    return int(bounds[at]), np.sort((-rich[at]).argsort(kind="stable")[:k])


@dataclass(frozen=True, eq=False, slots=True)
class Split:
    """The cheapest way to hold an amount in several domains, for costs that add up.

    ``cheapest[n]`` is the least cost of holding at least n; ``taken[i][n]`` what the i-th domain holds then.
    """

    cheapest: Ints
    taken: tuple[Ints, ...]

    def shares(self, count: int) -> list[int] | None:
        """What each domain holds, together at least ``count``; None when no way was found."""
        if self.cheapest[count] >= _NEVER:
            return None
        shares = []
        for taken in reversed(self.taken):
            shares.append(int(taken[count]))
            count = max(0, count - shares[-1])
        return shares[::-1]

    def steps(self, grain: int) -> Steps:
        """As the staircase of one domain whose amounts come in multiples of ``grain``."""
        amounts = np.arange(grain, len(self.cheapest), grain)
        costs = self.cheapest[amounts]
        held = costs < _NEVER
        return stairs(amounts[held], costs[held])


def stairs(amounts: Ints, costs: Ints) -> Steps:
    """Keep the largest amount of each cost; costs ascend with the amounts."""
    last = np.append(costs[1:] != costs[:-1], True) if len(costs) else np.zeros(0, dtype=np.bool_)
    return amounts[last], costs[last]


def split(domains: Sequence[Steps], count: int, work: int = SPLIT_WORK) -> Split:
    """Hold up to ``count`` in these domains at least cost; exact unless it takes more than ``work``.

    Beyond it only those are looked at that hold the most at the middle of their stairs.
    """
    looked_at = _affordable(domains, work // (count + 1))
    cheapest = np.full(count + 1, _NEVER, dtype=np.int64)
    cheapest[0] = 0
    wanted = np.arange(count + 1)[:, None]
    nothing = np.zeros(count + 1, dtype=np.int64)
    taken = []
    for number, steps in enumerate(domains):
        if number not in looked_at:
            taken.append(nothing)
            continue
        amounts, costs = (np.append(0, row) for row in steps)
        price = cheapest[np.maximum(wanted - amounts, 0)] + costs
        best = np.argmin(price, axis=1)
        cheapest = np.minimum(price[wanted[:, 0], best], _NEVER)
        taken.append(amounts[best])
    return Split(cheapest, tuple(taken))


def _affordable(domains: Sequence[Steps], most: int) -> set[int]:
    """Domains with no more than so many steps together."""
    if sum(len(amounts) for amounts, _ in domains) <= most:
        return set(range(len(domains)))
    longest = max(len(amounts) for amounts, _ in domains)
    middle = [int(a[min(longest // 2, len(a) - 1)]) if len(a) else 0 for a, _ in domains]
    chosen: set[int] = set()
    for number in sorted(range(len(domains)), key=lambda d: (-middle[d], d)):
        most -= len(domains[number][0])
        if most < 0:
            break
        chosen.add(number)
    return chosen


def least_share(sizes: Ints, count: int) -> int:
    """The least that each of the fewest domains which hold ``count`` together must hold."""
    sums = np.sort(sizes)[::-1].cumsum()
    k = int(sums.searchsorted(count)) + 1
    return count - int(sums[k - 2]) if k > 1 else count
