"""Diagnoses on demand: why a pending gang does not start, solved on the snapshot of the last plan."""

from __future__ import annotations

import asyncio
from typing import Final

from queuectl.control.checked_plan import CheckedPlan, explained
from queuectl.control.questions.throttle import PlannerThrottle
from queuectl.domain.diagnosis import Diagnosis, Excess
from queuectl.domain.errors import TookTooLong
from queuectl.domain.node_quota import quota_from_nodes
from queuectl.domain.queues import QueueConfig, in_force
from queuectl.domain.snapshot import Snapshot
from queuectl.planner.cache import PlannerCache
from queuectl.reports.over_quota import over_quota

TIMEOUT_SECONDS: Final = 5.0  # after which it stops, as clients wait no longer
_KEPT: Final = 256  # diagnoses remembered until the next plan


class LeaderDiagnoser:
    """The diagnoses of one leader. ``latest`` is set with each plan."""

    def __init__(self, throttle: PlannerThrottle, cache: PlannerCache) -> None:
        self._cache = cache
        self._latest: CheckedPlan | None = None
        self._known: dict[str, Diagnosis] = {}
        self._throttle = throttle

    def planned(self, checked: CheckedPlan) -> None:
        """Use this plan from now on."""
        self._latest = checked
        self._known.clear()

    async def diagnose(self, uid: str) -> Diagnosis | None:
        """The diagnosis of a gang that was pending in the last plan; None for other gangs, after a timeout, or if too many wait."""
        known = self._known.get(uid)
        if known is not None:
            return known
        try:
            async with self._throttle.turn(wait=TIMEOUT_SECONDS):
                return self._known.get(uid) or await self._solve(uid)
        except TookTooLong:
            return None

    async def _solve(self, uid: str) -> Diagnosis | None:
        latest = self._latest
        if latest is None or all(p.workload.uid != uid for p in latest.snapshot.pending):
            return None
        uids = frozenset({uid})
        found = await self._throttle.work_out(
            lambda stop: next(explained(latest, uids, stop, self._cache), Diagnosis(uid)),
            TIMEOUT_SECONDS,
        )
        if found.cut:
            return None
        if latest is self._latest and len(self._known) < _KEPT:
            self._known[uid] = found
        return found


async def excesses(snapshot: Snapshot, config: QueueConfig) -> tuple[Excess, ...]:
    """Running gangs that exceed the quota of another configuration."""
    over_nodes = quota_from_nodes(in_force(config, snapshot.now), snapshot.fleet)
    return await asyncio.to_thread(over_quota, snapshot, over_nodes)
