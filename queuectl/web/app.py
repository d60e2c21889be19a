"""The dashboard as a separate application, mounted under ``/ui`` alongside the REST API.

Its errors are pages. The middleware of the API authenticates callers and sets the security headers for both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from queuectl.api import problems
from queuectl.api.access import Guard
from queuectl.api.auth.audit import record_change
from queuectl.api.oidc.browser import BrowserLogins
from queuectl.api.ports import Diagnoser
from queuectl.api.problems import ApiProblem
from queuectl.db.ports import ApiStore
from queuectl.domain.errors import (
    BadInput,
    ClusterUnavailable,
    StoreUnavailable,
    TooManyReviews,
)
from queuectl.domain.links import LinkTemplate
from queuectl.web.log_streams import PodLogs
from queuectl.web.pages import (
    audit,
    budgets,
    cohorts,
    config,
    config_write,
    decisions,
    evictions,
    freshness,
    local_queues,
    mine,
    nodes,
    notifications,
    overview,
    pod_logs,
    queues,
    reservations,
    search,
    session,
    shadow,
    suggestions,
    timeline,
    usage,
    whatif,
    workload,
    workloads,
)
from queuectl.web.site import PREFIX, STATIC, DashboardClusterReader, Site, asset

log = structlog.get_logger()

_KEEP: Final = "public, max-age=31536000, immutable"
_SHORTEST_COMPRESSED: Final = 1024  # bytes
# A page of 100 kB takes about 1 ms, and becomes six times smaller. Pages contain no secret of the session, and its cookie is not
# sent for requests of other sites, so these learn nothing from the size of a compressed page.
_LEVEL: Final = 4
_TITLES: Final = {
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    429: "Too many requests",
    503: "Temporarily unavailable",
}


SIGN_IN: Final = f"{PREFIX}/signin"
OPEN: Final = (f"{PREFIX}/static/", SIGN_IN)
"""Prefixes of the paths that need no authentication."""


class _Static(StaticFiles):
    """Static files, which browsers cache indefinitely when the address has their digest.

    During an upgrade, a page of one release can ask a replica of another one, whose file no browser caches for that address.
    """

    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        query = scope["query_string"].decode("latin-1")
        own = _KEEP if asset(path) == f"{PREFIX}/static/{path}?{query}" else "no-store"
        answer.headers["Cache-Control"] = own if query else "no-cache"
        return answer


def add_dashboard(
    app: FastAPI,
    store: ApiStore,
    guard: Guard,
    cluster_reader: DashboardClusterReader | None = None,
    diagnoser: Diagnoser | None = None,
    *,
    signs_in: bool = False,
    in_shadow: bool = False,
    documentation_url: str = "",
    links: Sequence[LinkTemplate] = (),
    pod_logs: PodLogs | None = None,
    clock: Callable[[], float] = time.time,
) -> None:
    """Offer the pages alongside the API; ``/`` redirects to them.

    Args:
        app: the API's application, whose middleware authenticates callers.
        store: the source of the pages.
        guard: checks the rights of callers.
        cluster_reader: the state of the cluster; None where no controller runs.
        diagnoser: as for the API.
        signs_in: users sign in; otherwise the dashboard has no authentication.
        in_shadow: this process runs in shadow mode.
        documentation_url: to which each page links; empty = no link.
        links: to other systems, on the page of a workload.
        pod_logs: logs of containers; None = pages show none.
        clock: unix seconds.
    """
    shared = app.state
    site = Site(
        store,
        guard,
        clock,
        shared.bodies,
        shared.stated,
        shared.history,
        shared.search,
        shared.database,
        shared.efficiencies,
        shared.subscriptions,
        cluster_reader,
        diagnoser,
        signs_in=signs_in,
        in_shadow=in_shadow,
        owner=shared.owner,
        documentation_url=documentation_url,
        links=links,
        pod_logs=pod_logs,
    )

    @app.get("/", include_in_schema=False)
    async def home() -> Response:
        return RedirectResponse(f"{PREFIX}/home", 307)

    app.mount(PREFIX, create_pages(site, app.state.logins), "dashboard")


def create_pages(site: Site, logins: BrowserLogins | None) -> Starlette:
    """The pages, below ``/ui``. ``logins``: None where users sign in with a token only."""

    async def problem(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiProblem)
        record_change(
            request, error.detail
        )  # for the audit log, if the request was to change something
        if _for_script(request):
            return problems.respond(request, error)
        return await _failed(request, error.kind.status, error.detail, error.headers)

    async def unknown(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return await _failed(request, error.status_code, f"{request.url.path}: {error.detail}")

    async def refused(request: Request, error: Exception) -> Response:
        """For what a reader refuses: a parameter, or a stored document that this release does not accept."""
        return await problem(request, problems.wrong_document(error))

    async def too_many(request: Request, error: Exception) -> Response:
        assert isinstance(error, TooManyReviews)
        return await problem(request, problems.too_many_reviews(error))

    async def away(request: Request, error: Exception) -> Response:
        assert isinstance(error, problems.OUTAGES)
        if _for_script(request):
            return problems.outage(request, error)
        log.warning("page_not_made", path=request.url.path, error=str(error))
        detail = "The database or the API server does not respond. Running gangs are not affected. Try again in a moment."
        return await _failed(request, 503, detail, {"Retry-After": str(problems.RETRY_SECONDS)})

    async def _failed(
        request: Request, status: int, detail: str, headers: Mapping[str, str] | None = None
    ) -> Response:
        title = _TITLES.get(status, "The request failed")
        access = await site.known_access(request)
        page = site.page(
            request,
            "problem.html",
            access,
            status=status,
            still=status != 503,  # a page that was not available appears as soon as it is
            title=title,
            detail=detail,
        )
        page.headers.update(headers or {})
        return page

    pages = [
        *overview.routes(site),
        *queues.routes(site),
        *local_queues.routes(site),
        *cohorts.routes(site),
        *reservations.routes(site),
        *mine.routes(site),
        *workloads.routes(site),
        *suggestions.routes(site),
        *workload.routes(site),
        *pod_logs.routes(site),
        *timeline.routes(site),
        *nodes.routes(site),
        *evictions.routes(site),
        *decisions.routes(site),
        *budgets.routes(site),
        *usage.routes(site),
        *notifications.routes(site),
        *shadow.routes(site),
        *whatif.routes(site),
        *config.routes(site),
        *config_write.routes(site),
        *audit.routes(site),
        *search.routes(site),
        *freshness.routes(site),
        *session.routes(site, logins),
        Mount("/static", _Static(directory=STATIC), name="static"),
    ]
    return Starlette(
        routes=pages,
        exception_handlers={
            ApiProblem: problem,
            HTTPException: unknown,
            BadInput: refused,
            TooManyReviews: too_many,
            StoreUnavailable: away,
            ClusterUnavailable: away,
        },
        middleware=[
            Middleware(GZipMiddleware, minimum_size=_SHORTEST_COMPRESSED, compresslevel=_LEVEL)
        ],
    )


def _for_script(request: Request) -> bool:
    """Whether a script of a page asks for a stream, and not a browser for a page."""
    return "text/event-stream" in request.headers.get("accept", "")
