"""One gang that would evict others, and what the rules ask about it and about the gangs that run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from queuectl.domain.queues import (
    ClusterQueue,
    QueueingStrategy,
    ReclaimWithinCohort,
    WithinClusterQueue,
)
from queuectl.domain.snapshot import Admitted
from queuectl.domain.workload import Workload
from queuectl.planner.capacity.state import CycleState
from queuectl.planner.preempt.candidates import (
    RunningGangs,
    any_yields,
    least_priorities,
    running_gangs,
    staying,
)
from queuectl.planner.preempt.returning import Place, Returning, evicts_below
from queuectl.planner.preempt.shortage import CommonPool, QuotaShortfall, shortfall_of
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.problem.topology import Mask
from queuectl.planner.quota.tree import FlavorResource, QuotaNode


@dataclass(eq=False)
class Preemptor:
    """One gang that would evict others, and the running gangs of its cohort tree that neither leave nor are protected, C of them.

    Attributes:
        request: of a gang that waits; of a repair, which is charged nothing and takes no gang for idleness.
        queue: the ClusterQueue whose policies count.
        dry: queues count that only report which idle gangs would be evicted.
        known: per rule, the gangs that it names; filled by :mod:`queuectl.planner.preempt.rules`.
        everywhere: consider the whole tree, also where no rule reaches beyond its own ClusterQueue.
    """

    state: CycleState
    request: GangRequest
    queue: ClusterQueue
    dry: bool = False
    everywhere: bool = False
    known: dict[object, Mask] = field(default_factory=dict)

    @property
    def workload(self) -> Workload:
        return self.request.pending.workload

    @cached_property
    def shortfall(self) -> QuotaShortfall:
        return shortfall_of(self.state, self.request, self.queue.name)

    @cached_property
    def fair(self) -> bool:
        """Whether shares decide instead of borrowing."""
        return bool(self.state.problem.snapshot.config.rules.fair_sharing)

    @cached_property
    def _asks_idle(self) -> bool:
        waits = self.request.queue is not None
        problem = self.state.problem
        return waits and any_yields(problem, self.workload, self.queue, dry=self.dry)

    @cached_property
    def running(self) -> RunningGangs:
        """The gangs that some rule could name."""
        queue = self.queue
        names: tuple[str, ...] = (queue.name,)
        reclaims = queue.reclaim_within_cohort is not ReclaimWithinCohort.NEVER
        others = self._asks_idle or reclaims or queue.evicts_within_nominal or self.everywhere
        if len(self.shortfall.path) > 1 and others:
            names = self.shortfall.path[-1].queues
        return running_gangs(self.state.problem, names)

    # Questions of the conditions. Masks have the shape (C,).

    @cached_property
    def own(self) -> Mask:
        """Gangs of its own ClusterQueue."""
        own: Mask = self.running.owner == self.running.queues[self.queue.name]
        return own

    @cached_property
    def lower(self) -> Mask:
        """Gangs of lower priority."""
        lower: Mask = self.running.priority < self.workload.priority
        return lower

    @cached_property
    def newer_equal(self) -> Mask:
        running = self.running
        equal: Mask = running.priority == self.workload.priority
        return equal & (running.queued_at > self.workload.queued_at)

    def queue_of(self, gang: Admitted) -> str:
        """The name of the ClusterQueue that a running gang is charged to."""
        queue = self.state.problem.snapshot.queue_of(gang.workload)
        return "" if queue is None else queue.name

    def common_pool(self, gang: Admitted) -> CommonPool | None:
        """Where the ClusterQueue of a running gang meets its side of the tree."""
        return self.shortfall.common_pool(self.queue_of(gang))

    @cached_property
    def others(self) -> Mask:
        """Gangs of other ClusterQueues of its cohort tree."""
        return self.by_queue(lambda _: True)

    def by_queue(self, holds: Callable[[CommonPool], bool | Mask]) -> Mask:
        """Gangs of other ClusterQueues of the tree for which something holds, asked once for each queue."""
        found = np.zeros(len(self.running.gangs), dtype=np.bool_)
        for name, at in self.running.queues.items():
            common_pool = self.shortfall.common_pool(name)
            if common_pool is not None:
                theirs = self.running.owner == at
                if theirs.any():
                    found |= theirs & holds(common_pool)
        return found

    def charged(self, queue: str, rows: Iterable[FlavorResource]) -> Mask:
        """Gangs that are charged to a queue for one of some flavors and resources."""
        charged = np.zeros(len(self.running.gangs), dtype=np.bool_)
        for row in rows:
            amounts = self.running.quota.get((queue, *row))
            if amounts is not None:
                charged |= amounts > 0
        return charged

    def within_nominal(self, common_pool: CommonPool) -> QuotaNode | None:
        """Of another queue and the cohorts above it the first that uses no more than its own of what is contended for."""
        pools = common_pool.below[:1] if self.fair else common_pool.below
        return next((pool for pool in pools if not self.shortfall.over(pool)), None)

    @cached_property
    def returning(self) -> Returning:
        """Which gangs could return; ``uphill``: another queue of the tree reclaims from higher gangs too."""
        known = self.state.problem.snapshot.config.cluster_queues
        uphill = any(
            known[name].reclaim_within_cohort is ReclaimWithinCohort.ANY
            for name in self.running.queues
            if name in known and name != self.queue.name
        )
        return Returning(self.state, self.workload, uphill)

    def could_return(self, common_pool: CommonPool) -> Mask:
        """Gangs of a ClusterQueue that could come back within its nominal quota and then evict the preemptor.

        Not all of them: ``OtherQueues.stays_out`` later considers the other gangs that leave with them.
        """
        pool = common_pool.below[0]
        queue = self.state.problem.snapshot.config.cluster_queues[pool.name]
        borrows = np.zeros(len(self.running.gangs), dtype=np.bool_)
        alone = self.fair and not self.shortfall.within_nominal
        for row in self.shortfall.rows:
            beyond = self.shortfall.use.beyond(pool, row)
            if beyond > 0:
                place = None if alone else self.returning.settled_above((pool.name, *row), beyond)
                above = _above(self.running, place, queue.within_cluster_queue)
                borrows |= self.charged(pool.name, [row]) & ~above
        return ~borrows & self.returning.dangerous(queue, self.running.priority)

    @cached_property
    def by_place(self) -> Mask:
        """Gangs that use from outside quota that is the preemptor's by its place in the tree."""
        if self.fair:
            return self.others if self.shortfall.within_nominal else np.zeros_like(self.others)
        return self.by_queue(lambda common_pool: common_pool.level > self.shortfall.nearest_quota)

    @cached_property
    def may_go_without_borrowing(self) -> bool:
        """Kueue's rule: a queue that may not preempt to borrow must have nominal quota unused of all it contends for."""
        own = self.shortfall.path[0]
        return self.queue.preempts_to_borrow or all(
            self.shortfall.use.beyond(own, row) < 0 for row in self.shortfall.rows
        )

    @cached_property
    def idle(self) -> Mask:
        """Gangs that yield to it for being idle, less those that would come back before it."""
        running, queue = self.running, self.queue
        if not self._asks_idle:
            return np.zeros(len(running.gangs), dtype=np.bool_)
        least = least_priorities(self.state.problem, tuple(running.queues), self.dry)
        idle: Mask = least <= self.workload.priority
        evicts = queue.within_cluster_queue is WithinClusterQueue.LOWER_OR_NEWER_EQUAL_PRIORITY
        if evicts or queue.strategy is QueueingStrategy.STRICT_FIFO:
            equal = self.own & (running.priority == self.workload.priority)
            idle &= ~(equal & ~self.newer_equal)
        return idle & staying(self.state, running)

    @cached_property
    def guarded(self) -> Mask:
        """Idle gangs of other queues that could take back what a borrower got of them."""
        if not self.idle.any():
            return self.idle
        known = self.state.problem.snapshot.config.cluster_queues
        reclaims = [
            name in known
            and name != self.queue.name
            and known[name].reclaim_within_cohort is not ReclaimWithinCohort.NEVER
            for name in self.running.queues
        ]
        return self.idle & np.array(reclaims, dtype=np.bool_)[self.running.owner]


def _above(running: RunningGangs, place: Place | None, policy: WithinClusterQueue) -> Mask:
    """Gangs to which one at this place of their ClusterQueue yields. Shape (C,)."""
    reach = evicts_below(policy, running.priority, running.queued_at)
    if place is None or reach is None:
        return np.zeros(len(running.gangs), dtype=np.bool_)
    above: Mask = (reach[0] > place[0]) | ((reach[0] == place[0]) & (reach[1] > place[1]))
    return above
