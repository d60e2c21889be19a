"""Time to remove scheduling gates, and the number of classes of equal pending gangs, as in Kueue."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Histogram, Metric
from prometheus_client.registry import Collector

from queuectl.domain.ledger import Entry, State
from queuectl.objects.keys import GATE
from queuectl.planner.order.pending_gangs import ClassKey, PendingGangs
from queuectl.telemetry.gauges import gauge
from queuectl.telemetry.lifecycle_metrics import START_BUCKETS
from queuectl.telemetry.workload_gauges import pending_status

_QUEUES: Final = (State.PENDING, State.RESERVED)


class GateMetrics:
    """The time until pods lose their scheduling gate."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._took = Histogram(
            "queuectl_pod_scheduling_gate_removal_seconds",
            "Time from admission to the removal of a pod's scheduling gate. A replacement pod counts from the same admission.",
            ["name", "cluster_queue"],
            buckets=START_BUCKETS,
            registry=registry,
        )

    def removed(self, cluster_queue: str, seconds: float) -> None:
        """Count one pod."""
        self._took.labels(GATE, cluster_queue).observe(seconds)


class Kinds(Collector):
    """The number of classes of equal pending gangs in each queue, as of the last plan. One answer holds for a class.

    The classes are counted when they are scraped.
    """

    def __init__(self) -> None:
        self._lines: PendingGangs | None = None
        self._entry: Callable[[str], Entry | None] = lambda _: None

    def planned(self, lines: PendingGangs, entry: Callable[[str], Entry | None]) -> None:
        """Keep the pending gangs of the last plan. ``entry`` returns a workload of the ledger by uid."""
        self._lines, self._entry = lines, entry

    def forget(self) -> None:
        """Remove the gauge, which only the leader shows."""
        self._lines = None

    def describe(self) -> list[Metric]:
        """Registration needs no description: no other module uses the name."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The gauge, of classes with gangs that are still pending."""
        lines, shown = self._lines, set[tuple[str, str, ClassKey]]()
        if lines is None:
            return
        for queue, its in lines.by_queue.items():
            for line in its:
                last = self._entry(line.gangs[-1].workload.uid)  # the first of a line start first
                if last is not None and last.state in _QUEUES:
                    shown.add((queue or "", pending_status(last.reason.code), line.key))
        counted = Counts((queue, status) for queue, status, _ in shown)
        yield gauge(
            "pending_scheduling_hashes",
            "Classes of equal pending gangs, as of the last plan.",
            ("cluster_queue", "status"),
            counted.items(),
        )
