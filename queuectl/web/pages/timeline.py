"""The timeline: when running gangs end, and when pending gangs start, as planned and as expected."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queuectl.domain.estimates import NO_ESTIMATES
from queuectl.web.site import Site, text
from queuectl.web.timeline import SPANS, timeline_of

MOST: Final = 60  # gangs of each table


def routes(site: Site) -> list[Route]:
    """Offer the page."""

    async def timeline(request: Request) -> Response:
        access = await site.access(request)
        snapshot = await site.current_snapshot()
        estimated = site.diagnoser.expected_starts() if site.diagnoser else NO_ESTIMATES
        queue, span = text(request, "queue"), text(request, "span")
        shown = snapshot and timeline_of(
            snapshot, estimated.by_uid, access.sees, queue=queue, span=span, most=MOST
        )
        return site.page(
            request,
            "timeline.html",
            access,
            timeline=shown,
            estimated=estimated,
            spans=SPANS,
            asked={"queue": queue, "span": span},
        )

    return [Route("/timeline", timeline)]
