"""Workloads: a list with filters and sorting."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from queuectl.api.problems import ApiProblem, ProblemType
from queuectl.domain.errors import BadInput
from queuectl.domain.ledger import Entry, State
from queuectl.domain.queries import (
    BY_NAME,
    SortKey,
    WorkloadFilter,
    WorkloadOrder,
    WorkloadPage,
)
from queuectl.domain.reasons import MEANINGS, Code
from queuectl.web.site import PREFIX, AccessScope, Site, text
from queuectl.web.words import TableColumn, address, headings

PAGE: Final = 100
_FILTERS: Final = ("q", "namespace", "queue", "localqueue", "user", "state", "reason")
UID: Final = re.compile(r"[0-9A-Za-z._-]{1,128}")
_COLUMNS: Final = (
    TableColumn("Workload", SortKey.NAME),
    TableColumn("Kind"),
    TableColumn("State", SortKey.STATE),
    TableColumn("ClusterQueue", SortKey.CLUSTER_QUEUE),
    TableColumn("User", SortKey.USER),
    TableColumn("Position", numeric=True),
    TableColumn("GPUs", SortKey.GPUS, numeric=True),
    TableColumn("Priority", SortKey.PRIORITY, numeric=True),
    TableColumn("In state for", SortKey.SINCE, numeric=True, elapsed=True),
    TableColumn("Reason"),
)


def routes(site: Site) -> list[Route]:
    """Offer the pages."""

    async def listed(request: Request) -> Response:
        return await _list(site, request)

    return [
        Route("/workloads", listed),
    ]


def order_of(request: Request, default: WorkloadOrder = BY_NAME) -> WorkloadOrder:
    """The order that the address names. Raises ApiProblem."""
    given = text(request, "sort")
    try:
        return WorkloadOrder.parse(given) if given else default
    except BadInput as error:
        raise ApiProblem(ProblemType.INVALID_PARAMETER, str(error)) from error


async def page_of(
    site: Site, request: Request, filters: WorkloadFilter, order: WorkloadOrder, limit: int = PAGE
) -> WorkloadPage:
    """The page of a list that the address names by its cursor. Raises ApiProblem."""
    cursor = request.query_params.get("cursor")
    try:
        return await site.store.list_workloads(filters, cursor, limit, order)
    except BadInput as error:
        raise ApiProblem(ProblemType.INVALID_PARAMETER, str(error)) from error


async def _list(site: Site, request: Request) -> Response:
    query = {name: text(request, name) for name in _FILTERS}
    access = await site.access(request)
    named = await _by_name(site, access, query["q"])
    if len(named) == 1:
        return RedirectResponse(f"{PREFIX}/workloads/{named[0].uid}", 303)
    states = frozenset([State(query["state"])] if query["state"] in set(State) else [])
    filters = WorkloadFilter(
        namespace=query["namespace"] or None,
        cluster_queue=query["queue"] or None,
        states=states,
        namespaces=access.namespaces,
        user=query["user"] or None,
        queue=query["localqueue"] or None,
        code=Code(query["reason"]) if query["reason"] in set(Code) else None,
    )
    order = order_of(request)
    page = (
        WorkloadPage(tuple(named), None) if named else await page_of(site, request, filters, order)
    )
    return site.page(
        request,
        "workloads.html",
        access,
        asked=query,
        found=named,
        states=list(State),
        reasons=sorted(MEANINGS),
        headings=headings(_COLUMNS, order, query),
        sort=str(order),
        workloads=await site.presenter.workloads(request, page.entries),
        first=address(query, order) if "cursor" in request.query_params else None,
        more=address(query, order, cursor=page.cursor) if page.cursor else None,
    )


async def _by_name(site: Site, access: AccessScope, reference: str) -> list[Entry]:
    """The visible workloads with this ``namespace/name`` or uid, at most one of each kind.

    Finished workloads are found where no other workload has the name.
    """
    namespace, slash, name = reference.partition("/")
    entries: Sequence[Entry | None]
    if slash:
        entries = await site.store.find_workloads(namespace, name)
    else:
        entries = [await site.store.get_workload(reference) if UID.fullmatch(reference) else None]
    found = [entry for entry in entries if entry is not None and access.sees(entry.namespace)]
    return [entry for entry in found if entry.state is not State.FINISHED] or found
