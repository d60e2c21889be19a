"""How starts reach the pods, and how many different things are waited for: two of Kueue's measures of its own speed."""

from __future__ import annotations

from collections import Counter
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
    """Pods that are let go to their nodes."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._took = Histogram(
            "queuectl_pod_scheduling_gate_removal_seconds",
            "Admission to the removal of a pod's scheduling gate; a replaced pod's counts from the same admission.",
            ["name", "cluster_queue"],
            buckets=START_BUCKETS,
            registry=registry,
        )

    def removed(self, cluster_queue: str, seconds: float) -> None:
        """Count one pod."""
        self._took.labels(GATE, cluster_queue).observe(seconds)


class Kinds(Collector):
    """How many kinds of gangs the last plan saw in each queue; those of one kind get one answer.

    Counted when it is scraped: a plan only says what it looked at.
    """

    def __init__(self) -> None:
        self._lines: PendingGangs | None = None
        self._entry: Callable[[str], Entry | None] = lambda _: None

    def planned(self, lines: PendingGangs, entry: Callable[[str], Entry | None]) -> None:
        """What the last plan looked at; ``entry`` gives a workload of the ledger by uid."""
        self._lines, self._entry = lines, entry

    def forget(self) -> None:
        """What another process leads is not ours to show."""
        self._lines = None

    def describe(self) -> list[Metric]:
        """Nothing to check beforehand: the name is this module's own."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The gauge, of those that still wait."""
        lines, shown = self._lines, set[tuple[str, str, ClassKey]]()
        if lines is None:
            return
        for queue, its in lines.by_queue.items():
            for line in its:
                last = self._entry(line.gangs[-1].workload.uid)  # the first of a line start first
                if last is not None and last.state in _QUEUES:
                    shown.add((queue or "", pending_status(last.reason.code), line.key))
        counted = Counter((queue, status) for queue, status, _ in shown)
        yield gauge(
            "pending_scheduling_hashes",
            "Kinds of gangs in line; what is found out of one gang goes for all of its kind.",
            ("cluster_queue", "status"),
            counted.items(),
        )
