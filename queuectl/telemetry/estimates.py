"""The estimated wait times of gangs, and the error of the estimates."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram

from queuectl.domain.estimates import Arrival
from queuectl.state.estimates import EstimateError
from queuectl.telemetry.lifecycle_metrics import WAIT_BUCKETS


class EstimateMetrics:
    """A gang counts once for each time that it is pending, with its first estimate."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._wait = Histogram(
            "queuectl_estimated_wait_seconds",
            "Time until the median of the expected start, when a pending gang first has one.",
            ["cluster_queue"],
            buckets=WAIT_BUCKETS,
            registry=registry,
        )
        self._error = Histogram(
            "queuectl_estimate_error_seconds",
            "Time between the median of the first expected start and the actual start, earlier or later.",
            ["cluster_queue"],
            buckets=WAIT_BUCKETS,
            registry=registry,
        )
        self._started = Counter(
            "queuectl_estimated_starts_total",
            "Starts of gangs that had an expected start, by when they were (result).",
            ["cluster_queue", "result"],
            registry=registry,
        )

    def meet(self, cluster_queue: str) -> None:
        """Create the counters of a ClusterQueue with 0, long before a gang of it can start as estimated."""
        for result in Arrival:
            self._started.labels(cluster_queue, result)

    def observe(self, waits: Iterable[tuple[str, float]]) -> None:
        """Count first estimates: ClusterQueue and seconds."""
        for cluster_queue, seconds in waits:
            self._wait.labels(cluster_queue).observe(seconds)

    def started(self, errors: Iterable[EstimateError]) -> None:
        """Count starts of gangs with an estimate."""
        for error in errors:
            self._error.labels(error.cluster_queue).observe(error.seconds)
            self._started.labels(error.cluster_queue, error.arrival).inc()
