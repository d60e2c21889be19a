"""How often one caller may ask, and how often one address may try credentials."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from queuectl.api import problems
from queuectl.api.access import ANYBODY, caller_of
from queuectl.api.problems import Problem, ProblemType
from queuectl.domain.rate_limit import Buckets

_Found = TypeVar("_Found")


def address_of(request: Request) -> str:
    """Where a request comes from: the peer, or what a trusted proxy says; of IPv6 the /64, which one host can have whole."""
    host = request.client.host if request.client is not None else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 4:
        return host
    return str(ipaddress.ip_network((address, 64), strict=False))


class UnknownCallerLimit:
    """Limits by address how often credentials are looked up that turn out to be of no caller.

    An attempt counts before it is looked up, so that a flood costs neither a TokenReview nor a query. It is returned when the
    credentials are good, or when nothing could be found out.
    """

    def __init__(self, buckets: Buckets) -> None:
        self._buckets = buckets

    async def look_up(
        self, request: Request, find: Callable[[], Awaitable[_Found | None]]
    ) -> _Found | None:
        """What ``find`` finds; it is not called for an address that failed too often.

        Raises:
            Problem: too-many-requests.
        """
        address = address_of(request)
        if wait := self._buckets.take(address):
            raise _too_often(f"credentials from {address} failed too often", wait)
        try:
            found = await find()
        except problems.OUTAGES:
            self._buckets.give_back(address)
            raise
        if found is not None:
            self._buckets.give_back(address)
        return found


class RateLimit:
    """Refuses who asks too often. Those whom nobody knows share what their address may."""

    def __init__(self, app: ASGIApp, buckets: Buckets) -> None:
        self._app = app
        self._buckets = buckets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http":
            request = Request(scope)
            caller = caller_of(request)
            key = f"at {address_of(request)}" if caller is ANYBODY else caller.name
            if wait := self._buckets.take(key):
                refusal = _too_often(f"{caller.name} asks too often", wait)
                await problems.respond(request, refusal)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _too_often(what: str, wait: float) -> Problem:
    """``wait``: seconds."""
    headers = {"Retry-After": str(math.ceil(wait))}
    return Problem(ProblemType.TOO_MANY_REQUESTS, f"{what}; try again in {wait:.1f} s", headers)
