"""What the nodes offer, as gauges: the measure that allocation and waste are set against."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from queuectl.domain.fleet import Fleet
from queuectl.domain.quantity import CPU


def nodes(fleet: Fleet) -> Iterator[Metric]:
    """How many nodes there are by status, and what those that take pods have of each resource."""
    statuses: Counter[str] = Counter({"ready": 0, "cordoned": 0, "not_ready": 0})
    offered: Counter[str] = Counter()
    for node in fleet.nodes:
        status = "not_ready" if not node.ready else "cordoned" if node.unschedulable else "ready"
        statuses[status] += 1
        if status == "ready":
            offered.update(node.allocatable)
    count = GaugeMetricFamily(
        "queuectl_nodes", "Nodes by status: ready, cordoned or not_ready.", labels=("status",)
    )
    for status, number in sorted(statuses.items()):
        count.add_metric((status,), number)
    yield count
    amounts = GaugeMetricFamily(
        "queuectl_nodes_allocatable",
        "What the nodes that are ready and not cordoned have, used or not.",
        labels=("resource",),
    )
    for resource, amount in sorted(offered.items()):
        amounts.add_metric((resource,), amount / 1000 if resource == CPU else amount)
    yield amounts
