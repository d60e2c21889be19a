"""One preemptor and its victims in other ClusterQueues, for the check: their places in the tree, and the use.

A plan does not state the use at the moment a gang was considered, only the use before and after. So use is taken as
two bounds, each where it lets more pass: *high* on the side of the victims (all that counted at some time of the plan: what
runs and is evicted later or at a time that the plan does not state, what starts, and leases, those that end among them), *low* on the
side of the preemptor. A plan that fails by them was illegal in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from queuectl.domain.plan import Preemption
from queuectl.domain.queues import ClusterQueue, ReclaimWithinCohort, WithinClusterQueue
from queuectl.domain.snapshot import Admitted
from queuectl.domain.workload import Placement, Workload
from queuectl.planner.verify.cohorts import CohortMember, Row
from queuectl.planner.verify.plan_index import PlanIndex
from queuectl.planner.verify.quota import charges

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
        for workload, placement in self._counted(self._gone_before):
            _add(use, charges(self.index, workload, placement))
        return use

    def _counted(self, gone: Iterable[str]) -> Iterator[tuple[Workload, Placement]]:
        """All gangs that run and stay, and all that the plan starts or that have a lease before or after it."""
        for gang in self._members_that_stay(gone):
            yield gang.workload, gang.placement
        for claim in self.index.claims:
            if claim.running is None and claim.workload.uid != self.uid:
                yield claim.workload, claim.placement
        for uid, entry in self.index.pending.items():
            refusal = self.index.refused.get(uid)
            if entry.lease is not None and refusal is not None and refusal.lease is None:
                yield entry.workload, entry.lease.placement

    @cached_property
    def low(self) -> Use:
        plan = self.index.plan
        gone = {p.victim for p in plan.preempted if p.preemptor != self.uid}
        gone |= {m.uid for m in plan.moved} | {e.uid for e in plan.evicted}
        use: Use = {}
        for gang in self._members_that_stay(gone):
            _add(use, charges(self.index, gang.workload, gang.placement))
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
            _add(less, charges(self.index, gang.workload, gang.placement), -1)
        return less

    def with_request(self, use: Use) -> Use:
        if self.repaired:
            return use
        more = dict(use)
        _add(more, (((self.queue.name, *row), amount) for row, amount in self.charges.items()))
        return more

    # Questions about it.

    def borrows(self) -> bool:
        use = self.with_request(self.without(self.low, self.victims))
        return any(
            self.own.uses(use, *row) > self.own.quota(*row) for row, n in self.charges.items() if n
        )

    def over(self, member: CohortMember, use: Use) -> bool:
        return any(member.uses(use, *row) > member.quota(*row) for row in self.charges)

    def stays_out(
        self, uid: str, theirs: list[str], pools: Iterable[CohortMember], *, alone: bool = False
    ) -> bool:
        """Whether a victim's pools would have to borrow, of what it asks and the gang contends for, to have it back.

        ``alone``: though no other gang of its queue makes room for it.
        """
        others = (v for v in theirs if v != uid)
        use = self.without(self.high, others) if alone else self.with_back(uid, theirs)
        gang = self.index.running[uid]
        charged = {row[1:] for row, n in charges(self.index, gang.workload, gang.placement) if n}
        rows = [row for row in self.charges if row in charged]
        return all(
            any(member.uses(use, *row) > member.quota(*row) for row in rows) for member in pools
        )

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
        use = self.without(self.high, (v for v in theirs if v != uid))
        if queue is None or not self.threatens(uid):
            return use
        for workload, placement in self._counted({*self._gone_before, *theirs}):
            if self.index.queue_of(workload) is queue and self._yields(queue, workload, victim):
                _add(use, charges(self.index, workload, placement), -1)
        return use

    def _yields(self, queue: ClusterQueue, gang: Workload, victim: Workload) -> bool:
        """Whether a gang would have to leave for a victim that waits in their common queue."""
        running = self.index.running.get(gang.uid)
        stays = running is not None and not running.evictable
        if stays or self.index.opts_out(gang):
            return False
        if queue.within_cluster_queue is WithinClusterQueue.NEVER:
            return False
        equal = queue.within_cluster_queue is WithinClusterQueue.LOWER_OR_NEWER_EQUAL_PRIORITY
        newer = gang.priority == victim.priority and gang.queued_at > victim.queued_at
        return gang.priority < victim.priority or (equal and newer)

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
        return [
            v for v in able if over(member, self.without(self.high, (w for w in theirs if w != v)))
        ]

    @cached_property
    def rows(self) -> frozenset[Key]:
        """Every flavor and resource of which the tree has a quota."""
        return frozenset(_stated(self.path[-1]))


def _add(use: Use, rows: Iterable[tuple[Row, int]], sign: int = 1) -> None:
    for row, amount in rows:
        use[row] = use.get(row, 0) + sign * amount


def _stated(member: CohortMember) -> Iterator[Key]:
    for group in member.groups:
        for quotas in group.flavors:
            for resource in group.covered:
                yield quotas.flavor, resource
    for inner in member.below:
        yield from _stated(inner)
