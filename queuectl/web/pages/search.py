"""Search by a part of a name: the page of results, and the suggestions while the user types."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from queuectl.api.search import SearchResult
from queuectl.domain.search import LONGEST_SEARCH, MOST_MATCHES, NEWEST_FINISHED, SearchText
from queuectl.web.site import PREFIX, Site

_SUGGESTIONS: Final = 10


def routes(site: Site) -> list[Route]:
    """Offer the pages."""

    async def results(request: Request) -> Response:
        text = _text(request)
        access = await site.access(request)
        hits = await site.search.find(text, access.namespaces)
        if (uid := _meant(text, hits)) is not None:
            return RedirectResponse(f"{PREFIX}/workloads/{uid}", 303)
        return site.page(
            request,
            "search.html",
            access,
            searched=text,
            result=hits,
            most=MOST_MATCHES,
            newest=NEWEST_FINISHED,
        )

    async def options(request: Request) -> Response:
        """The suggestions, as a part of a page."""
        text = _text(request)
        visible = await site.guard.visible(request, "list", "workloads", site.store.namespaces)
        hits = await site.search.find(text, visible, _SUGGESTIONS)
        return site.page(request, "_search_options.html", searched=text, result=hits)

    return [Route("/search", results), Route("/search/options", options)]


def _text(request: Request) -> str:
    """A text that is too long stays so: it matches nothing."""
    return request.query_params.get("q", "").strip()[: LONGEST_SEARCH + 1]


def _meant(text: str, hits: SearchResult) -> str | None:
    """The uid of the only workload that the user can mean: the only match, or the only one with this name."""
    named = [each for each in hits.matches if SearchText(text).names(each)]
    among = named or hits.matches
    if len(among) == 1 and not (hits.more and not named):
        return among[0].uid
    return None
