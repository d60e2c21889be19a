"""Workloads: a list to search, and one in full: its life, its place, why it waits, and what may be done with it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from queuectl.api.problems import Problem, ProblemType
from queuectl.domain.decisions import KEPT_SECONDS
from queuectl.domain.errors import BadInput
from queuectl.domain.identity import Right
from queuectl.domain.ledger import Entry, State
from queuectl.domain.queries import IN_LINE, HistoryLine, WorkloadFilter, WorkloadPage
from queuectl.objects.kinds import KINDS
from queuectl.web.access_scope import AccessScope
from queuectl.web.actions import offers
from queuectl.web.ranks import seated
from queuectl.web.recent_commands import asked_of
from queuectl.web.site import PREFIX, Site, text, whole

PAGE: Final = 100
_STEPS: Final = 200  # of a life, the latest
_PLACED: Final = (State.RESERVED, State.STARTING)
_UID: Final = re.compile(r"[0-9A-Za-z._-]{1,128}")


def routes(site: Site) -> list[Route]:
    """Offer the pages."""

    async def listed(request: Request) -> Response:
        return await _list(site, request)

    async def one(request: Request) -> Response:
        return await _one(site, request)

    async def why(request: Request) -> Response:
        """The part of the page that may take seconds of solving."""
        entry, sight = await _seen(site, request)
        explained = await site.presenter.explained(request, entry)
        return site.page(request, "_why.html", sight, entry=entry, explained=explained)

    async def asked(request: Request) -> Response:
        """What became of what was asked of it; once all of it is answered, the page is made anew."""
        entry, sight = await _seen(site, request)
        newest, looks = (whole(request, name) for name in ("newest", "looks"))
        found = await asked_of(site.store, entry.uid, newest, looks)
        page = site.page(request, "_asked.html", sight, entry=entry, asked=found)
        if found.answered:
            page.headers["HX-Trigger"] = "live"
        return page

    return [
        Route("/workloads", listed),
        Route("/workloads/{uid}", one),
        Route("/workloads/{uid}/asked", asked),
        Route("/workloads/{uid}/why", why),
    ]


async def _list(site: Site, request: Request) -> Response:
    asked = {name: text(request, name) for name in ("q", "namespace", "queue", "state")}
    sight = await site.sight(request)
    found = await _by_name(site, sight, asked["q"])
    if len(found) == 1:
        return RedirectResponse(f"{PREFIX}/workloads/{found[0].uid}", 303)
    states = frozenset([State(asked["state"])] if asked["state"] in set(State) else [])
    wanted = WorkloadFilter(
        namespace=asked["namespace"] or None,
        cluster_queue=asked["queue"] or None,
        states=states,
        namespaces=sight.namespaces,
    )
    cursor = request.query_params.get("cursor")
    try:
        page = (
            WorkloadPage(tuple(found), None)
            if found
            else await site.store.list_workloads(wanted, cursor, PAGE)
        )
    except BadInput as error:
        raise Problem(ProblemType.INVALID_PARAMETER, str(error)) from error
    return site.page(
        request,
        "workloads.html",
        sight,
        asked=asked,
        found=found,
        states=list(State),
        workloads=await site.presenter.workloads(request, page.entries),
        next_cursor=page.cursor,
        first="cursor" not in request.query_params,
    )


async def _by_name(site: Site, sight: AccessScope, given: str) -> list[Entry]:
    """The workloads that are named, as ``namespace/name`` or by the uid, and may be seen: one of each kind at most.

    Those that have finished count where no other has the name.
    """
    namespace, slash, name = given.partition("/")
    entries: Sequence[Entry | None]
    if slash:
        entries = [await site.store.find_workload(kind, namespace, name) for kind in KINDS]
    else:
        entries = [await site.store.get_workload(given) if _UID.fullmatch(given) else None]
    found = [entry for entry in entries if entry is not None and sight.sees(entry.namespace)]
    return [entry for entry in found if entry.state is not State.FINISHED] or found


async def _seen(site: Site, request: Request) -> tuple[Entry, AccessScope]:
    """The workload of the path.

    Raises:
        Problem: there is none that who asks may see.
    """
    uid = request.path_params["uid"]
    entry = await site.store.get_workload(uid) if _UID.fullmatch(uid) else None
    none = Problem(ProblemType.NOT_FOUND, f"there is no workload with uid {uid}")
    if entry is None:
        raise none
    right = Right("get", "workloads", entry.namespace, entry.name)
    if not await site.guard.may(request, right):
        raise none
    sight = await site.sight(request)
    return entry, sight


async def _one(site: Site, request: Request) -> Response:
    entry, sight = await _seen(site, request)
    history = await site.presenter.steps(request, await _life(site, entry))
    placement = entry.lease.placement if entry.lease is not None else entry.placement
    config = await site.config()
    return site.page(
        request,
        "workload.html",
        sight,
        entry=entry,
        explained=await site.presenter.explained(request, entry, solve=False),
        waits=entry.state in IN_LINE,
        seats=seated(placement, await site.picture()) if placement is not None else (),
        planned=entry.lease is not None,
        history=history,
        decided=_decided(history, site.clock()) if sight.decisions else frozenset(),
        evictions=[line for line in history if line.to_state is State.EVICTING],
        asked=await asked_of(site.store, entry.uid),
        offers=await offers(site.guard, request, entry),
        queues=sorted(
            name for namespace, name in config.local_queues if namespace == entry.namespace
        ),
    )


def _decided(history: Sequence[HistoryLine], now: float) -> frozenset[int]:
    """Ids of the steps by which a planning cycle gave it a place, of cycles whose records are kept."""
    return frozenset(
        line.id
        for line in history
        if line.to_state in _PLACED
        and line.from_state not in (None, line.to_state)
        and line.at >= now - KEPT_SECONDS
    )


async def _life(site: Site, entry: Entry) -> list[HistoryLine]:
    """Its latest steps, newest first."""
    steps: list[HistoryLine] = []
    after = 0
    while more := await site.store.history(entry.uid, after, 500):
        steps = [*steps, *more][-_STEPS:]
        after = more[-1].id
        if len(more) < 500:
            break
    return steps[::-1]
