"""The webhook: its process, its HTTP application, and its answers to the AdmissionReviews of the API server.

The application serves ``POST /mutate/POLICY``, ``GET /readyz`` and ``GET /metrics``.
"""

from __future__ import annotations

import asyncio
import base64
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from queuectl.api.connections import ConnectionLimits
from queuectl.api.server import Certificate, WebServer
from queuectl.cel.expression import EvaluationError
from queuectl.cluster.client import Api
from queuectl.cluster.connection import Connection
from queuectl.cluster.writes import NAME, PATH
from queuectl.control.certificate_keeper import CertificateKeeper
from queuectl.control.listen_address import ListenAddress
from queuectl.domain.containment import Containment
from queuectl.domain.errors import BadInput
from queuectl.telemetry.containment import ContainmentMetrics
from queuectl.webhook.ca_bundle import in_configuration
from queuectl.webhook.mutations import Mutation, read_mutations

# ---- The process

_LIMITS: Final = ConnectionLimits(of_address=None)  # its clients are a few API servers
IF_MISSING: Final = "set the value mutation of the chart to webhook, or apply deploy/older-servers"


@dataclass(frozen=True)
class WebhookSettings:
    """The options of the command line.

    Attributes:
        listen: where it listens.
        namespace: of its Secret.
        hosts: names and addresses of all replicas, for the certificate.
        policies: file with the policies that it evaluates.
    """

    listen: ListenAddress
    namespace: str
    hosts: Sequence[str]
    policies: Path


async def serve(
    settings: WebhookSettings, stop: asyncio.Event, listening: Callable[[str], None]
) -> None:
    """Serve until ``stop`` is set. ``listening`` is called with the URL.

    Raises:
        QueuectlError: the address, the credentials, the policies or the Secret cannot be used.
    """
    by_policy = read_mutations(settings.policies)
    registry = CollectorRegistry()
    metrics = ContainmentMetrics(registry)
    containment = Containment(time.time, metrics.report)
    metrics.watch(containment)
    api = await Api.connect(Connection())
    try:
        with tempfile.TemporaryDirectory(prefix="queuectl-webhook-") as folder:
            files = Certificate(Path(folder) / "tls.crt", Path(folder) / "tls.key")
            keeper = CertificateKeeper(
                api,
                settings.namespace,
                NAME,
                settings.hosts,
                files,
                in_configuration(api),
                containment,
                if_missing=IF_MISSING,
            )
            await keeper.start()
            server = WebServer(
                application(by_policy, registry), settings.listen, files, limits=_LIMITS
            )
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(server.run()), group.create_task(keeper.run())]
                listening(server.url)
                await stop.wait()
                for task in tasks:
                    task.cancel()
    finally:
        await api.close()


# ---- The application

LARGEST: Final = 8 << 20
"""Bytes of a request. The API server accepts objects of 3 MiB."""
SMALL: Final = 64 << 10
"""Bytes of a request that is read whatever others are being read: nearly all objects have fewer."""
TOGETHER: Final = 4 * LARGEST
"""Bytes of all requests that are being read, without the first :data:`SMALL` of each."""


def application(mutations: Mapping[str, Mutation], registry: CollectorRegistry) -> Starlette:
    """The application for these mutations, by the name of their policy, with the metrics of the registry."""
    bodies = _Bodies()

    async def mutate(request: Request) -> Response:
        mutation = mutations.get(request.path_params["policy"])
        if mutation is None:
            raise HTTPException(404)
        try:
            body = answer(mutation, await bodies.read(request))
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


class _Bodies:
    """The requests that are being read. Any pod can send some, so their memory is bounded together."""

    def __init__(self) -> None:
        self._large = 0

    async def read(self, request: Request) -> bytes:
        body, counted = bytearray(), 0
        try:
            async for part in request.stream():
                body += part
                if len(body) > LARGEST:
                    raise HTTPException(413)
                more = max(0, len(body) - SMALL) - counted
                counted += more
                self._large += more
                if self._large > TOGETHER:
                    raise HTTPException(503, "too many large requests at once")
        except ClientDisconnect as error:
            raise HTTPException(400) from error
        finally:
            self._large -= counted
        return bytes(body)


# ---- Answers

_API: Final = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
_log = structlog.get_logger(source="queuectl.webhook")


class _Request(msgspec.Struct, rename="camel"):
    uid: str
    operation: str
    user_info: dict[str, Any]
    object: dict[str, Any]
    namespace: str = ""
    resource: dict[str, Any] = {}
    old_object: dict[str, Any] | None = None


class _Review(msgspec.Struct):
    request: _Request


_read = msgspec.json.Decoder(_Review).decode


def answer(mutation: Mutation, body: bytes) -> bytes:
    """The AdmissionReview with the response.

    An object that the policy cannot be evaluated for is refused, as the API server refuses it for ``failurePolicy: Fail``.

    Raises:
        BadInput: the body is not an AdmissionReview of a new object.
    """
    try:
        request = _read(body).request
    except msgspec.MsgspecError as error:
        raise BadInput(f"not an AdmissionReview of a new object: {error}") from error
    except RecursionError as error:
        raise BadInput("the object is nested too deeply") from error
    return msgspec.json.encode({**_API, "response": _response(mutation, request)})


def _response(mutation: Mutation, request: _Request) -> Mapping[str, Any]:
    try:
        patch = mutation.patch(
            request.object,
            {
                "userInfo": request.user_info,
                "operation": request.operation,
                "namespace": request.namespace,
                "resource": request.resource,
            },
            request.old_object,
        )
    except EvaluationError as error:
        _log.warning("mutation_failed", policy=mutation.name, error=str(error))
        status = {"code": 422, "reason": "Invalid", "message": str(error)}
        return {"uid": request.uid, "allowed": False, "status": status}
    encoded = base64.b64encode(msgspec.json.encode(patch)).decode()
    return {"uid": request.uid, "allowed": True, "patchType": "JSONPatch", "patch": encoded}
