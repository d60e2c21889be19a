"""What this process can show of the cluster, whether it leads or stands by.

While it leads, from its own books. While it stands by, from its watch and a copy of the ledger that is brought up to date when
somebody asks, and is about a second old at most: so replicas answer alike. Who plans on it gets it as it is when he asks. What
GPUs do a standby has from the leader (:mod:`queuectl.control.leader.broadcast`).
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import structlog

from queuectl.control.leader.leader_state import LeaderState
from queuectl.control.ports import Clock, Store
from queuectl.control.questions.diagnosis import PATIENCE_SECONDS, Diagnoser, excesses
from queuectl.control.questions.standby import Standby
from queuectl.control.questions.throttle import PlannerThrottle
from queuectl.domain.cluster_map import ClusterMap
from queuectl.domain.diagnosis import Diagnosis, Excess
from queuectl.domain.errors import BadInput, TookTooLong
from queuectl.domain.ledger import Entry
from queuectl.domain.queues import QueueConfig
from queuectl.domain.records import PodRecord
from queuectl.domain.snapshot import Snapshot, SolverLimits
from queuectl.domain.unmanaged import UnmanagedPod
from queuectl.domain.utilization import GangUse
from queuectl.planner import plan
from queuectl.planner.cache import PlannerCache
from queuectl.reports.cluster_map import cluster_map_of
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror

LOOK_SECONDS: Final = 1.0  # how old what is shown may be
PLAN_SECONDS: Final = 5.0  # how old the plan of a standby may be, by which it says why gangs wait

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Everything at one moment.

    Attributes:
        uses: what gangs do with their GPUs, by uid.
        unmanaged: lists the pods outside the queues that hold GPUs. The list is made at the first call and then kept.
    """

    snapshot: Snapshot
    uses: Mapping[str, GangUse] = field(default_factory=dict)
    unmanaged: Callable[[], tuple[UnmanagedPod, ...]] = tuple


class Viewer:
    """Of one process. Who asks at the same time gets the same."""

    def __init__(
        self,
        store: Store,
        mirror: Mirror,
        limits: SolverLimits,
        clock: Clock,
        *,
        leading: Callable[[], LeaderState | None],
        watching: Callable[[], bool],
        heard: Callable[[], Mapping[str, GangUse]],
        throttle: PlannerThrottle,
        cache: PlannerCache,
    ) -> None:
        """Show nothing yet.

        Args:
            store: the database.
            mirror: of the cluster.
            limits: of plans.
            clock: of the process.
            leading: our books while we lead and they are loaded.
            watching: whether the watch has listed everything.
            heard: what gangs do with their GPUs as the leader says, by uid.
            throttle: of this process's questions to the planner.
            cache: of this process.
        """
        self._stand_by = partial(Standby, store, mirror, limits, clock)
        self._mirror = mirror
        self._standby: Standby | None = None  # while we are asked and do not lead
        self._leading = leading
        self._cache = cache
        self._watching = watching
        self._heard = heard
        self._lock = asyncio.Lock()
        # Taken before the other, never after: looking does not wait for a plan.
        self._planning = asyncio.Lock()
        self._seen: tuple[float, ClusterView] | None = None
        self._cluster_map: tuple[ClusterView, ClusterMap] | None = None
        self._throttle = throttle
        self._diagnoser = Diagnoser(throttle, cache)
        self._consulted: float | None = None

    async def seen(self) -> ClusterView | None:
        """What there is, as pages show it; None while this process does not know yet. May raise StoreUnavailable."""
        async with self._lock:
            return await self._look(_now() - LOOK_SECONDS)

    async def latest(self) -> ClusterView | None:
        """The same with nothing in it older than the question: what somebody has just been told is in it, too."""
        asked = _now()
        async with self._lock:
            return await self._look(asked)

    async def cluster_map(self) -> ClusterMap | None:
        """What stands where; None while this process does not know yet. May raise StoreUnavailable."""
        async with self._lock:
            seen = await self._look(_now() - LOOK_SECONDS)
            if seen is None:
                return None
            if self._cluster_map is None or self._cluster_map[0] is not seen:
                made = await asyncio.to_thread(
                    cluster_map_of, seen.snapshot, seen.uses, self._cache
                )
                self._cluster_map = (seen, made)
            return self._cluster_map[1]

    async def unmanaged(self) -> tuple[UnmanagedPod, ...] | None:
        """Pods outside the queues that hold GPUs; None while this process does not know yet. May raise StoreUnavailable."""
        seen = await self.seen()
        return seen.unmanaged() if seen is not None else None

    def pods(self, entry: Entry) -> tuple[PodRecord, ...] | None:
        """A workload's pods as the watch last showed them; None before the watch has listed everything."""
        return tuple(self._mirror.pods_of(entry)) if self._watching() else None

    async def diagnose(self, uid: str) -> Diagnosis | None:
        """Of a standby: why a waiting gang does not start, by a plan of its own that nobody carries out."""
        return await self._diagnoser.diagnose(uid) if await self._planned() else None

    async def over_quota(self, config: QueueConfig) -> tuple[Excess, ...] | None:
        """What runs and would be over quota under another configuration; None while this process does not know yet."""
        seen = await self.latest()
        return await excesses(seen.snapshot, config) if seen is not None else None

    async def _look(self, since: float) -> ClusterView | None:
        """The last look, or another one if that began before ``since``, of the event loop's clock."""
        if self._seen is not None and self._seen[0] > since:
            return self._seen[1]
        began = _now()
        leader_state = self._leading()
        if leader_state is not None:
            self._standby = None
            uses = _present(leader_state.gang_uses, leader_state.ledger)
            seen: ClusterView | None = ClusterView(
                leader_state.snapshot(seek_room=True), uses, functools.cache(leader_state.unmanaged)
            )
        else:
            seen = await self._copied()
        if seen is not None:
            self._seen = (began, seen)
        return seen

    async def _copied(self) -> ClusterView | None:
        """From a copy of the ledger; None before the watch has listed everything."""
        if not self._watching():
            return None
        standby = self._standby = self._standby or self._stand_by()
        try:
            snapshot = await standby.snapshot()
        except BadInput as error:  # only a hand in the database gets here
            _log.warning("configuration_unreadable", why=str(error))
            return None
        uses = _present(self._heard(), standby.ledger)
        return ClusterView(snapshot, uses, functools.cache(standby.unmanaged))

    async def _planned(self) -> bool:
        """Whether the consultation knows a plan that is not too old."""
        async with self._planning:
            if self._consulted is not None and _now() - self._consulted < PLAN_SECONDS:
                return True
            seen = await self.seen()
            if seen is None:
                return False
            try:
                async with self._throttle.turn(wait=PATIENCE_SECONDS):
                    work = partial(plan, seen.snapshot, cache=self._cache)
                    decided = await self._throttle.work_out(work, PATIENCE_SECONDS)
            except TookTooLong:
                return False
            if decided.cut:
                return False
            self._diagnoser.planned(seen.snapshot, decided)
            self._consulted = _now()
            return True


def _now() -> float:
    """Of the event loop's clock."""
    return asyncio.get_running_loop().time()


def _present(uses: Mapping[str, GangUse], ledger: Ledger) -> dict[str, GangUse]:
    """Those that are of what holds GPUs now, not of an attempt before."""
    return {
        uid: use
        for uid, use in uses.items()
        if (entry := ledger.get(uid)) is not None and entry.attempt == use.attempt
    }
