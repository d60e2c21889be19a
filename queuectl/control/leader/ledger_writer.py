"""The writes of a leader to the database, and the actions that follow a commit.

Each write is fenced by the epoch. A change is sent to the cluster, reported and counted only after it is in the database. Only planning
uses observations while they are being written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import structlog

from queuectl.control.leader.actuator import Actuator
from queuectl.control.leader.events import EventRecorder
from queuectl.control.leader.leader_state import LeaderState
from queuectl.control.leader.schedule import Wakeup
from queuectl.db.ports import Commit, LeaderStore
from queuectl.domain.commands import FAILED, Answer
from queuectl.domain.containment import Boundary, never_contained
from queuectl.domain.errors import StaleSnapshot, StoreUnavailable
from queuectl.domain.ledger import KEPT_BYTES, EntryChange, Intent, Loaded, RefusedPlan, State
from queuectl.domain.plan import Plan
from queuectl.domain.snapshot import Snapshot
from queuectl.objects.files.refused_plans import BrokenRule, pack
from queuectl.state.mirror import Mirror
from queuectl.telemetry.metrics import CycleStage, MetricsRecorder

log = structlog.get_logger()

_Read = TypeVar("_Read")

RETRY_SECONDS = 1.0  # between tries to reach the database
_OF_A_STATE = (Intent.START, Intent.STOP)  # owed since the state was entered


class LedgerWriter:
    """Writes the changes of one leadership to the database.

    Attributes:
        epoch: of the leadership; what is written under an older one than the database knows is refused.
        cycle: number of the current cycle, stored with its writes.
    """

    def __init__(
        self,
        *,
        store: LeaderStore,
        leader_state: LeaderState,
        mirror: Mirror,
        metrics: MetricsRecorder,
        actuator: Actuator,
        recorder: EventRecorder,
        wakeup: Wakeup,
        epoch: int,
        step: Callable[[], None],
    ) -> None:
        """``step``: called for each try to reach the database, which is progress."""
        self._step = step
        self.epoch = epoch
        self.cycle = 0
        self._store = store
        self._leader_state = leader_state
        self._mirror = mirror
        self._metrics = metrics
        self._actuator = actuator
        self._recorder = recorder
        self._wakeup = wakeup
        self._ahead: asyncio.Task[None] | None = None  # observations that are being written

    async def reload(self) -> None:
        """Read the whole state from the database, and wait for it as long as necessary.

        Raises:
            Fenced: another leader has taken over.
        """
        loaded = await self.persistently(self._load)
        self._leader_state.load(loaded)
        self._metrics.loaded(loaded.entries, self._leader_state.holdings)
        self._actuator.poke([entry.uid for entry in self._leader_state.ledger], changed=True)

    async def _load(self) -> Loaded:
        await self._store.commits_ended(epoch=self.epoch)
        return await self._store.load()

    async def persistently(self, read: Callable[[], Awaitable[_Read]]) -> _Read:
        """The result of a read of the database, which is repeated until the database answers. Raises its other errors."""
        while True:
            self._step()
            try:
                return await read()
            except StoreUnavailable as error:
                log.warning("database_not_reached", error=str(error))
                await asyncio.sleep(RETRY_SECONDS)

    async def commit(self, commit: Commit) -> None:
        """Write the changes with their marks, then apply them.

        Raises:
            Fenced: another leader has taken over.
            StaleConfiguration: the configuration is newer than the revision of the plan, and the change is not tolerated.
            StaleSnapshot: rows have other versions than the changes expect.
            StoreUnavailable: the database is unavailable.
        """
        if not commit.changes and not commit.answers and commit.reserved is None:
            return
        changes = self._leader_state.marked(commit.changes)
        await self._write(replace(commit, changes=changes))
        self._leader_state.take_in(changes)
        if commit.reserved is not None:
            self._leader_state.planning.reserved = commit.reserved
        self._follow(changes)

    def write_ahead(self, observed: list[EntryChange]) -> None:
        """Apply observations at once, so that planning can use them while they are being written."""
        if not observed:
            return
        changes = self._leader_state.marked(observed)
        self._leader_state.take_in(changes)
        self._leader_state.unwritten = frozenset(change.after.uid for change in changes)
        self._ahead = asyncio.create_task(self._write_observed(changes), name="observed")

    async def written(self) -> None:
        """Return when these observations are in the database. Raises the errors of :meth:`commit`."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            await ahead

    async def keep_refused(
        self, snapshot: Snapshot, plan: Plan, broken: Sequence[BrokenRule]
    ) -> None:
        """Keep a plan that the verifier refused, with its snapshot. Nothing depends on it.

        Raises:
            Fenced: another leader has taken over.
        """
        content = await asyncio.to_thread(pack, snapshot, plan, broken)
        rules = tuple(sorted({one.rule for one in broken}))
        refused = RefusedPlan(0, snapshot.now, self.epoch, self.cycle, rules, len(content))
        if refused.size > KEPT_BYTES:
            log.warning("refused_plan_not_stored", error=f"{refused.size} bytes are too many")
            return
        try:
            await self._store.keep_refused(refused, content)
        except StoreUnavailable as error:
            log.warning("refused_plan_not_stored", error=str(error))

    def drop(self) -> None:
        """Cancel the write in progress before the state is read again, or when the process no longer leads."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.cancel()

    async def _write_observed(self, changes: list[EntryChange]) -> None:
        await self._write(Commit(changes))
        self._leader_state.unwritten = frozenset()
        self._follow(changes)

    async def _write(self, commit: Commit) -> None:
        self._step()
        with self._metrics.stage(CycleStage.COMMIT):
            try:
                await self._store.commit(commit, epoch=self.epoch, cycle=self.cycle)
            except Exception as error:
                if never_contained(error):
                    raise
                await self._write_apart(commit)
                raise StaleSnapshot(f"a change is not written: {error}") from error
        if not self._mirror.containment.empty:
            for change in commit.changes:
                self._mirror.containment.passed(Boundary.COMMIT, change.after.uid)

    async def _write_apart(self, commit: Commit) -> None:
        """Write each change by itself, and set the workloads aside whose change the database cannot store.

        A command is answered with its change, or as one that failed. Evictions are written last, and only if each other change is: what
        they make room for is among these. The record of the cycle is not written.
        """
        containment, complete = self._mirror.containment, True
        asked = {answer.uid: answer for answer in commit.answers}
        answers = [answer for answer in commit.answers if not answer.uid]
        for change in sorted(commit.changes, key=lambda one: one.after.state is State.EVICTING):
            entry = change.after
            if entry.state is State.EVICTING and not complete:
                continue
            answer = asked.get(entry.uid)
            mine = (answer,) if answer is not None else ()
            single = Commit([change], commit.revision, mine, tolerance=commit.tolerance)
            try:
                await self._store.commit(single, epoch=self.epoch, cycle=self.cycle)
            except Exception as error:  # noqa: BLE001 - contained
                complete = False
                ref = f"{entry.kind}/{entry.ref}"
                failed = containment.failed(
                    Boundary.COMMIT, entry.uid, error, ref, namespace=entry.namespace
                )
                if answer is not None:
                    answers.append(Answer(answer.id, FAILED.format(error=failed.error)))
            else:
                containment.passed(Boundary.COMMIT, entry.uid)
        if answers or commit.reserved is not None:
            rest = replace(commit, changes=(), answers=answers, decision=None, tolerance=None)
            await self._store.commit(rest, epoch=self.epoch, cycle=self.cycle)

    def _follow(self, changes: list[EntryChange]) -> None:
        """The actions that follow committed changes: writes to the cluster, Events, sums."""
        self._leader_state.follow(changes)
        self._metrics.estimates.started(self._leader_state.estimates.note(changes))
        self._metrics.durations.finished(
            (str(error.source), error.seconds, error.within)
            for error in self._leader_state.durations.note(changes, self._leader_state.config)
        )
        for change in changes:
            if change.after.state is State.FINISHED:
                self._actuator.forget(change.after.uid)
            before = change.before
            if before is not None and before.intent in _OF_A_STATE and not change.after.intent:
                self._metrics.stage_took(CycleStage.ACTUATE, change.at - before.since)
        self._metrics.committed(changes, self._leader_state.priority_class)
        self._recorder.add(changes)
        self._actuator.poke((change.after.uid for change in changes), changed=True)
        if self._mirror.touched:
            self._wakeup.trigger()
