"""Answers of the API server that are worth keeping for a moment, so that a busy client costs it one question a minute."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Answer = TypeVar("_Answer")


class Remembered(Generic[_Key, _Answer]):
    """At most so many answers, each for as long as it is good; those used longest ago go first.

    Who asks for what is being asked just now waits for that answer. A failure is nobody's answer: it is not kept.
    """

    def __init__(
        self,
        good_for: Callable[[_Key, _Answer, float], float],
        *,
        most: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is known yet.

        Args:
            good_for: seconds an answer to a key may be used; given those of the answer before it if that was the same, else 0.
            most: how many answers are kept.
            clock: monotonic seconds.
        """
        self._good_for = good_for
        self._most = most
        self._clock = clock
        self._known: OrderedDict[_Key, tuple[float, float, _Answer]] = OrderedDict()
        self._asked: dict[_Key, asyncio.Task[_Answer]] = {}

    def __len__(self) -> int:
        return len(self._known)

    async def get(self, key: _Key, ask: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """The answer to ``key``; raises what ``ask`` raises."""
        known = self._known.get(key)
        if known is not None and self._clock() < known[0]:
            self._known.move_to_end(key)
            return known[2]
        asking = self._asked.get(key)
        if asking is None:
            asking = asyncio.create_task(self._ask(key, ask), name="ask the API server")
            asking.add_done_callback(_heard)
            self._asked[key] = asking
        return await asyncio.shield(asking)  # others may wait for it when we no longer do

    async def _ask(self, key: _Key, ask: Callable[[], Awaitable[_Answer]]) -> _Answer:
        try:
            answer = await ask()
        finally:
            del self._asked[key]
        before = self._known.get(key)
        last = before[1] if before is not None and before[2] == answer else 0.0
        seconds = self._good_for(key, answer, last)
        self._known[key] = (self._clock() + seconds, seconds, answer)
        self._known.move_to_end(key)
        while len(self._known) > self._most:
            self._known.popitem(last=False)
        return answer


def _heard(asking: asyncio.Task[_Answer]) -> None:
    """When everybody who waited has gone, a failure is no news."""
    if not asking.cancelled():
        asking.exception()
