"""My jobs: the workloads of one user or of one namespace, with the reason, the expected start, and what to do next."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from queuectl.domain.identity import LONGEST_NAME
from queuectl.domain.ledger import State
from queuectl.domain.queries import MOST_URGENT_FIRST, UNFINISHED, SortKey, WorkloadFilter
from queuectl.web.actions import batch_offers, next_step
from queuectl.web.pages.workloads import chosen_order, order_of, page_of
from queuectl.web.site import PREFIX, AccessScope, Site, text
from queuectl.web.words import TableColumn, address, headings

_MOST: Final = 50
_FINISHED: Final = 10
_COLUMNS: Final = (
    TableColumn("Job", SortKey.NAME),
    TableColumn("State", SortKey.STATE),
    TableColumn("Reason"),
    TableColumn("GPUs", SortKey.GPUS, numeric=True),
    TableColumn("Start"),
    TableColumn("What to do"),
    TableColumn("Queued", SortKey.QUEUED_AT, numeric=True, elapsed=True),
)


def routes(site: Site) -> list[Route]:
    """Offer the page, and the address that leads each user to their first page."""

    async def home(request: Request) -> Response:
        access = await site.access(request)
        tenant = site.signs_in and access.namespaces is not None
        return RedirectResponse(f"{PREFIX}/mine" if tenant else f"{PREFIX}/", 303)

    async def mine(request: Request) -> Response:
        return await _mine(site, request)

    return [Route("/home", home), Route("/mine", mine)]


async def _mine(site: Site, request: Request) -> Response:
    access = await site.access(request)
    query = _asked(site, access, request)
    order = order_of(request)
    chosen = bool(query["user"] or query["namespace"])
    page, jobs, finished = None, [], []
    if chosen:
        page = await page_of(site, request, _filter(query, access, UNFINISHED), order, _MOST)
        jobs = await site.presenter.workloads(request, page.entries)
        ended = _filter(query, access, frozenset([State.FINISHED]))
        last = await site.store.list_workloads(ended, None, _FINISHED, MOST_URGENT_FIRST)
        finished = await site.presenter.workloads(request, last.entries)
    cursor = page.cursor if page is not None else None
    return site.page(
        request,
        "mine.html",
        access,
        asked=query,
        chosen=chosen,
        sort=chosen_order(order),
        headings=headings(_COLUMNS, order, query),
        jobs=jobs,
        batch=await batch_offers(site.guard, request, page.entries if page is not None else ()),
        finished=finished,
        next_step=next_step,
        first=address(query, order) if "cursor" in request.query_params else None,
        more=address(query, order, cursor=cursor) if cursor else None,
    )


def _asked(site: Site, access: AccessScope, request: Request) -> dict[str, str]:
    """Without a parameter, a signed-in user asks for their own jobs. An empty user is any user of the namespace."""
    asked = {name: text(request, name) for name in ("user", "namespace")}
    if site.signs_in and "user" not in request.query_params:
        asked["user"] = access.who[:LONGEST_NAME]
    return asked


def _filter(query: dict[str, str], access: AccessScope, states: frozenset[State]) -> WorkloadFilter:
    return WorkloadFilter(
        namespace=query["namespace"] or None,
        user=query["user"] or None,
        states=states,
        namespaces=access.namespaces,
    )
