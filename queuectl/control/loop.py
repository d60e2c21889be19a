"""The control loop of a leader: observe, plan, verify, commit; the actuator does the rest.

Two kinds of commit leave here. Observations (a job appeared, became ready, drained, ended) are facts and are written as
soon as they are seen. Plans are decisions: they are verified by independent code, checked against the mirror as it is by
then, and written only over the configuration and the rows they were made from.

While facts are being written the next plan is already made from them; it is committed after them, or not at all. Nothing
is sent to the cluster on a fact that is not in the database yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import structlog

from queuectl.control.account import Accountant, Facts
from queuectl.control.actuate import Actuator
from queuectl.control.consult import Consultation
from queuectl.control.decide import Decider, sentence
from queuectl.control.defaults import keep_labels
from queuectl.control.orders import carry_out
from queuectl.control.ports import Clock, Cluster, Store
from queuectl.control.settings import Settings
from queuectl.control.tell import Teller
from queuectl.domain.commands import Answer
from queuectl.domain.diagnosis import Diagnosis, Excess
from queuectl.domain.errors import BadInput, Fenced, StaleSnapshot, StoreUnavailable
from queuectl.domain.ledger import Change, Document, Entry, State
from queuectl.domain.machine import MAX_BUDGET
from queuectl.domain.plan import Plan, Refusal
from queuectl.domain.queues import QueueConfig
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Snapshot, SolverLimits
from queuectl.domain.utilization import GangUse
from queuectl.objects.config import build
from queuectl.objects.protocol import Write, owed
from queuectl.planner import StopSignal, plan
from queuectl.planner.verify import Violation, verify
from queuectl.planner.victims.shield import next_exposure
from queuectl.state.freeze import Freezer
from queuectl.state.holdings import Holdings
from queuectl.state.ledger import Ledger
from queuectl.state.marking import Marker
from queuectl.state.mirror import Mirror
from queuectl.state.observe import Observer
from queuectl.state.pastuse import Tally
from queuectl.state.spending import Spending
from queuectl.state.usage import Usage
from queuectl.telemetry.logs import cycle_context
from queuectl.telemetry.metrics import Discard, Metrics, Stage

log = structlog.get_logger()

RETRY_SECONDS = 1.0  # between tries to reach the database
TICK_SECONDS = 0.5  # how often time-outs are looked at
PRUNE_SECONDS = 60.0  # between looks for rows to delete
PRUNE_AGAIN_SECONDS = 1.0  # between batches of them


class Loop:
    """One leadership. Made anew for each; holds nothing that the database and the watch do not."""

    def __init__(
        self,
        *,
        store: Store,
        cluster: Cluster,
        mirror: Mirror,
        metrics: Metrics,
        settings: Settings,
        clock: Clock,
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._mirror = mirror
        self._metrics = metrics
        self._settings = settings
        self._clock = clock
        self._epoch = 0
        self._cycle = 0
        self._plan_again = True
        self._plan_at = 0.0  # of the event loop's clock; no plan before it
        self._writing: asyncio.Task[None] | None = (
            None  # what was observed, on its way to the database
        )
        self._unwritten: frozenset[str] = frozenset()  # uids of it
        self._said = "nothing waits"
        self._wake = asyncio.Event()
        self._stop = StopSignal()
        self._consultation = Consultation()
        self._inbox = True  # commands may wait in the database
        self._inbox_read = asyncio.Event()
        solver = settings.solver
        self._limits = SolverLimits(
            deterministic_time=solver.deterministic_time,
            wall_seconds=solver.wall_seconds,
            window=solver.window,
            lease_seconds=solver.lease_seconds,
        )
        self._config = QueueConfig()
        self._spending = Spending()
        self._tally = Tally(self._mirror)
        self._marker = Marker(self._mirror)
        self.gang_uses: Mapping[str, GangUse] = {}  # as last measured, by uid
        self._holdings = Holdings(self._mirror)
        self._seek_at = 0.0  # when gangs to move may be looked for again
        self._exposed_at: float | None = None  # when somebody may be evicted who may not be yet
        self._adopt(())

    def _adopt(self, entries: Iterable[Entry]) -> None:
        """Start from what the database holds; every view derived from the ledger is made anew."""
        self.ledger = Ledger(entries)
        self._usage = Usage(self._mirror, self.ledger)
        self._freezer = Freezer(self._mirror, self.ledger, self._usage, lambda: self.gang_uses)
        self._observer = Observer(
            self._mirror, self.ledger, self._usage, self._settings.unschedulable_seconds
        )
        self._decider = Decider(self._mirror, self.ledger)
        self._usage.refresh(list(self._mirror.pods))
        self._mirror.touched |= {*self._mirror.jobs, *(entry.uid for entry in self.ledger)}
        self._plan_again = True

    @property
    def revision(self) -> int:
        """Of the configuration in use."""
        return self._config.revision

    @property
    def config(self) -> QueueConfig:
        """The configuration in use."""
        return self._config

    def measured(self, uses: Mapping[str, GangUse]) -> None:
        """What gangs do with their GPUs, by uid: plans go by it from now on."""
        self.gang_uses = uses

    async def diagnose(self, uid: str) -> Diagnosis | None:
        """Why a gang that waited at the last plan does not start; None for any other."""
        return await self._consultation.diagnose(uid)

    async def over_quota(self, config: QueueConfig) -> tuple[Excess, ...] | None:
        """What runs and would be over quota under another configuration; None before the first plan."""
        return await self._consultation.over_quota(config)

    def seen(self, touched: Iterable[str]) -> None:
        """The mirror has just changed in these jobs: wake up, and let the actuator answer at once."""
        if self._epoch:
            live = (State.STARTING, State.RUNNING, State.EVICTING)
            pokes = []
            for uid in touched:
                entry = self.ledger.get(uid)
                if entry is not None and entry.state in live:
                    pokes.append(uid)
            self._actuator.poke(pokes)
        self._wake.set()

    async def run(self, epoch: int) -> None:
        """Lead under this epoch until cancelled.

        Raises:
            Fenced: another leader has taken over.
        """
        self._actuator = Actuator(
            self._cluster, self._owed, self._metrics, self._settings.in_flight
        )
        self._teller = Teller(
            self._cluster,
            self._mirror.jobs.get,
            lambda: self._actuator.idle,
            per_second=self._settings.events_per_second,
            after=self._settings.tell_after_seconds,
        )
        await self._reload()
        self._epoch = epoch
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._actuator.run(), name="actuate")
                group.create_task(self._teller.run(), name="tell")
                group.create_task(self._tick(), name="tick")
                group.create_task(self._prune(), name="prune")
                group.create_task(
                    Accountant(self._store.usage, self._facts(), self._clock, epoch).run(
                        self._settings.account_seconds
                    ),
                    name="account",
                )
                group.create_task(
                    keep_labels(self._cluster, self._mirror, lambda: self._config), name="defaults"
                )
                group.create_task(self._cycles(), name="cycles")
        finally:
            self._epoch = 0

    async def _cycles(self) -> None:
        try:
            await self._cycle_for_ever()
        finally:
            if self._writing is not None:
                self._writing.cancel()

    async def _cycle_for_ever(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            await self._wake.wait()
            await asyncio.sleep(max(self._settings.debounce_seconds, self._plan_at - clock()))
            self._wake.clear()
            try:
                with cycle_context(self._cycle + 1):
                    await self.cycle()
            except StaleSnapshot as error:
                log.info("plan_stale", why=str(error))
                self._metrics.discarded(Discard.STALE)
                await self._reload()
            except StoreUnavailable as error:
                log.warning("database_away", why=str(error))
                self._metrics.discarded(Discard.UNAVAILABLE)
                await self._reload()
            except Fenced:
                self._metrics.discarded(Discard.FENCED)
                raise

    async def cycle(self) -> str:
        """One round: write what was observed, then plan if anything a plan depends on has changed."""
        self._cycle += 1
        with self._metrics.stage(Stage.OBSERVE):
            seen = self._observer.look(self._config, self._clock())
        self._plan_again |= seen.plan_again
        while self._observer.told:
            log.warning("job_left_alone", why=self._observer.told.pop())
        if self._inbox:
            await self._carry_out(seen.changes)
        else:
            self._write_ahead(seen.changes)
        if not self._plan_again:
            await self._written()
            return "observed only"
        self._plan_again = False
        began, worked = time.perf_counter(), time.process_time()
        text = await self._plan()
        await self._written()
        took = time.perf_counter() - began
        self._rest(time.process_time() - worked)
        say = log.info if text != self._said else log.debug  # the same again is news to nobody
        self._said = text
        say("planned", did=text, ms=round(took * 1000, 1))
        return text

    def _write_ahead(self, observed: list[Change]) -> None:
        """Take in what was seen at once, so that it can be planned on while it is being written."""
        if not observed:
            return
        changes = self._marker.marked(observed, self._config)
        self._take_in(changes)
        self._unwritten = frozenset(change.after.uid for change in changes)
        self._writing = asyncio.create_task(self._write_observed(changes), name="observed")

    async def _written(self) -> None:
        """Return when what was observed is in the database."""
        writing, self._writing = self._writing, None
        if writing is not None:
            await writing

    async def _carry_out(self, observed: list[Change]) -> None:
        """Write what was seen together with what people asked for."""
        commands = await self._store.commands()
        changes, answers = carry_out(
            commands, self.ledger, observed, self._clock(), self._config.rules
        )
        await self._commit([*observed, *changes], None, answers)
        self._plan_again |= bool(changes)
        self._inbox = bool(commands)  # then there may be more
        if self._inbox:
            self._wake.set()
        else:
            self._inbox_read.set()

    async def _plan(self) -> str:
        if not self._anything_to_plan():
            return "nothing waits"
        with self._metrics.stage(Stage.FREEZE):
            frozen = self._freezer.freeze(self._config, self._clock(), self._limits)
            snapshot = replace(
                frozen,
                moved_work=self._spending.by_queue(frozen.now),
                past_use=self._tally.past_use(frozen.now),
                seek_room=frozen.now >= self._seek_at,
            )
        began = time.perf_counter()
        decision, violations = await asyncio.to_thread(self._decide, snapshot)
        await self._written()
        self._metrics.planned(decision, time.perf_counter() - began)
        for alarm in dict.fromkeys(decision.alarms):
            log.error("solver_broke", alarm=alarm, times=decision.alarms.count(alarm))
        if decision.cut or violations:
            return self._discard(decision, violations)
        self._consultation.planned(snapshot, decision)
        if any(map(self._worth_more, decision.pending)):
            self._retry()
        if decision.stats.get("rooms_sought"):
            self._seek_again(snapshot.now)
        self._exposed_at = next_exposure(snapshot)
        changes = self._decider.changes(snapshot, decision, self._clock())
        await self._commit(changes, snapshot.config.revision)
        committed = {change.after.uid for change in changes}
        self._metrics.preempted(
            [p for p in decision.preempted if p.victim in committed],
            self._cluster_queue,
        )
        return sentence(snapshot, decision, changes)

    def _cluster_queue(self, uid: str) -> str:
        entry = self.ledger.get(uid)
        return entry.cluster_queue if entry is not None else ""

    def _anything_to_plan(self) -> bool:
        if self.ledger.count(State.PENDING) or self.ledger.count(State.RESERVED):
            return True
        live = self.ledger.entries(State.STARTING, State.RUNNING)
        return any(map(self._observer.on_lost_nodes, live))

    def _decide(self, snapshot: Snapshot) -> tuple[Plan, tuple[Violation, ...]]:
        with self._metrics.stage(Stage.PLAN):
            decision = plan(snapshot, self._stop)
        with self._metrics.stage(Stage.VERIFY):
            return decision, verify(snapshot, decision)

    def _rest(self, worked: float) -> None:
        """A planner that is always asked must not starve the API server of the CPU it shares on a small machine.

        What counts is the CPU that a cycle took, not its wall time: on a busy machine that is mostly waiting, and queues
        would stand still the longer, the busier the machine is.
        """
        share = self._settings.planning_share
        self._plan_at = asyncio.get_running_loop().time() + worked * (1.0 - share) / share

    def _discard(self, decision: Plan, violations: Iterable[Violation]) -> str:
        self._metrics.discarded(Discard.CUT if decision.cut else Discard.VERIFIER)
        for violation in violations:
            log.error("plan_refused_by_verifier", violation=str(violation))
        self._retry()
        return "plan discarded: " + ("cut by the wall clock" if decision.cut else "verification")

    def _worth_more(self, refusal: Refusal) -> bool:
        """Whether a larger budget may still decide it."""
        entry = self.ledger.get(refusal.uid)
        undecided = refusal.reasons[0].code is Code.UNDECIDED
        return undecided and entry is not None and entry.budget < MAX_BUDGET

    def _retry(self) -> None:
        self._plan_again = True
        asyncio.get_running_loop().call_later(RETRY_SECONDS, self._wake.set)

    def _seek_again(self, now: float) -> None:
        """Looking for gangs to move takes longer than a plan: not again for a while, but then even if nothing changed."""
        rest = self._settings.defragment_seconds
        self._seek_at = now + rest
        if rest:
            asyncio.get_running_loop().call_later(rest, self._plan_anew)

    def _plan_anew(self) -> None:
        self._plan_again = True
        self._wake.set()

    async def _commit(
        self, changes: list[Change], revision: int | None, answers: Sequence[Answer] = ()
    ) -> None:
        if not changes and not answers:
            return
        changes = self._marker.marked(changes, self._config)
        await self._write(changes, revision, answers)
        self._take_in(changes)
        self._follow(changes)

    async def _write_observed(self, changes: list[Change]) -> None:
        await self._write(changes, None)
        self._unwritten = frozenset()
        self._follow(changes)

    async def _write(
        self, changes: list[Change], revision: int | None, answers: Sequence[Answer] = ()
    ) -> None:
        with self._metrics.stage(Stage.COMMIT):
            await self._store.commit(
                changes,
                epoch=self._epoch,
                revision=revision,
                cycle=self._cycle,
                answers=answers,
            )

    def _take_in(self, changes: list[Change]) -> None:
        """What plans are made from."""
        self.ledger.apply(changes)
        self._usage.refresh_owned(change.after.uid for change in changes)
        for change in changes:
            if change.after.state is State.FINISHED:
                self._freezer.forget(change.after.uid)
                self._decider.forget(change.after.uid)
            elif change.before is not None and change.before.state is not change.after.state:
                self._mirror.touched.add(change.after.uid)  # the new state may already be over

    def _follow(self, changes: list[Change]) -> None:
        """What committed changes bring about: writes to the cluster, words to people, sums."""
        self._spending.note(changes)
        self._tally.note(changes)
        self._holdings.note(changes)
        for change in changes:
            if change.after.state is State.FINISHED:
                self._actuator.forget(change.after.uid)
            if change.before is not None and change.before.intent and not change.after.intent:
                self._metrics.stage_took(Stage.ACTUATE, change.at - change.before.since)
        self._metrics.committed(changes, self._priority_class)
        self._teller.tell(changes)
        self._actuator.poke(change.after.uid for change in changes)
        if self._mirror.touched:
            self._wake.set()

    def _priority_class(self, entry: Entry) -> str:
        job = self._mirror.jobs.get(entry.uid)
        return (job.priority_class or "") if job is not None else ""

    def _owed(self, uid: str) -> list[Write]:
        entry, job = self.ledger.get(uid), self._mirror.jobs.get(uid)
        if entry is None or job is None or uid in self._unwritten:
            return []
        nodes = self._mirror.fleet.by_name
        return owed(entry, job, self._mirror.pods_of(uid), nodes, self._config.flavors)

    async def _reload(self) -> None:
        """Read everything from the database again; what memory says is not trusted any more."""
        while True:
            try:
                loaded = await self._store.load()
                break
            except StoreUnavailable as error:
                log.warning("database_away", why=str(error))
                await asyncio.sleep(RETRY_SECONDS)
        self._unwritten = frozenset()
        self._configure(loaded.documents, loaded.revision)
        self._spending = Spending(loaded.spent)
        self._marker.forget()
        self._tally.learn(loaded.used)
        self._tally.configure(self._config, loaded.entries, self._clock())
        self._adopt(loaded.entries)
        self._holdings.configure(self._config, loaded.entries)
        self._metrics.loaded(loaded.entries, self._holdings)
        self._actuator.poke([entry.uid for entry in self.ledger])
        self._inbox = True
        self._wake.set()

    async def configuration_changed(self) -> None:
        """The API wrote configuration: read it and plan again."""
        revision, documents = await self._store.configuration()
        used = await self._store.past_use()
        self._configure(documents, revision)
        self._tally.learn(used)
        now = self._clock()
        self._tally.configure(self._config, self.ledger, now)
        self._holdings.configure(self._config, self.ledger)
        self._show_use(now)
        self._mirror.touched.update(self._mirror.jobs, (entry.uid for entry in self.ledger))
        self._plan_again = True
        self._wake.set()

    async def commands_added(self) -> None:
        """Somebody asked for something: return when all that was asked is answered."""
        self._inbox = True
        self._inbox_read.clear()
        self._wake.set()
        await self._inbox_read.wait()

    def _configure(self, documents: Sequence[Document], revision: int) -> None:
        try:
            self._config = build(documents, revision)
        except BadInput as error:  # the API checks documents; only a hand in the database gets here
            log.exception("configuration_unreadable", why=str(error))
            self._config = replace(self._config, revision=revision)

    async def _tick(self) -> None:
        """Look at what only time changes."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = self._clock()
            due = self._observer.alarms.due(now) | self._mirror.unschedulable
            self._mirror.unschedulable.intersection_update(self.ledger.uids(*State))
            if any(
                e.lease and e.lease.expires_at <= now for e in self.ledger.entries(State.RESERVED)
            ):
                self._plan_again = True
            if self._exposed_at is not None and self._exposed_at <= now:
                self._exposed_at, self._plan_again = None, True
            if due or self._plan_again:
                self._mirror.touched |= due
                self._wake.set()
            if self._tally.due(now):
                await self._sample(now)

    async def _sample(self, now: float) -> None:
        """Store past use, and plan again: who used less lately may be another by now."""
        used = self._tally.sample(now)
        try:
            await self._store.keep_use(used, self._tally.forget(now), epoch=self._epoch)
        except StoreUnavailable as error:
            log.info("past_use_not_stored", why=str(error))
        else:
            self._tally.written(used)
        self._show_use(now)
        self._plan_anew()

    def _show_use(self, now: float) -> None:
        past = self._tally.past_use(now)
        self._metrics.used_lately(past.local_queues, self._config.local_queues)

    def _facts(self) -> Facts:
        """What usage is accounted by."""
        return Facts(
            marker=self._marker,
            live=lambda: [e for e in self.ledger if e.uid not in self._unwritten],
            config=lambda: self._config,
            looks=lambda: self.gang_uses,
            picture=lambda: self._freezer.freeze(self._config, self._clock(), self._limits),
        )

    async def _prune(self) -> None:
        """Delete what is kept long enough, a little at a time."""
        while True:
            try:
                deleted = await self._store.prune(
                    self._config.rules.retention, self._clock(), epoch=self._epoch
                )
            except StoreUnavailable as error:
                log.info("not_pruned", why=str(error))
                deleted = 0
            await asyncio.sleep(PRUNE_AGAIN_SECONDS if deleted else PRUNE_SECONDS)

    async def wind_down(self, patience: float) -> None:
        """End a running plan at once and give writes under way ``patience`` seconds to be answered."""
        self._consultation.stop()
        self._stop.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._actuator.settled()
