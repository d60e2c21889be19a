"""Rate limits: requests of one caller, and invalid credentials from one address."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from queuectl.api import problems
from queuectl.api.access import ANONYMOUS, caller_of
from queuectl.api.problems import Problem, ProblemType
from queuectl.domain.rate_limit import Buckets

_Found = TypeVar("_Found")


def address_of(request: Request) -> str:
    """The address of the peer, or the one that a trusted proxy names; for IPv6 the /64 network, which one host can own."""
    host = request.client.host if request.client is not None else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 4:
        return host
    return str(ipaddress.ip_network((address, 64), strict=False))


class UnknownCallerLimit:
    """Limits lookups of invalid credentials from one address.

    An attempt counts before the lookup, so that a flood causes neither TokenReviews nor queries. The attempt is returned if
    the credentials are valid, or if the lookup had no result because of an outage.
    """

    def __init__(self, buckets: Buckets) -> None:
        self._buckets = buckets

    async def look_up(
        self, request: Request, find: Callable[[], Awaitable[_Found | None]]
    ) -> _Found | None:
        """The result of ``find``, which is not called for an address with too many failures.

        Raises:
            Problem: too-many-requests.
        """
        address = address_of(request)
        if wait := self._buckets.take(address):
            raise _too_often(f"too many invalid credentials from {address}", wait)
        try:
            found = await find()
        except problems.OUTAGES:
            self._buckets.give_back(address)
            raise
        if found is not None:
            self._buckets.give_back(address)
        return found


class RateLimit:
    """Limits the requests of each caller. Requests without a caller count for their address."""

    def __init__(self, app: ASGIApp, buckets: Buckets) -> None:
        self._app = app
        self._buckets = buckets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http":
            request = Request(scope)
            caller = caller_of(request)
            key = f"at {address_of(request)}" if caller is ANONYMOUS else caller.name
            if wait := self._buckets.take(key):
                refusal = _too_often(f"too many requests of {caller.name}", wait)
                await problems.respond(request, refusal)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _too_often(what: str, wait: float) -> Problem:
    """``wait``: seconds."""
    headers = {"Retry-After": str(math.ceil(wait))}
    return Problem(ProblemType.TOO_MANY_REQUESTS, f"{what}; try again in {wait:.1f} s", headers)
