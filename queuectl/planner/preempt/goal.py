"""The layers of a victim set's cost as integers a solver can minimise.

Layers are lexicographic. As many as fit below the solver's safe range become one weighted sum; the rest follow as later
goals, each with the optimum of those before it as a row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np

from queuectl.domain.plan import Cost
from queuectl.domain.queues import DEFAULT_VICTIM_ORDER, VictimKey
from queuectl.planner.preempt.roster import Bench
from queuectl.planner.problem.topology import Ints, Mask

_RANGE: Final = 1 << 58  # of one goal's value; leaves the solver a factor of four


@dataclass(frozen=True, eq=False, slots=True)
class Goal:
    """Minimise ``sum(weight of each victim) + rank_weight * rank of the highest priority touched``."""

    weight: Ints
    rank_weight: int = 0

    def value(self, victims: Mask, rank: Ints) -> int:
        highest = int(rank[victims].max(initial=0))
        return int(self.weight[victims].sum()) + self.rank_weight * highest


def complete(order: Sequence[VictimKey]) -> tuple[VictimKey, ...]:
    """A layer order with what it leaves out as tie-breaks, in the default order."""
    return (*order, *(key for key in DEFAULT_VICTIM_ORDER if key not in order))


def layers(order: Sequence[VictimKey], costs: Collection[Cost]) -> tuple[float, ...]:
    """A victim set's place in an order of layers, least first."""
    value = {
        VictimKey.MAX_PRIORITY: max((cost.priority for cost in costs), default=-inf),
        VictimKey.LOST_WORK: sum(cost.lost_work for cost in costs),
        VictimKey.COUNT: len(costs),
    }
    return tuple(value[key] for key in complete(order))


def goals(bench: Bench, order: Sequence[VictimKey]) -> Iterator[Goal]:
    """The goals of some layers, first to last."""
    keys = list(order)
    while keys:
        together: list[tuple[VictimKey, int]] = []
        reach = 1
        while keys and (not together or reach * (_bound(bench, keys[0]) + 1) < _RANGE):
            key = keys.pop(0)
            together.append((key, _bound(bench, key)))
            reach *= together[-1][1] + 1
        yield _weighted(bench, together)


def _bound(bench: Bench, key: VictimKey) -> int:
    """The largest value a layer can take."""
    if key is VictimKey.LOST_WORK:
        return int(bench.lost.sum())
    return int(bench.rank.max(initial=0)) if key is VictimKey.MAX_PRIORITY else bench.size


def _weighted(bench: Bench, layers: Sequence[tuple[VictimKey, int]]) -> Goal:
    weight = np.zeros(bench.size, dtype=np.int64)
    rank_weight, scale = 0, 1
    for key, bound in reversed(layers):
        if key is VictimKey.MAX_PRIORITY:
            rank_weight = scale
        else:
            weight += scale * (bench.lost if key is VictimKey.LOST_WORK else 1)
        scale *= bound + 1
    return Goal(weight, rank_weight)
