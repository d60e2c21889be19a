"""Least victims for a gang of several shapes, or of parts in domains of their own.

One part in one domain goes domain by domain, like a single shape; parts in different domains are one model in which each
chooses its domain. The model is solved over *cells* (nodes alike) first, a relaxation: if the gang is found to fit after
its victims, they are the optimum. If not, the cells are split into nodes, where the rows are exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from queuectl.planner.capacity.node_counts import NodeCounts
from queuectl.planner.preempt.cells import MixedModel, useful_nodes
from queuectl.planner.preempt.dual import Shares
from queuectl.planner.preempt.goal import Goal
from queuectl.planner.preempt.mixed_floors import WHOLE, Floors, Key
from queuectl.planner.preempt.model import VictimModel
from queuectl.planner.preempt.parts import Part
from queuectl.planner.preempt.price import floor_of
from queuectl.planner.preempt.roster import Bench
from queuectl.planner.preempt.scene import (
    Floats,
    Offers,
    Scene,
    floors,
)
from queuectl.planner.preempt.search import (
    Found,
    Search,
    greedy_in,
    outsiders,
    solve_legally,
)
from queuectl.planner.preempt.stage import Stage, stage_of
from queuectl.planner.preempt.terms import Terms
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.problem.topology import Ints
from queuectl.planner.solver.solver import Solver, Status

_GREEDY_SCOPES: Final = 2


@dataclass(eq=False)
class MixedSearch:
    """One demand, one set of candidates, goal after goal."""

    request: GangRequest
    parts: tuple[Part, ...]
    free: Ints
    bench: Bench
    terms: Terms
    solver: Solver
    budget: int
    found: Found = field(default_factory=Found)
    _stages: dict[int, Stage] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.floors = Floors(self.parts, self.free, self.bench, self.terms)

    def run(self, goals: Sequence[Goal]) -> Found:
        """Minimise the goals one after the other."""
        earlier: list[tuple[Goal, int]] = []
        for goal in goals:
            self.floors.renew()
            scopes = self.floors.scopes(goal)
            if not earlier:
                for floor, scope in scopes[:_GREEDY_SCOPES]:
                    least = max(floor, self.floors.by_node(scope, goal))
                    if not self._beaten(least, goal):
                        self._try_greedy(scope, goal)
            for floor, scope in scopes:
                if self._beaten(floor, goal):
                    break
                if self._beaten(self.floors.by_node(scope, goal), goal):
                    continue
                if not earlier and self._settled_by_one(scope, goal):
                    continue
                shares = self.floors.shared(scope, goal, self._best(goal))
                if not any(self._beaten(part.floor, goal) for part in shares.values()):
                    self._solve(scope, goal, earlier, shares)
            if self.found.victims is None:
                break
            earlier.append((goal, self._value(goal, self.found.victims)))
        return self.found

    def _beaten(self, floor: float, goal: Goal) -> bool:
        """Whether nothing above this floor can be better than the best set known."""
        best = self._best(goal)
        return best is not None and floor >= best

    def _best(self, goal: Goal) -> int | None:
        """What the best set known costs; None = none is known."""
        return None if self.found.victims is None else self._value(goal, self.found.victims)

    def _value(self, goal: Goal, victims: frozenset[int]) -> int:
        return goal.value(self.bench.mask(victims), self.bench.rank)

    def _settled_by_one(self, scope: int, goal: Goal) -> bool:
        """Whether the least victims of its dearest shape alone settle a scope: they make room for all, or cost too much."""
        known = [
            (floor_of(*self.floors.priced(number, shape, max(scope, 0), goal)) or 0, number, shape)
            for number, shape in self.floors.scenes
            if not shape.slices and self.floors.settled(number)
        ]
        if not known:
            return False
        _, number, shape = max(known, key=lambda each: each[0])
        domain = max(scope, 0)
        ground, listed = self.floors.priced(number, shape, domain, goal)
        alone = Search(
            self.floors.scenes[number, shape],
            self.bench,
            self.terms,
            self.solver,
            self.budget,
            grounds={domain: ground},
            prices={domain: listed},
        )
        found = alone.least_in(domain, goal, self.floors.offers[number, shape])
        if found.victims is None or not found.proved:
            return False
        if self._beaten(self._value(goal, found.victims), goal):
            return True
        node_counts = self._place(found.victims, scope)
        if node_counts is None:
            return False
        self._offer(found.victims, scope, goal, node_counts)
        return True

    # Upper bounds.

    def _try_greedy(self, scope: int, goal: Goal) -> None:
        """The shortest prefix of an order of eviction after which the gang is found to fit, pruned."""
        seeds = self._seeds(scope, goal)
        dense = self._by_density(scope, goal.weight)
        order = self._allowed([*seeds, *(g for g in dense if g not in seeds)])
        allowed = set(order)
        seeds = {gang: None for gang in seeds if gang in allowed}
        low, high = 0, len(order)
        if not self._enough(frozenset(order), scope):
            return
        if self._enough(frozenset(seeds), scope):
            high = len(seeds)
        while low < high:
            middle = (low + high) // 2
            if self._enough(frozenset(order[:middle]), scope):
                high = middle
            else:
                low = middle + 1
        self._offer(self._pruned(frozenset(order[:high]), scope, goal), scope, goal)

    def _allowed(self, order: list[int]) -> list[int]:
        """Of gangs that would leave one after the other, those who may leave together with the ones before."""
        leaving = self.terms.leaving()
        if leaving is None:
            return order
        allowed = []
        for gang in order:
            if leaving.allows(gang):
                leaving.add(gang)
                allowed.append(gang)
        return allowed

    def _seeds(self, scope: int, goal: Goal) -> dict[int, None]:
        """What each shape by itself would evict in its domain, or in the one of least floor: together often enough."""
        seeds: dict[int, None] = {}
        for (number, shape), scene in self.floors.scenes.items():
            offer = self.floors.offers[number, shape]
            domain = scope
            if not self.floors.by_domain:
                domain = int(np.argmin(floors(scene, offer, goal.weight)))
            ground, listed = self.floors.priced(number, shape, domain, goal)
            found = greedy_in(ground, listed, offer.at(domain), goal.weight)
            seeds.update(dict.fromkeys(sorted(found or ())))
        return seeds

    def _by_density(self, scope: int, weight: Ints) -> list[int]:
        share = np.zeros(self.bench.size)
        for key, offer in self.floors.offers.items():
            _add_shares(share, self.floors.scenes[key], offer, scope)
        for amount, frees in self.terms.deficits:
            share += np.minimum(frees / amount, 1.0)
        useful = np.flatnonzero(share > 0)
        ranked: list[int] = useful[
            np.argsort(weight[useful] / share[useful], kind="stable")
        ].tolist()
        return ranked

    def _pruned(self, victims: frozenset[int], scope: int, goal: Goal) -> frozenset[int]:
        """Without those who turn out not to be needed, dearest first: many at once, then ever fewer, at last one by one."""
        order = sorted(victims, key=lambda g: (-int(goal.weight[g]), g))
        chunk = max(1, len(order) // 2)
        while True:
            for at in range(0, len(order), chunk):
                fewer = victims - frozenset(order[at : at + chunk])
                if len(fewer) < len(victims) and self._enough(fewer, scope):
                    victims = fewer
            if chunk == 1:
                return victims
            chunk //= 2
            order = [g for g in order if g in victims]

    def _enough(self, victims: frozenset[int], scope: int) -> bool:
        """Whether the gang is found to fit after these victims, and they may leave together and free the quota it lacks."""
        return self.terms.admit(victims) and self._stage(scope).fits(self.bench.mask(victims))

    def _place(self, victims: frozenset[int], scope: int) -> NodeCounts | None:
        """Spots found then."""
        if not self.terms.admit(victims):
            return None
        return self._stage(scope).place(self.bench.mask(victims))

    def _stage(self, scope: int) -> Stage:
        if scope not in self._stages:
            useful = useful_nodes(self.floors.scenes.values(), self.parts, scope)
            self._stages[scope] = stage_of(self.request, self.free, self.bench, useful)
        return self._stages[scope]

    def _offer(
        self, victims: frozenset[int], scope: int, goal: Goal, node_counts: NodeCounts | None = None
    ) -> None:
        best = self.found.victims
        if best is None or self._value(goal, victims) < self._value(goal, best):
            self.found.victims, self.found.domain = victims, scope
            self.found.node_counts = (
                node_counts if node_counts is not None else self._place(victims, scope)
            )

    # The exact answer.

    def _solve(
        self,
        scope: int,
        goal: Goal,
        earlier: list[tuple[Goal, int]],
        shares: Mapping[Key, Shares],
    ) -> None:
        """Cells first; nodes when the victims the cells suggest turn out not to make room."""
        best = self._best(goal)
        scenes = self.floors.scenes
        if best is not None:
            scenes = self.floors.narrowed(scope, goal, best, shares)
        for by_node in (False, True):
            building, mixed = self._model(scope, goal, earlier, scenes, by_node=by_node)
            outcome = solve_legally(building, self.terms, self.solver, self.budget)
            if outcome.status is Status.REFUTED:
                return
            if outcome.status is not Status.FOUND:
                break
            victims = building.victims(outcome.values)
            node_counts = self._place(victims, scope)
            if node_counts is None and mixed.exact:
                node_counts = mixed.node_counts(outcome.values, self.request)
            if node_counts is not None:
                self.found.proved &= outcome.optimal
                kept = victims if outcome.optimal else self._pruned(victims, scope, goal)
                self._offer(kept, scope, goal, node_counts if kept == victims else None)
                return
        self.found.proved = False

    def _model(
        self,
        scope: int,
        goal: Goal,
        earlier: list[tuple[Goal, int]],
        scenes: Mapping[Key, Scene],
        *,
        by_node: bool,
    ) -> tuple[VictimModel, MixedModel]:
        best = self.found.victims
        useful = useful_nodes(scenes.values(), self.parts, scope)
        here = set(self.bench.rows.gang[useful[self.bench.rows.node]].tolist())
        others = outsiders(here, self.terms, self.bench, goal, keep_all=bool(earlier))
        building = VictimModel(self.bench, sorted({*here, *others}))
        mixed = MixedModel(building, self.parts, scenes, self.free, scope, by_node=by_node)
        self.terms.constrain(building)
        cut = None if best is None else self._value(goal, best) - (not earlier)
        building.aim(goal, cut, earlier)
        return building, mixed


def _add_shares(share: Floats, scene: Scene, offer: Offers, scope: int) -> None:
    """Add what part of the need each gang could fill, in the scope's domain or in its best one."""
    part = np.minimum(offer.gain / np.maximum(scene.need, 1)[offer.domain], 1.0)
    here = offer.domain == scope if scope != WHOLE else offer.domain >= 0
    np.maximum.at(share, offer.gang[here], part[here])
