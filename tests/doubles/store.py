"""The ledger in memory: :class:`queuectl.db.ports.LeaderStore` and :class:`queuectl.db.ports.ApiStore` without a database.

Two :class:`MemoryStore` with one :class:`MemoryDatabase` are two controllers on one server. The test arranges outages and
lost answers: see :class:`Fault`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import accumulate

from queuectl.db.commands import same_request
from queuectl.db.documents import check_version
from queuectl.db.engine import storable
from queuectl.db.ports import Commit, ConfigurationBatch
from queuectl.domain.audit import AuditLine
from queuectl.domain.commands import MOST_WAITING, Command, CommandFilter
from queuectl.domain.containment import KEPT_OBJECTS, SetAsideObject, Suspect
from queuectl.domain.controller_notifications import leader_changed_event, set_aside_event
from queuectl.domain.errors import (
    Fenced,
    NotFound,
    StaleConfiguration,
    StaleSnapshot,
    StoreUnavailable,
    TooManyCommands,
)
from queuectl.domain.estimates import DAY
from queuectl.domain.followed import FollowedReport
from queuectl.domain.identity import Session
from queuectl.domain.ledger import (
    KEPT_BYTES,
    KEPT_DECISIONS,
    KEPT_SECONDS,
    Document,
    Entry,
    EntryChange,
    Loaded,
    MigrationCost,
    RefusedPlan,
    State,
    StoredDecision,
    check_once,
)
from queuectl.domain.notifications import BudgetLimit, Event
from queuectl.domain.pastuse import PastUseAccount, Used
from queuectl.domain.processes import LeaderFindings, ProcessEnd
from queuectl.domain.queries import (
    BY_NAME,
    IN_QUEUE_ORDER,
    LONGEST_PAGE,
    ConfigChanges,
    ConfigDocument,
    DocumentKey,
    HistoryLine,
    LiveWorkloads,
    PagePosition,
    QueueCounts,
    QueuePosition,
    Tolerance,
    WaitingOrder,
    WorkloadFilter,
    WorkloadOrder,
    WorkloadPage,
    positions_in,
    turn,
)
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.reservations import ReservationState
from queuectl.domain.rules import Retention
from queuectl.domain.search import SearchText, WorkloadSummary
from queuectl.domain.stages import EndedStage, EndedStages
from queuectl.domain.workload_notifications import events_of
from queuectl.objects.documents import in_order
from tests.doubles.access import MemoryAudit, MemorySessions
from tests.doubles.notifications import MemoryNotifications, MemoryNotificationTables
from tests.doubles.shadow import MemoryShadow, MemoryShadowTables
from tests.doubles.usage import MemoryUsage, MemoryUsageTables


class Fault(Enum):
    """A fault of one commit. In each case the caller gets StoreUnavailable."""

    BEFORE = "nothing was written"
    AFTER = "it was written, the answer was lost"


@dataclass
class MemoryRun:
    """The run of a process."""

    name: str
    epoch: int | None = None
    ended: float | None = None
    how: ProcessEnd = ProcessEnd.UNKNOWN


@dataclass
class MemoryDatabase:
    """The state that all its stores share. ``down`` makes every call fail until it is reset."""

    epoch: int = 0
    holder: str = ""
    revision: int = 0
    entries: dict[str, Entry] = field(default_factory=dict)
    documents: dict[DocumentKey, ConfigDocument] = field(default_factory=dict)
    history: list[HistoryLine] = field(default_factory=list)
    decisions: list[StoredDecision] = field(default_factory=list)
    refused: list[tuple[RefusedPlan, bytes]] = field(default_factory=list)
    set_aside: list[tuple[SetAsideObject, bytes]] = field(default_factory=list)
    commands: dict[int, Command] = field(default_factory=dict)
    used: dict[PastUseAccount, Used] = field(default_factory=dict)
    reserved: tuple[ReservationState, ...] = ()
    findings: LeaderFindings = field(default_factory=LeaderFindings)
    usage: MemoryUsageTables = field(default_factory=MemoryUsageTables)
    shadow: MemoryShadowTables = field(default_factory=MemoryShadowTables)
    notifications: MemoryNotificationTables = field(default_factory=MemoryNotificationTables)
    sessions: dict[str, Session] = field(default_factory=dict)
    audit: list[AuditLine] = field(default_factory=list)
    runs: list[MemoryRun] = field(default_factory=list)
    followed: FollowedReport = field(default_factory=FollowedReport)
    exported: int | None = None  # the line of history up to which stages are exported
    confirmed: str = ""
    suspects: tuple[Suspect, ...] = ()
    tried_at: float = 0.0
    outcomes: dict[int, str | None] = field(default_factory=dict)  # None = not answered yet
    down: bool = False
    faults: list[Fault] = field(default_factory=list)  # for the next commits, in order
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)


class MemoryStore:
    """The methods of the leader's store and of the API's."""

    def __init__(self, database: MemoryDatabase | None = None) -> None:
        self.database = database or MemoryDatabase()
        self.sessions = MemorySessions(self.database.sessions, self._reach)
        self.audit = MemoryAudit(self.database.audit, self._reach)
        self.usage = MemoryUsage(self._usage_tables, lambda: list(self.database.entries.values()))
        self.shadow = MemoryShadow(self._shadow_tables)
        self.notifications = MemoryNotifications(self.database.notifications, self._reach)
        self.notifications_enabled = False

    async def _usage_tables(self) -> tuple[MemoryUsageTables, int]:
        database = await self._reach()
        return database.usage, database.epoch

    async def _shadow_tables(self) -> tuple[MemoryShadowTables, int]:
        database = await self._reach()
        return database.shadow, database.epoch

    async def close(self) -> None:
        await asyncio.sleep(0)

    async def _reach(self) -> MemoryDatabase:
        await asyncio.sleep(0)  # a real store also lets other tasks run
        if self.database.down:
            raise StoreUnavailable("the database is down")
        return self.database

    # -- the leader ---------------------------------------------------------------------------------------------------

    async def now(self) -> float:
        await self._reach()
        return time.time()

    async def take_over(self, holder: str, floor: int, accounted: int = 0) -> int:
        database = await self._reach()
        until = database.usage.until
        if floor > database.epoch or (until is not None and until < accounted):
            database.usage.skip(time.time())
        database.epoch = max(database.epoch, floor) + 1
        before, database.holder = database.holder, holder
        if before and self.notifications_enabled:
            event = leader_changed_event(time.time(), holder, before, database.epoch)
            database.notifications.add([event])
        for run in database.runs:
            if run.epoch is not None and run.ended is None and run.name != holder:
                run.ended = time.time()
        own = [run for run in database.runs if run.name == holder and run.ended is None]
        if not own:
            database.runs.append(MemoryRun(holder))
        (own or database.runs)[-1].epoch = database.epoch
        return database.epoch

    async def begin_run(self, holder: str) -> None:
        database = await self._reach()
        for run in database.runs:
            if run.name == holder and run.ended is None:
                run.ended = time.time()
        database.runs.append(MemoryRun(holder))

    async def end_run(self, holder: str, how: ProcessEnd) -> None:
        database = await self._reach()
        last = [run for run in database.runs if run.name == holder][-1]
        last.ended, last.how = time.time(), how

    async def unknown_ends(self, since: float) -> tuple[float, ...]:
        database = await self._reach()
        ended = (run.ended for run in database.runs if run.how is ProcessEnd.UNKNOWN)
        since = max(since, database.tried_at)
        return tuple(sorted(at for at in ended if at is not None and at > since))

    async def suspects(self) -> tuple[Suspect, ...]:
        return (await self._reach()).suspects

    async def keep_suspects(self, suspects: Sequence[Suspect]) -> None:
        database = await self._reach()
        database.suspects, database.tried_at = tuple(suspects), time.time()

    async def commits_ended(self, *, epoch: int) -> None:
        if (await self._reach()).epoch != epoch:
            raise Fenced(f"epoch {epoch} is over")

    async def follow(self, before: Loaded) -> Loaded:
        now, known = await self.load(), {entry.uid: entry for entry in before.entries}
        entries = tuple(known[e.uid] if e == known.get(e.uid) else e for e in now.entries)
        same = before.revision == now.revision
        documents = before.documents if same else now.documents
        return replace(now, entries=entries, documents=documents)

    async def load(self) -> Loaded:
        database = await self._reach()
        live = (e for e in database.entries.values() if e.state is not State.FINISHED)
        documents = tuple(d.document for _, d in sorted(database.documents.items()))
        costs = (MigrationCost.from_reason(line.at, line.reason) for line in database.history)
        return Loaded(
            tuple(sorted(live, key=lambda e: e.uid)),
            documents,
            database.revision,
            tuple(spent for spent in costs if spent is not None),
            await self.past_use(),
            database.reserved,
        )

    async def reservations(self) -> tuple[ReservationState, ...]:
        return (await self._reach()).reserved

    async def commit(self, commit: Commit, *, epoch: int, cycle: int) -> None:
        database = await self._reach()
        fault = database.faults.pop(0) if database.faults else None
        if fault is Fault.BEFORE:
            raise StoreUnavailable("the connection was lost")
        if database.epoch != epoch:
            raise Fenced(f"epoch {epoch} is over")
        async with database.changed:  # edits wait for it
            await self._write_all(commit, epoch, cycle)
            database.changed.notify_all()
        if fault is Fault.AFTER:
            raise StoreUnavailable("the connection was lost")

    async def _write_all(self, commit: Commit, epoch: int, cycle: int) -> None:
        database = self.database
        same = commit.revision in (None, database.revision)
        if not same and not await self._tolerates(commit.tolerance, commit.revision):
            raise StaleConfiguration(
                f"the configuration is no longer at revision {commit.revision}"
            )
        check_once(commit.changes)
        for change in commit.changes:
            self._check(change)
        for answer in commit.answers:
            if database.outcomes.get(answer.id, "") is not None:
                raise StaleSnapshot("a command was answered before")
        end = len(database.history)
        for change in commit.changes:
            self._write(change, cycle)
        events = events_of(commit.changes) if self.notifications_enabled else ()
        database.notifications.add(events)
        for change in commit.changes:
            for mark in change.marks:
                database.usage.note(mark)
        database.reserved = database.reserved if commit.reserved is None else commit.reserved
        database.outcomes |= {answer.id: answer.outcome for answer in commit.answers}
        if commit.decision is not None:
            number = max((one.id for one in database.decisions), default=0) + 1
            upto = len(database.history)
            database.decisions.append(
                StoredDecision(number, epoch, cycle, end, upto, commit.decision)
            )

    async def _tolerates(self, tolerance: Tolerance | None, revision: int | None) -> bool:
        if tolerance is None or revision is None:
            return False
        return await tolerance.of(await self.config_changes(revision, tolerance.documents))

    def _check(self, change: EntryChange) -> None:
        stored = self.database.entries.get(change.after.uid)
        if change.before is None and stored is not None and stored.state is State.FINISHED:
            return
        expected = change.before.version if change.before is not None else None
        if (stored.version if stored is not None else None) != expected:
            raise StaleSnapshot(f"{change.after.ref} changed in the meantime")

    def _write(self, change: EntryChange, cycle: int) -> None:
        after, note = change.after, change.line
        self.database.entries[after.uid] = replace(after, reason=_stored(after.reason))
        if note is None:
            return
        moved = change.before is None or change.before.placement != after.placement
        self.database.history.append(
            HistoryLine(
                id=len(self.database.history) + 1,
                uid=after.uid,
                kind=after.kind,
                namespace=after.namespace,
                name=after.name,
                at=change.at,
                epoch=self.database.epoch,
                cycle=cycle,
                attempt=after.attempt,
                event=note.event,
                from_state=note.from_state,
                to_state=note.to_state,
                reason=_stored(note.reason),
                placement=after.placement if moved else None,
            )
        )

    async def prune(self, retention: Retention, now: float, *, epoch: int) -> int:
        database = await self._reach()
        if database.epoch != epoch:
            raise Fenced(f"epoch {epoch} is over")
        old = [e.uid for e in database.entries.values() if _kept_enough(e, retention, now)]
        answered = [
            c.id
            for c in database.commands.values()
            if database.outcomes[c.id] is not None and c.at < now - DAY
        ]
        for uid in old:
            del database.entries[uid]
        for number in answered:
            del database.commands[number], database.outcomes[number]
        kept = [d for d in database.decisions if d.decision.at >= now - KEPT_SECONDS]
        outdated, database.decisions = len(database.decisions) - len(kept), kept
        return len(old) + len(answered) + outdated + database.notifications.prune()

    async def announce(self, events: Sequence[Event], *, epoch: int) -> None:
        if self.notifications_enabled:
            (await self._leading(epoch)).notifications.add(events)

    async def announce_budgets(
        self, announcements: Mapping[BudgetLimit, Event], *, epoch: int
    ) -> None:
        if self.notifications_enabled:
            (await self._leading(epoch)).notifications.announce_budgets(announcements)

    async def keep_use(self, used: Sequence[Used], forget: float, *, epoch: int) -> None:
        database = await self._reach()
        if database.epoch != epoch:
            raise Fenced(f"epoch {epoch} is over")
        known = {**database.used, **{one.account: one for one in used if one.amounts}}
        database.used = {account: one for account, one in known.items() if one.at >= forget}

    async def past_use(self) -> tuple[Used, ...]:
        used = (await self._reach()).used
        return tuple(used[account] for account in sorted(used))

    async def keep_findings(self, found: LeaderFindings, *, epoch: int) -> None:
        database = await self._reach()
        if database.epoch != epoch:
            raise Fenced(f"epoch {epoch} is over")
        database.findings = found

    async def findings(self, known: float) -> LeaderFindings | None:
        found = (await self._reach()).findings
        return found if found.at != known else None

    # -- commands -----------------------------------------------------------------------------------------------------

    async def add_command(self, command: Command) -> Command:
        database = await self._reach()
        for known in database.commands.values():
            if known.request_id == command.request_id:
                answered = self._as_answered(known)
                assert answered is not None
                return same_request(answered, command)
        waiting = (c for c in database.commands.values() if database.outcomes[c.id] is None)
        if sum(c.uid == command.uid for c in waiting) >= MOST_WAITING:
            raise TooManyCommands(f"{MOST_WAITING} commands of this workload wait already")
        number = max(database.commands, default=0) + 1
        by, why = storable(command.by), storable(command.why)
        added = replace(command, id=number, by=by, at=time.time(), why=why)
        database.commands[number] = added
        database.outcomes[number] = None
        async with database.changed:
            database.changed.notify_all()
        return added

    async def get_command(self, request_id: str) -> Command | None:
        known = (await self._reach()).commands.values()
        return self._as_answered(next((c for c in known if c.request_id == request_id), None))

    async def command(self, number: int) -> Command | None:
        database = await self._reach()
        return self._as_answered(database.commands.get(number))

    async def commands_of(self, uid: str, after: int = 0, limit: int = 100) -> tuple[Command, ...]:
        database = await self._reach()
        mine = [c for c in database.commands.values() if c.uid == uid and c.id > after]
        answered = map(self._as_answered, mine[: min(limit, LONGEST_PAGE)])
        return tuple(c for c in answered if c is not None)

    async def newest_commands(self, wanted: CommandFilter, limit: int = 100) -> tuple[Command, ...]:
        database = await self._reach()
        names = {entry.uid: entry.ref for entry in database.entries.values()}
        answered = filter(None, map(self._as_answered, reversed(database.commands.values())))
        found = [c for c in answered if wanted.matches(c, names.get(c.uid))]
        return tuple(found[: max(1, min(limit, LONGEST_PAGE))])

    def _as_answered(self, command: Command | None) -> Command | None:
        if command is None:
            return None
        return replace(command, outcome=self.database.outcomes[command.id])

    async def commands(self) -> tuple[Command, ...]:
        database = await self._reach()
        first: dict[str, Command] = {}
        for command in database.commands.values():
            if database.outcomes[command.id] is None:
                first.setdefault(command.uid, command)
        return tuple(first.values())

    async def commands_waiting(self, *, poll: float = 5.0) -> None:
        database = await self._reach()
        async with database.changed:
            while all(outcome is not None for outcome in database.outcomes.values()):
                await database.changed.wait()

    # -- configuration ------------------------------------------------------------------------------------------------

    async def configuration(self) -> tuple[int, tuple[Document, ...]]:
        loaded = await self.load()
        return loaded.revision, loaded.documents

    async def config_changed(self, since: int, *, poll: float = 5.0) -> int:
        database = await self._reach()
        async with database.changed:
            while database.revision == since:
                await database.changed.wait()
        return (await self._reach()).revision

    async def put_config(
        self, document: Document, if_match: int | None = None, used: Sequence[Used] = ()
    ) -> int:
        database = await self._reach()
        key = DocumentKey.of(document)
        present = database.documents.get(key)
        check_version(key, present.version if present else 0, if_match)
        database.used = {**{one.account: one for one in used if one.amounts}, **database.used}
        if present is not None and present.document == document:
            return present.version
        version = await self._raise_revision()
        database.documents[key] = ConfigDocument(
            in_order(json.loads(json.dumps(document))), version
        )
        return version

    async def write_configuration(self, batch: ConfigurationBatch, *, epoch: int) -> int:
        database = await self._reach()
        if database.epoch != epoch:
            raise Fenced(f"epoch {epoch} is over")
        if database.revision != batch.revision:
            raise StaleConfiguration(f"not at revision {batch.revision}")
        documents = {
            DocumentKey.of(document): ConfigDocument(
                in_order(json.loads(json.dumps(document))), batch.revision + 1
            )
            for document in batch.written
        }
        async with database.changed:  # nothing awaits between documents, lines and revision
            database.documents.update(documents)
            for key in batch.removed:
                database.documents.pop(key, None)
                database.confirmed = ""
            for line in batch.lines:
                self.audit.add(line)
            database.revision += 1
            database.changed.notify_all()
        return batch.revision + 1

    async def keep_followed(self, report: FollowedReport, *, epoch: int) -> None:
        (await self._leading(epoch)).followed = report

    async def followed(self) -> FollowedReport:
        return (await self._reach()).followed

    async def ended_stages(self, after: int, limit: int) -> EndedStages:
        lines = (await self._reach()).history
        window = [line for line in lines if line.id > after][:limit]
        stages = tuple(
            self._ended(line)
            for line in window
            if line.from_state is not None and line.from_state is not line.to_state
        )
        return EndedStages(window[-1].id if window else after, stages)

    def _ended(self, line: HistoryLine) -> EndedStage:
        earlier = [h for h in self.database.history if h.uid == line.uid and h.id < line.id]
        moves = [h for h in earlier if h.from_state is not h.to_state]
        begins = [h for h in moves if h.from_state in (None, State.EVICTING)]
        assert line.from_state is not None
        return EndedStage(
            *(line.id, line.uid, line.kind, line.namespace, line.name, self._queue_of(line.uid)),
            *(line.attempt, line.from_state, line.to_state, line.reason.code),
            *(moves[-1].at, line.at, begins[-1].at),
        )

    async def exported_upto(self, *, epoch: int) -> int:
        database = await self._leading(epoch)
        if database.exported is None:
            database.exported = database.history[-1].id if database.history else 0
        return database.exported

    async def keep_exported(self, line: int, *, epoch: int) -> None:
        (await self._leading(epoch)).exported = line

    async def _leading(self, epoch: int) -> MemoryDatabase:
        database = await self._reach()
        if database.epoch != epoch:
            raise Fenced(f"epoch {epoch} is over")
        return database

    async def confirm_deletion(self, deletion: str) -> None:
        (await self._reach()).confirmed = deletion

    async def confirmed_deletion(self) -> str:
        return (await self._reach()).confirmed

    async def delete_config(self, key: DocumentKey, if_match: int | None = None) -> None:
        database = await self._reach()
        present = database.documents.get(key)
        check_version(key, present.version if present else 0, if_match)
        if present is None:
            raise NotFound(f"{key} does not exist")
        del database.documents[key]
        await self._raise_revision()

    async def _raise_revision(self) -> int:
        async with self.database.changed:
            self.database.revision += 1
            self.database.changed.notify_all()
            return self.database.revision

    async def get_config(self, key: DocumentKey) -> ConfigDocument | None:
        return (await self._reach()).documents.get(key)

    async def get_configs(self, keys: Collection[DocumentKey]) -> tuple[ConfigDocument, ...]:
        documents = (await self._reach()).documents
        return tuple(documents[key] for key in sorted(set(keys)) if key in documents)

    async def config_changes(self, since: int, known: Collection[DocumentKey]) -> ConfigChanges:
        database = await self._reach()
        since = since if database.revision >= since else 0
        written = tuple(d.document for d in database.documents.values() if d.version > since)
        gone = frozenset(known) - database.documents.keys()
        return ConfigChanges(database.revision, written, gone)

    async def list_config(
        self, kind: str, namespace: str | None = None
    ) -> tuple[ConfigDocument, ...]:
        database = await self._reach()
        found = (
            (key, document)
            for key, document in sorted(database.documents.items())
            if key.kind == kind and namespace in (None, key.namespace)
        )
        return tuple(document for _, document in found)

    # -- the API's reads ----------------------------------------------------------------------------------------------

    async def list_workloads(
        self,
        wanted: WorkloadFilter,
        cursor: str | None = None,
        limit: int = 100,
        order: WorkloadOrder = BY_NAME,
    ) -> WorkloadPage:
        database = await self._reach()
        limit = max(1, min(limit, LONGEST_PAGE))
        rest = sorted(
            (e for e in database.entries.values() if wanted.matches(e)),
            key=lambda e: PagePosition.of(e, order).key,
            reverse=order.descending,
        )
        if cursor is not None:
            ended = PagePosition.parse(cursor, order).key
            keys = [PagePosition.of(e, order).key for e in rest]
            rest = rest[sum(k >= ended if order.descending else k <= ended for k in keys) :]
        more = PagePosition.of(rest[limit - 1], order).cursor if len(rest) > limit else None
        return WorkloadPage(tuple(map(_own_row, rest[:limit])), more)

    async def namespaces(self) -> frozenset[str]:
        database = await self._reach()
        queues = {key.namespace for key in database.documents if key.kind == "LocalQueue"}
        return frozenset(queues | {e.namespace for e in database.entries.values()})

    async def get_workloads(self, uids: Collection[str]) -> tuple[Entry, ...]:
        entries = (await self._reach()).entries
        return tuple(entries[uid] for uid in uids if uid in entries)

    async def users(self, namespaces: Collection[str] | None, limit: int) -> tuple[str, ...]:
        entries = (await self._reach()).entries.values()
        live = (e for e in entries if e.state is not State.FINISHED and e.user)
        found = {e.user for e in live if namespaces is None or e.namespace in namespaces}
        return tuple(sorted(found)[:limit])

    async def get_workload(self, uid: str) -> Entry | None:
        return (await self._reach()).entries.get(uid)

    async def find_workload(self, kind: str, namespace: str, name: str) -> Entry | None:
        database = await self._reach()
        found = [
            e
            for e in database.entries.values()
            if (e.kind, e.namespace, e.name) == (kind, namespace, name)
        ]
        found.sort(key=lambda e: (e.state is State.FINISHED, -e.queued_at, e.uid))
        return next(iter(found), None)

    async def find_workloads(self, namespace: str, name: str) -> tuple[Entry, ...]:
        entries = (await self._reach()).entries.values()
        kinds = {e.kind for e in entries if (e.namespace, e.name) == (namespace, name)}
        found = [await self.find_workload(kind, namespace, name) for kind in sorted(kinds)]
        return tuple(one for one in found if one is not None)

    async def workload_names(self, uids: Iterable[str]) -> Mapping[str, str]:
        entries = (await self._reach()).entries
        return {uid: entries[uid].ref for uid in uids if uid in entries}

    async def positions(self, uids: Iterable[str]) -> Mapping[str, QueuePosition]:
        entries = (await self._reach()).entries
        found = positions_in(entries.values())
        return {uid: found[uid] for uid in uids if uid in found}

    async def live_workloads(self, before: Collection[Entry]) -> LiveWorkloads:
        at = await self.now()
        entries = (await self._reach()).entries
        by_uid = (entries[uid] for uid in sorted(entries))
        return LiveWorkloads(tuple(e for e in by_uid if e.state is not State.FINISHED), at)

    async def unfinished(self) -> tuple[WorkloadSummary, ...]:
        entries = (await self._reach()).entries.values()
        return tuple(_summary(e) for e in entries if e.state is not State.FINISHED)

    async def finished_matches(
        self, search: SearchText, namespaces: frozenset[str] | None, limit: int
    ) -> tuple[WorkloadSummary, ...]:
        entries = (await self._reach()).entries.values()
        if not search.possible:
            return ()
        finished = (
            _summary(e)
            for e in entries
            if e.state is State.FINISHED and (namespaces is None or e.namespace in namespaces)
        )
        return tuple(search.in_order(filter(search.matches, finished))[:limit])

    async def history(
        self, uid: str | None, after: int = 0, limit: int = 100
    ) -> tuple[HistoryLine, ...]:
        database = await self._reach()
        limit = max(1, min(limit, LONGEST_PAGE))
        found = [h for h in database.history if h.id > after and uid in (None, h.uid)]
        return tuple(replace(h, cluster_queue=self._queue_of(h.uid)) for h in found[:limit])

    async def newest_lines(self, uid: str, limit: int = 100) -> tuple[HistoryLine, ...]:
        database = await self._reach()
        limit = max(1, min(limit, LONGEST_PAGE))
        found = [h for h in reversed(database.history) if h.uid == uid]
        return tuple(replace(h, cluster_queue=self._queue_of(h.uid)) for h in found[:limit])

    def _queue_of(self, uid: str) -> str:
        entry = self.database.entries.get(uid)
        return entry.cluster_queue if entry is not None else ""

    async def decisions(
        self, before: int | None = None, limit: int = 100
    ) -> tuple[StoredDecision, ...]:
        known = reversed((await self._reach()).decisions)
        limit = max(1, min(limit, LONGEST_PAGE))
        return tuple(d for d in known if before is None or d.id < before)[:limit]

    async def keep_refused(self, plan: RefusedPlan, content: bytes) -> None:
        database = await self._reach()
        if plan.epoch != database.epoch:
            raise Fenced(f"epoch {plan.epoch} is over")
        number = max((one.id for one, _ in database.refused), default=0) + 1
        database.refused.insert(0, (replace(plan, id=number), content))
        together = accumulate(one.size for one, _ in database.refused)
        kept = sum(1 for size in together if size <= KEPT_BYTES)
        del database.refused[min(kept, KEPT_DECISIONS) :]

    async def refused_plans(self) -> tuple[RefusedPlan, ...]:
        return tuple(plan for plan, _ in (await self._reach()).refused)

    async def refused_plan(self, number: int) -> bytes | None:
        found = (await self._reach()).refused
        return next((content for plan, content in found if plan.id == number), None)

    async def keep_set_aside(self, one: SetAsideObject, content: bytes) -> None:
        database = await self._reach()
        if one.epoch != database.epoch:
            raise Fenced(f"epoch {one.epoch} is over")
        kept = database.set_aside
        number = max((known.id for known, _ in kept), default=0) + 1
        unit = (one.boundary, one.key)
        others = [row for row in kept if (row[0].boundary, row[0].key) != unit]
        places = {(known.boundary, known.place) for known, _ in kept}
        if self.notifications_enabled and (one.boundary, one.place) not in places:
            database.notifications.add([set_aside_event(one)])
        database.set_aside = [(replace(one, id=number), content), *others][:KEPT_OBJECTS]

    async def set_aside_objects(self) -> tuple[SetAsideObject, ...]:
        return tuple(one for one, _ in (await self._reach()).set_aside)

    async def set_aside_object(self, number: int) -> bytes | None:
        found = (await self._reach()).set_aside
        return next((content for one, content in found if one.id == number), None)

    async def get_decision(self, number: int) -> StoredDecision | None:
        return next((d for d in (await self._reach()).decisions if d.id == number), None)

    async def newest_line(self) -> int:
        return max((line.id for line in (await self._reach()).history), default=0)

    async def history_grown(self, after: int, *, poll: float = 5.0) -> None:
        database = await self._reach()
        async with database.changed:
            while await self.newest_line() <= after:
                await database.changed.wait()

    async def tallies(self) -> tuple[QueueCounts, ...]:
        groups: dict[tuple[str, str, str, State, Code], list[Entry]] = {}
        for e in (await self._reach()).entries.values():
            if e.state is not State.FINISHED:
                key = (e.namespace, e.queue, e.cluster_queue, e.state, e.reason.code)
                groups.setdefault(key, []).append(e)
        return tuple(
            QueueCounts(*key, len(held), sum(e.gpus for e in held), min(e.queued_at for e in held))
            for key, held in sorted(groups.items())
        )

    async def waiting(
        self,
        cluster_queue: str | None = None,
        namespaces: Collection[str] | None = None,
        *,
        queue: str | None = None,
        order: WaitingOrder = WaitingOrder.TURN,
        skip: int = 0,
        limit: int = 100,
    ) -> tuple[Entry, ...]:
        found = [
            e
            for e in (await self._reach()).entries.values()
            if e.state in IN_QUEUE_ORDER
            and cluster_queue in (None, e.cluster_queue)
            and queue in (None, e.queue)
            and (namespaces is None or e.namespace in namespaces)
        ]
        found.sort(key=turn if order is WaitingOrder.TURN else lambda e: (e.queued_at, e.uid))
        return tuple(map(_own_row, found[skip : skip + max(1, min(limit, LONGEST_PAGE))]))

    async def evictions(
        self,
        namespaces: Collection[str] | None = None,
        *,
        before: int | None = None,
        limit: int = 100,
    ) -> tuple[HistoryLine, ...]:
        found = [
            line
            for line in reversed((await self._reach()).history)
            if line.evicts
            and (before is None or line.id < before)
            and (namespaces is None or line.namespace in namespaces)
        ]
        return tuple(found[: max(1, min(limit, LONGEST_PAGE))])


def _stored(reason: Reason) -> Reason:
    """The reason as the database returns it: plain JSON, and no NUL in the message."""
    return replace(
        reason, message=storable(reason.message), details=json.loads(json.dumps(reason.details))
    )


def _kept_enough(entry: Entry, retention: Retention, now: float) -> bool:
    given_up = entry.parked is not None and entry.parked.code is not Code.HELD
    keep = retention.after_deactivated if given_up else retention.after_finished
    return keep is not None and entry.finished_at is not None and entry.finished_at < now - keep


def _summary(entry: Entry) -> WorkloadSummary:
    return WorkloadSummary(
        entry.uid,
        entry.kind,
        entry.namespace,
        entry.name,
        entry.state,
        entry.cluster_queue,
        entry.user,
        entry.gpu_parts,
        entry.reason.code,
        entry.queued_at,
        entry.finished_at,
    )


def _own_row(entry: Entry) -> Entry:
    """The entry as lists show it."""
    return replace(entry, placement=None, lease=None, intent=None)
