"""Metrics of the utilization signal: the queries, the faults of the source, and the states of gangs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, Gauge, Histogram

from queuectl.domain.utilization import SourceFault, UseState

EVALUATION_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class UseGauges(NamedTuple):
    """A gang at the latest evaluation. ``utilization``: 0..1, mean over its GPUs; None = unknown."""

    cluster_queue: str
    state: UseState
    gpus: int
    utilization: float | None


class UseMetrics:
    """Set after each evaluation. Cleared when another process leads."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._alarms = Gauge(
            "queuectl_utilization_alarms",
            "Pods whose GPU utilization is not fully measured, by reason.",
            ["reason"],
            registry=registry,
        )
        self._trust = Gauge(
            "queuectl_utilization_trust_info",
            "Always 1; the label names the scrape jobs whose measurements count.",
            ["trusts"],
            registry=registry,
        )
        self._gangs = Gauge(
            "queuectl_utilization_gangs",
            "Gangs that hold GPUs, by utilization state (status).",
            ["cluster_queue", "status"],
            registry=registry,
        )
        self._gpus = Gauge(
            "queuectl_utilization_gpus",
            "GPUs of gangs, by the utilization state of the gang (status).",
            ["cluster_queue", "status"],
            registry=registry,
        )
        self._busy = Gauge(
            "queuectl_utilization_busy_gpus",
            "GPUs of gangs times their utilization; unknown utilization counts as 0.",
            ["cluster_queue"],
            registry=registry,
        )
        self._took = Histogram(
            "queuectl_utilization_look_duration_seconds",
            "Duration of one query for all gangs; result is success or unreachable.",
            ["result"],
            buckets=EVALUATION_BUCKETS,
            registry=registry,
        )

    def trust(self, trusts: str) -> None:
        """Set the scrape jobs whose measurements count."""
        self._trust.clear()
        self._trust.labels(trusts).set(1)

    def evaluated(
        self,
        faults: Mapping[SourceFault, int],
        gangs: Iterable[UseGauges],
        seconds: float,
    ) -> None:
        """Set the result of one evaluation.

        Args:
            faults: the number of affected pods by fault.
            gangs: all gangs that hold GPUs.
            seconds: the duration of the query.
        """
        for fault in SourceFault:
            self._alarms.labels(fault).set(faults.get(fault, 0))
        self._clear()
        seen = list(gangs)
        for queue in {gang.cluster_queue for gang in seen}:
            for state in UseState:  # a state without gangs has the value 0
                self._gangs.labels(queue, state)
                self._gpus.labels(queue, state)
        for gang in seen:
            self._gangs.labels(gang.cluster_queue, gang.state).inc()
            self._gpus.labels(gang.cluster_queue, gang.state).inc(gang.gpus)
            self._busy.labels(gang.cluster_queue).inc(gang.gpus * (gang.utilization or 0.0))
        result = "unreachable" if SourceFault.UNREACHABLE in faults else "success"
        self._took.labels(result).observe(seconds)

    def forget(self) -> None:
        """Remove the gauges: another process leads."""
        self._alarms.clear()
        self._trust.clear()
        self._clear()

    def _clear(self) -> None:
        for gauge in (self._gangs, self._gpus, self._busy):
            gauge.clear()
