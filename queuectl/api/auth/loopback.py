"""Without authentication: this machine alone is answered, and no web page that somebody on it looks at.

A page of another site can point a name of its own at 127.0.0.1, and can send simple POSTs there. The first has a Host
that is not ours, of the second the browser says where it comes from.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from queuectl.api import problems
from queuectl.api.auth import origin
from queuectl.api.problems import Problem, ProblemType
from queuectl.api.server import Address


class ThisMachine:
    """Refuses requests whose Host is no loopback address, and changes that another site wants."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        refusal = _refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await problems.respond(Request(scope), refusal)(scope, receive, send)


def _refusal(scope: Scope) -> Problem | None:
    headers = Headers(scope=scope)
    host = headers.get("host", "")
    if not Address(_hostname(host), 0).loopback:
        detail = f"the Host {host!r} is not this machine; use 127.0.0.1 or localhost"
        return Problem(ProblemType.MISDIRECTED, detail)
    if scope["method"] in origin.CHANGES and origin.foreign(headers):
        return Problem(ProblemType.FOREIGN_ORIGIN, "another site may change nothing here")
    return None


def _hostname(host: str) -> str:
    """A Host header without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
