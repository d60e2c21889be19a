"""Victims of other ClusterQueues: whom the policy names, and that an order of exits exists in which each was legal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from queuectl.domain.plan import Preemption, PreemptionReason
from queuectl.domain.queues import ReclaimWithinCohort
from queuectl.domain.workload import Placement, Workload
from queuectl.planner.verify.cohorts import CohortMember
from queuectl.planner.verify.exits import Case, Key
from queuectl.planner.verify.fairness import unfair
from queuectl.planner.verify.plan_index import PlanIndex
from queuectl.planner.verify.quota import charges

_Rule: TypeAlias = Callable[[Case, CohortMember, list[str]], str | None]


def against_cohort_policy(
    index: PlanIndex, preemption: Preemption, preemptor: Workload, victim: Workload
) -> str | None:
    """Why the policy of the preemptor's ClusterQueue does not name a gang of another one."""
    queue, other = index.queue_of(preemptor), index.queue_of(victim)
    assert queue is not None
    assert other is not None
    ours = list(index.members[queue.name].up())
    if ours[-1] is not list(index.members[other.name].up())[-1]:
        return f"{other.name} shares no cohort with {queue.name}"
    lower = victim.priority < preemptor.priority
    priorities = f"priority {victim.priority} against {preemptor.priority}"
    if preemption.reason == PreemptionReason.IN_COHORT_ROOM:
        allowed = queue.evicts_within_nominal and lower
        return None if allowed else f"{queue.name} may not evict it for room: {priorities}"
    fair = bool(index.snapshot.config.rules.fair_sharing)
    known = _BY_SHARE if fair else _CLASSIC
    if preemption.reason not in known:
        return f"the reason {preemption.reason} is not one for another ClusterQueue here"
    policy = queue.reclaim_within_cohort
    if policy is ReclaimWithinCohort.ANY or (policy is not ReclaimWithinCohort.NEVER and lower):
        return None
    return f"{priorities}, reclaimWithinCohort of {queue.name} is {policy}"


_WHATEVER_IS_USED = frozenset((PreemptionReason.IN_COHORT_ROOM, PreemptionReason.IDLE))
_CLASSIC = frozenset(
    (
        PreemptionReason.IN_COHORT_RECLAMATION,
        PreemptionReason.IN_COHORT_RECLAIM_WHILE_BORROWING,
    )
)
_BY_SHARE = frozenset(
    (PreemptionReason.IN_COHORT_RECLAMATION, PreemptionReason.IN_COHORT_FAIR_SHARING)
)


def across_queues(index: PlanIndex, uid: str) -> str | None:
    """Why the victims of one preemptor in other ClusterQueues may not all leave; None when they may."""
    entry = index.pending.get(uid) or index.running.get(uid)
    refusal = index.refused.get(uid)
    if entry is None or refusal is None or refusal.lease is None:
        return None  # reported of each victim already
    queue = index.queue_of(entry.workload)
    if queue is None or queue.name not in index.members:
        return None
    placement, repaired = refusal.lease.placement, uid in index.running
    if repaired:  # only its lost pods need room
        lost = {name for name, _, _ in index.running[uid].lost}
        placement = Placement(tuple(p for p in placement.podsets if p.podset in lost))
    asked: dict[Key, int] = {}
    for (_, flavor, resource), amount in charges(index, entry.workload, placement):
        asked[flavor, resource] = asked.get((flavor, resource), 0) + amount
    case = Case(index, uid, queue, asked, repaired)
    if not case.foreign:
        return None
    return _refusal(case)


def _refusal(case: Case) -> str | None:
    fair = bool(case.index.snapshot.config.rules.fair_sharing)
    why = _by_policy(case, unfair if fair else _not_reclaimable)
    return why or _for_room(case) or _taken_back(case)


def _by_policy(case: Case, why: _Rule) -> str | None:
    """The objections to the victims below each member of a pool shared with the preemptor."""
    tops: dict[CohortMember, list[str]] = {}
    for uid, member in case.foreign.items():
        if case.victims[uid].reason not in _WHATEVER_IS_USED:
            tops.setdefault(case.below(member)[-1], []).append(uid)
    found = (why(case, top, theirs) for top, theirs in tops.items())
    return next((text for text in found if text is not None), None)


def _for_room(case: Case) -> str | None:
    room = [v for v in case.foreign if case.victims[v].reason == PreemptionReason.IN_COHORT_ROOM]
    if room and case.borrows():
        return f"{case.queue.name} borrows, yet evicts {room} for room"
    return None


def _taken_back(case: Case) -> str | None:
    """A borrower's idle victims whose queue may reclaim what it lent: they would be back at once."""
    idle = (v for v in case.foreign if case.victims[v].reason == PreemptionReason.IDLE)
    back = [v for v in idle if _reclaims(case, v)]
    return (
        f"{case.queue.name} borrows, and {back} would take it back"
        if back and case.borrows()
        else None
    )


def _reclaims(case: Case, uid: str) -> bool:
    queue = case.index.queue_of(case.index.running[uid].workload)
    return queue is not None and queue.reclaim_within_cohort is not ReclaimWithinCohort.NEVER


def _not_reclaimable(case: Case, top: CohortMember, theirs: list[str]) -> str | None:
    if not case.lasts(top, theirs, (), case.over):
        return f"{sorted(theirs)} cannot all leave while {top.name} uses more than its own"
    borrows = case.borrows() and not _advantage(case, top)
    back = sorted(
        v
        for v in theirs
        if (borrows or case.threatens(v))
        and not case.stays_out(v, theirs, case.below(case.foreign[v]))
    )
    if back:
        return f"{back} could come back within their own"
    if _advantage(case, top):
        return None
    not_borrowing = sorted(v for v in theirs if not _while_borrowing(case, v))
    if not_borrowing and case.borrows():
        return f"{case.queue.name} borrows, yet evicts {not_borrowing}"
    unused = any(case.own.uses(case.low, *r) < case.own.quota(*r) for r in case.charges)
    if not_borrowing and not (unused or case.queue.preempts_to_borrow):
        return f"{case.queue.name} has used all its own and may not evict {not_borrowing}"
    return None


def _while_borrowing(case: Case, uid: str) -> bool:
    victim = case.index.running[uid].workload
    mine = (case.index.pending.get(case.uid) or case.index.running[case.uid]).workload
    most = case.queue.borrow_threshold
    low = victim.priority < mine.priority and (most is None or victim.priority <= most)
    return case.queue.preempts_to_borrow and low


def _advantage(case: Case, top: CohortMember) -> bool:
    """Whether the preemptor's queue, or a cohort of it that the victims are outside of, has quota for all it asks."""
    use = case.low
    asked = {row: 0 if case.repaired else n for row, n in case.charges.items() if n}
    for member in case.path:
        if top in member.below:
            return False
        if all(member.uses(use, *row) + n <= member.quota(*row) for row, n in asked.items()):
            return True
        for row, n in asked.items():
            kept = member.quota(*row) - member.lends(*row) - member.uses(use, *row)
            asked[row] = max(0, n - max(0, kept))
    return False
