"""Stop and resume of ClusterQueues and LocalQueues: each with its own right, like ``create clusterqueues/stop``."""

# No postponed annotations here: see routes/config.py.

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request

from queuectl.api.access import Guard
from queuectl.api.body import read_small
from queuectl.api.openapi import BODY_PROBLEMS, model_body, responses
from queuectl.api.params import key_in_path
from queuectl.api.ports import Diagnoser
from queuectl.api.problems import ProblemType
from queuectl.api.queue_stops import QueueStops, QueueStopView, ResumeBody, StopBody
from queuectl.db.ports import ApiStore
from queuectl.domain.queries import DocumentKey
from queuectl.domain.queues import StopPolicy
from queuectl.objects.configuration.config_kinds import BY_KIND, ConfigKind
from queuectl.objects.configuration.owners import Owner

P = ProblemType
Preview = Annotated[
    bool,
    Query(
        alias="dry_run",
        description="Change nothing: show the change, and the gangs that would be evicted.",
    ),
]


def add_routes(
    routes: APIRouter,
    guard: Guard,
    store: ApiStore,
    diagnoser: Diagnoser | None,
    owner: Owner,
) -> None:
    """Offer the paths of both kinds. ``owner``: of the configuration."""
    stops = QueueStops(store, diagnoser, owner)
    for kind in (BY_KIND["ClusterQueue"], BY_KIND["LocalQueue"]):
        _add(routes, guard, kind, stops)


def _add(routes: APIRouter, guard: Guard, kind: ConfigKind, stops: QueueStops) -> None:
    Key = Annotated[DocumentKey, Depends(key_in_path(kind))]  # noqa: N806 - a type

    async def stop(request: Request, key: Key, dry_run: Preview = False) -> QueueStopView:
        body = await read_small(request, StopBody) or StopBody()
        policy = StopPolicy.HOLD_AND_DRAIN if body.drain else StopPolicy.HOLD
        if dry_run:
            return await stops.preview(key, policy)
        return await stops.set(request, key, policy, body.reason)

    async def resume(request: Request, key: Key, dry_run: Preview = False) -> QueueStopView:
        body = await read_small(request, ResumeBody) or ResumeBody()
        if dry_run:
            return await stops.preview(key, StopPolicy.NONE)
        return await stops.set(request, key, StopPolicy.NONE, body.reason)

    summaries: dict[str, tuple[Any, Any, str]] = {
        "stop": (stop, StopBody, f"Stop a {kind.kind}: no gang of it starts until it is resumed"),
        "resume": (resume, ResumeBody, f"Resume a {kind.kind}: its gangs start again"),
    }
    for verb, (endpoint, body, summary) in summaries.items():
        routes.add_api_route(
            f"{kind.path('{namespace}', '{name}')}/{verb}",
            endpoint,
            methods=["POST"],
            dependencies=[guard.needs("create", f"{kind.plural}/{verb}")],
            tags=[kind.kind],
            operation_id=f"{verb}{kind.kind}",
            summary=summary,
            response_model=QueueStopView,
            responses=responses(
                *BODY_PROBLEMS,
                P.NOT_FOUND,
                P.NOT_THE_OWNER,
                P.PRECONDITION_FAILED,
                P.INVALID_DOCUMENT,
            ),
            openapi_extra=model_body(body, required=False),
        )
