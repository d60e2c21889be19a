"""The least victims for one gang under one set of candidates, domain by domain in the order of a lower bound.

A *scope* is one domain, where the gang is one part that must share one; otherwise all nodes at once. Greedy sets in the best-bounded scopes
give the first upper bound. A scope whose bound reaches it is proved not to be better; every other is decided by the exact model,
cut at the best set known. When the loop ends without a limit having cut a solve, the best set is the optimum over all scopes.

*Deficits* of quota are sums that every answer obeys, and all there is to say of victims of the gang's own ClusterQueue. Across queues
lending limits keep part of what leaves, and an order of exits must exist (:mod:`queuectl.planner.preempt.exit_order`). That is checked on
every set before it counts; a set that fails is cut off, with what fails for the same reason, and the model solved again.

The model is solved over node classes (nodes alike) first, a relaxation: if the gang is found to fit after its victims, they are
the optimum. If not, each node is a separate class, where the rows are exact.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np

from queuectl.planner.capacity.node_counts import NodeCounts
from queuectl.planner.preempt.candidates import CandidateTable
from queuectl.planner.preempt.cost import Goal
from queuectl.planner.preempt.exit_order import CandidateOrder, Cut
from queuectl.planner.preempt.model import (
    CoLocatedPods,
    Deficit,
    Floats,
    Places,
    UsableNodes,
    VictimModel,
    deficit_of,
    parts_of,
    quota_lower_bound,
    stage_of,
)
from queuectl.planner.preempt.shortage import Deficits, QuotaShortfall
from queuectl.planner.problem.fleet import Ints, Mask
from queuectl.planner.problem.problem import Shape
from queuectl.planner.problem.request import ANYWHERE, GangRequest
from queuectl.planner.solver import Solution, Solver, Status

Key: TypeAlias = tuple[int, Shape]  # number of a part, and one of its shapes

WHOLE: Final = -1
_FIRST_CHECK: Final = 8  # candidates taken greedily before the gang is placed for the first time
MOST_CUTS: Final = 60  # answers of one model that may turn out not to be legal
_VARIABLES: Final = 5  # of a model, that cost about as much as to place a gang


@dataclass(eq=False, slots=True)
class EvictionConstraints:
    """The constraints on the sets of one table.

    Attributes:
        shortfall: None for a gang that has no ClusterQueue.
        order: None where candidates may leave in any order.
        cuts: rows found on the way that every legal set obeys.
        beyond: gang of an elastic job to the one of the next higher rank, which leaves with it.
    """

    table: CandidateTable
    deficits: Deficits
    shortfall: QuotaShortfall | None = None
    order: CandidateOrder | None = None
    cuts: list[Cut] = field(default_factory=list)
    beyond: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self.beyond = grown_beyond(self.table)

    def with_beyond(self, gang: int) -> list[int]:
        """A gang, and before it those that leave with it, the highest rank first."""
        chain = [gang]
        while chain[-1] in self.beyond:
            chain.append(self.beyond[chain[-1]])
        return chain[::-1]

    @property
    def certain(self) -> bool:
        """Whether nothing legal is refused."""
        return self.order is None or self.order.certain

    def joining(self, order: Iterable[int], before: Iterable[int] = ()) -> Iterable[int]:
        """Of gangs that would be evicted one after the other, those that are legal with the ones before."""
        if self.beyond:
            known = set(before)
            every = (each for gang in order for each in self.with_beyond(gang))
            order = (g for g in dict.fromkeys(every) if g not in known)
        return order if self.order is None else self.order.joining(order, before)

    def admit(self, victims: Collection[int]) -> bool:
        """Whether these may leave together and free the quota that is missing."""
        if any(sum(int(frees[v]) for v in victims) < amount for amount, frees in self.deficits):
            return False
        if any(self.beyond.get(v, v) not in victims for v in victims):
            return False
        return self.frees(victims) and (self.order is None or self.order.legal(victims))

    def frees(self, victims: Collection[int]) -> bool:
        """Whether the deficits, which these make good, are all that is missing: lenders may keep part of what they free."""
        if self.shortfall is None or not self.shortfall.lenders_keep:
            return True
        return self.shortfall.met_without(victims, self.table.charges)

    def constrain(self, building: VictimModel) -> None:
        """All rows that are known."""
        building.free_quota(self.deficits)
        for gang, higher in self.beyond.items():
            if gang in building.exits:
                building.model.at_most([building.exits[gang], building.exits[higher]], [1, -1], 0)
        if self.order is not None:
            self.order.constrain(building)
        for cut in self.cuts:
            apply(cut, building)

    def refuse(self, victims: frozenset[int], building: VictimModel) -> None:
        """Cut an answer of the model off: it, and what is illegal for the same reason."""
        found = [] if self.order is None else list(self.order.cuts(victims))
        if not any(sum(cut[0].get(v, 0) for v in victims) > cut[1] for cut in found):
            others = dict.fromkeys((g for g in range(self.table.size) if g not in victims), -1)
            found.append((dict.fromkeys(victims, 1) | others, len(victims) - 1))
        for cut in found:
            self.cuts.append(cut)
            apply(cut, building)


def grown_beyond(table: CandidateTable) -> dict[int, int]:
    """Each candidate of an elastic job, but for that of the highest rank, to the candidate of the next higher rank.

    A gang is evicted after all pods that were added to it, the last one first.
    """
    families: dict[str, list[tuple[int, int]]] = {}
    uids = {gang.workload.uid: at for at, gang in enumerate(table.gangs)}
    for at, gang in enumerate(table.gangs):
        growth = gang.workload.growth
        if growth is not None:
            families.setdefault(growth.base, []).append((growth.rank, at))
    found: dict[int, int] = {}
    for base, ranks in families.items():
        chain = [at for _, at in sorted(ranks)]
        chain = [uids[base], *chain] if base in uids else chain
        found.update(pairwise(chain))
    return found


def apply(cut: Cut, building: VictimModel) -> None:
    """Add a row to a model; gangs it leaves out stay."""
    known = {building.exits[g]: c for g, c in cut[0].items() if g in building.exits}
    building.model.at_most(list(known), list(known.values()), cut[1])


@dataclass(eq=False, slots=True)
class BestVictims:
    """The best victim set so far.

    Attributes:
        victims: None until a set is found.
        node_counts: where the gang runs then.
        proved: False once a limit left something open.
    """

    victims: frozenset[int] | None = None
    node_counts: NodeCounts = ()
    proved: bool = True


@dataclass(eq=False)
class Search:
    """One request, one set of candidates, goal after goal.

    Attributes:
        free: (R, N) before any candidate leaves.
        parts: of the request; none where it asks for quota alone.
        deficits: per part and shape, what its pods lack.
        by_domain: whether a scope is one domain.
    """

    request: GangRequest
    free: Ints
    table: CandidateTable
    terms: EvictionConstraints
    solver: Solver
    parts: tuple[CoLocatedPods, ...] = field(init=False)
    best_victims: BestVictims = field(default_factory=BestVictims)
    _stages: dict[int, UsableNodes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.parts = parts_of(self.request)
        self.deficits = {
            (number, shape): deficit_of(part, shape, self.free, self.table)
            for number, part in enumerate(self.parts)
            for shape, _ in part.counts
        }
        self.by_domain = len(self.parts) == 1 and self.parts[0].level != ANYWHERE

    def run(self, goals: Sequence[Goal]) -> BestVictims:
        """Minimize the goals one after the other."""
        earlier: list[tuple[Goal, int]] = []
        for goal in goals:
            for number, (lower_bound, scope) in enumerate(self.scopes(goal)):
                if not number and not earlier:
                    self._greedy(scope, goal, {})  # often reaches the bound
                if self._beaten(lower_bound, goal):
                    break
                places = self._places(scope, goal)
                least = max((part.lower_bound for part in places.values()), default=lower_bound)
                if not earlier and (number or places) and not self._beaten(least, goal):
                    self._greedy(scope, goal, places)
                if not self._beaten(least, goal):
                    self._solve(scope, goal, earlier, places)
            if self.best_victims.victims is None:
                break
            earlier.append((goal, self._value(goal, self.best_victims.victims)))
        return self.best_victims

    def scopes(self, goal: Goal) -> list[tuple[float, int]]:
        """Scopes with a lower bound on what they cost, cheapest first."""
        least = quota_lower_bound(self.terms.deficits, goal.weight)
        lower_bounds = [deficit.lower_bounds(goal.weight) for deficit in self.deficits.values()]
        if self.by_domain:
            greatest = np.maximum(np.max(np.stack(lower_bounds), axis=0), least)
            return sorted((f, d) for d, f in enumerate(greatest.tolist()) if np.isfinite(f))
        least = max((least, *(float(row.min(initial=np.inf)) for row in lower_bounds)))
        return [(least, WHOLE)] if np.isfinite(least) else []

    def _places(self, scope: int, goal: Goal) -> dict[Key, Places]:
        """The bound by place, for each shape whose domain is known."""
        best = self._best(goal)
        known = best if best is not None else int(goal.weight.sum()) + 1
        found = {
            (number, shape): deficit.places(max(scope, 0), goal.weight, known)
            for (number, shape), deficit in self.deficits.items()
            if self.by_domain or self.parts[number].level == ANYWHERE
        }
        return {key: places for key, places in found.items() if places is not None}

    def _beaten(self, lower_bound: float, goal: Goal) -> bool:
        """Whether nothing above this bound can be better than the best set known."""
        best = self._best(goal)
        return best is not None and lower_bound >= best

    def _best(self, goal: Goal) -> int | None:
        """The cost of the best known set; None = none is known."""
        return (
            None
            if self.best_victims.victims is None
            else self._value(goal, self.best_victims.victims)
        )

    def _value(self, goal: Goal, victims: frozenset[int]) -> int:
        return goal.cost(self.table.mask(victims), self.table.rank)

    # Upper bounds.

    def _greedy(self, scope: int, goal: Goal, places: Mapping[Key, Places]) -> None:
        """The shortest prefix of an order of eviction that makes room, and what frees missing quota most cheaply; pruned."""
        room = self._for_room(scope, self._order(scope, goal.weight, places))
        victims = None if room is None else self._for_quota(room, goal.weight)
        if victims is not None and self.terms.admit(victims):
            self._offer(self._pruned(victims, scope, goal), scope, goal)

    def _order(self, scope: int, weight: Ints, places: Mapping[Key, Places]) -> list[int]:
        """Candidates in the order of the cheapest places they block, then by what they cost for what they could gain."""
        first = np.full(self.table.size, np.inf)
        for part in places.values():
            first = np.minimum(first, part.order(self.table.size))
        share = self.shares(scope)
        useful = np.flatnonzero(share > 0)
        found: list[int] = useful[
            np.lexsort((weight[useful] / share[useful], first[useful]))
        ].tolist()
        return found

    def _for_room(self, scope: int, order: Sequence[int]) -> list[int] | None:
        """The shortest prefix, of those that may leave together, after which the gang is found to fit."""
        victims: list[int] = []
        low, high = 0, _FIRST_CHECK
        for gang in self.terms.joining(order):
            if len(victims) == high:
                if self._fits(victims, scope):
                    break
                low, high = high + 1, 2 * high
            victims.append(gang)
        high = len(victims)
        if not self._fits(victims, scope):
            return None
        sizes = range(low, high)
        return victims[
            : low + bisect_left(sizes, True, key=lambda n: self._fits(victims[:n], scope))
        ]

    def _for_quota(self, victims: list[int], weight: Ints) -> frozenset[int]:
        """With those that free most of missing quota for what they cost, until none is missing."""
        for amount, frees in self.terms.deficits:
            useful = np.flatnonzero(frees > 0)
            order = useful[np.argsort(weight[useful] / frees[useful], kind="stable")].tolist()
            there, freed = set(victims), int(frees[victims].sum())
            for gang in self.terms.joining((g for g in order if g not in there), victims):
                if freed >= amount and self.terms.frees(victims):
                    break
                victims = [*victims, gang]
                freed += int(frees[gang])
        return frozenset(victims)

    def shares(self, scope: int) -> Floats:
        """The part of the needs that each candidate could meet in a scope. Shape (C,)."""
        share = np.zeros(self.table.size)
        for deficit in self.deficits.values():
            there = deficit.shares(self.table.size, scope if self.by_domain else None)
            share = np.maximum(share, there)
        return share

    def _pruned(self, victims: frozenset[int], scope: int, goal: Goal) -> frozenset[int]:
        """Without those that turn out not to be needed, dearest first: many at once, then ever fewer, at last one by one."""
        order = sorted(victims, key=lambda g: (-int(goal.weight[g]), g))
        stage = self._stage(scope)
        free = stage.after(self.table.mask(victims))
        chunk = max(1, len(order) // 2)
        while True:
            for at in range(0, len(order), chunk):
                stay = order[at : at + chunk]
                fewer = victims.difference(stay)
                if self.terms.admit(fewer) and stage.holds(left := stage.without(free, stay)):
                    victims, free = fewer, left
            if chunk == 1:
                return victims
            chunk //= 2
            order = [g for g in order if g in victims]

    def _fits(self, victims: Iterable[int], scope: int) -> bool:
        stage = self._stage(scope)
        return stage.holds(stage.after(self.table.mask(victims)))

    def _place(self, victims: frozenset[int], scope: int) -> NodeCounts | None:
        """Where the gang is found to fit then."""
        return self._stage(scope).place(self.table.mask(victims))

    def _stage(self, scope: int) -> UsableNodes:
        if scope not in self._stages:
            useful = self.useful(self.deficits, scope)
            self._stages[scope] = stage_of(self.request, self.free, self.table, useful)
        return self._stages[scope]

    def useful(self, deficits: Mapping[Key, Deficit], scope: int) -> Mask:
        """Nodes of a scope that hold a pod now or could after evictions. Shape (N,)."""
        useful = np.zeros(self.free.shape[1], dtype=np.bool_)
        for deficit in deficits.values():
            useful |= deficit.cap + deficit.delta > 0
            if self.by_domain and scope != WHOLE:
                useful &= deficit.domain == scope
        return useful

    def _offer(
        self, victims: frozenset[int], scope: int, goal: Goal, node_counts: NodeCounts | None = None
    ) -> None:
        best = self._best(goal)
        if best is None or self._value(goal, victims) < best:
            placed = node_counts if node_counts is not None else self._place(victims, scope)
            assert placed is not None, "it was found to fit"
            self.best_victims.victims, self.best_victims.node_counts = victims, placed

    # The exact answer.

    def _solve(
        self,
        scope: int,
        goal: Goal,
        earlier: Sequence[tuple[Goal, int]],
        places: Mapping[Key, Places],
    ) -> None:
        """By node classes; by single nodes where the victims that the classes suggest are not found to make room."""
        deficits, best = dict(self.deficits), self._best(goal)
        if best is not None:
            deficits.update((k, deficits[k].narrowed(p, best)) for k, p in places.items())
        for by_node in (False, True):
            building = self._model(scope, deficits, by_node=by_node)
            building.set_objective(goal, None if best is None else best - (not earlier), earlier)
            outcome, node_counts = self._ask(building, scope, by_node=by_node)
            if outcome.status is Status.REFUTED:
                return
            if node_counts is not None:
                self.best_victims.proved &= outcome.optimal
                victims = building.built.left(outcome.assignment)
                kept = victims if outcome.optimal else self._pruned(victims, scope, goal)
                self._offer(kept, scope, goal, node_counts if kept == victims else None)
                return
            if outcome.status is not Status.SOLVED:
                break
        self.best_victims.proved = False

    def _model(self, scope: int, deficits: Mapping[Key, Deficit], *, by_node: bool) -> VictimModel:
        useful = self.useful(deficits, scope)
        freeing = useful
        if (
            len(deficits) == 1
        ):  # pods of several shapes can need an eviction that gains none of them a pod alone
            freeing = useful & (next(iter(deficits.values())).delta > 0)
        rows = self.table.rows.select(freeing[self.table.rows.node])
        here = set(rows.gang.tolist())
        leaving = {*here, *_others(here, self.terms)}
        gangs = sorted({each for gang in leaving for each in self.terms.with_beyond(gang)})
        nodes = np.flatnonzero(useful)
        building = VictimModel(self.request, self.free, self.table, gangs, nodes, rows, by_node)
        self.terms.constrain(building)
        if self.best_victims.victims is not None:
            building.model.hint = [int(g in self.best_victims.victims) for g in building.gangs]
        return building

    def _ask(
        self, building: VictimModel, scope: int, *, by_node: bool
    ) -> tuple[Solution, NodeCounts | None]:
        """Solve a model, and again without each answer that is illegal or, of single nodes, proved to make no room."""
        for _ in range(MOST_CUTS):
            self.solver.steps += len(building.model.bounds) // _VARIABLES
            outcome = self.solver.solve(building.model, self.request.pending.budget)
            if outcome.status is not Status.SOLVED:
                return outcome, None
            victims = building.built.left(outcome.assignment)
            if not self.terms.admit(victims):
                self.terms.refuse(victims, building)
                continue
            status, node_counts = Status.UNKNOWN, self._place(victims, scope)
            if node_counts is None and by_node:
                mask = self.table.mask(victims)
                status, node_counts = self._stage(scope).decide(mask, self.solver)
            if status is not Status.REFUTED:
                return outcome, node_counts
            others = (gang for gang in building.gangs if gang not in victims)
            apply((dict.fromkeys(others, -1), -1), building)
        return Solution(Status.UNKNOWN), None


def _others(inside: Container[int], terms: EvictionConstraints) -> list[int]:
    """Gangs that hold nothing useful in the scope but free missing quota, or make the eviction of others legal."""
    size = terms.table.size
    if terms.order is not None and not terms.order.narrowing:
        return [gang for gang in range(size) if gang not in inside]
    frees = np.zeros(size, dtype=np.bool_)
    for _, amounts in terms.deficits:
        frees |= amounts > 0
    return [gang for gang in np.flatnonzero(frees).tolist() if gang not in inside]
