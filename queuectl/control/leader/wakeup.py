"""The wake-up of a leader's loop, and whether the next cycle plans."""

from __future__ import annotations

import asyncio


class Wakeup:
    """Of one leadership.

    Attributes:
        plan_due: the next cycle plans, even without an observation.
    """

    def __init__(self) -> None:
        self.plan_due = True
        self._requested = asyncio.Event()

    def trigger(self) -> None:
        """Begin a cycle."""
        self._requested.set()

    def plan(self) -> None:
        """Begin a cycle that plans."""
        self.plan_due = True
        self.trigger()

    def plan_by(self, seconds: float) -> None:
        """Plan in the next cycle, and begin one after so many seconds at the latest."""
        self.plan_due = True
        asyncio.get_running_loop().call_later(seconds, self.trigger)

    def plan_in(self, seconds: float) -> None:
        """Plan again in so many seconds, even if nothing changes until then."""
        asyncio.get_running_loop().call_later(seconds, self.plan)

    async def wait(self) -> None:
        """Return when a cycle must begin."""
        await self._requested.wait()

    def clear(self) -> None:
        """Record that a cycle begins: later wake-ups are for the next one."""
        self._requested.clear()
