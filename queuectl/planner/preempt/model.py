"""Which candidates are evicted, and where the pods of the gang go then: lower bounds on the cost in each domain, and the exact model.

Preferred topology levels do not count: no gang is evicted for a preference.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from queuectl.planner.capacity.node_counts import NodeCounts
from queuectl.planner.model.builder import STAYS, Exits, ModelBuilder
from queuectl.planner.model.classes import PlacementClasses
from queuectl.planner.placement.feasible import arrange, refuted_by_sums
from queuectl.planner.placement.greedy import exact, find, first, on_fleet
from queuectl.planner.placement.single import ShapeCapacity
from queuectl.planner.preempt.candidates import CandidateTable, Rows
from queuectl.planner.preempt.cost import Goal
from queuectl.planner.preempt.shortage import Deficits
from queuectl.planner.problem.fleet import Ints, Mask, Tree
from queuectl.planner.problem.problem import Shape, caps, most_pods
from queuectl.planner.problem.request import ANYWHERE, GangRequest, on_nodes
from queuectl.planner.solver import Solver, Status

# ---- The gain of evictions in each domain, and lower bounds on their cost there
#
# Each shape of pod is judged alone: where it has no room, the gang has none. Two bounds, each tighter and dearer than the one before:
#
# - *By gang*, for all domains at once: a fractional knapsack over the pods that each candidate's exit gains at most.
# - *By place*, for one domain: a Lagrangian bound. A place is the k-th pod that a node could gain; it is blocked by every tenant
#   without whose exit the node gains fewer than k. However the weight of each candidate is shared out over the places it blocks, any
#   victims cost at least as much as the cheapest places that are needed. The subgradient method (Polyak's step) searches for the shares for
#   which that is most; it is read in integers, so any result is a valid bound. It also shows which places no cheaper set uses.


Floats = NDArray[np.float64]

_ROUNDS: Final = 120
_STALLED_ROUNDS: Final = 8  # rounds without a better bound before smaller steps are made
_SMALLEST: Final = 0.02
_PAIRS: Final = 60_000  # of a place and a gang that blocks it; more are not worth their time


@dataclass(frozen=True, eq=False, slots=True)
class CoLocatedPods:
    """Pods that must share one domain of ``level`` (``ANYWHERE`` = none): count per shape."""

    tree: Tree
    level: int
    counts: tuple[tuple[Shape, int], ...]

    @property
    def domains(self) -> tuple[Ints, int]:
        """Domain of each node at the part's level (-1 = none), and how many domains there are."""
        if self.level == ANYWHERE:
            return np.where(self.tree.position < len(self.tree.position), 0, -1), 1
        return self.tree.domain[self.level], len(self.tree.names[self.level])

    def holding(self, shape: Shape, fits: Ints) -> Ints:
        """Pods of a shape that each domain holds, in whole slices if it has any, given how many fit each node."""
        if not shape.slices:
            return sums(*self.domains, fits)
        return ShapeCapacity(self.tree, fits, shape.slices).holding(self.level)


def parts_of(request: GangRequest) -> tuple[CoLocatedPods, ...]:
    """PodSet groups as parts; those that can be anywhere in the same tree become one."""
    parts: dict[object, tuple[Tree, int, dict[Shape, int]]] = {}
    for number, group in enumerate(request.podset_groups):
        level = ANYWHERE if group.on_one_node else group.required
        key = group.tree if level == ANYWHERE else number
        counts = parts.setdefault(key, (group.tree, level, {}))[2]
        for pods in group.to_place:
            counts[pods.shape] = counts.get(pods.shape, 0) + pods.count
    return tuple(
        CoLocatedPods(tree, level, tuple(counts.items())) for tree, level, counts in parts.values()
    )


def sums(domain: Ints, domains: int, per_node: Ints) -> Ints:
    """Exact sum of a per-node quantity over each domain."""
    inside = domain >= 0
    totals = np.zeros(domains, dtype=np.int64)
    np.add.at(totals, domain[inside], per_node[inside])
    return totals


@dataclass(frozen=True, eq=False, slots=True)
class Deficit:
    """The shortage of one shape of a part in each of D domains, and what C candidates could free of it; N nodes.

    Attributes:
        cap: pods that fit each node now. Shape (N,).
        delta: pods more that fit each node with all candidates gone. Shape (N,).
        domain: domain of each node, -1 for none. Shape (N,).
        need: pods each domain is short of; 0 or less = none. Shape (D,).
        viable: domains that could hold the pods. Shape (D,).
        gang, node: what candidates hold of nodes that could gain, one entry per pair. Shape (K,).
        without: pods that the node gains if all candidates but this one leave it. Shape (K,).
        offers: the pods that a candidate's exit gains a domain at most, as (domain, gang, pods) arrays.
    """

    cap: Ints
    delta: Ints
    domain: Ints
    need: Ints
    viable: Mask
    gang: Ints
    node: Ints
    without: Ints
    offers: tuple[Ints, Ints, Floats]

    def lower_bounds(self, weight: Ints) -> Floats:
        """Least cost of each domain's need by gang; infinite where it cannot be met. A little is taken off for rounding."""
        domain, gang, gain = self.offers
        density = weight[gang] / gain
        order = np.lexsort((density, domain))
        domain, gain, price = domain[order], gain[order], density[order]
        domains = len(self.need)
        total = np.cumsum(gain)
        first = np.searchsorted(domain, np.arange(domains))
        before = np.concatenate([[0.0], total])[first]
        filled = total - before[domain] - gain
        need = np.maximum(self.need, 0).astype(np.float64)
        taken = np.clip(need[domain] - filled, 0.0, gain)
        cost = np.bincount(domain, weights=taken * price, minlength=domains)
        return np.where(self.viable, cost * (1.0 - 1e-9) - 1e-3, np.inf)

    def shares(self, size: int, domain: int | None) -> Floats:
        """The part of the need that each of ``size`` candidates could meet in one domain, or where that is most. Shape (C,)."""
        share = np.zeros(size)
        of, gang, gain = self.offers
        here = of == domain if domain is not None else of >= 0
        part = np.minimum(gain / np.maximum(self.need, 1)[of], 1.0)
        np.maximum.at(share, gang[here], part[here])
        return share

    def places(self, domain: int, weight: Ints, cost_limit: int) -> Places | None:
        """The bound by place in one domain, as high as was found or as ``cost_limit``; None where it is not worth its time."""
        need = int(self.need[domain])
        nodes = np.flatnonzero((self.domain == domain) & (self.delta > 0))
        delta = self.delta[nodes]
        if need < 1 or delta.sum() < need:
            return None
        first = np.full(len(self.delta), -1, dtype=np.int64)
        first[nodes] = np.cumsum(delta) - delta
        rows = np.flatnonzero((first[self.node] >= 0) & (self.without < self.delta[self.node]))
        blocked = self.delta[self.node[rows]] - self.without[rows]
        if blocked.sum() > _PAIRS:
            return None
        within = np.arange(blocked.sum()) - np.repeat(np.cumsum(blocked) - blocked, blocked)
        place = np.repeat(first[self.node[rows]] + self.without[rows], blocked) + within
        gang = np.repeat(self.gang[rows], blocked)
        at = np.repeat(nodes, delta)
        pods = np.arange(len(at)) - first[at] + 1
        cost = _share_out(gang, place, len(at), need, weight, cost_limit)
        return Places(at, pods, cost, need, place, gang)

    def narrowed(self, places: Places, cost_limit: int) -> Deficit:
        """The same without gains that only victims dearer than ``cost_limit`` have a use for."""
        delta = self.delta.copy()
        worthless = ~places.worth(cost_limit)
        np.minimum.at(delta, places.node[worthless], places.pods[worthless] - 1)
        return replace(self, delta=delta)


@dataclass(frozen=True, eq=False, slots=True)
class Places:
    """Pods that the nodes of one domain could gain, P of them, and the K pairs of a place and a gang that blocks it.

    Attributes:
        node, pods: the node, and the how many-th pod of it. Shape (P,).
        cost: the shares of the weights of the gangs that block it. Shape (P,).
        need: how many places are needed.
        place, gang: the pairs. Shape (K,).
    """

    node: Ints
    pods: Ints
    cost: Ints
    need: int
    place: Ints
    gang: Ints

    @property
    def lower_bound(self) -> int:
        """A lower bound on the cost of victims that gain the needed pods."""
        return int(self._cheapest().sum())

    def order(self, size: int) -> Floats:
        """Of ``size`` candidates, how early each is evicted where the cheapest places are cleared first. Shape (C,)."""
        rank = np.empty(len(self.cost))
        rank[np.argsort(self.cost, kind="stable")] = np.arange(len(self.cost))
        first = np.full(size, np.inf)
        np.minimum.at(first, self.gang, rank[self.place])
        return first / self.need

    def _cheapest(self) -> Ints:
        found: Ints = np.partition(self.cost, self.need - 1)[: self.need]
        return found

    def worth(self, cost_limit: int) -> Mask:
        """Places that victims cheaper than ``cost_limit`` may gain."""
        cheapest = self._cheapest()
        useful: Mask = self.cost < cost_limit - cheapest.sum() + cheapest.max()
        return useful


def deficit_of(part: CoLocatedPods, shape: Shape, free: Ints, table: CandidateTable) -> Deficit:
    """The deficit of one shape of a part, all candidates of the table considered; ``free`` (R, N) is what is free before."""
    count = dict(part.counts)[shape]
    domain, domains = part.domains
    after = free + table.freed(free.shape[1])
    cap, most = caps(free, shape), caps(after, shape)
    viable = part.holding(shape, most) >= count
    delta = np.where((domain >= 0) & viable[domain], most - cap, 0)
    need = count - sums(domain, domains, cap)
    columns = list(shape.columns)
    rows = table.rows.select(delta[table.rows.node] > 0)
    rows = rows.select((rows.use[columns] > 0).sum(axis=0) > 0)
    ask, use = shape.vector[columns][:, None], rows.use[columns]
    rest = most_pods(after[:, rows.node] - rows.use, shape.vector, columns)
    without = np.clip(rest - cap[rows.node], 0, delta[rows.node])
    key = domain[rows.node] * max(table.size, 1) + rows.gang
    pairs, at = np.unique(key, return_inverse=True)
    gain: Floats = np.zeros(len(pairs))
    np.add.at(gain, at, _gains(free[columns], ask, cap, delta, rows.node, use))
    pairs, gain = pairs[gain > 0], gain[gain > 0]
    offers = (pairs // max(table.size, 1), pairs % max(table.size, 1), gain)
    return Deficit(cap, delta, domain, need, viable, rows.gang, rows.node, without, offers)


def _gains(free: Ints, ask: Ints, cap: Ints, delta: Ints, node: Ints, use: Ints) -> Floats:
    """Per row, an upper bound on the pods a node gains by that gang's exit; sums over victims bound the real gain.

    Each node is judged by the one resource that bounds it most tightly, the same for all its tenants (two tenants that
    each free another resource must not hide each other). The rest of the node beyond whole pods is credited to
    every tenant that frees some of it, since any of them can be the one that completes a pod.
    """
    if not len(node):
        return np.zeros(0)
    left = np.maximum(free - ask * cap, 0)
    freed = np.zeros_like(left)
    for into, row in zip(freed, use, strict=True):
        np.add.at(into, node, row)
    tightest = np.argmin((left + freed) / ask, axis=0)[node]
    held = use[tightest, np.arange(len(tightest))]
    spare = left[tightest, node]
    per_pod = ask[tightest, 0]
    gain = np.where((held > 0) | (spare >= per_pod), (held + spare) / per_pod, 0.0)
    return np.minimum(gain, delta[node])


def _share_out(
    gang: Ints, place: Ints, places: int, need: int, weight: Ints, cost_limit: int
) -> Ints:
    """Each gang's weight over the places it blocks, so that the ``need`` cheapest cost as much as was found. Shape (P,)."""
    count = np.maximum(np.bincount(gang, minlength=len(weight)), 1)
    share = weight[gang] / count[gang]
    best, lower_bound, reach, idle = share, -1.0, 1.0, 0
    for _ in range(_ROUNDS):
        cost = np.bincount(place, weights=share, minlength=places)
        cheapest = np.argpartition(cost, need - 1)[:need]
        cheapest_cost = float(cost[cheapest].sum())
        best, lower_bound, idle = (
            (share, cheapest_cost, 0)
            if cheapest_cost > lower_bound
            else (best, lower_bound, idle + 1)
        )
        if idle == _STALLED_ROUNDS:
            reach, idle = reach / 2, 0
        if lower_bound >= cost_limit or reach < _SMALLEST:
            break
        among = np.zeros(places)
        among[cheapest] = 1.0
        pull = among[place]
        pull -= (np.bincount(gang, weights=pull, minlength=len(weight)) / count)[gang]
        force = float((pull * pull).sum())
        if force <= 0.0:
            break
        share = np.maximum(share + reach * (cost_limit - cheapest_cost) / force * pull, 0.0)
        total = np.bincount(gang, weights=share, minlength=len(weight))
        share = share * (weight / np.where(total > 0, total, 1.0))[gang]
    return _whole(best, gang, weight, place, places)


def _whole(share: Floats, gang: Ints, weight: Ints, place: Ints, places: int) -> Ints:
    """Cost of each place in integers that add up to the weight of each gang: its largest share takes what rounding leaves."""
    whole = np.floor(share).astype(np.int64)
    total = np.zeros(len(weight), dtype=np.int64)
    np.add.at(total, gang, whole)
    order = np.lexsort((whole, gang))
    largest = order[np.flatnonzero(np.diff(gang[order], append=-1))]
    whole[largest] += weight[gang[largest]] - total[gang[largest]]
    cost = np.zeros(places, dtype=np.int64)
    np.add.at(cost, place, whole)
    return cost


def quota_lower_bound(deficits: Deficits, weight: Ints) -> float:
    """Least cost of freeing each missing quota by itself; the dearest of them is a bound everywhere."""
    return max((_knapsack(amount, frees, weight) for amount, frees in deficits), default=0.0)


def _knapsack(amount: int, frees: Ints, weight: Ints) -> float:
    able = np.flatnonzero(frees > 0)
    density = weight[able] / frees[able]
    order = np.argsort(density, kind="stable")
    gain = frees[able][order].astype(np.float64)
    filled = np.cumsum(gain) - gain
    taken = np.clip(amount - filled, 0.0, gain)
    return float((taken * density[order]).sum()) * (1.0 - 1e-9) - 1e-3


# ---- The model
#
# The model builder makes it (:mod:`queuectl.planner.model.builder`). Each candidate is an exit, and each podset group of the gang is placed
# in any case. The nodes of one node class also have the same tenants and the same free amounts. A class of several nodes is a relaxation,
# a class of one node is exact. Missing quota, and the rules about which candidates may leave together, are rows of
# :mod:`queuectl.planner.preempt.exit_order`.


class VictimModel:
    """Candidates as exits, what their eviction costs, and the room and the quota that it makes.

    Attributes:
        gangs: candidate numbers, in the order of their variables.
        exits: candidate to the variable of its eviction.
    """

    def __init__(
        self,
        request: GangRequest,
        free: Ints,
        table: CandidateTable,
        gangs: Sequence[int],
        nodes: Ints,
        rows: Rows,
        by_node: bool,
    ) -> None:
        """Build the rows of placements.

        Args:
            request: of the gang to be placed.
            free: (R, N) before any candidate leaves.
            table: all candidates.
            gangs: those that may leave in this model.
            nodes: the usable nodes.
            rows: what the candidates may free of them.
            by_node: each node is a separate class.
        """
        self.table, self.gangs = table, gangs
        marks = np.arange(free.shape[1]) if by_node else _alike(request, free, nodes, rows)
        groups = request.podset_groups
        classes = PlacementClasses(groups, free, nodes, free + rows.sums(free.shape[1]), marks)
        exits = Exits(gangs, rows.gang, rows.node, rows.use, [STAYS] * len(groups))
        self.built = ModelBuilder(classes, exits=exits)
        self.model, self.exits = self.built.model, self.built.exits

    def any_of(self, gangs: Sequence[int]) -> int:
        """A variable that is 1 if any of these candidates leaves."""
        return self.built.any_of([self.exits[g] for g in gangs])

    def free_quota(self, deficits: Iterable[tuple[int, np.ndarray]]) -> None:
        """At least the missing quota must come free."""
        for amount, frees in deficits:
            able = [g for g in self.gangs if frees[g] > 0]
            coeffs = [int(frees[g]) for g in able]
            self.model.row([self.exits[g] for g in able], coeffs, amount, sum(coeffs))

    def set_objective(
        self, goal: Goal, most: int | None, earlier: Iterable[tuple[Goal, int]]
    ) -> None:
        """Minimize ``goal``, at most ``most``; keep what earlier goals reached."""
        ranked = goal.rank_weight or any(g.rank_weight for g, _ in earlier)
        highest = self._highest() if ranked else -1
        variables, coeffs = self._terms(goal, highest)
        self.model.minimize(variables, coeffs)
        if most is not None:
            self.model.row(variables, coeffs, 0, most)
        for before, value in earlier:
            variables, coeffs = self._terms(before, highest)
            self.model.row(variables, coeffs, 0, value)

    def _terms(self, goal: Goal, highest: int) -> tuple[list[int], list[int]]:
        variables = [self.exits[g] for g in self.gangs]
        coeffs = [int(goal.weight[g]) for g in self.gangs]
        if goal.rank_weight:
            variables.append(highest)
            coeffs.append(goal.rank_weight)
        return variables, coeffs

    def _highest(self) -> int:
        """A variable no lower than the rank of any victim."""
        rank = self.table.rank
        highest = self.model.var(0, int(rank.max(initial=0)))
        for g in self.gangs:
            self.model.at_most([self.exits[g], highest], [int(rank[g]), -1], 0)
        return highest


def _alike(request: GangRequest, free: Ints, nodes: Ints, rows: Rows) -> Ints:
    """A number for each node, equal for nodes with the same free amounts and tenants. Shape (N,)."""
    columns = sorted({column for pods in request.pods for column in pods.shape.columns})
    tenants: dict[int, list[tuple[int, ...]]] = {node: [] for node in nodes.tolist()}
    for node, held in zip(
        rows.node.tolist(), np.vstack([rows.gang, rows.use[columns]]).T.tolist(), strict=True
    ):
        tenants[node].append(tuple(held))
    numbers: dict[object, int] = {}
    marks = np.zeros(free.shape[1], dtype=np.int64)
    for node, amounts in zip(nodes.tolist(), free[columns][:, nodes].T.tolist(), strict=True):
        marks[node] = numbers.setdefault((tuple(amounts), tuple(tenants[node])), len(numbers))
    return marks


@dataclass(frozen=True, eq=False)
class UsableNodes:
    """The n nodes that the gang could use, cut out of the fleet, in topology order: trying victims touches no others.

    Attributes:
        nodes: their indexes in the fleet. Shape (n,).
        request: the gang, as if no other nodes existed.
        free: (R, n) before any candidate leaves.
        table: the candidates, with what they hold of these nodes.
    """

    nodes: Ints
    request: GangRequest
    free: Ints
    table: CandidateTable

    @cached_property
    def _first_row(self) -> Ints:
        """Where the rows of each candidate begin, and where the last ones end. Shape (C + 1,)."""
        return np.searchsorted(self.table.rows.gang, np.arange(self.table.size + 1))

    def after(self, victims: Mask) -> Ints:
        """(R, n) free once these candidates (C,) have left."""
        return self.free + self.table.freed(len(self.nodes), victims)

    def without(self, free: Ints, gangs: Iterable[int]) -> Ints:
        """(R, n) what is left of a free matrix when these candidates do not leave after all."""
        left, rows = free.copy(), self.table.rows
        for gang in gangs:
            own = slice(self._first_row[gang], self._first_row[gang + 1])
            left[:, rows.node[own]] -= rows.use[:, own]
        return left

    def holds(self, free: Ints) -> bool:
        """Whether a placement is found on a free matrix (R, n); no proves nothing."""
        request = self.request
        if refuted_by_sums(request, free):
            return False
        if exact(request) and not any(pods.slices for pods in request.pods):
            return True  # of equal pods the sums are exact
        return first(request, free) is not None

    def place(self, victims: Mask) -> NodeCounts | None:
        """Where the gang runs then, by nodes of the fleet, drawn together if that is found; None when nothing is found."""
        free = self.after(victims)
        found = find(self.request, free, lambda shape: caps(free, shape))
        found = first(self.request, free) if found is None else found
        return None if found is None else on_fleet(self.nodes, found)

    def decide(self, victims: Mask, solver: Solver) -> tuple[Status, NodeCounts | None]:
        """Whether the gang fits then, by the model, and where by nodes of the fleet."""
        made = arrange((), [self.request], self.after(victims), solver, self.request.pending.budget)
        found = made.status is Status.SOLVED
        return made.status, on_fleet(self.nodes, made.new[0]) if found else None


def stage_of(request: GangRequest, free: Ints, table: CandidateTable, useful: Mask) -> UsableNodes:
    """Cut out the useful nodes (N,); all of the fleet where the gang's podset groups see it by different topologies."""
    trees = {podset_group.tree for podset_group in request.podset_groups}
    if len(trees) != 1:
        return UsableNodes(np.arange(free.shape[1]), request, free, table)
    nodes = trees.pop().order
    nodes = nodes[useful[nodes]]
    number = np.full(free.shape[1], -1, dtype=np.int64)
    number[nodes] = np.arange(len(nodes))
    rows = table.rows.select(number[table.rows.node] >= 0)
    here = Rows(rows.gang, number[rows.node], rows.use)
    cut = on_nodes(request, nodes)
    return UsableNodes(nodes, cut, free[:, nodes], replace(table, rows=here))
