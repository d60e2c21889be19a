"""What shields a running gang from being evicted for others: its own wish, and the protections of its ClusterQueue."""

from __future__ import annotations

from math import inf
from typing import Final

from queuectl.domain.durations import DAY
from queuectl.domain.queues import ClusterQueue, Protection
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.domain.workload import Workload

_NONE: Final = Protection()


def protected_until(
    gang: Admitted, queue: ClusterQueue, now: float, *, reclaimed: bool = False
) -> float | None:
    """Until when a gang must not be evicted (or moved) for others; None = it may be now.

    Args:
        gang: it runs.
        queue: the ClusterQueue it is charged to, whose policy counts.
        now: unix seconds; times declared later than that are clamped to it.
        reclaimed: another ClusterQueue would evict it because this one uses more than its nominal quota.

    Returns:
        Unix seconds later than ``now``; infinity when time will not change it.
    """
    if not gang.evictable or opts_out(gang.workload, queue, reclaimed=reclaimed):
        return inf
    policy = queue.protection
    if policy == _NONE:
        return None
    times = sorted(min(at, now) for at in gang.evictions)
    until = min(gang.started_at, now) + policy.min_runtime
    if times:
        until = max(until, times[-1] + policy.cooldown)
    if policy.max_evictions_per_day is not None:
        until = max(until, _spent(times, policy.max_evictions_per_day, now))
    return until if until > now else None


def opts_out(workload: Workload, queue: ClusterQueue, *, reclaimed: bool = False) -> bool:
    """Whether a gang is not preemptible and its ClusterQueue honours that; for ``reclaimed`` see ``protected_until``."""
    return not workload.preemptible and queue.preemption_opt_out.counts(borrowing=reclaimed)


def next_change(snapshot: Snapshot) -> float | None:
    """When time alone changes what a plan may do (unix seconds, later than the snapshot); None = it will not.

    The next running gang loses its protection, or the next waiting one may borrow again.
    """
    ends = [
        p.borrows_at
        for p in snapshot.pending
        if p.borrows_at is not None and not p.may_borrow(snapshot.now)
    ]
    queues = snapshot.config.cluster_queues
    if all(queue.protection == _NONE for queue in queues.values()):
        return min(ends, default=None)
    for gang in snapshot.admitted:
        queue = snapshot.config.cluster_queue_of(gang.workload.namespace, gang.workload.queue)
        until = (
            None if queue is None else protected_until(gang, queue, snapshot.now, reclaimed=True)
        )
        if until is not None and until < inf and not gang.leaving:
            ends.append(until)
    return min(ends, default=None)


def _spent(times: list[float], most: int, now: float) -> float:
    """When there are fewer than ``most`` evictions within a day again; a time past when there are now."""
    if most <= 0:
        return inf
    recent = [at for at in times if at + DAY > now]
    return recent[-most] + DAY if len(recent) >= most else now
