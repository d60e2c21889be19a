"""What an eviction loses, in GPU-seconds: GPUs x time since the last checkpoint x utilization, plus a restart.

Unknown is not idle (invariant I5): utilization nobody measured counts as 1. Silence about checkpoints does not make a gang
dearer without bound: who declared none is taken to save as often as the others do, by the median of their times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from queuectl.domain.plan import Cost
from queuectl.domain.snapshot import Admitted
from queuectl.planner.problem.topology import Ints, Mask

# GPU-seconds every eviction loses beside its work: images, containers and rendezvous, about a minute of one GPU. It
# keeps an idle or GPU-less victim from being free, so that no needless one is ever taken.
RESTART_COST: Final = 60


@dataclass(frozen=True, eq=False, slots=True)
class Ages:
    """What the cost of each of some gangs is made from, one entry per gang; NaN where nothing was declared."""

    started: NDArray[np.float64]
    checkpoint: NDArray[np.float64]
    utilization: NDArray[np.float64]
    gpus: Ints

    def lost_work(self, now: float, among: Mask) -> Ints:
        """GPU-seconds each gang would lose, restart included.

        Args:
            now: unix seconds; checkpoints declared later than that are clamped to it.
            among: the gangs that may be evicted; the median of their declared checkpoints stands in for undeclared ones.
        """
        saved = np.minimum(self.checkpoint, now)
        declared = np.sort(saved[among & ~np.isnan(saved)])
        typical = declared[(len(declared) - 1) // 2] if len(declared) else -np.inf
        since = np.maximum(self.started, np.where(np.isnan(saved), typical, saved))
        used = np.where(np.isnan(self.utilization), 1.0, np.clip(self.utilization, 0.0, 1.0))
        work = np.ceil(self.gpus * np.maximum(0.0, now - since) * used)
        return work.astype(np.int64) + RESTART_COST


def ages_of(gangs: Sequence[Admitted]) -> Ages:
    """Collect the ages of some gangs, in their order."""
    nan = float("nan")
    return Ages(
        np.array([g.started_at for g in gangs], dtype=np.float64),
        np.array([nan if g.checkpoint_at is None else g.checkpoint_at for g in gangs], np.float64),
        np.array([nan if g.utilization is None else g.utilization for g in gangs], np.float64),
        np.array([g.gpus for g in gangs], dtype=np.int64),
    )


def costs(candidates: Sequence[Admitted], now: float) -> Mapping[str, Cost]:
    """Cost of evicting each of the gangs that may be evicted, by uid."""
    ages = ages_of(candidates)
    lost = ages.lost_work(now, np.ones(len(candidates), dtype=np.bool_))
    return {
        c.workload.uid: Cost(c.workload.priority, int(work), int(gpus))
        for c, work, gpus in zip(candidates, lost, ages.gpus, strict=True)
    }
