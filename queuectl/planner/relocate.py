"""The cheapest set of running gangs to move so that one blocked gang fits, each of them in a new place at once.

Cost is layered: lost work of the restarts, then gangs, then pods. Moved gangs keep flavors and quota; what this plan starts
stays where it is. A set that helps must first make room for the blocked gang, so the least *leaving* set bounds the cost
from below; the gangs that leave must then find a place alongside it. In the order of what proves most for least:

1. Less is free in all than the gang asks: no move helps.
2. The least leaving set, by the search that finds victims (:mod:`queuectl.planner.preempt.search`). None: no move helps. If
   all of it finds a place, it is the optimum.
3. Domain by domain in the order of a lower bound, a model of which gangs leave and where they could be placed, its
   suggestion settled exactly and cut off where it does not hold. Where only the gangs that help a domain most are allowed to
   leave, for the model's size, the answer is at best ``feasible``.

A mover runs whole on nodes, can be restarted, and nothing protects it. It keeps its flavors and the pods it runs with now,
and its quota is the same before and after. A gang whose quota is overdrawn stays, because it could not get a lease.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Final

import numpy as np

from queuectl.domain.plan import Cost, Proof
from queuectl.domain.queues import ClusterQueue
from queuectl.domain.snapshot import Admitted, Pending
from queuectl.planner.capacity.node_counts import NodeCounts, take
from queuectl.planner.capacity.state import CycleState
from queuectl.planner.model.builder import STAYS, Exits, ModelBuilder, stages
from queuectl.planner.model.classes import PlacementClasses
from queuectl.planner.order.queue_order import inadmissible
from queuectl.planner.placement.feasible import arrange, place, refuted_by_sums
from queuectl.planner.placement.greedy import find
from queuectl.planner.preempt.candidates import CandidateTable, table_of
from queuectl.planner.preempt.cost import Goal
from queuectl.planner.preempt.protections import protected_until
from queuectl.planner.preempt.search import BestVictims, EvictionConstraints, Search
from queuectl.planner.problem.flavors import admits, flavors_of
from queuectl.planner.problem.fleet import Ints
from queuectl.planner.problem.problem import caps
from queuectl.planner.problem.request import ANYWHERE, GangRequest, as_placed, request_of
from queuectl.planner.quota import QuotaRow
from queuectl.planner.solver import Solver, Status

# ---- The gangs that can be moved


@dataclass(frozen=True, eq=False, slots=True)
class RelocationBudget:
    """The budget for moving these gangs (by number): lost work, in GPU-seconds."""

    gangs: Ints
    left: int


@dataclass(eq=False, slots=True)
class MoveCandidates:
    """The gangs that can migrate, numbered as their table has them.

    Attributes:
        table: the gangs, what each loses, what each holds of which node.
        pods: pods of each. Shape (C,).
        limits: one per ClusterQueue that has a budget.
        costs: of each restart.
    """

    state: CycleState
    table: CandidateTable
    pods: Ints
    limits: tuple[RelocationBudget, ...]
    costs: tuple[Cost, ...]
    _requests: dict[int, GangRequest] = field(default_factory=dict)
    _settled: dict[int, bool] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return self.table.size

    def key(self, moved: Iterable[int]) -> tuple[int, int, int]:
        """The cost of a set, layer by layer: lost work, gangs, pods."""
        chosen = list(moved)
        return int(self.table.lost[chosen].sum()), len(chosen), int(self.pods[chosen].sum())

    def allows(self, moved: Iterable[int]) -> bool:
        """Whether a set stays within every budget."""
        chosen = self.table.mask(moved)
        return all(
            int(self.table.lost[limit.gangs][chosen[limit.gangs]].sum()) <= limit.left
            for limit in self.limits
        )

    def request(self, number: int) -> GangRequest:
        """The request of a gang for its new place."""
        if number not in self._requests:
            gang = self.table.gangs[number]
            workload, problem = gang.workload, self.state.problem
            queue = problem.snapshot.queue_of(workload)
            flavors = flavors_of(workload, gang.placement)
            asking = as_placed(Pending(workload, excluded=gang.excluded), gang.placement)
            self._requests[number] = request_of(problem, asking, queue, flavors)
        return self._requests[number]

    def settled(self, number: int, solver: Solver) -> bool:
        """Whether a gang could be placed on exactly what it holds: then moving it never takes room from others."""
        if number not in self._settled:
            rows = self.table.rows.select(self.table.rows.gang == number)
            own = np.zeros_like(self.state.later.free)
            own[:, rows.node] = rows.use
            answer = place(self.request(number), own, solver)
            self._settled[number] = answer.status is Status.SOLVED
        return self._settled[number]


def move_candidates(
    state: CycleState, allowed: Callable[[Admitted], bool], budgets: Mapping[str, int]
) -> MoveCandidates:
    """Collect the candidates.

    Args:
        state: at the point of the cycle where room is needed.
        allowed: whether policy lets a gang be moved at all.
        budgets: ClusterQueue to the remaining GPU-seconds for its moves; one that is absent has no limit.
    """
    gate = _Gate(state)
    gangs = [
        gang
        for gang in state.evictable()
        if gang.restartable
        and not gang.lost
        and allowed(gang)
        and _whole(gang)
        and gate.lets_go(gang)
    ]
    table = table_of(state.problem, gangs)
    cost = tuple(table.cost(at) for at in range(table.size))
    pods = [sum(placed.count for placed in gang.placement.podsets) for gang in table.gangs]
    limits = tuple(_limits(state, table.gangs, budgets))
    return MoveCandidates(state, table, np.array(pods, dtype=np.int64), limits, cost)


def _whole(gang: Admitted) -> bool:
    """Whether its placement has one entry per podset, none of them split over flavors, some of it on nodes."""
    placed = gang.placement.podsets
    names = [p.podset for p in placed]
    if names != [p.name for p in gang.workload.podsets] or any(p.shares for p in placed):
        return False
    return any(p.nodes for p in placed)


@dataclass(slots=True)
class _Gate:
    """Which gangs no rule protects; what depends on queues alone is looked up once, as there can be many thousand gangs."""

    state: CycleState
    _queues: dict[tuple[str, str | None, str | None], ClusterQueue | None] = field(
        default_factory=dict
    )
    _closed: set[tuple[str, str | None, str | None]] = field(default_factory=set)
    _rows: dict[QuotaRow, bool] = field(default_factory=dict)

    def lets_go(self, gang: Admitted) -> bool:
        workload, snapshot = gang.workload, self.state.problem.snapshot
        key = (workload.namespace, workload.queue, workload.charged_queue)
        if key not in self._queues:
            queue = self._queues[key] = snapshot.queue_of(workload)
            again = snapshot.config.cluster_queue_of(workload.namespace, workload.queue)
            if queue is not again or inadmissible(snapshot, Pending(workload)) is not None:
                self._closed.add(key)
        queue = self._queues[key]
        if key in self._closed:
            return False  # it could not start again
        if queue is None:
            return workload.preemptible and gang.evictable
        if protected_until(gang, queue, snapshot.now) is not None:
            return False
        problem = self.state.problem
        return all(self._lasts(row) for row, _ in problem.usage.charges(gang)) and admits(
            problem, workload, queue, flavors_of(workload, gang.placement)
        )

    def _lasts(self, row: QuotaRow) -> bool:
        """Whether a charge could be made again: the flavor is still there, and its quota is not overdrawn."""
        known = self._rows.get(row)
        if known is None:
            flavors = self.state.problem.snapshot.config.flavors
            left = self.state.later.quota.left(row[0], row[1:])
            known = self._rows[row] = row[1] in flavors and left >= 0
        return known


def _limits(
    state: CycleState, gangs: Sequence[Admitted], budgets: Mapping[str, int]
) -> Iterable[RelocationBudget]:
    members: dict[str, list[int]] = {}
    for number, gang in enumerate(gangs):
        queue = state.problem.snapshot.queue_of(gang.workload)
        if queue is not None and queue.name in budgets:
            members.setdefault(queue.name, []).append(number)
    for name, numbers in members.items():
        yield RelocationBudget(np.array(numbers, dtype=np.int64), budgets[name])


# ---- The set of gangs to move

_RANGE: Final = 1 << 56  # of one goal's value
_ALL: Final = 256  # candidates up to which one model may let all of them leave
_MODELED: Final = 1_500  # nodes up to which it may
_SCOPES: Final = 6  # domains tried where it may not
_ROUNDS: Final = 24  # suggestions of one model that may turn out to find no place


@dataclass(frozen=True, slots=True)
class Moved:
    """One gang that is moved: what it asks for, its new place, what that loses."""

    gang: Admitted
    request: GangRequest
    node_counts: NodeCounts
    cost: Cost


@dataclass(frozen=True, slots=True)
class MoveSolution:
    """How room is made.

    Attributes:
        moved: the gangs that move; empty and not UNDECIDED: none has to, the gang fits once those already leaving have left.
        node_counts: where the blocked gang runs then; empty when undecided.
        proof: OPTIMAL (no set is cheaper), FEASIBLE (a limit ended the search) or UNDECIDED (it ended without a set).
        cost: lost work, gangs, pods.
    """

    moved: tuple[Moved, ...]
    node_counts: NodeCounts
    proof: Proof
    cost: tuple[int, int, int] = (0, 0, 0)


def find_moves(
    state: CycleState, request: GangRequest, candidates: MoveCandidates, solver: Solver
) -> MoveSolution | None:
    """The cheapest moves after which ``request`` fits; None = proved that no moves help.

    Args:
        state: capacity and quota at this point of the cycle.
        request: the blocked gang under one choice of flavors; its own budget raises the solver's limits.
        candidates: gangs that can migrate.
        solver: limits and counters.
    """
    if not state.quota.allows(request, state.later.quota) or not request.podset_groups:
        return None
    free, table = state.later.free, candidates.table
    if not candidates.size or _more_than_free(state, request):
        return None
    if refuted_by_sums(request, free + table.freed(free.shape[1])):
        return None  # not even if all candidates were elsewhere
    return MoveSearch(request, candidates, free, solver).run()


def _more_than_free(state: CycleState, request: GangRequest) -> bool:
    """Whether the gang asks more of a resource than is free in all: moving others changes nothing about that."""
    ready = state.problem.index.ready
    free = np.maximum(state.later.free[:, ready], 0).sum(axis=1)
    asked = sum((pods.shape.vector * pods.count for pods in request.pods), np.zeros_like(free))
    return bool((asked > free).any())


def _goals(candidates: MoveCandidates) -> list[Goal]:
    """The layers as few weighted sums, each within the solver's range."""
    layers = iter(
        [candidates.table.lost, np.ones(candidates.size, dtype=np.int64), candidates.pods]
    )
    reaches = [int(candidates.table.lost.sum()), candidates.size, int(candidates.pods.sum())]
    zero = np.zeros_like(candidates.pods)
    return [
        Goal(sum((weight * next(layers) for weight in weights), zero))
        for weights in stages(reaches, _RANGE)
    ]


@dataclass(eq=False)
class MoveSearch:
    """One blocked gang and its candidates."""

    request: GangRequest
    candidates: MoveCandidates
    free: Ints
    solver: Solver
    best: frozenset[int] | None = None
    proved: bool = True
    _spent: float = 0.0  # the solver's clock when the search began
    _places: tuple[NodeCounts, ...] = ()
    _misses: list[tuple[frozenset[int], tuple[int, ...]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.goals = _goals(self.candidates)
        table = self.candidates.table
        self._leaving = Search(
            self.request, self.free, table, EvictionConstraints(table, []), self.solver
        )

    def run(self) -> MoveSolution | None:
        self._spent = self.solver.deterministic_time
        least = self._least_leaving()
        if least.victims is None:
            return None if least.proved else self._undecided()
        if self._try(least.victims) is Status.SOLVED:
            return self._solution(Proof.OPTIMAL if least.proved else Proof.FEASIBLE)
        lower_bound = self._value(self.goals[0], least.victims) if least.proved else 0
        self._model_all(lower_bound)
        if self.best is None:
            return None if self.proved else self._undecided()
        return self._solution(Proof.OPTIMAL if self.proved else Proof.FEASIBLE)

    @property
    def budget(self) -> int:
        return self.request.pending.budget

    @property
    def _out_of_time(self) -> bool:
        """Whether the models together took as long as one solve may."""
        limits = self.solver.limits
        most = limits.deterministic_time * limits.growth ** min(self.budget, limits.max_budget)
        return self.solver.deterministic_time - self._spent > most

    def _undecided(self) -> MoveSolution:
        return MoveSolution((), (), Proof.UNDECIDED)

    def _value(self, goal: Goal, moved: frozenset[int]) -> int:
        return goal.cost(self.candidates.table.mask(moved), self.candidates.table.rank)

    def _least_leaving(self) -> BestVictims:
        """The least set that must leave, wherever the gangs would go."""
        return self._leaving.run(self.goals)

    # A set, settled exactly.

    def _try(self, moved: frozenset[int]) -> Status:
        """Settle one set; it becomes the best if all find a place, otherwise it is never suggested again."""
        if not self.candidates.allows(moved):
            return Status.UNKNOWN
        requests, free = self._asking(moved), self._freed(moved)
        places, status = _one_after_another(requests, free), Status.SOLVED
        if places is None:
            made = arrange((), requests, free, self.solver, self.budget)
            places, status = made.new, made.status
        if status is Status.SOLVED:
            self.best, self._places = moved, places
        else:
            self.proved &= status is Status.REFUTED
            unsettled = (g for g in sorted(moved) if not self.candidates.settled(g, self.solver))
            self._misses.append((moved, tuple(unsettled)))
        return status

    def _asking(self, moved: frozenset[int]) -> list[GangRequest]:
        return [self.request, *(self.candidates.request(g) for g in sorted(moved))]

    def _freed(self, moved: frozenset[int]) -> Ints:
        table = self.candidates.table
        return self.free + table.freed(self.free.shape[1], table.mask(moved))

    def _needed_only(self) -> None:
        """Take out of the best set the gangs that it does not need, the most expensive first."""
        assert self.best is not None
        for gang in sorted(self.best, key=lambda g: (-int(self.candidates.table.lost[g]), g)):
            fewer = self.best - {gang}
            places = _one_after_another(self._asking(fewer), self._freed(fewer))
            if places is not None:
                self.best, self._places = fewer, places

    # Which gangs leave and where they go, as models.

    def _model_all(self, lower_bound: int) -> None:
        touched = len(np.unique(self.candidates.table.rows.node))
        complete = self.candidates.size <= _ALL and touched <= _MODELED
        earlier: list[tuple[Goal, int]] = []
        for number, goal in enumerate(self.goals):
            for tried, (by_domain, scope) in enumerate(self._scopes(goal)):
                least = max(by_domain, lower_bound if number == 0 else 0)
                if self.best is not None and least >= self._value(goal, self.best):
                    break
                self.proved &= complete and not self._out_of_time
                if self._out_of_time or (tried == _SCOPES and not complete):
                    break
                among = range(self.candidates.size) if complete else self._helpful(scope, goal)
                self._solve(scope, list(among), goal, least, earlier)
            if self.best is None:
                return
            earlier.append((goal, self._value(goal, self.best)))

    def _scopes(self, goal: Goal) -> list[tuple[int, int]]:
        """Least cost of the leaving set per domain of the blocked gang, cheapest first."""
        if not self._leaving.by_domain:
            return [(0, ANYWHERE)]
        return [(max(0, ceil(least)), domain) for least, domain in self._leaving.scopes(goal)]

    def _helpful(self, scope: int, goal: Goal) -> Iterator[int]:
        """The gangs that make most room in a domain for what they cost."""
        share = self._leaving.shares(scope)
        useful = np.flatnonzero(share > 0)
        order = np.argsort(goal.weight[useful] / share[useful], kind="stable")
        yield from sorted(useful[order[:_ALL]].tolist())

    def _solve(
        self,
        scope: int,
        among: Sequence[int],
        goal: Goal,
        least: int,
        earlier: Sequence[tuple[Goal, int]],
    ) -> None:
        """Ask one model for other sets until one finds a place, or none is left that is better than the best."""
        building = MoveModel(self.request, self.candidates, among, self.free, scope)
        for miss in self._misses:
            building.forbid(*miss)
        most = self._value(goal, self.best) - 1 if self.best is not None else None
        building.set_objective(goal.weight, least, most)
        for before, value in earlier:
            building.hold(before.weight, 0, value)
        for _ in range(_ROUNDS):
            outcome = self.solver.solve(building.model, self.budget)
            if outcome.status is not Status.SOLVED:
                self.proved &= outcome.status is Status.REFUTED
                return
            if self._try(building.built.left(outcome.assignment)) is Status.SOLVED:
                self.proved &= outcome.optimal
                return
            building.forbid(*self._misses[-1])
        self.proved = False

    def _solution(self, proof: Proof) -> MoveSolution:
        assert self.best is not None
        if proof is not Proof.OPTIMAL:
            self._needed_only()
        table, (node_counts, *places) = self.candidates.table, self._places
        moved = (
            Moved(table.gangs[g], self.candidates.request(g), place, self.candidates.costs[g])
            for g, place in zip(sorted(self.best), places, strict=True)
        )
        return MoveSolution(tuple(moved), node_counts, proof, self.candidates.key(self.best))


def _one_after_another(
    requests: Sequence[GangRequest], free: Ints
) -> tuple[NodeCounts, ...] | None:
    """A greedy placement of all on (R, N): the first one first, the others by size; None proves nothing."""
    left = free.copy()
    found: dict[int, NodeCounts] = {}
    for at in sorted(range(len(requests)), key=lambda i: (i > 0, -_size(requests[i]), i)):
        node_counts = find(requests[at], left, lambda shape: caps(left, shape))
        if node_counts is None:
            return None
        take(left, requests[at].pods, node_counts)
        found[at] = node_counts
    return tuple(found[at] for at in range(len(requests)))


def _size(request: GangRequest) -> int:
    """The device request of its largest pod: pods that are hard to place are placed first."""
    sizes = (int(p.shape.vector[p.shape.columns[0]]) for p in request.pods if p.shape.columns)
    return max(sizes, default=0)


# ---- The model
#
# Which gangs to move, as one model: the model builder with an exit per gang that may leave, each placed again if it does.
#
# The model is a relaxation, so what it costs bounds the true cost from below and what it refutes is refuted. Nodes that a gang may
# leave are separate node classes; the others are summed. Whether the set it suggests really finds a place is decided by
# placing all of it; a set that does not is cut off.


class MoveModel:
    """The model for some candidates and one place for the blocked gang.

    Attributes:
        model: to be solved.
        exits: number of a candidate to the variable of its move.
    """

    def __init__(
        self,
        blocked: GangRequest,
        candidates: MoveCandidates,
        among: Sequence[int],
        free: Ints,
        scope: int,
    ) -> None:
        """Build it.

        Args:
            blocked: the gang to be placed.
            candidates: all gangs that can migrate.
            among: numbers of those that this model lets leave; the others stay.
            free: (R, N) before any leaves.
            scope: the one domain of the blocked gang's required level to try; ANYWHERE = all of them.
        """
        chosen = candidates.table.mask(among)
        rows = candidates.table.rows.select(chosen[candidates.table.rows.gang])
        requests = [blocked, *(candidates.request(number) for number in among)]
        owners = [STAYS] * len(blocked.podset_groups)
        owners += [
            n for n, request in zip(among, requests[1:], strict=True) for _ in request.podset_groups
        ]
        marks = np.zeros(free.shape[1], dtype=np.int64)
        marks[rows.node] = rows.node + 1  # a node that a gang may leave is a separate class
        classes = PlacementClasses(
            [podset_group for request in requests for podset_group in request.podset_groups],
            free,
            emptied=free + candidates.table.freed(free.shape[1], chosen),
            marks=marks,
            only={}
            if scope == ANYWHERE
            else dict.fromkeys(range(len(blocked.podset_groups)), scope),
        )
        exits = Exits(among, rows.gang, rows.node, rows.use, owners)
        self.built = ModelBuilder(classes, exits=exits)
        self.model, self.exits = self.built.model, self.built.exits
        for limit in candidates.limits:
            mine = [g for g in limit.gangs.tolist() if g in self.exits]
            lost = [int(candidates.table.lost[g]) for g in mine]
            self.model.at_most([self.exits[g] for g in mine], lost, limit.left)

    def set_objective(self, weight: Ints, low: int, high: int | None) -> None:
        """Minimize the weight of the gangs that leave, known to be between two bounds."""
        coeffs = [int(weight[g]) for g in self.exits]
        self.model.minimize(list(self.exits.values()), coeffs)
        self.hold(weight, low, sum(coeffs) if high is None else high)

    def hold(self, weight: Ints, low: int, high: int) -> None:
        """Keep the weight of the gangs that leave between two bounds."""
        coeffs = [int(weight[g]) for g in self.exits]
        self.model.row(list(self.exits.values()), coeffs, low, high)

    def forbid(self, moved: frozenset[int], unsettled: Iterable[int]) -> None:
        """Cut off a set that found no place: another must leave, or one whose leaving costs room must stay."""
        if any(g not in self.exits for g in unsettled):
            return  # it stays anyway
        others = [v for g, v in self.exits.items() if g not in moved]
        stay = [self.exits[g] for g in sorted(unsettled)]
        coeffs = [1] * len(others) + [-1] * len(stay)
        self.model.row([*others, *stay], coeffs, 1 - len(stay), len(others))
