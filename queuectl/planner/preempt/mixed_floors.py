"""Where a gang of several shapes could go, and the least that each place must cost.

A *scope* is one domain, or all of them at once (:data:`WHOLE`) where parts choose theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

import numpy as np

from queuectl.planner.preempt.dual import Shares, places_of, share_out
from queuectl.planner.preempt.goal import Goal
from queuectl.planner.preempt.ground import Ground, ground_of
from queuectl.planner.preempt.parts import Part
from queuectl.planner.preempt.price import Price, floor_of, prices
from queuectl.planner.preempt.roster import Bench
from queuectl.planner.preempt.scene import Floats, Scene, floors, offers, scene_of
from queuectl.planner.preempt.search import quota_floor
from queuectl.planner.preempt.terms import Terms
from queuectl.planner.problem.problem import Shape
from queuectl.planner.problem.request import ANYWHERE
from queuectl.planner.problem.topology import Ints

WHOLE: Final = -1

Key: TypeAlias = tuple[int, Shape]  # number of the part, and one of its shapes


@dataclass(eq=False)
class Floors:
    """Of one demand and one set of candidates.

    Attributes:
        scenes: per part and shape, the nodes as those pods see them.
        offers: per part and shape, what each candidate would give there.
        by_domain: whether a scope is one domain.
    """

    parts: tuple[Part, ...]
    free: Ints
    bench: Bench
    terms: Terms
    _grounds: dict[tuple[int, Shape, int], Ground] = field(default_factory=dict)
    _prices: dict[tuple[int, Shape, int], list[Price]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.scenes = {
            (number, shape): scene_of(part, shape, self.free, self.bench)
            for number, part in enumerate(self.parts)
            for shape, _ in part.counts
        }
        self.offers = {key: offers(scene, self.bench) for key, scene in self.scenes.items()}
        self.by_domain = len(self.parts) == 1 and self.parts[0].level != ANYWHERE

    def renew(self) -> None:
        """Prices are of one goal; another follows."""
        self._prices.clear()

    def settled(self, number: int) -> bool:
        """Whether a scope says in which domain a part is, so that it can be priced alone."""
        return self.by_domain or self.parts[number].level == ANYWHERE

    def scopes(self, goal: Goal) -> list[tuple[float, int]]:
        floor = quota_floor(self.terms.deficits, goal.weight)
        per_part = [self._of_part(number, goal) for number in range(len(self.parts))]
        if self.by_domain:
            (row,) = per_part
            scopes = [(max(floor, float(f)), d) for d, f in enumerate(row) if np.isfinite(f)]
            return sorted(scopes)
        least = max(float(row.min(initial=np.inf)) for row in per_part)
        return [(max(floor, least), WHOLE)] if np.isfinite(least) else []

    def _of_part(self, number: int, goal: Goal) -> Floats:
        """Per domain, the dearest floor of the part's shapes."""
        rows = [
            floors(self.scenes[number, shape], self.offers[number, shape], goal.weight)
            for shape, _ in self.parts[number].counts
        ]
        dearest: Floats = np.max(np.stack(rows), axis=0)
        return dearest

    def by_node(self, scope: int, goal: Goal) -> float:
        """The dearest node-by-node floor of a shape whose domain is known."""
        dearest = 0.0
        for number, shape in self.scenes:
            if self.settled(number):
                least = floor_of(*self.priced(number, shape, max(scope, 0), goal))
                dearest = max(dearest, np.inf if least is None else least)
        return dearest

    def shared(self, scope: int, goal: Goal, best: int | None) -> dict[Key, Shares]:
        """The weights shared out over what could be gained, for each shape whose domain is known.

        ``best``: what the best victims known cost; None = none are known.
        """
        found: dict[Key, Shares] = {}
        known = best if best is not None else int(goal.weight.sum()) + 1
        for number, shape in self.scenes:
            if self.settled(number):
                ground, _ = self.priced(number, shape, max(scope, 0), goal)
                places = places_of(ground) if ground.need else None
                shares = share_out(places, ground.need, goal.weight, known) if places else None
                if shares is not None:
                    found[number, shape] = shares
        return found

    def narrowed(
        self, scope: int, goal: Goal, best: int, shares: Mapping[Key, Shares]
    ) -> dict[Key, Scene]:
        """The scenes without gains that only dearer victims than the best known have a use for; ``best``: what those cost."""
        scenes = dict(self.scenes)
        for key, shared in shares.items():
            ground, _ = self.priced(*key, max(scope, 0), goal)
            dear = ~shared.worth(best)
            delta = scenes[key].delta.copy()
            nodes = np.array(ground.nodes, dtype=np.int64)[shared.places.node[dear]]
            np.minimum.at(delta, nodes, shared.places.pods[dear] - 1)
            scenes[key] = replace(scenes[key], delta=delta)
        return scenes

    def priced(
        self, number: int, shape: Shape, domain: int, goal: Goal
    ) -> tuple[Ground, list[Price]]:
        """One domain of one shape of a part, and what its nodes cost to clear."""
        key = (number, shape, domain)
        if key not in self._grounds:
            self._grounds[key] = ground_of(self.scenes[number, shape], domain, self.terms)
        if key not in self._prices:
            self._prices[key] = prices(self._grounds[key], goal.weight)
        return self._grounds[key], self._prices[key]
