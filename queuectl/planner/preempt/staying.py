"""The gangs that run and stay, as arrays that a plan makes from those of the plan before.

Reading 13,000 gangs for each plan took a sixth of a plan that starts 50. Between two plans few gangs change: the others
keep their place in the order, what they hold and what they are charged. A gang is the same while its record is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from queuectl.domain.queues import ClusterQueue, QueueConfig
from queuectl.domain.snapshot import Admitted
from queuectl.planner.preempt.candidates import GangArrays, arrays_of, by_priority
from queuectl.planner.preempt.cost import sizes_of
from queuectl.planner.preempt.protections import opts_out, protected_until
from queuectl.planner.problem.fleet import Ints, Mask, MatrixAxes
from queuectl.planner.problem.problem import Floats, Problem


@dataclass(frozen=True, eq=False, slots=True)
class StayingGangs:
    """Gangs of ClusterQueues that run and are not being evicted, S of them.

    Attributes:
        at: when they were judged (unix seconds).
        axes: of the indexes of nodes.
        keys: by which they are in order.
        owner: the position of the ClusterQueue that each is charged to, among those of the configuration. Shape (S,).
        protected_until: the unix seconds until which none must evict it for others, or later; minus infinity for a gang without
            protection. Time starts no protection, and ends none before the time it had. Shape (S,).
        reclaim_only: those that opt out of preemption, which counts unless another ClusterQueue reclaims borrowed quota. Shape (S,).
    """

    config: QueueConfig
    at: float
    axes: MatrixAxes
    arrays: GangArrays
    keys: Sequence[tuple[int, float, str]]
    owner: Ints
    protected_until: Floats
    reclaim_only: Mask

    def updated(self, stay: Sequence[int], more: StayingGangs) -> StayingGangs:
        """Those of these gangs that stay, by index, and more gangs."""
        known = len(self.keys)
        keys = [*self.keys, *more.keys]
        numbers = sorted([*stay, *range(known, len(keys))], key=keys.__getitem__)
        order = np.array(numbers, dtype=np.int64)
        return StayingGangs(
            more.config,
            more.at,
            more.axes,
            self.arrays.join(more.arrays).take(order),
            [keys[number] for number in numbers],
            np.concatenate([self.owner, more.owner])[order],
            np.concatenate([self.protected_until, more.protected_until])[order],
            np.concatenate([self.reclaim_only, more.reclaim_only])[order],
        )


def staying_gangs(problem: Problem) -> StayingGangs:
    """The gangs that stay, made once per problem."""
    return problem.once(_carry_over)


def _carry_over(problem: Problem) -> StayingGangs:
    snapshot, cache = problem.snapshot, problem.cache
    last = cache.latest(StayingGangs)
    if last is None or not _carries_over(last, problem):
        last = _judged(problem, ())
    gangs = last.arrays.gangs
    known, current = set(map(id, gangs)), set(map(id, snapshot.admitted))
    more = _judged(problem, (gang for gang in snapshot.admitted if id(gang) not in known))
    if more.keys or not known <= current:
        stay = [at for at, gang in enumerate(gangs) if id(gang) in current]
        last = last.updated(stay, more)
    last = replace(last, at=snapshot.now, protected_until=_renewed(problem, last))
    return cache.keep_latest(last)


def _carries_over(last: StayingGangs, problem: Problem) -> bool:
    """Whether what is known of each gang still holds."""
    snapshot = problem.snapshot
    return (
        last.config is snapshot.config
        and last.axes is problem.index.axes
        and last.arrays.sizes is sizes_of(snapshot, problem.cache)
        and last.at <= snapshot.now
    )


def _judged(problem: Problem, gangs: Iterable[Admitted]) -> StayingGangs:
    """Those of some gangs that stay."""
    snapshot = problem.snapshot
    owners = {
        gang.workload.uid: (gang, queue)
        for gang in gangs
        if not gang.leaving and (queue := snapshot.queue_of(gang.workload)) is not None
    }
    arrays = arrays_of(problem, (gang for gang, _ in owners.values()))
    position = {name: at for at, name in enumerate(snapshot.config.cluster_queues)}
    pairs = [owners[gang.workload.uid] for gang in arrays.gangs]
    return StayingGangs(
        snapshot.config,
        snapshot.now,
        problem.index.axes,
        arrays,
        [by_priority(gang) for gang, _ in pairs],
        np.array([position[queue.name] for _, queue in pairs], dtype=np.int64),
        np.array([_until(*pair, snapshot.now) for pair in pairs], dtype=np.float64),
        np.array([opts_out(gang.workload, queue) for gang, queue in pairs], dtype=np.bool_),
    )


def _renewed(problem: Problem, last: StayingGangs) -> Floats:
    """``protected_until`` at the time of the snapshot."""
    snapshot, until = problem.snapshot, last.protected_until.copy()
    queues = tuple(snapshot.config.cluster_queues.values())
    ended = np.isfinite(until) & (until <= snapshot.now)
    for at in np.flatnonzero(ended).tolist():
        until[at] = _until(last.arrays.gangs[at], queues[last.owner[at]], snapshot.now)
    return until


def _until(gang: Admitted, queue: ClusterQueue, now: float) -> float:
    """Until when others must not evict a gang (unix seconds); minus infinity without a protection."""
    until = protected_until(gang, queue, now, reclaimed=True)
    return -inf if until is None else until
