"""Workloads: a list with filters and sorting, and a page for one workload with its reason, placement, pods and history."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from queuectl.api.problems import ApiProblem, ProblemType
from queuectl.domain.errors import BadInput
from queuectl.domain.identity import Right
from queuectl.domain.ledger import KEPT_SECONDS, Entry, State
from queuectl.domain.queries import (
    BY_NAME,
    IN_QUEUE_ORDER,
    HistoryLine,
    SortKey,
    WorkloadFilter,
    WorkloadOrder,
    WorkloadPage,
)
from queuectl.domain.reasons import MEANINGS, Code
from queuectl.web.actions import asked_of, next_step, objections, offers
from queuectl.web.pods import PodTable, pod_table, ranks_of
from queuectl.web.site import PREFIX, AccessScope, Site, text, whole
from queuectl.web.words import TableColumn, address, headings

PAGE: Final = 100
_FILTERS: Final = ("q", "namespace", "queue", "localqueue", "user", "state", "reason")
_STEPS: Final = 200  # of a history, the latest
_PLACED: Final = (State.RESERVED, State.STARTING)
_UID: Final = re.compile(r"[0-9A-Za-z._-]{1,128}")
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

    async def one(request: Request) -> Response:
        return await _one(site, request)

    async def why(request: Request) -> Response:
        """The part of the page that the solver works on for up to a few seconds."""
        entry, access = await visible_workload(site, request)
        explained = await site.presenter.explained(request, entry)
        return site.page(request, "_why.html", access, entry=entry, explained=explained)

    async def pods(request: Request) -> Response:
        """The table of pods, which changes without a step of the history."""
        entry, access = await visible_workload(site, request)
        return site.page(request, "_pods.html", access, entry=entry, pods=await _pods(site, entry))

    async def asked(request: Request) -> Response:
        """The results of the latest commands. When all of them have a result, the page is refreshed."""
        entry, access = await visible_workload(site, request)
        newest, reads = (whole(request, name) for name in ("newest", "reads"))
        found = await asked_of(site.store, entry.uid, newest, reads)
        page = site.page(request, "_asked.html", access, entry=entry, asked=found)
        if found.answered:
            page.headers["HX-Trigger"] = "live"
        return page

    return [
        Route("/workloads", listed),
        Route("/workloads/{uid}", one),
        Route("/workloads/{uid}/asked", asked),
        Route("/workloads/{uid}/pods", pods),
        Route("/workloads/{uid}/why", why),
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
        entries = [await site.store.get_workload(reference) if _UID.fullmatch(reference) else None]
    found = [entry for entry in entries if entry is not None and access.sees(entry.namespace)]
    return [entry for entry in found if entry.state is not State.FINISHED] or found


async def visible_workload(site: Site, request: Request) -> tuple[Entry, AccessScope]:
    """The workload of the path.

    Raises:
        Problem: none that the caller may read exists.
    """
    uid = request.path_params["uid"]
    entry = await site.store.get_workload(uid) if _UID.fullmatch(uid) else None
    none = ApiProblem(ProblemType.NOT_FOUND, f"no workload has the uid {uid}")
    if entry is None:
        raise none
    right = Right("get", "workloads", entry.namespace, entry.name)
    if not await site.guard.may(request, right):
        raise none
    access = await site.access(request)
    return entry, access


async def _one(site: Site, request: Request) -> Response:
    entry, access = await visible_workload(site, request)
    history = await site.presenter.steps(request, await _history(site, entry))
    placement = entry.lease.placement if entry.lease is not None else entry.placement
    config = await site.config()
    buttons = await offers(site.guard, request, entry)
    return site.page(
        request,
        "workload.html",
        access,
        entry=entry,
        explained=await site.presenter.explained(request, entry, solve=False),
        waits=entry.state in IN_QUEUE_ORDER,
        ranks=ranks_of(placement, await site.current_snapshot()) if placement is not None else (),
        planned=entry.lease is not None,
        history=history,
        decided=_decided(history, site.clock()) if access.decisions else frozenset(),
        evictions=[line for line in history if line.to_state is State.EVICTING],
        asked=await asked_of(site.store, entry.uid),
        offers=buttons,
        objections=objections(buttons),
        advice=next_step(entry.state, entry.reason.code),
        with_pods=entry.state.live,
        pods=await _pods(site, entry),
        queues=sorted(
            name for namespace, name in config.local_queues if namespace == entry.namespace
        ),
    )


def _decided(history: Sequence[HistoryLine], now: float) -> frozenset[int]:
    """Ids of the steps by which a planning cycle placed it, of cycles whose records are kept."""
    return frozenset(
        line.id
        for line in history
        if line.to_state in _PLACED
        and line.from_state not in (None, line.to_state)
        and line.at >= now - KEPT_SECONDS
    )


async def _pods(site: Site, entry: Entry) -> PodTable | None:
    """None while this process does not know the cluster."""
    known = await site.pods(entry)
    return pod_table(entry, known) if known is not None else None


async def _history(site: Site, entry: Entry) -> list[HistoryLine]:
    """Its latest steps, newest first."""
    steps: list[HistoryLine] = []
    after = 0
    while more := await site.store.history(entry.uid, after, 500):
        steps = [*steps, *more][-_STEPS:]
        after = more[-1].id
        if len(more) < 500:
            break
    return steps[::-1]
