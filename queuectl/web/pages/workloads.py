"""Workloads: a list to search, and one in full: its life, its place, why it waits, and what may be done with it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from queuectl.api.floors import ANOTHER_TEAM
from queuectl.api.problems import Problem, ProblemType
from queuectl.api.schemas import ExplainView
from queuectl.api.views import explain_view, workload_view
from queuectl.domain.errors import BadInput
from queuectl.domain.identity import Right
from queuectl.domain.ledger import Entry, State
from queuectl.domain.queries import HistoryLine, WorkloadFilter
from queuectl.objects.kinds import KINDS
from queuectl.web.actions import offers
from queuectl.web.pages.queues import lines_of
from queuectl.web.placing import seated
from queuectl.web.sight import Sight
from queuectl.web.site import PREFIX, Site

PAGE: Final = 100
_STEPS: Final = 200  # of a life, the latest
_UID: Final = re.compile(r"[0-9A-Za-z._-]{1,128}")
_WAITS: Final = (State.PENDING, State.RESERVED)


def routes(site: Site) -> list[Route]:
    """Offer the pages."""

    async def listed(request: Request) -> Response:
        return await _list(site, request)

    async def one(request: Request) -> Response:
        return await _one(site, request)

    async def why(request: Request) -> Response:
        """The part of the page that may take seconds of solving."""
        entry, sight = await _seen(site, request)
        explained = await _explained(site, entry, sight, solve=True)
        return site.page(request, "_why.html", sight, entry=entry, explained=explained)

    return [
        Route("/workloads", listed),
        Route("/workloads/{uid}", one),
        Route("/workloads/{uid}/why", why),
    ]


async def _list(site: Site, request: Request) -> Response:
    asked = {
        name: request.query_params.get(name, "").strip()[:253]
        for name in ("q", "namespace", "queue", "state")
    }
    sight = await site.sight(request, await site.store.tallies(), await site.config())
    found = await _by_name(site, sight, asked["q"])
    if found is not None:
        return RedirectResponse(f"{PREFIX}/workloads/{found.uid}", 303)
    states = frozenset([State(asked["state"])] if asked["state"] in set(State) else [])
    wanted = WorkloadFilter(
        namespace=asked["namespace"] or None,
        cluster_queue=asked["queue"] or None,
        states=states,
        namespaces=sight.namespaces,
    )
    try:
        page = await site.store.list_workloads(wanted, request.query_params.get("cursor"), PAGE)
    except BadInput as error:
        raise Problem(ProblemType.INVALID_PARAMETER, str(error)) from error
    lines = await lines_of(site, page.entries)
    return site.page(
        request,
        "workloads.html",
        sight,
        asked=asked,
        states=list(State),
        workloads=[
            workload_view(entry, lines.get(entry.uid), site.use(entry.uid))
            for entry in page.entries
        ],
        next_cursor=page.cursor,
        first="cursor" not in request.query_params,
    )


async def _by_name(site: Site, sight: Sight, text: str) -> Entry | None:
    """The workload that is named, as ``namespace/name`` or by its uid; None when none is, or none that may be seen."""
    namespace, slash, name = text.partition("/")
    entries: Sequence[Entry | None]
    if slash:
        entries = [await site.store.find_workload(kind, namespace, name) for kind in KINDS]
    else:
        entries = [await site.store.get_workload(text) if _UID.fullmatch(text) else None]
    found = [entry for entry in entries if entry is not None and sight.sees(entry.namespace)]
    found.sort(key=lambda entry: (entry.state is State.FINISHED, -entry.queued_at))
    return next(iter(found), None)


async def _seen(site: Site, request: Request) -> tuple[Entry, Sight]:
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
    sight = await site.sight(request, await site.store.tallies(), await site.config())
    return entry, sight


async def _one(site: Site, request: Request) -> Response:
    entry, sight = await _seen(site, request)
    history = await _life(site, entry)
    placement = entry.lease.placement if entry.lease is not None else entry.placement
    config = await site.config()
    return site.page(
        request,
        "workload.html",
        sight,
        entry=entry,
        explained=await _explained(site, entry, sight, solve=False),
        waits=entry.state in _WAITS,
        seats=seated(placement, await site.picture()) if placement is not None else (),
        planned=entry.lease is not None,
        history=history,
        evictions=[line for line in history if line.to_state is State.EVICTING],
        offers=await offers(site.guard, request, entry),
        queues=sorted(
            name for namespace, name in config.local_queues if namespace == entry.namespace
        ),
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


async def _explained(site: Site, entry: Entry, sight: Sight, *, solve: bool) -> ExplainView:
    """Why it is where it is; with what stands in its way and what would help only if that is to be solved."""
    leaving = entry.lease.victims if entry.lease else ()
    known_names = await site.store.workload_names(leaving) if leaving else {}
    names = {
        uid: ref if sight.sees(ref.partition("/")[0]) else ANOTHER_TEAM
        for uid, ref in known_names.items()
    }
    waits = entry.state in _WAITS
    known = site.diagnoser
    diagnosis = await known.diagnose(entry.uid) if known and waits and solve else None
    line = (await lines_of(site, (entry,))).get(entry.uid)
    start = known.estimated_start(entry.uid) if known else None
    position = line.cluster_queue if line else None
    return explain_view(entry, position, names, diagnosis, site.use(entry.uid), start)
