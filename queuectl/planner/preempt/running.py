"""Answers to the rules about running gangs, and about one gang that would evict some of them.

*RunningGangs* are the gangs of some ClusterQueues that are not protected, as arrays (:mod:`queuectl.planner.preempt.candidates`). A
*Preemptor* answers the questions of the rules (:mod:`queuectl.planner.preempt.rules`) about them.

Idle gangs yield their GPUs to a gang that waits (``idleReclaim``). Whether a gang is idle was judged before the snapshot was made
(``Admitted.idle_since``); nothing of metrics is known here. The idle gang's own ClusterQueue decides: a gang of higher priority may
get its GPUs, or one of equal priority where the queue has ``toEqual``, from anywhere in the cohort tree, and whatever the preemption
policies of either queue are. In a dry run the queues count that only report which gangs would be evicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from math import inf
from typing import Final

import numpy as np

from queuectl.domain.queues import (
    ClusterQueue,
    ReclaimMode,
    ReclaimWithinCohort,
    WithinClusterQueue,
)
from queuectl.domain.snapshot import Admitted
from queuectl.domain.workload import Workload
from queuectl.planner.capacity.state import CycleState
from queuectl.planner.preempt.candidates import GangArrays
from queuectl.planner.preempt.protections import protected_until
from queuectl.planner.preempt.returning import Place, Returning, evicts_below
from queuectl.planner.preempt.shortage import (
    CommonPool,
    QuotaShortfall,
    common_pool_of,
    shortfall_of,
)
from queuectl.planner.preempt.staying import staying_gangs
from queuectl.planner.problem.fleet import Ints, Mask
from queuectl.planner.problem.problem import Floats, Problem
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.quota import FlavorResource, QuotaNode, QuotaTree


class EvictionScope(Enum):
    """Which gangs are asked to leave for a gang that waits."""

    LEGAL = auto()  # gangs that the preemption policies name, and idle gangs
    IDLE = auto()  # idle gangs alone
    DRY_RUN = auto()  # the same, with those of queues that only report what they would reclaim


_TAKEN: Final = frozenset((ReclaimMode.ON_DEMAND, ReclaimMode.ALWAYS))
_REPORTED: Final = _TAKEN | {ReclaimMode.DRY_RUN}


def yielding(problem: Problem, *, dry: bool = False) -> Mapping[str, Mapping[str, int]]:
    """The idle gangs that yield their GPUs: ClusterQueue to uid to the least priority that the gang yields to.

    Args:
        problem: of the cycle.
        dry: also count ClusterQueues that do a dry run.
    """
    return problem.once(_yielding, dry)


def _yielding(problem: Problem, dry: bool) -> Mapping[str, Mapping[str, int]]:
    snapshot = problem.snapshot
    found: dict[str, dict[str, int]] = {}
    for gang in problem.usage.idle:
        queue = snapshot.queue_of(gang.workload)
        if queue is None or queue.idle_reclaim.mode not in (_REPORTED if dry else _TAKEN):
            continue
        if protected_until(gang, queue, snapshot.now) is None:
            least = gang.workload.priority + (0 if queue.idle_reclaim.to_equal else 1)
            found.setdefault(queue.name, {})[gang.workload.uid] = least
    return found


def in_reach(
    problem: Problem, workload: Workload, queue: ClusterQueue | None, *, dry: bool = False
) -> Iterator[str]:
    """ClusterQueues, of the cohort tree of a gang that waits or its own, with an idle gang that yields to it."""
    least = problem.once(_least, dry)
    for name in problem.pools[queue.name].root.queues if least and queue is not None else ():
        if least.get(name, inf) <= workload.priority:
            yield name


def _least(problem: Problem, dry: bool) -> Mapping[str, int]:
    """ClusterQueue to the least priority that some idle gang of it yields to."""
    return {name: min(gangs.values()) for name, gangs in yielding(problem, dry=dry).items()}


def any_yields(
    problem: Problem, workload: Workload, queue: ClusterQueue | None, *, dry: bool = False
) -> bool:
    """Whether some idle gang yields to one that waits."""
    return any(True for _ in in_reach(problem, workload, queue, dry=dry))


def may_evict(problem: Problem, workload: Workload, queue: ClusterQueue | None) -> bool:
    """Whether a gang that waits may evict any gang at all: by its queue's policies, or an idle one."""
    return queue is not None and (queue.preempts or any_yields(problem, workload, queue))


def any_may_evict(problem: Problem, queue: ClusterQueue) -> bool:
    """The same of some gang of a ClusterQueue, whatever its priority is."""
    yields = yielding(problem)
    return queue.preempts or any(name in yields for name in problem.pools[queue.name].root.queues)


@dataclass(frozen=True, eq=False)
class RunningGangs(GangArrays):
    """Staying gangs of some ClusterQueues that some gang may evict now.

    Attributes:
        queues: name to position of the ClusterQueues it is of.
        owner: the position of the one each is charged to.
        reclaim_only: those that opt out of preemption, which counts unless another ClusterQueue reclaims borrowed quota.
    """

    queues: dict[str, int]
    owner: Ints
    reclaim_only: Mask

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each gang, by uid."""
        return {gang.workload.uid: number for number, gang in enumerate(self.gangs)}

    @cached_property
    def by_queue(self) -> dict[str, Ints]:
        """The numbers of the gangs of each ClusterQueue that has any."""
        order = np.argsort(self.owner, kind="stable")
        bounds = np.searchsorted(self.owner[order], np.arange(len(self.queues) + 1))
        parts = {name: order[bounds[at] : bounds[at + 1]] for name, at in self.queues.items()}
        return {name: gangs for name, gangs in parts.items() if gangs.size}

    @cached_property
    def charged(self) -> dict[FlavorResource, Mask]:
        """The gangs that are charged for a flavor and resource."""
        masks: dict[FlavorResource, Mask] = {}
        for (_, flavor, resource), gangs in self.quota.charged():
            mask = masks.setdefault((flavor, resource), np.zeros(len(self.gangs), dtype=np.bool_))
            mask[gangs] = True
        return masks


def running_gangs(problem: Problem, queues: tuple[str, ...]) -> RunningGangs:
    """The running gangs of some ClusterQueues, built once per problem."""
    return problem.once(_enroll, queues)


def least_priorities(problem: Problem, queues: tuple[str, ...], dry: bool) -> Floats:
    """The least priority that each of the running gangs of some ClusterQueues yields to for being idle.

    Args:
        problem: of the cycle.
        queues: as of :func:`running_gangs`.
        dry: also count ClusterQueues that do a dry run.

    Returns:
        Shape (C,); infinite for a gang that yields to no other.
    """
    by_queue = yielding(problem, dry=dry).values()
    least = {uid: priority for gangs in by_queue for uid, priority in gangs.items()}
    gangs = running_gangs(problem, queues).gangs
    return np.array([least.get(gang.workload.uid, inf) for gang in gangs], dtype=np.float64)


def _enroll(problem: Problem, queues: tuple[str, ...]) -> RunningGangs:
    staying = staying_gangs(problem)
    numbered = {name: at for at, name in enumerate(queues)}
    known = problem.snapshot.config.cluster_queues
    position = np.array([numbered.get(name, -1) for name in known], dtype=np.int64)
    owner = position[staying.owner]
    chosen = np.flatnonzero((owner >= 0) & (staying.protected_until <= problem.snapshot.now))
    part = staying.arrays.take(chosen)
    return RunningGangs(
        part.gangs,
        part.priority,
        part.queued_at,
        part.ages,
        part.rows,
        part.quota,
        part.sizes,
        numbered,
        owner[chosen],
        staying.reclaim_only[chosen],
    )


# One gang that would evict others.


@dataclass(eq=False)
class Preemptor:
    """One gang that would evict others, and the running gangs of its cohort tree that neither leave nor are protected, C of them.

    Attributes:
        request: of a gang that waits; of a repair, which is charged nothing and takes no gang for idleness.
        queue: the ClusterQueue whose policies count.
        dry: queues count that only report which idle gangs would be evicted.
        everywhere: consider the whole tree, also where no rule reaches beyond its own ClusterQueue.
    """

    state: CycleState
    request: GangRequest
    queue: ClusterQueue
    dry: bool = False
    everywhere: bool = False

    @cached_property
    def named(self) -> dict[object, Mask]:
        """Per rule and condition, the gangs that it names; filled by :mod:`queuectl.planner.preempt.rules`.

        Gangs that wait alike share them. The key has all that the conditions read, apart from what :meth:`CycleState.answers` follows.
        """
        queue, workload, shortfall = self.queue, self.workload, self.shortfall
        place = evicts_below(queue.within_cluster_queue, workload.priority, workload.queued_at)
        room = bool(self.request.podset_groups) and not any(True for _ in shortfall.shortages())
        return self.state.answers(
            queue,
            (
                self.request.queue,
                self.dry,
                self.everywhere,
                workload.priority,
                place,
                workload.queued_at if self._asks_idle else None,
                shortfall.rows,
                shortfall.within_nominal,
                shortfall.nearest_quota,
                room,
            ),
        )

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
    def staying(self) -> Mask:
        """Gangs that this plan neither evicts nor repairs."""
        state, gangs = self.state, self.running.gangs
        decided = state.evicted | state.repairing
        if not decided:
            return np.ones(len(gangs), dtype=np.bool_)
        return np.array([g.workload.uid not in decided for g in gangs], dtype=np.bool_)

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

    def queue_of(self, gang: Admitted) -> str:
        """The name of the ClusterQueue that a running gang is charged to."""
        queue = self.state.problem.snapshot.queue_of(gang.workload)
        return "" if queue is None else queue.name

    def common_pool(self, gang: Admitted) -> CommonPool | None:
        """Where the ClusterQueue of a running gang meets its side of the tree."""
        return self.shortfall.common_pool(self.queue_of(gang))

    @cached_property
    def of_other_queues(self) -> Mask:
        """Gangs of other ClusterQueues of its cohort tree."""
        return self.by_queue(lambda _: True)

    def by_queue(self, holds: Callable[[CommonPool], bool]) -> Mask:
        """Gangs of other ClusterQueues of the tree for which something holds, asked once for each queue with gangs."""
        found = np.zeros(len(self.running.gangs), dtype=np.bool_)
        for common_pool, theirs in self._others:
            found[theirs] = holds(common_pool)
        return found

    @cached_property
    def _others(self) -> Sequence[tuple[CommonPool, Ints]]:
        """The other ClusterQueues of the tree that have gangs, with the numbers of these."""
        queues, path = tuple(self.running.queues), self.shortfall.path
        members = self.state.problem.once(_members, queues, self.shortfall.use.pools, path[1:])
        return [(pool, theirs) for pool, theirs in members if pool.below[0] not in path]

    def charged(self, rows: Iterable[FlavorResource]) -> Mask:
        """Gangs that are charged for one of some flavors and resources."""
        charged = np.zeros(len(self.running.gangs), dtype=np.bool_)
        for row in rows:
            charged |= self.running.charged.get(row, False)
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

    @cached_property
    def could_return(self) -> Mask:
        """Gangs that could come back within the nominal quota of their ClusterQueue and then evict the preemptor.

        Not all of them: ``OtherQueues.stays_out`` later considers the other gangs that leave with them.
        """
        # Without the places that are settled, a refusal of 32 pods on 640 nodes, with small gangs of five ClusterQueues, takes 20 models.
        found = np.zeros(len(self.running.gangs), dtype=np.bool_)
        for common_pool, theirs in self._others:
            queue = self.state.problem.snapshot.config.cluster_queues[common_pool.below[0].name]
            dangerous = self.returning.dangerous(queue, self.running.priority[theirs])
            found[theirs] = dangerous & ~self._stays_beyond(common_pool.below[0], queue, theirs)
        return found

    def _stays_beyond(self, pool: QuotaNode, queue: ClusterQueue, theirs: Ints) -> Mask:
        """Which gangs of another ClusterQueue use quota that it still borrows when the gangs that yield to them have left."""
        borrows = np.zeros(len(theirs), dtype=np.bool_)
        alone = self.fair and not self.shortfall.within_nominal
        for row in self.shortfall.rows:
            beyond = self.shortfall.use.beyond(pool, row)
            if beyond > 0:
                place = None if alone else self.returning.settled_above((pool.name, *row), beyond)
                above = _above(self.running, theirs, place, queue.within_cluster_queue)
                borrows |= self.charged([row])[theirs] & ~above
        return borrows

    @cached_property
    def by_place(self) -> Mask:
        """Gangs that use from outside quota that is the preemptor's by its place in the tree."""
        if self.fair:
            return (
                self.of_other_queues
                if self.shortfall.within_nominal
                else np.zeros_like(self.of_other_queues)
            )
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
        least = self.state.problem.once(least_priorities, tuple(running.queues), self.dry)
        idle: Mask = least <= self.workload.priority
        evicts = queue.within_cluster_queue is WithinClusterQueue.LOWER_OR_NEWER_EQUAL_PRIORITY
        if evicts or queue.strict:
            equal = self.own & (running.priority == self.workload.priority)
            idle &= ~(equal & (running.queued_at <= self.workload.queued_at))
        return idle & self.staying

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


def _members(
    problem: Problem, queues: tuple[str, ...], pools: QuotaTree, above: tuple[QuotaNode, ...]
) -> Sequence[tuple[CommonPool, Ints]]:
    """Of some ClusterQueues, where each that has gangs meets any other one that has these cohorts above it, and the numbers of its gangs."""
    found = []
    for name, gangs in running_gangs(problem, queues).by_queue.items():
        pool = pools.get(name)
        common_pool = common_pool_of(pool.path if pool else (), (None, *above))
        if common_pool is not None:
            found.append((common_pool, gangs))
    return found


def _above(
    running: RunningGangs, theirs: Ints, place: Place | None, policy: WithinClusterQueue
) -> Mask:
    """Of some gangs of one ClusterQueue, those to which one at this place of it yields."""
    reach = evicts_below(policy, running.priority[theirs], running.queued_at[theirs])
    if place is None or reach is None:
        return np.zeros(len(theirs), dtype=np.bool_)
    above: Mask = (reach[0] > place[0]) | ((reach[0] == place[0]) & (reach[1] > place[1]))
    return above
