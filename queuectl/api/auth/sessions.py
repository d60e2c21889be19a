"""Sessions of browsers: a browser sends a token once, and a cookie afterwards.

The token is not stored. So a session remains valid if its token is revoked, until the token expires and at most for
:data:`LONGEST` seconds. The rights of its caller are checked with each request.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from queuectl.api.access import Identities
from queuectl.api.auth.limits import UnknownCallerLimit
from queuectl.api.auth.tokens import expiry
from queuectl.api.ports import Sessions
from queuectl.domain.identity import Caller, Session

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
        unknown_callers: UnknownCallerLimit,
        *,
        secure: bool,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``secure``: browsers use TLS, so they send the cookie over TLS only."""
        self._identities = identities
        self._sessions = sessions
        self._unknown_callers = unknown_callers
        self.secure = secure
        self._clock = clock
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
        return await self.begin(caller, expiry(token)) if caller is not None else None

    async def begin(self, caller: Caller, ends: float | None) -> tuple[str, Session]:
        """A new session of an authenticated caller, and the value of its cookie.

        ``ends``: expiry of the caller's token in unix seconds; None = unknown.
        """
        now = self._clock()
        until = now + LONGEST
        session = Session(caller, now, until if ends is None else min(until, ends))
        name = secrets.token_urlsafe(32)
        await self._sessions.open(_key(name), session)
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
        return await self.look_up(
            request, name, lambda: self._sessions.find(_key(name), self._clock())
        )

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
