"""Reservations: the current or next occurrence of each, its nodes, or the reason why it has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queuectl.api.reservation_status import with_status
from queuectl.domain.identity import Right
from queuectl.domain.queries import DocumentKey
from queuectl.objects.configuration.config_kinds import BY_KIND
from queuectl.web.configuration import address_of, capacity_of
from queuectl.web.site import Site
from queuectl.web.words import counted, seconds_of

_MOST_NODES: Final = 8  # of one Reservation


@dataclass(frozen=True, slots=True)
class ReservationRow:
    """A Reservation in the list.

    Attributes:
        capacity: what it keeps, in words.
        begins, ends: of its current or next occurrence, in unix seconds; None for a text that is not a time.
        nodes: the first names, and the number of the others; empty without a placement.
        earliest: unix seconds of the first start with a placement; None where it is unknown.
    """

    name: str
    address: str
    queue: str
    capacity: str
    phase: str
    begins: float | None
    ends: float | None
    recurrence: str
    nodes: str
    reason: str
    earliest: float | None


def routes(site: Site) -> list[Route]:
    """The route of the page."""

    async def listed(request: Request) -> Response:
        kind = BY_KIND["Reservation"]
        access = await site.access(request)
        may_list = await site.guard.may(request, Right("list", kind.plural))
        stored = await site.store.list_config(kind.kind, None) if may_list else ()
        states = await site.store.reservations() if stored else ()
        shown = [with_status(one.document, states, site.clock()) for one in stored]
        rows = sorted(
            map(_row, shown), key=lambda row: (row.phase == "Ended", row.begins or 0.0, row.name)
        )
        may_add = await site.guard.may(request, Right("update", kind.plural))
        return site.page(
            request,
            "reservations.html",
            access,
            rows=rows,
            may_add=may_add,
            may_list=may_list,
            plural=kind.plural,
        )

    return [Route("/reservations", listed)]


def first_names(nodes: Sequence[str]) -> str:
    """The first nodes, and the number of the others."""
    more = len(nodes) - _MOST_NODES
    others = f" and {counted(more, 'more node')}" if more > 0 else ""
    return ", ".join(nodes[:_MOST_NODES]) + others


def _row(shown: Mapping[str, Any]) -> ReservationRow:
    spec, status = shown["spec"], shown.get("status") or {}
    name = shown["metadata"]["name"]
    return ReservationRow(
        name=name,
        address=address_of(DocumentKey("Reservation", "", name)),
        queue=spec.get("clusterQueue") or "",
        capacity=capacity_of(spec),
        phase=status.get("phase") or "",
        begins=seconds_of(status.get("from") or spec["from"]),
        ends=seconds_of(status.get("until") or spec["until"]),
        recurrence=spec.get("recurrence") or "",
        nodes=first_names([node["name"] for node in status.get("nodes") or ()]),
        reason=status.get("reason") or "",
        earliest=seconds_of(status.get("earliest")),
    )
