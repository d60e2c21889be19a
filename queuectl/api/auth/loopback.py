"""Protection without authentication: only programs of this machine get answers, and no page of another site.

Another site can resolve a name of its own to 127.0.0.1, and its pages can send simple POSTs there. The first is refused by
its Host, the second by the origin that the browser states.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from queuectl.api import problems
from queuectl.api.auth import authentication
from queuectl.api.problems import ApiProblem, ProblemType
from queuectl.api.server import ListenAddress


class ThisMachine:
    """Refuses requests whose Host is not a loopback address, and changes by pages of other sites."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        refusal = _refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await problems.respond(Request(scope), refusal)(scope, receive, send)


def _refusal(scope: Scope) -> ApiProblem | None:
    headers = Headers(scope=scope)
    host = headers.get("host", "")
    if not ListenAddress(_hostname(host), 0).loopback:
        detail = f"the Host {host!r} is not this machine; use 127.0.0.1 or localhost"
        return ApiProblem(ProblemType.MISDIRECTED, detail)
    if scope["method"] in authentication.CHANGES and authentication.from_another_site(headers):
        return ApiProblem(ProblemType.FOREIGN_ORIGIN, "a page of another site cannot make changes")
    return None


def _hostname(host: str) -> str:
    """A Host header without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
