"""The periodic tasks of a leader. They run in parallel with the cycles, and no plan waits for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Container,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from queuectl.control.checked_plan import DeviceRows
from queuectl.control.leader.accounting import Accountant, Follower
from queuectl.control.leader.commands import ForceDeletion
from queuectl.control.leader.leader_state import LeaderState
from queuectl.control.leader.namespace_tasks import NamespaceTasks, NamespaceWrite
from queuectl.control.leader.schedule import Job, Pauses, supervised
from queuectl.control.leader.turns import in_turns
from queuectl.control.ports import Clock, Cluster, HealthSource, UseSource
from queuectl.control.settings import Settings
from queuectl.db.ports import LeaderStore
from queuectl.domain.accounting import Free
from queuectl.domain.containment import Boundary, Containment
from queuectl.domain.controller_notifications import budget_events
from queuectl.domain.errors import ClusterError, ObjectGone, SourceUnavailable, StoreUnavailable
from queuectl.domain.estimates import DAY
from queuectl.domain.node_health import GpuFault, HealthMode, NodeHealthRules, Straggler
from queuectl.domain.notifications import BudgetLimit
from queuectl.domain.processes import LeaderFindings
from queuectl.domain.queries import summed
from queuectl.domain.queues import QueueConfig
from queuectl.domain.rules import Rules
from queuectl.domain.spending import BudgetReport, report
from queuectl.domain.usage_reports import GpuParts
from queuectl.domain.utilization import GangUse, PodKey, SourceFault, UseState, UtilizationSample
from queuectl.objects.keys import DEFAULT_QUEUE_LABEL
from queuectl.planner.cache import PlannerCache
from queuectl.reports.cluster_map import all_parts
from queuectl.state.defaults import mislabeled
from queuectl.state.gpu_holders import HeldGang, held_gangs
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror
from queuectl.state.nodes import Judgment, NodeHealthTracker
from queuectl.state.readiness import WINDOW, find_stragglers
from queuectl.state.utilization import UseTracker, present_uses, source_faults
from queuectl.telemetry.fleet import UseGauges, UseMetrics
from queuectl.telemetry.metrics import MetricsRecorder, NodeHealthMetrics

log = structlog.get_logger()

# ---- Metrics and events of budgets


class BudgetNotices:
    """The events of budgets that are nearly spent or spent. The database knows which of them were written."""

    def __init__(self, store: LeaderStore, epoch: int) -> None:
        self._store = store
        self._epoch = epoch
        self._announced: set[BudgetLimit] = set()

    async def announce(self, budgets: BudgetReport) -> None:
        """Write the events of limits that were reached since the last call. A failure is repeated by the next one.

        Raises:
            Fenced: another leader has taken over.
        """
        reached = budget_events(budgets)
        new = {limit: event for limit, event in reached.items() if limit not in self._announced}
        if not new:
            return
        try:
            await self._store.announce_budgets(new, epoch=self._epoch)
        except StoreUnavailable as error:
            log.info("budget_events_not_written", error=str(error))
        else:
            self._announced |= new.keys()


async def show_budgets(
    leader_state: LeaderState,
    show: Callable[[BudgetReport], None],
    announce: Callable[[BudgetReport], Awaitable[None]],
    plan: Callable[[], None],
    seconds: float,
) -> None:
    """Report the budgets every ``seconds`` seconds until canceled. ``plan``: called when less or more is left of one than a gang needs."""
    lacks: Mapping[tuple[str, str], bool] = {}
    while True:
        if leader_state.config.budgets:
            snapshot = leader_state.snapshot(seek_room=False)
            budgets = await asyncio.to_thread(report, snapshot)
            show(budgets)
            before, lacks = lacks, budgets.lacks
            if any(lacks.get(key, lacked) is not lacked for key, lacked in before.items()):
                plan()
            await announce(budgets)
        else:
            show(BudgetReport(0.0))
        await asyncio.sleep(seconds)


# ---- Metrics of the parts of all GPUs


async def show_efficiency(
    leader_state: LeaderState,
    cache: PlannerCache,
    show: Callable[[GpuParts], None],
    seconds: float,
) -> None:
    """Show the parts every ``seconds`` seconds until canceled."""
    while True:
        snapshot = leader_state.snapshot(seek_room=False)
        uses = present_uses(leader_state.gang_uses, leader_state.ledger)
        planned = await asyncio.to_thread(DeviceRows.of(cache).added, snapshot)
        show(await asyncio.to_thread(all_parts, planned, snapshot, uses, cache))
        await asyncio.sleep(seconds)


# ---- Deletion of expired rows and sums of usage, in small batches


_SECONDS: Final = 60.0  # between checks whether there is something to do
_AGAIN_SECONDS: Final = 1.0  # between batches


class RowUpkeep:
    """Deletes expired rows and adds up days of usage, for one epoch of the leader. One of them at a time, because both change usage.

    Neither does anything while the configuration cannot be read: it states how long rows are kept.

    The methods run until they are canceled. They raise Fenced after another leader has taken over.
    """

    def __init__(
        self, store: LeaderStore, rules: Callable[[], Rules | None], clock: Clock, epoch: int
    ) -> None:
        """``rules``: those of the stored configuration; None while it cannot be read."""
        self._store = store
        self._rules = rules
        self._clock = clock
        self._epoch = epoch
        self._turn = asyncio.Lock()

    async def delete(self) -> None:
        """Delete expired rows."""
        await self._repeat("prune", self._deleted)

    async def add_up(self) -> None:
        """Add up days of usage. A separate task: if a day cannot be added up, rows are deleted nevertheless."""
        await self._repeat("sums", self._added_up)

    async def _repeat(self, task: str, batch: Callable[[Rules], Awaitable[int]]) -> None:
        while True:
            try:
                async with self._turn:
                    rules = self._rules()
                    done = await batch(rules) if rules is not None else 0
            except StoreUnavailable as error:
                log.info("upkeep_delayed", task=task, error=str(error))
                done = 0
            await asyncio.sleep(_AGAIN_SECONDS if done else _SECONDS)

    async def _deleted(self, rules: Rules) -> int:
        deleted = await self._store.prune(rules.retention, self._clock(), epoch=self._epoch)
        return deleted + await self._store.usage.prune(self._oldest(rules), epoch=self._epoch)

    async def _added_up(self, rules: Rules) -> int:
        return await self._store.usage.add_up(self._clock(), self._oldest(rules), epoch=self._epoch)

    def _oldest(self, rules: Rules) -> float:
        """The time before which usage has expired (unix seconds)."""
        return self._clock() - rules.accounting.keep_days * DAY


# ---- The label of namespaces with a LocalQueue ``default``

POLL_SECONDS = 1.0
_LONGEST_PAUSE: Final = 60.0  # seconds after a write that failed


async def keep_labels(cluster: Cluster, mirror: Mirror, config: Callable[[], QueueConfig]) -> None:
    """Check periodically until canceled. A write that fails is repeated by a later check."""
    clock = asyncio.get_running_loop().time
    pauses = Pauses[tuple[str, str | None]](POLL_SECONDS, _LONGEST_PAUSE)
    tasks = NamespaceTasks(Boundary.TASK, mirror.containment)

    async def label(name: str, text: str | None) -> None:
        try:
            patch = {"metadata": {"labels": {DEFAULT_QUEUE_LABEL: text}}}
            await cluster.patch_namespace(name, patch)
        except ObjectGone:
            return
        except ClusterError as error:
            if pauses.failed((name, text), error, clock()):
                log.warning("namespace_not_labeled", namespace=name, error=str(error))
        else:
            pauses.passed((name, text))

    async with asyncio.TaskGroup() as group:
        while True:
            wrong = set(mislabeled(mirror.namespaces.values(), config()))
            pauses.keep(wrong)
            tasks.start_due(
                group,
                (
                    NamespaceWrite(
                        name, f"label of {name}", f"Namespace/{name}", partial(label, name, value)
                    )
                    for name, value in wrong
                    if pauses.over((name, value), clock())
                ),
            )
            await asyncio.sleep(POLL_SECONDS)


# ---- All periodic tasks


@dataclass(frozen=True)
class Maintenance:
    """Runs the periodic tasks of one leader. ``plan`` starts a plan."""

    store: LeaderStore
    cluster: Cluster
    mirror: Mirror
    leader_state: LeaderState
    metrics: MetricsRecorder
    settings: Settings
    clock: Clock
    cache: PlannerCache
    plan: Callable[[], None]

    def start(
        self,
        group: asyncio.TaskGroup,
        epoch: int,
        follower: Follower,
        containment: Containment,
    ) -> None:
        """Start the tasks in a group. ``follower``: of the usage ledger."""
        state, seconds = self.leader_state, self.settings.account_seconds
        accountant = Accountant(
            self.store.usage,
            state.facts(),
            self.clock,
            epoch,
            self.cache,
            self._show_gpus,
            follower,
        )
        notices = BudgetNotices(self.store, epoch)
        upkeep = RowUpkeep(
            self.store,
            lambda: state.config.rules if state.readable else None,
            self.clock,
            epoch,
        )
        tasks: dict[str, Job] = {
            "prune": upkeep.delete,
            "sums": upkeep.add_up,
            "account": lambda: accountant.run(seconds),
            "efficiency": lambda: show_efficiency(
                state, self.cache, self.metrics.fleet.parts, seconds
            ),
            "budgets": lambda: show_budgets(
                state, self.metrics.budgets.show, notices.announce, self.plan, seconds
            ),
            "defaults": lambda: keep_labels(self.cluster, self.mirror, lambda: state.config),
        }
        dead_seconds = self.settings.force_delete_seconds
        if dead_seconds is not None:
            force = ForceDeletion(self.cluster, self.mirror, lambda: state.ledger, dead_seconds)
            tasks["force-delete"] = force.run
        for name, job in tasks.items():
            group.create_task(supervised(name, job, containment), name=name)

    def _show_gpus(self, free: Mapping[str, Free]) -> None:
        self.metrics.fleet.free(free)
        held = summed(self.leader_state.unmanaged())
        self.metrics.fleet.unmanaged({one.namespace: one.gpus for one in held})


# ---- GPU utilization of gangs

_SCRAPES = 4  # in the window of recent use, so that one of them can fail
_LOGGED = (UseState.IDLE, UseState.STUCK)
_REST = 0.25  # of the time between evaluations: the least rest of the source after a slow one


class UseWatch:
    """The evaluations of one leader. A new leader evaluates again, from the samples that the source still has."""

    def __init__(
        self,
        source: UseSource,
        mirror: Mirror,
        metrics: UseMetrics,
        clock: Clock,
        *,
        evaluation_seconds: float,
        scrape_seconds: float,
        timeout: float,
    ) -> None:
        """Start without an evaluation.

        Args:
            source: of samples of pods.
            mirror: the copy of the cluster.
            metrics: of evaluations.
            clock: of the leader.
            evaluation_seconds: between evaluations.
            scrape_seconds: between samples of a GPU.
            timeout: seconds after which an evaluation times out.
        """
        self._source = source
        self._mirror = mirror
        self._metrics = metrics
        self._clock = clock
        self._every = evaluation_seconds
        self._scrape = scrape_seconds
        self._timeout = timeout
        self._window = max(evaluation_seconds, _SCRAPES * scrape_seconds)
        self._tracker = UseTracker(scrape_seconds)
        self._states: dict[str, UseState] = {}
        self._untrusted: tuple[str, ...] = ()

    async def run(
        self,
        ledger: Callable[[], Ledger],
        config: Callable[[], QueueConfig],
        borrowing: Callable[[], Container[str]],
        put: Callable[[Mapping[str, GangUse]], None],
    ) -> None:
        """Evaluate until canceled. ``put`` receives the results, by uid, after each evaluation.

        ``borrowing``: ClusterQueues that use more than their nominal quota.
        """
        log.info("utilization_source_selected", trusts=self._source.trusts)
        self._metrics.trust(self._source.trusts)
        try:
            while True:
                began = self._clock()
                held = held_gangs(self._mirror, ledger(), config(), borrowing())
                gangs = [gang async for gang in in_turns(held)]
                try:
                    put(await self.sample(gangs))
                except Exception:
                    # Until the task is started again, its last results are too old to be a price.
                    put(self._tracker.nothing(gangs, self._clock(), "an evaluation failed"))
                    raise
                # Evaluations begin at equal intervals: exporters are scraped at each of them, and one that does not answer takes time.
                left = self._every - (self._clock() - began)
                await asyncio.sleep(max(left, _REST * self._every))
        finally:
            self._metrics.forget()

    async def sample(self, gangs: Sequence[HeldGang]) -> dict[str, GangUse]:
        """The current utilization of each gang, by uid."""
        began, at = time.perf_counter(), self._clock()
        known = {pod.key for gang in gangs for pod in gang.pods}
        faults: Mapping[SourceFault, int]
        try:
            async with asyncio.timeout(self._timeout):
                recent, longer = await self._ask(gangs, at, known)
        except (SourceUnavailable, TimeoutError) as error:
            why = str(error) or f"no answer within {self._timeout:.0f} s"
            log.warning("utilization_not_measured", reason=why)
            uses = self._tracker.nothing(gangs, at, why)
            faults = {SourceFault.UNREACHABLE: max(1, len(known))}
        else:
            uses = await asyncio.to_thread(self._tracker.judge, gangs, recent, longer)
            self._set_aside(gangs)
            faults = source_faults(gangs, recent, self._scrape)
            self._log_untrusted(recent.untrusted)
        seen = [
            UseGauges(gang.cluster_queue, use.state, gang.gpus, use.utilization)
            for gang in gangs
            if (use := uses.get(gang.uid)) is not None
        ]
        self._metrics.evaluated(faults, seen, time.perf_counter() - began)
        self._log_changes(uses)
        return uses

    def _set_aside(self, gangs: Sequence[HeldGang]) -> None:
        """Report the gangs whose samples cannot be judged."""
        containment = self._mirror.containment
        failed, self._tracker.failed = self._tracker.failed, []
        if not containment.empty:
            bad = {gang.uid for gang, _ in failed}
            for gang in gangs:
                if gang.uid not in bad:
                    containment.passed(Boundary.SERIES, gang.uid)
        for gang, error in failed:
            containment.failed(Boundary.SERIES, gang.uid, error)

    async def _ask(
        self, gangs: Sequence[HeldGang], at: float, pods: Collection[PodKey]
    ) -> tuple[UtilizationSample, dict[float, UtilizationSample]]:
        """The recent samples; over longer windows only if a gang can be idle or stuck."""
        recent = await self._source.sample(self._window, at, pods)
        windows = self._tracker.windows(gangs, recent)
        return recent, {window: await self._source.sample(window, at, pods) for window in windows}

    def _log_untrusted(self, jobs: tuple[str, ...]) -> None:
        """Log once: an incomplete set-up, or a tenant that reports pods of others."""
        if jobs and jobs != self._untrusted:
            log.warning("utilization_untrusted_jobs", jobs=jobs, trusts=self._source.trusts)
        self._untrusted = jobs

    def _log_changes(self, uses: Mapping[str, GangUse]) -> None:
        states = {uid: use.state for uid, use in uses.items()}
        for uid, state in states.items():
            if state is not self._states.get(uid) and state in _LOGGED:
                log.info("utilization_changed", uid=uid, state=state, reason=uses[uid].text)
        self._states = states


# ---- Health of nodes


class NodeHealthWatch:
    """The evaluations of one leader. It begins with the nodes that are out of placement in the mirror, and evaluates at once."""

    def __init__(
        self,
        source: HealthSource | None,
        mirror: Mirror,
        metrics: NodeHealthMetrics,
        clock: Clock,
        *,
        evaluation_seconds: float,
        timeout: float,
    ) -> None:
        """Start without an evaluation.

        Args:
            source: of faults of GPUs; None = only conditions of nodes count.
            mirror: the copy of the cluster.
            metrics: of evaluations.
            clock: of the leader.
            evaluation_seconds: between evaluations.
            timeout: seconds after which a query times out.
        """
        self._source = source
        self._mirror = mirror
        self._metrics = metrics
        self._clock = clock
        self._every = evaluation_seconds
        self._timeout = timeout
        self._tracker = NodeHealthTracker(mirror.nodes.closed)
        self._known: Mapping[str, str] = {}

    async def run(
        self,
        config: Callable[[], QueueConfig],
        ledger: Callable[[], Ledger],
        put: Callable[[Mapping[str, str]], None],
        put_stragglers: Callable[[Sequence[Straggler]], None],
    ) -> None:
        """Evaluate until canceled.

        Args:
            config: in use.
            ledger: the workloads.
            put: receives the evidence against nodes to take out, by name.
            put_stragglers: receives the stragglers of an evaluation with an answer.
        """
        try:
            while True:
                rules = config().rules.node_health
                put((await self.evaluate(rules)).out)
                stragglers = await self.compare(held_gangs(self._mirror, ledger(), config()), rules)
                if stragglers is not None:
                    put_stragglers(stragglers)
                await asyncio.sleep(self._every)
        finally:
            self._metrics.forget()

    async def evaluate(self, rules: NodeHealthRules) -> Judgment:
        """Judge all nodes now."""
        faults = await self._ask(rules)
        judged = self._tracker.judge(self._mirror.nodes, faults, rules, self._clock())
        self._metrics.evaluated(judged.signals)
        self._log(judged)
        return judged

    async def compare(
        self, gangs: Iterable[HeldGang], rules: NodeHealthRules, window: float = WINDOW
    ) -> Sequence[Straggler] | None:
        """The stragglers of these gangs, which are read if the source answers; None without an answer. The metric shows the result."""
        found = await self._stragglers(gangs, rules, window)
        self._metrics.compared(found or ())
        return found

    async def _stragglers(
        self, gangs: Iterable[HeldGang], rules: NodeHealthRules, window: float
    ) -> Sequence[Straggler] | None:
        if self._source is None or not rules.straggler_below or rules.mode is HealthMode.OFF:
            return []
        now = self._clock()
        try:
            async with asyncio.timeout(self._timeout):
                clocks = await self._source.clocks(window, now)
        except (SourceUnavailable, TimeoutError):
            return None  # logged with the faults
        held = [gang async for gang in in_turns(gangs)]
        return find_stragglers(held, clocks, self._mirror, rules, now, window)

    async def _ask(self, rules: NodeHealthRules) -> Sequence[GpuFault] | None:
        if self._source is None:
            return None
        try:
            async with asyncio.timeout(self._timeout):
                return await self._source.faults(rules, self._clock())
        except (SourceUnavailable, TimeoutError) as error:
            why = str(error) or f"no answer within {self._timeout:.0f} s"
            log.warning("node_health_not_measured", reason=why)
            return None

    def _log(self, judged: Judgment) -> None:
        """Log each change once."""
        found = {**judged.staying, **judged.out}
        for node, evidence in found.items():
            if self._known.get(node) != evidence:
                log.warning("node_unhealthy", node=node, reason=evidence, out=node in judged.out)
        for node in self._known.keys() - found.keys():
            log.info("node_recovered", node=node)
        self._known = found


# ---- Results for standby replicas
#
# The leader writes each new result to the database, and standbys read it periodically. Planning does not use it.

EVERY_SECONDS: Final = 2.0


async def share(
    leader_state: LeaderState, mirror: Mirror, store: LeaderStore, clock: Clock, epoch: int
) -> None:
    """Write the results of one leader until canceled.

    Raises:
        Fenced: another leader has taken over.
    """
    written: tuple[object, ...] = ()
    while True:
        uses, starts = leader_state.gang_uses, leader_state.estimates.now
        found = (uses, starts, mirror.nodes.closed)
        if len(written) != len(found) or any(
            a is not b for a, b in zip(found, written, strict=True)
        ):
            written = found
            try:
                await store.keep_findings(LeaderFindings(clock(), *found), epoch=epoch)
            except StoreUnavailable as error:
                written = ()  # write it again
                log.info("findings_not_stored", error=str(error))
        await asyncio.sleep(EVERY_SECONDS)


class Broadcast:
    """The leader's results in a standby."""

    def __init__(self, store: LeaderStore, clock: Clock, fresh_seconds: float) -> None:
        """``fresh_seconds``: the age in seconds after which results are not shown: no leader writes new ones, or the database is down."""
        self._store = store
        self._clock = clock
        self._fresh = fresh_seconds
        self._last = LeaderFindings()

    async def follow(self, standing_by: Callable[[], bool], mirror: Mirror) -> None:
        """Read new results until canceled, while ``standing_by``. The mirror gets the nodes that are out of placement."""
        while True:
            if standing_by():
                await self.hand_over(mirror)
            await asyncio.sleep(EVERY_SECONDS)

    async def hand_over(self, mirror: Mirror) -> None:
        """Read new results. The mirror gets the nodes that the leader, or the last one, took out of placement."""
        await self.read()
        mirror.mark_unhealthy(self._last.unhealthy)

    async def read(self) -> None:
        """Read the results once, if they are new. The last results stay if the database is unavailable."""
        try:
            self._last = await self._store.findings(self._last.at) or self._last
        except StoreUnavailable as error:
            log.info("findings_not_read", error=str(error))

    @property
    def now(self) -> LeaderFindings:
        """The last results; empty if they are too old."""
        fresh = self._clock() - self._last.at <= self._fresh
        return self._last if fresh else LeaderFindings()
