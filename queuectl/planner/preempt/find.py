"""Which gangs to evict so that one blocked gang provably fits where it will run, at the least cost.

Candidates are legal by the ClusterQueue's policy; the cost is its layers, in order. No gang is evicted unless the blocked one
fits after it, and no victim is needless. Quota and topology are freed by the same model: a gang blocked by both gets one
victim set that serves both, one blocked by quota alone gets the cheapest that frees quota. No gang is evicted for a
preferred topology level; among what is free and what the least victims free, the gang runs as close together as it prefers.

The search, in the order of what proves most for least:

1. With every candidate gone, does the gang fit at all? Floor sums and quota rows refuse most gangs here.
2. If the highest priority touched counts first: the lowest priority up to which candidates suffice. Only these remain.
3. Domain by domain in the order of a lower bound; greedy sets cut, the exact model decides (:mod:`queuectl.planner.preempt.search`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

import numpy as np

from queuectl.domain.plan import Preemption, Proof
from queuectl.domain.queues import ClusterQueue, VictimKey
from queuectl.domain.snapshot import Admitted
from queuectl.planner.capacity.node_counts import NodeCounts, add_at, give_back
from queuectl.planner.capacity.reservations import awaited
from queuectl.planner.capacity.state import CycleState
from queuectl.planner.placement.feasible import refuted_by_sums
from queuectl.planner.placement.greedy import find
from queuectl.planner.preempt.candidates import CandidateTable
from queuectl.planner.preempt.cost import Goal, complete, goals, layers, older_of
from queuectl.planner.preempt.rules import CandidateSet, candidate_sets
from queuectl.planner.preempt.running import EvictionScope, Preemptor
from queuectl.planner.preempt.search import BestVictims, EvictionConstraints, Search
from queuectl.planner.preempt.shortage import shortfall_of
from queuectl.planner.preempt.staying import staying_gangs
from queuectl.planner.problem.problem import caps
from queuectl.planner.problem.request import GangRequest, quota_only
from queuectl.planner.solver import Solver

_STEPS: Final = 25
"""Of a search without a model."""


@dataclass(frozen=True, slots=True)
class Victims:
    """The answer for one blocked gang.

    Attributes:
        victims: gangs to evict, with costs; by priority, then from the newest to the oldest. Empty with another proof than UNDECIDED: none has to
            leave, the gang fits once those already leaving have left.
        node_counts: where the gang runs then, per pods of the request; empty when undecided or quota only.
        proof: OPTIMAL (no legal set is cheaper), FEASIBLE (a limit ended the search; after the set the gang fits, and
            after none of its parts was it found to) or UNDECIDED (a limit ended it without a set).
    """

    victims: tuple[Preemption, ...]
    node_counts: NodeCounts
    proof: Proof


def find_victims(
    state: CycleState,
    request: GangRequest,
    queue: ClusterQueue,
    solver: Solver,
    candidates: EvictionScope = EvictionScope.LEGAL,
) -> Victims | None:
    """The least legal victims after whose exit ``request`` fits; None = proved that no legal set helps.

    A pod that extends an elastic gang has none, and a gang that never preempts.

    Args:
        state: capacity and quota at this point of the cycle, the gang's own lease not included.
        request: the gang under one choice of flavors.
        queue: the ClusterQueue it is charged to: its policy, layers and quota.
        solver: limits and counters; the gang's own budget raises them.
        candidates: which of the legal ones are considered.
    """
    if not request.pending.workload.evicts:
        return None
    proved = True
    for compared in candidate_sets(state, request, queue, candidates):
        answers: list[Victims] = []
        for candidate_set in compared:
            table = candidate_set.table
            found = Blocked(state, request, queue, solver, table, candidate_set).solve()
            if found.victims is not None:
                answers.append(_answer(state, request, candidate_set, found))
            else:
                proved &= found.proved
        if answers:
            order = queue.victim_order
            best = min(answers, key=lambda a: layers(order, [v.cost for v in a.victims]))
            sure = proved and all(a.proof is Proof.OPTIMAL for a in answers)
            return best if sure else replace(best, proof=Proof.FEASIBLE)
        if not proved and patient(request, solver):
            break
    return None if proved else Victims((), (), Proof.UNDECIDED)


def patient(request: GangRequest, solver: Solver) -> bool:
    """Whether to ask again with a larger limit before evicting where a cheaper way is open, but not found or refuted."""
    return request.pending.budget < solver.limits.max_budget


def may_fit_in_turn(state: CycleState, request: GangRequest, queue: ClusterQueue) -> bool:
    """Whether the sums allow a gang once all gangs have left that it could ever evict, whatever their time slices and protections."""
    problem, reached = state.problem, Preemptor(state, request, queue).running.queues
    gone = list(_ever_evicted(state, request, queue, reached))
    free = state.later.free.copy()
    rows = [row for gang in gone for row in problem.usage.charges(gang)]
    for gang in gone:
        add_at(free, *problem.use_of(gang))
    starting = [(each.request, each.node_counts) for each in state.admissions]
    starting += [(each.request, each.node_counts) for each in state.held.values()]
    for other, node_counts in starting:  # it can be evicted later
        if other.queue in reached:
            give_back(free, other.pods, node_counts)
            rows += other.rows()
    with state.later.quota.hypothetically(rows, -1):
        enough = state.quota.allows(request, state.later.quota)
    return enough and not refuted_by_sums(request, free)


def _ever_evicted(
    state: CycleState, request: GangRequest, queue: ClusterQueue, reached: Collection[str]
) -> Iterator[Admitted]:
    """The running gangs of these ClusterQueues that a gang can evict at some time. Of its own one, those that it can evict in turn."""
    staying, queues = staying_gangs(state.problem), [*state.problem.snapshot.config.cluster_queues]
    above = staying.arrays.priority > request.pending.workload.priority
    never = (staying.owner == queues.index(queue.name)) & (above | staying.reclaim_only)
    numbers = [at for at, name in enumerate(queues) if name in reached]
    ever = np.isin(staying.owner, numbers) & ~never
    for at in np.flatnonzero(ever & (staying.protected_until < inf)):
        if not state.leaves(staying.arrays.gangs[at]):
            yield staying.arrays.gangs[at]


def _answer(
    state: CycleState, request: GangRequest, candidate_set: CandidateSet, best_set: BestVictims
) -> Victims:
    table = candidate_set.table
    victims = sorted(best_set.victims or ())
    node_counts = _placed(state, request, [table.gangs[v] for v in victims])
    uid = request.pending.workload.uid
    evicted = (
        Preemption(table.gangs[v].workload.uid, uid, table.cost(v), candidate_set.reason(v).value)
        for v in victims
    )
    proof = Proof.OPTIMAL if best_set.proved else Proof.FEASIBLE
    placed = node_counts if node_counts is not None else best_set.node_counts
    return Victims(tuple(evicted), placed, proof)


def _placed(
    state: CycleState, request: GangRequest, evicted: Sequence[Admitted]
) -> NodeCounts | None:
    """Where a gang runs once these gangs are evicted, as close together as it prefers; None if no place is found.

    Of the gangs that leave already, it waits for those whose quota it needs, and for others only if it does not fit without them.
    """
    for_quota = awaited(state, quota_only(request), (), evicted)
    taken = {uid for uids in state.awaited.values() for uid in uids}
    leaving = sorted(state.leaving.items(), key=lambda item: (item[0] in taken, item[0]))
    waits = [*evicted, *(gang for uid, gang in leaving if uid in for_quota)]
    other_leaving = [gang for uid, gang in leaving if uid not in for_quota]
    later = state.later.free.copy()
    for gang in evicted:
        add_at(later, *state.problem.use_of(gang))

    def placed(more: Sequence[Admitted]) -> NodeCounts | None:
        free = state.open_now(slice(None)).copy()
        for gang in (*waits, *more):
            add_at(free, *state.problem.use_of(gang))
        np.minimum(free, later, out=free)
        return find(request, free, lambda shape: caps(free, shape))

    while (found := placed(())) is None and other_leaving and placed(other_leaving) is not None:
        needed = bisect_left(
            range(len(other_leaving)),
            True,
            key=lambda n: placed(other_leaving[: n + 1]) is not None,
        )
        waits.append(other_leaving[needed])
        other_leaving = other_leaving[:needed]
    return found


@dataclass(eq=False)
class Blocked:
    """One gang under one choice of flavors, and the gangs it might evict; without a set of rules nothing binds them."""

    state: CycleState
    request: GangRequest
    queue: ClusterQueue
    solver: Solver
    table: CandidateTable
    candidate_set: CandidateSet | None = None

    def __post_init__(self) -> None:
        self.free = self.state.later.free
        self.keys = complete(self.queue.victim_order)

    def solve(self) -> BestVictims:
        """The least victims; without any and ``proved``, none exist."""
        self.solver.placements += 1
        least = self._least_rank()
        if least is not None and self.solver.exhausted:
            return BestVictims(proved=False)
        proved = True
        for rank in self._ranks(least) if least is not None else ():
            found = self._search(self.table.lowest(rank))
            found.proved &= proved
            if found.victims is not None:
                return found
            proved = found.proved
            if not proved and patient(self.request, self.solver):
                break
        return BestVictims(proved=proved)

    def _ranks(self, least: int) -> Iterable[int]:
        """Priorities to which candidates are limited, one after the other; 0 = no gang leaves."""
        highest = int(self.table.rank.max(initial=0))
        if self.keys[0] is VictimKey.MAX_PRIORITY:
            return range(least, highest + 1)
        return (0, highest) if least == 0 < highest else (highest,)

    def _goals(self, table: CandidateTable) -> list[Goal]:
        keys = self.keys[1:] if self.keys[0] is VictimKey.MAX_PRIORITY else self.keys
        older = older_of(table.starts, table.lost, table.rank)
        return list(goals(table.lost, table.rank, keys, older))

    def _least_rank(self) -> int | None:
        """The lowest priority up to which the floor sums allow the gang; None = not even with all candidates gone."""
        highest = int(self.table.rank.max(initial=0))
        if not self._conceivable(highest):
            return None
        return bisect_left(range(highest), True, key=self._conceivable)

    def _conceivable(self, rank: int) -> bool:
        table = self.table.lowest(rank)
        if any(frees.sum() < amount for amount, frees in self._terms(table).deficits):
            return False
        free = self.free + table.freed(self.free.shape[1]) if table.size else self.free
        return not refuted_by_sums(self.request, free)

    def _terms(self, table: CandidateTable) -> EvictionConstraints:
        """The quota that must become free, and which candidates may leave together."""
        if self.candidate_set is not None:
            return self.candidate_set.terms(table)
        if self.request.queue is None:
            return EvictionConstraints(table, [])
        shortfall = shortfall_of(self.state, self.request, self.request.queue)
        return EvictionConstraints(table, shortfall.deficits(table.quota, table.size), shortfall)

    def _search(self, table: CandidateTable) -> BestVictims:
        self.solver.steps += _STEPS
        terms = self._terms(table)
        search = Search(self.request, self.free, table, terms, self.solver)
        found = search.run(self._goals(table))
        found.proved &= terms.certain
        return found
