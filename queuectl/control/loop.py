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

import structlog

from queuectl.control.account import Accountant
from queuectl.control.actuate import Actuator
from queuectl.control.books import Books
from queuectl.control.consult import Consultation
from queuectl.control.decide import sentence
from queuectl.control.defaults import keep_labels
from queuectl.control.estimate import Estimator
from queuectl.control.orders import carry_out
from queuectl.control.ports import Clock, Cluster, Store
from queuectl.control.prune import prune
from queuectl.control.record import record_of
from queuectl.control.settings import Settings
from queuectl.control.tell import Teller
from queuectl.domain.commands import Answer
from queuectl.domain.decisions import Decision
from queuectl.domain.diagnosis import Diagnosis, Excess
from queuectl.domain.errors import Fenced, StaleConfiguration, StaleSnapshot, StoreUnavailable
from queuectl.domain.ledger import Change, Intent, State
from queuectl.domain.machine import MAX_BUDGET
from queuectl.domain.plan import Plan, Refusal
from queuectl.domain.queues import QueueConfig
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.utilization import GangUse
from queuectl.planner import StopSignal, plan
from queuectl.planner.domains import spreads
from queuectl.planner.verify import Violation, verify
from queuectl.planner.victims.shield import next_exposure
from queuectl.state.mirror import Mirror
from queuectl.telemetry.logs import cycle_context
from queuectl.telemetry.metrics import Discard, Metrics, Stage

log = structlog.get_logger()

RETRY_SECONDS = 1.0  # between tries to reach the database
TICK_SECONDS = 0.5  # how often time-outs are looked at
_OF_A_STATE = (Intent.START, Intent.STOP)  # owed since the state was entered


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
        self._said = "nothing waits"
        self._wake = asyncio.Event()
        self._stop = StopSignal()
        self._consultation = Consultation()
        self._inbox = True  # commands may wait in the database
        self._inbox_read = asyncio.Event()
        self.books = Books(
            mirror,
            settings.solver.limits,
            settings.unschedulable_seconds,
            clock,
            look_fresh_seconds=settings.utilization.fresh_seconds,
        )
        self._seek_at = 0.0  # when gangs to move may be looked for again
        self._exposed_at: float | None = None  # when somebody may be evicted who may not be yet

    @property
    def loaded(self) -> bool:
        """Whether the books hold what the database does."""
        return self._epoch > 0

    def measured(self, uses: Mapping[str, GangUse]) -> None:
        """What gangs do with their GPUs, by uid: plans go by it from now on.

        Usually nothing follows at once: a cycle begins only when somebody is to be warned, or others than before may be taken.
        """
        news = self.books.looked(uses)
        self._plan_again |= news.plan_again
        if news.due or news.plan_again:
            self._wake.set()

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
                entry = self.books.ledger.get(uid)
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
            self._cluster, self.books.owed, self._metrics, self._settings.in_flight
        )
        self._teller = Teller(
            self._cluster,
            self._mirror.jobs.get,
            lambda: self._actuator.idle,
            self._mirror.namespaces,
            per_second=self._settings.events_per_second,
            after=self._settings.tell_after_seconds,
        )
        self._mirror.trust_running()
        await self._reload()
        self._epoch = epoch
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._actuator.run(), name="actuate")
                group.create_task(self._teller.run(), name="tell")
                group.create_task(self._tick(), name="tick")
                group.create_task(
                    prune(self._store, lambda: self.books.config.rules, self._clock, epoch),
                    name="prune",
                )
                group.create_task(
                    Accountant(
                        self._store.usage,
                        self.books.facts(),
                        self._clock,
                        epoch,
                        self._metrics.fleet.free,
                    ).run(self._settings.account_seconds),
                    name="account",
                )
                group.create_task(
                    keep_labels(self._cluster, self._mirror, lambda: self.books.config),
                    name="defaults",
                )
                group.create_task(
                    Estimator(
                        self.books, self._store.usage, self._metrics.estimates, self._clock
                    ).run(),
                    name="estimate",
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
        observer = self.books.observer
        with self._metrics.stage(Stage.OBSERVE):
            seen = observer.look(self.books.config, self._clock())
        self._plan_again |= seen.plan_again
        while observer.told:
            log.warning("job_left_alone", why=observer.told.pop())
        idle = self.books.of_idle_gangs(seen.changes)
        self._plan_again |= any(change.after.state is State.EVICTING for change in idle)
        if self._inbox:
            await self._carry_out([*seen.changes, *idle])
        else:
            self._write_ahead([*seen.changes, *idle])
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
        changes = self.books.marked(observed)
        self.books.take_in(changes)
        self.books.unwritten = frozenset(change.after.uid for change in changes)
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
            commands,
            self.books.ledger,
            observed,
            self._clock(),
            self.books.config.rules,
            self.books.shut,
        )
        await self._commit([*observed, *changes], None, answers)
        self._plan_again |= bool(changes)
        self._inbox = bool(commands)  # then there may be more
        if self._inbox:
            self._wake.set()
        else:
            self._inbox_read.set()

    async def _plan(self) -> str:
        if not self.books.anything_to_plan():
            return "nothing waits"
        with self._metrics.stage(Stage.FREEZE):
            snapshot = self.books.snapshot(seek_room=self._clock() >= self._seek_at)
        began = time.perf_counter()
        decision, violations = await asyncio.to_thread(self._decide, snapshot)
        await self._written()
        took = time.perf_counter() - began
        self._metrics.planned(decision, took)
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
        changes = self.books.decider.changes(snapshot, decision, self._clock())
        record = record_of(snapshot, decision, changes, took)
        try:
            await self._commit(changes, snapshot.config.revision, record=record)
        except StaleConfiguration as error:
            return await self._outdated(error)
        committed = {change.after.uid for change in changes}
        self._metrics.preempted(
            [p for p in decision.preempted if p.victim in committed],
            self.books.cluster_queue,
        )
        started = [a for a in decision.admitted if a.uid in committed]
        self._metrics.fleet.started(spreads(snapshot, started))
        return sentence(snapshot, decision, changes)

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

    async def _outdated(self, error: StaleConfiguration) -> str:
        """Drop a plan that met a newer configuration. Rows are as the books say: only the configuration is read again."""
        log.info("plan_stale", why=str(error))
        self._metrics.discarded(Discard.STALE)
        self.books.drop_plan()
        await self.configuration_changed()
        return "plan discarded: the configuration is newer"

    def _worth_more(self, refusal: Refusal) -> bool:
        """Whether a larger budget may still decide it."""
        entry = self.books.ledger.get(refusal.uid)
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
        self,
        changes: list[Change],
        revision: int | None,
        answers: Sequence[Answer] = (),
        record: Decision | None = None,
    ) -> None:
        if not changes and not answers:
            return
        changes = self.books.marked(changes)
        await self._write(changes, revision, answers, record)
        self.books.take_in(changes)
        self._follow(changes)

    async def _write_observed(self, changes: list[Change]) -> None:
        await self._write(changes, None)
        self.books.unwritten = frozenset()
        self._follow(changes)

    async def _write(
        self,
        changes: list[Change],
        revision: int | None,
        answers: Sequence[Answer] = (),
        record: Decision | None = None,
    ) -> None:
        with self._metrics.stage(Stage.COMMIT):
            await self._store.commit(
                changes,
                epoch=self._epoch,
                revision=revision,
                cycle=self._cycle,
                answers=answers,
                decision=record,
            )

    def _follow(self, changes: list[Change]) -> None:
        """What committed changes bring about: writes to the cluster, words to people, sums."""
        self.books.follow(changes)
        self._metrics.estimates.started(self.books.estimates.note(changes, self.books.config))
        for change in changes:
            if change.after.state is State.FINISHED:
                self._actuator.forget(change.after.uid)
            before = change.before
            if before is not None and before.intent in _OF_A_STATE and not change.after.intent:
                self._metrics.stage_took(Stage.ACTUATE, change.at - before.since)
        self._metrics.committed(changes, self.books.priority_class)
        self._teller.tell(changes)
        self._actuator.poke(change.after.uid for change in changes)
        if self._mirror.touched:
            self._wake.set()

    async def _reload(self) -> None:
        """Read everything from the database again; what memory says is not trusted any more."""
        while True:
            try:
                loaded = await self._store.load()
                break
            except StoreUnavailable as error:
                log.warning("database_away", why=str(error))
                await asyncio.sleep(RETRY_SECONDS)
        self.books.load(loaded)
        self._metrics.loaded(loaded.entries, self.books.holdings)
        self._actuator.poke([entry.uid for entry in self.books.ledger])
        self._plan_again = True
        self._inbox = True
        self._wake.set()

    async def configuration_changed(self) -> None:
        """The API wrote configuration: read what it wrote and plan again."""
        since = self.books.config.revision
        changes = await self._store.config_changes(since, self.books.documents)
        used = await self._store.past_use()
        if self.books.config.revision != since:
            return  # everything was loaded again meanwhile
        self.books.tally.learn(used)
        self.books.configure(changes)
        self._show_use(self._clock())
        self._plan_anew()

    async def commands_added(self) -> None:
        """Somebody asked for something: return when all that was asked is answered."""
        self._inbox = True
        self._inbox_read.clear()
        self._wake.set()
        await self._inbox_read.wait()

    async def _tick(self) -> None:
        """Look at what only time changes."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = self._clock()
            due = self.books.observer.alarms.due(now) | self._mirror.unschedulable
            ledger = self.books.ledger
            self._mirror.unschedulable.intersection_update(ledger.uids(*State))
            if any(e.lease and e.lease.expires_at <= now for e in ledger.entries(State.RESERVED)):
                self._plan_again = True
            if self._exposed_at is not None and self._exposed_at <= now:
                self._exposed_at, self._plan_again = None, True
            if due or self._plan_again:
                self._mirror.touched |= due
                self._wake.set()
            if self.books.quota_turns(now):
                self._plan_anew()
            if self.books.tally.due(now):
                await self._sample(now)

    async def _sample(self, now: float) -> None:
        """Store past use, and plan again: who used less lately may be another by now."""
        used = self.books.tally.sample(now)
        try:
            await self._store.keep_use(used, self.books.tally.forget(now), epoch=self._epoch)
        except StoreUnavailable as error:
            log.info("past_use_not_stored", why=str(error))
        else:
            self.books.tally.written(used)
        self._show_use(now)
        self._plan_anew()

    def _show_use(self, now: float) -> None:
        past = self.books.tally.past_use(now)
        self._metrics.used_lately(past.local_queues, self.books.config.local_queues)

    async def wind_down(self, patience: float) -> None:
        """End a running plan at once and give writes under way ``patience`` seconds to be answered."""
        self._consultation.stop()
        self._stop.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._actuator.settled()
