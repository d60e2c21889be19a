"""Least victims for a gang of several shapes, or of parts in domains of their own.

One part in one domain goes domain by domain, like a single shape; parts in different domains are one model in which each
chooses its domain. The model is solved over *cells* (nodes alike) first, a relaxation: if the gang is found to fit after
its victims, they are the optimum. If not, the cells are split into nodes, where the rows are exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from queuectl.planner.demand import ANYWHERE, Demand, Shape
from queuectl.planner.ledger import Spots
from queuectl.planner.solve import Solver, Status
from queuectl.planner.topology import Ints
from queuectl.planner.victims.cells import MixedModel, useful_nodes
from queuectl.planner.victims.dual import Shares, places_of, share_out
from queuectl.planner.victims.goal import Goal
from queuectl.planner.victims.ground import Ground, ground_of
from queuectl.planner.victims.model import VictimModel
from queuectl.planner.victims.parts import Part
from queuectl.planner.victims.price import Price, floor_of, prices
from queuectl.planner.victims.roster import Bench
from queuectl.planner.victims.scene import (
    Floats,
    Offers,
    Scene,
    floors,
    offers,
    scene_of,
)
from queuectl.planner.victims.search import (
    Found,
    Search,
    greedy_in,
    outsiders,
    quota_floor,
    solve_legally,
)
from queuectl.planner.victims.stage import Stage, stage_of
from queuectl.planner.victims.terms import Terms

_GREEDY_SCOPES: Final = 2
_WHOLE: Final = -1


@dataclass(eq=False)
class MixedSearch:
    """One demand, one set of candidates, goal after goal."""

    demand: Demand
    parts: tuple[Part, ...]
    free: Ints
    bench: Bench
    terms: Terms
    solver: Solver
    budget: int
    found: Found = field(default_factory=Found)
    _grounds: dict[tuple[int, Shape, int], Ground] = field(default_factory=dict)
    _prices: dict[tuple[int, Shape, int], list[Price]] = field(default_factory=dict)
    _stages: dict[int, Stage] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.scenes = {
            (number, shape): scene_of(part, shape, self.free, self.bench)
            for number, part in enumerate(self.parts)
            for shape, _ in part.counts
        }
        self.offers = {key: offers(scene, self.bench) for key, scene in self.scenes.items()}
        self.by_domain = len(self.parts) == 1 and self.parts[0].level != ANYWHERE

    def run(self, goals: Sequence[Goal]) -> Found:
        """Minimise the goals one after the other."""
        earlier: list[tuple[Goal, int]] = []
        for goal in goals:
            self._prices.clear()
            scopes = self._scopes(goal)
            if not earlier:
                for floor, scope in scopes[:_GREEDY_SCOPES]:
                    least = max(floor, self._floor_by_node(scope, goal))
                    if not self._beaten(least, goal):
                        self._try_greedy(scope, goal)
            for floor, scope in scopes:
                if self._beaten(floor, goal):
                    break
                if self._beaten(self._floor_by_node(scope, goal), goal):
                    continue
                if not earlier and self._settled_by_one(scope, goal):
                    continue
                shares = self._shared(scope, goal)
                if not any(self._beaten(part.floor, goal) for part in shares.values()):
                    self._solve(scope, goal, earlier, shares)
            if self.found.victims is None:
                break
            earlier.append((goal, self._value(goal, self.found.victims)))
        return self.found

    def _beaten(self, floor: float, goal: Goal) -> bool:
        """Whether nothing above this floor can be better than the best set known."""
        best = self.found.victims
        return best is not None and floor >= self._value(goal, best)

    def _value(self, goal: Goal, victims: frozenset[int]) -> int:
        return goal.value(self.bench.mask(victims), self.bench.rank)

    # Where the gang could go, and the least each place must cost.

    def _scopes(self, goal: Goal) -> list[tuple[float, int]]:
        floor = quota_floor(self.terms.deficits, goal.weight)
        per_part = [self._floor_of(number, goal) for number in range(len(self.parts))]
        if self.by_domain:
            (row,) = per_part
            scopes = [(max(floor, float(f)), d) for d, f in enumerate(row) if np.isfinite(f)]
            return sorted(scopes)
        least = max(float(row.min(initial=np.inf)) for row in per_part)
        return [(max(floor, least), _WHOLE)] if np.isfinite(least) else []

    def _floor_of(self, number: int, goal: Goal) -> Floats:
        """Per domain, the dearest floor of the part's shapes."""
        rows = [
            floors(self.scenes[number, shape], self.offers[number, shape], goal.weight)
            for shape, _ in self.parts[number].counts
        ]
        dearest: Floats = np.max(np.stack(rows), axis=0)
        return dearest

    def _floor_by_node(self, scope: int, goal: Goal) -> float:
        """The dearest node-by-node floor of a shape whose domain is known."""
        dearest = 0.0
        for number, shape in self.scenes:
            if self.by_domain or self.parts[number].level == ANYWHERE:
                least = floor_of(*self._priced(number, shape, max(scope, 0), goal))
                dearest = max(dearest, np.inf if least is None else least)
        return dearest

    def _settled_by_one(self, scope: int, goal: Goal) -> bool:
        """Whether the least victims of its dearest shape alone settle a scope: they make room for all, or cost too much."""
        known = [
            (floor_of(*self._priced(number, shape, max(scope, 0), goal)) or 0, number, shape)
            for number, shape in self.scenes
            if not shape.slices and (self.by_domain or self.parts[number].level == ANYWHERE)
        ]
        if not known:
            return False
        _, number, shape = max(known, key=lambda each: each[0])
        domain = max(scope, 0)
        ground, listed = self._priced(number, shape, domain, goal)
        alone = Search(
            self.scenes[number, shape],
            self.bench,
            self.terms,
            self.solver,
            self.budget,
            grounds={domain: ground},
            prices={domain: listed},
        )
        found = alone.least_in(domain, goal, self.offers[number, shape])
        if found.victims is None or not found.proved:
            return False
        if self._beaten(self._value(goal, found.victims), goal):
            return True
        spots = self._place(found.victims, scope)
        if spots is None:
            return False
        self._offer(found.victims, scope, goal, spots)
        return True

    def _shared(self, scope: int, goal: Goal) -> dict[tuple[int, Shape], Shares]:
        """The weights shared out over what could be gained, for each shape whose domain is known."""
        found: dict[tuple[int, Shape], Shares] = {}
        best = self.found.victims
        known = self._value(goal, best) if best is not None else int(goal.weight.sum()) + 1
        for number, shape in self.scenes:
            if self.by_domain or self.parts[number].level == ANYWHERE:
                ground, _ = self._priced(number, shape, max(scope, 0), goal)
                places = places_of(ground) if ground.need else None
                shares = share_out(places, ground.need, goal.weight, known) if places else None
                if shares is not None:
                    found[number, shape] = shares
        return found

    def _narrowed(
        self, scope: int, goal: Goal, shares: Mapping[tuple[int, Shape], Shares]
    ) -> dict[tuple[int, Shape], Scene]:
        """The scenes without gains that only dearer victims than the best known have a use for."""
        scenes, best = dict(self.scenes), self.found.victims
        for key, shared in shares.items() if best is not None else ():
            ground, _ = self._priced(*key, max(scope, 0), goal)
            dear = ~shared.worth(self._value(goal, best or frozenset()))
            delta = scenes[key].delta.copy()
            nodes = np.array(ground.nodes, dtype=np.int64)[shared.places.node[dear]]
            np.minimum.at(delta, nodes, shared.places.pods[dear] - 1)
            scenes[key] = replace(scenes[key], delta=delta)
        return scenes

    def _priced(
        self, number: int, shape: Shape, domain: int, goal: Goal
    ) -> tuple[Ground, list[Price]]:
        """One domain of one shape of a part, and what its nodes cost to clear."""
        key = (number, shape, domain)
        if key not in self._grounds:
            self._grounds[key] = ground_of(self.scenes[number, shape], domain, self.terms)
        if key not in self._prices:
            self._prices[key] = prices(self._grounds[key], goal.weight)
        return self._grounds[key], self._prices[key]

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
        for (number, shape), scene in self.scenes.items():
            offer = self.offers[number, shape]
            domain = scope
            if not self.by_domain:
                domain = int(np.argmin(floors(scene, offer, goal.weight)))
            ground, listed = self._priced(number, shape, domain, goal)
            found = greedy_in(ground, listed, offer.at(domain), goal.weight)
            seeds.update(dict.fromkeys(sorted(found or ())))
        return seeds

    def _by_density(self, scope: int, weight: Ints) -> list[int]:
        share = np.zeros(self.bench.size)
        for key, offer in self.offers.items():
            _add_shares(share, self.scenes[key], offer, scope)
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

    def _place(self, victims: frozenset[int], scope: int) -> Spots | None:
        """Spots found then."""
        if not self.terms.admit(victims):
            return None
        return self._stage(scope).place(self.bench.mask(victims))

    def _stage(self, scope: int) -> Stage:
        if scope not in self._stages:
            useful = useful_nodes(self.scenes.values(), self.parts, scope)
            self._stages[scope] = stage_of(self.demand, self.free, self.bench, useful)
        return self._stages[scope]

    def _offer(
        self, victims: frozenset[int], scope: int, goal: Goal, spots: Spots | None = None
    ) -> None:
        best = self.found.victims
        if best is None or self._value(goal, victims) < self._value(goal, best):
            self.found.victims, self.found.domain = victims, scope
            self.found.spots = spots if spots is not None else self._place(victims, scope)

    # The exact answer.

    def _solve(
        self,
        scope: int,
        goal: Goal,
        earlier: list[tuple[Goal, int]],
        shares: Mapping[tuple[int, Shape], Shares],
    ) -> None:
        """Cells first; nodes when the victims the cells suggest turn out not to make room."""
        scenes = self._narrowed(scope, goal, shares)
        for by_node in (False, True):
            building, mixed = self._model(scope, goal, earlier, scenes, by_node=by_node)
            outcome = solve_legally(building, self.terms, self.solver, self.budget)
            if outcome.status is Status.REFUTED:
                return
            if outcome.status is not Status.FOUND:
                break
            victims = building.victims(outcome.values)
            spots = self._place(victims, scope)
            if spots is None and mixed.exact:
                spots = mixed.spots(outcome.values, self.demand)
            if spots is not None:
                self.found.proved &= outcome.optimal
                kept = victims if outcome.optimal else self._pruned(victims, scope, goal)
                self._offer(kept, scope, goal, spots if kept == victims else None)
                return
        self.found.proved = False

    def _model(
        self,
        scope: int,
        goal: Goal,
        earlier: list[tuple[Goal, int]],
        scenes: Mapping[tuple[int, Shape], Scene],
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
    here = offer.domain == scope if scope != _WHOLE else offer.domain >= 0
    np.maximum.at(share, offer.gang[here], part[here])
