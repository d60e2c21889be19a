"""The loss of an eviction, in GPU-seconds, and the layers of a set's cost as integers a solver can minimise.

An eviction loses GPUs x time since the last checkpoint x utilization, plus a restart. Unknown is not idle (invariant I5):
utilization that was not measured counts as 1. Silence about checkpoints does not make a gang dearer without bound: one that
declared none is taken to save as often as the others do, by the median of their times.

Layers are lexicographic. As many as fit below the solver's safe range become one weighted sum; the rest follow as later
goals, each with the optimum of those before it as a row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

from queuectl.domain.plan import Cost
from queuectl.domain.queues import DEFAULT_VICTIM_ORDER, VictimKey
from queuectl.domain.snapshot import Admitted
from queuectl.planner.model.builder import stages
from queuectl.planner.problem.topology import Ints, Mask

# GPU-seconds every eviction loses beside its work: images, containers and rendezvous, about a minute of one GPU. It
# keeps an idle or GPU-less victim from being free, so that no needless one is ever taken.
RESTART_COST: Final = 60


# The same for a pod above the least number of an elastic gang, which runs on without it: of two equal losses, it is the smaller one.
RELEASE_COST: Final = 30


@dataclass(frozen=True, eq=False, slots=True)
class Ages:
    """The inputs of the cost of some gangs, one entry per gang; NaN where nothing was declared."""

    started: NDArray[np.float64]
    checkpoint: NDArray[np.float64]
    utilization: NDArray[np.float64]
    gpus: NDArray[np.float64]
    restart: Ints

    def lost_work(self, now: float, among: Mask) -> Ints:
        """GPU-seconds each gang would lose, restart included.

        Args:
            now: unix seconds; checkpoints declared later than that are clamped to it.
            among: the candidates; the median of their declared checkpoints counts for undeclared ones.
        """
        saved = np.minimum(self.checkpoint, now)
        declared = np.sort(saved[among & ~np.isnan(saved)])
        typical = declared[(len(declared) - 1) // 2] if len(declared) else -np.inf
        since = np.maximum(self.started, np.where(np.isnan(saved), typical, saved))
        used = np.where(np.isnan(self.utilization), 1.0, np.clip(self.utilization, 0.0, 1.0))
        work = np.ceil(self.gpus * np.maximum(0.0, now - since) * used)
        return work.astype(np.int64) + self.restart


def ages_of(gangs: Sequence[Admitted]) -> Ages:
    """Collect the ages of some gangs, in their order."""
    nan = float("nan")
    return Ages(
        np.array([g.started_at for g in gangs], dtype=np.float64),
        np.array([nan if g.checkpoint_at is None else g.checkpoint_at for g in gangs], np.float64),
        np.array([nan if g.utilization is None else g.utilization for g in gangs], np.float64),
        np.array([float(g.gpus) for g in gangs], dtype=np.float64),
        np.array([_restart(g) for g in gangs], dtype=np.int64),
    )


def _restart(gang: Admitted) -> int:
    return RESTART_COST if gang.workload.growth is None else RELEASE_COST


def costs(candidates: Sequence[Admitted], now: float) -> Mapping[str, Cost]:
    """Cost of evicting each candidate, by uid."""
    ages = ages_of(candidates)
    lost = ages.lost_work(now, np.ones(len(candidates), dtype=np.bool_))
    return {
        c.workload.uid: Cost(c.workload.priority, int(work), c.gpus)
        for c, work in zip(candidates, lost, strict=True)
    }


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


def goals(lost: Ints, rank: Ints, order: Sequence[VictimKey]) -> Iterator[Goal]:
    """The goals of some layers, first to last, over candidates with this lost work and these ranks. Shape (C,) each."""
    zero = np.zeros(len(lost), dtype=np.int64)
    value = {VictimKey.LOST_WORK: lost, VictimKey.COUNT: zero + 1}
    keys = iter(order)
    for weights in stages([_bound(lost, rank, key) for key in order], _RANGE):
        of = dict(zip(keys, weights, strict=False))
        weight = sum((of[key] * each for key, each in value.items() if key in of), zero)
        yield Goal(weight, of.get(VictimKey.MAX_PRIORITY, 0))


def _bound(lost: Ints, rank: Ints, key: VictimKey) -> int:
    """The largest value a layer can take."""
    if key is VictimKey.LOST_WORK:
        return int(lost.sum())
    return int(rank.max(initial=0)) if key is VictimKey.MAX_PRIORITY else len(rank)
