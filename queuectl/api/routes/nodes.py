"""Nodes, domains, and the floor plan: what is free, and who is where. Each replica that watches the cluster answers."""

# No postponed annotations here: see routes/config.py.

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
    DomainsView,
    FloorView,
    NodePageView,
    NodeView,
    domains_view,
    floor_document,
    node_view,
    sees,
)
from queuectl.api.cursors import cursor_after, name_before
from queuectl.api.kinds import PREFIX
from queuectl.api.openapi import responses
from queuectl.api.params import Cursor, IfNoneMatch, Limit, Name
from queuectl.api.ports import Lookout
from queuectl.api.preconditions import etag, unchanged
from queuectl.api.problems import Problem, ProblemType, not_known_yet
from queuectl.domain.cluster_map import ClusterMap, Layout, NodeOccupancy

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
        description="label=value; of several, all must hold: `topology.kubernetes.io/rack=r7`.",
    ),
]
Free = Annotated[
    float | None,
    Query(ge=0, le=1_000_000, description="Open nodes with at least so many free GPUs."),
]
Search = Annotated[
    str | None,
    Query(max_length=253, description="Part of the node's name, or of namespace/name of a tenant."),
]
OfTopology = Annotated[str | None, Query(alias="topology", max_length=253, description="One only.")]


def add_routes(routes: APIRouter, guard: Guard, lookout: Lookout | None) -> None:
    """Offer the paths. ``lookout``: None where nobody watches the cluster."""
    _nodes(routes, guard, lookout)
    _domains(routes, guard, lookout)
    _floor(routes, guard, lookout)


class OnceForEach:
    """What is made of a floor, kept until there is another: made once for all who ask the same of it."""

    def __init__(self) -> None:
        self._floor: ClusterMap | None = None
        self._made: dict[Any, Any] = {}

    def made(self, floor: ClusterMap, key: Hashable, make: Callable[[], _Made]) -> _Made:
        """What ``make`` gives, or gave before. ``key``: what is asked; the same is always made in the same way."""
        if self._floor is not floor:
            self._floor, self._made = floor, {}
        if key not in self._made:
            self._made[key] = make()
        found: _Made = self._made[key]
        return found


async def known(lookout: Lookout | None) -> ClusterMap:
    """What stands where.

    Raises:
        Problem: not-known-yet.
    """
    floor = await lookout.floor() if lookout is not None else None
    if floor is None:
        raise not_known_yet()
    return floor


async def visible_in(guard: Guard, request: Request, floor: ClusterMap) -> Visible:
    """The namespaces of tenants whose workloads the caller may list."""

    async def namespaces() -> Iterable[str]:
        return {gang.workload.namespace for gang in floor.gangs}

    return await guard.visible(request, "list", "workloads", namespaces)


def _nodes(routes: APIRouter, guard: Guard, lookout: Lookout | None) -> None:
    @routes.get(
        PATH,
        tags=_TAGS,
        operation_id="listNodes",
        summary="List nodes by name, with what is free and who is there",
        responses=responses(P.INVALID_PARAMETER, P.NOT_KNOWN_YET),
        dependencies=[guard.needs("list", "nodes")],
    )
    async def list_nodes(
        request: Request,
        domain: InDomain = None,
        free: Free = None,
        search: Search = None,
        limit: Limit = 100,
        cursor: Cursor = None,
    ) -> NodePageView:
        after = name_before(cursor)
        floor = await known(lookout)
        visible = await visible_in(guard, request, floor)
        labels = [tuple(each.split("=", 1)) for each in domain or ()]
        found: list[NodeOccupancy] = []
        for spot in floor.spots:
            if spot.node.name <= after or (free is not None and not _has(spot, free)):
                continue
            if any(spot.node.labels.get(label) != value for label, value in labels):
                continue
            if search and not _matches(spot, floor, visible, search.lower()):
                continue
            found.append(spot)
            if len(found) > limit:
                break
        page = found[:limit]
        more = len(found) > limit
        return NodePageView(
            items=[node_view(spot, floor, visible) for spot in page],
            next_cursor=cursor_after(page[-1].node.name) if more else None,
        )

    @routes.get(
        f"{PATH}/{{name}}",
        tags=_TAGS,
        operation_id="getNode",
        summary="One node",
        responses=responses(P.NOT_FOUND, P.INVALID_PARAMETER, P.NOT_KNOWN_YET),
        dependencies=[guard.needs("get", "nodes")],
    )
    async def get_node(request: Request, name: Name) -> NodeView:
        floor = await known(lookout)
        spot = next((spot for spot in floor.spots if spot.node.name == name), None)
        if spot is None:
            raise Problem(P.NOT_FOUND, f"there is no node {name}")
        return node_view(spot, floor, await visible_in(guard, request, floor))


def _has(spot: NodeOccupancy, gpus: float) -> bool:
    return spot.open and spot.free_gpus >= gpus


def _matches(spot: NodeOccupancy, floor: ClusterMap, visible: Visible, text: str) -> bool:
    """Names that the caller may not see are not looked at either: a search must not tell them."""
    if text in spot.node.name.lower():
        return True
    gangs = (floor.gangs[tenant.gang] for tenant in spot.tenants)
    return any(sees(gang, visible) and text in gang.workload.ref.lower() for gang in gangs)


def _domains(routes: APIRouter, guard: Guard, lookout: Lookout | None) -> None:
    kept = OnceForEach()

    def body(layouts: Sequence[Layout]) -> bytes:
        return domains_view(layouts).model_dump_json(by_alias=True).encode()

    @routes.get(
        f"{PREFIX}/domains",
        tags=_TAGS,
        operation_id="listDomains",
        summary="Racks, blocks and whatever else topologies name, with what is free in them",
        response_model=DomainsView,
        responses=responses(P.NOT_FOUND, P.INVALID_PARAMETER, P.NOT_KNOWN_YET),
        dependencies=[guard.needs("list", "nodes")],
    )
    async def list_domains(topology: OfTopology = None) -> Response:
        floor = await known(lookout)
        wanted = [layout for layout in floor.layouts if topology in (None, layout.name)]
        if topology is not None and not wanted:
            raise Problem(P.NOT_FOUND, f"there is no Topology {topology}")
        content = kept.made(floor, topology, partial(body, wanted))
        return Response(content, media_type="application/json")


def _floor(routes: APIRouter, guard: Guard, lookout: Lookout | None) -> None:
    kept = OnceForEach()

    def body(floor: ClusterMap, visible: Visible) -> tuple[bytes, str]:
        """The answer and its tag."""
        content = orjson.dumps(floor_document(floor, visible))
        return content, hashlib.blake2b(content, digest_size=12).hexdigest()

    @routes.get(
        f"{PREFIX}/floor",
        tags=_TAGS,
        operation_id="getFloor",
        summary="All nodes in columns, for a picture of them",
        response_model=FloorView,
        responses=responses(P.INVALID_PARAMETER, P.NOT_KNOWN_YET, not_modified=True),
        dependencies=[guard.needs("list", "nodes")],
    )
    async def get_floor(request: Request, if_none_match: IfNoneMatch = None) -> Response:
        floor = await known(lookout)
        visible = await visible_in(guard, request, floor)
        seen = None if visible is None else frozenset(visible)
        content, tag = kept.made(floor, seen, partial(body, floor, visible))
        headers = {"ETag": etag(tag), "Cache-Control": "private, no-cache"}
        if unchanged(tag, if_none_match):
            return Response(status_code=304, headers=headers)
        return Response(content, media_type="application/json", headers=headers)
