"""Metrics of the changes of MIG configurations."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge

from queuectl.domain.mig_reconfiguration import MigPhase
from queuectl.lifecycle.mig_reconfiguration import MigResult


class MigMetrics:
    """One series for each result, and for each phase of an active change."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._results = Counter(
            "queuectl_mig_reconfigurations_total",
            "Changes of the MIG configuration of a node that have ended, by result.",
            ["result"],
            registry=registry,
        )
        self._nodes = Gauge(
            "queuectl_mig_reconfiguring_nodes",
            "Nodes whose MIG configuration is being changed, by phase (status).",
            ["status"],
            registry=registry,
        )
        for result in MigResult:
            self._results.labels(result)

    def ended(self, result: MigResult) -> None:
        """Count the end of a change of one node."""
        self._results.labels(result).inc()

    def active(self, phases: Iterable[MigPhase]) -> None:
        """Set the number of nodes in each phase."""
        counts = Counts(phases)
        for phase in MigPhase:
            if phase.active:
                self._nodes.labels(phase).set(counts[phase])

    def forget(self) -> None:
        """Remove the gauge: another process leads."""
        self._nodes.clear()
