"""How often one caller may ask."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from queuectl.api import problems
from queuectl.api.access import ANYBODY, caller_of
from queuectl.api.problems import Problem, ProblemType

_MOST: Final = 10_000  # callers whose pace is remembered


class Buckets:
    """A token bucket for each key: ``burst`` at once, then ``per_second``."""

    def __init__(
        self, per_second: float, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_second = per_second
        self._burst = float(burst)
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, and when

    def take(self, key: str) -> float:
        """Take one; 0, or the seconds until there is one again."""
        now = self._clock()
        left, at = self._left.get(key, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._per_second)
        wait = 0.0 if left >= 1.0 else (1.0 - left) / self._per_second
        self._left[key] = (left if wait else left - 1.0, now)
        self._left.move_to_end(key)
        if len(self._left) > _MOST:  # whoever was not seen for longest has a full one again
            self._left.popitem(last=False)
        return wait


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
            address = request.client.host if request.client is not None else ""
            wait = self._buckets.take(f"at {address}" if caller is ANYBODY else caller.name)
            if wait:
                detail = f"{caller.name} asks too often; go on in {wait:.1f} s"
                headers = {"Retry-After": str(math.ceil(wait))}
                refusal = Problem(ProblemType.TOO_MANY_REQUESTS, detail, headers)
                await problems.respond(request, refusal)(scope, receive, send)
                return
        await self._app(scope, receive, send)
