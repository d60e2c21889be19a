"""What-if plans: what would happen if something were submitted, configured, drained or bought. Nothing is written."""

# No postponed annotations here: see routes/config.py.

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, Final, TypeVar

from fastapi import APIRouter, Request
from starlette.requests import ClientDisconnect

from queuectl.api.access import Guard
from queuectl.api.body import Bodies
from queuectl.api.openapi import BODY_PROBLEMS, model_body, responses
from queuectl.api.plans import PlanBody, PlanView, named_namespaces, plan_view, with_manifests
from queuectl.api.ports import ClusterReader
from queuectl.api.problems import (
    RETRY_SECONDS,
    ApiProblem,
    ProblemType,
    configuration_unreadable,
    not_known_yet,
)
from queuectl.domain.errors import TookTooLong, UnreadableConfiguration
from queuectl.domain.identity import Right
from queuectl.domain.queries import DocumentKey
from queuectl.domain.what_if import WhatIf
from queuectl.objects.configuration.config_kinds import BY_KIND, PREFIX

P = ProblemType
PATH: Final = f"{PREFIX}/plans"

_Answer = TypeVar("_Answer")


def add_routes(
    routes: APIRouter, guard: Guard, bodies: Bodies, cluster_reader: ClusterReader | None
) -> None:
    """Offer the path. ``cluster_reader``: None in a process that does not watch the cluster."""

    @routes.post(
        PATH,
        tags=["Plans"],
        operation_id="createPlan",
        summary="A what-if plan; nothing is written",
        responses=responses(
            *BODY_PROBLEMS,
            P.INVALID_DOCUMENT,
            P.NOT_KNOWN_YET,
            P.TOOK_TOO_LONG,
        ),
        openapi_extra=model_body(PlanBody),
        dependencies=[guard.needs("create", "plans")],
    )
    async def create_plan(request: Request) -> PlanView:
        body = await bodies.model(request, PlanBody)
        await guard.require_all(request, _reads(body))
        if body.manifests.strip():
            given = body
            body = await bodies.work(lambda: with_manifests(given))
        try:
            trial = (
                await _while_connected(request, cluster_reader.try_out(_asked(body)))
                if cluster_reader is not None
                else None
            )
        except UnreadableConfiguration as error:
            raise configuration_unreadable() from error
        except TookTooLong as error:
            retry = {"Retry-After": str(RETRY_SECONDS)}
            raise ApiProblem(P.TOOK_TOO_LONG, str(error), retry) from error
        if trial is None:
            raise not_known_yet()
        answer = trial

        async def namespaces() -> Iterable[str]:
            return named_namespaces(answer)

        visible = await guard.visible(request, "list", "workloads", namespaces)
        return await bodies.work(lambda: plan_view(answer, visible))


async def _while_connected(request: Request, answer: Coroutine[Any, Any, _Answer]) -> _Answer:
    """The answer. It is canceled if its caller disconnects, so that the questions of others begin.

    Raises:
        ClientDisconnect: the caller disconnected before the answer.
    """
    answering = asyncio.create_task(answer)
    leaving = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise ClientDisconnect
        return await answering
    finally:
        answering.cancel()
        leaving.cancel()
        await asyncio.wait({answering, leaving})


async def _disconnected(request: Request) -> None:
    """Return when the client has disconnected. The body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _reads(body: PlanBody) -> list[Right]:
    """The rights to read the objects that a question deletes: the answer shows whether they exist."""
    return [
        Right("get", kind.plural, (one.namespace or "") if kind.namespaced else "", one.name)
        for one in body.delete
        if (kind := BY_KIND.get(one.kind)) is not None
    ]


def _asked(body: PlanBody) -> WhatIf:
    return WhatIf(
        submit=body.submit,
        config=body.config,
        delete=[DocumentKey(one.kind, one.namespace or "", one.name) for one in body.delete],
        drain=body.drain,
        add=[(one.like, one.count) for one in body.add],
    )
