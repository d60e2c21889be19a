"""Shadow mode: the state of the cluster at all observations, the gangs that waited although they fitted, and a simulation of queuectl."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queuectl.api.routes.usage import period_of
from queuectl.domain.identity import Right
from queuectl.shadow.report import (
    LIMITS,
    MOST_GANGS,
    SIMULATED_LIMITS,
    about_simulated,
    compared_rows,
    longest_reason,
)
from queuectl.web.site import Site, text

PATH: Final = "/shadow"
SPANS: Final = {"24h": "last 24 hours", "168h": "last 7 days", "720h": "last 30 days"}


def routes(site: Site) -> list[Route]:
    """Offer the page."""

    async def shadow(request: Request) -> Response:
        access = await site.access(request)
        await site.guard.require(request, Right("get", "reports"))
        span = text(request, "span")
        span = span if span in SPANS else "168h"
        period = period_of(span, None, site.clock())
        history = await site.store.shadow.history(period, MOST_GANGS)
        simulated = await site.store.shadow.simulated()
        total = history.total
        return site.page(
            request,
            "shadow.html",
            access,
            span=span,
            spans=SPANS,
            period=period,
            history=history,
            total=total,
            observed=total.observed or 1.0,
            reasons=sorted(total.reasons.items(), key=lambda one: (-one[1], one[0])),
            longest_reason=longest_reason,
            limits=LIMITS,
            compared=compared_rows(simulated) if simulated is not None else (),
            about=about_simulated(simulated) if simulated is not None else (),
            simulated_limits=SIMULATED_LIMITS,
        )

    return [Route(PATH, shadow)]
