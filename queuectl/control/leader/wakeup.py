"""What wakes the loop of a leader, and whether it is to plan then."""

from __future__ import annotations

import asyncio


class Wakeup:
    """Of one leadership.

    Attributes:
        plan_due: the next cycle plans, whatever it observes.
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
        """Plan in the next cycle, and begin one in so many seconds if nothing does before."""
        self.plan_due = True
        asyncio.get_running_loop().call_later(seconds, self.ring)

    def plan_in(self, seconds: float) -> None:
        """Plan again in so many seconds, even if nothing changes until then."""
        asyncio.get_running_loop().call_later(seconds, self.plan)

    async def heard(self) -> None:
        """Return as soon as a cycle is to begin."""
        await self._rung.wait()

    def answer(self) -> None:
        """A cycle begins now: what rings from here on is for the next."""
        self._rung.clear()
