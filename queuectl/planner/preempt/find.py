"""Which gangs to evict so that one blocked gang provably fits where it will run, at the least cost (invariant I4).

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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from queuectl.domain.plan import Preemption, PreemptionReason, Proof
from queuectl.domain.queues import ClusterQueue, VictimKey
from queuectl.domain.rules import FairStrategy
from queuectl.domain.snapshot import Admitted
from queuectl.planner.capacity.node_counts import NodeCounts, add_at
from queuectl.planner.capacity.reservations import awaited
from queuectl.planner.capacity.state import CycleState
from queuectl.planner.placement.feasible import refuted_by_sums
from queuectl.planner.placement.greedy import find
from queuectl.planner.preempt.cost import Goal, complete, goals, layers, older_of
from queuectl.planner.preempt.exit_order import CandidateOrder, Fair, OtherQueues, Reclaim
from queuectl.planner.preempt.rules import (
    BY_PLACE,
    BY_SHARE,
    FOR_ROOM,
    IDLE,
    IDLE_WITHOUT_BORROWING,
    IN_TURN,
    WHILE_BORROWING,
    WITHIN,
    WITHOUT_BORROWING,
    JointCondition,
    PreemptionRule,
    rules_within,
)
from queuectl.planner.preempt.running import CandidateTable, EvictionScope, Preemptor
from queuectl.planner.preempt.search import EvictionConstraints, Found, Search
from queuectl.planner.preempt.shortage import shortfall_of
from queuectl.planner.problem.fleet import Ints
from queuectl.planner.problem.problem import caps
from queuectl.planner.problem.request import GangRequest, quota_only
from queuectl.planner.solver import Solver


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
    for joint_condition in candidate_sets(state, request, queue, candidates):
        answers: list[Victims] = []
        for candidate_set in joint_condition:
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


def _answer(
    state: CycleState, request: GangRequest, candidate_set: CandidateSet, found: Found
) -> Victims:
    table = candidate_set.table
    victims = sorted(found.victims or ())
    node_counts = _placed(state, request, [table.gangs[v] for v in victims])
    uid = request.pending.workload.uid
    evicted = (
        Preemption(table.gangs[v].workload.uid, uid, table.cost(v), candidate_set.reason(v).value)
        for v in victims
    )
    proof = Proof.OPTIMAL if found.proved else Proof.FEASIBLE
    placed = node_counts if node_counts is not None else found.node_counts
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
    others = [gang for uid, gang in leaving if uid not in for_quota]
    later = state.later.free.copy()
    for gang in evicted:
        add_at(later, *state.problem.use_of(gang))

    def placed(more: Sequence[Admitted]) -> NodeCounts | None:
        free = state.open_now(slice(None)).copy()
        for gang in (*waits, *more):
            add_at(free, *state.problem.use_of(gang))
        np.minimum(free, later, out=free)
        return find(request, free, lambda shape: caps(free, shape))

    while (found := placed(())) is None and others and placed(others) is not None:
        needed = bisect_left(
            range(len(others)), True, key=lambda n: placed(others[: n + 1]) is not None
        )
        waits.append(others[needed])
        others = others[:needed]
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

    def solve(self) -> Found:
        """The least victims; without any and ``proved``, none exist."""
        self.solver.placements += 1
        least = self._least_rank()
        proved = True
        for rank in self._ranks(least) if least is not None else ():
            found = self._search(self.table.lowest(rank))
            found.proved &= proved
            if found.victims is not None:
                return found
            proved = found.proved
            if not proved and patient(self.request, self.solver):
                break
        return Found(proved=proved)

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

    def _search(self, table: CandidateTable) -> Found:
        terms = self._terms(table)
        search = Search(self.request, self.free, table, terms, self.solver)
        found = search.run(self._goals(table))
        found.proved &= terms.certain
        return found


# Sets of candidates.


@dataclass(eq=False)
class CandidateSet:
    """Candidates under the same rule of eviction.

    Attributes:
        table: the candidates, C of them.
        rules: the rules that name them, the first that does counts.
        kinds: the number of the rule of each. Shape (C,).
        borrows: whether the preemptor's queue may use more than its nominal quota then.
        strategies: of fair sharing; empty where shares do not count.
    """

    by: Preemptor
    table: CandidateTable
    rules: tuple[PreemptionRule, ...]
    kinds: Ints
    borrows: bool = True
    strategies: tuple[FairStrategy, ...] = ()

    def reason(self, gang: int) -> PreemptionReason:
        return self.rules[int(self.kinds[gang])].reason

    def terms(self, table: CandidateTable) -> EvictionConstraints:
        """The terms for the gangs of the set up to some priority."""
        shortfall = self.by.shortfall
        deficits = shortfall.deficits(table.quota, table.size, borrows=self.borrows)
        own = all(
            self.rules[kind] in (WITHIN, IN_TURN) for kind in set(self.kinds[: table.size].tolist())
        )
        return EvictionConstraints(table, deficits, shortfall, None if own else self._order)

    @cached_property
    def _order(self) -> CandidateOrder | None:
        """The condition of all candidates of the set; it holds for those up to some priority as well."""
        others = OtherQueues(self.by.shortfall, self.table, self.by.returning)
        if not others.owner:
            return None
        unordered = self._leaving(JointCondition.NONE) & others.owner.keys()
        if self.strategies:
            return Fair(others, self.strategies, unordered)
        must_stay_out = self._leaving(JointCondition.FOR_GOOD) if self.borrows else frozenset()
        dangerous = (g for g in others.owner if self.by.returning.threatens(self.table.gangs[g]))
        return Reclaim(others, unordered, (must_stay_out | frozenset(dangerous)) - unordered)

    def _leaving(self, joint_condition: JointCondition) -> frozenset[int]:
        """The gangs of the rules that bind them so."""
        numbers = [
            n for n, rule in enumerate(self.rules) if rule.joint_condition is joint_condition
        ]
        return frozenset(np.flatnonzero(np.isin(self.kinds, numbers)).tolist())


def candidate_sets(
    state: CycleState,
    request: GangRequest,
    queue: ClusterQueue,
    candidates: EvictionScope = EvictionScope.LEGAL,
) -> list[list[CandidateSet]]:
    """The gangs that ``request`` may evict, as alternatives: sets that are compared, then those that count only if none before does.

    Sets of candidates that could not free the quota it lacks are left out.

    Args:
        state: capacity and quota at this point of the cycle.
        request: of a gang that waits, or of a repair.
        queue: the ClusterQueue whose policies count.
        candidates: which of them are considered.
    """
    by = Preemptor(state, request, queue, dry=candidates is EvictionScope.DRY_RUN)
    found = [list(_with_idle(by))] if by.idle.any() else []
    if candidates is EvictionScope.LEGAL:
        found += _by_share(by) if by.fair else _classic(by)
    return found


def _classic(by: Preemptor) -> list[list[CandidateSet]]:
    reclaims = (*rules_within(by), BY_PLACE, WHILE_BORROWING)
    joint_condition = list(_with_idle(by, *reclaims))
    all_rules = (*reclaims, WITHOUT_BORROWING)
    others = WITHOUT_BORROWING.names(by) & ~BY_PLACE.names(by)
    if others.any() and by.may_go_without_borrowing:
        joint_condition += _scheme(by, *all_rules, borrows=False)
    return [joint_condition, *_for_room(by, all_rules)]


def _by_share(by: Preemptor) -> list[list[CandidateSet]]:
    strategies = by.state.problem.snapshot.config.rules.fair_sharing
    within = rules_within(by)
    room = _for_room(by, within)
    if not BY_SHARE.names(by).any():
        return [list(_with_idle(by, *within)), *room]
    rules = (*within, BY_PLACE, BY_SHARE)
    tried = (strategies[: n + 1] for n in range(len(strategies)))
    return [*(list(_with_idle(by, *rules, strategies=some)) for some in tried), *room]


def _for_room(by: Preemptor, rules: Sequence[PreemptionRule]) -> list[list[CandidateSet]]:
    more = FOR_ROOM.names(by)
    for rule in rules:
        more = more & ~rule.names(by)
    return [_scheme(by, *rules, FOR_ROOM, borrows=False)] if more.any() else []


def _with_idle(
    by: Preemptor, *rules: PreemptionRule, strategies: tuple[FairStrategy, ...] = ()
) -> Iterator[CandidateSet]:
    """The gangs that some rules name and those that are idle; some of these only for a preemptor that does not borrow."""
    yield from _scheme(by, *rules, strategies=strategies)
    if by.guarded.any():
        yield from _scheme(by, *rules, borrows=False, strategies=strategies)


def _scheme(
    by: Preemptor,
    *rules: PreemptionRule,
    borrows: bool = True,
    strategies: tuple[FairStrategy, ...] = (),
) -> list[CandidateSet]:
    """The gangs that some rules name, or that are idle; none where they could not free the quota that is missing."""
    rules = (IDLE if borrows else IDLE_WITHOUT_BORROWING, *rules)
    kinds = np.full(len(by.running.gangs), -1, dtype=np.int64)
    for number, rule in enumerate(rules):
        kinds[(kinds < 0) & rule.names(by)] = number
    legal = kinds >= 0
    deficits = by.shortfall.deficits(by.running.quota, len(legal), borrows=borrows)
    if any(frees[legal].sum() < amount for amount, frees in deficits):
        return []
    table = by.running.table(legal, by.state.problem.snapshot.now)
    return [CandidateSet(by, table, rules, kinds[legal], borrows, strategies)]
