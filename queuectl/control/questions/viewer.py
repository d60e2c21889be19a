"""Views of the cluster for the API and the dashboard, on the leader and on standbys.

The leader uses its state in memory. A standby uses its watch and a copy of the ledger, which it updates for a request and which is at
most about a second old. Thus all replicas show the same. A plan uses the state at the time of its request. A standby gets GPU
utilization from the leader (:mod:`queuectl.control.leader.periodic`).
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import structlog

from queuectl.control.checked_plan import DeviceRows
from queuectl.control.contained_plan import planned_around
from queuectl.control.leader.leader_state import LeaderState
from queuectl.control.ports import Clock
from queuectl.control.questions.dependencies import DependencyIndex
from queuectl.control.questions.diagnosis import (
    TIMEOUT_SECONDS,
    LeaderDiagnoser,
    excesses,
)
from queuectl.control.questions.standby import Standby
from queuectl.control.questions.throttle import PlannerThrottle
from queuectl.db.ports import LeaderStore
from queuectl.devices.charges import device_resources
from queuectl.domain.cluster_map import ClusterMap
from queuectl.domain.diagnosis import Diagnosis, Excess
from queuectl.domain.errors import StoreUnavailable, TookTooLong
from queuectl.domain.jobs import PodRecord
from queuectl.domain.ledger import Entry
from queuectl.domain.queries import UnmanagedPod
from queuectl.domain.queues import QueueConfig
from queuectl.domain.related_jobs import RelatedJobs
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.spending import BudgetReport, report
from queuectl.domain.utilization import GangUse
from queuectl.planner.cache import PlannerCache
from queuectl.reports.cluster_map import cluster_map_of
from queuectl.state.mirror import Mirror
from queuectl.state.utilization import present_uses

MAX_AGE_SECONDS: Final = 1.0  # largest age of a view
# Largest age of a standby's plan, from which it explains why gangs are pending.
PLAN_SECONDS: Final = 5.0
STANDBY_SECONDS: Final = 1.0  # without leadership, after which a process is a standby
FOLLOW_SECONDS: Final = 10.0  # between two updates of a standby without requests
REPLAN_SECONDS: Final = 60.0  # between its plans

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster at one moment.

    Attributes:
        snapshot: without device rows. Plans are made from it.
        uses: the GPU utilization of gangs, by uid.
        unmanaged: lists the unmanaged pods that hold GPUs. The list is made at the first call and then cached.
    """

    snapshot: Snapshot
    uses: Mapping[str, GangUse] = field(default_factory=dict)
    unmanaged: Callable[[], tuple[UnmanagedPod, ...]] = tuple


class Viewer:
    """The views of one process. Concurrent requests share a view."""

    def __init__(
        self,
        store: LeaderStore,
        mirror: Mirror,
        new_state: Callable[[], LeaderState],
        clock: Clock,
        *,
        leading: Callable[[], LeaderState | None],
        watching: Callable[[], bool],
        leader_uses: Callable[[], Mapping[str, GangUse]],
        throttle: PlannerThrottle,
        cache: PlannerCache,
    ) -> None:
        """Start without a view.

        Args:
            store: the database.
            mirror: of the cluster.
            new_state: makes an empty state, for a standby.
            clock: of the process.
            leading: the state in memory if this process is the leader and has loaded it.
            watching: whether the watch has listed all objects.
            leader_uses: the GPU utilization of gangs from the leader, by uid.
            throttle: of this process's questions to the planner.
            cache: of this process.
        """
        self._stand_by: Callable[[], Standby] = lambda: Standby(store, new_state(), clock)
        self._mirror = mirror
        self._generation = mirror.generation
        self._standby: Standby | None = None  # of a process that is not the leader
        self._handed_over = False  # to a leader that this process becomes
        self._leading = leading
        self._cache = cache
        self._watching = watching
        self._leader_uses = leader_uses
        self._lock = asyncio.Lock()
        # Acquired before the other lock, never after it: a view does not wait for a plan.
        self._planning = asyncio.Lock()
        self._seen: tuple[float, ClusterView] | None = None
        self._cluster_map: tuple[ClusterView, ClusterMap] | None = None
        self._with_rows: tuple[ClusterView, Snapshot] | None = None
        self._throttle = throttle
        self._diagnoser = LeaderDiagnoser(throttle, cache)
        self._consulted: float | None = None
        self._devices = DeviceRows.of(cache)
        self._dependencies = DependencyIndex(mirror, self._live)

    async def stand_by(self, show_ready: Callable[[bool], None]) -> None:
        """Follow the ledger and plan, until canceled: as a leader, this process then computes only what follows from changes.

        A process that leads immediately needs no copy. ``show_ready``: whether it has planned, and can copy the ledger now.
        """
        self._handed_over = False
        await asyncio.sleep(STANDBY_SECONDS)
        due, ready, announced, failed = _now(), False, False, False
        try:
            while True:
                try:
                    if await self.recent() is None:
                        ready = False
                    elif _now() >= due:
                        ready = await self._planned()
                        due = _now() + REPLAN_SECONDS  # the plan after an unusable one would be too
                        if ready and not announced and self._standby is not None:
                            _log.info("standby_ready", workloads=len(self._standby.ledger))
                            announced = True
                    failed = False
                except StoreUnavailable as error:
                    if not failed:
                        _log.info("ledger_not_copied", error=str(error))
                    failed = True
                show_ready(ready and not failed)
                await asyncio.sleep(FOLLOW_SECONDS)
        finally:
            show_ready(False)

    def hand_over(self) -> LeaderState | None:
        """The state of this standby, for the leader that this process becomes; None without one.

        From now on only the leader changes it. Until the leader has loaded it, this process has no new view.
        """
        self._handed_over = True
        standby, self._standby = self._standby, None
        return standby.hand_over() if standby is not None else None

    @property
    def follows(self) -> bool:
        """Whether this process has the state of a standby, which reads the marks of the watch."""
        return self._standby is not None

    async def recent(self) -> ClusterView | None:
        """The view for pages; None until this process has one. Can raise StoreUnavailable."""
        async with self._lock:
            return await self._view(_now() - MAX_AGE_SECONDS)

    async def latest(self) -> ClusterView | None:
        """A view that is not older than the request, so that it contains all results that users have seen before."""
        asked = _now()
        async with self._lock:
            return await self._view(asked)

    async def cluster_map(self) -> ClusterMap | None:
        """The cluster map; None until this process has a view. Can raise StoreUnavailable."""
        async with self._lock:
            seen = await self._view(_now() - MAX_AGE_SECONDS)
            if seen is None:
                return None
            if self._cluster_map is None or self._cluster_map[0] is not seen:
                counted = await self._counted(seen)
                made = await asyncio.to_thread(
                    cluster_map_of, counted, seen.snapshot, seen.uses, self._cache
                )
                self._cluster_map = (seen, made)
            return self._cluster_map[1]

    async def unmanaged(self) -> tuple[UnmanagedPod, ...] | None:
        """Unmanaged pods that hold GPUs; None until this process has a view. Can raise StoreUnavailable."""
        seen = await self.recent()
        return seen.unmanaged() if seen is not None else None

    async def budgets(self) -> BudgetReport | None:
        """The use of budgets and its forecast; None until this process has a view. Can raise StoreUnavailable."""
        seen = await self.recent()
        return await asyncio.to_thread(report, seen.snapshot) if seen is not None else None

    def pods(self, entry: Entry) -> tuple[PodRecord, ...] | None:
        """A workload's pods in the watch; None until the watch has listed all objects."""
        return tuple(self._mirror.pods_of(entry)) if self._watching() else None

    def checkpoint_at(self, entry: Entry) -> float | None:
        """The time of the last checkpoint that a job or its pods declare (unix seconds); None without one."""
        job = self._mirror.jobs.get(entry.uid)
        return self._mirror.checkpoint_of(job, entry.attempt) if job is not None else None

    def related(self, entry: Entry) -> RelatedJobs | None:
        """The jobs on which a job depends, and those that depend on it; None without any, or until the watch has listed all objects."""
        return self._dependencies.near(entry) if self._watching() else None

    async def diagnose(self, uid: str) -> Diagnosis | None:
        """Why a pending gang does not start, by a plan of the standby that is never committed."""
        return await self._diagnoser.diagnose(uid) if await self._planned() else None

    async def over_quota(self, config: QueueConfig) -> tuple[Excess, ...] | None:
        """Running gangs that exceed the quota of another configuration; None until this process has a view."""
        seen = await self.latest()
        return await excesses(await self._counted(seen), config) if seen is not None else None

    async def device_resources(self) -> frozenset[str]:
        """The resources that only devices of ResourceSlices provide; none until this process has a view."""
        seen = await self.recent()
        if seen is None:
            return frozenset()
        found = seen.snapshot
        mapped = found.config.rules.device_classes
        return device_resources(found.devices.classes, mapped, found.fleet.nodes)

    async def counted(self) -> Snapshot | None:
        """The snapshot for reports, with device rows; None until this process has a view. Can raise StoreUnavailable."""
        seen = await self.recent()
        return await self._counted(seen) if seen is not None else None

    def _live(self, uid: str) -> Entry | None:
        """The entry of a workload that is not finished, as of the last view."""
        leader_state = self._leading()
        if leader_state is not None:
            return leader_state.ledger.get(uid)
        return self._standby.ledger.get(uid) if self._standby is not None else None

    async def _counted(self, view: ClusterView) -> Snapshot:
        if self._with_rows is None or self._with_rows[0] is not view:
            made = await asyncio.to_thread(self._devices.added, view.snapshot)
            self._with_rows = (view, made)
        return self._with_rows[1]

    async def _view(self, since: float) -> ClusterView | None:
        """The last view, or a new one if that began before ``since``, on the event loop's clock."""
        if self._seen is not None and self._seen[0] > since:
            return self._seen[1]
        began = _now()
        leader_state = self._leading()
        if leader_state is not None:
            self._standby = None
            uses = present_uses(leader_state.gang_uses, leader_state.ledger)
            seen: ClusterView | None = ClusterView(
                leader_state.snapshot(seek_room=True), uses, functools.cache(leader_state.unmanaged)
            )
        else:
            seen = await self._copied()
        if seen is not None:
            self._seen = (began, seen)
        return seen

    async def _copied(self) -> ClusterView | None:
        """A view of a copy of the ledger; None until the watch has listed all objects."""
        if self._handed_over or not self._watching():
            return None
        if self._generation != self._mirror.generation:
            self._generation, self._standby = self._mirror.generation, None
        standby = self._standby = self._standby or self._stand_by()
        snapshot = await standby.snapshot()
        if snapshot is None:
            return None
        uses = present_uses(self._leader_uses(), standby.ledger)
        return ClusterView(snapshot, uses, functools.cache(standby.unmanaged))

    async def _planned(self) -> bool:
        """Whether there is a plan that is not too old."""
        async with self._planning:
            if self._consulted is not None and _now() - self._consulted < PLAN_SECONDS:
                return True
            seen = await self.recent()
            if seen is None:
                return False
            try:
                async with self._throttle.turn(wait=TIMEOUT_SECONDS):
                    work = partial(planned_around, seen.snapshot, cache=self._cache)
                    checked = await self._throttle.work_out(work, TIMEOUT_SECONDS)
            except TookTooLong:
                return False
            for violation in checked.violations:
                _log.error("plan_refused", violation=str(violation))
            if not checked.usable:
                return False
            self._diagnoser.planned(checked)
            self._consulted = _now()
            return True


def _now() -> float:
    """Of the event loop's clock."""
    return asyncio.get_running_loop().time()
