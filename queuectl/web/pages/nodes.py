"""The node map: gangs, free GPUs and GPU utilization of each node, as a map and as tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queuectl.api.problems import ApiProblem, ProblemType
from queuectl.domain.cluster_map import (
    ClusterMap,
    GangOnMap,
    NodeOccupancy,
    TopologyLayout,
    TopologyLevel,
)
from queuectl.domain.gpus import rounded
from queuectl.domain.identity import Right
from queuectl.domain.redaction import ANOTHER_TEAM
from queuectl.web.site import AccessScope, Site, text

MOST: Final = 200  # nodes listed at once
_UNHEALTHY: Final = "unhealthy"  # map.js draws nodes that are closed for this reason in another way


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node in a list.

    Attributes:
        closed: why it is unschedulable; empty = it is schedulable.
        tainted: (device, taint) of each taint that takes a device out of placement.
        tenants: name, uid (empty = not visible) and GPUs of each gang on it.
        unmanaged: GPUs of unmanaged pods.
    """

    name: str
    path: tuple[str, ...]
    closed: str
    tainted: tuple[tuple[str, str], ...]
    gpus: float
    free: float
    unmanaged: float
    tenants: tuple[tuple[str, str, float], ...]


class MapLayout:
    """A cluster map in the order of one topology."""

    def __init__(self, cluster_map: ClusterMap, topology: str | None) -> None:
        """``topology``: None, or an unknown name = the topology with the most levels."""
        self.cluster_map = cluster_map
        layouts = {layout.name: layout for layout in cluster_map.layouts}
        deepest = max(
            cluster_map.layouts,
            key=lambda layout: len(layout.levels),
            default=TopologyLayout("", ()),
        )
        self.layout = layouts.get(topology or "", deepest)
        self.levels = tuple(level.label for level in self.layout.levels)

    @property
    def finest(self) -> TopologyLevel:
        """Its finest level above single nodes; without domains where the topology has single nodes only."""
        return self.layout.levels[-1] if self.layout.levels else TopologyLevel("", (), ())

    def path(self, place: int) -> tuple[str, ...]:
        """The domains of a node, from the coarsest level; empty = the node is not in the topology."""
        finest = self.finest
        at = finest.of[place] if finest.of else -1
        return finest.domains[at].path if at >= 0 else ()

    def order(self) -> list[int]:
        """Nodes domain by domain, then the nodes in no domain."""
        of = self.finest.of
        places = range(len(self.cluster_map.occupancies))
        if not of:
            return list(places)
        return sorted(places, key=lambda place: (of[place] < 0, of[place]))


def columns(plan: MapLayout, access: AccessScope) -> dict[str, Any]:
    """The cluster map as columns for the canvas. A gang that the caller may not see has neither name nor queue.

    ``closed``: per node, why it is unschedulable; empty = it is schedulable. ``tainted``: per node, the number of devices that taints take out
    of placement. ``occupancy``: per node, the index of each gang and its GPUs, in turn.
    """
    order, occupancies = plan.order(), plan.cluster_map.occupancies
    of = plan.finest.of
    return {
        "levels": list(plan.levels),
        "domains": [list(domain.path) for domain in plan.finest.domains],
        "nodes": [occupancies[i].node.name for i in order],
        "domain": [of[i] if of else -1 for i in order],
        "gpus": [rounded(occupancies[i].gpus) for i in order],
        "free": [rounded(occupancies[i].free_gpus) for i in order],
        "closed": [_closed(occupancies[i]) for i in order],
        "tainted": [len({device for device, _ in occupancies[i].tainted}) for i in order],
        "occupancy": [
            [x for tenant in occupancies[i].tenants for x in (tenant.gang, rounded(tenant.gpus))]
            for i in order
        ],
        "gangs": [_gang(gang, access) for gang in plan.cluster_map.gangs],
    }


def _gang(gang: GangOnMap, access: AccessScope) -> list[Any]:
    """Name, uid, ClusterQueue, utilization."""
    if not access.sees(gang.workload.namespace):
        return [ANOTHER_TEAM, "", "", None]
    known = gang.utilization
    return [
        gang.workload.ref,
        gang.workload.uid,
        gang.cluster_queue,
        round(known, 3) if known is not None else None,
    ]


def matching(plan: MapLayout, q: str, access: AccessScope) -> Iterator[int]:
    """Indices of nodes with this text in the name, the domain or the name of a visible gang."""
    wanted = q.casefold()
    gangs = plan.cluster_map.gangs
    hits = {
        place
        for place, gang in enumerate(gangs)
        if wanted in gang.workload.ref.casefold() and access.sees(gang.workload.namespace)
    }
    for place in plan.order():
        occupancy, path = plan.cluster_map.occupancies[place], plan.path(place)
        named = wanted in occupancy.node.name.casefold() or wanted in "/".join(path).casefold()
        if named or any(tenant.gang in hits for tenant in occupancy.tenants):
            yield place


def node_row(plan: MapLayout, place: int, access: AccessScope) -> NodeRow:
    """The row of a node."""
    occupancy = plan.cluster_map.occupancies[place]
    tenants = []
    for tenant in occupancy.tenants:
        workload = plan.cluster_map.gangs[tenant.gang].workload
        seen = access.sees(workload.namespace)
        name, uid = (workload.ref, workload.uid) if seen else (ANOTHER_TEAM, "")
        tenants.append((name, uid, rounded(tenant.gpus)))
    held = sum((tenant.gpus for tenant in occupancy.tenants), Fraction())
    return NodeRow(
        occupancy.node.name,
        plan.path(place),
        _closed(occupancy),
        occupancy.tainted,
        rounded(occupancy.gpus),
        rounded(occupancy.free_gpus),
        max(0.0, rounded(occupancy.gpus - occupancy.free_gpus - held)),
        tuple(tenants),
    )


def _closed(occupancy: NodeOccupancy) -> str:
    if not occupancy.node.ready:
        return "not ready"
    if occupancy.node.unhealthy:
        return f"{_UNHEALTHY}: {occupancy.node.unhealthy}"
    mig = occupancy.node.mig
    if mig is not None and mig.phase.active:
        return f"MIG configuration {mig.source.config} to {mig.target.config}: {mig.phase}"
    return "cordoned" if occupancy.node.unschedulable else ""


def routes(site: Site) -> list[Route]:
    """Offer the page, its data, and the list of nodes that a search finds."""

    async def visible_plan(request: Request) -> tuple[AccessScope, MapLayout | None]:
        await site.guard.require(request, Right("list", "nodes"))
        access = await site.access(request)
        cluster_map = await site.cluster_map()
        topology = request.query_params.get("topology")
        return access, MapLayout(cluster_map, topology) if cluster_map is not None else None

    async def page(request: Request) -> Response:
        access, plan = await visible_plan(request)
        return site.page(request, "nodes.html", access, plan=plan, **_found(plan, request, access))

    async def listed(request: Request) -> Response:
        access, plan = await visible_plan(request)
        return site.page(request, "_nodes.html", access, **_found(plan, request, access))

    async def data(request: Request) -> Response:
        access, plan = await visible_plan(request)
        if plan is None:
            raise ApiProblem(ProblemType.NOT_READY, "this replica has not read the cluster yet")
        body = orjson.dumps(columns(plan, access))
        return Response(body, media_type="application/json", headers={"Cache-Control": "no-store"})

    return [
        Route("/nodes", page),
        Route("/nodes/list", listed),
        Route("/nodes/data", data),
    ]


def _found(plan: MapLayout | None, request: Request, access: AccessScope) -> dict[str, Any]:
    """The nodes that a search finds; none without a search."""
    q = text(request, "q")
    places: Iterable[int] = matching(plan, q, access) if plan is not None and q else ()
    found = list(places)
    shown = [node_row(plan, place, access) for place in found[:MOST]] if plan is not None else []
    return {"q": q, "found": len(found), "nodes": shown}
