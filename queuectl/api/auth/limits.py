"""Rate limits: requests of one caller, and invalid credentials from one address."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from queuectl.api import problems
from queuectl.api.access import ANONYMOUS, caller_of
from queuectl.api.connections import connection_of, network_of
from queuectl.api.problems import ApiProblem, ProblemType
from queuectl.domain.bounded import RecentlyUsed
from queuectl.domain.pacing import Buckets

_Found = TypeVar("_Found")
_MOST_VALID: Final = 10_000  # credentials that are remembered
_BUSY_SECONDS: Final = 1.0


def address_of(request: Request) -> str:
    """The address of the peer, or the one that a trusted proxy names; for IPv6 the /64 network, which one host can own."""
    return network_of(request.client.host if request.client is not None else "")


class UnknownCallerLimit:
    """Limits lookups of invalid credentials from one address.

    An attempt counts before the lookup, so that a flood causes neither TokenReviews nor queries. The attempt is returned if
    the credentials are valid, or if the lookup had no result because of an outage. Credentials that were valid at their last lookup
    need no attempt: a flood from an address that many callers share does not refuse those who are signed in.
    """

    def __init__(self, buckets: Buckets) -> None:
        self._buckets = buckets
        self._valid = RecentlyUsed[str, None](_MOST_VALID)  # by hash

    async def look_up(
        self, request: Request, credentials: str, find: Callable[[], Awaitable[_Found | None]]
    ) -> _Found | None:
        """The result of ``find`` for these credentials. It is not called for an address with too many failures.

        Raises:
            Problem: too-many-requests.
        """
        address, key = address_of(request), _hash(credentials)
        was_valid = key in self._valid
        if not was_valid and (wait := self._buckets.take(address)):
            raise _too_often(f"too many invalid credentials from {address}", wait, last=True)
        invalid = True
        try:
            identity = await find()
            invalid = identity is None
        except problems.OUTAGES:
            invalid = False
            raise
        finally:
            if was_valid and invalid:
                self._valid.pop(key, None)
                self._buckets.take(address)
            elif not was_valid and not invalid:
                self._buckets.give_back(address)
        if identity is not None:
            self.remember(credentials)
        return identity

    def remember(self, credentials: str) -> None:
        """These credentials are valid, for example because they are new."""
        self._valid.put(_hash(credentials), None)


class RateLimit:
    """Limits the requests and the connections of each caller. Requests without a caller count for their address."""

    def __init__(self, app: ASGIApp, buckets: Buckets) -> None:
        self._app = app
        self._buckets = buckets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http":
            request = Request(scope)
            if (refusal := self._refusal(request)) is not None:
                await problems.respond(request, refusal)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, request: Request) -> ApiProblem | None:
        caller = caller_of(request)
        unknown = caller is ANONYMOUS
        key = f"at {address_of(request)}" if unknown else caller.name
        if wait := self._buckets.take(key):
            return _too_often(f"too many requests of {caller.name}", wait, last=unknown)
        connection = None if unknown else connection_of(request.scope)
        if connection is not None and not connection.belongs_to(caller.name):
            return _too_often(f"too many connections of {caller.name}", _BUSY_SECONDS, last=True)
        return None


def _too_often(what: str, wait: float, *, last: bool) -> ApiProblem:
    """``wait``: seconds. ``last``: the connection ends, so that a flood has to open new ones, which are limited."""
    headers = {"Retry-After": str(math.ceil(wait))}
    if last:
        headers["Connection"] = "close"
    return ApiProblem(ProblemType.TOO_MANY_REQUESTS, f"{what}; try again in {wait:.1f} s", headers)


def _hash(credentials: str) -> str:
    return hashlib.sha256(credentials.encode(errors="surrogateescape")).hexdigest()
