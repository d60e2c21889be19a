"""The ledger in Postgres: :class:`PostgresStore` is the real adapter of :class:`queuectl.control.ports.Store`."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, Self, TypeVar

from sqlalchemy import func, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from queuectl.db import commands, decisions, documents, pastuse, reads, standings, usage, writes
from queuectl.db.audit import AuditLog
from queuectl.db.engine import DatabaseSettings, check_version, make_engine
from queuectl.db.failures import answers_within
from queuectl.db.notify import Bell
from queuectl.db.prune import prune
from queuectl.db.sessions import SessionBooks
from queuectl.db.tables import leadership
from queuectl.domain.commands import Answer, Command
from queuectl.domain.decisions import Decided, Decision
from queuectl.domain.ledger import Change, Document, Entry, Loaded
from queuectl.domain.pastuse import Used
from queuectl.domain.queries import (
    LONGEST_PAGE,
    ConfigChanges,
    ConfigDocument,
    DocumentKey,
    HistoryLine,
    Line,
    WorkloadFilter,
    WorkloadPage,
)
from queuectl.domain.rules import Retention
from queuectl.domain.standings import Tally, WaitingOrder

T = TypeVar("T")

_GOODBYE_SECONDS: Final = 3.0


class PostgresStore:
    """The ledger, the configuration and what the API reads of both. All methods may raise StoreUnavailable."""

    def __init__(self, engine: AsyncEngine, settings: DatabaseSettings) -> None:
        self._engine = engine
        self._settings = settings
        self._bell = Bell(engine, settings, documents.CHANNEL)
        self._command_bell = Bell(engine, settings, commands.CHANNEL)
        self._history_bell = Bell(engine, settings, writes.CHANNEL)
        self.usage: Final = usage.UsageBooks(self._transaction, self._snapshot)
        self.audit: Final = AuditLog(self._statement)
        self.sessions: Final = SessionBooks(self._transaction, self._statement)

    @classmethod
    async def connect(cls, settings: DatabaseSettings) -> Self:
        """Open the pool and see that the server is one we support.

        Raises:
            BadInput: the URL is wrong or the server too old.
        """
        store = cls(make_engine(settings), settings)
        try:
            async with store._transaction("connecting") as connection:
                await check_version(connection)
        except BaseException:
            await store.close()
            raise
        return store

    async def close(self) -> None:
        """Give back all connections; a server that does not say goodbye is not waited for."""
        await self._bell.close()
        await self._command_bell.close()
        await self._history_bell.close()
        try:
            async with asyncio.timeout(_GOODBYE_SECONDS):
                await self._engine.dispose()
        except TimeoutError:
            await self._engine.dispose(close=False)

    # -- the leader ---------------------------------------------------------------------------------------------------

    async def take_over(self, holder: str, floor: int) -> int:
        """Become the one who may commit: raise the epoch to ``max(stored, floor) + 1`` and return it."""
        raised = (
            update(leadership)
            .values(
                epoch=func.greatest(leadership.c.epoch, floor) + 1,
                holder=holder,
                taken_at=func.now(),
            )
            .returning(leadership.c.epoch)
        )
        async with self._transaction("taking over") as connection:
            return int((await connection.scalars(raised)).one())

    async def load(self) -> Loaded:
        """Read everything the leader works on, in one consistent snapshot."""
        async with self._snapshot("loading the ledger") as connection:
            revision, found = await documents.revision_and_documents(connection)
            spent = await reads.spent_on_moves(connection)
            used = await pastuse.load(connection)
            return Loaded(await reads.live_entries(connection), found, revision, spent, used)

    async def commit(
        self,
        changes: Sequence[Change],
        *,
        epoch: int,
        revision: int | None,
        cycle: int,
        answers: Sequence[Answer] = (),
        decision: Decision | None = None,
    ) -> None:
        """Write rows, placements, leases, outbox, history and marks in one transaction; see the Protocol for the errors."""
        async with self._transaction("committing") as connection:
            await writes.fence(connection, epoch)
            if revision is not None:
                await writes.same_configuration(connection, revision)
            await commands.answer(connection, answers)
            lines = await writes.write(connection, changes, epoch=epoch, cycle=cycle)
            if decision is not None:
                await decisions.add(connection, decision, epoch=epoch, cycle=cycle, lines=lines)
            await usage.note(connection, [mark for change in changes for mark in change.marks])

    async def prune(self, retention: Retention, now: float, *, epoch: int) -> int:
        """Delete some rows that are kept long enough; see the Protocol."""
        async with self._transaction("deleting old rows") as connection:
            await writes.fence(connection, epoch)
            return await prune(connection, retention, now) + await decisions.prune(connection, now)

    async def keep_use(self, used: Sequence[Used], forget: float, *, epoch: int) -> None:
        """Write a sample of past use; see the Protocol."""
        async with self._transaction("writing past use") as connection:
            await writes.fence(connection, epoch)
            await pastuse.keep(connection, used, forget)

    async def start_use(self, used: Sequence[Used]) -> None:
        """Take over past use of accounts of which nothing is known yet; the others stay as they are."""
        async with self._transaction("taking over past use") as connection:
            await pastuse.start(connection, used)

    async def past_use(self) -> tuple[Used, ...]:
        """Past use as last sampled, by account."""
        async with self._transaction("reading past use") as connection:
            return await pastuse.load(connection)

    # -- commands -----------------------------------------------------------------------------------------------------

    async def add_command(self, command: Command) -> Command:
        """Keep a command for the leader; see :func:`queuectl.db.commands.add`."""
        async with self._transaction("adding a command") as connection:
            return await commands.add(connection, command)

    async def get_command(self, request_id: str) -> Command | None:
        """The command of this request, answered or not; or None."""
        async with self._transaction("reading a command") as connection:
            return await commands.of_request(connection, request_id)

    async def command(self, number: int) -> Command | None:
        """The command with this id, answered or not; or None."""
        async with self._transaction("reading a command") as connection:
            return await commands.numbered(connection, number)

    async def commands_of(self, uid: str, after: int = 0, limit: int = 100) -> tuple[Command, ...]:
        """Commands for one workload with ids above ``after``, oldest first, at most 500."""
        async with self._transaction("reading a workload's commands") as connection:
            return await commands.of_workload(connection, uid, after, limit)

    async def commands(self) -> tuple[Command, ...]:
        """Commands that are not answered yet, oldest first; not necessarily all of them."""
        async with self._transaction("reading commands") as connection:
            return await commands.unanswered(connection)

    async def commands_waiting(self, *, poll: float = 5.0) -> None:
        """Wait until there is a command that is not answered.

        One is seen at once where LISTEN works, otherwise within ``poll`` seconds.
        """

        async def asked() -> bool | None:
            async with self._transaction("looking for commands") as connection:
                return await commands.any_unanswered(connection) or None

        await self._found(asked, self._command_bell, "commands", poll)

    # -- configuration ------------------------------------------------------------------------------------------------

    async def configuration(self) -> tuple[int, tuple[Document, ...]]:
        """Current revision and all configuration documents."""
        async with self._snapshot("reading the configuration") as connection:
            return await documents.revision_and_documents(connection)

    async def config_changes(self, since: int, known: Collection[DocumentKey]) -> ConfigChanges:
        """What was written after a revision, and which of these documents are gone; see the Protocol."""
        async with self._snapshot("reading changes of the configuration") as connection:
            return await documents.changes(connection, since, known)

    async def config_changed(self, since: int, *, poll: float = 5.0) -> int:
        """Wait until the configuration's revision differs from ``since``; the new one.

        A change is seen at once where LISTEN works, otherwise within ``poll`` seconds.
        """

        async def other() -> int | None:
            async with self._transaction("reading the configuration's revision") as connection:
                current = await documents.revision(connection)
            return current if current != since else None

        return await self._found(other, self._bell, "configuration changes", poll)

    async def put_config(self, document: Document, if_match: int | None = None) -> int:
        """Create or replace a document; see :func:`queuectl.db.documents.write`."""
        async with self._transaction("writing the configuration") as connection:
            return await documents.write(connection, document, if_match)

    async def delete_config(self, key: DocumentKey, if_match: int | None = None) -> None:
        """Delete a document; see :func:`queuectl.db.documents.remove`."""
        async with self._transaction("deleting configuration") as connection:
            await documents.remove(connection, key, if_match)

    async def get_config(self, key: DocumentKey) -> ConfigDocument | None:
        """One document with its version, or None."""
        async with self._transaction("reading configuration") as connection:
            return await documents.read(connection, key)

    async def get_configs(self, keys: Collection[DocumentKey]) -> tuple[ConfigDocument, ...]:
        """Those of these documents that exist, in the order of their keys."""
        async with self._transaction("reading configuration") as connection:
            return await documents.read_those(connection, keys)

    async def list_config(
        self, kind: str, namespace: str | None = None
    ) -> tuple[ConfigDocument, ...]:
        """All documents of a kind by (namespace, name); ``namespace`` None = of all namespaces."""
        async with self._transaction("listing configuration") as connection:
            return await documents.read_kind(connection, kind, namespace)

    # -- the API's reads ----------------------------------------------------------------------------------------------

    async def list_workloads(
        self, wanted: WorkloadFilter, cursor: str | None = None, limit: int = 100
    ) -> WorkloadPage:
        """One page of workloads in (namespace, name, uid) order; at most 500."""
        async with self._snapshot("listing workloads") as connection:
            return await reads.page_of(connection, wanted, cursor, limit)

    async def namespaces(self) -> frozenset[str]:
        """Those that have a LocalQueue or a workload."""
        async with self._transaction("listing namespaces") as connection:
            return await reads.namespaces(connection)

    async def get_workload(self, uid: str) -> Entry | None:
        """The workload with this uid, Finished or not; or None."""
        async with self._snapshot("reading a workload") as connection:
            return await reads.one_entry(connection, uid)

    async def find_workload(self, kind: str, namespace: str, name: str) -> Entry | None:
        """The workload of this name: the live one, else the newest finished one, else None."""
        async with self._snapshot("finding a workload") as connection:
            return await reads.entry_named(connection, kind, namespace, name)

    async def workload_names(self, uids: Iterable[str]) -> Mapping[str, str]:
        """``namespace/name`` by uid, of those that exist."""
        async with self._transaction("naming workloads") as connection:
            return await reads.names_of(connection, uids)

    async def positions(self, uids: Iterable[str]) -> Mapping[str, Line]:
        """Where these workloads stand in line, by uid; those that are in no line are left out."""
        async with self._transaction("counting lines") as connection:
            return await reads.lines_of(connection, uids)

    async def history(
        self, uid: str | None, after: int = 0, limit: int = 100
    ) -> tuple[HistoryLine, ...]:
        """History lines after an id, oldest first, at most 500: of one workload, or of all when ``uid`` is None."""
        async with self._transaction("reading history") as connection:
            return await reads.history_lines(connection, uid, after, limit)

    async def newest_line(self) -> int:
        """The id of the last history line of all; 0 when there is none."""
        async with self._transaction("reading the end of history") as connection:
            return await reads.newest_line(connection)

    async def history_grown(self, after: int, *, poll: float = 5.0) -> None:
        """Wait until there is a history line with an id above ``after``.

        One is seen at once where LISTEN works, otherwise within ``poll`` seconds.
        """

        async def grown() -> bool | None:
            return await self.newest_line() > after or None

        await self._found(grown, self._history_bell, "history", poll)

    async def tallies(self) -> tuple[Tally, ...]:
        """Counts of workloads that are not Finished, by LocalQueue, ClusterQueue and state."""
        async with self._transaction("counting workloads") as connection:
            return await standings.tallies(connection)

    async def waiting(
        self,
        cluster_queue: str | None = None,
        namespaces: Collection[str] | None = None,
        *,
        order: WaitingOrder = WaitingOrder.TURN,
        skip: int = 0,
        limit: int = 100,
    ) -> tuple[Entry, ...]:
        """Pending and Reserved workloads, of one ClusterQueue or of all, in these namespaces or in all; at most 500."""
        asked = standings.waiting(
            cluster_queue, namespaces, order, skip, max(1, min(limit, LONGEST_PAGE))
        )
        async with self._snapshot("reading who waits") as connection:
            return await reads.entries_of(connection, asked)

    async def evictions(
        self,
        namespaces: Collection[str] | None = None,
        *,
        before: int | None = None,
        limit: int = 100,
    ) -> tuple[HistoryLine, ...]:
        """The latest evictions, newest first, with ids below ``before``; at most 500."""
        limit = max(1, min(limit, LONGEST_PAGE))
        async with self._transaction("reading evictions") as connection:
            return await standings.evictions(connection, namespaces, before, limit)

    async def decisions(self, before: int | None = None, limit: int = 100) -> tuple[Decided, ...]:
        """Records of planning cycles with ids below one (None = all), the newest first, at most 500."""
        async with self._transaction("listing decisions") as connection:
            return await decisions.newest(connection, before, limit)

    async def get_decision(self, number: int) -> Decided | None:
        """The record with this id, or None."""
        async with self._transaction("reading a decision") as connection:
            return await decisions.one(connection, number)

    # -- waiting ------------------------------------------------------------------------------------------------------

    async def _found(
        self, look: Callable[[], Awaitable[T | None]], bell: Bell, what: str, poll: float
    ) -> T:
        """What a look finds: looks at once, and again whenever the bell rings, or else after ``poll`` seconds."""
        while True:
            async with self._guarded(f"listening for {what}"):
                if not self._settings.pgbouncer:
                    await bell.listen()
            found = await look()
            if found is not None:
                return found
            await bell.heard(poll)

    # -- transactions -------------------------------------------------------------------------------------------------

    def _guarded(self, doing: str) -> AbstractAsyncContextManager[None]:
        return answers_within(self._settings.answer_timeout, doing)

    @asynccontextmanager
    async def _transaction(self, doing: str) -> AsyncIterator[AsyncConnection]:
        async with (
            self._guarded(doing),
            self._engine.connect() as connection,
            _begun(connection),
        ):
            yield connection

    @asynccontextmanager
    async def _statement(self, doing: str) -> AsyncIterator[AsyncConnection]:
        """For one statement that is a transaction by itself: one round trip, not three."""
        async with self._guarded(doing), self._engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            try:
                yield connection
            except asyncio.CancelledError:
                await connection.invalidate()
                raise

    @asynccontextmanager
    async def _snapshot(self, doing: str) -> AsyncIterator[AsyncConnection]:
        async with self._guarded(doing), self._engine.connect() as connection:
            await connection.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )
            async with _begun(connection):
                yield connection


@asynccontextmanager
async def _begun(connection: AsyncConnection) -> AsyncIterator[None]:
    """A transaction whose connection is dropped when it is given up: ROLLBACK would wait for a server that is silent."""
    try:
        await connection.begin()
        try:
            yield
        except asyncio.CancelledError:
            raise
        except BaseException:
            await connection.rollback()
            raise
        await connection.commit()
    except asyncio.CancelledError:
        await connection.invalidate()
        raise
