"""Health of the process, answered by its own thread.

A flood of requests to the REST API, or a computation on the event loop of the controller, delays each answer of that loop. The kubelet
would then restart a process that works. This thread has its own event loop and its own connections, and answers in the meantime. It reports
the process as not live if the loop of the controller has not run for :data:`STALLED_SECONDS`, because then only a restart helps.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from queuectl.api.app import create_health_app
from queuectl.api.connections import ConnectionLimits
from queuectl.api.ports import HealthChecks
from queuectl.api.server import WebServer
from queuectl.control.listen_address import ListenAddress
from queuectl.control.progress import LONGEST_SILENCE

STALLED_SECONDS: Final = LONGEST_SILENCE
ANSWER_SECONDS: Final = 3.0  # for an answer of the loop about its readiness
FRESH_SECONDS: Final = 0.5  # for which an answer serves further requests
_BEAT_SECONDS: Final = 0.5
_LIMITS: Final = ConnectionLimits(most=64, of_address=16)


class LoopHealth:
    """The health of a process, as a thread alongside its event loop sees it. Create it on that loop."""

    def __init__(self, health: HealthChecks, clock: Callable[[], float] = time.monotonic) -> None:
        """``health``: answers on the loop."""
        self._health = health
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._ran_at = clock()
        self._faults: Sequence[str] = ()
        self._asking: asyncio.Lock | None = None
        self._last: tuple[float, Sequence[str]] | None = None

    async def beat(self) -> None:
        """Show that the loop runs, until it is canceled."""
        while True:
            self._faults = await self._health.live()
            self._ran_at = self._clock()
            await asyncio.sleep(_BEAT_SECONDS)

    async def live(self) -> Sequence[str]:
        """Faults that need a restart."""
        silent = self._clock() - self._ran_at
        if silent > STALLED_SECONDS:
            return [f"event loop: has not run for {silent:.0f} s"]
        return self._faults

    async def ready(self) -> Sequence[str]:
        """Reasons why the process is not ready."""
        self._asking = self._asking or asyncio.Lock()
        async with self._asking:
            if self._last is None or self._clock() - self._last[0] > FRESH_SECONDS:
                self._last = (self._clock(), await self._ask())
            return self._last[1]

    async def _ask(self) -> Sequence[str]:
        asked = asyncio.run_coroutine_threadsafe(self._blockers(), self._loop)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(asked), ANSWER_SECONDS)
        except TimeoutError:
            return [f"event loop: no answer within {ANSWER_SECONDS:g} s"]

    async def _blockers(self) -> Sequence[str]:
        return await self._health.ready()


class HealthListener:
    """Serves ``/healthz`` and ``/readyz``.

    Attributes:
        url: where.
    """

    def __init__(self, address: ListenAddress, health: HealthChecks) -> None:
        """Listen. Raises CannotListen."""
        self._health = LoopHealth(health)
        self._server = WebServer(create_health_app(self._health), address, limits=_LIMITS)
        self.url = self._server.url

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """A context in which the thread answers."""
        beating = asyncio.create_task(self._health.beat(), name="heartbeat")
        thread = threading.Thread(target=self._run, name="health", daemon=True)
        thread.start()
        try:
            yield
        finally:
            beating.cancel()
            self._server.stop()
            await asyncio.to_thread(thread.join)

    def _run(self) -> None:
        asyncio.run(self._server.run())
