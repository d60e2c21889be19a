"""The page where one signs in: a Kubernetes token is pasted there and becomes a session of the browser."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queuectl.web.site import PREFIX, Site


def routes(site: Site) -> list[Route]:
    """Offer the page. It needs no right."""

    async def sign_in(request: Request) -> Response:
        return site.page(request, "signin.html", next=_own_page(request.query_params.get("next")))

    return [Route("/signin", sign_in)]


def _own_page(wanted: str | None) -> str:
    """The page after signing in: always one of the dashboard. The start of the dashboard is the user's first page."""
    text = wanted or ""
    plain = text.startswith(f"{PREFIX}/") and "\\" not in text and text.isprintable()
    own = plain and text != f"{PREFIX}/" and "//" not in text.partition("?")[0]
    return text if own else f"{PREFIX}/home"
