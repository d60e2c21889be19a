"""Waits for a state that has no event: another task, thread or process changes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(holds: Callable[[], object], seconds: float = 30.0) -> None:
    """Return when a condition holds. Raises TimeoutError after so many seconds."""
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - what changes has no event
            await asyncio.sleep(0.001)
