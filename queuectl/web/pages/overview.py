"""The overview: GPUs, gangs, why gangs are pending, the last 24 hours, the queues, and the latest evictions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queuectl.domain.cluster_map import ClusterMap
from queuectl.domain.gpus import ZERO_GPUS, rounded, summed
from queuectl.domain.queries import WaitingOrder
from queuectl.domain.usage_reports import NO_GPUS, GpuParts
from queuectl.domain.utilization import UseState
from queuectl.reports.cluster_map import efficiency_of
from queuectl.web.counts import ALL_PENDING, counts_of, pending_reasons
from queuectl.web.history import usage_chart
from queuectl.web.pages.evictions import eviction_rows
from queuectl.web.pages.queues import quotas_now, rows
from queuectl.web.site import Site

_LONGEST: Final = 8
_LATEST: Final = 8


@dataclass(frozen=True, slots=True)
class BarSegment:
    """A part of a bar: GPUs of one kind. ``style`` is its class in the style sheet."""

    name: str
    style: str
    gpus: float


@dataclass(frozen=True, slots=True)
class Sums:
    """All GPUs of the cluster.

    Attributes:
        nodes: how many nodes there are.
        whole: nodes in service without an allocated GPU.
        free: on nodes in service.
        allocated: on any node, also by pods that no queue manages.
        fragmented: free GPUs that the next pod is not expected to be able to use.
        parts: all GPUs by what they do; they add up to all GPUs of the cluster.
        efficiency: the parts of the report on efficiency.
    """

    nodes: int
    whole: int
    free: float
    allocated: float
    fragmented: float
    parts: tuple[BarSegment, ...]
    efficiency: GpuParts


def sums_of(cluster_map: ClusterMap) -> Sums:
    """The sums over a cluster map."""
    takes = [occupancy for occupancy in cluster_map.occupancies if occupancy.open]
    everything = summed(occupancy.gpus for occupancy in cluster_map.occupancies)
    free = summed(occupancy.free_gpus for occupancy in takes)
    unused = summed(occupancy.free_gpus for occupancy in cluster_map.occupancies)
    use = dict.fromkeys(UseState, ZERO_GPUS)
    for gang in cluster_map.gangs:
        use[gang.use.state if gang.use is not None else UseState.UNKNOWN] += gang.gpus
    others = everything - unused - summed(use.values())
    parts = (
        ("in use", "active", use[UseState.ACTIVE] + use[UseState.LOW]),
        ("warming up", "warmup", use[UseState.WARMUP]),
        ("not measured", "unknown", use[UseState.UNKNOWN] + max(ZERO_GPUS, others)),
        ("idle or stuck", "idle", use[UseState.IDLE] + use[UseState.STUCK]),
        ("free", "free", free),
        ("free on nodes out of service", "out", unused - free),
    )
    return Sums(
        len(cluster_map.occupancies),
        sum(1 for occupancy in takes if occupancy.gpus and occupancy.free_gpus == occupancy.gpus),
        rounded(free),
        rounded(everything - unused),
        rounded(summed(occupancy.fragmented for occupancy in takes)),
        tuple(BarSegment(name, style, rounded(gpus)) for name, style, gpus in parts if gpus > 0),
        sum(efficiency_of(cluster_map.gangs, cluster_map.occupancies).values(), NO_GPUS),
    )


def routes(site: Site) -> list[Route]:
    """The routes of the page."""

    async def overview(request: Request) -> Response:
        access = await site.access(request)

        async def visible_map() -> ClusterMap | None:
            return await site.cluster_map() if access.nodes else None

        tallies, cluster_map, longest, chart, quotas, evictions = await asyncio.gather(
            site.store.tallies(),
            visible_map(),
            site.store.waiting(
                namespaces=access.namespaces, order=WaitingOrder.AGE, limit=_LONGEST
            ),
            usage_chart(site, request, access),
            quotas_now(site),
            eviction_rows(site, request, access, limit=_LATEST),
        )
        mine = access.tallies(tallies)
        return site.page(
            request,
            "overview.html",
            access,
            gpus=await asyncio.to_thread(sums_of, cluster_map) if cluster_map is not None else None,
            counts=counts_of(mine),
            all_pending=ALL_PENDING,
            reasons=pending_reasons(mine),
            chart=chart,
            queues=rows(quotas, mine, access),
            longest=longest,
            evictions=evictions,
        )

    return [Route("/", overview)]
