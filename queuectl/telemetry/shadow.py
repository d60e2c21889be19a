"""Metrics of shadow mode. In another mode, each of them is 0."""

from __future__ import annotations

import time
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from queuectl.domain.shadow import Observation
from queuectl.domain.shadow_trace import SimulatedReport

_GAUGES: Final = {
    "last_observation_timestamp_seconds": "When this process recorded its last observation in shadow mode, or began, in unix seconds; 0 = another mode.",
    "records_began_timestamp_seconds": "When the records of shadow mode began, in unix seconds; 0 = this process recorded no observation.",
    "retention_seconds": "How long records of shadow mode are kept.",
    "report_interval_seconds": "Time between two simulated reports.",
    "fitting_gangs": "Waiting gangs that fit at the last observation.",
    "unbound_gangs": "Admitted gangs with pods without a node at the last observation.",
    "left_out": "Objects and gangs that are not in the last observation.",
    "simulated_timestamp_seconds": "When this process made its last simulated report, in unix seconds; 0 = never.",
    "simulation_duration_seconds": "Duration of the last simulated report.",
}


class ShadowMetrics:
    """The metrics of shadow mode in one process. Only the leader records observations."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gauges = {
            name: Gauge(f"queuectl_shadow_{name}", text, registry=registry)
            for name, text in _GAUGES.items()
        }
        self._failed = Counter(
            "queuectl_shadow_failed_observations_total",
            "Observations of shadow mode that were not recorded.",
            registry=registry,
        )

    def begin(self, retention: float, interval: float) -> None:
        """This process runs in shadow mode from now on.

        Args:
            retention: seconds for which records are kept.
            interval: seconds between two simulated reports.
        """
        self._gauges["last_observation_timestamp_seconds"].set(time.time())
        self._gauges["retention_seconds"].set(retention)
        self._gauges["report_interval_seconds"].set(interval)

    def observed(self, observation: Observation, began: float) -> None:
        """An observation is recorded. ``began``: unix seconds of the first one."""
        self._gauges["records_began_timestamp_seconds"].set(began)
        self._gauges["last_observation_timestamp_seconds"].set(time.time())
        self._gauges["fitting_gangs"].set(sum(one.fits is not None for one in observation.waiting))
        self._gauges["unbound_gangs"].set(len(observation.unbound))
        self._gauges["left_out"].set(len(observation.left_out))

    def failed(self) -> None:
        """An observation is not recorded."""
        self._failed.inc()

    def simulated(self, report: SimulatedReport) -> None:
        """A simulated report is stored."""
        self._gauges["simulated_timestamp_seconds"].set(time.time())
        self._gauges["simulation_duration_seconds"].set(report.took)
