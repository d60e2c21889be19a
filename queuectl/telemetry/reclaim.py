"""What comes of gangs that do not use their GPUs, as counters."""

from __future__ import annotations

from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter

from queuectl.domain.ledger import EntryChange
from queuectl.domain.plan import PreemptionReason
from queuectl.domain.reasons import Code


class IdleResult(StrEnum):
    """What became of one."""

    WARNED = "warned"  # up to twice before anything else
    WOULD_RECLAIM = "would_reclaim"  # a dry run named it, and a gang that it would have gone for
    ON_DEMAND = "on_demand"  # preempted for a gang that waited
    ALWAYS = "always"  # evicted though nobody asked for its room


class IdleReclaims:
    """Counts commits."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gangs = Counter(
            "queuectl_idle_reclaim_total",
            "What came of gangs that do not use their GPUs (result); cluster_queue is theirs.",
            ["cluster_queue", "result"],
            registry=registry,
        )

    def meet(self, cluster_queue: str) -> None:
        """Before anything is counted for it: a counter that is born with 1 has not increased for Prometheus."""
        for result in IdleResult:
            self._gangs.labels(cluster_queue, result)

    def count(self, change: EntryChange) -> None:
        """Count one committed change, if it is about idleness."""
        result = _result(change)
        if result is not None:
            self._gangs.labels(change.after.cluster_queue, result).inc()


def _result(change: EntryChange) -> IdleResult | None:
    if change.note is None:
        return None
    reason = change.note.reason
    if reason.code is Code.PREEMPTED and reason.details.get("why") == PreemptionReason.IDLE:
        return IdleResult.ON_DEMAND
    return {
        Code.IDLE_GPUS: IdleResult.WARNED,
        Code.WOULD_RECLAIM: IdleResult.WOULD_RECLAIM,
        Code.IDLE_RECLAIMED: IdleResult.ALWAYS,
    }.get(reason.code)
