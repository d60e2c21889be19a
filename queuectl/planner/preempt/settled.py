"""Victims of one ClusterQueue that would have to borrow if they came back, by sums: see ``Foreign.stays_out``.

Of a victim v, L(v) is what the gangs charge that yield to v in its queue. With v back, without those gangs and without the other
victims, the queue uses more than its own of a row as long as the other victims that do not yield to v charge at most

    spare(v) = use - quota - L(v) - 1.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf
from typing import Final

from queuectl.planner.preempt.comeback import Place, place_of
from queuectl.planner.preempt.model import VictimModel
from queuectl.planner.preempt.order import Foreign
from queuectl.planner.quota.tree import FlavorResource, Pool

_LOWEST: Final[Place] = (-(2**62), -inf)
_HIGHEST: Final[Place] = (2**62, inf)


@dataclass(eq=False, slots=True)
class Settled:
    """The candidates of one ClusterQueue.

    Attributes:
        pool: of the ClusterQueue.
        wary: the candidates that must not be able to come back within the queue's own.
    """

    foreign: Foreign
    pool: Pool
    wary: frozenset[int]
    _over: list[FlavorResource] = field(init=False)
    _spare: dict[int, dict[FlavorResource, int]] = field(default_factory=dict)
    _places: dict[int, Place | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        contest = self.foreign.contest
        self._over = [row for row in sorted(contest.rows) if contest.beyond(self.pool, row) > 0]

    def stay_out(self, victims: Collection[int]) -> bool:
        """Whether each of some victims would have to borrow if it came back."""
        left = {v for v in victims if v in self.wary}
        for row in self._over:
            if not left:
                return True
            sums = _Sums(self._charged(victims, row), self._place)
            left -= {v for v in left if sums.beside(v, self._bound(v)) <= self._spared(v, row)}
        return not left

    def constrain(self, building: VictimModel, gangs: Collection[int]) -> None:
        """Rows of a model for candidates that are charged of one row only that the queue is over of; cuts do the rest."""
        for row in self._over:
            charged = self._charged(gangs, row)
            sums = _Sums(charged, self._place)
            bound: dict[Place, list[int]] = {}
            for v in gangs:
                others = any(self._amount(v, r) for r in self._over if r != row)
                if v in self.wary and charged[v] and not others:
                    place = self._bound(v)
                    if sums.beside(v, place) > self._spared(v, row):
                        bound.setdefault(place or _LOWEST, []).append(v)
            if bound:
                self._add(building, row, charged, bound)

    def _add(
        self,
        building: VictimModel,
        row: FlavorResource,
        charged: dict[int, int],
        bound: dict[Place, list[int]],
    ) -> None:
        """``bound``: candidates by the place below which all yield to them. What does not yield is summed up from the highest on."""
        model = building.model
        waiting = sorted((n, w) for w, n in charged.items() if n)
        waiting.sort(key=lambda entry: self._place(entry[1]) or _HIGHEST)
        beside: list[tuple[int, int]] = []  # variables and coefficients of a sum
        total = 0
        for place in sorted(bound, reverse=True):
            while waiting and (self._place(waiting[-1][1]) or _HIGHEST) >= place:
                amount, gang = waiting.pop()
                beside.append((building.of[gang], amount))
                total += amount
            leaving = model.var(0, total)
            model.at_most([v for v, _ in beside] + [leaving], [n for _, n in beside] + [-1], 0)
            beside = [(leaving, 1)]
            alike: dict[int, list[int]] = {}
            for v in bound[place]:
                alike.setdefault(self._spared(v, row) + charged[v], []).append(v)
            for most, gangs in alike.items():
                any_leaves = building.any_of(gangs)
                model.at_most([leaving, any_leaves], [1, total - most], total)

    def _amount(self, gang: int, row: FlavorResource) -> int:
        amounts = self.foreign.bench.quota.get((self.pool.name, *row))
        return int(amounts[gang]) if amounts is not None else 0

    def _charged(self, gangs: Iterable[int], row: FlavorResource) -> dict[int, int]:
        return {gang: self._amount(gang, row) for gang in gangs}

    def _spared(self, gang: int, row: FlavorResource) -> int:
        """What other victims may be charged beside one; -1 for one that asks nothing of the row."""
        if gang not in self._spare:
            who, name = self.foreign.bench.gangs[gang], self.pool.name
            below = self.foreign.comeback.yields(who, name, ())
            contest = self.foreign.contest
            self._spare[gang] = {
                at: contest.beyond(self.pool, at) - below.get((name, *at), 0) - 1
                for at in self._over
                if self._amount(gang, at)
            }
        return self._spare[gang].get(row, -1)

    def _bound(self, gang: int) -> Place | None:
        return self.foreign.comeback.bound(self.foreign.bench.gangs[gang])

    def _place(self, gang: int) -> Place | None:
        """Where a gang stands among those that yield to others of its queue; None for one that yields to no gang."""
        if gang not in self._places:
            who = self.foreign.bench.gangs[gang]
            gives_way = who.evictable and self.foreign.comeback.gives_way(who.workload)
            self._places[gang] = place_of(who.workload) if gives_way else None
        return self._places[gang]


class _Sums:
    """What some victims are charged of a row, and how much of it is of those below a place."""

    def __init__(self, charged: dict[int, int], place: Callable[[int], Place | None]) -> None:
        yielding = sorted((at, n) for v, n in charged.items() if (at := place(v)) is not None)
        self._places = [at for at, _ in yielding]
        self._below = list(accumulate((n for _, n in yielding), initial=0))
        self._charged = charged
        self._total = sum(charged.values())

    def beside(self, victim: int, bound: Place | None) -> int:
        """What the others are charged that do not yield to one, for which ``bound`` says who does."""
        below = 0 if bound is None else self._below[bisect_left(self._places, bound)]
        return self._total - self._charged[victim] - below
