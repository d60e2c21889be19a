"""Whether a page could be refreshed now. A page asks while its event stream is silent."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queuectl.web.site import Site


def routes(site: Site) -> list[Route]:
    """Offer the path."""

    async def alive(_: Request) -> Response:
        answers = await site.database.answers()
        return Response(status_code=204 if answers else 503, headers={"Cache-Control": "no-store"})

    return [Route("/alive", alive)]
