"""The use of ClusterQueues next to their quota, and their gangs, as the API answers it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pydantic import Field

from queuectl.api.schemas import View
from queuectl.domain.gpus import GpuWeights, rounded
from queuectl.domain.ledger import HOLDING, State
from queuectl.domain.quantity import format_quantity
from queuectl.domain.queries import IN_QUEUE_ORDER, QueueCounts
from queuectl.domain.queues import ClusterQueue, QueueConfig, StopPolicy
from queuectl.reports.quotas import QuotaBar, Quotas


class GpuQuotaView(View):
    quota: float = Field(description="Nominal quota of all flavors, overrides included.")
    used: float | None = Field(description="Held by its gangs; null = not known yet.")
    borrowed: float | None = Field(
        description="The part of `used` beyond the nominal quota of its flavor; null = not known yet."
    )


class ResourceUseView(View):
    flavor: str
    resource: str
    quota: str = Field(description="Nominal quota, as a quantity of Kubernetes.")
    used: str | None = Field(description="Held by its gangs; null = not known yet.")
    borrowed: str | None = Field(description="The part of `used` beyond the quota.")


class ClusterQueueUseView(View):
    """One ClusterQueue. The counts are of workloads that you are allowed to list."""

    name: str
    cohort: str | None
    stop_policy: StopPolicy = Field(description="`None` = its gangs can start.")
    gpus: GpuQuotaView | None = Field(description="null = it has no quota of GPUs.")
    pending: int = Field(description="Pending and Reserved.")
    running: int = Field(description="Starting, Running and Evicting.")
    inactive: int = Field(description="Held, in back-off or deactivated.")
    resources: list[ResourceUseView] | None = Field(
        description="Each flavor and resource; null = in a list of all queues."
    )


class ClusterQueueUses(View):
    items: list[ClusterQueueUseView] = Field(description="By name.")


def reached_from(config: QueueConfig, namespaces: frozenset[str]) -> frozenset[str]:
    """The ClusterQueues to which LocalQueues of these namespaces lead."""
    queues = config.local_queues.values()
    return frozenset(queue.cluster_queue for queue in queues if queue.namespace in namespaces)


def queue_uses(
    quotas: Quotas,
    tallies: Iterable[QueueCounts],
    names: Iterable[str],
    *,
    resources: bool,
) -> list[ClusterQueueUseView]:
    """The use of these ClusterQueues.

    Args:
        quotas: of one moment.
        tallies: of the workloads that the caller may list.
        names: of ClusterQueues that are configured.
        resources: also show each flavor and resource.
    """
    counts: dict[str, list[QueueCounts]] = {}
    for tally in tallies:
        counts.setdefault(tally.cluster_queue, []).append(tally)
    queues = quotas.stated.cluster_queues
    return [
        _view(quotas, queues[name], counts.get(name, ()), resources=resources)
        for name in sorted(names)
    ]


def _view(
    quotas: Quotas, queue: ClusterQueue, tallies: Iterable[QueueCounts], *, resources: bool
) -> ClusterQueueUseView:
    bars = quotas.of_queue(queue)
    by_state = Counter[State]()
    for tally in tallies:
        by_state[tally.state] += tally.workloads
    pending, running = (
        sum(by_state[state] for state in states) for states in (IN_QUEUE_ORDER, HOLDING)
    )
    return ClusterQueueUseView(
        name=queue.name,
        cohort=queue.cohort,
        stop_policy=queue.stop_policy,
        gpus=_gpus(bars, quotas.config.rules.accounting.gpus),
        pending=pending,
        running=running,
        inactive=by_state.total() - pending - running,
        resources=[_resource(bar) for bar in bars] if resources else None,
    )


def _gpus(bars: Iterable[QuotaBar], weights: GpuWeights) -> GpuQuotaView | None:
    weighted = [(weights.of(bar.resource), bar) for bar in bars if weights.of(bar.resource)]
    if not weighted:
        return None
    known = all(bar.used is not None for _, bar in weighted)
    return GpuQuotaView(
        quota=rounded(sum(weight * bar.nominal for weight, bar in weighted)),
        used=rounded(sum(weight * (bar.used or 0) for weight, bar in weighted)) if known else None,
        borrowed=rounded(sum(weight * bar.borrowed for weight, bar in weighted)) if known else None,
    )


def _resource(bar: QuotaBar) -> ResourceUseView:
    known = bar.used is not None
    return ResourceUseView(
        flavor=bar.flavor,
        resource=bar.resource,
        quota=format_quantity(bar.resource, bar.nominal),
        used=format_quantity(bar.resource, bar.used) if bar.used is not None else None,
        borrowed=format_quantity(bar.resource, bar.borrowed) if known else None,
    )
