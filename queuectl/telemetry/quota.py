"""Quota, use and shares of ClusterQueues, Cohorts and LocalQueues, and the nodes. Computed during a scrape, not in a cycle.

Names and meanings are Kueue's. Amounts have Kubernetes' units: cores, bytes, devices. *Usage* is the amount that gangs hold.
*Reservation* adds the capacity that is reserved for gangs whose victims have not stopped yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from math import inf
from typing import Final

from prometheus_client import Metric
from prometheus_client.registry import Collector

from queuectl.domain.queues import ClusterQueue, Cohort, FlavorQuotas, QueueConfig, StopPolicy
from queuectl.planner.cache import PlannerCache
from queuectl.planner.quota import (
    QuotaNode,
    QuotaTree,
    QuotaUse,
    cohort_pools,
    pools_of,
    share_of,
    use_of,
)
from queuectl.state.holdings import Holdings, Row
from queuectl.telemetry.fleet import nodes
from queuectl.telemetry.workload_gauges import finished, gauge_family, in_units

_BY_FLAVOR: Final = ("cohort", "cluster_queue", "flavor", "resource")


class QuotaGauges(Collector):
    """Gauges of the holdings of one leadership; none while another process leads."""

    def __init__(self) -> None:
        self._holdings: Holdings | None = None
        self._cache = PlannerCache()

    def show(self, holdings: Holdings | None) -> None:
        """Set the holdings that the next scrapes read."""
        self._holdings = holdings

    def config(self) -> QueueConfig | None:
        """The configuration of the holdings; None while another process leads."""
        return self._holdings.config if self._holdings is not None else None

    def cohorts_of(self, cluster_queue: str) -> tuple[str, ...]:
        """The Cohorts of a ClusterQueue."""
        holdings = self._holdings
        return tuple(_ancestors(holdings.config, cluster_queue)) if holdings is not None else ()

    def describe(self) -> list[Metric]:
        """Registration needs no description: no other module uses the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All gauges, from a copy of the sums: the loop runs at the same time."""
        holdings = self._holdings
        if holdings is None:
            return
        config = holdings.effective
        held, leased = dict(holdings.held), dict(holdings.kept)
        pending = dict(holdings.pending)
        yield from _stated(config)
        yield from _used(config, held, leased)
        yield gauge_family(
            "cluster_queue_resource_pending",
            "Requests of pending gangs.",
            ("cluster_queue", "resource"),
            ((row, in_units(row[1], amount)) for row, amount in pending.items()),
        )
        yield from _local_queues(config, held, leased)
        pools = pools_of(config, self._cache)
        yield from _cohorts(config, pools, held, leased)
        yield from _shares(config, pools, held)
        yield from nodes(holdings.fleet)
        yield from finished(holdings.over, config)


def _stated(config: QueueConfig) -> Iterator[Metric]:
    queues = config.cluster_queues.values()
    limits = (
        ("nominal_quota", "Nominal quota. If it follows the nodes, the current value.", "nominal"),
        ("borrowing_limit", "Maximum use beyond the nominal quota; absent = no limit.", "borrowing"),
        ("lending_limit", "Maximum part of the nominal quota that other queues can use; absent = all.", "lending"),
    )  # fmt: skip
    for name, text, field in limits:
        yield gauge_family(
            f"cluster_queue_{name}", text, _BY_FLAVOR,
            (
                ((queue.cohort or "", queue.name, quotas.flavor, resource), in_units(resource, amount))
                for queue, quotas in _quotas(config)
                for resource, amount in getattr(quotas, field).items()
            ),
        )  # fmt: skip
    yield gauge_family(
        "cluster_queue_info", "Always 1; the labels have the Cohort and its root.",
        ("cluster_queue", "parent_cohort", "root_cohort"),
        (((q.name, q.cohort or "", _root(config, q.cohort)), 1.0) for q in queues),
    )  # fmt: skip
    yield gauge_family(
        "cluster_queue_status", "1 for the current status: active, or pending while the ClusterQueue is stopped.",
        ("cluster_queue", "status"),
        (
            ((q.name, status), float(status == _status(q.stop_policy)))
            for q in queues
            for status in ("active", "pending")
        ),
    )  # fmt: skip


def _quotas(config: QueueConfig) -> Iterator[tuple[ClusterQueue, FlavorQuotas]]:
    for queue in config.cluster_queues.values():
        for group in queue.groups:
            for quotas in group.flavors:
                yield queue, quotas


def _used(
    config: QueueConfig, held: Mapping[Row, int], leased: Mapping[Row, int]
) -> Iterator[Metric]:
    """Quota that no gang holds is used by 0, so that it can be compared with the nominal quota."""
    unused = [(q.name, quotas.flavor, of) for q, quotas in _quotas(config) for of in quotas.nominal]
    for name, text, amounts in _views(held, leased):
        sums: Counter[tuple[str, str, str]] = Counter(dict.fromkeys(unused, 0))
        for row, amount in amounts.items():
            sums[row[2:]] += amount
        yield gauge_family(
            f"cluster_queue_resource_{name}", text, _BY_FLAVOR,
            (
                ((_cohort_of(config, queue), queue, flavor, resource), in_units(resource, amount))
                for (queue, flavor, resource), amount in sums.items()
            ),
        )  # fmt: skip


def _local_queues(
    config: QueueConfig, held: Mapping[Row, int], leased: Mapping[Row, int]
) -> Iterator[Metric]:
    for name, text, amounts in _views(held, leased):
        yield gauge_family(
            f"local_queue_resource_{name}", text,
            ("name", "namespace", "cluster_queue", "flavor", "resource"),
            (
                ((local, namespace, queue, flavor, resource), in_units(resource, amount))
                for (namespace, local, queue, flavor, resource), amount in amounts.items()
            ),
        )  # fmt: skip
    yield gauge_family(
        "local_queue_status", "1 while gangs of the LocalQueue can start, 0 while it or its ClusterQueue is stopped.",
        ("name", "namespace", "cluster_queue"),
        (
            ((q.name, q.namespace, q.cluster_queue), float(_open(config, q.stop_policy, q.cluster_queue)))
            for q in config.local_queues.values()
        ),
    )  # fmt: skip


def _views(
    held: Mapping[Row, int], leased: Mapping[Row, int]
) -> Iterator[tuple[str, str, Mapping[Row, int]]]:
    yield "usage", "Amount that its gangs hold.", held
    reserved = Counter(held)
    reserved.update(leased)
    yield "reservation", "Amount that its gangs hold or have reserved.", reserved


def _cohorts(
    config: QueueConfig, queues: QuotaTree, held: Mapping[Row, int], leased: Mapping[Row, int]
) -> Iterator[Metric]:
    pools = cohort_pools(queues)
    yield gauge_family(
        "cohort_info", "Always 1; the labels have the parent and the root.",
        ("cohort", "parent_cohort", "root_cohort"),
        (
            ((name, _parent(config, name), _root(config, name)), 1.0)
            for name in pools.keys() | config.cohorts.keys()
        ),
    )  # fmt: skip
    by = ("cohort", "flavor", "resource")
    yield gauge_family(
        "cohort_subtree_quota", "Nominal quota of the Cohort and the quota that its members lend.", by,
        (
            ((name, *row), in_units(row[1], amount))
            for name, pool in pools.items()
            for row, amount in pool.subtree.items()
        ),
    )  # fmt: skip
    quota = ((name, *row) for name, pool in pools.items() for row in pool.subtree)
    sums: Counter[tuple[str, str, str]] = Counter(dict.fromkeys(quota, 0))
    for amounts in (held, leased):
        for (_, _, queue, *row), amount in amounts.items():
            for name in _ancestors(config, queue):
                sums[name, row[0], row[1]] += amount
    yield gauge_family(
        "cohort_subtree_resource_reservations", "Amount that gangs of its ClusterQueues hold or have reserved.", by,
        ((row, in_units(row[2], amount)) for row, amount in sums.items()),
    )  # fmt: skip


def _shares(config: QueueConfig, queues: QuotaTree, held: Mapping[Row, int]) -> Iterator[Metric]:
    rows: Counter[tuple[str, str, str]] = Counter()
    for row, amount in held.items():
        rows[row[2:]] += amount
    use = use_of(queues, rows)
    yield gauge_family(
        "cluster_queue_weighted_share",
        "Dominant resource share divided by the weight, in thousandths; +Inf if it borrows with weight 0.",
        ("cluster_queue", "cohort"),
        (
            ((name, _cohort_of(config, name)), _weighted(pool, use))
            for name, pool in use.pools.items()
        ),
    )  # fmt: skip
    yield gauge_family(
        "cohort_weighted_share", "Dominant resource share of a Cohort within its parent, divided by the weight, in thousandths.", ("cohort",),
        (((name,), _weighted(pool, use)) for name, pool in cohort_pools(queues).items()),
    )  # fmt: skip


def _weighted(pool: QuotaNode, use: QuotaUse) -> float:
    weighted = share_of(pool, use).weighted
    return inf if weighted is None else float(weighted)


def _ancestors(config: QueueConfig, cluster_queue: str) -> Iterator[str]:
    """The Cohorts of a ClusterQueue, up to the root."""
    cohort = _cohort_of(config, cluster_queue)
    while cohort:
        yield cohort
        cohort = _parent(config, cohort)


def _cohort_of(config: QueueConfig, cluster_queue: str) -> str:
    queue = config.cluster_queues.get(cluster_queue)
    return (queue.cohort if queue is not None else None) or ""


def _parent(config: QueueConfig, cohort: str) -> str:
    return config.cohorts.get(cohort, Cohort(cohort)).parent or ""


def _root(config: QueueConfig, cohort: str | None) -> str:
    root = cohort or ""
    while root and (parent := _parent(config, root)):
        root = parent
    return root


def _status(stop: StopPolicy) -> str:
    return "active" if stop is StopPolicy.NONE else "pending"


def _open(config: QueueConfig, stop: StopPolicy, cluster_queue: str) -> bool:
    queue = config.cluster_queues.get(cluster_queue, ClusterQueue("", stop_policy=StopPolicy.HOLD))
    return stop is queue.stop_policy is StopPolicy.NONE
