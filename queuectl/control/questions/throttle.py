"""Planning alongside the loop: in a thread, one question at a time, each with its own limit.

A throttle serves questions of many callers. A pause in proportion to its CPU time follows each question, as after each cycle of the
loop. Thus questions do not delay starts. The whole pause is for the caller of the question; others wait for a part of it. Of the callers
that wait, the one that has used least is next. A question that does not end at its limit is left behind, and others go on.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import structlog

from queuectl.domain.bounded import RecentlyUsed
from queuectl.domain.errors import TookTooLong
from queuectl.planner import StopSignal

MOST_WAITING: Final = 16  # questions
MOST_OF_ONE: Final = 4  # of one caller
MOST_LEFT: Final = 2  # questions that did not end at their limit, and still run
GRACE_SECONDS: Final = 2.0  # for a question that is stopped
OTHERS_SECONDS: Final = 1.0  # longest pause of a caller after the question of another one
_REMEMBERED: Final = 1000  # callers
_HALF_LIFE: Final = 60.0  # seconds after which half of what a caller used is forgotten

asking: Final = ContextVar("asking", default="")
"""The user on whose behalf the planner is asked; empty = the process itself, or callers without authentication, on loopback."""

_Answer = TypeVar("_Answer")
_log = structlog.get_logger()


@dataclass(eq=False, slots=True)
class _Waiting:
    """A question that waits."""

    caller: str
    begins: asyncio.Future[None]


@dataclass(slots=True)
class _Used:
    """The CPU seconds that a caller has used up to a moment. ``rested``: when its own pause ends."""

    seconds: float = 0.0
    at: float = 0.0
    rested: float = 0.0

    def until(self, now: float) -> float:
        """The seconds at a later moment."""
        return float(self.seconds * 0.5 ** ((now - self.at) / _HALF_LIFE))


class PlannerThrottle:
    """One question at a time, and a limited share of one core for the questions of a caller."""

    def __init__(self, share: float) -> None:
        """``share``: largest part of one core spent on one caller."""
        self._share = share
        self._queue: list[_Waiting] = []
        self._now: _Waiting | None = None
        self._used = RecentlyUsed[str, _Used](_REMEMBERED)
        self._rested = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._left: dict[Future[Any], str] = {}
        self._stop = StopSignal()
        self._stopped = False

    @asynccontextmanager
    async def turn(self, wait: float | None = None) -> AsyncIterator[None]:
        """Wait until no other question is in progress and the pause after the last one has ended.

        Args:
            wait: the longest wait in seconds; None = no limit.

        Raises:
            TookTooLong: too many questions wait, of this caller or of all, or the wait is too long.
        """
        mine = self._enqueue(asking.get())
        try:
            try:
                async with asyncio.timeout(wait):
                    await mine.begins
            except TimeoutError:
                raise TookTooLong("other requests took too long") from None
            if self._stopped:
                raise TookTooLong("this process stops")
            yield
        finally:
            if self._now is mine:
                self._now = None
            else:
                self._queue.remove(mine)
            self._next()

    async def work_out(self, work: Callable[[StopSignal], _Answer], seconds: float) -> _Answer:
        """The result of ``work``, which is stopped after so many seconds, or if the caller is canceled. Call it in a turn.

        Raises:
            TookTooLong: the work did not end although it was stopped. It is left behind.
            Exception: the errors of ``work``.
        """
        stop = self._stop = StopSignal()
        thread = _Thread(work, stop)
        began = time.monotonic()
        answer = asyncio.wrap_future(thread.answer)
        try:
            try:
                await asyncio.wait({answer}, timeout=seconds)
            finally:  # it has ended, it is at its limit, or its caller is canceled
                if not answer.done():
                    thread.stop()
                    await asyncio.wait({answer}, timeout=GRACE_SECONDS)
            if not answer.done():
                raise TookTooLong("the request did not end in time")
            return await answer
        finally:
            took = thread.took
            if not thread.answer.done():
                answer.cancel()
                self._left[thread.answer] = asking.get()
                took = time.monotonic() - began
                _log.error("question_not_stopped", caller=asking.get(), seconds=round(took, 1))
            self._charge(asking.get(), took)

    def stop(self) -> None:
        """Stop the question in progress, and answer no other."""
        self._stopped = True
        self._stop.stop()

    def _enqueue(self, caller: str) -> _Waiting:
        self._left = {each: whose for each, whose in self._left.items() if not each.done()}
        if len(self._left) >= MOST_LEFT or (caller and caller in self._left.values()):
            raise TookTooLong("an earlier request has not ended")
        waiting = [*self._queue, *([self._now] if self._now is not None else [])]
        if caller and sum(each.caller == caller for each in waiting) >= MOST_OF_ONE:
            raise TookTooLong(f"{MOST_OF_ONE} requests of {caller} wait already")
        if len(waiting) >= MOST_WAITING:
            raise TookTooLong(f"{MOST_WAITING} requests wait already")
        mine = _Waiting(caller, asyncio.get_running_loop().create_future())
        self._queue.append(mine)
        self._next()
        return mine

    def _next(self) -> None:
        """Begin the next question, now or when the first pause ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._now is not None or not self._queue:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        fresh = _Used()
        used = {each.caller: self._used.get(each.caller, fresh) for each in self._queue}
        rested = {caller: max(self._rested, one.rested) for caller, one in used.items()}
        ready = [each for each in self._queue if self._stopped or rested[each.caller] <= now]
        if not ready:
            self._timer = loop.call_at(min(rested.values()), self._next)
            return
        chosen = min(ready, key=lambda each: used[each.caller].until(now))  # the first of equals
        self._queue.remove(chosen)
        self._now = chosen
        if not chosen.begins.done():
            chosen.begins.set_result(None)

    def _charge(self, caller: str, took: float) -> None:
        now = asyncio.get_running_loop().time()
        pause = took * (1.0 - self._share) / self._share
        before = self._used.get(caller, _Used())
        self._used.put(caller, _Used(before.until(now) + took, now, now + pause))
        self._rested = now + min(pause, OTHERS_SECONDS)


class _Thread(Generic[_Answer]):
    """Work in a thread that the end of the process does not wait for.

    Attributes:
        answer: its result.
        took: the CPU time it took, in seconds, once it has ended.
    """

    def __init__(self, work: Callable[[StopSignal], _Answer], signal: StopSignal) -> None:
        self.answer: Future[_Answer] = Future()
        self.took = 0.0
        self._work = work
        self._signal = signal
        run = copy_context().run
        threading.Thread(target=run, args=(self._run,), name="question", daemon=True).start()

    def stop(self) -> None:
        """Stop the work, without a wait for its end."""
        threading.Thread(target=self._signal.stop, name="question stop", daemon=True).start()

    def _run(self) -> None:
        self.answer.set_running_or_notify_cancel()  # so that it can no longer be canceled
        began = time.thread_time()
        try:
            found = self._work(self._signal)
        except BaseException as error:  # noqa: BLE001 - who asked raises it
            self.took = time.thread_time() - began
            self.answer.set_exception(error)
        else:
            self.took = time.thread_time() - began
            self.answer.set_result(found)
