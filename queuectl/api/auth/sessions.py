"""Sessions of browsers: a token is shown once, then a cookie stands for it.

The token itself is kept nowhere. So a session lives on when its token is withdrawn, until the token would have ended by
itself and at most for :data:`LONGEST` seconds; the rights of whoever it was are asked for anew all the time.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import secrets
import time
from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from queuectl.api.access import Identities
from queuectl.api.auth.limits import UnknownCallerLimit
from queuectl.api.ports import Sessions
from queuectl.domain.identity import Caller, Session

LONGEST: Final = 8 * 3600.0


class SessionService:
    """Opens, finds and closes sessions. Methods may raise StoreUnavailable."""

    def __init__(
        self,
        identities: Identities,
        sessions: Sessions,
        unknown_callers: UnknownCallerLimit,
        *,
        secure: bool,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``secure``: browsers reach us by TLS, so the cookie goes nowhere without it."""
        self._identities = identities
        self._sessions = sessions
        self._unknown_callers = unknown_callers
        self._secure = secure
        self._clock = clock
        # The prefix binds it to this very host: no other one, nor a page without TLS, can put a cookie in its place.
        self._cookie = "__Host-queuectl" if secure else "queuectl"

    async def who(self, request: Request, token: str) -> Caller | None:
        """Whose token this is. May raise ClusterUnavailable, and too-many-requests."""
        return await self._unknown_callers.look_up(request, lambda: self._identities.who(token))

    async def open(self, request: Request, token: str) -> tuple[str, Session] | None:
        """A new session and what its cookie holds; None: nobody's token. Raises as :meth:`who`."""
        caller = await self.who(request, token)
        if caller is None:
            return None
        now = self._clock()
        ends = expiry(token)
        until = now + LONGEST
        session = Session(caller, now, until if ends is None else min(until, ends))
        name = secrets.token_urlsafe(32)
        await self._sessions.open(_key(name), session)
        return name, session

    def give(self, response: Response, name: str, session: Session) -> None:
        """Put the cookie into a response."""
        response.set_cookie(
            self._cookie,
            name,
            max_age=max(1, int(session.until - session.since)),
            path="/",
            secure=self._secure,
            httponly=True,
            samesite="strict",
        )

    async def find(self, request: Request) -> Session | None:
        """The session whose cookie the request has. May raise too-many-requests."""
        name = request.cookies.get(self._cookie)
        if not name:
            return None
        return await self._unknown_callers.look_up(
            request, lambda: self._sessions.find(_key(name), self._clock())
        )

    async def close(self, request: Request, response: Response) -> None:
        """End the session whose cookie the request has, and take the cookie back."""
        name = request.cookies.get(self._cookie)
        if name:
            await self._sessions.close(_key(name))
        response.delete_cookie(
            self._cookie, path="/", secure=self._secure, httponly=True, samesite="strict"
        )


def expiry(token: str) -> float | None:
    """When a token ends, if it says so: unix seconds. It was reviewed before; its signature is not looked at here."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError):
        return None
    ends = claims.get("exp") if isinstance(claims, dict) else None
    return float(ends) if isinstance(ends, int | float) else None


def _key(name: str) -> str:
    """What the database knows of a cookie: who reads it there cannot make one."""
    return hashlib.sha256(name.encode()).hexdigest()
