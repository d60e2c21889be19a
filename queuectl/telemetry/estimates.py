"""How long gangs are told that they will wait, and how far off that was."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Histogram

from queuectl.telemetry.lifecycle_metrics import WAIT_BUCKETS


class EstimateMetrics:
    """Each gang counts once for each time it waits: with the first estimate it was given."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._wait = Histogram(
            "queuectl_estimated_wait_seconds",
            "Until the estimated start, when a gang in line first had an estimate.",
            ["cluster_queue"],
            buckets=WAIT_BUCKETS,
            registry=registry,
        )
        self._error = Histogram(
            "queuectl_estimated_wait_error_seconds",
            "Between that estimated start and the start, earlier or later.",
            ["cluster_queue"],
            buckets=WAIT_BUCKETS,
            registry=registry,
        )

    def observe(self, waits: Iterable[tuple[str, float]]) -> None:
        """Count first estimates: ClusterQueue and seconds."""
        for cluster_queue, seconds in waits:
            self._wait.labels(cluster_queue).observe(seconds)

    def started(self, errors: Iterable[tuple[str, float]]) -> None:
        """Count starts of gangs that had one: ClusterQueue and seconds that it was off."""
        for cluster_queue, seconds in errors:
            self._error.labels(cluster_queue).observe(seconds)
