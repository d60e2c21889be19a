"""The two applications: the REST API, and metrics with health alone.

The API has no authentication yet, so it answers on loopback only (server.require_loopback), and only requests that name
a loopback host: otherwise any web page could reach it through the browser of who runs it, by pointing a name of its own
at 127.0.0.1.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from fastapi import FastAPI, Request
from prometheus_client import CollectorRegistry
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from queuectl.api import problems
from queuectl.api.kinds import CONFIG_KINDS, PREFIX
from queuectl.api.openapi import describe
from queuectl.api.ports import ApiStore, Diagnoser, Health
from queuectl.api.problems import Problem, ProblemType
from queuectl.api.routes import config, dryrun, pastuse, usage, workloads
from queuectl.api.routes import health as health_routes
from queuectl.api.server import Address

_ABOUT: Final = """Configuration and workloads of queuectl.

Configuration documents have Kueue's shape; workloads are read only. Every error is problem+json (RFC 9457)."""


def create_app(
    store: ApiStore,
    health: Health,
    registry: CollectorRegistry,
    diagnoser: Diagnoser | None = None,
) -> FastAPI:
    """The REST API with metrics and health; for loopback only. ``diagnoser``: None where no controller runs."""
    app = _bare("queuectl")
    for kind in CONFIG_KINDS:
        config.add_routes(app.router, kind, store, diagnoser)
    dryrun.add_routes(app.router, store, diagnoser)
    pastuse.add_routes(app.router, store)
    usage.add_routes(app.router, store)
    workloads.add_routes(app.router, store, diagnoser)
    health_routes.add_routes(app.router, health, registry)
    app.openapi = partial(describe, app)  # type: ignore[method-assign]  # FastAPI's documented way
    app.add_middleware(LoopbackHosts)
    return app


def create_metrics_app(health: Health, registry: CollectorRegistry) -> FastAPI:
    """Metrics and health alone: nothing in it can be changed, so others may reach it."""
    app = _bare("queuectl metrics and health", described=False)
    health_routes.add_routes(app.router, health, registry)
    return app


def _bare(title: str, *, described: bool = True) -> FastAPI:
    app = FastAPI(
        title=title,
        version="v1",
        description=_ABOUT,
        openapi_url=f"{PREFIX}/openapi.json" if described else None,
        docs_url=None,  # both would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    problems.install(app)
    return app


class LoopbackHosts:
    """Refuses requests whose Host is no loopback address."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http":
            host = Headers(scope=scope).get("host", "")
            if not Address(_hostname(host), 0).loopback:
                detail = f"the Host {host!r} is not this machine; use 127.0.0.1 or localhost"
                refusal = Problem(ProblemType.MISDIRECTED, detail)
                await problems.respond(Request(scope), refusal)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _hostname(host: str) -> str:
    """A Host header without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
