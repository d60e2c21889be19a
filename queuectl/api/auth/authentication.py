"""Authentication of callers: a token in ``Authorization: Bearer``, or the session of a browser.

Every request needs a caller, except for the paths of :class:`OpenPaths`. A browser sends its cookie with requests of other sites
too. So a change with a session needs the browser's statement that a page of the dashboard sent it, and a header that only
such a page can set.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

from queuectl.api import problems
from queuectl.api.access import ANONYMOUS, Identities, set_caller, set_credential_check
from queuectl.api.auth.limits import UnknownCallerLimit, address_of
from queuectl.api.problems import ApiProblem, ProblemType
from queuectl.db.ports import Sessions
from queuectl.domain.identity import LONGEST_TOKEN, Caller, Session
from queuectl.domain.notifications import NotificationStore
from queuectl.objects.configuration.config_kinds import PREFIX

# ---- Claims of tokens before verification


def unverified_claims(token: str) -> Mapping[str, Any]:
    """The claims of a JSON Web Token; empty for any other text. A client can write any: they decide no right."""
    parts = token.split(".")
    if len(parts) != 3 or len(token) > LONGEST_TOKEN:
        return {}
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}


def expiry(token: str) -> float | None:
    """When a token ends, in unix seconds; None if it has no such claim."""
    ends = unverified_claims(token).get("exp")
    try:
        return float(ends) if isinstance(ends, int | float) else None
    except OverflowError:
        return None


# ---- Requests from pages of other sites
#
# No answer grants another origin access (CORS), so such a page cannot read an answer. It could send simple POSTs to a server
# that the user's browser can reach, with the user's cookie.

CHANGES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
"""Methods of requests that can change something."""


def from_another_site(headers: Headers) -> bool:
    """Whether the browser states another origin. Other programs state none."""
    site = headers.get("sec-fetch-site")
    if site not in (None, "same-origin", "none"):
        return True
    origin = headers.get("origin")
    return origin is not None and _host(origin) != headers.get("host", "").lower()


def declared(headers: Headers) -> bool:
    """Whether the request states an origin. Every browser does so for a request that can change something."""
    return "origin" in headers or "sec-fetch-site" in headers


def _host(origin: str) -> str:
    """Host and port. The scheme is not compared, because an ingress can terminate TLS."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


# ---- Sessions of browsers
#
# The token is not stored. So a session remains valid if its token is revoked, until the token expires and at most for
# :data:`LONGEST` seconds. The rights of its caller are checked with each request.

LONGEST: Final = 8 * 3600.0
_Found = TypeVar("_Found")


class SessionService:
    """Opens, finds and closes sessions. Methods may raise StoreUnavailable.

    Attributes:
        secure: browsers use TLS.
        cookie: name of the cookie of a session.
    """

    def __init__(
        self,
        identities: Identities,
        sessions: Sessions,
        addresses: NotificationStore | None,
        unknown_callers: UnknownCallerLimit,
        *,
        secure: bool,
    ) -> None:
        """``addresses``: where the verified mail addresses of users are kept; None = they are not.

        ``secure``: browsers use TLS, so they send the cookie over TLS only.
        """
        self._identities = identities
        self._sessions = sessions
        self._addresses = addresses
        self._unknown_callers = unknown_callers
        self.secure = secure
        # Browsers accept a cookie with this prefix from this host over TLS only, so no other host can replace it.
        self.cookie = "__Host-queuectl" if secure else "queuectl"

    async def who(self, request: Request, token: str) -> Caller | None:
        """The caller of a token. Raises what :meth:`Identities.who` raises, and too-many-requests."""
        return await self.look_up(request, token, lambda: self._identities.who(token))

    async def look_up(
        self, request: Request, credentials: str, find: Callable[[], Awaitable[_Found | None]]
    ) -> _Found | None:
        """The result of ``find``, which an address with too many failures does not reach. Raises too-many-requests."""
        return await self._unknown_callers.look_up(request, credentials, find)

    async def open(self, request: Request, token: str) -> tuple[str, Session] | None:
        """A new session and the value of its cookie; None if the token is refused. Raises as :meth:`who`."""
        caller = await self.who(request, token)
        if caller is None:
            return None
        address = await self._identities.verified_address(token)
        return await self.begin(caller, expiry(token), address)

    async def begin(
        self, caller: Caller, ends: float | None, address: str | None
    ) -> tuple[str, Session]:
        """A new session of an authenticated caller, and the value of its cookie.

        Args:
            caller: the user.
            ends: expiry of the caller's token in unix seconds; None = unknown.
            address: verified mail address of the caller, which replaces an earlier one; empty = it has none any more; None =
                the token states nothing about it.
        """
        if address is not None and self._addresses is not None:
            await self._addresses.keep_address(caller.name, address or None)
        name = secrets.token_urlsafe(32)
        session = await self._sessions.open(_key(name), caller, LONGEST, ends)
        self._unknown_callers.remember(name)
        return name, session

    def give(self, response: Response, name: str, session: Session) -> None:
        """Put the cookie into a response."""
        response.set_cookie(
            self.cookie,
            name,
            max_age=max(1, int(session.until - session.since)),
            path="/",
            secure=self.secure,
            httponly=True,
            samesite="strict",
        )

    async def find(self, request: Request) -> Session | None:
        """The session whose cookie the request has. May raise too-many-requests."""
        name = request.cookies.get(self.cookie)
        if not name:
            return None
        return await self.look_up(request, name, lambda: self._sessions.find(_key(name)))

    async def close(self, request: Request, response: Response) -> None:
        """End the session whose cookie the request has, and take the cookie back."""
        name = request.cookies.get(self.cookie)
        if name:
            await self._sessions.close(_key(name))
        response.delete_cookie(
            self.cookie, path="/", secure=self.secure, httponly=True, samesite="strict"
        )


def _key(name: str) -> str:
    """The key of a session in the database: a reader of the database cannot derive the cookie from it."""
    return hashlib.sha256(name.encode()).hexdigest()


# ---- Authentication

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
        note_caller: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        """``note_caller``: called with the name and the address of each caller."""
        self._seen = note_caller
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
        except ApiProblem as problem:
            await self._refuse(request, problem)(scope, receive, send)
        except problems.OUTAGES as error:
            await problems.outage(request, error)(scope, receive, send)
        else:
            set_caller(scope, caller)
            if caller is not ANONYMOUS:
                set_credential_check(scope, partial(self._still, request, caller))
                self._seen(caller.name, address_of(request))
            named = {} if caller is ANONYMOUS else {"caller": caller.name}
            with bound_contextvars(**named):
                await self._app(scope, receive, send)

    async def _caller(self, request: Request) -> Caller:
        """Raises ApiProblem."""
        if self._open_paths.allows(request.method, request.url.path):
            if request.method in CHANGES and from_another_site(request.headers):
                raise ApiProblem(
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
                raise ApiProblem(ProblemType.UNAUTHENTICATED, detail, _CHALLENGE)
            return caller
        session = await self._session_service.find(request)
        if session is None:
            detail = "send a token as Authorization: Bearer, or sign in"
            raise ApiProblem(ProblemType.UNAUTHENTICATED, detail, _CHALLENGE)
        if request.method in CHANGES:
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
        except ApiProblem:
            return False

    def _refuse(self, request: Request, problem: ApiProblem) -> Response:
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
    """Raise ApiProblem unless a page of the dashboard sent the request."""
    headers = request.headers
    if not declared(headers) or from_another_site(headers):
        detail = "a page of another site cannot make changes with a session"
        raise ApiProblem(ProblemType.FOREIGN_ORIGIN, detail)
    if headers.get(PROOF) != "1":
        raise ApiProblem(
            ProblemType.FOREIGN_ORIGIN, f"a change with a session needs the header {PROOF}: 1"
        )
