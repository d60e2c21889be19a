"""The page where one signs in: a Kubernetes token is pasted there and becomes a session of the browser."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queuectl.web.site import PREFIX, Site


def routes(site: Site) -> list[Route]:
    """Offer the page. Anybody may see it."""

    async def sign_in(request: Request) -> Response:
        return site.page(request, "signin.html", next=_own_page(request.query_params.get("next")))

    return [Route("/signin", sign_in)]


def _own_page(wanted: str | None) -> str:
    """Where to go then: a page of the dashboard, whatever a link says."""
    text = wanted or ""
    plain = text.startswith(f"{PREFIX}/") and "\\" not in text and text.isprintable()
    return text if plain and "//" not in text.partition("?")[0] else f"{PREFIX}/"
