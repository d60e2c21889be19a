"""The stores of the leader and of the API on Postgres: :class:`queuectl.db.ports.LeaderStore` and :class:`queuectl.db.ports.ApiStore`.

Most methods of a store are one query of this package on a connection: :func:`statement`, :func:`snapshot` and
:func:`transaction` make them. :mod:`queuectl.db.ports` documents them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from queuectl.db import (
    broadcast,
    documents,
    pastuse,
    process_runs,
    reads,
    refused,
    search,
    traces,
    usage,
    writes,
)
from queuectl.db import commands as command_rows
from queuectl.db import decisions as decision_rows
from queuectl.db import followed as followed_objects
from queuectl.db import notifications as notification_rows
from queuectl.db import reservations as reservation_rows
from queuectl.db import set_aside_objects as set_aside_rows
from queuectl.db.audit import AuditLog
from queuectl.db.connections import Connections
from queuectl.db.engine import DatabaseSettings
from queuectl.db.migrate import check_schema, known_revisions
from queuectl.db.notifications import NotificationTables
from queuectl.db.ports import Commit
from queuectl.db.prune import prune
from queuectl.db.replicas import Registration
from queuectl.db.sessions import SessionStore
from queuectl.db.shadow import ShadowTables
from queuectl.db.tables import NOW, leadership
from queuectl.domain.containment import SetAsideObject
from queuectl.domain.controller_notifications import leader_changed_event, set_aside_event
from queuectl.domain.ledger import Loaded
from queuectl.domain.notifications import BudgetLimit, Event
from queuectl.domain.pastuse import Used
from queuectl.domain.rules import Retention
from queuectl.domain.workload_notifications import events_of

# ---- The common part

P = ParamSpec("P")
R = TypeVar("R")
Query = Callable[Concatenate[AsyncConnection, P], Awaitable[R]]
Method = Callable[Concatenate["Database", P], Coroutine[Any, Any, R]]


def statement(doing: str, query: Query[P, R]) -> Method[P, R]:
    """A method that runs a query of one statement; see :meth:`Connections.statement`."""
    return _method(lambda store: store.connections.statement(doing), query)


def snapshot(doing: str, query: Query[P, R]) -> Method[P, R]:
    """A method whose reads all see the same moment; see :meth:`Connections.snapshot`."""
    return _method(lambda store: store.connections.snapshot(doing), query)


def transaction(doing: str, query: Query[P, R]) -> Method[P, R]:
    """A method that writes in one transaction; see :meth:`Connections.transaction`."""
    return _method(lambda store: store.connections.transaction(doing), query)


def _method(
    connect: Callable[[Database], AbstractAsyncContextManager[AsyncConnection]], query: Query[P, R]
) -> Method[P, R]:
    async def method(self: Database, /, *args: P.args, **kwargs: P.kwargs) -> R:
        async with connect(self) as connection:
            return await query(connection, *args, **kwargs)

    return method


class Database:
    """A pool of connections to the ledger. All methods can raise StoreUnavailable."""

    def __init__(self, connections: Connections) -> None:
        self.connections: Final = connections
        self.usage: Final = usage.UsageLedger(connections.transaction, connections.snapshot)
        self.shadow: Final = ShadowTables(connections.transaction, connections.snapshot)
        self.notifications: Final = NotificationTables(
            connections.transaction, connections.statement
        )

    def registration(self, name: str) -> Registration:
        """The registration of this process under its name; see :mod:`queuectl.db.replicas`."""
        return Registration(self.connections.transaction, name, known_revisions())

    @classmethod
    async def connect(cls, settings: DatabaseSettings) -> Self:
        """Open the pool, and check the version of the server and the schema.

        Raises:
            BadInput: the URL is wrong or the server too old.
            UnusableSchema: this release cannot use the schema.
        """
        connections = Connections(settings)
        try:
            await connections.check()
            async with connections.transaction("reading the schema") as connection:
                await connection.run_sync(check_schema)
        except BaseException:
            await connections.close()
            raise
        return cls(connections)

    async def close(self) -> None:
        """Close all connections, without waiting for a server that does not respond."""
        await self.connections.close()

    configuration = snapshot("reading the configuration", documents.revision_and_documents)
    config_changes = snapshot("reading changes of the configuration", documents.changes)
    get_config = statement("reading configuration", documents.read)
    put_config = transaction("writing the configuration", documents.write)
    get_workload = snapshot("reading a workload", reads.one_entry)
    commands = statement("reading commands", command_rows.unanswered)
    past_use = statement("reading past use", pastuse.load)


# ---- The API's store


class PostgresApiStore(Database):
    """The reads and writes of REST, the dashboard and sessions. All methods can raise StoreUnavailable."""

    def __init__(self, connections: Connections) -> None:
        super().__init__(connections)
        self._history_written = connections.listener(writes.CHANNEL)
        self.audit: Final = AuditLog(connections.statement)
        self.sessions: Final = SessionStore(connections.transaction, connections.statement)

    followed = statement("reading the report on objects", followed_objects.load_report)
    confirm_deletion = transaction("confirming a deletion", followed_objects.confirm)
    refused_plans = statement("listing refused plans", refused.listed)
    refused_plan = statement("reading a refused plan", refused.content)
    set_aside_objects = statement("listing objects that were set aside", set_aside_rows.listed)
    set_aside_object = statement("reading an object that was set aside", set_aside_rows.content)
    reservations = statement("reading Reservations", reservation_rows.load)
    add_command = transaction("adding a command", command_rows.add)
    get_command = statement("reading a command", command_rows.of_request)
    command = statement("reading a command", command_rows.numbered)
    commands_of = statement("reading a workload's commands", command_rows.of_workload)
    newest_commands = statement("listing commands", command_rows.newest)
    list_config = statement("listing configuration", documents.read_kind)
    get_configs = statement("reading configuration", documents.read_those)
    delete_config = transaction("deleting configuration", documents.remove)
    list_workloads = snapshot("listing workloads", reads.page_of)
    get_workloads = snapshot("reading workloads", reads.entries_of)
    users = statement("listing users", reads.users)
    live_workloads = snapshot("following workloads", reads.live_workloads)
    unfinished = statement("reading names", search.unfinished)
    finished_matches = snapshot("searching workloads", search.finished_matches)
    namespaces = statement("listing namespaces", reads.namespaces)
    find_workload = snapshot("finding a workload", reads.entry_named)
    find_workloads = snapshot("finding workloads", reads.entries_named)
    workload_names = statement("naming workloads", reads.names_of)
    positions = statement("counting lines", reads.lines_of)
    waiting = statement("reading who waits", reads.waiting)
    tallies = statement("counting workloads", reads.tallies)
    history = statement("reading history", reads.history_lines)
    newest_lines = statement("reading the end of a history", reads.newest_lines)
    newest_line = statement("reading the end of history", reads.newest_line)
    evictions = statement("reading evictions", reads.evictions)
    decisions = statement("listing decisions", decision_rows.newest)
    get_decision = statement("reading a decision", decision_rows.numbered)

    async def history_grown(self, after: int, *, poll: float = 5.0) -> None:
        """See the Protocol. LISTEN reports a line at once; without LISTEN it takes up to ``poll`` seconds."""

        async def grown() -> bool | None:
            return await self.newest_line() > after or None

        await self.connections.until_available(grown, self._history_written, "history", poll)


# ---- The leader's store


class PostgresLeaderStore(Database):
    """The reads and writes of a leader and of a standby. All methods can raise StoreUnavailable.

    Attributes:
        notifications_enabled: whether receivers are configured; otherwise no event is written.
    """

    def __init__(self, connections: Connections) -> None:
        super().__init__(connections)
        self._config_written = connections.listener(documents.CHANNEL)
        self._command_added = connections.listener(command_rows.CHANNEL)
        self.notifications_enabled = False

    begin_run = transaction("noting the start of a process", process_runs.begin)
    end_run = transaction("noting the end of a process", process_runs.end)
    unknown_ends = statement("reading the ends of processes", process_runs.unknown_ends)
    suspects = statement("reading suspects", process_runs.suspects)
    keep_suspects = transaction("writing suspects", process_runs.keep_suspects)
    keep_findings = transaction("writing findings", broadcast.keep)
    findings = statement("reading findings", broadcast.load)
    write_configuration = transaction("following objects", followed_objects.write)
    keep_followed = transaction("writing the report on objects", followed_objects.keep_report)
    confirmed_deletion = statement("reading a confirmation", followed_objects.confirmed)
    ended_stages = snapshot("reading ended stages", traces.ended_stages)
    exported_upto = transaction("reading the progress of traces", traces.exported_upto)
    keep_exported = transaction("writing the progress of traces", traces.keep_exported)
    keep_refused = transaction("writing a refused plan", refused.keep)

    async def keep_set_aside(self, unit: SetAsideObject, content: bytes) -> None:
        async with self.connections.transaction(
            "writing an object that is set aside"
        ) as connection:
            new = await set_aside_rows.keep(connection, unit, content)
            if new and self.notifications_enabled:
                event = set_aside_event(unit)
                await notification_rows.announce(connection, [event], epoch=unit.epoch)

    async def now(self) -> float:
        async with self.connections.statement("reading the time") as connection:
            return float(await connection.scalar(select(NOW)) or 0.0)

    async def take_over(self, holder: str, floor: int, accounted: int = 0) -> int:
        raised = (
            update(leadership)
            .values(
                epoch=func.greatest(leadership.c.epoch, floor) + 1,
                holder=holder,
                taken_at=func.now(),
            )
            .returning(leadership.c.epoch)
        )
        columns = (leadership.c.epoch, leadership.c.holder, NOW.label("at"))
        last = select(*columns).with_for_update()
        async with self.connections.transaction("taking over") as connection:
            before = (await connection.execute(last)).one()
            epoch = int((await connection.scalars(raised)).one())
            await process_runs.lead(connection, holder, epoch)
            if floor > before.epoch or await usage.is_behind(connection, accounted):
                await usage.skip(connection, float(before.at))
            if before.holder and self.notifications_enabled:
                event = leader_changed_event(float(before.at), holder, before.holder, epoch)
                await notification_rows.add(connection, [event])
            return epoch

    async def commits_ended(self, *, epoch: int) -> None:
        """Wait until no commit under this epoch is in progress; see the Protocol.

        A commit holds the lock on the epoch until it has ended. If the client of a commit without the lock has timed out, it never
        commits, because the client sends COMMIT only after the lock.
        """
        async with self.connections.transaction("waiting for earlier commits") as connection:
            await writes.fence(connection, epoch)

    async def load(self) -> Loaded:
        async with self.connections.snapshot("loading the ledger") as connection:
            revision, found = await documents.revision_and_documents(connection)
            spent = await reads.spent_on_moves(connection)
            used = await pastuse.load(connection)
            entries = await reads.live_entries(connection)
            reserved = await reservation_rows.load(connection)
            return Loaded(entries, found, revision, spent, used, reserved)

    async def follow(self, before: Loaded) -> Loaded:
        async with self.connections.snapshot("following the ledger") as connection:
            revision, found = before.revision, before.documents
            if await documents.revision(connection) != revision:
                revision, found = await documents.revision_and_documents(connection)
            spent = await reads.spent_on_moves(connection)
            used = await pastuse.load(connection)
            entries = await reads.live_entries_since(connection, before.entries)
            reserved = await reservation_rows.load(connection)
            return Loaded(entries, found, revision, spent, used, reserved)

    async def commit(self, commit: Commit, *, epoch: int, cycle: int) -> None:
        async with self.connections.transaction("committing") as connection:
            await writes.fence(connection, epoch)
            if commit.revision is not None:
                await writes.same_configuration(connection, commit.revision, commit.tolerance)
            await command_rows.answer(connection, commit.answers)
            lines = await writes.write(connection, commit.changes, epoch=epoch, cycle=cycle)
            if self.notifications_enabled:
                await notification_rows.add(connection, events_of(commit.changes))
            if commit.decision is not None:
                await decision_rows.add(
                    connection, commit.decision, epoch=epoch, cycle=cycle, lines=lines
                )
            if commit.reserved is not None:
                await reservation_rows.keep(connection, commit.reserved)
            await usage.note(
                connection, [mark for change in commit.changes for mark in change.marks]
            )

    async def prune(self, retention: Retention, now: float, *, epoch: int) -> int:
        async with self.connections.transaction("deleting old rows") as connection:
            await writes.fence(connection, epoch)
            deleted = await prune(connection, retention, now)
            deleted += await decision_rows.prune(connection, now)
        async with self.connections.transaction("deleting events") as connection:
            await writes.require_epoch(connection, epoch)
            return deleted + await notification_rows.prune(connection)

    async def announce(self, events: Sequence[Event], *, epoch: int) -> None:
        if not self.notifications_enabled or not events:
            return
        async with self.connections.transaction("writing events") as connection:
            await notification_rows.announce(connection, events, epoch=epoch)

    async def announce_budgets(
        self, announcements: Mapping[BudgetLimit, Event], *, epoch: int
    ) -> None:
        if not self.notifications_enabled or not announcements:
            return
        async with self.connections.transaction("writing events of budgets") as connection:
            await notification_rows.announce_budgets(connection, announcements, epoch=epoch)

    async def keep_use(self, used: Sequence[Used], forget: float, *, epoch: int) -> None:
        async with self.connections.transaction("writing past use") as connection:
            await writes.fence(connection, epoch)
            await pastuse.keep(connection, used, forget)

    async def commands_waiting(self, *, poll: float = 5.0) -> None:
        """Wait until there is a command without a result.

        LISTEN reports it at once; without LISTEN it takes up to ``poll`` seconds.
        """

        async def asked() -> bool | None:
            async with self.connections.statement("reading commands") as connection:
                return await command_rows.any_unanswered(connection) or None

        await self.connections.until_available(asked, self._command_added, "commands", poll)

    async def config_changed(self, since: int, *, poll: float = 5.0) -> int:
        """Wait until the revision of the configuration differs from ``since``, and return it.

        LISTEN reports a change at once; without LISTEN it takes up to ``poll`` seconds.
        """

        async def other() -> int | None:
            async with self.connections.statement(
                "reading the configuration's revision"
            ) as connection:
                current = await documents.revision(connection)
            return current if current != since else None

        return await self.connections.until_available(
            other, self._config_written, "configuration changes", poll
        )
