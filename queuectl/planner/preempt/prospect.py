"""What one preemptor may hope for, by sums over ClusterQueues: no gang is looked at.

Most gangs that wait for quota cannot have it from victims either, because too little is held by those whom policy names. That
shows in a few sums, which cost a tenth of a search. It is a proof in one direction only: enough may be held, and yet no legal
set of victims exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from queuectl.domain.queues import ClusterQueue, ReclaimWithinCohort, WithinClusterQueue
from queuectl.domain.workload import Workload
from queuectl.planner.capacity.state import State
from queuectl.planner.preempt.contest import Contest, Shortage
from queuectl.planner.preempt.roster import Roster
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.problem.topology import Mask
from queuectl.planner.quota.tree import FlavorResource, Pool


@dataclass(frozen=True, eq=False, slots=True)
class Prospect:
    """One preemptor and the ClusterQueues whose gangs it may evict.

    Attributes:
        idle: the gangs of the roster that yield to it for being idle. Shape (C,).
    """

    state: State
    request: GangRequest
    queue: ClusterQueue
    contest: Contest
    roster: Roster
    idle: Mask

    @property
    def preemptor(self) -> Workload:
        return self.request.pending.workload

    @property
    def fair(self) -> bool:
        return bool(self.state.problem.snapshot.config.rules.fair_sharing)

    def conceivable(self) -> bool:
        """Whether the quota that is missing would come free if all left whom any rule could name.

        Sums of what is held per ClusterQueue and priority refuse most gangs, before a single candidate is looked at.
        """
        lacking = [
            (short, missing)
            for short in self.contest.shortages()
            if (missing := short.amount - self._frees_alone(short.row)) > 0
        ]
        if not lacking:
            return True
        helpers = list(self._helpers())
        return bool(helpers) and all(
            missing <= sum(self._frees(name, short) for name in helpers)
            for short, missing in lacking
        )

    def _frees_alone(self, row: FlavorResource) -> int:
        """Of a row, what may come free at most without others' gangs that work: of its own queue, and of idle gangs."""
        return self._own_frees(row) + self._idle_frees(row)

    def _idle_frees(self, row: FlavorResource) -> int:
        """Of a row, what gangs hold that yield to it for being idle."""
        if not self.idle.any():
            return 0
        owners = set(self.roster.owner[self.idle].tolist())
        amounts = [
            self.roster.quota.get((name, *row))
            for name, at in self.roster.queues.items()
            if at in owners
        ]
        return sum(int(held[self.idle].sum()) for held in amounts if held is not None)

    def _own_frees(self, row: FlavorResource) -> int:
        """Of a row, what gangs of the preemptor's own queue hold that may leave for it, at most."""
        policy, below = self.queue.within_cluster_queue, self.preemptor.priority
        if policy is WithinClusterQueue.NEVER:
            return 0
        newer = policy is WithinClusterQueue.LOWER_OR_NEWER_EQUAL_PRIORITY
        return self.roster.held((self.queue.name, *row), below + newer)

    def _frees(self, other: str, short: Shortage) -> int:
        """Of a shortage, what gangs of another queue that may leave make up, at most."""
        lower = self.queue.reclaim_within_cohort is ReclaimWithinCohort.LOWER_PRIORITY
        below = self.preemptor.priority if lower else None
        held = self.roster.held((other, *short.row), below)
        most = self.contest.makes_up(other, short) if held else 0
        return held if most is None else min(held, most)

    def _helpers(self) -> Iterator[str]:
        """Other queues whose gangs some rule could name."""
        if self.queue.reclaim_within_cohort is ReclaimWithinCohort.NEVER:
            return
        freely = self.fair or self.queue.preempts_to_borrow or self._own_suffices()
        advantages = self.advantages()
        if not freely and not any(advantages):
            return
        for name in self.roster.queues:
            meeting = self.contest.meeting(name)
            if meeting is not None and (freely or advantages[meeting.level]):
                over = meeting.below[:1] if self.fair else meeting.below
                if self.all_over(over):
                    yield name

    def _own_suffices(self) -> bool:
        """Whether the preemptor's queue can be within its nominal quota once gangs of its own have left for it."""
        own = self.contest.path[0]
        return self.may_go_without_borrowing() and all(
            need + self.contest.beyond(own, row) <= self._frees_alone(row)
            for row, need in self.contest.needs.items()
            if need
        )

    def all_over(self, pools: Iterable[Pool]) -> bool:
        """Whether each of these uses more than its own of something that is contended for."""
        contest = self.contest
        return all(any(contest.beyond(p, row) > 0 for row in contest.rows) for p in pools)

    def advantages(self) -> list[bool]:
        """Per pool of the preemptor's path, whether one below it has all the quota that is asked, use as it is."""
        contest = self.contest
        needs = {row: n for row, n in contest.needs.items() if n or row in contest.rows}
        found, advantage = [], False
        for pool in contest.path:
            found.append(advantage)
            advantage |= all(contest.beyond(pool, row) + need <= 0 for row, need in needs.items())
            for row, need in needs.items():
                kept = pool.local.get(row, 0) - contest.used(pool, row)
                needs[row] = max(0, need - max(0, kept))
        return found

    def may_go_without_borrowing(self) -> bool:
        """Kueue's rule: a queue that may not preempt to borrow must have nominal quota unused of all it contends for."""
        own = self.contest.path[0]
        return self.queue.preempts_to_borrow or all(
            self.contest.beyond(own, row) < 0 for row in self.contest.rows
        )

    def within_nominal(self) -> bool:
        contest = self.contest
        return all(
            contest.beyond(contest.path[0], row) + contest.needs[row] <= 0 for row in contest.rows
        )
