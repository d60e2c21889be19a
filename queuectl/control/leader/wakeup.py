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
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Begin a cycle."""
        self._rung.set()

    def plan(self) -> None:
        """Begin a cycle that plans."""
        self.plan_due = True
        self.ring()

    def plan_by(self, seconds: float) -> None:
        """Plan in the next cycle, and begin one after so many seconds at the latest."""
        self.plan_due = True
        asyncio.get_running_loop().call_later(seconds, self.ring)

    def plan_in(self, seconds: float) -> None:
        """Plan again in so many seconds, even if nothing changes until then."""
        asyncio.get_running_loop().call_later(seconds, self.plan)

    async def heard(self) -> None:
        """Return when a cycle must begin."""
        await self._rung.wait()

    def answer(self) -> None:
        """Record that a cycle begins: later wake-ups are for the next one."""
        self._rung.clear()
