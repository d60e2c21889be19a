"""The first page: GPUs, who runs and who waits, the queues at a glance, and who had to leave last."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queuectl.domain.cluster_map import ClusterMap
from queuectl.domain.ledger import State
from queuectl.domain.queries import IN_LINE
from queuectl.domain.queue_counts import QueueCounts, WaitingOrder
from queuectl.domain.utilization import UseState
from queuectl.web.pages.evictions import eviction_rows
from queuectl.web.pages.queues import quotas_now, rows
from queuectl.web.site import Site

_RUNS: Final = (State.STARTING, State.RUNNING)
_LONGEST: Final = 8
_LATEST: Final = 8


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a bar: GPUs of one kind, with the name of its colour and pattern."""

    name: str
    style: str
    gpus: float


@dataclass(frozen=True, slots=True)
class Count:
    """Gangs and the GPUs they ask for."""

    gangs: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Sums:
    """All GPUs of the cluster.

    Attributes:
        nodes: how many there are.
        whole: nodes that take pods and are free altogether.
        free: on nodes that take pods.
        allocated: held by anybody, on any node.
        fragmented: free ones that the next pod is expected not to be able to use.
        parts: what becomes of every one; together they are all there are.
    """

    nodes: int
    whole: int
    free: float
    allocated: float
    fragmented: float
    parts: tuple[Part, ...]


def sums_of(cluster_map: ClusterMap) -> Sums:
    """The sums over a cluster map."""
    takes = [occupancy for occupancy in cluster_map.occupancies if occupancy.open]
    everything = sum(occupancy.gpus for occupancy in cluster_map.occupancies)
    free = sum(occupancy.free_gpus for occupancy in takes)
    unused = sum(occupancy.free_gpus for occupancy in cluster_map.occupancies)
    use = dict.fromkeys(UseState, 0.0)
    for gang in cluster_map.gangs:
        use[gang.use.state if gang.use is not None else UseState.UNKNOWN] += gang.gpus
    others = everything - unused - sum(use.values())
    parts = (
        Part("used", "active", use[UseState.ACTIVE] + use[UseState.LOW]),
        Part("warming up", "warmup", use[UseState.WARMUP]),
        Part("not measured", "unknown", use[UseState.UNKNOWN] + max(0.0, others)),
        Part("idle or stuck", "idle", use[UseState.IDLE] + use[UseState.STUCK]),
        Part("free", "free", free),
        Part("unused on nodes that take no pods", "out", unused - free),
    )
    return Sums(
        len(cluster_map.occupancies),
        sum(1 for occupancy in takes if occupancy.gpus and occupancy.free_gpus == occupancy.gpus),
        free,
        everything - unused,
        sum(occupancy.fragmented for occupancy in takes),
        tuple(part for part in parts if part.gpus > 0),
    )


def count(tallies: Iterable[QueueCounts], states: Iterable[State]) -> Count:
    """Of workloads in these states."""
    found = [tally for tally in tallies if tally.state in states]
    return Count(sum(t.workloads for t in found), sum(t.gpus for t in found))


def routes(site: Site) -> list[Route]:
    """Offer the page."""

    async def overview(request: Request) -> Response:
        sight = await site.sight(request)
        mine = sight.tallies(await site.store.tallies())
        cluster_map = await site.cluster_map() if sight.nodes else None
        longest = await site.store.waiting(
            namespaces=sight.namespaces, order=WaitingOrder.AGE, limit=_LONGEST
        )
        return site.page(
            request,
            "overview.html",
            sight,
            gpus=sums_of(cluster_map) if cluster_map is not None else None,
            running=count(mine, _RUNS),
            waiting=count(mine, IN_LINE),
            held=count(mine, (State.HELD, State.BACKOFF, State.DEACTIVATED)),
            oldest=min((t.oldest for t in mine if t.state in IN_LINE), default=None),
            queues=rows(await quotas_now(site), mine, sight),
            longest=longest,
            evictions=await eviction_rows(site, request, sight, limit=_LATEST),
        )

    return [Route("/", overview)]
