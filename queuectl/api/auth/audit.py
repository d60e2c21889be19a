"""The audit log: each request that changes something has a line.

The line is written, and committed, before the request does anything, and completed before it is answered. So nothing
takes effect without a line: if the line cannot be written, the request is refused. A dry run has no line. A line without a status is a request with an
unknown outcome, because the process or the database stopped in between.
"""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import urlencode

import structlog
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from queuectl.api import problems
from queuectl.api.access import caller_of
from queuectl.api.auth.authentication import CHANGES
from queuectl.api.auth.requests import request_id_of
from queuectl.db.ports import AuditStore
from queuectl.domain.audit import AuditLine, RequestOutcome
from queuectl.domain.errors import StoreUnavailable

_LONGEST: Final = 2000  # characters of a path or detail
_KEY: Final = "queuectl.done"
_OPERATION: Final = "queuectl.operation"
_KEPT: Final = {"dry_run", "kind"}
"""Query parameters of writes. Other parameters, such as a token in the wrong place, are not logged."""
_TRUE: Final = frozenset({"1", "on", "t", "true", "y", "yes"})
"""The words that pydantic reads as true."""
_DAY: Final = 86400.0
_POLL_SECONDS: Final = 3600.0
_AGAIN_SECONDS: Final = 1.0  # between batches

_log = structlog.get_logger(source="queuectl.api")


def record_change(request: Request, what: str) -> None:
    """Record the change of a request for its line."""
    request.scope[_KEY] = what


def record_operation(request: Request, operation: str) -> None:
    """Record the operation of the API that a form of the dashboard requests, for its line."""
    request.scope[_OPERATION] = operation


class Audit:
    """Writes the lines."""

    def __init__(
        self,
        app: ASGIApp,
        audit_store: AuditStore,
        harmless: tuple[str, ...] = (),
    ) -> None:
        """``harmless``: paths below which requests change nothing, with any method."""
        self._app = app
        self._audit_store = audit_store
        self._harmless = harmless

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if (
            scope["type"] != "http"
            or scope["method"] not in CHANGES
            or scope["path"] in self._harmless
            or _is_dry_run(scope)
        ):
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        line = self._line(request)
        try:
            number = await self._audit_store.begin(line)
        except StoreUnavailable as error:
            await problems.outage(request, error)(scope, receive, send)
            return
        answered = False

        async def answer(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start" and not answered:
                answered = True
                await self._end(number, line, scope, message["status"])
            await send(message)

        try:
            await self._app(scope, receive, answer)
        except Exception:  # a defect: answered further out
            if not answered:
                await self._end(number, line, scope, 500)
            raise

    def _line(self, request: Request) -> AuditLine:
        caller = caller_of(request)
        query = urlencode([item for item in request.query_params.multi_items() if item[0] in _KEPT])
        path = request.url.path + (f"?{query}" if query else "")
        return AuditLine(
            0,
            0.0,  # the store assigns the time
            request_id_of(request.scope),
            caller.name,
            caller.groups,
            request.method,
            path[:_LONGEST],
        )

    async def _end(self, number: int, line: AuditLine, scope: Scope, status: int) -> None:
        own: str = scope.get(_OPERATION, "")
        operation = getattr(scope.get("route"), "operation_id", None) or own
        detail = (problems.refusal_of(scope) or scope.get(_KEY, ""))[:_LONGEST]
        fields = {"method": line.method, "path": scope["path"], "status": status}
        _log.info("api_write", **fields)
        try:
            await self._audit_store.end(number, RequestOutcome(operation, status, detail))
        except StoreUnavailable as error:
            _log.warning("audit_not_completed", line=number, error=str(error), **fields)


def _is_dry_run(scope: Scope) -> bool:
    """Whether a request changes nothing: it has ``dry_run``, and its route reads that. Each other request has a line before it acts."""
    asked = QueryParams(scope.get("query_string", b"")).get("dry_run", "")
    if asked.lower() not in _TRUE:
        return False
    for route in scope["app"].routes:
        if route.matches(scope)[0] is Match.FULL:
            dependant = getattr(route, "dependant", None)
            fields = dependant.query_params if dependant is not None else ()
            return any(field.alias == "dry_run" for field in fields)
    return False


async def forget_old(audit_store: AuditStore, days: float) -> None:
    """Delete older lines until canceled. Each process can run it."""
    while True:
        deleted = 0
        try:
            deleted = await audit_store.prune(days * _DAY)
        except StoreUnavailable as error:
            _log.info("audit_not_pruned", error=str(error))
        await asyncio.sleep(_AGAIN_SECONDS if deleted else _POLL_SECONDS)
