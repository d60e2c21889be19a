"""How good the run times were that planning assumed."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram

from queuectl.domain.estimates import RunTimeSource
from queuectl.telemetry.lifecycle_metrics import WAIT_BUCKETS


class DurationMetrics:
    """A gang counts once, when it has finished, with the run time that was expected at its first start."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._error = Histogram(
            "queuectl_duration_error_seconds",
            "Difference between the expected and the actual run time of finished gangs, longer or shorter.",
            ["source"],
            buckets=WAIT_BUCKETS,
            registry=registry,
        )
        self._runs = Counter(
            "queuectl_duration_runs_total",
            "Finished gangs with an expected run time, and whether they ended within the time that planning assumed.",
            ["source", "within"],
            registry=registry,
        )
        for source in RunTimeSource:
            for within in (
                "false",
                "true",
            ):  # a counter that is born with 1 has not increased for Prometheus
                self._runs.labels(source, within)

    def finished(self, runs: Iterable[tuple[str, float, bool]]) -> None:
        """Count finished gangs: source of the expectation, error in seconds, and whether the gang kept to it."""
        for source, seconds, within in runs:
            self._error.labels(source).observe(seconds)
            self._runs.labels(source, str(within).lower()).inc()
