"""The model of who leaves: one 0-1 variable per candidate, what leaving costs, and the quota it frees.

What room the victims make is added by :mod:`queuectl.planner.preempt.room` (one shape of pod) or :mod:`queuectl.planner.preempt.cells` (several).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from queuectl.planner.preempt.goal import Goal
from queuectl.planner.preempt.roster import Bench
from queuectl.planner.solver.solver import Model


@dataclass(eq=False)
class VictimModel:
    """A model under construction: candidates as variables, the objective with its cut, the hint.

    Attributes:
        gangs: candidate numbers, in the order of their variables.
        hinted: victims of the known set the hint stands for, None without one.
        hints: a value for every variable.
    """

    bench: Bench
    gangs: Sequence[int]
    hinted: frozenset[int] | None = None
    model: Model = field(default_factory=Model)
    hints: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.of = {gang: self.var(0, 1, int(self._hints(gang))) for gang in self.gangs}

    def _hints(self, gang: int) -> bool:
        return self.hinted is not None and gang in self.hinted

    def var(self, low: int, high: int, hint: int = 0) -> int:
        self.hints.append(hint)
        return self.model.var(low, high)

    def any_of(self, gangs: Sequence[int]) -> int:
        """A variable that is 1 if any of these candidates leaves."""
        if len(gangs) == 1:
            return self.of[gangs[0]]
        leaves = self.var(0, 1, max(self.hints[self.of[g]] for g in gangs))
        for g in gangs:
            self.model.at_most([self.of[g], leaves], [1, -1], 0)
        return leaves

    def free_quota(self, deficits: Iterable[tuple[int, np.ndarray]]) -> None:
        """At least the missing quota must come free."""
        for amount, frees in deficits:
            able = [g for g in self.gangs if frees[g] > 0]
            coeffs = [int(frees[g]) for g in able]
            self.model.row([self.of[g] for g in able], coeffs, amount, sum(coeffs))

    def aim(self, goal: Goal, most: int | None, earlier: Iterable[tuple[Goal, int]]) -> None:
        """Minimise ``goal``, at most ``most``; keep what earlier goals reached."""
        ranked = goal.rank_weight or any(g.rank_weight for g, _ in earlier)
        highest = self._highest() if ranked else -1
        variables, coeffs = self._terms(goal, highest)
        self.model.minimize(variables, coeffs)
        if most is not None:
            self.model.row(variables, coeffs, 0, most)
        for before, value in earlier:
            variables, coeffs = self._terms(before, highest)
            self.model.row(variables, coeffs, 0, value)

    def _terms(self, goal: Goal, highest: int) -> tuple[list[int], list[int]]:
        variables = [self.of[g] for g in self.gangs]
        coeffs = [int(goal.weight[g]) for g in self.gangs]
        if goal.rank_weight:
            variables.append(highest)
            coeffs.append(goal.rank_weight)
        return variables, coeffs

    def _highest(self) -> int:
        """A variable no lower than the rank of any victim."""
        rank = self.bench.rank
        known = max((int(rank[g]) for g in self.hinted or ()), default=0)
        highest = self.var(0, int(rank.max(initial=0)), known)
        for g in self.gangs:
            self.model.at_most([self.of[g], highest], [int(rank[g]), -1], 0)
        return highest

    def finish(self) -> Model:
        if self.hinted is not None:
            self.model.hint = self.hints
        return self.model

    def victims(self, values: Sequence[int]) -> frozenset[int]:
        return frozenset(g for g, v in self.of.items() if values[v])
