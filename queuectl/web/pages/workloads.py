"""Workloads: a list with filters and sorting."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from queuectl.api.problems import ApiProblem, ProblemType
from queuectl.domain.errors import BadInput
from queuectl.domain.identity import LONGEST_NAME
from queuectl.domain.ledger import Entry, State
from queuectl.domain.queries import (
    MOST_URGENT_FIRST,
    UNFINISHED,
    SortKey,
    WorkloadFilter,
    WorkloadOrder,
    WorkloadPage,
)
from queuectl.domain.reasons import MEANINGS, Code
from queuectl.web.actions import batch_offers
from queuectl.web.site import PREFIX, AccessScope, Site, text
from queuectl.web.words import ENDS, TableColumn, address, headings

PAGE: Final = 100
_FILTERS: Final = {
    "q": "name",
    "namespace": "namespace",
    "queue": "ClusterQueue",
    "localqueue": "LocalQueue",
    "user": "user",
    "reason": "reason",
}
"""The filters with one value, and their names on the page."""
UID: Final = re.compile(r"[0-9A-Za-z._-]{1,128}")
_COLUMNS: Final = (
    TableColumn("Workload", SortKey.NAME),
    TableColumn("State", SortKey.STATE),
    TableColumn("Reason"),
    TableColumn("GPUs", SortKey.GPUS, numeric=True),
    TableColumn("In state for", SortKey.SINCE, numeric=True, elapsed=True),
    TableColumn("ClusterQueue", SortKey.CLUSTER_QUEUE),
    TableColumn("Position", numeric=True),
    TableColumn("User", SortKey.USER),
    TableColumn("Priority", SortKey.PRIORITY, numeric=True),
    TableColumn("Kind"),
)


def routes(site: Site) -> list[Route]:
    """Offer the pages."""

    async def listed(request: Request) -> Response:
        return await _list(site, request)

    return [
        Route("/workloads", listed),
    ]


def order_of(request: Request) -> WorkloadOrder:
    """The order that the address names. Raises ApiProblem."""
    given = text(request, "sort")
    try:
        return WorkloadOrder.parse(given) if given else MOST_URGENT_FIRST
    except BadInput as error:
        raise ApiProblem(ProblemType.INVALID_PARAMETER, str(error)) from error


def chosen_order(order: WorkloadOrder) -> str:
    """The order for a form, which keeps it; empty for the default."""
    return str(order) if order != MOST_URGENT_FIRST else ""


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
    query = _query(request)
    access = await site.access(request)
    wrong = _wrong(query)
    named = await _by_name(site, access, query.fields["q"])
    if len(named) == 1:
        return RedirectResponse(f"{PREFIX}/workloads/{named[0].uid}", 303)
    order = order_of(request)
    page = WorkloadPage(tuple(named), None)
    if not (query.fields["q"] or wrong):
        page = await page_of(site, request, _filter(query, access), order)
    return site.page(
        request,
        "workloads.html",
        access,
        status=ProblemType.INVALID_PARAMETER.status if wrong else 200,
        asked=query.fields,
        chosen=query.states,
        finished=query.finished,
        active=query.active,
        wrong=wrong,
        found=named,
        states=list(State),
        reasons=sorted({*MEANINGS, *ENDS}),
        headings=headings(_COLUMNS, order, query.parameters),
        sort=chosen_order(order),
        workloads=await site.presenter.workloads(request, page.entries),
        batch=await batch_offers(site.guard, request, page.entries),
        with_finished=address({**query.parameters, "all": "true"}, order),
        first=address(query.parameters, order) if "cursor" in request.query_params else None,
        more=address(query.parameters, order, cursor=page.cursor) if page.cursor else None,
    )


@dataclass(frozen=True, slots=True)
class ListQuery:
    """The filters of an address.

    Attributes:
        fields: the filters with one value, by name; empty without one.
        states: as they are written in the address.
        finished: finished workloads are listed in addition to the others.
    """

    fields: Mapping[str, str]
    states: tuple[str, ...]
    finished: bool

    @property
    def parameters(self) -> dict[str, str | Sequence[str]]:
        """The filters that are set, as parameters of an address."""
        fields = {name: value for name, value in self.fields.items() if value}
        return {**fields, "state": self.states, **({"all": "true"} if self.finished else {})}

    @property
    def active(self) -> str:
        """The filters that are set, in words; empty if none is."""
        words = [f"{_FILTERS[name]} {value}" for name, value in self.fields.items() if value]
        words += [" or ".join(self.states)] if self.states else []
        return ", ".join([*words, *(["with finished ones"] if self.finished else [])])


def _query(request: Request) -> ListQuery:
    given = request.query_params.getlist("state")
    states = dict.fromkeys(state[:LONGEST_NAME] for state in given[: len(State)] if state)
    finished = text(request, "all") in ("true", "on")
    return ListQuery({name: text(request, name) for name in _FILTERS}, tuple(states), finished)


def _wrong(query: ListQuery) -> str:
    """The error in the filters; empty if they are right."""
    unknown = [state for state in query.states if state not in set(State)]
    if unknown:
        return f"{unknown[0]!r} is not a state. The states are {', '.join(State)}."
    reason = query.fields["reason"]
    if reason and reason not in set(Code):
        return f"{reason!r} is not a reason. Choose one from the list."
    return ""


def _filter(query: ListQuery, access: AccessScope) -> WorkloadFilter:
    """The filter of a query without errors. Finished workloads are selected only if the query names them."""
    states = frozenset(map(State, query.states)) or UNFINISHED
    return WorkloadFilter(
        namespace=query.fields["namespace"] or None,
        cluster_queue=query.fields["queue"] or None,
        states=states | {State.FINISHED} if query.finished else states,
        namespaces=access.namespaces,
        user=query.fields["user"] or None,
        queue=query.fields["localqueue"] or None,
        code=Code(query.fields["reason"]) if query.fields["reason"] else None,
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
