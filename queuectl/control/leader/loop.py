"""The control loop of a leader: observe, plan, verify, commit; the actuator does the rest.

There are two kinds of commits. Observations (a job appeared, became ready, drained, ended) are written at once. Plans are decisions.
The next plan already uses observations while they are being written. It is committed after them or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence

import structlog

from queuectl.control.leader.actuator import Actuator
from queuectl.control.leader.commands import carry_out
from queuectl.control.leader.estimates import StartEstimator
from queuectl.control.leader.events import EventRecorder
from queuectl.control.leader.invariants import InvariantChecker
from queuectl.control.leader.leader_state import LeaderState
from queuectl.control.leader.ledger_writer import LedgerWriter
from queuectl.control.leader.periodic import Maintenance
from queuectl.control.leader.planning import NOTHING_TO_PLAN, Planning
from queuectl.control.leader.provisioner import Provisioner
from queuectl.control.leader.schedule import Job, Wakeup, supervised
from queuectl.control.leader.set_aside import SetAsideObjects
from queuectl.control.leader.stored_state import StoredState
from queuectl.control.ports import Clock, Cluster
from queuectl.control.progress import LoopProgress, longest_step
from queuectl.control.questions.diagnosis import LeaderDiagnoser
from queuectl.control.questions.throttle import PlannerThrottle
from queuectl.control.settings import Settings
from queuectl.db.ports import Commit, LeaderStore
from queuectl.domain.containment import Boundary, Report, SetAside
from queuectl.domain.diagnosis import Diagnosis
from queuectl.domain.errors import Fenced, StaleConfiguration, StaleSnapshot, StoreUnavailable
from queuectl.domain.ledger import HOLDING, Checked, EntryChange, State
from queuectl.domain.node_health import Straggler
from queuectl.domain.pacing import doubling
from queuectl.domain.queries import IN_QUEUE_ORDER
from queuectl.domain.utilization import GangUse
from queuectl.mig.reconfigurer import MigReconfigurer
from queuectl.planner import StopSignal
from queuectl.planner.cache import PlannerCache
from queuectl.state.mirror import Mirror
from queuectl.telemetry.logs import cycle_context
from queuectl.telemetry.metrics import CycleStage, DiscardReason, MetricsRecorder

log = structlog.get_logger()

TICK_SECONDS = 0.5  # interval of checks for timeouts
MOST_OBSERVED = 1000  # workloads in one cycle
FIRST_PAUSE = 1.0  # seconds after a cycle that failed; it doubles with each failure in a row
_LONGEST_PAUSE = 30.0
_CYCLE = "cycle"
_TRIED_BY_PLANS = frozenset({Boundary.GANG, Boundary.SNAPSHOT, Boundary.COMMIT})


class Loop:
    """The loop of one leader. Its state is also in the database and the watch.

    Attributes:
        leader_state: the ledger in memory.
        loaded: the state in memory matches the database.
        caught_up: the watch shows the cluster as it was when the leadership began, or later.
        progress: of its cycles.
    """

    def __init__(
        self,
        *,
        store: LeaderStore,
        cluster: Cluster,
        mirror: Mirror,
        metrics: MetricsRecorder,
        settings: Settings,
        clock: Clock,
        cache: PlannerCache,
        throttle: PlannerThrottle,
        leader_state: LeaderState,
    ) -> None:
        """``leader_state``: empty, or that of a standby."""
        self._containment = containment = mirror.containment
        self._generation = mirror.generation
        self._store = store
        self._cluster = cluster
        self._mirror = mirror
        self._metrics = metrics
        self._settings = settings
        self._clock = clock
        self._cache = cache
        self.loaded = False
        self.caught_up = asyncio.Event()
        self.progress = LoopProgress(longest_step(settings.solver.wall_seconds))
        self.leader_state = leader_state
        self._wakeup = Wakeup()
        self._stop = StopSignal()
        self._diagnoser = LeaderDiagnoser(throttle, cache)
        self._plan_at = 0.0  # on the event loop's clock; no cycle before it
        self._summary = NOTHING_TO_PLAN
        self._inbox = True  # there can be commands in the database
        self._inbox_read = asyncio.Event()
        self._configuration_read = asyncio.Event()
        self._stored = StoredState(store, self.leader_state, metrics, clock)
        self._checker = InvariantChecker(
            leader_state=self.leader_state,
            mirror=mirror,
            store=store,
            cluster=cluster,
            metrics=metrics,
            clock=clock,
        )
        self._actuator = Actuator(
            cluster,
            self.leader_state.outstanding_writes,
            metrics,
            settings.in_flight,
            self._placed,
            cluster_queue=self.leader_state.cluster_queue,
            refusals=self.leader_state.refusals,
            pins=self.leader_state.planning.pins,
            refused=self._refused,
            unpinned=self._unpinned,
            clock=clock,
            containment=containment,
        )

    def measured(self, uses: Mapping[str, GangUse]) -> None:
        """Store the GPU utilization of gangs, by uid, for the next plans.

        A cycle begins only if a gang must be warned, or if the set of gangs that can be evicted as idle has changed.
        """
        news = self.leader_state.evaluated(uses)
        if news.plan_again:
            self._wakeup.plan()
        elif news.due:
            self._wakeup.trigger()

    def judged(self, unhealthy: Mapping[str, str]) -> None:
        """Take these nodes, by name with the evidence, out of placement, and no others."""
        if self._mirror.mark_unhealthy(unhealthy):
            self._wakeup.plan()

    def compared(self, stragglers: Sequence[Straggler]) -> None:
        """Store the ranks whose GPUs run far slower than those of their peers."""
        if self.leader_state.stragglers.update(stragglers, self._clock()):
            self._wakeup.trigger()

    def _placed(self, uid: str) -> None:
        """Record that a pod of this workload was released to its node."""
        entry = self.leader_state.ledger.get(uid)
        if entry is not None and entry.started_at is not None:
            self._metrics.gates.removed(entry.cluster_queue, self._clock() - entry.started_at)

    def _refused(self, uid: str) -> None:
        """Record that the API server denies a write of this workload."""
        self._mirror.touched.add(uid)
        self._wakeup.trigger()

    def _unpinned(self, pod: str) -> None:
        """Record that a pin can no longer take this pod to its node, where others can have its room."""
        self._mirror.moved_pods.add(pod)
        self._wakeup.trigger()

    async def diagnose(self, uid: str) -> Diagnosis | None:
        """Why a gang that was pending in the last plan does not start; None for other gangs."""
        found = await self._diagnoser.diagnose(uid)
        if found is None and self.loaded:
            self._planning.consider(uid)
        return found

    def react(self, touched: Iterable[str]) -> None:
        """Wake up after a change of these jobs, and let the actuator send their writes at once."""
        if self.loaded:
            entries = filter(None, map(self.leader_state.ledger.get, touched))
            self._actuator.poke([entry.uid for entry in entries if entry.state in HOLDING])
        self._wakeup.trigger()

    async def check(self) -> Checked:
        """Check all invariants of all workloads. Can raise StoreUnavailable."""
        return await self._checker.check()

    async def run(self, epoch: int) -> None:
        """Lead under this epoch until canceled.

        Raises:
            Fenced: another leader has taken over.
        """
        recorder = self._assemble(epoch)
        objects = SetAsideObjects(self._store, self._mirror, self.leader_state.entry, epoch)
        with self.progress.idle():
            await self._cluster.catch_up()  # the ledger must not be newer than the watch
        self.caught_up.set()
        self._mirror.trust_running()
        await self._reload()
        await self._configured()
        self.leader_state.refusals.inherit(
            self.leader_state.ledger, self._mirror.jobs, self._mirror.pods_of
        )
        self.loaded = True
        tasks: dict[str, Job] = {
            "actuate": self._actuator.run,
            "tell": recorder.run,
            "tick": self._tick,
            "store set-aside objects": objects.run,
        }
        try:
            with self._containment.reported_to(self._reporter(recorder, objects)):
                async with asyncio.TaskGroup() as group:
                    for name, job in tasks.items():
                        group.create_task(supervised(name, job, self._containment), name=name)
                    self._start_maintenance(group, epoch)
                    group.create_task(self._cycles(), name="cycles")
        finally:
            self.loaded = False

    async def _configured(self) -> None:
        """Wait until there is a configuration. Observations, plans and writes to the cluster all depend on it."""
        with self.progress.idle():
            while not self.leader_state.configured:
                self._configuration_read.clear()
                await self._configuration_read.wait()

    def _reporter(self, recorder: EventRecorder, objects: SetAsideObjects) -> Report:
        """Store each object that is set aside, and write an Event on it if its workload is not pending: a pending one shows its reason."""

        def report(failure: SetAside, _: BaseException | None) -> None:
            objects.note(failure)
            entry = self.leader_state.entry(failure.key)
            pending = entry is not None and entry.state in IN_QUEUE_ORDER
            if not (pending and failure.boundary in (Boundary.GANG, Boundary.SNAPSHOT)):
                recorder.note(failure.key, failure.reason)

        return report

    def _assemble(self, epoch: int) -> EventRecorder:
        """Make the parts that know the epoch or each other."""
        settings = self._settings
        recorder = EventRecorder(
            self._cluster,
            self._mirror.job,
            lambda: self._actuator.quiet,
            lambda: self._mirror.namespaces,
            self._mirror.kinds,
            per_second=settings.events_per_second,
            after=settings.reason_delay_seconds,
            containment=self._containment,
        )
        self._writer = LedgerWriter(
            store=self._store,
            leader_state=self.leader_state,
            mirror=self._mirror,
            metrics=self._metrics,
            actuator=self._actuator,
            recorder=recorder,
            wakeup=self._wakeup,
            epoch=epoch,
            step=self.progress.step,
        )
        self._mig = MigReconfigurer(
            self._cluster,
            self._mirror,
            self.leader_state.planning,
            self._metrics.mig,
            settings.mig,
            self._clock,
            search_seconds=settings.defragment_seconds,
            wake=self._wakeup.trigger,
        )
        self._provisioner = Provisioner(
            self._cluster, self._mirror, self.leader_state, self._wakeup.trigger
        )
        self._planning = Planning(
            leader_state=self.leader_state,
            writer=self._writer,
            wakeup=self._wakeup,
            metrics=self._metrics,
            clock=self._clock,
            diagnoser=self._diagnoser,
            cache=self._cache,
            stop=self._stop,
            mig=self._mig,
            defragment_seconds=settings.defragment_seconds,
            containment=self._containment,
            step=self.progress.step,
        )
        return recorder

    def _start_maintenance(self, group: asyncio.TaskGroup, epoch: int) -> None:
        """Start the tasks for which no admission waits."""
        maintenance = Maintenance(
            self._store,
            self._cluster,
            self._mirror,
            self.leader_state,
            self._metrics,
            self._settings,
            self._clock,
            self._cache,
            self._wakeup.plan,
        )
        maintenance.start(group, epoch, self._stored.follower(), self._containment)
        estimator = StartEstimator(
            self.leader_state,
            self._store.usage,
            self._metrics.estimates,
            self._cache,
            self._planning.between_plans,
        )
        tasks: dict[str, Job] = {
            "estimate": lambda: estimator.run(self._wakeup.plan),
            "audit": self._checker.run,
            "reconfigure MIG": self._mig.run,
            "provision": self._provisioner.run,
        }
        for name, job in tasks.items():
            group.create_task(supervised(name, job, self._containment), name=name)

    async def _cycles(self) -> None:
        try:
            await self._cycle_for_ever()
        finally:
            self._writer.drop()

    async def _cycle_for_ever(self) -> None:
        clock, unavailable = asyncio.get_running_loop().time, 0  # cycles in a row
        while True:
            with self.progress.idle():
                await self._wakeup.wait()
                await asyncio.sleep(max(self._settings.debounce_seconds, self._plan_at - clock()))
            self._wakeup.clear()
            self._writer.cycle += 1
            try:
                with cycle_context(self._writer.cycle):
                    await self._cycle()
            except StaleSnapshot as error:
                log.info("plan_discarded", reason=DiscardReason.STALE, error=str(error))
                self._metrics.discarded(DiscardReason.STALE)
                await self._reload()
            except StoreUnavailable as error:
                log.warning("database_not_reached", error=str(error))
                self._metrics.discarded(DiscardReason.UNAVAILABLE)
                # The state is read again without a pause only once: a database that refuses writes can answer reads.
                await self._reload_after(unavailable)
                unavailable += 1
            except Fenced:
                self._metrics.discarded(DiscardReason.FENCED)
                raise
            except Exception as error:  # noqa: BLE001 - contained
                # It belongs to no unit.
                found = self._containment.failed(Boundary.TASK, _CYCLE, error)
                self._writer.drop()
                await self._reload_after(found.failures)
            else:
                unavailable = 0
                self._containment.passed(Boundary.TASK, _CYCLE)

    async def _reload_after(self, failures: int) -> None:
        """Continue with the state that the records and the ledger have, after the pause for so many failures in a row; 0: at once."""
        if failures:
            with self.progress.idle():
                await asyncio.sleep(doubling(FIRST_PAUSE, _LONGEST_PAUSE, failures))
        await self._reload()

    async def _cycle(self) -> None:
        """One cycle: write the observations, then plan if anything has changed on which a plan depends."""
        if self._generation != self._mirror.generation:
            self._generation = self._mirror.generation
            self._mirror.trust_running()
            await self._reload()
        wakeup, observer = self._wakeup, self.leader_state.observer
        config = self.leader_state.config
        with self._metrics.stage(CycleStage.OBSERVE):
            observed = observer.observe(config, self._clock(), MOST_OBSERVED)
        if observer.damaged:
            await self._reload()
            return
        self.leader_state.holdings.note_requests(observed.edited)
        if observer.backlog or self._mirror.touched:
            wakeup.trigger()  # there are more of them than one observation takes
        wakeup.plan_due |= observed.plan_again
        while observer.log_messages:
            log.warning("job_ignored", message=observer.log_messages.pop())
        idle = self.leader_state.of_idle_gangs(observed.changes)
        idle += self.leader_state.of_unhealthy_nodes([*observed.changes, *idle])
        idle += self.leader_state.of_stragglers([*observed.changes, *idle])
        wakeup.plan_due |= any(change.after.state is State.EVICTING for change in idle)
        if self._inbox:
            await self._carry_out([*observed.changes, *idle])
        else:
            self._writer.write_ahead([*observed.changes, *idle])
        if self.leader_state.config.revision != config.revision:
            # Running jobs of a new LocalQueue are in no sum before they are observed with it: a plan would use their quota again.
            wakeup.plan()
            await self._writer.written()
        elif (wakeup.plan_due or wakeup.rest_due) and not observer.uncounted:
            changed, wakeup.plan_due, wakeup.rest_due = wakeup.plan_due, False, False
            await self._plan(changed=changed)
        else:
            await self._writer.written()

    async def _plan(self, *, changed: bool) -> None:
        began = time.perf_counter()
        await self._stored.know_budgets(self._writer)
        try:
            text = await self._planning.plan(changed=changed)
        except StaleConfiguration as error:
            text = await self._outdated(error)
        finally:
            self._rest(self._planning.worked)  # also after a plan that is not committed
        await self._writer.written()
        took = time.perf_counter() - began
        # A repeated summary is not new.
        write_log = log.info if text != self._summary else log.debug
        self._summary = text
        write_log("cycle_completed", summary=text, milliseconds=round(took * 1000, 1))

    async def _outdated(self, error: StaleConfiguration) -> str:
        """Drop a plan for an older configuration. The rows have not changed, so only the configuration is read again."""
        log.info("plan_discarded", reason=DiscardReason.STALE, error=str(error))
        self._metrics.discarded(DiscardReason.STALE)
        self.leader_state.drop_plan()
        await self.configuration_changed()
        return "plan discarded: the configuration is newer"

    def _rest(self, worked: float) -> None:
        """Set the pause after a plan: on a small machine, continuous planning must not take the CPU from the API server.

        The pause depends on the CPU time of the plan, not on its wall time, and not on the work of the process in the meantime. On a
        busy machine, wall time is longer, and a pause in proportion to it would delay queues the more, the busier the machine is. A
        tenant that edits many objects would do the same with the time to decode them.
        """
        share = self._settings.planning_share
        self._plan_at = asyncio.get_running_loop().time() + worked * (1.0 - share) / share

    async def _carry_out(self, observed: list[EntryChange]) -> None:
        """Write observations together with the changes of users' commands."""
        commands = await self._store.commands()
        changes, answers = carry_out(
            commands,
            self.leader_state.ledger,
            observed,
            self._clock(),
            self.leader_state.config.rules,
            self.leader_state.command_refusal,
            self._containment,
        )
        await self._writer.commit(Commit([*observed, *changes], answers=answers))
        self._wakeup.plan_due |= bool(changes)
        self._inbox = bool(commands)  # then there can be more
        if self._inbox:
            self._wakeup.trigger()
        else:
            self._inbox_read.set()

    async def _reload(self) -> None:
        await self._stored.reload(self._writer)
        self._inbox = True
        self._wakeup.plan()

    async def configuration_changed(self) -> None:
        """Read the configuration that the API wrote, and plan again."""
        await self._stored.read_configuration()
        self._configuration_read.set()
        self._wakeup.plan()

    async def commands_added(self) -> None:
        """Wait for commands. Returns when each command has a result."""
        self._inbox = True
        self._inbox_read.clear()
        self._wakeup.trigger()
        await self._inbox_read.wait()

    async def _tick(self) -> None:
        """Check the changes that depend on time."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = self._clock()
            ledger = self.leader_state.ledger
            due = self.leader_state.observer.alarms.due(now) | self._mirror.unschedulable
            self._mirror.unschedulable -= {uid for uid in due if ledger.get(uid) is None}
            if due:  # first: a timer that is due is due once, and a check can fail
                self._mirror.touched |= due
                self._wakeup.trigger()
            if any(e.lease and e.lease.expires_at <= now for e in ledger.entries(State.RESERVED)):
                self._wakeup.plan()
            if (
                self._planning.exposes(now)
                or self.leader_state.configuration_turns(now)
                or self._mig.due(now)
                or self._containment.due(_TRIED_BY_PLANS)
            ):
                self._wakeup.plan()
            if self._wakeup.plan_due:
                self._wakeup.trigger()
            if self.leader_state.past_use_sums.due(now):
                await self._stored.keep_past_use(now, self._writer.epoch)
                self._wakeup.plan()  # the queue order can have changed

    async def wind_down(self, seconds: float) -> None:
        """End a running plan at once, and wait this many seconds for responses to writes in progress."""
        self._stop.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._actuator.settled()
