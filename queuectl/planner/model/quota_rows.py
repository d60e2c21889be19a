"""Quota as rows of a model: what ClusterQueues use as sums of variables, and what that makes of the pools above them.

With u(X) what a pool uses, of one flavor and resource, and over(X) what it passes up,

    over(X) >= u(X) - local(X),   0 <= over(X) <= subtree(X) - local(X) + borrowing(X),   u(root) <= subtree(root)

for the pools from the ClusterQueues whose use varies to their roots; what the rest of a tree uses is a constant. A pool that
was over its limit before may stay so, but nothing may be added to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from queuectl.planner.quota.tree import FlavorResource, Pool, QuotaUse
from queuectl.planner.solver.solver import Model

_Terms: TypeAlias = dict[int, int]  # variable to coefficient


@dataclass(eq=False, slots=True)
class QuotaRows:
    """The quota rows of one model whose starts are counted by variables.

    Attributes:
        model: that they are added to; its hint grows with its variables.
        use: with all of these gangs.
        hint: of every variable of the model.
        before: of every variable that counts here, its value if no gang started.
    """

    model: Model
    use: QuotaUse
    hint: list[int]
    before: dict[int, int] = field(default_factory=dict)
    _started: dict[FlavorResource, dict[Pool, _Terms]] = field(default_factory=dict)

    def start(self, queue: str, charges: Mapping[FlavorResource, int], gangs: int) -> None:
        """So many gangs of a ClusterQueue, charged the same; all of them start."""
        number = self._var(gangs, gangs, gangs, before=0)
        pool = self.use.pools[queue]
        for row, amount in charges.items():
            if amount:
                self._started.setdefault(row, {}).setdefault(pool, {})[number] = amount

    def add(self) -> None:
        """Add the rows of all pools on the way to the roots, members first."""
        for row, touched in self._started.items():
            waiting = dict(touched)
            while waiting:
                pool = min(waiting, key=lambda p: (p.height, p.name))
                over = self._passes(pool, row, waiting.pop(pool))
                if pool.parent is not None:
                    waiting.setdefault(pool.parent, {})[over] = 1

    def _passes(self, pool: Pool, row: FlavorResource, terms: _Terms) -> int:
        """What a pool passes up, as a variable; at the top, nothing may be."""
        used = self.use.used_of(pool, row)
        others = used - sum(c * self.hint[v] for v, c in terms.items())
        brought = sum(c * self.before[v] for v, c in terms.items())
        subtree, local = pool.subtree.get(row, 0), pool.local.get(row, 0)
        if pool.parent is None:
            most = max(subtree - others, brought)
            self.model.at_most(list(terms), list(terms.values()), most)
            return -1
        now, before = pool.passed_up(row, used), pool.passed_up(row, others + brought)
        limit = pool.borrowing.get(row)
        most = now if limit is None else max(before, min(now, subtree - local + limit))
        over = self._var(0, most, now, before)
        self.model.at_most([*terms, over], [*terms.values(), -1], local - others)
        return over

    def _var(self, low: int, high: int, hint: int, before: int) -> int:
        number = self.model.var(low, high)
        self.hint.append(hint)
        self.before[number] = before
        return number
