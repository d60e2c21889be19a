"""A cache of short-lived answers of the API server, so that a busy client costs it one request a minute."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Answer = TypeVar("_Answer")


class Remembered(Generic[_Key, _Answer]):
    """A cache with a maximal number of answers, each for its validity. The least recently used are dropped first.

    A call for a key that is being requested waits for that answer. Failures are not cached.
    """

    def __init__(
        self,
        good_for: Callable[[_Key, _Answer, float], float],
        *,
        most: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start empty.

        Args:
            good_for: the validity of an answer in seconds, from the validity of the equal answer before it; 0 without one.
            most: the maximal number of answers.
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
        """The answer to ``key``. Raises the errors of ``ask``."""
        known = self._known.get(key)
        if known is not None and self._clock() < known[0]:
            self._known.move_to_end(key)
            return known[2]
        asking = self._asked.get(key)
        if asking is None:
            asking = asyncio.create_task(self._ask(key, ask), name="ask the API server")
            asking.add_done_callback(_heard)
            self._asked[key] = asking
        return await asyncio.shield(asking)  # other calls can wait for it when this one is canceled

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
    """Retrieve the exception, in case all calls that waited were canceled."""
    if not asking.cancelled():
        asking.exception()
