"""Victims in other ClusterQueues: their places in the tree, the use, and the rules by which an order of exits is legal.

A plan does not state the use at the moment a gang was considered, only the use before and after. So use is taken as
two bounds, each where it lets more pass: *high* on the side of the victims (all that counted at some time of the plan: what
runs and is evicted later or at a time that the plan does not state, what starts, and leases, those that end among them), *low* on the
side of the preemptor. A plan that fails by them was illegal in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import chain, islice, product
from typing import TypeAlias

from queuectl.domain.plan import Preemption, PreemptionReason
from queuectl.domain.queues import ClusterQueue, ReclaimWithinCohort, WithinClusterQueue
from queuectl.domain.rules import FairStrategy
from queuectl.domain.snapshot import Admitted
from queuectl.domain.workload import Placement, Workload
from queuectl.planner.verify.cohorts import CohortMember, Row, add_rows, excesses
from queuectl.planner.verify.plan_index import PlanIndex

Key: TypeAlias = tuple[str, str]  # flavor, resource
Use: TypeAlias = dict[Row, int]


@dataclass(frozen=True)
class Case:
    """One preemptor and all its victims.

    Attributes:
        charges: what it is charged, per flavor and resource.
        repaired: it runs, and its charge is counted already.
    """

    index: PlanIndex
    uid: str
    queue: ClusterQueue
    charges: dict[Key, int]
    repaired: bool

    @property
    def workload(self) -> Workload:
        return (self.index.pending.get(self.uid) or self.index.running[self.uid]).workload

    @cached_property
    def own(self) -> CohortMember:
        return self.index.members[self.queue.name]

    @cached_property
    def path(self) -> list[CohortMember]:
        return list(self.own.up())

    @cached_property
    def victims(self) -> dict[str, Preemption]:
        return {p.victim: p for p in self.index.plan.preempted if p.preemptor == self.uid}

    @cached_property
    def foreign(self) -> dict[str, CohortMember]:
        """Victims of other queues that share a cohort, with the member each is charged to."""
        found = {}
        for uid in self.victims:
            gang = self.index.running.get(uid)
            queue = self.index.queue_of(gang.workload) if gang is not None else None
            if queue is not None and queue.name != self.queue.name:
                member = self.index.members[queue.name]
                if self.path[-1] in member.up():
                    found[uid] = member
        return found

    def below(self, member: CohortMember) -> list[CohortMember]:
        """From a member up to below the lowest one shared with the preemptor."""
        return [m for m in member.up() if m not in self.path]

    # Use, within bounds.

    @cached_property
    def _gone_before(self) -> set[str]:
        """Victims of those whom the plan served before."""
        earlier: set[str] = set()
        for preemption in self.index.plan.preempted:
            if preemption.preemptor == self.uid:
                break
            earlier.add(preemption.victim)
        return earlier

    @cached_property
    def high(self) -> Use:
        use: Use = {}
        for workload, placement in chain.from_iterable(self._counted_in.values()):
            add_rows(use, self.index.charges(workload, placement))
        return use

    def _counted(self, gone: Iterable[str]) -> Iterator[tuple[Workload, Placement]]:
        """All gangs that run and stay, or leave and return, and all that the plan starts or that have a lease before or after it."""
        for gang in self._members_that_stay(gone):
            yield gang.workload, gang.placement
        for gang in self.index.running.values():
            if gang.leaving and gang.returns:  # a plan can keep its place until it has stopped
                yield gang.queued_again, _whole(gang)
        claimed: dict[str, Placement] = {}
        for claim in self.index.claims:
            if claim.running is None and claim.workload.uid != self.uid:
                claimed[claim.workload.uid] = claim.placement
                yield claim.workload, claim.placement
        for uid, entry in self.index.pending.items():
            if entry.lease is None or uid == self.uid:
                continue
            # Until the plan ends the lease, or starts its gang with other flavors, the lease counts.
            charged = [
                sorted(self.index.charges(entry.workload, placement))
                for placement in (entry.lease.placement, claimed.get(uid))
                if placement is not None
            ]
            if len(charged) == 1 or charged[0] != charged[1]:
                yield entry.workload, entry.lease.placement

    @cached_property
    def low(self) -> Use:
        plan = self.index.plan
        gone = {p.victim for p in plan.preempted if p.preemptor != self.uid}
        gone |= {m.uid for m in plan.moved} | {e.uid for e in plan.evicted}
        use: Use = {}
        for gang in self._members_that_stay(gone):
            add_rows(use, self.index.charges(gang.workload, gang.placement))
        return use

    def _members_that_stay(self, gone: Iterable[str]) -> Iterator[Admitted]:
        out = set(gone)
        for uid, gang in self.index.running.items():
            if not gang.leaving and uid not in out:
                yield gang

    def without(self, use: Use, victims: Iterable[str]) -> Use:
        less = dict(use)
        for uid in victims:
            gang = self.index.running[uid]
            add_rows(less, self.index.charges(gang.workload, gang.placement), -1)
        return less

    def all_but(self, uid: str, theirs: Iterable[str]) -> Use:
        """The most that is used once some victims have left, and this one has not."""
        return self.without(self.high, (v for v in theirs if v != uid))

    def with_request(self, use: Use) -> Use:
        if self.repaired:
            return use
        more = dict(use)
        add_rows(more, (((self.queue.name, *row), amount) for row, amount in self.charges.items()))
        return more

    # Questions about it.

    def borrows(self) -> bool:
        use = self.with_request(self.without(self.low, self.victims))
        return self.over(self.own, use, (row for row, n in self.charges.items() if n))

    def over(self, member: CohortMember, use: Use, rows: Iterable[Key] | None = None) -> bool:
        """Whether a member uses more than its own of some flavors and resources: by default, of those that the gang is charged."""
        rows = self.charges if rows is None else rows
        return any(member.uses(use, *row) > member.quota(*row) for row in rows)

    def borrows_any(self, member: CohortMember, use: Use) -> bool:
        """Whether a member uses more than its own of anything, contended for or not."""
        return self.over(member, use, self.rows)

    def stays_out(
        self, uid: str, theirs: list[str], pools: Iterable[CohortMember], *, alone: bool = False
    ) -> bool:
        """Whether a victim's pools would have to borrow, of what it asks and the gang contends for, to have it back.

        ``alone``: though no other gang of its queue makes room for it.
        """
        use = self.all_but(uid, theirs) if alone else self.with_back(uid, theirs)
        gang = self.index.running[uid]
        charged = {row[1:] for row, n in self.index.charges(gang.workload, gang.placement) if n}
        rows = [row for row in self.charges if row in charged]
        return all(self.over(member, use, rows) for member in pools)

    def threatens(self, uid: str) -> bool:
        """Whether evictions that follow when a victim waits may reach the preemptor: not if all are of lower gangs."""
        victim = self.index.running[uid].workload
        queue = self.index.queue_of(victim)
        if queue is None or queue.reclaim_within_cohort is ReclaimWithinCohort.NEVER:
            return False
        queues = self.index.snapshot.config.cluster_queues
        others = (queues[name] for name in self.path[-1].queues() if name != self.queue.name)
        higher = victim.priority > self.workload.priority
        return higher or any(q.reclaim_within_cohort is ReclaimWithinCohort.ANY for q in others)

    def with_back(self, uid: str, theirs: list[str]) -> Use:
        """The use once one of the victims is back, and the gangs that yield to it in its own queue have made room for it."""
        victim = self.index.running[uid].workload
        queue = self.index.queue_of(victim)
        use = self.all_but(uid, theirs)
        if queue is None or not self.threatens(uid):
            return use
        out = set(theirs)
        for workload, placement in self._counted_in.get(queue.name, ()):
            if workload.uid not in out and self._yields(queue, workload, victim):
                add_rows(use, self.index.charges(workload, placement), -1)
        return use

    @cached_property
    def _counted_in(self) -> dict[str, list[tuple[Workload, Placement]]]:
        """By ClusterQueue, what counts in ``high``."""
        found: dict[str, list[tuple[Workload, Placement]]] = {}
        for workload, placement in self._counted(self._gone_before):
            queue = self.index.queue_of(workload)
            if queue is not None:
                found.setdefault(queue.name, []).append((workload, placement))
        return found

    def _yields(self, queue: ClusterQueue, gang: Workload, victim: Workload) -> bool:
        """Whether a gang would have to leave for a victim that waits in their common queue."""
        running = self.index.running.get(gang.uid)
        stays = running is not None and not running.evictable
        return not (stays or self.index.opts_out(gang)) and evicts_within(queue, victim, gang)

    def lasts(
        self,
        member: CohortMember,
        theirs: list[str],
        late: Sequence[str],
        over: Callable[[CohortMember, Use], bool],
    ) -> list[str]:
        """Those of them that can be the last to leave below a member; empty = not all of them are permitted to leave."""
        able: list[str] = []
        for inner in member.below:
            inside = [v for v in theirs if inner in self.below(self.foreign[v])]
            if inside:
                found = self.lasts(inner, inside, late, over)
                if not found:
                    return []
                able += found
        able = able if member.below else theirs
        if any(v in late for v in theirs):
            able = [v for v in able if v in late]
        return [v for v in able if over(member, self.all_but(v, theirs))]

    @cached_property
    def rows(self) -> frozenset[Key]:
        """Every flavor and resource of which the tree has a quota."""
        return frozenset(_stated(self.path[-1]))


def _whole(gang: Admitted) -> Placement:
    """All its pods on its first flavors, where its place is kept: those that have ended start again with the others."""
    parts = []
    for podset in gang.workload.podsets:
        if (placed := gang.placement.of(podset.name)) is not None:
            pods = max(podset.count, placed.count)
            parts.append(replace(placed, nodes=(), pods=pods, shares=(), awaits_nodes=True))
    return Placement(tuple(parts))


def evicts_within(queue: ClusterQueue, preemptor: Workload, victim: Workload) -> bool:
    """Whether withinClusterQueue of their common ClusterQueue lets one gang evict another."""
    policy = queue.within_cluster_queue
    if policy is WithinClusterQueue.NEVER or victim.priority > preemptor.priority:
        return False
    equal = policy is WithinClusterQueue.LOWER_OR_NEWER_EQUAL_PRIORITY
    newer = victim.queued_at > preemptor.queued_at
    return victim.priority < preemptor.priority or (equal and newer)


def _stated(member: CohortMember) -> Iterator[Key]:
    for group in member.groups:
        for quotas in group.flavors:
            for resource in group.covered:
                yield quotas.flavor, resource
    for inner in member.below:
        yield from _stated(inner)


# ---- Fair shares
#
# An order of exits in which each passed a strategy, and no gang that would return by its share.


_SPLITS = 512  # splits between the two strategies that are tried; beyond it the plan is accepted


def _share(case: Case, member: CohortMember, use: Use) -> tuple[bool, Fraction]:
    """Kueue's dominant resource share; endless ones last."""
    assert member.parent is not None
    borrowed: dict[str, int] = {}
    lendable: dict[str, int] = {}
    for flavor, resource in case.rows:
        beyond = member.uses(use, flavor, resource) - member.quota(flavor, resource)
        borrowed[resource] = borrowed.get(resource, 0) + max(0, beyond)
        most = member.parent.most(flavor, resource)
        lendable[resource] = lendable.get(resource, 0) + most
    part = max(
        (Fraction(b, lendable[r]) for r, b in borrowed.items() if lendable[r] > 0),
        default=Fraction(0),
    )
    if not member.weight:
        return part > 0, part
    return False, part / member.weight


def unfair(case: Case, top: CohortMember, theirs: list[str]) -> str | None:
    """Why the victims below one member of a pool shared with the preemptor may not all leave."""
    return _by_shares(case, top, theirs) or _return_within_nominal(case, theirs)


def _return_within_nominal(case: Case, theirs: list[str]) -> str | None:
    """Those of them that could return within the nominal quota of their ClusterQueue, and then take what shares do not protect."""
    bound = case.over(case.own, case.with_request(case.high))
    back = sorted(
        v
        for v in theirs
        if case.threatens(v) and not case.stays_out(v, theirs, [case.foreign[v]], alone=bound)
    )
    return f"{back} could come back within their own" if back else None


def _by_shares(case: Case, top: CohortMember, theirs: list[str]) -> str | None:
    near = [v for v in case.victims if v not in case.foreign or not _farther(case, v, top)]
    mine = case.with_request(case.without(case.low, near))
    contended = [row for row in case.charges if _contended(case, row)]
    within = not case.over(case.own, case.with_request(case.low), contended)
    own = next(m for m in case.path if m.parent is top.parent)
    ours = _share(case, own, mine)
    back = sorted(v for v in theirs if case.threatens(v) and _behind(case, v, theirs, top, ours))
    unfair_return = False
    for split in islice(_splits(case, theirs), _SPLITS):
        able = case.lasts(top, theirs, split, case.borrows_any)
        if able and (within or _passes(case, top, theirs, split, able, ours)):
            unfair_return = bool(split and back and not within)
            if not unfair_return:
                return None
    if unfair_return:
        return f"{back} would come back with a smaller share"
    tried = sum(1 for _ in islice(_splits(case, theirs), _SPLITS + 1))
    return None if tried > _SPLITS else f"no order of exits of {sorted(theirs)} is fair"


def _behind(
    case: Case, uid: str, theirs: list[str], top: CohortMember, ours: tuple[bool, Fraction]
) -> bool:
    """Whether a victim that is back would be on the side with the smaller share."""
    return _share(case, top, case.with_back(uid, theirs)) < ours


def _contended(case: Case, row: Key) -> bool:
    """Whether the request is short of a resource: of its quota, or perhaps of nodes that have it."""
    flavor = case.index.snapshot.config.flavors.get(row[0])
    if case.index.snapshot.fleet.nodes and flavor is not None and flavor.topology is not None:
        return True
    more = case.with_request(case.low)
    return any(excesses(case.index.members, case.low, more, [(case.queue.name, *row)]))


def _farther(case: Case, uid: str, top: CohortMember) -> bool:
    """Whether a victim meets the preemptor no lower than those below ``top`` do."""
    meets = case.below(case.foreign[uid])[-1].parent
    assert meets is not None
    assert top.parent is not None
    return case.path.index(meets) >= case.path.index(top.parent)


def _splits(case: Case, theirs: list[str]) -> Iterator[tuple[str, ...]]:
    """The victims by the last strategy."""
    strategies = case.index.snapshot.config.rules.fair_sharing
    if strategies[0] is FairStrategy.LESS_THAN_INITIAL_SHARE:
        yield tuple(theirs)
        return
    yield ()
    if len(strategies) > 1:
        queues: dict[str, list[str | None]] = {}
        for uid in theirs:
            queues.setdefault(case.foreign[uid].name, [None]).append(uid)
        for some in product(*queues.values()):
            chosen = tuple(v for v in some if v is not None)
            if chosen:
                yield chosen


def _passes(
    case: Case,
    top: CohortMember,
    theirs: list[str],
    late: tuple[str, ...],
    able: list[str],
    ours: tuple[bool, Fraction],
) -> bool:
    early = [v for v in theirs if v not in late]
    if early and ours > _share(case, top, case.without(case.high, early)):
        return False
    return not late or any(ours < _share(case, top, case.all_but(v, theirs)) for v in able)


# ---- Victims of other ClusterQueues
#
# Whom the policy names, and that an order of exits exists in which each was legal.


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
    for (_, flavor, resource), amount in index.charges(entry.workload, placement):
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
    most = case.queue.borrow_threshold
    low = victim.priority < case.workload.priority and (most is None or victim.priority <= most)
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
