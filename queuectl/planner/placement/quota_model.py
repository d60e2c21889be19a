"""The quota of everybody who starts, as rows of a model: for gangs that take no nodes, all there is to confirm.

A variable for each ClusterQueue and charge says how many gangs start on it; all of them must. With u(X) what a pool uses then,
of one flavor and resource, and over(X) what it passes up,

    over(X) >= u(X) - local(X),   0 <= over(X) <= subtree(X) - local(X) + borrowing(X),   u(root) <= subtree(root)

for the pools on the way from those queues to their roots; what the rest of the tree uses is a constant. A pool that was over
its limit before anybody starts may stay so, but no start may add to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from queuectl.planner.capacity.state import State
from queuectl.planner.quota.tree import FlavorResource, Pool
from queuectl.planner.solver.solver import Model, Outcome, Solver

_Terms: TypeAlias = dict[int, int]  # variable to coefficient


def confirm_quota(state: State, solver: Solver) -> Outcome:
    """Whether CP-SAT holds a solution with the quota of every kept gang, beside all that is used now."""
    charged = Counter(
        (kept.request.queue, tuple(sorted(kept.request.charges.items())))
        for kept in state.kept
        if kept.request.queue is not None
    )
    building = _Building(state)
    for (queue, charges), gangs in sorted(charged.items()):
        building.start(queue, dict(charges), gangs)
    building.bound()
    building.model.hint = building.hint
    return solver.solve(building.model)


@dataclass(eq=False, slots=True)
class _Building:
    state: State
    model: Model = field(default_factory=Model)
    hint: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)  # each variable if nobody started
    _started: dict[FlavorResource, dict[Pool, _Terms]] = field(default_factory=dict)

    def start(self, queue: str, charges: Mapping[FlavorResource, int], gangs: int) -> None:
        """So many gangs of a ClusterQueue, charged the same."""
        number = self._var(gangs, gangs, gangs, before=0)
        pool = self.state.now.quota.pools[queue]
        for row, amount in charges.items():
            if amount:
                self._started.setdefault(row, {}).setdefault(pool, {})[number] = amount

    def bound(self) -> None:
        """The rows of all pools on the way to the roots, members first."""
        for row, touched in self._started.items():
            waiting = dict(touched)
            while waiting:
                pool = min(waiting, key=lambda p: (p.height, p.name))
                over = self._passes(pool, row, waiting.pop(pool))
                if pool.parent is not None:
                    waiting.setdefault(pool.parent, {})[over] = 1

    def _passes(self, pool: Pool, row: FlavorResource, terms: _Terms) -> int:
        """What a pool passes up, as a variable; at the top, nothing may be."""
        used = self.state.now.quota.used.get(pool, {}).get(row, 0)
        others = used - sum(c * self.hint[v] for v, c in terms.items())
        subtree, local = pool.subtree.get(row, 0), pool.local.get(row, 0)
        brought = sum(c * self.before[v] for v, c in terms.items())
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
        self.hint.append(hint)
        self.before.append(before)
        return self.model.var(low, high)
