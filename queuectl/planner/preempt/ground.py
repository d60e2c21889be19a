"""One target domain as plain lists: who holds what of the nodes that could gain, and greedy victim sets on it.

Greedy sets are upper bounds: their cost cuts the model's objective, and they stand when the solver's limit ends first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from queuectl.planner.preempt.scene import Scene
from queuectl.planner.preempt.terms import Terms
from queuectl.planner.problem.topology import Ints

Use = tuple[int, ...]  # amounts, in the order of the ground's resource columns


@dataclass(eq=False, slots=True)
class Ground:
    """A domain's nodes that could gain pods.

    Attributes:
        ask: what one pod takes, per column.
        nodes: node indexes.
        left: what each node has free beyond its whole pods, per column; negative on a node that is over.
        delta: pods each could gain at most.
        tenants: per node, gang -> what it holds.
        need: pods to gain in all.
        terms: what must come free of quota, and who may leave together.
        reach: gangs that hold anything here -> local node numbers.
    """

    ask: Use
    nodes: list[int]
    left: list[Use]
    delta: list[int]
    tenants: list[dict[int, Use]]
    need: int
    terms: Terms
    reach: dict[int, list[int]] = field(default_factory=dict)
    _without: dict[int, dict[int, int]] = field(default_factory=dict)

    def without(self, node: int) -> dict[int, int]:
        """Per tenant, the pods the node gains when everybody leaves but him."""
        known = self._without.get(node)
        if known is None:
            room = list(self.left[node])
            for held in self.tenants[node].values():
                room = [have + amount for have, amount in zip(room, held, strict=True)]
            most = self.delta[node]
            known = self._without[node] = {}
            for gang, held in self.tenants[node].items():
                rest = zip(room, held, self.ask, strict=True)
                fits = min((have - amount) // ask for have, amount, ask in rest)
                known[gang] = max(0, min(fits, most))
        return known

    def gain(self, node: int, victims: Iterable[int]) -> int:
        """Pods a node gains when the given gangs leave it."""
        room = list(self.left[node])
        tenants = self.tenants[node]
        for gang in victims:
            held = tenants.get(gang)
            if held is not None:
                for i, amount in enumerate(held):
                    room[i] += amount
        fits = min(have // ask for have, ask in zip(room, self.ask, strict=True))
        return max(0, min(fits, self.delta[node]))


def ground_of(scene: Scene, domain: int, terms: Terms) -> Ground:
    """Lay out one domain."""
    columns = np.array(scene.shape.columns, dtype=np.int64)
    inside = np.flatnonzero((scene.domain == domain) & (scene.delta > 0))
    local = {int(node): i for i, node in enumerate(inside)}
    ask = scene.shape.vector[columns]
    left = scene.free[columns][:, inside] - ask[:, None] * scene.cap[inside]
    rows = scene.rows.select(scene.domain[scene.rows.node] == domain)
    tenants: list[dict[int, Use]] = [{} for _ in local]
    reach: dict[int, list[int]] = {}
    uses = map(tuple, rows.use[columns].T.tolist())
    for gang, node, use in zip(rows.gang.tolist(), rows.node.tolist(), uses, strict=True):
        tenants[local[node]][gang] = use
        reach.setdefault(gang, []).append(local[node])
    return Ground(
        tuple(ask.tolist()),
        inside.tolist(),
        [tuple(row) for row in left.T.tolist()],
        scene.delta[inside].tolist(),
        tenants,
        max(0, int(scene.need[domain])),
        terms,
        reach,
    )


class Evictions:
    """A growing and shrinking victim set on a ground, with what it gains."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self.victims: set[int] = set()
        self.gained = 0
        self._gain = [0] * len(ground.nodes)
        self._short = [amount for amount, _ in ground.terms.deficits]
        self._leaving = ground.terms.leaving()

    @property
    def enough(self) -> bool:
        return (
            self.gained >= self.ground.need
            and all(short <= 0 for short in self._short)
            and self.ground.terms.frees(self.victims)
        )

    @property
    def room_enough(self) -> bool:
        return self.gained >= self.ground.need

    def add(self, gang: int) -> None:
        self.victims.add(gang)
        self._recount(gang, -1)

    def offer(self, gang: int) -> None:
        """Add a gang if it may leave together with the others."""
        if self._leaving is None or self._leaving.allows(gang):
            self.add(gang)

    def drop(self, gang: int) -> None:
        self.victims.discard(gang)
        self._recount(gang, 1)

    def _recount(self, gang: int, sign: int) -> None:
        ground = self.ground
        if self._leaving is not None:
            (self._leaving.add if sign < 0 else self._leaving.drop)(gang)
        for i, (_, frees) in enumerate(ground.terms.deficits):
            self._short[i] += sign * int(frees[gang])
        for node in ground.reach.get(gang, ()):
            present = [g for g in ground.tenants[node] if g in self.victims]
            gain = ground.gain(node, present)
            self.gained += gain - self._gain[node]
            self._gain[node] = gain

    def prune(self, weight: Ints) -> None:
        """Let stay, dearest first, everybody who is not needed."""
        for gang in sorted(self.victims, key=lambda g: (-int(weight[g]), g)):
            self.drop(gang)
            if not self.enough:
                self.add(gang)


def greedy(ground: Ground, weight: Ints, orders: Iterable[Iterable[int]]) -> frozenset[int] | None:
    """The cheapest of what some orders of eviction give, each pruned; None when none reaches."""
    best: frozenset[int] | None = None
    for order in orders:
        found = _take(ground, order, weight)
        if found is not None and (best is None or _cost(found, weight) < _cost(best, weight)):
            best = found
    return best


def needed_only(ground: Ground, victims: frozenset[int], weight: Ints) -> frozenset[int]:
    """A victim set without those who are not needed."""
    chosen = Evictions(ground)
    for gang in sorted(victims):
        chosen.add(gang)
    chosen.prune(weight)
    return frozenset(chosen.victims)


def _cost(victims: frozenset[int], weight: Ints) -> int:
    return sum(int(weight[g]) for g in victims)


def _take(ground: Ground, order: Iterable[int], weight: Ints) -> frozenset[int] | None:
    chosen = Evictions(ground)
    for gang in order:
        if chosen.room_enough:
            break
        chosen.offer(gang)
    if not chosen.room_enough:
        return None
    _free_quota(chosen, weight)
    if not chosen.enough:
        return None
    chosen.prune(weight)
    victims = frozenset(chosen.victims)
    return victims if ground.terms.together(victims) else None


def _free_quota(chosen: Evictions, weight: Ints) -> None:
    """Add whoever frees missing quota most cheaply."""
    for _, frees in chosen.ground.terms.deficits:
        useful = np.flatnonzero(frees > 0)
        for gang in useful[np.argsort(weight[useful] / frees[useful], kind="stable")].tolist():
            if chosen.enough:
                return
            if gang not in chosen.victims:
                chosen.offer(gang)
