"""The clock of the controller, and the progress of the leader's loop.

Deadlines in the ledger outlive processes, and other machines read them, so they are in the time of the database. Within a process, a
monotonic clock counts: a change of the machine's clock does not move a deadline. It runs on while the machine is suspended, because the
time of the database does.

A leader whose loop hangs renews its lease no more. If the process then does not end by itself, for example because a thread is in a
call that never returns, or because such a call holds the interpreter, a timer of the interpreter's C code ends it with the traces of
all threads. The timer is set again only while the event loop runs and the leader's loop makes progress.
"""

from __future__ import annotations

import asyncio
import faulthandler
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

# ---- The clock


_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _since_boot() -> float:
    """Seconds, with those in which the machine was suspended where the system counts them."""
    return time.clock_gettime(_CLOCK)


class SteadyClock:
    """Unix seconds: the last set time plus the time on the monotonic clock since then."""

    def __init__(self, monotonic: Callable[[], float] = _since_boot) -> None:
        """Starts with the machine's time."""
        self._monotonic = monotonic
        self._offset = time.time() - monotonic()

    def __call__(self) -> float:
        return self._monotonic() + self._offset

    def set(self, now: float) -> None:
        """``now``: unix seconds."""
        self._offset = now - self._monotonic()


# ---- Progress

LONGEST_STEP: Final = 90.0
"""Seconds of one step of the loop: longer than the longest plan that is permitted, with the work before and after it."""
LONGEST_SILENCE: Final = 30.0
"""Seconds without progress of the event loop, or after the longest step, until the process is ended."""
_EVERY: Final = 1.0


def longest_step(wall_seconds: float) -> float:
    """The same in seconds for plans with this limit of wall time."""
    return max(LONGEST_STEP, 3 * wall_seconds)


class LoopProgress:
    """The progress of the loop of one leader. Any thread can mark a step."""

    def __init__(self, longest_step: float = LONGEST_STEP) -> None:
        """``longest_step``: seconds."""
        self._longest = longest_step
        self._step_at = time.monotonic()
        self._idle = False

    def step(self) -> None:
        """Record that a step begins."""
        self._step_at = time.monotonic()

    @contextmanager
    def idle(self) -> Iterator[None]:
        """While the loop waits for work, it needs no progress."""
        self._idle = True
        try:
            yield
        finally:
            self.step()
            self._idle = False

    @property
    def stalled(self) -> str:
        """Why the loop counts as hung; empty while it does not."""
        seconds = time.monotonic() - self._step_at
        if self._idle or seconds <= self._longest:
            return ""
        return f"the loop of the leader has made no progress for {seconds:.0f} s"


async def end_if_stalled(stalled: Callable[[], str], silence: float = LONGEST_SILENCE) -> None:
    """End the process ``silence`` seconds after the event loop stops, or after ``stalled`` returns a reason, until canceled."""
    try:
        while True:
            if not stalled():
                faulthandler.dump_traceback_later(silence, exit=True)
            await asyncio.sleep(_EVERY)
    finally:
        faulthandler.cancel_dump_traceback_later()
