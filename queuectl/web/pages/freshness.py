"""Whether a page could be refreshed now. A page asks while its event stream is silent, or reports an outage."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queuectl.api import problems
from queuectl.domain.errors import ClusterUnavailable
from queuectl.web.site import Site

_RIGHTS_SECONDS: Final = 1.0


def routes(site: Site) -> list[Route]:
    """Offer the path."""

    async def alive(request: Request) -> Response:
        headers = {"Cache-Control": "no-store"}
        if not await site.database.answers():
            return Response(status_code=503, headers=headers)
        try:
            async with asyncio.timeout(_RIGHTS_SECONDS):
                await site.access(request)
        except TimeoutError:
            text = f"no answer in {_RIGHTS_SECONDS:g} s"
            return problems.outage(request, ClusterUnavailable(text))
        except problems.OUTAGES as error:
            return problems.outage(request, error)
        return Response(status_code=204, headers=headers)

    return [Route("/alive", alive)]
