"""What each node of a ground costs to clear, for a floor under the whole domain and for leaving dear nodes out.

A gang on several nodes has its weight shared out over them. Then the cost of a victim set is at least the sum, over the
nodes, of the least share that frees what the node gains: a floor by node, far tighter than the knapsack by gang where a
pod needs a node's tenants together. All in integers, so that a floor equal to the best set known is a proof.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import lcm

from queuectl.planner.preempt.ground import Ground
from queuectl.planner.problem.topology import Ints


@dataclass(frozen=True, slots=True)
class Price:
    """One node.

    Attributes:
        node: its local number.
        least: least[k - 1] = a floor of what gaining k pods here costs.
        clears: who has to leave for all of them.
        exact: the floors are costs: the tenants counted suffice.
        local: no tenant holds anything elsewhere on the ground.
    """

    node: int
    least: tuple[int, ...]
    clears: tuple[int, ...]
    exact: bool
    local: bool


def prices(ground: Ground, weight: Ints) -> list[Price]:
    """Prices of all nodes."""
    shares = _shares(ground, weight)
    return [_price(ground, node, shares[node]) for node in range(len(ground.nodes))]


def _shares(ground: Ground, weight: Ints) -> list[dict[int, int]]:
    """Each gang's weight over its nodes, in proportion to what they could gain; rounded down but on the first."""
    shares: list[dict[int, int]] = [{} for _ in ground.nodes]
    for gang, nodes in ground.reach.items():
        whole = int(weight[gang])
        total = sum(ground.delta[node] for node in nodes)
        parts = [whole * ground.delta[node] // total for node in nodes]
        parts[0] += whole - sum(parts)
        for node, part in zip(nodes, parts, strict=True):
            shares[node][gang] = part
    return shares


def _price(ground: Ground, node: int, share: dict[int, int]) -> Price:
    """To gain k pods everybody must leave without whom fewer are gained; that, or the fractional need of a resource."""
    without = ground.without(node)
    exact = True
    least = []
    clears: list[int] = []
    for pods in range(1, ground.delta[node] + 1):
        clears = [gang for gang, gain in without.items() if gain < pods]
        cost = sum(share[gang] for gang in clears)
        everybody = len(clears) == len(ground.tenants[node])
        if not everybody and ground.gain(node, clears) < pods:
            exact = False
            cost = max(cost, _fractional(ground, node, share, pods))
        least.append(cost)
    local = all(len(ground.reach[gang]) == 1 for gang in without)
    return Price(node, tuple(least), tuple(clears) if exact else tuple(without), exact, local)


def _fractional(ground: Ground, node: int, share: dict[int, int], pods: int) -> int:
    """The dearest resource's fractional knapsack, rounded down."""
    dearest = 0
    for column, ask in enumerate(ground.ask):
        short = ask * pods - ground.left[node][column]
        held = [(use[column], share[g]) for g, use in ground.tenants[node].items() if use[column]]
        held.sort(key=lambda pair: pair[1] / pair[0])
        cost = 0
        for use, part in held:
            if short <= 0:
                break
            cost += part if use <= short else part * short // use
            short -= use
        dearest = max(dearest, cost - 1)
    return dearest


def floor_of(ground: Ground, listed: list[Price]) -> int | None:
    """Least cost of the ground's need, node by node in convex steps; None when the nodes do not reach it."""
    steps = [step for price in listed for step in _steps(price)]
    scale = lcm(*{pods for pods, _ in steps})
    steps.sort(key=lambda step: step[1] * (scale // step[0]))
    need, total = ground.need, 0
    for pods, cost in steps:
        if need <= 0:
            break
        total += cost if pods <= need else -(-cost * need // pods)
        need -= pods
    return total if need <= 0 else None


def _steps(price: Price) -> Iterator[tuple[int, int]]:
    """(pods, cost) increments of the lower convex hull through the origin, cheapest per pod first."""
    at, paid = 0, 0
    while at < len(price.least):
        ahead = range(at + 1, len(price.least) + 1)
        best = at + 1
        for pods in ahead:
            if (price.least[pods - 1] - paid) * (best - at) <= (price.least[best - 1] - paid) * (
                pods - at
            ):
                best = pods
        yield best - at, price.least[best - 1] - paid
        at, paid = best, price.least[best - 1]


def worth_a_look(ground: Ground, listed: list[Price]) -> set[int]:
    """Nodes that some optimum needs no others than; only for sums of weights, without quota to free.

    Where a node's tenants are all its own and its prices exact, only the cheapest can matter: an irredundant set uses at
    most ``need`` nodes, so of the ``need`` cheapest for k pods one is always left to take a dearer one's place.
    """
    interchangeable = [p for p in listed if p.exact and p.local]
    kept = {p.node for p in listed} - {p.node for p in interchangeable}
    for pods in range(max((len(p.least) for p in interchangeable), default=0)):
        able = [p for p in interchangeable if len(p.least) > pods]
        able.sort(key=lambda p: (p.least[pods], p.node))
        kept.update(p.node for p in able[: ground.need])
    return kept
