"""Gangs that leave for not using their GPUs: each was seen idle, and yields to the gang that gets them."""

from __future__ import annotations

from queuectl.domain.plan import Preemption
from queuectl.domain.queues import (
    ClusterQueue,
    ReclaimMode,
    WithinClusterQueue,
)
from queuectl.domain.snapshot import Admitted
from queuectl.domain.workload import Workload
from queuectl.planner.verify.plan_index import PlanIndex


def not_idle(index: PlanIndex, preemption: Preemption, victim: Admitted) -> str | None:
    """Why a gang must not be evicted for idleness; ``preemption`` names the gang for which it is."""
    taker = index.pending.get(preemption.preemptor)
    if taker is None:
        return "only a pending gang can evict an idle one"
    queue = index.queue_of(victim.workload)
    if queue is not None and queue.idle_reclaim.mode in (ReclaimMode.OFF, ReclaimMode.DRY_RUN):
        return f"idleReclaim of {queue.name} is {queue.idle_reclaim.mode}"
    return does_not_yield(index, taker.workload, victim)


def does_not_yield(index: PlanIndex, taker: Workload, victim: Admitted) -> str | None:
    """Why an idle gang would not yield to another one, were its queue to take idle gangs at all."""
    queue, theirs = index.queue_of(taker), index.queue_of(victim.workload)
    if queue is None or theirs is None:
        return "preemptor or victim is in no ClusterQueue"
    if victim.idle_since is None:
        return "it is not known to be idle"
    equal = victim.workload.priority == taker.priority
    if queue is theirs and equal and _goes_first(queue, victim.workload, taker):
        return f"as the older one it would come back before {taker.ref}"
    roots = [list(index.members[name].up())[-1] for name in (queue.name, theirs.name)]
    if roots[0] is not roots[1]:
        return f"{theirs.name} shares no cohort with {queue.name}"
    priorities = f"idle at priority {victim.workload.priority} against {taker.priority}"
    if victim.workload.priority > taker.priority:
        return priorities
    if equal and not theirs.idle_reclaim.to_equal:
        return f"{priorities}, and {theirs.name} does not let it yield to its equal"
    return None


def _goes_first(queue: ClusterQueue, evicted: Workload, taker: Workload) -> bool:
    """Whether the one that leaves, queued again, evicts an equal that took its place, or is before it as head."""
    if evicted.queued_at > taker.queued_at:
        return False
    evicts = queue.within_cluster_queue is WithinClusterQueue.LOWER_OR_NEWER_EQUAL_PRIORITY
    return evicts or queue.strict
