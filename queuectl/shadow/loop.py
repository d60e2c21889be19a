"""The process of shadow mode: elects a leader, which reads the cluster at intervals and stores what each observation adds.

The leader has no actuator, and its client of the API server sends no write but those of the Lease. A new leader continues from the
last observation in the database, so a change of the leader loses only the observations in between. The work of one observation takes
at most a tenth of the time: an observation that takes long delays the next one. The simulated report is made in a child process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import structlog

from queuectl.control.leader.election import Leadership
from queuectl.control.leader.schedule import supervised
from queuectl.control.ports import Election
from queuectl.control.progress import LoopProgress, SteadyClock, longest_step
from queuectl.control.settings import Settings
from queuectl.db.ports import LeaderStore, ShadowStore
from queuectl.domain.containment import Containment
from queuectl.domain.errors import (
    BadInput,
    ClusterError,
    Fenced,
    LeadershipLost,
    StaleSnapshot,
    StoreUnavailable,
)
from queuectl.domain.estimates import DAY
from queuectl.domain.followed import FollowedReport
from queuectl.domain.queries import DocumentKey
from queuectl.domain.shadow import LastObservation, Observation
from queuectl.domain.shadow_trace import TraceBook
from queuectl.objects.kinds import JobKinds
from queuectl.ownership.follower import ObjectFollower
from queuectl.ownership.source import ObjectSource
from queuectl.ownership.status_forms import FORMS
from queuectl.shadow.configuration import on_hosts
from queuectl.shadow.folding import fold
from queuectl.shadow.observing import ClusterObserver
from queuectl.shadow.simulation import Simulation, SimulationFailed
from queuectl.shadow.tracing import REMEMBERED, after, trace
from queuectl.telemetry.metrics import MetricsRecorder

log = structlog.get_logger()

_SHARE: Final = 10.0
"""An observation that takes t seconds is followed by the next one after at least ten times t."""
_MISSED: Final = 3.0
"""Intervals without an observation, above which the time counts as not observed."""
_PRUNE_SECONDS: Final = 3600.0
_AGAIN_SECONDS: Final = 1.0  # between batches of old records
_STEPS: Final = 4
"""The longest observation, in units of the longest step of a leader: it reads all objects again for each one that it leaves out."""


class ObservedCluster(Election, Protocol):
    """All that shadow mode does with the API server."""

    async def objects(self) -> Sequence[dict[str, Any]]:
        """All objects that a plan depends on, with kind and apiVersion. Raises ClusterError."""


class ObservingStore(LeaderStore, Protocol):
    """The database of shadow mode."""

    @property
    def shadow(self) -> ShadowStore:
        """The records."""


class ShadowLoop:
    """Runs shadow mode until it is stopped."""

    def __init__(
        self,
        *,
        store: ObservingStore,
        cluster: ObservedCluster,
        settings: Settings,
        clock: SteadyClock,
        kinds: JobKinds,
        containment: Containment,
        simulation: Simulation,
        metrics: MetricsRecorder,
        objects: ObjectSource | None,
    ) -> None:
        """Connect nothing yet.

        Args:
            store: the database.
            cluster: the API server.
            settings: of the process.
            clock: of the database.
            kinds: the job kinds.
            containment: of the process.
            simulation: makes the simulated report.
            metrics: of the process.
            objects: that own the configuration; None = the database owns it.
        """
        self._simulation = simulation
        self._objects = objects
        self._followed = FollowedReport()
        self._configured = asyncio.Event()  # the catalog has the configuration of the objects
        self._metrics = metrics
        self._book: TraceBook | None = None
        self._took = 0.0  # seconds of the last simulation
        self._rests_until = 0.0  # on the monotonic clock, after the last simulation
        self._store = store
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self.containment = containment
        self._observer = ClusterObserver(settings.solver.limits, kinds)
        self._progress = LoopProgress(_STEPS * longest_step(settings.solver.wall_seconds))
        self._failure = "no observation yet"
        self._leads = False
        self._leadership = Leadership.of(cluster, store, clock, settings)

    def stalled(self) -> str:
        """Why this process is to be ended; empty while it makes progress."""
        return self._progress.stalled if self._leads else ""

    def blockers(self) -> list[str]:
        """Why this process is not ready as a leader or a standby; empty if it is."""
        failures = [self._leadership.failure, "" if self._leadership.follows else self._failure]
        return [failure for failure in failures if failure]

    async def run(self, stop: asyncio.Event) -> None:
        """Run until ``stop`` is set."""
        settings = self._settings
        self._metrics.shadow.begin(settings.shadow_days * DAY, settings.shadow_simulation_seconds)
        async with asyncio.TaskGroup() as group:
            lead = group.create_task(self._lead(), name="lead")
            await stop.wait()
            self._observer.stop.stop()
            lead.cancel()
        await self._leadership.release()

    async def _lead(self) -> None:
        while True:
            epoch = await self._leadership.acquire()
            self._metrics.leading(epoch)
            try:
                await self._lead_until_lost(epoch)
            except* (LeadershipLost, Fenced) as lost:
                log.warning("leadership_lost", error=str(lost.exceptions[0]))
            finally:
                self._leads = False
                self._book = None
                self._configured.clear()
                self._metrics.following()

    async def _lead_until_lost(self, epoch: int) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._leadership.keep(self.stalled), name="lease")
            if self._objects is None:
                self._configured.set()
            else:
                objects = self._objects
                self._supervise(group, "objects", lambda: self._follow(objects, epoch))
            self._supervise(group, "observations", lambda: self._observe(epoch))
            self._supervise(group, "prune", lambda: self._prune(epoch))
            self._supervise(group, "simulation", lambda: self._simulate(epoch))

    def _supervise(
        self, group: asyncio.TaskGroup, name: str, job: Callable[[], Awaitable[None]]
    ) -> None:
        group.create_task(supervised(name, job, self.containment), name=name)

    async def _follow(self, objects: ObjectSource, epoch: int) -> None:
        """Keep the catalog as the objects are that own the configuration, until canceled. Their statuses are not written.

        Raises:
            Fenced: another leader has taken over.
        """
        owner = self._settings.configuration_owner
        await ObjectFollower(
            objects,
            self._store,
            owner,
            self._settings.configuration_settle_seconds,
            self._clock,
            self._show,
            epoch,
            lambda _: self._configured.set(),
            FORMS[owner],
        ).run()

    def _show(self, report: FollowedReport) -> None:
        self._followed = report
        self._metrics.followed.show(report)

    async def _observe(self, epoch: int) -> None:
        """Store an observation at each interval until canceled.

        Raises:
            Fenced: another leader has taken over.
        """
        self._leads = True
        with self._progress.idle():
            await self._configured.wait()
        took = 0.0
        while True:
            self._progress.step()
            began = time.monotonic()
            try:
                await self._observe_once(epoch, self._longest(took))
                self._failure = ""
            except (BadInput, ClusterError, StaleSnapshot, StoreUnavailable) as error:
                self._failure = f"the last observation failed: {error}"
                log.warning("observation_failed", error=str(error))
                self._metrics.shadow.failed()
            took = time.monotonic() - began
            with self._progress.idle():
                await asyncio.sleep(max(self._settings.shadow_seconds, _SHARE * took) - took)

    def _longest(self, took: float) -> float:
        """Seconds between two observations, above which the time between them is not observed. ``took``: seconds of the last one."""
        return _MISSED * max(self._settings.shadow_seconds, _SHARE * took)

    async def _observe_once(self, epoch: int, longest: float) -> None:
        """Observe the cluster once, and store it."""
        _, stored = await self._store.configuration()
        now = self._clock()
        bodies = on_hosts([*stored, *await self._cluster.objects()])
        # An observation that is not stored leaves no book, so the next one reads it again.
        book, self._book = self._book, None
        if book is None:
            book = await self._store.shadow.book(now - REMEMBERED)
        observation = await asyncio.to_thread(self._observer.observation, bodies, now)
        observation = replace(
            observation, left_out=(*_without_effect(self._followed), *observation.left_out)
        )
        before = await self._store.shadow.last()
        records = await self._store.shadow.records(_gangs_of(before, observation))
        step, traced = await asyncio.to_thread(
            lambda: (fold(before, observation, records, longest), trace(book, observation, longest))
        )
        over = before.at if before is not None else None
        await self._store.shadow.keep(step, traced, over=over, epoch=epoch)
        self._book = after(book, traced)
        self._metrics.shadow.observed(observation, traced.span.began)

    async def _simulate(self, epoch: int) -> None:
        """Make the simulated report again at each interval, until canceled. It takes at most a tenth of the time.

        Raises:
            Fenced: another leader has taken over.
        """
        while True:
            try:
                await self._simulate_if_due(epoch)
            except (SimulationFailed, StoreUnavailable) as error:
                log.warning("simulation_failed", error=str(error))
            await asyncio.sleep(self._settings.shadow_seconds)

    async def _simulate_if_due(self, epoch: int) -> None:
        interval = max(self._settings.shadow_simulation_seconds, _SHARE * self._took)
        progress = await self._store.shadow.progress()
        setting, span, now = self._observer.setting, progress.span, self._clock()
        if setting is None or span is None or span.until - span.began < interval:
            return
        made, began = progress.simulated_at, time.monotonic()
        if began < self._rests_until or (made is not None and 0.0 <= now - made < interval):
            return
        try:
            report = await self._simulation(setting, now)
        finally:
            self._took = time.monotonic() - began
            self._rests_until = time.monotonic() + _SHARE * self._took
        await self._store.shadow.keep_simulated(report, epoch=epoch)
        self._metrics.shadow.simulated(report)

    async def _prune(self, epoch: int) -> None:
        """Delete what is older than the retention, until canceled.

        Raises:
            Fenced: another leader has taken over.
        """
        while True:
            oldest = self._clock() - self._settings.shadow_days * DAY
            try:
                deleted = await self._store.shadow.prune(oldest, epoch=epoch)
            except StoreUnavailable as error:
                log.info("old_observations_not_deleted", error=str(error))
                deleted = 0
            await asyncio.sleep(_AGAIN_SECONDS if deleted else _PRUNE_SECONDS)


def _without_effect(followed: FollowedReport) -> Iterator[str]:
    """The objects of the configuration whose content does not act, and the kinds that are not known, with the reasons."""
    for source in followed.sources:
        if source.fault:
            yield f"{source.resource}: {source.fault}"
    for faulty in followed.faulty:
        key = DocumentKey(faulty.kind, faulty.namespace, faulty.name)
        yield f"{key}: {faulty.error}"


def _gangs_of(before: LastObservation | None, observation: Observation) -> list[str]:
    """The uids of all gangs of two observations, each once."""
    uids = [one.gang.uid for one in observation.waiting]
    uids += [one.gang.uid for one in observation.unbound]
    if before is not None:
        uids += [*before.waits, *before.unbound]
    return list(dict.fromkeys(uids))
