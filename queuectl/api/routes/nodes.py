"""Nodes, domains, and the cluster map: what is free, and which gang is where. Each replica that watches the cluster answers."""

# No postponed annotations here: see routes/config.py.

import asyncio
import hashlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from enum import Enum
from functools import partial
from typing import Annotated, Any, Final, TypeVar

import orjson
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from queuectl.api.access import Guard, Visible
from queuectl.api.cluster_maps import (
    ClusterMapView,
    DomainsView,
    NodePageView,
    NodeSumsView,
    NodeView,
    cluster_map_document,
    domains_view,
    node_sums_view,
    node_view,
    sees,
)
from queuectl.api.openapi import responses
from queuectl.api.params import (
    Cursor,
    IfNoneMatch,
    Limit,
    Name,
    cursor_after,
    etag,
    name_before,
    unchanged,
)
from queuectl.api.ports import ClusterReader
from queuectl.api.problems import ApiProblem, ProblemType, not_known_yet
from queuectl.api.reading import CurrentConfiguration
from queuectl.domain.cluster_map import ClusterMap, NodeOccupancy, TopologyLayout
from queuectl.objects.configuration.config_kinds import PREFIX
from queuectl.reports.node_sums import node_sums

P = ProblemType
PATH: Final = f"{PREFIX}/nodes"
_Made = TypeVar("_Made")
_TAGS: Final[list[str | Enum]] = ["Nodes"]
_LABEL: Final = r"^[^=]{1,317}=[^=]{0,63}$"

InDomain = Annotated[
    list[Annotated[str, Query(pattern=_LABEL)]] | None,
    Query(
        alias="domain",
        max_length=8,
        description="Only nodes with this label: `topology.kubernetes.io/rack=r7`. You can repeat it; a node must have all labels.",
    ),
]
Free = Annotated[
    float | None,
    Query(
        ge=0,
        le=1_000_000,
        description="Only schedulable nodes with at least this number of free GPUs.",
    ),
]
Schedulable = Annotated[
    bool | None,
    Query(description="true: only nodes that are not cordoned. false: only cordoned nodes."),
]
Search = Annotated[
    str | None,
    Query(
        max_length=253,
        description="Only nodes with this text in their name, or in namespace/name of a gang on them.",
    ),
]
OfTopology = Annotated[
    str | None, Query(alias="topology", max_length=253, description="Only this Topology.")
]


def add_routes(
    routes: APIRouter,
    guard: Guard,
    stated: CurrentConfiguration,
    cluster_reader: ClusterReader | None,
) -> None:
    """Offer the paths. ``cluster_reader``: None in a process that does not watch the cluster."""
    _nodes(routes, guard, cluster_reader)
    _sums(routes, guard, stated, cluster_reader)
    _domains(routes, guard, cluster_reader)
    _cluster_map(routes, guard, cluster_reader)


class PerMapCache:
    """Responses for one cluster map, cached until there is another map. Equal requests share a response."""

    def __init__(self) -> None:
        self._cluster_map: ClusterMap | None = None
        self._made: dict[Any, Any] = {}

    def rendered(self, cluster_map: ClusterMap, key: Hashable, make: Callable[[], _Made]) -> _Made:
        """The result of ``make``, or its cached result. ``key``: of the request; equal keys have equal results."""
        if self._cluster_map is not cluster_map:
            self._cluster_map, self._made = cluster_map, {}
        if key not in self._made:
            self._made[key] = make()
        found: _Made = self._made[key]
        return found


async def current_map(cluster_reader: ClusterReader | None) -> ClusterMap:
    """The cluster map.

    Raises:
        Problem: not-known-yet.
    """
    cluster_map = await cluster_reader.cluster_map() if cluster_reader is not None else None
    if cluster_map is None:
        raise not_known_yet()
    return cluster_map


async def visible_in(guard: Guard, request: Request, cluster_map: ClusterMap) -> Visible:
    """The namespaces of tenants whose workloads the caller may list."""

    async def namespaces() -> Iterable[str]:
        return {gang.workload.namespace for gang in cluster_map.gangs}

    return await guard.visible(request, "list", "workloads", namespaces)


def _nodes(routes: APIRouter, guard: Guard, cluster_reader: ClusterReader | None) -> None:
    @routes.get(
        PATH,
        tags=_TAGS,
        operation_id="listNodes",
        summary="List nodes by name, with their free capacity and their gangs",
        responses=responses(P.NOT_KNOWN_YET),
        dependencies=[guard.needs("list", "nodes")],
    )
    async def list_nodes(
        request: Request,
        domain: InDomain = None,
        free: Free = None,
        schedulable: Schedulable = None,
        search: Search = None,
        limit: Limit = 100,
        cursor: Cursor = None,
    ) -> NodePageView:
        after = name_before(cursor)
        cluster_map = await current_map(cluster_reader)
        visible = await visible_in(guard, request, cluster_map)
        labels = [tuple(each.split("=", 1)) for each in domain or ()]
        occupied: list[NodeOccupancy] = []
        for occupancy in cluster_map.occupancies:
            if occupancy.node.name <= after or (free is not None and not _has(occupancy, free)):
                continue
            if any(occupancy.node.labels.get(label) != value for label, value in labels):
                continue
            if schedulable is not None and occupancy.node.unschedulable is schedulable:
                continue
            if search and not _matches(occupancy, cluster_map, visible, search.lower()):
                continue
            occupied.append(occupancy)
            if len(occupied) > limit:
                break
        page = occupied[:limit]
        more = len(occupied) > limit
        return NodePageView(
            items=[node_view(occupancy, cluster_map, visible) for occupancy in page],
            next_cursor=cursor_after(page[-1].node.name) if more else None,
        )

    @routes.get(
        f"{PATH}/{{name}}",
        tags=_TAGS,
        operation_id="getNode",
        summary="One node",
        responses=responses(P.NOT_FOUND, P.NOT_KNOWN_YET),
        dependencies=[guard.needs("get", "nodes")],
    )
    async def get_node(request: Request, name: Name) -> NodeView:
        cluster_map = await current_map(cluster_reader)
        occupancy = next(
            (occupancy for occupancy in cluster_map.occupancies if occupancy.node.name == name),
            None,
        )
        if occupancy is None:
            raise ApiProblem(P.NOT_FOUND, f"node {name} does not exist")
        return node_view(occupancy, cluster_map, await visible_in(guard, request, cluster_map))


def _has(occupancy: NodeOccupancy, gpus: float) -> bool:
    return occupancy.open and occupancy.free_gpus >= gpus


def _matches(
    occupancy: NodeOccupancy, cluster_map: ClusterMap, visible: Visible, text: str
) -> bool:
    """A search does not match names that the caller is not allowed to see, because a match would reveal them."""
    if text in occupancy.node.name.lower():
        return True
    gangs = (cluster_map.gangs[tenant.gang] for tenant in occupancy.tenants)
    return any(sees(gang, visible) and text in gang.workload.ref.lower() for gang in gangs)


def _domains(routes: APIRouter, guard: Guard, cluster_reader: ClusterReader | None) -> None:
    cache = PerMapCache()

    def body(layouts: Sequence[TopologyLayout]) -> bytes:
        return domains_view(layouts).model_dump_json(by_alias=True).encode()

    @routes.get(
        f"{PREFIX}/domains",
        tags=_TAGS,
        operation_id="listDomains",
        summary="The domains of all topologies, for example racks and blocks, with their free capacity",
        response_model=DomainsView,
        responses=responses(P.NOT_FOUND, P.NOT_KNOWN_YET),
        dependencies=[guard.needs("list", "nodes")],
    )
    async def list_domains(topology: OfTopology = None) -> Response:
        cluster_map = await current_map(cluster_reader)
        wanted = [layout for layout in cluster_map.layouts if topology in (None, layout.name)]
        if topology is not None and not wanted:
            raise ApiProblem(P.NOT_FOUND, f"Topology {topology} does not exist")
        content = cache.rendered(cluster_map, topology, partial(body, wanted))
        return Response(content, media_type="application/json")


def _sums(
    routes: APIRouter,
    guard: Guard,
    stated: CurrentConfiguration,
    cluster_reader: ClusterReader | None,
) -> None:
    @routes.get(
        f"{PREFIX}/nodesummary",
        tags=_TAGS,
        operation_id="summarizeNodes",
        summary="The nodes and their GPUs, summed up by ResourceFlavors and model",
        responses=responses(P.NOT_KNOWN_YET),
        dependencies=[guard.needs("list", "nodes")],
    )
    async def summarize_nodes() -> NodeSumsView:
        cluster_map = await current_map(cluster_reader)
        config = await stated.config()
        sums = await asyncio.to_thread(node_sums, cluster_map.occupancies, config)
        return node_sums_view(sums)


def _cluster_map(routes: APIRouter, guard: Guard, cluster_reader: ClusterReader | None) -> None:
    cache = PerMapCache()

    def body(cluster_map: ClusterMap, visible: Visible) -> tuple[bytes, str]:
        """The answer and its tag."""
        content = orjson.dumps(cluster_map_document(cluster_map, visible))
        return content, hashlib.blake2b(content, digest_size=12).hexdigest()

    @routes.get(
        f"{PREFIX}/clustermap",
        tags=_TAGS,
        operation_id="getClusterMap",
        summary="The cluster map: all nodes in columns",
        response_model=ClusterMapView,
        responses=responses(P.NOT_KNOWN_YET, not_modified=True),
        dependencies=[guard.needs("list", "nodes")],
    )
    async def get_cluster_map(request: Request, if_none_match: IfNoneMatch = None) -> Response:
        cluster_map = await current_map(cluster_reader)
        visible = await visible_in(guard, request, cluster_map)
        seen = None if visible is None else frozenset(visible)
        content, tag = cache.rendered(cluster_map, seen, partial(body, cluster_map, visible))
        headers = {"ETag": etag(tag), "Cache-Control": "private, no-cache"}
        if unchanged(tag, if_none_match):
            return Response(status_code=304, headers=headers)
        return Response(content, media_type="application/json", headers=headers)
