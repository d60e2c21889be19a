"""Changes of policy, as data, that allow a pending gang to evict others.

Nothing is free at once after one of these: the gang evicts whom it may now, and starts when they have left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from queuectl.domain.changes import queue_changed
from queuectl.domain.queues import (
    ClusterQueue,
    Protection,
    ReclaimMode,
    ReclaimWithinCohort,
    WithinClusterQueue,
)
from queuectl.domain.snapshot import Admitted, Snapshot


class PolicyField(StrEnum):
    """Fields of a ClusterQueue's policy, by their names in the object; the comment names the gangs that its gangs can evict by it."""

    WITHIN = "withinClusterQueue"  # gangs of its own
    RECLAIM = "reclaimWithinCohort"  # gangs of ClusterQueues that use more than their own quota
    BORROW = "borrowWithinCohort"  # the same, of lower priority, also while it borrows itself
    ROOM = "evictWithinNominal"  # gangs within their own quota, of lower priority, for room alone


@dataclass(frozen=True, slots=True)
class AllowPreemption:
    """One field of a ClusterQueue's preemption policy gets another value.

    Attributes:
        value: as the object has it; of ``borrowWithinCohort``, its ``policy``, without a ``maxPriorityThreshold``.
    """

    queue: str
    field: PolicyField
    value: str

    def apply(self, snapshot: Snapshot) -> Snapshot:
        return queue_changed(snapshot, self.queue, self.of)

    def of(self, queue: ClusterQueue) -> ClusterQueue:
        """The ClusterQueue after the change."""
        match self.field:
            case PolicyField.WITHIN:
                return replace(queue, within_cluster_queue=WithinClusterQueue(self.value))
            case PolicyField.RECLAIM:
                return replace(queue, reclaim_within_cohort=ReclaimWithinCohort(self.value))
            case PolicyField.BORROW:
                return replace(queue, preempts_to_borrow=True, borrow_threshold=None)
            case PolicyField.ROOM:
                return replace(queue, evicts_within_nominal=True)


@dataclass(frozen=True, slots=True)
class LiftProtection:
    """No gang of a ClusterQueue is shielded by its age or by earlier evictions."""

    queue: str

    def apply(self, snapshot: Snapshot) -> Snapshot:
        return queue_changed(snapshot, self.queue, lambda q: replace(q, protection=Protection()))


@dataclass(frozen=True, slots=True)
class ReclaimIdle:
    """Gangs of a ClusterQueue that do not use their GPUs go for others on demand (``idleReclaim``)."""

    queue: str

    def apply(self, snapshot: Snapshot) -> Snapshot:
        return queue_changed(snapshot, self.queue, _on_demand)


def _on_demand(queue: ClusterQueue) -> ClusterQueue:
    rule = replace(queue.idle_reclaim, mode=ReclaimMode.ON_DEMAND)
    return replace(queue, idle_reclaim=rule)


@dataclass(frozen=True, slots=True)
class MakePreemptible:
    """These running gangs (by uid) become preemptible, whatever they requested."""

    uids: tuple[str, ...]

    def apply(self, snapshot: Snapshot) -> Snapshot:
        named = frozenset(self.uids)

        def exposed(gang: Admitted) -> Admitted:
            if gang.workload.uid not in named:
                return gang
            return replace(gang, workload=replace(gang.workload, preemptible=True))

        return replace(snapshot, admitted=tuple(map(exposed, snapshot.admitted)))
