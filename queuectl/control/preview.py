"""Previews of what people do by hand to a gang that runs: planned on a picture of now, with and without it.

The same planner decides as in the loop. It works in a thread of its own, within a time of its own, and rests as the loop does:
who asks much must not slow down who is to be started. Nothing of what it says is committed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from queuectl.control.viewer import Seen
from queuectl.domain.changes import Leave
from queuectl.domain.commands import Action
from queuectl.domain.ledger import Entry
from queuectl.domain.plan import Plan
from queuectl.domain.preview import Preview
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.steps import notice
from queuectl.planner import StopSignal, plan
from queuectl.planner.cost import costs

PATIENCE_SECONDS: Final = 5.0  # then who starts is left open; clients wait no longer
MOST_WAITING: Final = 8  # beyond them, too


def taken_down(snapshot: Snapshot, gang: Admitted, action: Action) -> Snapshot:
    """The world when its pods are gone: it is back in the queue, at its old place or behind the others, or parked."""
    gone = Leave((gang.workload.uid,)).apply(snapshot)
    if action not in (Action.REQUEUE, Action.PREEMPT):
        return gone
    workload = gang.workload
    if action is Action.PREEMPT:
        workload = replace(workload, queued_at=snapshot.now)
    return replace(gone, pending=(*gone.pending, Pending(workload)))


def starters(before: Plan, after: Plan) -> tuple[str, ...]:
    """Uids that only ``after`` starts, in its order."""
    known = {admission.uid for admission in before.admitted}
    return tuple(a.uid for a in after.admitted if a.uid not in known and not a.repaired)


class Previewer:
    """Of one process; plans for one question at a time."""

    def __init__(self, look: Callable[[], Awaitable[Seen | None]], share: float) -> None:
        """``look``: what there is now; ``share``: largest part of one core spent on this."""
        self._look = look
        self._share = share
        self._lock = asyncio.Lock()
        self._waiting = 0
        self._rested_at = 0.0
        self._stop = StopSignal()

    async def preview(self, entry: Entry, action: Action) -> Preview | None:
        """What this action, one of EVICTING, does to a gang; None while this process does not see it, or nothing at all.

        May raise StoreUnavailable.
        """
        seen = await self._look()
        if seen is None:
            return None
        snapshot, uid = seen.snapshot, entry.uid
        gang = next((a for a in snapshot.admitted if a.workload.uid == uid), None)
        if not entry.state.live:
            return Preview(None, 0.0)
        if gang is None or gang.leaving:  # it has just started, or has just been told to go
            return None
        cost = costs([gang], snapshot.now)[uid]
        told = notice(entry, Code.PREEMPTED, snapshot.config.rules)
        return Preview(cost, told, await self._starts(snapshot, gang, action))

    def stop(self) -> None:
        """End what is running at once."""
        self._stop.stop()

    async def _starts(
        self, snapshot: Snapshot, gang: Admitted, action: Action
    ) -> tuple[str, ...] | None:
        if self._waiting >= MOST_WAITING:
            return None
        self._waiting += 1
        try:
            async with self._lock:
                clock = asyncio.get_running_loop().time
                await asyncio.sleep(self._rested_at - clock())
                stop = self._stop = StopSignal()
                work = asyncio.to_thread(_planned, snapshot, gang, action, stop)
                task = asyncio.ensure_future(work)
                done, _ = await asyncio.wait({task}, timeout=PATIENCE_SECONDS)
                if not done:
                    await asyncio.to_thread(stop.stop)
                found, took = await task
                self._rested_at = clock() + took * (1.0 - self._share) / self._share
                return found
        finally:
            self._waiting -= 1


def _planned(
    snapshot: Snapshot, gang: Admitted, action: Action, stop: StopSignal
) -> tuple[tuple[str, ...] | None, float]:
    """Who starts, None when that was cut; and the processor time it took, in seconds."""
    began = time.thread_time()
    before, after = plan(snapshot, stop), plan(taken_down(snapshot, gang, action), stop)
    found = None if before.cut or after.cut else starters(before, after)
    return found, time.thread_time() - began
