"""Which running gangs one gang may evict: the table of rules, and the sets of candidates that follow from it.

:data:`_RULES` is the only definition; the search, repairs and explanations read it. A rule has a reason, the conditions
under which it names a candidate, each with the sentence for a gang that fails it, and the condition on the set of gangs that leave by it.

*Within* the ClusterQueue by ``withinClusterQueue``. From *other* ClusterQueues of the cohort tree by ``reclaimWithinCohort``,
only while they use more than their own, and only gangs that use what the preemptor contends for:

- *by its place in the tree*: where the preemptor's queue, or a cohort it is in, has its own quota for it, gangs that use
  that quota from outside can be evicted, though the preemptor borrows within the cohort;
- *while it borrows*, by ``borrowWithinCohort``: gangs of lower priority, up to the threshold;
- *without borrowing*: any other gang the policy names, if the preemptor's queue is then within its nominal quota. A queue that
  uses all of that already may not ask for it, unless it may preempt to borrow;
- *by shares*, where fair sharing is on, instead of the last three (:mod:`queuectl.planner.preempt.exit_order`).

*Idle* gangs yield to higher priorities whatever these policies say (:mod:`queuectl.planner.preempt.running`). They are asked first: if
they alone make room, no gang that works is evicted. If not, they are candidates alongside the others, and no rule about the use of
queues, or about shares, binds them. A gang is not a candidate if it could take the place back at once: an older equal where the queue lets
newer ones be evicted or is strict, or, for a gang that borrows, one whose queue may reclaim what it lent.

*In turn*, where the ClusterQueue has ``timeSliceSeconds``: a gang that has run for at least that since its start is evicted for the
first gang of its ClusterQueue that waits and has the same or a higher priority. It queues again behind the others. Only the first gang that
waits evicts by this rule: otherwise small gangs would take each slice that ends, and a large one would wait indefinitely.

With ``evictWithinNominal`` a gang that has the quota, and does not borrow, but finds no room, may evict gangs of lower priority that are
within their nominal quota.

The protections from all of this are in :mod:`queuectl.planner.preempt.protections`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from typing import Final

import numpy as np

from queuectl.domain.plan import PreemptionReason
from queuectl.domain.queues import (
    ClusterQueue,
    ReclaimWithinCohort,
    WithinClusterQueue,
)
from queuectl.domain.rules import FairStrategy
from queuectl.domain.snapshot import Admitted, Pending
from queuectl.domain.words import format_time
from queuectl.planner.capacity.state import CycleState
from queuectl.planner.preempt.candidates import CandidateTable
from queuectl.planner.preempt.exit_order import CandidateOrder, Fair, OtherQueues, Reclaim
from queuectl.planner.preempt.protections import slice_end, why_protected
from queuectl.planner.preempt.returning import evicts_below
from queuectl.planner.preempt.running import EvictionScope, Preemptor
from queuectl.planner.preempt.search import EvictionConstraints
from queuectl.planner.problem.fleet import Ints, Mask
from queuectl.planner.problem.request import GangRequest

_ALLOWED: Final = "policy allows its eviction, but that alone is not enough"


class JointCondition(Enum):
    """The condition that the gangs that leave by one rule fulfill together, in addition to the quota that must come free."""

    NONE = auto()  # nothing
    WHILE_OVER = auto()  # each queue is over its own until its last gang leaves; or shares
    FOR_GOOD = auto()  # the same, and no gang must be able to return within its queue's own


@dataclass(frozen=True, eq=False, slots=True)
class _Condition:
    """``holds``: for which gangs, shape (C,); ``sentence``: why one for which it does not hold stays."""

    holds: Callable[[Preemptor], Mask]
    sentence: Callable[[Preemptor, Admitted], str]

    def of(self, by: Preemptor) -> Mask:
        """The gangs for which it holds; asked once for each preemptor, because several rules have it."""
        if self not in by.named:
            by.named[self] = self.holds(by)
        return by.named[self]


@dataclass(frozen=True, eq=False, slots=True)
class PreemptionRule:
    """One row: the reason in the plan, the conditions of each candidate, and what binds the set."""

    reason: PreemptionReason
    joint_condition: JointCondition
    conditions: tuple[_Condition, ...]

    def names(self, by: Preemptor) -> Mask:
        """The gangs that it allows a preemptor to evict. Shape (C,)."""
        if self not in by.named:
            named = by.staying
            for condition in self.conditions:
                if named.any():
                    named = named & condition.of(by)
            by.named[self] = named
        return by.named[self]


def _all(by: Preemptor, holds: bool) -> Mask:
    return np.full(len(by.running.gangs), holds)


def _after(by: Preemptor) -> Mask:
    workload, running = by.workload, by.running
    place = evicts_below(by.queue.within_cluster_queue, workload.priority, workload.queued_at)
    if place is None:
        return _all(by, False)
    after: Mask = (running.priority == place[0]) & (-running.queued_at < place[1])
    return by.lower | after


def _not_after(by: Preemptor, gang: Admitted) -> str:
    priority, policy = by.workload.priority, by.queue.within_cluster_queue
    newer = policy is WithinClusterQueue.LOWER_OR_NEWER_EQUAL_PRIORITY
    if newer and gang.workload.priority == priority:
        return f"it has the same priority {priority} and is not newer"
    return _not_below(by, gang)


def _not_below(by: Preemptor, gang: Admitted) -> str:
    return f"its priority {gang.workload.priority} is not below {by.workload.priority}"


def _below_threshold(by: Preemptor) -> Mask:
    most = by.queue.borrow_threshold
    return by.lower if most is None else by.lower & (by.running.priority <= most)


def _borrows(by: Preemptor, _: Admitted) -> str:
    return f"ClusterQueue {by.queue.name} would borrow, and must not evict it while borrowing"


def _reclaims_from(by: Preemptor) -> Mask:
    lower = by.queue.reclaim_within_cohort is ReclaimWithinCohort.LOWER_PRIORITY
    return by.lower if lower else _all(by, True)


def _at_its_nominal(by: Preemptor, gang: Admitted) -> str:
    common_pool = by.common_pool(gang)
    pool = by.within_nominal(common_pool) if common_pool is not None else None
    assert pool is not None, "its queue, or a cohort above it, is within its nominal quota"
    kind = "cohort" if pool.members else "ClusterQueue"
    return f"{kind} {pool.name} uses no more than its nominal quota"


def _lacks_room_alone(by: Preemptor) -> bool:
    """Whether it has the quota, would not borrow, and its queue lets it evict for room."""
    asks = (
        by.queue.evicts_within_nominal
        and bool(by.request.podset_groups)
        and by.shortfall.within_nominal
    )
    return asks and not any(True for _ in by.shortfall.shortages())


def _had_its_slice(by: Preemptor) -> Mask:
    now = by.state.problem.snapshot.now
    ends = np.array([slice_end(gang, by.queue) for gang in by.running.gangs], dtype=np.float64)
    had: Mask = ends <= now
    return had


def _slice_ends(by: Preemptor, gang: Admitted) -> str:
    if gang.held:
        return "its time slice begins after its admission checks"
    return f"its time slice ends at {format_time(slice_end(gang, by.queue))}"


_WITHIN_QUEUE: Final = (
    _Condition(lambda by: by.own, lambda by, _: f"it is not in ClusterQueue {by.queue.name}"),
    _Condition(
        lambda by: _all(by, by.queue.within_cluster_queue is not WithinClusterQueue.NEVER),
        lambda by, _: f"withinClusterQueue of ClusterQueue {by.queue.name} is Never",
    ),
    _Condition(_after, _not_after),
    _Condition(lambda by: ~by.running.reclaim_only, lambda *_: "it is not preemptible"),
)
_WITHIN_COHORT: Final = (
    _Condition(
        lambda by: by.of_other_queues,
        lambda by, gang: (
            f"ClusterQueue {by.queue_of(gang)} shares no cohort with ClusterQueue {by.queue.name}"
        ),
    ),
    _Condition(
        lambda by: _all(by, by.queue.reclaim_within_cohort is not ReclaimWithinCohort.NEVER),
        lambda by, _: f"reclaimWithinCohort of ClusterQueue {by.queue.name} is Never",
    ),
    _Condition(_reclaims_from, _not_below),
    _Condition(lambda by: by.by_queue(lambda m: by.within_nominal(m) is None), _at_its_nominal),
    _Condition(
        lambda by: by.of_other_queues & ~by.could_return,
        lambda by, gang: (
            f"it is within the nominal quota of ClusterQueue {by.queue_of(gang)}"
            " before gangs of lower priority in that queue"
        ),
    ),
    _Condition(lambda by: by.of_other_queues & by.charged(by.shortfall.rows), _borrows),
)
IDLE: Final = PreemptionRule(
    PreemptionReason.IDLE,
    JointCondition.NONE,
    (_Condition(lambda by: by.idle & ~by.guarded, lambda *_: "it is not idle"),),
)
IDLE_WITHOUT_BORROWING: Final = PreemptionRule(
    PreemptionReason.IDLE,
    JointCondition.NONE,
    (_Condition(lambda by: by.idle, lambda *_: "it is not idle"),),
)
WITHIN: Final = PreemptionRule(
    PreemptionReason.IN_CLUSTER_QUEUE, JointCondition.NONE, _WITHIN_QUEUE
)
IN_TURN: Final = PreemptionRule(
    PreemptionReason.TIME_SLICE,
    JointCondition.NONE,
    (
        _WITHIN_QUEUE[0],
        _Condition(
            lambda by: by.running.priority <= by.workload.priority,
            lambda by, gang: (
                f"its priority {gang.workload.priority} is above {by.workload.priority}"
            ),
        ),
        _Condition(_had_its_slice, _slice_ends),
        _Condition(
            lambda by: _all(by, by.queue.name not in by.state.turns),
            lambda by, _: (
                f"an earlier gang of ClusterQueue {by.queue.name} waits for its time slice"
            ),
        ),
        _WITHIN_QUEUE[3],
    ),
)


def rules_within(by: Preemptor) -> tuple[PreemptionRule, ...]:
    """The rules for gangs of its own ClusterQueue. A repair evicts no gang in turn."""
    in_turn = by.queue.time_slice is not None and by.request.queue is not None
    return (WITHIN, IN_TURN) if in_turn else (WITHIN,)


BY_PLACE: Final = PreemptionRule(
    PreemptionReason.IN_COHORT_RECLAMATION,
    JointCondition.WHILE_OVER,
    (*_WITHIN_COHORT, _Condition(lambda by: by.by_place, _borrows)),
)
BY_SHARE: Final = PreemptionRule(
    PreemptionReason.IN_COHORT_FAIR_SHARING, JointCondition.WHILE_OVER, _WITHIN_COHORT
)
WHILE_BORROWING: Final = PreemptionRule(
    PreemptionReason.IN_COHORT_RECLAIM_WHILE_BORROWING,
    JointCondition.FOR_GOOD,
    (
        *_WITHIN_COHORT,
        _Condition(lambda by: _all(by, by.queue.preempts_to_borrow), _borrows),
        _Condition(_below_threshold, _borrows),
    ),
)
WITHOUT_BORROWING: Final = PreemptionRule(
    PreemptionReason.IN_COHORT_RECLAMATION, JointCondition.WHILE_OVER, _WITHIN_COHORT
)
FOR_ROOM: Final = PreemptionRule(
    PreemptionReason.IN_COHORT_ROOM,
    JointCondition.NONE,
    (
        _Condition(lambda by: _all(by, _lacks_room_alone(by)), _borrows),
        _Condition(lambda by: by.of_other_queues & ~by.running.reclaim_only, _borrows),
        _Condition(lambda by: by.lower, _not_below),
    ),
)


def evictable(state: CycleState, request: GangRequest, queue: ClusterQueue) -> frozenset[str]:
    """Uids of all gangs that some rule lets ``request`` evict, whether or not their exits would be enough."""
    by = Preemptor(state, request, queue)
    return frozenset(by.running.gangs[at].workload.uid for at in np.flatnonzero(_named(by)))


def conceivable(state: CycleState, pending: Pending, queue: ClusterQueue) -> list[Admitted]:
    """All gangs that a gang that waits may evict under some choice of flavors, and others of its cohort tree."""
    by = Preemptor(state, GangRequest(pending, (), queue=queue.name), queue)
    rules = (IDLE_WITHOUT_BORROWING, *rules_within(by))
    own: Mask = np.logical_or.reduce([rule.names(by) for rule in rules])
    found = own | (by.of_other_queues & by.staying)
    return [by.running.gangs[at] for at in np.flatnonzero(found)]


def _named(by: Preemptor) -> Mask:
    """The gangs that some rule names. Shape (C,)."""
    rules = [IDLE_WITHOUT_BORROWING, *rules_within(by), BY_PLACE, FOR_ROOM]
    rules.append(BY_SHARE if by.fair else WHILE_BORROWING)
    if not by.fair and by.may_go_without_borrowing:
        rules.append(WITHOUT_BORROWING)
    found: Mask = np.logical_or.reduce([rule.names(by) for rule in rules])
    return found


def why_not(
    state: CycleState, requests: Iterable[GangRequest], queue: ClusterQueue | None, gang: Admitted
) -> str:
    """Why a running gang that does not leave is not evicted for a pending gang, as the end of a sentence.

    Args:
        state: capacity and quota at the point of the cycle that counts.
        requests: the gang that waits under each choice of flavors.
        queue: its ClusterQueue, None when it has no quota.
        gang: the one that runs.
    """
    theirs = state.problem.snapshot.queue_of(gang.workload)
    if theirs is None:
        return "it is in no ClusterQueue"
    reclaimed = queue is not None and theirs.name != queue.name
    protected = why_protected(gang, theirs, state.problem.snapshot.now, reclaimed=reclaimed)
    if protected is not None:
        return protected
    if queue is None:
        return f"it is in ClusterQueue {theirs.name}, and the pending gang has none"
    failed: list[tuple[int, str]] = []
    for request in requests:
        by = Preemptor(state, request, queue, everywhere=True)
        found = [at for at, other in enumerate(by.running.gangs) if other.workload == gang.workload]
        if _named(by)[found].any():
            return _ALLOWED
        rule = BY_PLACE if reclaimed else rules_within(by)[-1]
        for number, condition in enumerate(rule.conditions):
            if not condition.of(by)[found].any():
                failed.append((number, condition.sentence(by, gang)))
                break
    return min(failed)[1] if failed else _ALLOWED


# ---- Sets of candidates


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
    compared = list(_with_idle(by, *reclaims))
    all_rules = (*reclaims, WITHOUT_BORROWING)
    others = WITHOUT_BORROWING.names(by) & ~BY_PLACE.names(by)
    if others.any() and by.may_go_without_borrowing:
        compared += _scheme(by, *all_rules, borrows=False)
    return [compared, *_for_room(by, all_rules)]


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
    legal = _with_added_pods(by, kinds >= 0)
    deficits = by.shortfall.deficits(by.running.quota, len(legal), borrows=borrows)
    if any(frees[legal].sum() < amount for amount, frees in deficits):
        return []
    table = by.running.table(legal, by.state.problem.snapshot.now)
    return [CandidateSet(by, table, rules, kinds[legal], borrows, strategies)]


def _with_added_pods(by: Preemptor, legal: Mask) -> Mask:
    """Without each elastic gang of which an added pod is not among these gangs: that pod would end with the gang."""
    elastic = by.state.problem.added_pods
    numbers = by.running.numbers if elastic else {}
    for uid, pods in elastic.items():
        gang = numbers.get(uid)
        if gang is not None and legal[gang]:
            at = (numbers.get(p.workload.uid) for p in pods if not by.state.leaves(p))
            legal[gang] = all(number is not None and legal[number] for number in at)
    return legal
