"""What would happen if: a form whose question the page asks of the API, because it may take seconds, and shows as tables."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queuectl.domain.identity import Right
from queuectl.web.site import Site


def routes(site: Site) -> list[Route]:
    """Offer the page."""

    async def form(request: Request) -> Response:
        await site.guard.require(request, Right("create", "plans"))
        sight = await site.sight(request)
        return site.page(request, "whatif.html", sight)

    return [Route("/whatif", form)]
