"""The applications: the REST API, metrics alone, and health alone.

The middleware before the routes is in :mod:`queuectl.api.auth.layers`. Without authentication each caller has all rights, and
only programs of this machine get answers.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

import orjson
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response

from queuectl.api import problems
from queuectl.api.access import Guard
from queuectl.api.auth import layers
from queuectl.api.auth.layers import AuthenticationLayer
from queuectl.api.body import Bodies
from queuectl.api.database_check import DatabaseCheck
from queuectl.api.feed import EventFeed
from queuectl.api.job_efficiency import JobEfficiencies
from queuectl.api.oidc.browser import BrowserLogins
from queuectl.api.openapi import describe
from queuectl.api.params import StrictRoute
from queuectl.api.ports import ClusterReader, Diagnoser, HealthChecks
from queuectl.api.reading import CurrentConfiguration
from queuectl.api.routes import (
    audit,
    budgets,
    config,
    configuration_owner,
    decisions,
    dryrun,
    efficiency,
    events,
    invariants,
    nodes,
    pastuse,
    plans,
    queue_stops,
    queue_use,
    recorded_jobs,
    refused,
    search,
    session,
    set_aside,
    shadow,
    subscriptions,
    unmanaged,
    usage,
    workloads,
)
from queuectl.api.routes import health as health_routes
from queuectl.api.routes.events import StreamLimit
from queuectl.api.search import WorkloadSearch
from queuectl.api.subscriptions import Subscriptions
from queuectl.api.usage_history import UsageHistory
from queuectl.db.ports import ApiStore
from queuectl.domain.job_usage import NO_SOURCES, UsageSources
from queuectl.notify.receivers_file import ReceiverList
from queuectl.objects.configuration.config_kinds import CONFIG_KINDS, PREFIX
from queuectl.objects.configuration.owners import Owner

_ABOUT: Final = """Configuration and workloads of queuectl.

Configuration documents have Kueue's shape. Every error is problem+json (RFC 9457). A caller is known by a token of the cluster
(TokenReview) or by an ID token of the configured OpenID Connect issuer. The cluster's RBAC decides the rights of the caller:
SubjectAccessReview on resources of the group queuectl.dev."""

_DESCRIPTION: Final[list[bytes]] = []


def create_app(
    store: ApiStore,
    health: HealthChecks,
    registry: CollectorRegistry,
    diagnoser: Diagnoser | None = None,
    *,
    cluster_reader: ClusterReader | None = None,
    authenticated: AuthenticationLayer | None = None,
    streams: StreamLimit | None = None,
    owner: Owner = Owner.DATABASE,
    sources: UsageSources = NO_SOURCES,
    receivers: ReceiverList | None = None,
) -> FastAPI:
    """The REST API with metrics and health. ``app.state`` has the parts that added routes share.

    Args:
        store: what it reads and writes.
        health: of this process.
        registry: of its metrics.
        diagnoser: None where no controller runs.
        cluster_reader: likewise.
        authenticated: how callers authenticate; None = they do not, for loopback only.
        streams: limit of event streams; None = the default.
        owner: of the configuration; what objects of the cluster own is not written here.
        sources: of measurements of workloads that the controller has.
        receivers: of events; None = no receivers.
    """
    app = _bare("queuectl")
    app.state.owner = owner
    guard = app.state.guard = Guard(authenticated.access if authenticated else None)
    bodies = app.state.bodies = Bodies()
    session_service = layers.install(
        app, store, authenticated, keeps_addresses=receivers is not None
    )
    app.state.logins = None
    if (
        session_service is not None
        and authenticated is not None
        and authenticated.login is not None
    ):
        app.state.logins = BrowserLogins(authenticated.login, session_service)
    for kind in CONFIG_KINDS:
        config.add_routes(app.router, guard, bodies, kind, store, diagnoser, owner)
    queue_stops.add_routes(app.router, guard, store, diagnoser, owner)
    configuration_owner.add_routes(app.router, guard, store, owner)
    dryrun.add_routes(app.router, guard, bodies, store, diagnoser, owner)
    stated = app.state.stated = CurrentConfiguration(store)
    queue_use.add_routes(app.router, guard, store, stated, cluster_reader)
    pastuse.add_routes(app.router, guard, store, stated)
    history = app.state.history = UsageHistory(store)
    usage.add_routes(app.router, guard, store, stated, history)
    unmanaged.add_routes(app.router, guard, store, cluster_reader)
    budgets.add_routes(app.router, guard, store, cluster_reader)
    efficiency.add_routes(app.router, guard, cluster_reader)
    shadow.add_routes(app.router, guard, store)
    recorded_jobs.add_routes(app.router, guard, store)
    feed = app.state.feed = EventFeed(store)
    database = app.state.database = DatabaseCheck(store)
    events.add_routes(app.router, guard, store, feed, streams or StreamLimit(), database)
    nodes.add_routes(app.router, guard, stated, cluster_reader)
    plans.add_routes(app.router, guard, bodies, cluster_reader)
    decisions.add_routes(app.router, guard, store)
    refused.add_routes(app.router, guard, store)
    set_aside.add_routes(app.router, guard, store)
    efficiencies = app.state.efficiencies = JobEfficiencies(store, stated, diagnoser, sources)
    workloads.add_routes(app.router, guard, store, efficiencies, diagnoser, cluster_reader)
    workload_search = app.state.search = WorkloadSearch(store)
    search.add_routes(app.router, guard, store, workload_search)
    subscribed = app.state.subscriptions = Subscriptions(guard, store, receivers or ReceiverList())
    subscriptions.add_routes(app.router, guard, store, subscribed)
    session.add_routes(app.router, session_service)
    audit.add_routes(app.router, guard, store)
    invariants.add_routes(app.router, guard, diagnoser)
    health_routes.add_health(app.router, health)
    health_routes.add_metrics(app.router, guard, registry)
    app.openapi = partial(describe, app)  # type: ignore[method-assign]  # FastAPI's documented way
    _add_description(app)
    return app


def _add_description(app: FastAPI) -> None:
    """Offer the description. It follows from the code alone, so a process makes it once.

    To make it takes half a second, so the first request does so in a thread, and the controller starts without it.
    """
    once = asyncio.Lock()

    async def description(_: Request) -> Response:
        async with once:
            if not _DESCRIPTION:
                _DESCRIPTION.append(await asyncio.to_thread(lambda: orjson.dumps(app.openapi())))
        return Response(_DESCRIPTION[0], media_type="application/json")

    app.add_route(f"{PREFIX}/openapi.json", description, include_in_schema=False)


def create_metrics_app(registry: CollectorRegistry) -> FastAPI:
    """Metrics alone: nothing in it can be changed, so others may reach it."""
    app = _bare("queuectl metrics")
    health_routes.add_metrics(app.router, Guard(), registry)
    return app


def create_health_app(health: HealthChecks) -> FastAPI:
    """Health alone."""
    app = _bare("queuectl health")
    health_routes.add_health(app.router, health)
    return app


def _bare(title: str) -> FastAPI:
    app = FastAPI(
        title=title,
        version="v1",
        description=_ABOUT,
        openapi_url=None,
        docs_url=None,  # both would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.router.route_class = StrictRoute
    problems.install(app)
    return app
