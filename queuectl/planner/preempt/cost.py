"""The loss of an eviction, in GPU-seconds, and the layers of a set's cost as integers a solver can minimize.

An eviction loses GPUs x time since the last checkpoint x utilization, plus a restart. Pods without GPUs count as a part of GPUs, and their
utilization as 1, because it describes GPUs. Unknown is not idle: utilization that was not measured counts as 1. Silence
about checkpoints does not make a gang dearer without bound: one that declared none is taken to save as often as the others do, by the
median of their times.

Layers are lexicographic. As many as fit below the solver's safe range become one weighted sum; the rest follow as later
goals, each with the optimum of those before it as a row.

The size of a gang in GPUs also compares waits:

- A pod with GPUs counts as its GPUs (:mod:`queuectl.domain.gpus`).
- Each other accelerator counts as one GPU, but all accelerators of a node as at most ``ACCELERATORS_OF_NODE``.
- Any pod counts as at least its share of a node, times ``NODE``: a CPU is worth less than a GPU.

The *share of a node* counts the resource of which the pod requests the largest part of a node. A node has the largest amount that any
node of the fleet has. A request therefore counts the same on each node, and after its node is deleted. Without a node that has the
resource, ``_USUAL`` counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

from queuectl.domain.bounded import BoundedCache
from queuectl.domain.devices import IMPLICIT_RESOURCE, stands_for_claims
from queuectl.domain.fleet import Fleet
from queuectl.domain.gpus import MOST_GPUS, GpuWeights, is_accelerator
from queuectl.domain.plan import Cost
from queuectl.domain.quantity import CPU, MEMORY, PODS, Resources
from queuectl.domain.queues import DEFAULT_VICTIM_ORDER, VictimKey
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.domain.workload import Placement, PodSet, Workload
from queuectl.planner.cache import PlannerCache
from queuectl.planner.model.builder import stages
from queuectl.planner.problem.fleet import Ints, Mask, is_planner_row

# ---- Sizes in GPUs


NODE: Final = 0.5
"""GPUs that all of a node counts as for pods without accelerators."""

ACCELERATORS_OF_NODE: Final = 8
"""GPUs that all accelerators of a node count as, if they are more: units of a resource can be cores or parts of a device."""

_USUAL: Final = {CPU: 64_000, MEMORY: 256 << 30, PODS: 110}
_USUAL_DEVICES: Final = 8


@dataclass(frozen=True, slots=True)
class GangSize:
    """GPUs that the pods of a gang count as: of pods with accelerators, whose use can be measured, and of all others."""

    accelerators: float
    without_accelerators: float

    @property
    def total(self) -> float:
        return self.accelerators + self.without_accelerators


@dataclass(frozen=True, eq=False, slots=True)
class Sizes:
    """Sizes of gangs on the nodes of one fleet.

    Attributes:
        weights: of the resources that the configuration names. They count by their weight alone.
        largest: the largest amount of each resource on one node.
    """

    weights: GpuWeights
    largest: Resources
    _known: BoundedCache[tuple[Resources, float], tuple[float, bool]] = field(
        default_factory=BoundedCache
    )
    _running: dict[tuple[int, int], tuple[Workload, Placement, GangSize]] = field(
        default_factory=dict
    )

    def of_running(self, gang: Admitted) -> GangSize:
        """The size of a gang that runs; none for pods it started without, or that are done."""
        key = (id(gang.workload), id(gang.placement))
        known = self._running.get(key)
        if known is None:
            placed = ((p, gang.placement.of(p.name)) for p in gang.workload.podsets)
            pods = ((p, p.count if at is None else at.pods_of(p)) for p, at in placed)
            size = self._of(float(gang.gpus), pods)
            # Kept with the size, so that their ids name them.
            known = self._running[key] = gang.workload, gang.placement, size
        return known[2]

    def forget_ended(self, running: int) -> None:
        """Forget the gangs, if most of those known have ended. ``running``: the number of gangs that run."""
        if len(self._running) > 2 * running:
            self._running.clear()

    def of_waiting(self, workload: Workload) -> GangSize:
        """The size of a gang with all of its pods."""
        return self._of(float(workload.gpus), ((p, p.count) for p in workload.podsets))

    def _of(self, gpus: float, podsets: Iterable[tuple[PodSet, int]]) -> GangSize:
        others, with_gpus = 0.0, gpus > 0
        for podset, pods in podsets:
            if with_gpus and stands_for_claims(podset.name):
                continue  # the GPUs of claims that pods share count once for the gang
            more, accelerated = self._more(podset)
            if accelerated:
                gpus += more * pods
            else:
                others += more * pods
        return GangSize(min(gpus, MOST_GPUS), min(others, MOST_GPUS))

    def _more(self, podset: PodSet) -> tuple[float, bool]:
        """The GPUs that a pod counts as in addition to its own, and whether it has accelerators."""
        key = (podset.shape.requests, float(podset.gpus.each))
        known = self._known.get(key)
        return known if known is not None else self._known.keep(key, self._count(*key))

    def _count(self, requests: Resources, gpus: float) -> tuple[float, bool]:
        accelerators, share = gpus, 0.0
        given = dict(self.weights.configured)
        for name, amount in requests.items():
            if name in given or self.weights.of(name) or is_planner_row(name):
                continue
            part = amount / (self.largest[name] or _usual(name) or amount)
            if is_accelerator(name.removeprefix(IMPLICIT_RESOURCE)):
                accelerators = max(accelerators, min(amount, ACCELERATORS_OF_NODE * part))
            elif self.largest[name] or _usual(name):
                share = max(share, part)
        return max(accelerators, NODE * share) - gpus, accelerators > 0


def sizes_of(snapshot: Snapshot, cache: PlannerCache | None = None) -> Sizes:
    """The sizes of gangs of a snapshot; ``cache``: of the planner."""
    weights = snapshot.config.rules.accounting.gpus
    known = cache.get(snapshot.fleet, Sizes) if cache is not None else None
    if known is None or known.weights != weights:
        largest = _largest(snapshot.fleet)
        last = cache.latest(Sizes) if cache is not None else None
        same = last is not None and (last.weights, last.largest) == (weights, largest)
        known = last if last is not None and same else Sizes(weights, largest)
        if cache is not None:
            cache.keep(snapshot.fleet, cache.keep_latest(known))
    if cache is not None and not cache.is_fork:
        known.forget_ended(len(snapshot.admitted))
    return known


def _largest(fleet: Fleet) -> Resources:
    largest: dict[str, int] = {}
    for amounts in {id(n.allocatable): n.allocatable for n in fleet.nodes}.values():
        for name, amount in amounts.items():
            largest[name] = max(largest.get(name, 0), amount)
    return Resources(largest)


def _usual(resource: str) -> int:
    """The usual amount of a node; 0 for a resource of which nothing is known."""
    return _USUAL.get(resource, _USUAL_DEVICES if "/" in resource else 0)


# ---- Lost work


# GPU-seconds every eviction loses in addition to its work: images, containers and rendezvous, about a minute of one GPU. It
# keeps an idle victim from being free, so that no needless one is ever taken.
RESTART_COST: Final = 60

# The same for a pod above the minimum of an elastic gang, which runs on without it: of two equal losses, it is the smaller one.
RELEASE_COST: Final = 30

MOST_WORK: Final = 1 << 40
"""GPU-seconds, 35,000 GPU-years. More count as so many, so that sums over the gangs of a cluster stay in the range of the solver."""


@dataclass(frozen=True, eq=False, slots=True)
class Ages:
    """The inputs of the cost of some gangs, one entry per gang; NaN where nothing was declared. A held gang starts at infinity."""

    started: NDArray[np.float64]
    checkpoint: NDArray[np.float64]
    utilization: NDArray[np.float64]
    accelerators: NDArray[np.float64]
    without_accelerators: NDArray[np.float64]
    restart: Ints

    def join(self, more: Ages) -> Ages:
        """Those of these gangs, then of more."""
        names = [part.name for part in fields(Ages)]
        pairs = ((getattr(self, name), getattr(more, name)) for name in names)
        return Ages(*map(np.concatenate, pairs))

    def take(self, order: Ints) -> Ages:
        """Those of some gangs, by index, in this order."""
        return Ages(*(getattr(self, part.name)[order] for part in fields(Ages)))

    def lost_work(self, now: float) -> Ints:
        """GPU-seconds each gang would lose, restart included. The median of the declared checkpoints counts for undeclared ones.

        ``now``: unix seconds; checkpoints declared later than that are clamped to it.
        """
        saved = np.minimum(self.checkpoint, now)
        typical = self._typical(now)
        since = np.maximum(self.started, np.where(np.isnan(saved), typical, saved))
        used = np.where(np.isnan(self.utilization), 1.0, np.clip(self.utilization, 0.0, 1.0))
        work = np.ceil(
            (self.accelerators * used + self.without_accelerators) * np.maximum(0.0, now - since)
        )
        return np.minimum(work, MOST_WORK).astype(np.int64) + self.restart

    def known_starts(self, now: float) -> NDArray[np.float64]:
        """When each started (unix seconds); minus infinity where its loss is a guess, because its checkpoints are not known."""
        guessed = np.isnan(self.checkpoint) & (self.started < self._typical(now))
        return np.where(guessed, -np.inf, self.started)

    def _typical(self, now: float) -> float:
        """The median of the declared checkpoints; minus infinity without any."""
        saved = np.minimum(self.checkpoint, now)
        declared = np.sort(saved[~np.isnan(saved)])
        return float(declared[(len(declared) - 1) // 2]) if len(declared) else -np.inf


def ages_of(gangs: Sequence[Admitted], sizes: Sizes) -> Ages:
    """Collect the ages of some gangs, in their order."""
    nan = float("nan")
    gpus = [sizes.of_running(g) for g in gangs]
    return Ages(
        np.array([np.inf if g.held else g.started_at for g in gangs], dtype=np.float64),
        np.array([nan if g.checkpoint_at is None else g.checkpoint_at for g in gangs], np.float64),
        np.array([nan if g.utilization is None else g.utilization for g in gangs], np.float64),
        np.array([size.accelerators for size in gpus], dtype=np.float64),
        np.array([size.without_accelerators for size in gpus], dtype=np.float64),
        np.array([_restart(g) for g in gangs], dtype=np.int64),
    )


def _restart(gang: Admitted) -> int:
    return RELEASE_COST if gang.workload.grows else RESTART_COST


def costs(candidates: Sequence[Admitted], now: float, sizes: Sizes) -> Mapping[str, Cost]:
    """Cost of evicting each candidate, by uid."""
    ages = ages_of(candidates, sizes)
    lost = ages.lost_work(now)
    return {
        c.workload.uid: cost_of(c, int(work), sizes)
        for c, work in zip(candidates, lost, strict=True)
    }


def cost_of(gang: Admitted, lost: int, sizes: Sizes) -> Cost:
    """The cost of evicting a gang that loses so many GPU-seconds."""
    others = sizes.of_running(gang).total - float(gang.gpus)
    return Cost(gang.workload.priority, lost, gang.gpus, others)


_RANGE: Final = 1 << 58  # of one goal's value; leaves the solver a factor of four


@dataclass(frozen=True, eq=False, slots=True)
class Goal:
    """Minimize ``sum(weight of each victim) + rank_weight * rank of the highest priority touched``."""

    weight: Ints
    rank_weight: int = 0

    def cost(self, victims: Mask, rank: Ints) -> int:
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


def goals(
    lost: Ints, rank: Ints, order: Sequence[VictimKey], older: Ints | None = None
) -> Iterator[Goal]:
    """The goals of some layers, first to last, over candidates with this lost work and these ranks. Shape (C,) each.

    ``older`` decides between equal victims. It never becomes a separate goal, which would take as long as all others.
    """
    zero = np.zeros(len(lost), dtype=np.int64)
    last = zero if older is None else older
    value = {VictimKey.LOST_WORK: lost, VictimKey.COUNT: zero + 1, None: last}
    keys = iter((*order, None))
    bounds = [_bound(lost, rank, key) for key in order]
    for weights in stages([*bounds, int(last.sum())], _RANGE):
        of = dict(zip(keys, weights, strict=False))
        if of.keys() != {None}:
            weight = sum((of[key] * each for key, each in value.items() if key in of), zero)
            yield Goal(weight, of.get(VictimKey.MAX_PRIORITY, 0))


def older_of(starts: NDArray[np.float64], lost: Ints, rank: Ints) -> Ints:
    """Of each gang, how many starts of gangs of the same priority with the same loss are later. Shape (C,) each."""
    older = np.zeros(len(lost), dtype=np.int64)
    alike = np.unique(np.stack([rank, lost]), axis=1, return_inverse=True)[1].reshape(-1)
    if not len(lost) or int(alike.max()) + 1 == len(lost):
        return older
    for group in np.flatnonzero(np.bincount(alike) > 1).tolist():
        these = np.flatnonzero(alike == group)
        older[these] = np.unique(-starts[these], return_inverse=True)[1]
    return older


def _bound(lost: Ints, rank: Ints, key: VictimKey) -> int:
    """The largest value a layer can take."""
    if key is VictimKey.LOST_WORK:
        return int(lost.sum())
    return int(rank.max(initial=0)) if key is VictimKey.MAX_PRIORITY else len(rank)
