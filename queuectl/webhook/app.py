"""The HTTP application of the webhook: ``POST /mutate/POLICY``, ``GET /readyz`` and ``GET /metrics``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from queuectl.cluster.webhooks import PATH
from queuectl.domain.errors import BadInput
from queuectl.webhook.mutations import Mutation
from queuectl.webhook.reviews import answer

LARGEST: Final = 8 << 20
"""Bytes of a request. The API server accepts objects of 3 MiB."""


def application(mutations: Mapping[str, Mutation], registry: CollectorRegistry) -> Starlette:
    """The application for these mutations, by the name of their policy, with the metrics of the registry."""

    async def mutate(request: Request) -> Response:
        mutation = mutations.get(request.path_params["policy"])
        if mutation is None:
            raise HTTPException(404)
        try:
            body = answer(mutation, await _body(request))
        except BadInput as error:
            raise HTTPException(400, str(error)) from error
        return Response(body, media_type="application/json")

    async def ready(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return Starlette(
        routes=[
            Route(PATH + "{policy}", mutate, methods=["POST"]),
            Route("/readyz", ready),
            Route("/metrics", metrics),
        ]
    )


async def _body(request: Request) -> bytes:
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > LARGEST:
                raise HTTPException(413)
    except ClientDisconnect as error:
        raise HTTPException(400) from error
    return bytes(body)
