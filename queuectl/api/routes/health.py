"""``/metrics``, ``/healthz`` and ``/readyz``: on the port of the API, and each without the API on its own port."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, Request
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.responses import JSONResponse, Response

from queuectl.api.access import Guard
from queuectl.api.ports import HealthChecks
from queuectl.api.problems import ApiProblem, ProblemType, respond


def add_metrics(routes: APIRouter, guard: Guard, registry: CollectorRegistry) -> None:
    """Add ``/metrics``. Like health, it is for machines and not in the OpenAPI description."""

    # Not async: encoding thousands of series runs in a thread, alongside the loop.
    @routes.get("/metrics", include_in_schema=False, dependencies=[guard.needs("get", "metrics")])
    def metrics(request: Request) -> Response:
        encode, media_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"Content-Type": media_type})


def add_health(routes: APIRouter, health: HealthChecks) -> None:
    """Add ``/healthz`` and ``/readyz``."""

    @routes.get("/healthz", include_in_schema=False)
    async def live(request: Request) -> Response:
        return _verdict(request, ProblemType.NOT_LIVE, await health.live())

    @routes.get("/readyz", include_in_schema=False)
    async def ready(request: Request) -> Response:
        return _verdict(request, ProblemType.NOT_READY, await health.ready())


def _verdict(request: Request, kind: ProblemType, blockers: Sequence[str]) -> Response:
    if not blockers:
        return JSONResponse({"status": "ok"})
    return respond(request, ApiProblem(kind, "; ".join(blockers), blockers=list(blockers)))
