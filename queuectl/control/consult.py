"""Diagnoses on demand: why one waiting gang does not start, solved on the snapshot of the last plan.

In a thread of its own, one at a time and within a time of its own, so that asking never delays a plan or a commit.
"""

from __future__ import annotations

import asyncio
from typing import Final

from queuectl.domain.diagnosis import Diagnosis
from queuectl.domain.snapshot import Snapshot
from queuectl.planner import StopSignal
from queuectl.planner.why import diagnose

PATIENCE_SECONDS: Final = 5.0  # then it is stopped; clients wait no longer
_KEPT: Final = 256  # diagnoses remembered until the next plan


class Consultation:
    """Answers for one leadership; ``latest`` is set with every plan."""

    def __init__(self) -> None:
        self._latest: Snapshot | None = None
        self._known: dict[str, Diagnosis] = {}
        self._lock = asyncio.Lock()
        self._stop = StopSignal()

    def planned(self, snapshot: Snapshot) -> None:
        """A plan was made from this snapshot."""
        self._latest = snapshot
        self._known.clear()

    async def diagnose(self, uid: str) -> Diagnosis | None:
        """Of a gang that waited at the last plan; None for any other, and when it took too long."""
        async with self._lock:
            snapshot = self._latest
            if snapshot is None or all(p.workload.uid != uid for p in snapshot.pending):
                return None
            known = self._known.get(uid) or await self._solve(snapshot, uid)
            if known.cut:
                return None
            if snapshot is self._latest and len(self._known) < _KEPT:
                self._known[uid] = known
            return known

    async def _solve(self, snapshot: Snapshot, uid: str) -> Diagnosis:
        stop = self._stop = StopSignal()
        task = asyncio.ensure_future(asyncio.to_thread(diagnose, snapshot, uid, stop))
        done, _ = await asyncio.wait({task}, timeout=PATIENCE_SECONDS)
        if not done:
            await asyncio.to_thread(stop.stop)
        return await task

    def stop(self) -> None:
        """End what is running at once."""
        self._stop.stop()
