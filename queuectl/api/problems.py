"""Errors as problem+json (RFC 9457). docs/reference/problems.md explains each type; a type never changes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from queuectl.api.auth.requests import careful_headers, request_id_of
from queuectl.domain.errors import (
    BadInput,
    ClusterUnavailable,
    IssuerUnavailable,
    StoreUnavailable,
    TooManyReviews,
)
from queuectl.domain.requirements import requirement
from queuectl.objects.errors import DocumentError

MEDIA_TYPE: Final = "application/problem+json"
TYPE_BASE: Final = "https://queuectl.dev/problems/"
RETRY_SECONDS: Final = 2
_DETAIL: Final = "queuectl.problem"
Outage = StoreUnavailable | ClusterUnavailable | IssuerUnavailable
OUTAGES: Final = (StoreUnavailable, ClusterUnavailable, IssuerUnavailable)
"""Errors of which no caller is the cause: the request can be sent again."""

_log = structlog.get_logger(source="queuectl.api")


class ProblemType(Enum):
    """Slug of the type URI, HTTP status, title."""

    MALFORMED_BODY = ("malformed-body", 400, "The body cannot be read")
    UNAUTHENTICATED = ("unauthenticated", 401, "Authentication is required")
    FORBIDDEN = ("forbidden", 403, "You do not have this right")
    FOREIGN_ORIGIN = ("foreign-origin", 403, "The request is from another site")
    NOT_FOUND = ("not-found", 404, "The object does not exist")
    NO_SUCH_PATH = ("no-such-path", 404, "The path does not exist")
    METHOD_NOT_ALLOWED = ("method-not-allowed", 405, "The path does not support this method")
    AMBIGUOUS = ("ambiguous", 409, "Several objects have this name")
    NOT_THE_OWNER = (
        "not-the-owner",
        409,
        "Objects of the cluster are this configuration",
    )
    NOT_IN_THIS_STATE = ("not-in-this-state", 409, "The workload is in another state")
    PRECONDITION_FAILED = ("precondition-failed", 412, "The object has changed")
    BODY_TOO_LARGE = ("body-too-large", 413, "The body is too large")
    UNSUPPORTED_MEDIA_TYPE = ("unsupported-media-type", 415, "The body is neither JSON nor YAML")
    MISDIRECTED = ("misdirected-request", 421, "The request names another host")
    INVALID_DOCUMENT = ("invalid-document", 422, "The document is invalid")
    INVALID_PARAMETER = ("invalid-parameter", 422, "A parameter is invalid")
    REQUEST_ID_REUSED = ("request-id-reused", 422, "The request id was used for another request")
    TOO_MANY_REQUESTS = ("too-many-requests", 429, "Too many requests")
    PRECONDITION_REQUIRED = ("precondition-required", 428, "The header If-Match is required")
    INTERNAL = ("internal-error", 500, "Internal error")
    STORE_UNAVAILABLE = ("store-unavailable", 503, "The database is unavailable")
    CLUSTER_UNAVAILABLE = ("cluster-unavailable", 503, "The API server is unavailable")
    ISSUER_UNAVAILABLE = ("issuer-unavailable", 503, "The OpenID Connect issuer is unavailable")
    TOOK_TOO_LONG = ("took-too-long", 503, "The answer took too long")
    NOT_KNOWN_YET = ("not-known-yet", 503, "This replica has not read the cluster yet")
    NOT_READY = ("not-ready", 503, "Not ready")
    NOT_LIVE = ("not-live", 503, "Not live")

    def __init__(self, slug: str, status: int, title: str) -> None:
        self.slug = slug
        self.status = status
        self.title = title

    @property
    def uri(self) -> str:
        return TYPE_BASE + self.slug


class ApiProblem(Exception):
    """Raised anywhere below a request; ``members`` are added to the body."""

    def __init__(
        self,
        kind: ProblemType,
        detail: str,
        headers: Mapping[str, str] | None = None,
        **members: Any,
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.headers = headers
        self.members = members


def not_known_yet() -> ApiProblem:
    """For a replica that has not read the whole cluster yet."""
    return _not_known(
        "this replica has not read the whole cluster yet; try again, or ask another replica"
    )


def configuration_unreadable() -> ApiProblem:
    """For a stored configuration that this process cannot read. Only the log names the document: it can be of another team."""
    return _not_known("this process cannot read the configuration; its log has the reason")


def _not_known(detail: str) -> ApiProblem:
    return ApiProblem(ProblemType.NOT_KNOWN_YET, detail, {"Retry-After": str(RETRY_SECONDS)})


def wrong_parameter(field: str, reason: str, detail: str | None = None) -> ApiProblem:
    """For an invalid parameter, or an invalid member of a small body. ``detail`` is the sentence, if the reason is not one."""
    errors = [{"field": field, "reason": reason}]
    return ApiProblem(ProblemType.INVALID_PARAMETER, detail or reason, errors=errors)


def wrong_members(errors: list[dict[str, str]]) -> ApiProblem:
    """For invalid parameters, or members of a small body: ``field`` and ``reason`` of each error."""
    detail = "; ".join(f"{error['field']}: {error['reason']}" for error in errors)
    return ApiProblem(ProblemType.INVALID_PARAMETER, detail, errors=errors)


def wrong_fields(errors: Iterable[Mapping[str, Any]]) -> ApiProblem:
    """The same for errors of pydantic."""
    return wrong_members(
        [
            {"field": ".".join(map(str, error["loc"])), "reason": requirement(error)}
            for error in errors
        ]
    )


def wrong_document(error: Exception) -> ApiProblem:
    """For an invalid document."""
    field, reason = "", str(error)
    if isinstance(error, DocumentError):
        field, reason = error.field, error.reason
    errors = [{"field": field, "reason": reason}]
    return ApiProblem(ProblemType.INVALID_DOCUMENT, str(error), errors=errors)


def respond(request: Request, problem: ApiProblem) -> JSONResponse:
    """The problem as a response to this request."""
    kind = problem.kind
    body = {
        "type": kind.uri,
        "title": kind.title,
        "status": kind.status,
        "detail": problem.detail,
        "instance": request.url.path,
        **problem.members,
    }
    request.scope[_DETAIL] = problem.detail
    headers = dict(problem.headers or {})
    return JSONResponse(body, kind.status, headers=headers, media_type=MEDIA_TYPE)


def refusal_of(scope: Scope) -> str:
    """The detail of the problem with which a request was answered; empty if there was none."""
    detail: str = scope.get(_DETAIL, "")
    return detail


def too_many_reviews(error: TooManyReviews) -> ApiProblem:
    """For a caller that has used up its access reviews."""
    retry = {"Retry-After": str(math.ceil(error.retry_after or RETRY_SECONDS))}
    detail = f"{error}; name a namespace, or try again later"
    return ApiProblem(ProblemType.TOO_MANY_REQUESTS, detail, retry)


def outage(request: Request, error: Outage) -> JSONResponse:
    """The answer while the database, the API server or the OpenID Connect issuer is unavailable."""
    retry = {"Retry-After": str(RETRY_SECONDS)}
    if isinstance(error, StoreUnavailable):
        _log.warning("store_unavailable", path=request.url.path, error=str(error))
        detail = "the database does not answer; running workloads are not affected; try again"
        return respond(request, ApiProblem(ProblemType.STORE_UNAVAILABLE, detail, retry))
    if isinstance(error, IssuerUnavailable):
        detail = (
            f"ID tokens cannot be verified now ({error}); try again, or send a token of the cluster"
        )
        return respond(request, ApiProblem(ProblemType.ISSUER_UNAVAILABLE, detail, retry))
    if isinstance(error, TooManyReviews):
        return respond(request, too_many_reviews(error))
    _log.warning("cluster_unavailable", path=request.url.path, error=str(error))
    detail = "the API server does not answer, so your token and rights cannot be checked; try again"
    return respond(request, ApiProblem(ProblemType.CLUSTER_UNAVAILABLE, detail, retry))


def install(app: FastAPI) -> None:
    """Make every error of the application a problem."""
    app.add_exception_handler(ApiProblem, _problem)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(BadInput, _document)
    app.add_exception_handler(ClientDisconnect, _cut)
    for each in OUTAGES:
        app.add_exception_handler(each, _outage)
    app.add_exception_handler(Exception, _defect)


async def _problem(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiProblem)
    return respond(request, error)


async def _http(request: Request, error: Exception) -> JSONResponse:
    """Refusals of the router: unknown paths and methods, and bodies that cannot be read."""
    assert isinstance(error, HTTPException)
    if error.status_code == ProblemType.METHOD_NOT_ALLOWED.status:
        methods = _methods(request.app.routes, request)
        detail = f"{request.method} is not one of {', '.join(methods)}"
        allow = {"Allow": ", ".join(methods)}
        return respond(request, ApiProblem(ProblemType.METHOD_NOT_ALLOWED, detail, allow))
    if error.status_code == ProblemType.NO_SUCH_PATH.status:
        detail = f"{request.url.path} is not a path of this API; /api/v1/openapi.json lists all"
        return respond(request, ApiProblem(ProblemType.NO_SUCH_PATH, detail))
    return respond(request, ApiProblem(ProblemType.MALFORMED_BODY, str(error.detail)))


def _methods(routes: Sequence[BaseRoute], request: Request) -> list[str]:
    """All methods of a path: several routes can share it, and Allow must name the methods of all."""
    methods: set[str] = set()
    for route in routes:
        if route.matches(request.scope)[0] is Match.PARTIAL:
            methods |= getattr(route, "methods", None) or set()
    return sorted(methods)


async def _validation(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    below = [{**item, "loc": item["loc"][1:]} for item in error.errors()]
    return respond(request, wrong_fields(below))


async def _document(request: Request, error: Exception) -> JSONResponse:
    """For a document that its parser refused."""
    return respond(request, wrong_document(error))


async def _cut(request: Request, error: Exception) -> JSONResponse:
    """The client is disconnected; the answer is only for the audit log."""
    del error
    return respond(
        request,
        ApiProblem(ProblemType.MALFORMED_BODY, "the connection ended before the answer"),
    )


async def _outage(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, OUTAGES)
    return outage(request, error)


async def _defect(request: Request, error: Exception) -> JSONResponse:
    """Answers outside all middleware, so it adds the headers of the outermost middleware here."""
    request_id = request_id_of(request.scope)
    _log.error("api_defect", path=request.url.path, request_id=request_id, exc_info=error)
    headers = careful_headers(request.scope)
    return respond(request, ApiProblem(ProblemType.INTERNAL, "see the log of queuectl", headers))
