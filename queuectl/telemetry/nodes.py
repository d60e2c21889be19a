"""Gauges of nodes by status, and of their allocatable resources."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterator

from prometheus_client import Metric

from queuectl.domain.fleet import Fleet, Node
from queuectl.telemetry.gauges import gauge, in_units


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
    yield gauge(
        "nodes", "Nodes by status: ready, cordoned, unhealthy or not_ready.", ("status",),
        (((status,), number) for status, number in statuses.items()),
    )  # fmt: skip
    yield gauge(
        "nodes_allocatable", "Allocatable amount of nodes that are ready and not cordoned.", ("resource",),
        (((resource,), in_units(resource, amount)) for resource, amount in offered.items()),
    )  # fmt: skip
