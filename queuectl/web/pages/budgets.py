"""Budgets: granted, spent and committed GPU-hours of the current month, and when each will be spent."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queuectl.api.budgets import shown
from queuectl.domain.identity import Right
from queuectl.domain.spending import report
from queuectl.web.site import Site

PATH: Final = "/budgets"


def routes(site: Site) -> list[Route]:
    """Offer the page."""

    async def budgets(request: Request) -> Response:
        access = await site.access(request)
        seen = await site.guard.visible(request, "get", "reports", site.store.namespaces)
        if seen is not None and not seen:
            await site.guard.require(request, Right("get", "reports"))
        snapshot = await site.current_snapshot()
        found = report(snapshot) if snapshot is not None else None
        return site.page(
            request,
            "budgets.html",
            access,
            known=found is not None,
            budgets=[one for one in found.forecasts if shown(one, seen)] if found else [],
            top_ups=found.top_ups if found else (),
        )

    return [Route(PATH, budgets)]
