"""Long loops on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final, TypeVar

GANGS: Final = 200
"""Gangs that are read before the event loop can run other tasks."""
_T = TypeVar("_T")


async def in_turns(iterable: Iterable[_T], turn: int = GANGS) -> AsyncIterator[_T]:
    """The elements of the iterable. Other tasks run after each ``turn`` of them."""
    for number, item in enumerate(iterable, 1):
        yield item
        if number % turn == 0:
            await asyncio.sleep(0)
