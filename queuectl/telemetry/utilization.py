"""What is exported of the utilization signal: how the looks go, what is wrong with the set-up, and what gangs do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, Gauge, Histogram

from queuectl.domain.utilization import SourceFault, UseState

LOOK_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class UseGauges(NamedTuple):
    """A gang at the newest look. ``utilization``: 0..1, mean over its GPUs; None = unknown."""

    cluster_queue: str
    state: UseState
    gpus: int
    utilization: float | None


class UseMetrics:
    """Set after each look; cleared when another process leads."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._alarms = Gauge(
            "queuectl_utilization_alarms",
            "Pods whose GPU utilization is not, or not well, known because the set-up is wrong.",
            ["reason"],
            registry=registry,
        )
        self._trust = Gauge(
            "queuectl_utilization_trust_info",
            "1, with whose measurements count.",
            ["trusts"],
            registry=registry,
        )
        self._gangs = Gauge(
            "queuectl_utilization_gangs",
            "Gangs that hold GPUs, by what they do with them (status).",
            ["cluster_queue", "status"],
            registry=registry,
        )
        self._gpus = Gauge(
            "queuectl_utilization_gpus",
            "The GPUs of those gangs, by what the gangs do with them.",
            ["cluster_queue", "status"],
            registry=registry,
        )
        self._busy = Gauge(
            "queuectl_utilization_busy_gpus",
            "Those GPUs times their utilization; where it is unknown, nothing.",
            ["cluster_queue"],
            registry=registry,
        )
        self._took = Histogram(
            "queuectl_utilization_look_duration_seconds",
            "Time of one look at all gangs; result is success or unreachable.",
            ["result"],
            buckets=LOOK_BUCKETS,
            registry=registry,
        )

    def trust(self, trusts: str) -> None:
        """Show whose measurements count."""
        self._trust.clear()
        self._trust.labels(trusts).set(1)

    def looked(
        self,
        troubles: Mapping[SourceFault, int],
        gangs: Iterable[UseGauges],
        seconds: float,
    ) -> None:
        """Show one look.

        Args:
            troubles: pods concerned, by what is wrong.
            gangs: each that holds GPUs.
            seconds: that it took.
        """
        for trouble in SourceFault:
            self._alarms.labels(trouble).set(troubles.get(trouble, 0))
        self._clear()
        seen = list(gangs)
        for queue in {gang.cluster_queue for gang in seen}:
            for state in UseState:  # nothing idle is 0 idle, not nothing known
                self._gangs.labels(queue, state)
                self._gpus.labels(queue, state)
        for gang in seen:
            self._gangs.labels(gang.cluster_queue, gang.state).inc()
            self._gpus.labels(gang.cluster_queue, gang.state).inc(gang.gpus)
            self._busy.labels(gang.cluster_queue).inc(gang.gpus * (gang.utilization or 0.0))
        result = "unreachable" if SourceFault.UNREACHABLE in troubles else "success"
        self._took.labels(result).observe(seconds)

    def forget(self) -> None:
        """Another process looks from now on."""
        self._alarms.clear()
        self._trust.clear()
        self._clear()

    def _clear(self) -> None:
        for gauge in (self._gangs, self._gpus, self._busy):
            gauge.clear()
