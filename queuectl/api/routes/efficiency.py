"""The report of the cluster's efficiency now: what becomes of each GPU. Each replica that watches the cluster answers."""

# No postponed annotations here: see routes/config.py.

import asyncio
from datetime import datetime
from typing import Annotated, Final

from fastapi import APIRouter, Query
from pydantic import Field

from queuectl.api.access import Guard
from queuectl.api.openapi import responses
from queuectl.api.ports import ClusterReader
from queuectl.api.problems import ProblemType
from queuectl.api.routes.nodes import current_map
from queuectl.api.schemas import View
from queuectl.domain.gpus import rounded
from queuectl.domain.usage_reports import NO_GPUS, GpuParts
from queuectl.domain.words import utc
from queuectl.objects.configuration.config_kinds import PREFIX
from queuectl.reports.cluster_map import efficiency_of

PATH: Final = f"{PREFIX}/reports/efficiency"

OfLabel = Annotated[
    str | None,
    Query(
        alias="by",
        max_length=317,
        description="Key of a node label: an item for each of its values. Default: one item for all nodes.",
    ),
]


class EfficiencyItem(View):
    """GPUs. total = effective + wasted + unknown, and wasted = idle + fragmented + unhealthy + unallocated."""

    value: str | None = Field(
        description="Value of the node label; empty = nodes without it, null = all nodes."
    )
    total_gpus: float = Field(description="Capacity of all nodes, failed GPUs included.")
    effective_gpus: float = Field(
        description="Held by gangs × measured utilization; 0 while a gang is stuck."
    )
    wasted_gpus: float = Field(description="idle + fragmented + unhealthy + unallocated")
    idle_gpus: float = Field(description="Held by measured gangs, and not effective.")
    fragmented_gpus: float = Field(
        description="Free, but the next pod is expected not to be able to use them (fragmentation gradient descent)."
    )
    unhealthy_gpus: float = Field(
        description="Failed, or free on nodes that are not ready or cordoned."
    )
    unallocated_gpus: float = Field(description="All other free GPUs.")
    unknown_gpus: float = Field(
        description="Held by gangs or other pods, without a measurement. They are not wasted."
    )
    efficiency: float | None = Field(description="effective / total; null = no GPUs.")
    highest_efficiency: float | None = Field(description="(effective + unknown) / total")


class EfficiencyReport(View):
    at: datetime = Field(description="Time of the state of the cluster.")
    by: str | None = Field(description="Key of the node label; null = none.")
    items: list[EfficiencyItem] = Field(description="One for each value, by value.")
    total: EfficiencyItem


def add_routes(routes: APIRouter, guard: Guard, cluster_reader: ClusterReader | None) -> None:
    """Offer the path. ``cluster_reader``: None in a process that does not watch the cluster."""

    @routes.get(
        PATH,
        tags=["Reports"],
        operation_id="reportEfficiency",
        summary="The GPUs of the cluster now: effective, wasted by cause, and unknown",
        description="For callers that are allowed to get reports in all namespaces.",
        responses=responses(ProblemType.NOT_KNOWN_YET),
        dependencies=[guard.needs("get", "reports")],
    )
    async def report_efficiency(label: OfLabel = None) -> EfficiencyReport:
        cluster_map = await current_map(cluster_reader)
        # Of 5,000 nodes it takes 50 ms, in which the event loop can serve others.
        found = await asyncio.to_thread(
            efficiency_of, cluster_map.gangs, cluster_map.occupancies, label
        )
        return EfficiencyReport(
            at=utc(cluster_map.at),
            by=label,
            items=[_item(value if label else None, parts) for value, parts in found.items()],
            total=_item(None, sum(found.values(), NO_GPUS)),
        )


def _item(group: str | None, parts: GpuParts) -> EfficiencyItem:
    return EfficiencyItem(
        value=group,
        total_gpus=rounded(parts.total),
        effective_gpus=rounded(parts.effective),
        wasted_gpus=rounded(parts.wasted),
        idle_gpus=rounded(parts.idle),
        fragmented_gpus=rounded(parts.fragmented),
        unhealthy_gpus=rounded(parts.unhealthy),
        unallocated_gpus=rounded(parts.unallocated),
        unknown_gpus=rounded(parts.unknown),
        efficiency=_ratio(parts.efficiency),
        highest_efficiency=_ratio(parts.highest_efficiency),
    )


def _ratio(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, 6)
