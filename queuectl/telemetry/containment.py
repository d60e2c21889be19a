"""Metrics of units of input that are set aside, and of careful starts."""

from __future__ import annotations

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from queuectl.domain.containment import Boundary, Containment, SetAside

log = structlog.get_logger()


class ContainmentMetrics:
    """Counts what one process sets aside."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._failed = Counter(
            "queuectl_contained_errors_total",
            "Unexpected errors that set a unit of input aside, by boundary: a defect.",
            ["boundary"],
            registry=registry,
        )
        self._set_aside = Gauge(
            "queuectl_set_aside",
            "Units of input that are set aside because of an unexpected error, by boundary.",
            ["boundary"],
            registry=registry,
        )
        # A counter whose first value is 1 has not increased for Prometheus.
        for boundary in Boundary:
            self._failed.labels(boundary)
            self._set_aside.labels(boundary)

    def watch(self, containment: Containment) -> None:
        """Show the units of this record."""
        for boundary in Boundary:

            def counted(boundary: Boundary = boundary) -> float:
                return containment.counts()[boundary]

            self._set_aside.labels(boundary).set_function(counted)

    def report(self, failure: SetAside, error: BaseException | None) -> None:
        """Count and log a failure. The trace is logged for the first failure, and then ever more rarely."""
        self._failed.labels(failure.boundary).inc()
        rare = failure.failures & (failure.failures - 1) == 0
        log.error(
            "unit_set_aside",
            boundary=str(failure.boundary),
            unit=failure.ref,
            error_id=failure.error,
            place=failure.place,
            failures=failure.failures,
            exc_info=error if rare else None,
        )


class CarefulMetrics:
    """Counts the careful starts of one process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._begun = Gauge(
            "queuectl_careful_start_timestamp_seconds",
            "When a careful start of this process began last, in unix seconds; 0 = never.",
            registry=registry,
        )
        self._suspects = Gauge(
            "queuectl_suspects",
            "Units of input that ended a process, and that are set aside: a defect.",
            registry=registry,
        )

    def watch(self, containment: Containment) -> None:
        """Show the suspects of this record."""
        self._suspects.set_function(lambda: float(len(containment.suspects())))

    def begun(self, now: float) -> None:
        """A careful start begins at ``now``, unix seconds."""
        self._begun.set(now)
