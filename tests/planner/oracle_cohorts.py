"""Brute force over victim sets across ClusterQueues: every set, every order of exits, by Kueue's documented rules.

Quota is read from the tree of :mod:`queuectl.planner.verify.cohorts`; the planner's own quota, shares and victims
are not used. :mod:`tests.planner.oracle_fit` decides whether pods fit nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import combinations

from queuectl.domain.plan import Cost
from queuectl.domain.queues import (
    ClusterQueue,
    FlavorQuotas,
    OptOut,
    QueueConfig,
    QueueingStrategy,
    ReclaimMode,
    ReclaimWithinCohort,
    ResourceGroup,
    WithinClusterQueue,
)
from queuectl.domain.rules import FairStrategy
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.domain.workload import Workload
from queuectl.planner.verify.cohorts import CohortMember, Row, members_of
from tests.planner.oracle import fits_without, layers

UNLIMITED = 10**18
Key = tuple[str, str]  # flavor, resource


@dataclass(frozen=True)
class Cohorts:
    """The first pending gang of a snapshot under one choice of flavors, against all other gangs."""

    snapshot: Snapshot
    flavors: Sequence[Mapping[str, str]]

    @cached_property
    def members(self) -> dict[str, CohortMember]:
        return members_of(self.snapshot.config)

    @cached_property
    def gangs(self) -> dict[str, Admitted]:
        staying = (a for a in self.snapshot.admitted if not a.leaving)
        return {a.workload.uid: a for a in sorted(staying, key=lambda a: a.workload.uid)}

    def queue_of(self, uid: str) -> ClusterQueue:
        workload = self.gangs[uid].workload
        queue = self.snapshot.config.cluster_queue_of(workload.namespace, workload.queue)
        assert queue is not None
        return queue

    @property
    def preemptor(self):
        return self.snapshot.pending[0].workload

    @cached_property
    def queue(self) -> ClusterQueue:
        workload = self.preemptor
        queue = self.snapshot.config.cluster_queue_of(workload.namespace, workload.queue)
        assert queue is not None
        return queue

    @cached_property
    def request(self) -> dict[Key, int]:
        asked: dict[Key, int] = {}
        for podset, flavors in zip(self.preemptor.podsets, self.flavors, strict=True):
            for resource, flavor in flavors.items():
                amount = podset.shape.requests[resource] * podset.count
                asked[flavor, resource] = asked.get((flavor, resource), 0) + amount
        return asked

    def charges(self, uid: str) -> dict[Key, int]:
        gang, charged = self.gangs[uid], dict[Key, int]()
        for podset in gang.workload.podsets:
            placed = gang.placement.of(podset.name)
            assert placed is not None
            for resource, flavor in placed.flavors.items():
                amount = podset.shape.requests[resource] * podset.count
                charged[flavor, resource] = charged.get((flavor, resource), 0) + amount
        return charged

    def use(self, gone: frozenset[str], *, incoming: bool = False) -> dict[Row, int]:
        use: dict[Row, int] = {}
        for uid in self.gangs.keys() - gone:
            for (flavor, resource), amount in self.charges(uid).items():
                row = (self.queue_of(uid).name, flavor, resource)
                use[row] = use.get(row, 0) + amount
        for (flavor, resource), amount in self.request.items() if incoming else ():
            row = (self.queue.name, flavor, resource)
            use[row] = use.get(row, 0) + amount
        return use

    # Use over quota, free quota, and how much each queue borrows.

    def over(self, member: CohortMember, gone: frozenset[str], rows: frozenset[Key]) -> bool:
        use = self.use(gone)
        return any(member.uses(use, *row) > member.quota(*row) for row in rows)

    def left(self, member: CohortMember, use: Mapping[Row, int], row: Key) -> int:
        quota, used = member.quota(*row), member.uses(use, *row)
        if member.parent is None:
            return quota - used
        kept = quota - member.lends(*row)
        above = self.left(member.parent, use, row)
        limit = member.stated("borrowing", *row)
        if limit is not None:
            above = min(above, member.lends(*row) - max(0, used - kept) + limit)
        return max(0, kept - used) + above

    def quota_fits(self, gone: frozenset[str]) -> bool:
        own, use = self.members[self.queue.name], self.use(gone)
        return all(
            not need or need <= self.left(own, use, row) for row, need in self.request.items()
        )

    def fits(self, gone: frozenset[str]) -> bool:
        if not self.quota_fits(gone):
            return False
        if not self.snapshot.fleet.nodes:
            return True
        plenty = replace(self.snapshot, config=_without_quota(self.snapshot.config))
        return fits_without(plenty, plenty.pending[0], gone, only=self.flavors)

    @cached_property
    def contested(self) -> frozenset[Key]:
        own, use = self.members[self.queue.name], self.use(frozenset())
        short = {row for row, n in self.request.items() if n and n > self.left(own, use, row)}
        placed = set(self.request) if self.snapshot.fleet.nodes else set()
        return frozenset(short | placed)

    def borrows_after(self, gone: frozenset[str]) -> bool:
        own, use = self.members[self.queue.name], self.use(gone, incoming=True)
        return any(
            need and own.uses(use, *row) > own.quota(*row) for row, need in self.request.items()
        )

    def meeting(self, uid: str) -> tuple[CohortMember, list[CohortMember]]:
        """The lowest common member, and the victim's members below it."""
        mine = list(self.members[self.queue.name].up())
        below: list[CohortMember] = []
        for member in self.members[self.queue_of(uid).name].up():
            if member in mine:
                return member, below
            below.append(member)
        raise AssertionError("not in one tree")

    def related(self, uid: str) -> bool:
        top = list(self.members[self.queue.name].up())[-1]
        return (
            self.queue_of(uid) is not self.queue
            and top in self.members[self.queue_of(uid).name].up()
        )

    # Victims that policy allows.

    def within(self, uid: str) -> bool:
        if self.queue_of(uid) is not self.queue:
            return False
        mine, theirs = self.preemptor, self.gangs[uid].workload
        return not self.opts_out(uid) and self.may_evict(self.queue, mine, theirs)

    def opts_out(self, uid: str) -> bool:
        """Whether it is not preemptible, and its queue does not overrule that."""
        never = self.queue_of(uid).preemption_opt_out is OptOut.NEVER
        return not (never or self.gangs[uid].workload.preemptible)

    @staticmethod
    def may_evict(queue: ClusterQueue, mine: Workload, theirs: Workload) -> bool:
        """Whether a queue lets one of its gangs evict another one."""
        policy = queue.within_cluster_queue
        if policy is WithinClusterQueue.NEVER:
            return False
        newer = theirs.priority == mine.priority and theirs.queued_at > mine.queued_at
        equal = policy is WithinClusterQueue.LOWER_OR_NEWER_EQUAL_PRIORITY
        return theirs.priority < mine.priority or (equal and newer)

    def named(self, uid: str) -> bool:
        """Whether ``reclaimWithinCohort`` names it and it uses what is contended for."""
        policy = self.queue.reclaim_within_cohort
        if not self.related(uid) or policy is ReclaimWithinCohort.NEVER:
            return False
        if not any(self.charges(uid).get(row) for row in self.contested):
            return False
        spares = self.queue_of(uid).preemption_opt_out is OptOut.ALWAYS
        if spares and not self.gangs[uid].workload.preemptible:
            return False
        lower = self.gangs[uid].workload.priority < self.preemptor.priority
        return lower or policy is ReclaimWithinCohort.ANY

    def idle(self, uid: str) -> bool:
        """Whether it is idle and its own queue lets the preemptor have its GPUs, whatever is used or shared."""
        gang, rule = self.gangs[uid], self.queue_of(uid).idle_reclaim
        if self.opts_out(uid):
            return False
        if gang.idle_since is None or rule.mode not in (ReclaimMode.ON_DEMAND, ReclaimMode.ALWAYS):
            return False
        if self.queue_of(uid) is not self.queue and not self.related(uid):
            return False
        if gang.workload.priority != self.preemptor.priority:
            return bool(gang.workload.priority < self.preemptor.priority)
        newer = gang.workload.queued_at > self.preemptor.queued_at
        policy = self.queue.within_cluster_queue
        evicts = policy is WithinClusterQueue.LOWER_OR_NEWER_EQUAL_PRIORITY
        back = not newer and (evicts or self.queue.strategy is QueueingStrategy.STRICT_FIFO)
        return rule.to_equal and not (back and self.queue_of(uid) is self.queue)

    def yields(self, uid: str, victims: frozenset[str]) -> bool:
        """The same among some victims: not where its queue would take back what a borrower got."""
        policy = self.queue_of(uid).reclaim_within_cohort
        guarded = self.related(uid) and policy is not ReclaimWithinCohort.NEVER
        return self.idle(uid) and not (guarded and self.borrows_after(victims))

    def able(self, uid: str) -> bool:
        """Whether any rule names it."""
        return self.idle(uid) or self.within(uid) or self.named(uid)

    def advantage(self, uid: str) -> bool:
        """Whether a pool of the preemptor's side has the quota for its whole request at present."""
        common, _ = self.meeting(uid)
        use, asked = self.use(frozenset()), {r: n for r, n in self.request.items() if n}
        for member in self.members[self.queue.name].up():
            if member is common:
                return False
            if all(member.uses(use, *row) + n <= member.quota(*row) for row, n in asked.items()):
                return True
            for row, n in asked.items():
                kept = member.quota(*row) - member.lends(*row) - member.uses(use, *row)
                asked[row] = max(0, n - max(0, kept))
        return False

    def while_borrowing(self, uid: str) -> bool:
        priority, threshold = self.gangs[uid].workload.priority, self.queue.borrow_threshold
        low = priority < self.preemptor.priority
        return (
            self.queue.preempts_to_borrow and low and (threshold is None or priority <= threshold)
        )

    def stays_out(
        self, uid: str, victims: frozenset[str], pools: int | None = None, *, alone: bool = False
    ) -> bool:
        """Whether the first ``pools`` on its way up would have to borrow to have it back; ``alone``: no gang yields to it."""
        below = self.meeting(uid)[1][:pools]
        gone = victims - {uid} if alone else self.gone_with_back(uid, victims)
        rows = self.contested & {row for row, n in self.charges(uid).items() if n}
        return all(self.over(member, gone, rows) for member in below)

    def borrow_again(self, victims: frozenset[str], *, alone: bool) -> bool:
        """Whether each dangerous one of other queues would have to borrow in its own to be back."""
        wary = {v for v in victims if not self.within(v) and self.threatens(v)}
        return all(self.stays_out(v, victims, 1, alone=alone) for v in wary)

    def threatens(self, uid: str) -> bool:
        """Whether its queue takes back all that it may, and some gangs evicted on the way to the preemptor are not of lower priority."""
        if self.queue_of(uid).reclaim_within_cohort is ReclaimWithinCohort.NEVER:
            return False
        top = list(self.members[self.queue.name].up())[-1]
        uphill = (
            queue.reclaim_within_cohort is ReclaimWithinCohort.ANY
            for name, queue in self.snapshot.config.cluster_queues.items()
            if queue is not self.queue and top in self.members[name].up()
        )
        return self.gangs[uid].workload.priority > self.preemptor.priority or any(uphill)

    def gone_with_back(self, uid: str, victims: frozenset[str]) -> frozenset[str]:
        """The gangs that one victim's return evicts from its own queue; empty for a victim whose return does no harm."""
        queue, mine = self.queue_of(uid), self.gangs[uid].workload
        if not self.threatens(uid):
            return victims - {uid}
        evicted = {
            other
            for other, gang in self.gangs.items()
            if not self.opts_out(other)
            and self.queue_of(other) is queue
            and self.may_evict(queue, mine, gang.workload)
        }
        return (victims | evicted) - {uid}

    # Orders of exits.

    def classic(self, victims: frozenset[str]) -> bool:
        """Whether the classic rules let all of them leave, one after the other."""
        idle = {v for v in victims if self.yields(v, victims)}
        bound = victims - idle
        if not all(self.within(v) or self.named(v) for v in bound):
            return False
        foreign = {v for v in bound if not self.within(v)}
        free = {v for v in foreign if self.advantage(v) or self.while_borrowing(v)}
        borrows = self.borrows_after(victims)
        wary = {v for v in foreign if self.threatens(v) or (borrows and not self.advantage(v))}
        if not all(self.stays_out(v, bound) for v in wary):
            return False
        if foreign != free:
            own, use = self.members[self.queue.name], self.use(frozenset())
            unused = all(own.uses(use, *row) < own.quota(*row) for row in self.contested)
            if self.borrows_after(victims) or not (self.queue.preempts_to_borrow or unused):
                return False

        def go(gone: frozenset[str]) -> bool:
            return gone == victims or any(
                go(gone | {v})
                for v in victims - gone
                if v not in foreign
                or all(self.over(m, gone, self.contested) for m in self.meeting(v)[1])
            )

        return go(frozenset())

    def share(self, member: CohortMember, gone: frozenset[str]) -> tuple[bool, Fraction, bool]:
        """(endless, ratio, borrows): Kueue's dominant resource share with the preemptor's request counted in."""
        if member.parent is None:
            return False, Fraction(0), False
        use = self.use(gone, incoming=True)
        borrowed, lendable = dict[str, int](), dict[str, int]()
        root = list(member.up())[-1]
        for row in _rows(root):
            beyond = member.uses(use, *row) - member.quota(*row)
            borrowed[row[1]] = borrowed.get(row[1], 0) + max(0, beyond)
            lendable[row[1]] = lendable.get(row[1], 0) + member.parent.most(*row)
        most = max(
            (Fraction(b, lendable[r]) for r, b in borrowed.items() if lendable[r] > 0),
            default=Fraction(0),
        )
        weight = self._weight(member)
        borrows = any(borrowed.values())
        return (
            (True, most, borrows) if not weight and most else (False, most / (weight or 1), borrows)
        )

    def barred(self, victims: frozenset[str], bound: frozenset[str]) -> set[CohortMember]:
        """Members below which the initial share allows no victim, as some victim would return there with the smaller share."""
        found = set()
        for uid in bound:
            if self.within(uid) or not self.threatens(uid):
                continue
            common, below = self.meeting(uid)
            ours = next(m for m in self.members[self.queue.name].up() if m.parent is common)
            gone = self.gone_with_back(uid, bound)
            if self.share(below[-1], gone)[:2] < self.share(ours, victims)[:2]:
                found.add(below[-1])
        return found

    def _weight(self, member: CohortMember) -> int:
        config = self.snapshot.config
        if member.queue:
            return config.cluster_queues[member.name].weight
        return config.cohorts[member.name].weight if member.name in config.cohorts else 1000

    def fair(self, victims: frozenset[str], strategies: Sequence[FairStrategy]) -> bool:
        """Whether an order of exits passes the strategies, the second one after the first, once per ClusterQueue."""
        idle = {v for v in victims if self.yields(v, victims)}
        bound = victims - idle
        own = self.members[self.queue.name]
        use = self.use(frozenset(), incoming=True)
        unbound = all(own.uses(use, *row) <= own.quota(*row) for row in self.contested)
        no_gangs = frozenset[str]()
        named = all(self.within(v) or self.named(v) for v in bound)
        if not named or not self.borrow_again(bound, alone=not unbound):
            return False
        barred = self.barred(victims, victims - idle)

        def passes(v: str, gone: frozenset[str], strategy: FairStrategy) -> bool:
            if self.within(v) or v in idle:
                return True
            common, below = self.meeting(v)
            if not self.over(below[0], no_gangs, self.contested):
                return False
            if not all(self.share(member, gone)[2] for member in below):
                return False
            if unbound:
                return True
            mine = next(m for m in own.up() if m.parent is common)
            ours = self.share(mine, gone)[:2]
            if strategy is FairStrategy.LESS_THAN_INITIAL_SHARE:
                return below[-1] not in barred and ours < self.share(below[-1], gone)[:2]
            return ours <= self.share(below[-1], gone | {v})[:2]

        def second(gone: frozenset[str], used: frozenset[str]) -> bool:
            left = victims - gone
            if not left or any(second(gone | {v}, used) for v in left if v in idle):
                return True
            return any(
                second(gone | {v}, used | {self.queue_of(v).name})
                for v in left
                if not self.within(v)
                and self.queue_of(v).name not in used
                and passes(v, gone, strategies[1])
            )

        def first(gone: frozenset[str]) -> bool:
            if gone == victims or (len(strategies) > 1 and second(gone, frozenset())):
                return True
            return any(first(gone | {v}) for v in victims - gone if passes(v, gone, strategies[0]))

        return first(no_gangs)

    # The least of these sets.

    def least(self, costs: Mapping[str, Cost]) -> tuple[tuple[int, ...], frozenset[str]] | None:
        """The least legal victims after whose exit the gang fits, with their layers; None when no set helps.

        Idle gangs are considered first, and alone.
        """
        for victims in self._sets(costs):
            if all(self.yields(v, victims) for v in victims) and self.fits(victims):
                return self.layers(costs, victims), victims
        strategies = self.snapshot.config.rules.fair_sharing
        tries = [strategies[: n + 1] for n in range(len(strategies))] or [()]
        for some in tries:
            for victims in self._sets(costs):
                legal = self.fair(victims, some) if some else self.classic(victims)
                if legal and self.fits(victims):
                    return self.layers(costs, victims), victims
        return None

    def layers(self, costs: Mapping[str, Cost], victims: frozenset[str]) -> tuple[int, ...]:
        return layers(self.queue.victim_order, [costs[v] for v in victims])

    def _sets(self, costs: Mapping[str, Cost]) -> Iterator[frozenset[str]]:
        able = [u for u in self.gangs if self.able(u)]
        sets = [frozenset(s) for k in range(len(able) + 1) for s in combinations(able, k)]
        return iter(sorted(sets, key=lambda s: (self.layers(costs, s), sorted(s))))


def _rows(root: CohortMember) -> set[Key]:
    found = {(q.flavor, r) for g in root.groups for q in g.flavors for r in g.covered}
    return found.union(*(_rows(member) for member in root.below))


def _without_quota(config: QueueConfig) -> QueueConfig:
    def plenty(group: ResourceGroup) -> ResourceGroup:
        quotas = (
            FlavorQuotas(q.flavor, dict.fromkeys(group.covered, UNLIMITED)) for q in group.flavors
        )
        return ResourceGroup(group.covered, tuple(quotas))

    queues = {
        name: replace(q, groups=tuple(map(plenty, q.groups)), cohort=None)
        for name, q in config.cluster_queues.items()
    }
    return replace(config, cluster_queues=queues, cohorts={})
