"""The estimated wait times of gangs, and the error of the estimates."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Histogram

from queuectl.telemetry.lifecycle_metrics import WAIT_BUCKETS


class EstimateMetrics:
    """A gang counts once for each time that it is pending, with its first estimate."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._wait = Histogram(
            "queuectl_estimated_wait_seconds",
            "Time until the estimated start, when a pending gang first has an estimate.",
            ["cluster_queue"],
            buckets=WAIT_BUCKETS,
            registry=registry,
        )
        self._error = Histogram(
            "queuectl_estimated_wait_error_seconds",
            "Time between the first estimated start and the actual start, earlier or later.",
            ["cluster_queue"],
            buckets=WAIT_BUCKETS,
            registry=registry,
        )

    def observe(self, waits: Iterable[tuple[str, float]]) -> None:
        """Count first estimates: ClusterQueue and seconds."""
        for cluster_queue, seconds in waits:
            self._wait.labels(cluster_queue).observe(seconds)

    def started(self, errors: Iterable[tuple[str, float]]) -> None:
        """Count starts of gangs with an estimate: ClusterQueue and error in seconds."""
        for cluster_queue, seconds in errors:
            self._error.labels(cluster_queue).observe(seconds)
