"""Planning beside the loop: in a thread, one question at a time, each with its own limit.

One throttle serves all diagnoses, what-ifs, previews and standby plans of a process. A pause in proportion to its CPU time follows each
question, as after each cycle of the loop. Thus questions do not delay starts.
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
MOST_OF_ONE: Final = 2  # of one caller

_Answer = TypeVar("_Answer")


class PlannerThrottle:
    """One question at a time, and a limited share of one core for all of them."""

    def __init__(self, share: float) -> None:
        """``share``: largest part of one core spent on this."""
        self._share = share
        self._lock = asyncio.Lock()
        self._waiting: Counter[str] = Counter()
        self._stop = StopSignal()
        self._stopped = False
        self._rested_at = 0.0

    @asynccontextmanager
    async def turn(self, caller: str = "", wait: float | None = None) -> AsyncIterator[None]:
        """Wait until no other question is in progress and the pause after the last one has ended.

        Args:
            caller: the user; empty = unknown.
            wait: the longest wait in seconds; None = no limit.

        Raises:
            TookTooLong: too many questions wait, of this caller or of all, or the wait is too long.
        """
        if caller and self._waiting[caller] >= MOST_OF_ONE:
            raise TookTooLong(f"{MOST_OF_ONE} requests of {caller} wait already")
        if self._waiting.total() >= MOST_WAITING:
            raise TookTooLong(f"{MOST_WAITING} requests wait already")
        self._waiting[caller] += 1
        try:
            try:
                async with asyncio.timeout(wait):
                    await self._lock.acquire()
            except TimeoutError:
                raise TookTooLong("other requests took too long") from None
            try:
                await asyncio.sleep(self._rested_at - asyncio.get_running_loop().time())
                if self._stopped:
                    raise TookTooLong("this process stops")
                yield
            finally:
                self._lock.release()
        finally:
            self._waiting -= Counter((caller,))  # drops callers without a request

    async def work_out(self, work: Callable[[StopSignal], _Answer], seconds: float) -> _Answer:
        """The result of ``work``, which is stopped after so many seconds. Call it in a turn. Raises the errors of ``work``."""
        stop = self._stop = StopSignal()
        task = asyncio.ensure_future(asyncio.to_thread(_timed, work, stop))
        done, _ = await asyncio.wait({task}, timeout=seconds)
        if not done:
            await asyncio.to_thread(stop.stop)
        answer, took = await task
        rest = took * (1.0 - self._share) / self._share
        self._rested_at = asyncio.get_running_loop().time() + rest
        return answer

    def stop(self) -> None:
        """Stop the question in progress, and answer no other."""
        self._stopped = True
        self._stop.stop()


def _timed(work: Callable[[StopSignal], _Answer], stop: StopSignal) -> tuple[_Answer, float]:
    """The answer, and the processor time it took, in seconds."""
    began = time.thread_time()
    answer = work(stop)
    return answer, time.thread_time() - began
