"""Least victims for one shape of pod: domain by domain, in the order of what each must cost at least.

Greedy sets in the best-bounded domains give the first upper bound; a domain whose floor reaches it is proved not to be
better; every other is decided by the exact model, cut at the best set known. When the loop ends without a limit having
cut a solve, the best set is the optimum over all domains.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from queuectl.planner.capacity.node_counts import NodeCounts
from queuectl.planner.preempt.contest import Deficits
from queuectl.planner.preempt.dual import Shares, places_of, share_out
from queuectl.planner.preempt.goal import Goal
from queuectl.planner.preempt.ground import Ground, greedy, ground_of, needed_only
from queuectl.planner.preempt.model import VictimModel
from queuectl.planner.preempt.price import Price, floor_of, prices, worth_a_look
from queuectl.planner.preempt.room import model_ground
from queuectl.planner.preempt.roster import Bench
from queuectl.planner.preempt.scene import (
    Floats,
    Offers,
    Scene,
    empty_scene,
    floors,
    offers,
)
from queuectl.planner.preempt.terms import Terms
from queuectl.planner.problem.topology import Ints
from queuectl.planner.solver.solver import Outcome, Solver, Status

_GREEDY_DOMAINS: Final = 8
MOST_CUTS: Final = 60  # answers of one model that may turn out not to be legal


@dataclass(eq=False, slots=True)
class Found:
    """The best victim set so far.

    Attributes:
        victims: None while there is none.
        domain: where it helps.
        node_counts: where the gang runs then, if the search placed it.
        proved: False once a limit left something open.
    """

    victims: frozenset[int] | None = None
    domain: int = -1
    node_counts: NodeCounts | None = None
    proved: bool = True


@dataclass(eq=False)
class Search:
    """One scene, one set of candidates, goal after goal.

    Attributes:
        grounds: by domain, as far as they are laid out.
        prices: of their nodes, by the goal at hand.
    """

    scene: Scene
    bench: Bench
    terms: Terms
    solver: Solver
    budget: int
    found: Found = field(default_factory=Found)
    grounds: dict[int, Ground] = field(default_factory=dict)
    prices: dict[int, list[Price]] = field(default_factory=dict)

    def run(self, goals: Sequence[Goal]) -> Found:
        """Minimise the goals one after the other."""
        offer = offers(self.scene, self.bench)
        earlier: list[tuple[Goal, int]] = []
        for goal in goals:
            self._minimise(goal, offer, earlier)
            if self.found.victims is None:
                break
            earlier.append((goal, self._value(goal, self.found.victims)))
        return self.found

    def _minimise(self, goal: Goal, offer: Offers, earlier: list[tuple[Goal, int]]) -> None:
        least = quota_floor(self.terms.deficits, goal.weight)
        floor = np.maximum(floors(self.scene, offer, goal.weight), least)
        order = np.lexsort((np.arange(len(floor)), floor))
        order = order[np.isfinite(floor[order])]
        self.prices.clear()
        if not earlier:
            for domain in order[:_GREEDY_DOMAINS].tolist():
                self._try_greedy(domain, goal, offer)
                if self.terms.order is not None and self.found.victims is None:
                    break  # what is missing may be quota, which is the same everywhere
            if self.found.victims is None and self._no_quota(goal):
                return
        for domain in order.tolist():
            if self._beaten(float(floor[domain]), goal):
                break
            self._look(domain, goal, earlier)

    def _no_quota(self, goal: Goal) -> bool:
        """Whether it is proved that no legal victims free the quota, whatever room they make."""
        terms = self.terms
        if terms.order is None or not terms.deficits or not self.scene.count:
            return False
        scene = empty_scene(self.bench)
        found = Search(scene, self.bench, terms, self.solver, self.budget).run([goal])
        return found.victims is None and found.proved

    def least_in(self, domain: int, goal: Goal, offer: Offers) -> Found:
        """The least victims in one domain, by one goal alone."""
        self._try_greedy(domain, goal, offer)
        self._look(domain, goal, [])
        return self.found

    def _look(self, domain: int, goal: Goal, earlier: list[tuple[Goal, int]]) -> None:
        """Decide one domain: by floors, each tighter and dearer than the one before, or by the model."""
        ground = self._ground(domain)
        by_node = floor_of(ground, self._priced(domain, goal))
        if by_node is None or self._beaten(by_node, goal):
            return
        shares = self._shared(domain, goal)
        if shares is not None and not earlier:
            found = greedy(ground, goal.weight, [shares.order(goal.weight)])
            self._try(found, domain, goal)
        if shares is None or not self._beaten(shares.floor, goal):
            self._solve(domain, goal, earlier, shares)

    def _beaten(self, floor: float, goal: Goal) -> bool:
        """Whether nothing above this floor can be better than the best set known."""
        best = self.found.victims
        return best is not None and floor >= self._value(goal, best)

    def _value(self, goal: Goal, victims: frozenset[int]) -> int:
        return goal.value(self.bench.mask(victims), self.bench.rank)

    def _ground(self, domain: int) -> Ground:
        if domain not in self.grounds:
            self.grounds[domain] = ground_of(self.scene, domain, self.terms)
        return self.grounds[domain]

    def _priced(self, domain: int, goal: Goal) -> list[Price]:
        if domain not in self.prices:
            self.prices[domain] = prices(self._ground(domain), goal.weight)
        return self.prices[domain]

    def _try_greedy(self, domain: int, goal: Goal, offer: Offers) -> None:
        listed = self._priced(domain, goal)
        self._try(
            greedy_in(self._ground(domain), listed, offer.at(domain), goal.weight), domain, goal
        )

    def _shared(self, domain: int, goal: Goal) -> Shares | None:
        """The best sharing-out of weights over what a domain could gain; None where it is not worth it."""
        ground, best = self._ground(domain), self.found.victims
        places = places_of(ground)
        known = self._value(goal, best) if best is not None else int(goal.weight.sum()) + 1
        return share_out(places, ground.need, goal.weight, known) if places is not None else None

    def _try(self, victims: frozenset[int] | None, domain: int, goal: Goal) -> None:
        """Keep a victim set if it is the best so far."""
        best = self.found.victims
        if victims is not None and (
            best is None or self._value(goal, victims) < self._value(goal, best)
        ):
            self.found.victims, self.found.domain = victims, domain

    def _solve(
        self, domain: int, goal: Goal, earlier: list[tuple[Goal, int]], shares: Shares | None
    ) -> None:
        ground = self._ground(domain)
        best = self.found.victims
        own = best if domain == self.found.domain else None
        kept = self._kept(domain, goal, shares, additive=not earlier and not goal.rank_weight)
        kept.update(node for gang in own or () for node in ground.reach.get(gang, ()))
        nodes = sorted(kept)
        inside = {gang for node in nodes for gang in ground.tenants[node]}
        others = outsiders(inside, self.terms, self.bench, goal, keep_all=bool(earlier))
        building = VictimModel(self.bench, sorted({*inside, *others, *(own or ())}), own)
        model_ground(building, ground, nodes)
        self.terms.constrain(building)
        cut = None if best is None else self._value(goal, best) - (own is None)
        building.aim(goal, cut, earlier)
        outcome = solve_legally(building, self.terms, self.solver, self.budget)
        if outcome.status is Status.FOUND:
            victims = building.victims(outcome.values)
            if not outcome.optimal:
                self.found.proved = False
                fewer = needed_only(ground, victims, goal.weight)
                victims = fewer if self.terms.together(fewer) else victims
            self._try(victims, domain, goal)
        elif outcome.status is not Status.REFUTED:
            self.found.proved = False

    def _kept(self, domain: int, goal: Goal, shares: Shares | None, *, additive: bool) -> set[int]:
        """Nodes that victims better than the best known may need; those the best itself uses are added to them."""
        ground, best = self._ground(domain), self.found.victims
        kept = set(range(len(ground.nodes)))
        if additive and self.terms.plain and not self.terms.deficits:
            kept = worth_a_look(ground, self._priced(domain, goal))
        if shares is not None and best is not None:
            useful = shares.worth(self._value(goal, best))
            kept.intersection_update(shares.places.node[useful].tolist())
        return kept


def solve_legally(building: VictimModel, terms: Terms, solver: Solver, budget: int) -> Outcome:
    """Solve a model, and again without the answers that the terms refuse."""
    model = building.finish()
    for _ in range(MOST_CUTS):
        outcome = solver.solve(model, budget)
        if outcome.status is not Status.FOUND:
            return outcome
        victims = building.victims(outcome.values)
        if terms.plain or (terms.frees(victims) and terms.together(victims)):
            return outcome
        terms.refuse(victims, building)
    return Outcome(Status.UNKNOWN)


def greedy_in(
    ground: Ground, listed: list[Price], offer: Offers, weight: Ints
) -> frozenset[int] | None:
    """A cheap set on one ground: by cost per pod a gang could gain, or node by node from the cheapest per pod."""
    density = weight[offer.gang] / offer.gain
    by_gang = offer.gang[np.argsort(density, kind="stable")].tolist()
    by_price = sorted(listed, key=lambda p: (p.least[-1] / len(p.least), p.node))
    by_node = dict.fromkeys(gang for price in by_price for gang in price.clears)
    return greedy(ground, weight, (by_gang, by_node))


def quota_floor(deficits: Deficits, weight: Ints) -> float:
    """Least cost of freeing each missing quota by itself; the dearest of them is a floor everywhere."""
    return max((_knapsack(amount, frees, weight) for amount, frees in deficits), default=0.0)


def _knapsack(amount: int, frees: Ints, weight: Ints) -> float:
    able = np.flatnonzero(frees > 0)
    density = weight[able] / frees[able]
    order = np.argsort(density, kind="stable")
    gain: Floats = frees[able][order].astype(np.float64)
    filled = np.cumsum(gain) - gain
    taken = np.clip(amount - filled, 0.0, gain)
    return float((taken * density[order]).sum()) * (1.0 - 1e-9) - 1e-3


def outsiders(
    inside: Container[int], terms: Terms, bench: Bench, goal: Goal, *, keep_all: bool
) -> list[int]:
    """Gangs that hold nothing useful in the domain but free missing quota, or help others to be let go.

    Of gangs that free the same amounts only the cheapest can be needed, as many as would free everything missing.
    """
    if terms.order is not None and not terms.order.narrowing:
        return [gang for gang in range(bench.size) if gang not in inside]
    deficits = terms.deficits
    if not deficits:
        return []
    frees = np.stack([f for _, f in deficits])
    useful = [g for g in np.flatnonzero((frees > 0).sum(axis=0)).tolist() if g not in inside]
    if keep_all:
        return useful
    useful.sort(key=lambda g: (int(goal.weight[g]), g))
    taken: dict[object, int] = {}
    chosen = []
    for gang in useful:
        rank = int(bench.rank[gang]) if goal.rank_weight else 0
        alike = (*frees[:, gang].tolist(), rank, terms.alike(gang))
        most = max(-(-amount // int(f[gang])) for amount, f in deficits if f[gang] > 0)
        if taken.get(alike, 0) < most:
            taken[alike] = taken.get(alike, 0) + 1
            chosen.append(gang)
    return chosen
