"""Counters of warnings and evictions of gangs that do not use their GPUs."""

from __future__ import annotations

from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter

from queuectl.domain.ledger import EntryChange
from queuectl.domain.plan import PreemptionReason
from queuectl.domain.reasons import Code


class IdleResult(StrEnum):
    """The result for one idle gang."""

    WARNED = "warned"  # up to twice before an eviction
    WOULD_RECLAIM = "would_reclaim"  # in a dry run: a pending gang would have caused its eviction
    ON_DEMAND = "on_demand"  # preempted for a pending gang
    ALWAYS = "always"  # evicted without a pending gang


class IdleReclaims:
    """Counts the results in committed changes."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gangs = Counter(
            "queuectl_idle_reclaim_total",
            "Gangs that do not use their GPUs, by result; cluster_queue is that of the idle gang.",
            ["cluster_queue", "result"],
            registry=registry,
        )

    def meet(self, cluster_queue: str) -> None:
        """Create the counters of a ClusterQueue with 0: Prometheus sees no increase of a counter whose first value is 1."""
        for result in IdleResult:
            self._gangs.labels(cluster_queue, result)

    def count(self, change: EntryChange) -> None:
        """Count one committed change, if it is a result of idleness."""
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
