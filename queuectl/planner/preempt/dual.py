"""The best way to share out the weights of gangs over the pods their exit gains: a floor, and a guide to good victims.

Where gangs span nodes and nodes have several tenants, no price by node or by gang is near the truth. Each *place* (the k-th
pod a node could gain) has gangs that must have left for it. However the weight of each gang is shared out over the places it
stands in the way of, any victims cost at least as much as the ``need`` cheapest places; the sharing for which that is most
is the dual of the model's linear relaxation. It is climbed in floating point and read in integers, which stay a floor
whatever was found. The same shares tell which nodes no better set uses, and in which order a greedy one should go.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from queuectl.planner.preempt.ground import Ground
from queuectl.planner.preempt.scene import Floats
from queuectl.planner.problem.topology import Ints, Mask

_ROUNDS: Final = 120
_PATIENCE: Final = 8  # rounds without a better floor before smaller steps are made
_SMALLEST: Final = 0.02
_ROWS: Final = 60_000  # more are not worth their time
_TRUST: Final = 0.98  # in shares against what a place would add now, when going greedily


@dataclass(frozen=True, eq=False, slots=True)
class Places:
    """What a ground could gain, pod by pod; P places, K pairs of a place and a gang in its way.

    Attributes:
        node: local number of the node. Shape (P,).
        pods: the how many-th pod of the node it is. Shape (P,).
        place, gang: the pairs. Shape (K,).
    """

    node: Ints
    pods: Ints
    place: Ints
    gang: Ints


def places_of(ground: Ground) -> Places | None:
    """The places of a ground, None when there are too many pairs to be worth it."""
    node: list[int] = []
    pods: list[int] = []
    place: list[int] = []
    gang: list[int] = []
    for at, most in enumerate(ground.delta):
        without = ground.without(at)
        for count in range(1, most + 1):
            for tenant, gain in without.items():
                if gain < count:
                    place.append(len(node))
                    gang.append(tenant)
            node.append(at)
            pods.append(count)
        if len(place) > _ROWS:
            return None
    arrays = (np.array(part, dtype=np.int64) for part in (node, pods, place, gang))
    return Places(*arrays)


@dataclass(frozen=True, eq=False, slots=True)
class Shares:
    """Weights shared out: ``cost`` of each place. Shape (P,)."""

    places: Places
    need: int
    cost: Ints

    @property
    def floor(self) -> int:
        """What any victims that gain ``need`` pods cost at least."""
        return int(self._sorted()[: self.need].sum())

    def _sorted(self) -> Ints:
        found: Ints = np.partition(self.cost, self.need - 1)
        return found

    def worth(self, known: int) -> Mask:
        """Places that victims cheaper than ``known`` may gain."""
        dearest = int(self._sorted()[self.need - 1])
        useful: Mask = self.cost < known - self.floor + dearest
        return useful

    def order(self, weight: Ints) -> Iterator[int]:
        """Gangs to evict one after the other: of the place that is cheapest by its share and by what it adds then."""
        blockers, held = self._cheapest()
        added = {at: float(weight[list(gangs)].sum()) for at, gangs in blockers.items()}
        share = {at: float(self.cost[at]) for at in blockers}

        def price(at: int) -> float:
            return _TRUST * share[at] + (1.0 - _TRUST) * added[at]

        heap = [(price(at), at) for at in blockers]
        heapq.heapify(heap)
        gone: set[int] = set()
        taken: set[int] = set()
        while heap:
            asked, at = heapq.heappop(heap)
            if at in taken or asked != price(at):
                continue
            taken.add(at)
            for gang in blockers[at]:
                if gang not in gone:
                    gone.add(gang)
                    yield gang
                    for other in held[gang]:
                        added[other] -= float(weight[gang])
                        if other not in taken:
                            heapq.heappush(heap, (price(other), other))

    def _cheapest(self) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
        """Of the cheapest places: place to the gangs in its way, and gang to the places it is in the way of."""
        most = min(len(self.cost), 4 * self.need + 64)
        chosen = np.sort(np.argsort(self.cost, kind="stable")[:most])
        inside = np.isin(self.places.place, chosen)
        blockers: dict[int, list[int]] = {at: [] for at in chosen.tolist()}
        held: dict[int, list[int]] = {}
        pairs = zip(
            self.places.place[inside].tolist(), self.places.gang[inside].tolist(), strict=True
        )
        for at, gang in pairs:
            blockers[at].append(gang)
            held.setdefault(gang, []).append(at)
        return blockers, held


def share_out(places: Places, need: int, weight: Ints, known: int) -> Shares | None:
    """Share out the weights so that the floor is as high as was found, or reaches ``known``.

    None when there are not enough places.
    """
    if need < 1 or len(places.node) < need:
        return None
    gang = places.gang
    shared = np.bincount(gang, minlength=len(weight))
    share = weight[gang] / np.maximum(shared[gang], 1)
    best = _climb(places, need, weight, share, known)
    return Shares(places, need, _cost(places, _whole(best, gang, weight)))


def _climb(places: Places, need: int, weight: Ints, share: Floats, known: int) -> Floats:
    """Move shares towards the places that are among the cheapest, by ever smaller steps."""
    gang, count = places.gang, np.maximum(np.bincount(places.gang, minlength=len(weight)), 1)
    best, floor, reach, idle = share, -1.0, 1.0, 0
    for _ in range(_ROUNDS):
        cost = np.bincount(places.place, weights=share, minlength=len(places.node))
        cheapest = np.argpartition(cost, need - 1)[:need]
        found = float(cost[cheapest].sum())
        best, floor, idle = (share, found, 0) if found > floor else (best, floor, idle + 1)
        if idle == _PATIENCE:
            reach, idle = reach / 2, 0
        if floor >= known or reach < _SMALLEST:
            break
        among = np.zeros(len(places.node))
        among[cheapest] = 1.0
        pull = among[places.place]
        pull -= (np.bincount(gang, weights=pull, minlength=len(weight)) / count)[gang]
        force = float((pull * pull).sum())
        if force <= 0.0:
            break
        share = np.maximum(share + reach * (known - found) / force * pull, 0.0)
        total = np.bincount(gang, weights=share, minlength=len(weight))
        share = share * (weight / np.where(total > 0, total, 1.0))[gang]
    return best


def _whole(share: Floats, gang: Ints, weight: Ints) -> Ints:
    """Shares as integers that add up to the weight of each gang: what rounding leaves goes to its largest share."""
    whole = np.floor(share).astype(np.int64)
    total = np.zeros(len(weight), dtype=np.int64)
    np.add.at(total, gang, whole)
    order = np.lexsort((whole, gang))
    last = np.flatnonzero(np.diff(gang[order], append=-1))
    largest = order[last]
    whole[largest] += weight[gang[largest]] - total[gang[largest]]
    return whole


def _cost(places: Places, share: Ints) -> Ints:
    cost = np.zeros(len(places.node), dtype=np.int64)
    np.add.at(cost, places.place, share)
    return cost
