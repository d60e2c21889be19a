"""Reports of the usage ledger as the API answers them: GPU-hours and money, one kind of item for each kind of report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any, Final

from pydantic import Field

from queuectl.api.schemas import View, maybe
from queuectl.domain.accounting import (
    HOUR,
    MILLISECONDS,
    UNITS,
    ClusterAmounts,
    LostWorkSum,
)
from queuectl.domain.usage_reports import By, FleetRow, Report, ReportRow, total_of
from queuectl.domain.words import utc


class GroupView(View):
    """The group of a row. Fields that are not part of the grouping are null."""

    namespace: str | None = None
    kind: str | None = Field(
        default=None,
        description="Kind of the job; the controllerKind of OpenCost, which has it in lower case.",
    )
    name: str | None = Field(
        default=None, description="Name of the job; the controller of OpenCost."
    )
    uid: str | None = None
    queue: str | None = Field(default=None, description="LocalQueue.")
    cluster_queue: str | None = None
    cohort: str | None = None
    user: str | None = Field(default=None, description="Empty: the job names no user.")
    flavor: str | None = Field(default=None, description="ResourceFlavor; empty for waiting time.")
    price: str | None = Field(
        default=None,
        description="Name of a price in the configuration; empty without a price, and for waiting time.",
    )
    hour: datetime | None = Field(default=None, description="Start of the hour.")
    label: str | None = Field(
        default=None, description="Value of the requested label; empty without it."
    )
    labels: dict[str, str] | None = Field(
        default=None, description="Labels of the workload that the configuration names."
    )


Workloads = Annotated[
    int | None,
    Field(
        description="null in the total of a report by hour, flavor or price: a workload can be in several of its rows."
    ),
]


class UsageItem(View):
    group: GroupView
    workloads: Workloads
    allocated_gpu_hours: float = Field(
        description="From the commit of the start until the last pod has terminated."
    )
    used_gpu_hours: float = Field(
        description="Allocated time × measured utilization; 0 while the gang is stuck."
    )
    idle_gpu_hours: float = Field(description="Allocated while the gang was idle.")
    stuck_gpu_hours: float = Field(
        description="Allocated while the gang was stuck: busy without progress."
    )
    unknown_gpu_hours: float = Field(description="Allocated without a measurement.")
    efficiency: float | None = Field(
        description="used / (allocated - unknown); null = nothing was measured."
    )


class CostItem(View):
    group: GroupView
    workloads: Workloads
    allocated_gpu_hours: float
    cost: float = Field(description="Cost of the allocated GPU-hours at the prices of that time.")
    wasted_cost: float = Field(description="Cost of the GPU-hours that were measured and not used.")
    unpriced_gpu_hours: float = Field(description="Allocated GPU-hours without a price.")


class WasteItem(View):
    group: GroupView
    workloads: Workloads
    allocated_gpu_hours: float
    wasted_gpu_hours: float = Field(description="allocated - unknown - used")
    wasted_gpus: float = Field(
        description="The average number of wasted GPUs in the period, or in the hour of the row."
    )
    idle_gpu_hours: float
    stuck_gpu_hours: float
    unknown_gpu_hours: float
    efficiency: float | None
    lost_to_others_gpu_hours: float = Field(description="Lost work of preemptions and moves.")
    lost_in_starts_gpu_hours: float = Field(description="GPU-hours of failed starts.")
    lost_otherwise_gpu_hours: float = Field(description="Lost work of other evictions.")
    evictions: int
    lost_gpu_hours_by_reason: dict[str, float]


class WaitsItem(View):
    group: GroupView
    workloads: Workloads
    waited_gpu_hours: float = Field(
        description="Requested GPUs × time in the queue or in a back-off."
    )
    waiting_hours: float = Field(description="Time in the queue or in a back-off.")
    waiting_hours_per_workload: float | None = Field(
        description="In the period, or in the hour of the row; null where `workloads` is."
    )


class FleetItem(View):
    """Free GPUs of one ResourceFlavor's nodes, averaged over the observed time."""

    flavor: str
    gpus: float = Field(description="GPUs of schedulable nodes.")
    free_gpus: float
    fragmented_gpus: float = Field(
        description="Free GPUs that the next pod is expected not to be able to use (fragmentation gradient descent)."
    )
    stranded_gpus: float = Field(description="Free GPUs on nodes that no pod shape fits.")
    fragmented_inside_nodes_gpus: float = Field(
        description="Of the fragmented GPUs, those on nodes with enough of them, but not of one PCIe root or NUMA node."
    )


class ClusterItem(View):
    """All GPU-hours of the cluster. The last four add up to the first."""

    physical_gpu_hours: float
    allocated_gpu_hours: float = Field(description="Held by gangs.")
    unallocated_gpu_hours: float = Field(description="Free on nodes that take pods.")
    unmanaged_gpu_hours: float = Field(description="Held by pods that belong to no gang.")
    unhealthy_gpu_hours: float = Field(
        description="Failed, or free on nodes that are not ready or cordoned."
    )


class ReportView(View):
    by: str
    since: datetime = Field(description="Start of the first hour.")
    until: datetime = Field(description="End of the last hour.")
    as_of: datetime | None = Field(
        description="Usage up to this time is included; null = none yet."
    )


class UsageReport(ReportView):
    items: list[UsageItem]
    total: UsageItem


class CostReport(ReportView):
    currency: str
    items: list[CostItem]
    total: CostItem


class WasteReport(ReportView):
    items: list[WasteItem]
    total: WasteItem
    fleet: list[FleetItem]
    cluster: ClusterItem | None = Field(description="null if the caller does not see the nodes.")


class WaitsReport(ReportView):
    items: list[WaitsItem]
    total: WaitsItem


def usage_report(report: Report) -> UsageReport:
    """The allocated GPU-hours, and their measured use."""
    return UsageReport(**_head(report), **_items(report, _usage))


def cost_report(report: Report, currency: str) -> CostReport:
    """The cost."""
    return CostReport(**_head(report), currency=currency, **_items(report, _cost))


def waste_report(report: Report) -> WasteReport:
    """Idle and stuck GPU-hours, lost work, and GPUs that no gang could use."""
    items = _items(report, lambda row: _waste(row, _reported_hours(row, report)))
    return WasteReport(
        **_head(report),
        **items,
        fleet=[_fleet(row) for row in report.fleet],
        cluster=_cluster(report.cluster) if report.cluster is not None else None,
    )


def _reported_hours(row: ReportRow, report: Report) -> float:
    """The hours that a row is about: those of the period, or its own, as far as they are accounted for; at most 0 if none are."""
    since, until = report.period.since, report.period.until
    if By.HOUR in row.names:
        since = int(row.names[By.HOUR])
        until = since + HOUR
    as_of = until if report.as_of is None else min(until, report.as_of)
    return (as_of - since) / HOUR


def _cluster(amounts: ClusterAmounts) -> ClusterItem:
    return ClusterItem(
        physical_gpu_hours=_gpu_hours(amounts.physical),
        allocated_gpu_hours=_gpu_hours(amounts.allocated),
        unallocated_gpu_hours=_gpu_hours(amounts.unallocated),
        unmanaged_gpu_hours=_gpu_hours(amounts.unmanaged),
        unhealthy_gpu_hours=_gpu_hours(amounts.unhealthy),
    )


def waits_report(report: Report) -> WaitsReport:
    """How long gangs waited."""
    return WaitsReport(**_head(report), **_items(report, _waits))


def _head(report: Report) -> dict[str, Any]:
    return {
        "by": str(report.grouping),
        "since": utc(report.period.since),
        "until": utc(report.period.until),
        "as_of": maybe(report.as_of),
    }


def _items(report: Report, view: Callable[[ReportRow], Any]) -> dict[str, Any]:
    total = total_of(report)
    return {"items": [view(row) for row in report.rows], "total": view(total)}


_DIGITS: Final = 6  # of an hour: milliseconds


def _hours(seconds: float) -> float:
    return round(seconds / HOUR, _DIGITS) + 0.0  # no -0.0


def _gpu_hours(units: int) -> float:
    return _hours(units / UNITS)


def _group(row: ReportRow) -> GroupView:
    names: dict[str, Any] = dict(row.names)
    if By.HOUR in names:
        names["hour"] = utc(int(names["hour"]))
    return GroupView(**names, labels=dict(row.labels) if "uid" in names else None)


def _usage(row: ReportRow) -> UsageItem:
    a = row.amounts
    return UsageItem(
        group=_group(row),
        workloads=row.workloads,
        allocated_gpu_hours=_gpu_hours(a.allocated),
        used_gpu_hours=_gpu_hours(a.used),
        idle_gpu_hours=_gpu_hours(a.idle),
        stuck_gpu_hours=_gpu_hours(a.stuck),
        unknown_gpu_hours=_gpu_hours(a.unknown),
        efficiency=row.efficiency,
    )


def _cost(row: ReportRow) -> CostItem:
    return CostItem(
        group=_group(row),
        workloads=row.workloads,
        allocated_gpu_hours=_gpu_hours(row.amounts.allocated),
        cost=round(row.amounts.cost, _DIGITS) + 0.0,
        wasted_cost=round(row.wasted_cost, _DIGITS) + 0.0,
        unpriced_gpu_hours=_gpu_hours(row.amounts.unpriced),
    )


def _waste(row: ReportRow, hours: float) -> WasteItem:
    a = row.amounts
    wasted = row.wasted / UNITS / HOUR
    return WasteItem(
        group=_group(row),
        workloads=row.workloads,
        allocated_gpu_hours=_gpu_hours(a.allocated),
        wasted_gpu_hours=_gpu_hours(row.wasted),
        wasted_gpus=round(wasted / hours, _DIGITS) if hours > 0 else 0.0,
        idle_gpu_hours=_gpu_hours(a.idle),
        stuck_gpu_hours=_gpu_hours(a.stuck),
        unknown_gpu_hours=_gpu_hours(a.unknown),
        efficiency=row.efficiency,
        lost_to_others_gpu_hours=_hours(row.lost_to_others),
        lost_in_starts_gpu_hours=_hours(row.lost_in_starts),
        lost_otherwise_gpu_hours=_hours(row.lost_otherwise),
        evictions=row.evictions,
        lost_gpu_hours_by_reason=_reasons(row.losses),
    )


def _reasons(losses: Mapping[str, LostWorkSum]) -> dict[str, float]:
    return {reason: _hours(lost.gpu_seconds) for reason, lost in sorted(losses.items())}


def _waits(row: ReportRow) -> WaitsItem:
    waiting, workloads = row.amounts.waiting / MILLISECONDS, row.workloads
    return WaitsItem(
        group=_group(row),
        workloads=workloads,
        waited_gpu_hours=_gpu_hours(row.amounts.waited),
        waiting_hours=_hours(waiting),
        waiting_hours_per_workload=None
        if workloads is None
        else _hours(waiting / max(workloads, 1)),
    )


def _fleet(row: FleetRow) -> FleetItem:
    parts: Iterable[float] = (row.capacity, row.free, row.fragmented, row.stranded, row.inside)
    gpus, free, fragmented, stranded, inside = (round(x / row.seconds, 3) for x in parts)
    return FleetItem(
        flavor=row.flavor,
        gpus=gpus,
        free_gpus=free,
        fragmented_gpus=fragmented,
        stranded_gpus=stranded,
        fragmented_inside_nodes_gpus=inside,
    )
