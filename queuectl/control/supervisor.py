"""The process: one watch, at most one leader at a time, and the readiness of the process.

An unexpected error about one unit of input is contained (:mod:`queuectl.domain.containment`). Each other error that cannot be handled
in place ends the process, and the next start recovers from the database and the watch.
A normal end is orderly: the planner stops, writes in progress are answered, and the lease is released.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import structlog

from queuectl.control.careful import CarefulStart, RunChild
from queuectl.control.kueue import KueueDetector
from queuectl.control.leader import estimates
from queuectl.control.leader.containers import ContainerWatch
from queuectl.control.leader.election import Leadership
from queuectl.control.leader.first_queues import FirstQueues
from queuectl.control.leader.leader_state import LeaderState
from queuectl.control.leader.loop import Loop
from queuectl.control.leader.periodic import Broadcast, NodeHealthWatch, UseWatch, share
from queuectl.control.leader.recovery import lost
from queuectl.control.leader.schedule import Job, supervised
from queuectl.control.ports import Cluster, ContainerSource, HealthSource, UseSource
from queuectl.control.process_memory import FullCollections, return_freed_memory
from queuectl.control.progress import SteadyClock
from queuectl.control.questions.preview import Previewer
from queuectl.control.questions.throttle import PlannerThrottle
from queuectl.control.questions.viewer import Viewer
from queuectl.control.questions.what_if import WhatIfPlanner
from queuectl.control.settings import Settings
from queuectl.db.ports import LeaderStore
from queuectl.domain.containment import Boundary, Containment, SetAside
from queuectl.domain.diagnosis import Diagnosis
from queuectl.domain.errors import (
    ClusterError,
    Fenced,
    LeadershipLost,
    StoreError,
    StoreUnavailable,
)
from queuectl.domain.estimates import ExpectedStarts
from queuectl.domain.ledger import Checked
from queuectl.domain.processes import ProcessEnd
from queuectl.domain.records import Delta
from queuectl.domain.utilization import GangUse
from queuectl.objects.configuration.owners import FOLLOWED, Owner
from queuectl.objects.kinds import JobKinds
from queuectl.ownership.follower import ObjectFollower
from queuectl.ownership.own_status import UnownedStatusForm
from queuectl.ownership.source import ObjectSource
from queuectl.ownership.status_form import QueuesNow, QueueUse
from queuectl.ownership.status_forms import FORMS
from queuectl.ownership.status_writer import StatusWriter, WriteRate
from queuectl.ownership.unowned import UnownedObjects
from queuectl.planner.cache import PlannerCache
from queuectl.state.mirror import Mirror
from queuectl.telemetry.metrics import MetricsRecorder
from queuectl.telemetry.tracing import SpanSink, TraceExport

log = structlog.get_logger()

PROBE_SECONDS = 2.0
MOST_ASKED = 200  # jobs whose requests are computed without a pause: a tenth of a millisecond each
MERGE_SECONDS = 0.1  # changes of the configuration within this time are applied together


class Supervisor:
    """Runs the controller until it is stopped. It leads whenever it holds the lease."""

    def __init__(
        self,
        *,
        store: LeaderStore,
        cluster: Cluster,
        metrics: MetricsRecorder,
        settings: Settings,
        clock: SteadyClock,
        kinds: JobKinds,
        containment: Containment | None = None,
        use_source: UseSource | None = None,
        health_source: HealthSource | None = None,
        container_source: ContainerSource | None = None,
        run_child: RunChild | None = None,
        objects: ObjectSource | None = None,
        spans: SpanSink | None = None,
        unowned: ObjectSource | None = None,
    ) -> None:
        """Connect nothing yet.

        Args:
            store: the database.
            cluster: the API server.
            metrics: of the process.
            settings: of the process.
            clock: of the database.
            kinds: the job kinds.
            containment: of the process; None = its own.
            use_source: of GPU utilization; None without one.
            health_source: of faults of GPUs; None without one.
            container_source: of the CPU and the memory of pods; None without one.
            run_child: runs a child process of a careful start; None = no careful starts.
            objects: that own the configuration; None = the database owns it.
            spans: collector of the spans of gangs; None without one.
            unowned: objects of ``queuectl.dev`` that do not own it; None = their status is not written.
        """
        self._spans = spans
        self._objects = objects
        self._unowned = unowned
        self._use_source = use_source
        self._health_source = health_source
        self._container_source = container_source
        self._store = store
        self._cluster = cluster
        self._metrics = metrics
        self._settings = settings
        self._clock = clock
        self.kinds = kinds
        self.containment = containment or Containment(clock)
        self._careful = CarefulStart(
            store, settings.holder, self.containment, clock, metrics.careful, run_child
        )
        self._relist = asyncio.Event()
        self._mirror = Mirror.of(kinds, self.containment, MOST_ASKED)
        self.cache = PlannerCache()
        self._missing = self._mirror.resources
        self._synced = asyncio.Event()
        self._unfinished = asyncio.Event()  # an empty batch of the mirror is due
        self._policies: list[str] = ["admission policies: not probed yet"]
        self._protected = asyncio.Event()  # the policies have been in force
        self._lost = [
            "database: not compared with the cluster yet"
        ]  # why it does not match the cluster
        self._kueue_detector = KueueDetector(cluster, store, kinds)
        self._kueue: bool | None = None  # Kueue's keys count; None = not known yet
        self._leading: Loop | None = None
        self._stalled = ""
        self._collections = FullCollections()
        fresh = max(settings.utilization.fresh_seconds, 2 * estimates.EVERY_SECONDS)
        self._broadcast = Broadcast(store, clock, fresh)
        self._throttle = PlannerThrottle(settings.planning_share)
        self._what_ifs = PlannerThrottle(settings.planning_share)  # long ones delay no explanation
        self.viewer = Viewer(
            store,
            self._mirror,
            self._new_state,
            clock,
            leading=self._leader_state,
            watching=self._synced.is_set,
            leader_uses=lambda: self._broadcast.now.uses,
            throttle=self._throttle,
            cache=self.cache,
        )
        self.what_if = WhatIfPlanner(
            self.viewer.latest, store, self._mirror, self._what_ifs, self.cache
        )
        self.previewer = Previewer(self.viewer.latest, self._throttle, self.cache)
        self._leadership = Leadership.of(cluster, store, clock, settings)

    def stalled(self) -> str:
        """Why this process is to be ended; empty while it makes progress. A hung loop of a leader never recovers."""
        return self._stalled or (self._leading.progress.stalled if self._leading else "")

    def blockers(self) -> list[str]:
        """Why this process is not ready as a leader or a standby; empty if it is."""
        waiting = [f"watch: {resource} not listed yet" for resource in sorted(self._missing)]
        failure = [self._leadership.failure] if self._leadership.failure else []
        careful = [self._careful.blocker] if self._careful.blocker else []
        behind = self._leading is not None and not self._leading.caught_up.is_set()
        waiting += [f"watch: {why}" for why in self._cluster.uncompared() if behind]
        return careful + waiting + self._policies + self._lost + failure

    async def diagnose(self, uid: str) -> Diagnosis | None:
        """Why a pending workload does not start; None while this process has no plan."""
        return await (self._leading or self.viewer).diagnose(uid)

    async def check(self) -> Checked | None:
        """The violations in a complete check of the invariants; None if this process is not the leader. Can raise StoreUnavailable."""
        leading = self._leading
        return await leading.check() if leading is not None and leading.loaded else None

    async def leader(self) -> str:
        """The name of the leader; empty without one. Can raise ClusterUnavailable."""
        record = await self._cluster.read_leader()
        return record.holder if record is not None else ""

    def _new_state(self) -> LeaderState:
        settings = self._settings
        return LeaderState(
            self._mirror,
            settings.solver.limits,
            settings.unschedulable_seconds,
            self._clock,
            max_age_seconds=settings.utilization.fresh_seconds,
        )

    def _leader_state(self) -> LeaderState | None:
        leading = self._leading
        return leading.leader_state if leading is not None and leading.loaded else None

    def gang_use(self, uid: str) -> GangUse | None:
        """The GPU utilization of a gang in the leader's last evaluation; None without a source."""
        leading = self._leading
        return (leading.leader_state.gang_uses if leading else self._broadcast.now.uses).get(uid)

    def expected_starts(self) -> ExpectedStarts:
        """The expected starts of pending gangs, by the leader's last estimate."""
        leading = self._leading
        return leading.leader_state.estimates.now if leading else self._broadcast.now.starts

    async def run(self, stop: asyncio.Event) -> None:
        """Run until ``stop`` is set."""
        mirror = self._mirror
        self._metrics.sizes.watch(
            asyncio.get_running_loop(),
            {
                "nodes": lambda: len(mirror.nodes),
                "pods": lambda: len(mirror.pods),
                "jobs": lambda: len(mirror.jobs),
            },
        )
        await self._careful.begun()
        how = ProcessEnd.UNKNOWN
        try:
            with self._collections.shortened():
                await self._run(stop)
            how = ProcessEnd.ORDERLY
        except BaseException as error:
            how = end_of(error)
            raise
        finally:
            if how is not ProcessEnd.UNKNOWN:
                await self._careful.ended(how)
        await self._leadership.release()

    async def _run(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(self._watch(), name="watch")
            lead = group.create_task(self._lead(), name="lead")
            follow_broadcast = self._supervise(
                group,
                "findings of others",
                lambda: self._broadcast.follow(lambda: self._leading is None, self._mirror),
            )
            follow_suspects = self._supervise(
                group, "suspects", lambda: self._careful.follow(self._released)
            )
            requests = self._supervise(group, "requests of jobs", self._finish_batches)
            memory = self._supervise(group, "memory", return_freed_memory)
            await stop.wait()
            log.info("shutdown_started")
            self._throttle.stop()
            self._what_ifs.stop()
            if self._leading is not None:
                await self._leading.wind_down(self._settings.shutdown_seconds)
            for task in (lead, follow_broadcast, follow_suspects, requests, memory, watch):
                task.cancel()

    def _supervise(self, group: asyncio.TaskGroup, name: str, job: Job) -> asyncio.Task[None]:
        return group.create_task(supervised(name, job, self.containment), name=name)

    async def _watch(self) -> None:
        """Watch the cluster. Start again if queuectl begins or stops to manage jobs with Kueue's keys, or objects are decoded again."""
        await self._careful.begin()
        self._kueue = await self._kueue_detector.keys_count()
        while True:
            self._mirror.expect_again()
            async with asyncio.TaskGroup() as group:
                probing = group.create_task(self._probe_policies(kueue=self._kueue))
                if self._kueue:
                    self._mirror.take_over(await self._kueue_detector.admissions())
                watch = self._cluster.watch(self._sink, self._resource_synced, kueue=self._kueue)
                watching = group.create_task(watch)
                changed = group.create_task(self._kueue_detector.changed(self._kueue))
                relist = group.create_task(self._relist.wait())
                await asyncio.wait((changed, relist), return_when=asyncio.FIRST_COMPLETED)
                if changed.done():
                    self._kueue = changed.result()
                self._relist.clear()
                for task in (watching, probing, changed, relist):
                    task.cancel()

    def _released(self, units: Sequence[SetAside]) -> None:
        """Handle units again that had ended a process, and with which a child has passed."""
        if any(one.boundary in (Boundary.OBJECT, Boundary.RECORD) for one in units):
            self._relist.set()
        touched = {one.key for one in units}
        if touched and self._leading is not None:
            self._mirror.touched |= touched
            self._mirror.planning_changed = True
            self._leading.react(touched)

    def _sink(self, deltas: Sequence[Delta]) -> None:
        touched = self._mirror.apply(deltas)
        if self._leading is not None:
            self._leading.react(touched)
        elif not self.viewer.follows:
            self._mirror.forget_marks()  # nothing reads them, and what begins later begins with all objects
        if self._mirror.unfinished:
            self._unfinished.set()

    async def _finish_batches(self) -> None:
        """Compute the requests of further jobs after each batch that left some, with time for other tasks in between."""
        while True:
            await self._unfinished.wait()
            self._unfinished.clear()
            self._sink(())
            self._note_synced()
            await asyncio.sleep(0)

    def _resource_synced(self, resource: str) -> None:
        self._missing.discard(resource)
        self._note_synced()

    def _note_synced(self) -> None:
        if not self._missing and not self._mirror.unfinished:
            self._synced.set()

    async def _lead(self) -> None:
        await self._protected.wait()
        await self._synced.wait()
        while True:
            await self._database_found()
            epoch = await self._led()
            self._metrics.leading(epoch)
            self._leading = Loop(
                store=self._store,
                cluster=self._cluster,
                mirror=self._mirror,
                metrics=self._metrics,
                settings=self._settings,
                clock=self._clock,
                cache=self.cache,
                throttle=self._throttle,
                leader_state=self.viewer.hand_over() or self._new_state(),
            )
            try:
                await self._lead_until_lost(self._leading, epoch)
            except* (LeadershipLost, Fenced) as lost:
                log.warning("leadership_lost", error=str(lost.exceptions[0]))
                self._stalled = self._leading.progress.stalled
                await self._careful.ended(ProcessEnd.LOST_LEASE)
                await self._careful.begun()
            finally:
                self._leading = None
                self._metrics.following()
            # The state of the leadership has reference cycles, and a standby allocates too little for a full collection within hours.
            self._collections.collect()

    async def _led(self) -> int:
        """Wait as a standby until this process leads. Returns its epoch."""
        async with asyncio.TaskGroup() as group:
            stand_by = partial(self.viewer.stand_by, self._metrics.standby_ready)
            preparing = self._supervise(group, "standby", stand_by)
            epoch = await self._leadership.acquire()
            preparing.cancel()
        return epoch

    async def _database_found(self) -> None:
        """Return when the database matches the gangs in the cluster: with another database, they could start twice."""
        while True:
            try:
                why = await lost(self._store, self._mirror)
            except StoreUnavailable as error:
                log.warning("database_not_reached", error=str(error))
            else:
                self._lost = [f"database: {why}"] if why else []
                if not why:
                    return
                log.warning("database_not_matched", reason=why)
            await asyncio.sleep(PROBE_SECONDS)

    async def _lead_until_lost(self, loop: Loop, epoch: int) -> None:
        async with asyncio.TaskGroup() as group:
            budgets = loop.leader_state.planning.budgets
            keeping = self._leadership.keep(lambda: loop.progress.stalled, lambda: budgets.counted)
            group.create_task(keeping, name="lease")
            with loop.progress.idle():
                await self._careful.begin()  # earlier leaders can have ended for an unknown reason
            await self._broadcast.hand_over(self._mirror)  # before this leader writes its own
            group.create_task(loop.run(epoch), name="loop")
            state, health = loop.leader_state, self._health_watch()
            jobs: dict[str, Job] = {
                "configuration": lambda: self._follow_configuration(loop),
                "commands": lambda: self._follow_commands(loop),
                "findings": lambda: share(state, self._mirror, self._store, self._clock, epoch),
                "node health": lambda: self._judge_nodes(loop, health),
            }
            rate = WriteRate()
            if self._objects is not None:
                jobs |= self._object_jobs(self._objects, loop, epoch, rate)
            elif self._settings.proposed_namespaces:
                jobs["first queues"] = lambda: self._propose(loop, epoch)
            if self._unowned is not None:
                jobs |= self._unowned_jobs(self._unowned, loop, rate)
            if self._spans is not None:
                export = TraceExport(
                    self._store, self._spans, self._metrics.spans, self._clock, epoch
                )
                jobs["traces"] = export.run
            if self._use_source is not None:
                use = self._use_watch(self._use_source)
                jobs["utilization"] = lambda: use.run(
                    lambda: state.ledger,
                    lambda: state.config,
                    state.holdings.borrowing,
                    loop.measured,
                )
            if self._container_source is not None:
                containers = self._container_watch(self._container_source)
                jobs["containers"] = lambda: containers.run(
                    self._store.usage, lambda: state.ledger, epoch
                )
            for name, job in jobs.items():
                self._supervise(group, name, job)

    def _object_jobs(
        self, source: ObjectSource, loop: Loop, epoch: int, rate: WriteRate
    ) -> dict[str, Job]:
        """Follow the objects that own the configuration, and write their statuses."""
        owner = self._settings.configuration_owner
        form = FORMS[owner]
        writer = StatusWriter(
            source, form, lambda: self._queues_now(loop), self._clock, rate, self.containment
        )

        def follower() -> ObjectFollower:
            return ObjectFollower(
                source,
                self._store,
                owner,
                self._settings.configuration_settle_seconds,
                self._clock,
                self._metrics.followed.show,
                epoch,
                writer.decided,
                form,
            )

        return {"objects": lambda: follower().run(), "object statuses": writer.run}

    def _unowned_jobs(self, source: ObjectSource, loop: Loop, rate: WriteRate) -> dict[str, Job]:
        """Write in the status of objects that they do not own the configuration."""
        form = UnownedStatusForm(self._settings.configuration_owner)
        writer = StatusWriter(
            source, form, lambda: self._queues_now(loop), self._clock, rate, self.containment
        )
        kinds = FOLLOWED[Owner.KUBERNETES]

        def unowned() -> UnownedObjects:
            return UnownedObjects(source, kinds, self._clock, writer.decided)

        return {"unowned objects": lambda: unowned().run(), "unowned statuses": writer.run}

    def _queues_now(self, loop: Loop) -> QueuesNow | None:
        if not loop.loaded:
            return None
        namespaces, state = self._mirror.namespaces, loop.leader_state

        def labels(namespace: str) -> dict[str, str]:
            record = namespaces.get(namespace)
            return dict(record.labels) if record is not None else {}

        def use() -> QueueUse:
            holdings = state.holdings
            held, kept = dict(holdings.held), dict(holdings.kept)
            return QueueUse(list(state.ledger), held, kept, holdings.effective)

        return QueuesNow(state.config, labels, use)

    def _use_watch(self, source: UseSource) -> UseWatch:
        rule = self._settings.utilization
        return UseWatch(
            source,
            self._mirror,
            self._metrics.utilization,
            self._clock,
            evaluation_seconds=rule.evaluation_seconds,
            scrape_seconds=rule.sample_seconds,
            timeout=rule.timeout_seconds,
        )

    def _container_watch(self, source: ContainerSource) -> ContainerWatch:
        rule = self._settings.utilization
        return ContainerWatch(
            source,
            self._mirror,
            self._clock,
            evaluation_seconds=rule.evaluation_seconds,
            scrape_seconds=rule.scrape_seconds,
            timeout=rule.timeout_seconds,
        )

    async def _propose(self, loop: Loop, epoch: int) -> None:
        """Propose queues for the nodes as the cluster has them now, if there was never a configuration."""
        await loop.caught_up.wait()
        namespaces = self._settings.proposed_namespaces
        await FirstQueues(self._store, self._mirror, namespaces, self._clock, epoch).run()

    async def _judge_nodes(self, loop: Loop, health: NodeHealthWatch) -> None:
        """Judge the health of nodes as the cluster shows them now."""
        await loop.caught_up.wait()
        state = loop.leader_state
        await health.run(lambda: state.config, lambda: state.ledger, loop.judged, loop.compared)

    def _health_watch(self) -> NodeHealthWatch:
        asked = self._settings.utilization
        return NodeHealthWatch(
            self._health_source,
            self._mirror,
            self._metrics.node_health,
            self._clock,
            evaluation_seconds=asked.evaluation_seconds,
            timeout=asked.timeout_seconds,
        )

    async def _follow_configuration(self, loop: Loop) -> None:
        """Apply a change at once, and changes that follow within a short time together."""
        while True:
            try:
                await self._store.config_changed(loop.leader_state.config.revision)
                await loop.configuration_changed()
                await asyncio.sleep(MERGE_SECONDS)
            except StoreUnavailable as error:
                log.warning("configuration_not_read", error=str(error))
                await asyncio.sleep(PROBE_SECONDS)

    async def _follow_commands(self, loop: Loop) -> None:
        while True:
            try:
                await self._store.commands_waiting()
                await loop.commands_added()
            except StoreUnavailable as error:
                log.warning("commands_not_read", error=str(error))
                await asyncio.sleep(PROBE_SECONDS)

    async def _probe_policies(self, *, kueue: bool) -> None:
        """Wait until the policies are in force: before that, a new job is neither suspended nor gated.

        This process is not ready until the check succeeds. Missing permissions, or an API server that is too old or unavailable,
        make it fail.
        """
        while True:
            try:
                self._policies = await self._cluster.probe_policies(kueue=kueue)
            except ClusterError as error:
                self._policies = [f"admission policies: not probed: {error}"]
            if not self._policies:
                self._protected.set()
                return
            log.warning("policies_not_enforced", policies=self._policies)
            await asyncio.sleep(PROBE_SECONDS)


def end_of(error: BaseException) -> ProcessEnd:
    """How a process ends by an error: that of a sibling task cancels it, and the log names it."""
    if isinstance(error, BaseExceptionGroup):
        ends = set(map(end_of, error.exceptions))
        return ends.pop() if len(ends) == 1 else ProcessEnd.UNKNOWN
    if isinstance(error, StoreError):
        return ProcessEnd.DATABASE
    return ProcessEnd.ORDERLY if isinstance(error, asyncio.CancelledError) else ProcessEnd.UNKNOWN
