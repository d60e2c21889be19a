"""The exact model of one target domain and one shape of pod: which gangs leave so that enough pods fit.

One 0-1 variable per candidate. Nodes alike in tenants and free amounts are one *cell*; a cell whose nodes have a single
tenant gains all or nothing with it, any other has a variable for the pods each of its nodes gains.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from queuectl.planner.preempt_goal import Goal
from queuectl.planner.preempt_ground import Ground
from queuectl.planner.preempt_roster import Bench
from queuectl.planner.solve import Model


@dataclass(eq=False)
class VictimModel:
    """A model under construction: candidates as variables, the objective with its cut, the hint.

    Attributes:
        gangs: candidate numbers, in the order of their variables.
        hinted: victims of the known set the hint stands for, None without one.
    """

    bench: Bench
    gangs: Sequence[int]
    hinted: frozenset[int] | None = None
    model: Model = field(default_factory=Model)
    _hint: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.of = {gang: self.var(0, 1, int(self._hints(gang))) for gang in self.gangs}

    def _hints(self, gang: int) -> bool:
        return self.hinted is not None and gang in self.hinted

    def var(self, low: int, high: int, hint: int = 0) -> int:
        self._hint.append(hint)
        return self.model.var(low, high)

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
            self.model.hint = self._hint
        return self.model

    def victims(self, values: Sequence[int]) -> frozenset[int]:
        return frozenset(g for g, v in self.of.items() if values[v])


def model_ground(building: VictimModel, ground: Ground, nodes: Iterable[int]) -> None:
    """Rows by which the victims make room for the ground's need on some of its nodes."""
    if ground.need <= 0:
        return
    cover: dict[int, int] = {}
    for node, alike in _cells(ground, nodes):
        tenants = ground.tenants[node]
        if len(tenants) == 1:
            (gang,) = tenants
            gained = building.of[gang]
            cover[gained] = cover.get(gained, 0) + alike * ground.delta[node]
        else:
            cover[_gain_variable(building, ground, node)] = alike
    coeffs = list(cover.values())
    reach = sum(c * building.model.bounds[v][1] for v, c in cover.items())
    building.model.row(list(cover), coeffs, ground.need, reach)


def _cells(ground: Ground, nodes: Iterable[int]) -> Iterable[tuple[int, int]]:
    """One node of each class of nodes alike, and how many there are."""
    cells: dict[object, list[int]] = {}
    for node in nodes:
        there = tuple(sorted(ground.tenants[node].items()))
        cells.setdefault((ground.left[node], ground.delta[node], there), []).append(node)
    return ((alike[0], len(alike)) for alike in cells.values())


def _gain_variable(building: VictimModel, ground: Ground, node: int) -> int:
    """Pods one node gains, bounded by who leaves it.

    Beside the capacity rows, each tenant without whom less would be gained bounds the gain by himself: that is what
    makes the relaxation tight. Where these rows say it all, the capacity rows are left out.
    """
    model = building.model
    tenants, delta, left = ground.tenants[node], ground.delta[node], ground.left[node]
    hinted = ground.gain(node, building.hinted or ())
    gain = building.var(0, delta, hinted)
    needed = []
    plain = True
    for gang, without in ground.without(node).items():
        if without < delta:
            needed.append(gang)
            plain &= without == 0
            model.row([gain, building.of[gang]], [1, without - delta], -delta, without)
    if plain and ground.gain(node, needed) == delta:
        return gain
    opened = -1
    if min(left) < 0:
        opened = building.var(0, 1, int(hinted > 0))
        model.row([gain, opened], [1, -delta], -delta, 0)
    for column, have in enumerate(left):
        variables = [gain, *(building.of[g] for g in tenants)]
        coeffs = [ground.ask[column], *(-held[column] for held in tenants.values())]
        if have < 0:
            variables.append(opened)
            coeffs.append(-have)
        model.at_most(variables, coeffs, max(have, 0))
    return gain
