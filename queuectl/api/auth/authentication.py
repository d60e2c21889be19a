"""Authentication of callers: a token in ``Authorization: Bearer``, or the session of a browser.

Every request needs a caller, except for the paths of :class:`Open`. A browser sends its cookie with requests of other sites
too. So a change with a session needs the browser's statement that a page of the dashboard sent it, and a header that only
such a page can set.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

from queuectl.api import problems
from queuectl.api.access import ANONYMOUS, set_caller, set_credential_check
from queuectl.api.auth import origin
from queuectl.api.auth.limits import address_of
from queuectl.api.auth.sessions import SessionService
from queuectl.api.auth.tokens import expiry
from queuectl.api.kinds import PREFIX
from queuectl.api.problems import Problem, ProblemType
from queuectl.control.questions.throttle import asking
from queuectl.domain.identity import Caller

PROOF: Final = "X-Queuectl-Session"
SESSION_PATH: Final = f"{PREFIX}/session"
_CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="queuectl"'}
_ALWAYS: Final = frozenset(
    {
        ("GET", "/healthz"),
        ("GET", "/readyz"),
        ("GET", f"{PREFIX}/openapi.json"),
        ("POST", SESSION_PATH),
    }
)


@dataclass(frozen=True, slots=True)
class OpenPaths:
    """Paths that need no authentication, in addition to health and the description of the API.

    Attributes:
        below: prefixes of paths that are open to read: style sheets, the sign-in page.
        sign_in: path to which a browser without a session is redirected; empty = none.
    """

    below: tuple[str, ...] = ()
    sign_in: str = ""

    def allows(self, method: str, path: str) -> bool:
        """Whether a request needs no authentication."""
        reading = method in ("GET", "HEAD")
        return (method, path) in _ALWAYS or (reading and path.startswith(self.below))


class Authentication:
    """Determines the caller of each request, and refuses requests without one."""

    def __init__(
        self,
        app: ASGIApp,
        session_service: SessionService,
        open_paths: OpenPaths,
        seen: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        """``seen``: called with the name and the address of each caller."""
        self._seen = seen
        self._app = app
        self._session_service = session_service
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        try:
            caller = await self._caller(request)
        except Problem as problem:
            await self._refuse(request, problem)(scope, receive, send)
        except problems.OUTAGES as error:
            await problems.outage(request, error)(scope, receive, send)
        else:
            set_caller(scope, caller)
            if caller is not ANONYMOUS:
                set_credential_check(scope, partial(self._still, request, caller))
                asking.set(caller.name)
                self._seen(caller.name, address_of(request))
            named = {} if caller is ANONYMOUS else {"caller": caller.name}
            with bound_contextvars(**named):
                await self._app(scope, receive, send)

    async def _caller(self, request: Request) -> Caller:
        """Raises Problem."""
        if self._open_paths.allows(request.method, request.url.path):
            if request.method in origin.CHANGES and origin.foreign(request.headers):
                raise Problem(
                    ProblemType.FOREIGN_ORIGIN, "a page of another site cannot open a session"
                )
            return ANONYMOUS
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme:
            caller = (
                await self._session_service.who(request, token.strip())
                if scheme.lower() == "bearer"
                else None
            )
            if caller is None:
                detail = "the Authorization header has no valid token of the cluster"
                raise Problem(ProblemType.UNAUTHENTICATED, detail, _CHALLENGE)
            return caller
        session = await self._session_service.find(request)
        if session is None:
            detail = "send a token as Authorization: Bearer, or sign in"
            raise Problem(ProblemType.UNAUTHENTICATED, detail, _CHALLENGE)
        if request.method in origin.CHANGES:
            _own_page(request)
        return session.caller

    async def _still(self, request: Request, caller: Caller) -> bool:
        """Whether the credentials are still valid: the caller has not signed out, and the token is neither revoked nor expired."""
        _, _, token = request.headers.get("authorization", "").partition(" ")
        ends = expiry(token.strip()) if token else None
        if ends is not None and ends <= time.time():
            return False
        try:
            return await self._caller(request) == caller
        except Problem:
            return False

    def _refuse(self, request: Request, problem: Problem) -> Response:
        """The answer to a refused request; a browser that opens a page is redirected to the sign-in page."""
        wants_page = request.method == "GET" and "text/html" in request.headers.get("accept", "")
        unknown = problem.kind is ProblemType.UNAUTHENTICATED
        if unknown and wants_page and self._open_paths.sign_in:
            wanted = f"{request.url.path}?{request.url.query}".removesuffix("?")
            return RedirectResponse(
                f"{self._open_paths.sign_in}?next={quote(wanted, safe='')}", 303
            )
        return problems.respond(request, problem)


def _own_page(request: Request) -> None:
    """Raise Problem unless a page of the dashboard sent the request."""
    headers = request.headers
    if not origin.declared(headers) or origin.foreign(headers):
        detail = "a page of another site cannot make changes with a session"
        raise Problem(ProblemType.FOREIGN_ORIGIN, detail)
    if headers.get(PROOF) != "1":
        raise Problem(
            ProblemType.FOREIGN_ORIGIN, f"a change with a session needs the header {PROOF}: 1"
        )
