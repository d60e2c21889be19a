"""The outermost layer: an id for every request, and security headers for every answer.

The id is the client's ``X-Request-Id`` if it has a valid form, otherwise a new one. It is in the answer, in each log event of the
request, and in the audit log.
"""

from __future__ import annotations

import re
from typing import Final
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

from queuectl.objects.configuration.config_kinds import PREFIX

HEADER: Final = "X-Request-Id"
_SANE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=-]{0,127}")
_KEY: Final = "queuectl.request_id"
_PAGES: Final = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
_DATA: Final = "default-src 'none'; frame-ancestors 'none'"
_CAREFUL: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def request_id_of(scope: Scope) -> str:
    """The id of a request; empty before it is set."""
    known: str = scope.get(_KEY, "")
    return known


def careful_headers(scope: Scope) -> dict[str, str]:
    """Security headers of every answer. A route can set its own header for caching."""
    data = str(scope["path"]).startswith(f"{PREFIX}/")
    known = {**_CAREFUL, "Content-Security-Policy": _DATA if data else _PAGES}
    if data:
        known["Cache-Control"] = "no-store"
    if request_id := request_id_of(scope):
        known[HEADER] = request_id
    return known


class Requests:
    """Adds ids and headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        scope[_KEY] = given if _SANE.fullmatch(given) else str(uuid4())

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in careful_headers(scope).items():
                    headers.setdefault(name, value)
            await send(message)

        with bound_contextvars(request_id=scope[_KEY]):
            await self._app(scope, receive, answer)
