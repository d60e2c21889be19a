"""Planning beside the loop, for who asks: in a thread, one question at a time, each within a time of its own.

After each comes a rest in proportion to what it took, as the loop's own cycles have it: who asks much must not slow down who is
to be started.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from queuectl.domain.errors import TookTooLong
from queuectl.planner import StopSignal

MOST_WAITING: Final = 8  # questions
MOST_OF_ONE: Final = 2  # of these, where it is known who asks

_Answer = TypeVar("_Answer")


class PlannerThrottle:
    """Of one sort of questions in one process."""

    def __init__(self, share: float) -> None:
        """``share``: largest part of one core spent on this."""
        self._share = share
        self._lock = asyncio.Lock()
        self._waiting: Counter[str] = Counter()
        self._stop = StopSignal()
        self._rested_at = 0.0

    @asynccontextmanager
    async def turn(self, caller: str = "") -> AsyncIterator[None]:
        """Wait until no other question is worked on and the rest after the last one is over.

        Args:
            caller: who asks; empty = not known.

        Raises:
            TookTooLong: too many questions wait, of this caller or of all.
        """
        if caller and self._waiting[caller] >= MOST_OF_ONE:
            raise TookTooLong(f"{MOST_OF_ONE} requests of {caller} wait already")
        if self._waiting.total() >= MOST_WAITING:
            raise TookTooLong(f"{MOST_WAITING} requests wait already")
        self._waiting[caller] += 1
        try:
            async with self._lock:
                await asyncio.sleep(self._rested_at - asyncio.get_running_loop().time())
                yield
        finally:
            self._waiting -= Counter((caller,))  # drops callers of whom none waits

    async def work_out(self, work: Callable[[StopSignal], _Answer], patience: float) -> _Answer:
        """What ``work`` says, which is told to stop after so many seconds; to be called in a turn. Raises what it raises."""
        stop = self._stop = StopSignal()
        task = asyncio.ensure_future(asyncio.to_thread(_timed, work, stop))
        done, _ = await asyncio.wait({task}, timeout=patience)
        if not done:
            await asyncio.to_thread(stop.stop)
        answer, took = await task
        rest = took * (1.0 - self._share) / self._share
        self._rested_at = asyncio.get_running_loop().time() + rest
        return answer

    def stop(self) -> None:
        """End what is running at once."""
        self._stop.stop()


def _timed(work: Callable[[StopSignal], _Answer], stop: StopSignal) -> tuple[_Answer, float]:
    """The answer, and the processor time it took, in seconds."""
    began = time.thread_time()
    answer = work(stop)
    return answer, time.thread_time() - began
