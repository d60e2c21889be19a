"""Metrics of nodes, and of the signal of their utilization.

Nodes: by status, allocatable resources, free, fragmented and stranded GPUs, and the spread of gangs over domains. The signal: the
queries, the faults of the source, and the states of gangs.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric

from queuectl.domain.accounting import Free
from queuectl.domain.fleet import Fleet, Node
from queuectl.domain.gpus import rounded
from queuectl.domain.usage_reports import PARTS, GpuParts
from queuectl.domain.utilization import SourceFault, UseState
from queuectl.reports.fragmentation import DomainSpread
from queuectl.telemetry.workload_gauges import gauge_family, in_units

# ---- Free, fragmented and stranded GPUs

_GPUS: Final = {
    "fleet_gpus": "GPUs of nodes that accept pods, by the flavor that selects the nodes.",
    "fleet_free_gpus": "Free GPUs of nodes that accept pods.",
    "fleet_fragmented_gpus": "Free GPUs that the next pod is expected to be unable to use.",
    "fleet_stranded_gpus": "Free GPUs on nodes that fit no pod of any pending or running gang.",
    "fleet_fragmented_inside_nodes_gpus": (
        "Of the fragmented GPUs, those on nodes with enough of them, but not of one PCIe root or NUMA node."
    ),
}


class FleetMetrics:
    """The metrics of the leader. GPUs are as of the last entry in the usage ledger."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gpus = [
            Gauge(f"queuectl_{name}", text, ["flavor"], registry=registry)
            for name, text in _GPUS.items()
        ]
        self._unmanaged = Gauge(
            "queuectl_unmanaged_gpus",
            "GPUs that unmanaged pods hold.",
            ["namespace"],
            registry=registry,
        )
        self._parts = Gauge(
            "queuectl_cluster_gpus",
            "GPUs of all nodes by part: effective, idle, fragmented, unhealthy, unallocated, unknown.",
            ["part"],
            registry=registry,
        )
        self._used = Counter(
            "queuectl_admitted_domains_total",
            "Domains of each topology level that started podsets use, summed over podsets.",
            ["level"],
            registry=registry,
        )
        self._least = Counter(
            "queuectl_admitted_domains_least_total",
            "Fewest domains that hold these podsets on empty nodes, summed over podsets.",
            ["level"],
            registry=registry,
        )

    def free(self, free_by_flavor: Mapping[str, Free]) -> None:
        """Set the GPUs of each flavor."""
        for gauge in self._gpus:
            gauge.clear()
        for flavor, gpus in free_by_flavor.items():
            amounts = (gpus.capacity, gpus.free, gpus.fragmented, gpus.stranded, gpus.inside)
            for gauge, amount in zip(self._gpus, amounts, strict=True):
                gauge.labels(flavor).set(amount)

    def unmanaged(self, gpus_by_namespace: Mapping[str, Fraction]) -> None:
        """Set the GPUs that unmanaged pods hold, by namespace."""
        self._unmanaged.clear()
        for namespace, gpus in gpus_by_namespace.items():
            self._unmanaged.labels(namespace).set(rounded(gpus))

    def parts(self, gpu_parts: GpuParts) -> None:
        """Set the parts of all GPUs."""
        for part in PARTS:
            self._parts.labels(part).set(rounded(getattr(gpu_parts, part)))

    def started(self, spreads: Mapping[str, DomainSpread]) -> None:
        """Count the domains of the podsets that a commit started."""
        for level, spread in spreads.items():
            self._used.labels(level).inc(spread.used)
            self._least.labels(level).inc(spread.least)

    def forget(self) -> None:
        """Remove the gauges, which only the leader shows."""
        for gauge in (*self._gpus, self._unmanaged, self._parts):
            gauge.clear()


# ---- Nodes by status


def _status(node: Node) -> str:
    if not node.ready:
        return "not_ready"
    if node.unhealthy:
        return "unhealthy"
    return "cordoned" if node.unschedulable else "ready"


def nodes(fleet: Fleet) -> Iterator[Metric]:
    """The number of nodes by status, and the allocatable resources of ready nodes."""
    statuses: Counts[str] = Counts({"ready": 0, "cordoned": 0, "unhealthy": 0, "not_ready": 0})
    offered: Counts[str] = Counts()
    for node in fleet.nodes:
        status = _status(node)
        statuses[status] += 1
        if status == "ready":
            offered.update(node.allocatable)
    yield gauge_family(
        "nodes", "Nodes by status: ready, cordoned, unhealthy or not_ready.", ("status",),
        (((status,), number) for status, number in statuses.items()),
    )  # fmt: skip
    yield gauge_family(
        "nodes_allocatable", "Allocatable amount of nodes that are ready and not cordoned.", ("resource",),
        (((resource,), in_units(resource, amount)) for resource, amount in offered.items()),
    )  # fmt: skip


# ---- The utilization signal

_EVALUATION_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


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
            buckets=_EVALUATION_BUCKETS,
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
