"""Metrics of the health of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Gauge

from queuectl.domain.node_health import HealthSignal, Straggler


class NodeHealthMetrics:
    """Set after each evaluation. Cleared when another process leads."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._nodes = Gauge(
            "queuectl_node_health_findings",
            "Nodes with a finding against their health, by signal (reason).",
            ["reason"],
            registry=registry,
        )
        self._stragglers = Gauge(
            "queuectl_stragglers",
            "Pods of gangs whose GPU runs far slower than those of their peers.",
            ["cluster_queue"],
            registry=registry,
        )

    def compared(self, stragglers: Iterable[Straggler]) -> None:
        """Set the number of stragglers."""
        self._stragglers.clear()
        for one in stragglers:
            self._stragglers.labels(one.cluster_queue).inc()

    def evaluated(self, signals: Mapping[HealthSignal, int]) -> None:
        """Set the number of nodes with each signal."""
        for signal in HealthSignal:
            self._nodes.labels(signal).set(signals.get(signal, 0))

    def forget(self) -> None:
        """Remove the gauge: another process leads."""
        self._nodes.clear()
        self._stragglers.clear()
