"""The ledger in Postgres: :class:`PostgresStore` is the real adapter of :class:`queuectl.control.ports.Store`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Self

from sqlalchemy import func, select, update

from queuectl.db import (
    commands,
    decisions,
    documents,
    findings,
    pastuse,
    reads,
    refused,
    standings,
    usage,
    writes,
)
from queuectl.db.audit import AuditLog
from queuectl.db.connections import Connections
from queuectl.db.engine import DatabaseSettings
from queuectl.db.prune import prune
from queuectl.db.sessions import SessionBooks
from queuectl.db.tables import leadership
from queuectl.domain.commands import Answer, Command, CommandFilter
from queuectl.domain.decisions import Decided, Decision
from queuectl.domain.findings import Findings
from queuectl.domain.ledger import Change, Document, Entry, Loaded
from queuectl.domain.pastuse import Used
from queuectl.domain.queries import (
    LONGEST_PAGE,
    ConfigChanges,
    ConfigDocument,
    DocumentKey,
    HistoryLine,
    Line,
    Tolerance,
    WorkloadFilter,
    WorkloadPage,
)
from queuectl.domain.refused import RefusedPlan
from queuectl.domain.rules import Retention
from queuectl.domain.standings import QueueCounts, WaitingOrder

_NOW: Final = func.extract("epoch", func.clock_timestamp())


class PostgresStore:
    """The ledger, the configuration and what the API reads of both. All methods may raise StoreUnavailable."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._transaction: Final = connections.transaction
        self._statement: Final = connections.statement
        self._snapshot: Final = connections.snapshot
        self._bell = connections.bell(documents.CHANNEL)
        self._command_bell = connections.bell(commands.CHANNEL)
        self._history_bell = connections.bell(writes.CHANNEL)
        self.usage: Final = usage.UsageBooks(connections.transaction, connections.snapshot)
        self.audit: Final = AuditLog(connections.statement)
        self.sessions: Final = SessionBooks(connections.transaction, connections.statement)

    @classmethod
    async def connect(cls, settings: DatabaseSettings) -> Self:
        """Open the pool and see that the server is one we support.

        Raises:
            BadInput: the URL is wrong or the server too old.
        """
        connections = Connections(settings)
        try:
            await connections.check()
        except BaseException:
            await connections.close()
            raise
        return cls(connections)

    async def close(self) -> None:
        """Give back all connections; a server that does not say goodbye is not waited for."""
        await self._connections.close()

    # -- the leader ---------------------------------------------------------------------------------------------------

    async def now(self) -> float:
        """The database's time, unix seconds."""
        async with self._statement("reading the time") as connection:
            return float(await connection.scalar(select(_NOW)) or 0.0)

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

    async def commits_ended(self, *, epoch: int) -> None:
        """Wait until no commit under this epoch is under way; see the Protocol.

        A commit holds the fence until it has ended. One that does not hold it yet never ends in a commit once its client has
        given up, because the client sends COMMIT only after the fence has been answered.
        """
        async with self._transaction("waiting for earlier commits") as connection:
            await writes.fence(connection, epoch)

    async def load(self) -> Loaded:
        """Read everything the leader works on, in one consistent snapshot."""
        async with self._snapshot("loading the ledger") as connection:
            revision, found = await documents.revision_and_documents(connection)
            spent = await reads.spent_on_moves(connection)
            used = await pastuse.load(connection)
            return Loaded(await reads.live_entries(connection), found, revision, spent, used)

    async def follow(self, before: Loaded) -> Loaded:
        """The same, having read of it before: what has not changed since is the very same object."""
        async with self._snapshot("following the ledger") as connection:
            revision, found = before.revision, before.documents
            if await documents.revision(connection) != revision:
                revision, found = await documents.revision_and_documents(connection)
            spent = await reads.spent_on_moves(connection)
            used = await pastuse.load(connection)
            entries = await reads.live_entries_since(connection, before.entries)
            return Loaded(entries, found, revision, spent, used)

    async def commit(
        self,
        changes: Sequence[Change],
        *,
        epoch: int,
        revision: int | None,
        cycle: int,
        answers: Sequence[Answer] = (),
        decision: Decision | None = None,
        tolerance: Tolerance | None = None,
    ) -> None:
        """Write rows, placements, leases, outbox, history and marks in one transaction; see the Protocol for the errors."""
        async with self._transaction("committing") as connection:
            await writes.fence(connection, epoch)
            if revision is not None:
                await writes.same_configuration(connection, revision, tolerance)
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
        async with self._statement("reading past use") as connection:
            return await pastuse.load(connection)

    async def keep_findings(self, found: Findings, *, epoch: int) -> None:
        """Write what the leader found out over what it found before; see the Protocol."""
        async with self._transaction("writing findings") as connection:
            await findings.keep(connection, found, epoch=epoch)

    async def findings(self, known: float) -> Findings | None:
        """What the leader found out last; None where that is of ``known``, unix seconds."""
        async with self._statement("reading findings") as connection:
            return await findings.load(connection, known)

    async def keep_refused(self, plan: RefusedPlan, content: bytes) -> None:
        """Keep the file of a plan that the verifier refused; see the Protocol."""
        async with self._transaction("writing a refused plan") as connection:
            await refused.keep(connection, plan, content)

    async def refused_plans(self) -> tuple[RefusedPlan, ...]:
        """Plans that the verifier refused, the newest first."""
        async with self._statement("listing refused plans") as connection:
            return await refused.listed(connection)

    async def refused_plan(self, number: int) -> bytes | None:
        """The file of the refused plan with this id, or None."""
        async with self._statement("reading a refused plan") as connection:
            return await refused.content(connection, number)

    # -- commands -----------------------------------------------------------------------------------------------------

    async def add_command(self, command: Command) -> Command:
        """Keep a command for the leader; see :func:`queuectl.db.commands.add`."""
        async with self._transaction("adding a command") as connection:
            return await commands.add(connection, command)

    async def get_command(self, request_id: str) -> Command | None:
        """The command of this request, answered or not; or None."""
        async with self._statement("reading a command") as connection:
            return await commands.of_request(connection, request_id)

    async def command(self, number: int) -> Command | None:
        """The command with this id, answered or not; or None."""
        async with self._statement("reading a command") as connection:
            return await commands.numbered(connection, number)

    async def commands_of(self, uid: str, after: int = 0, limit: int = 100) -> tuple[Command, ...]:
        """Commands for one workload with ids above ``after``, oldest first, at most 500."""
        async with self._statement("reading a workload's commands") as connection:
            return await commands.of_workload(connection, uid, after, limit)

    async def newest_commands(self, wanted: CommandFilter, limit: int = 100) -> tuple[Command, ...]:
        """The newest of these commands, answered or not, newest first, at most 500."""
        async with self._statement("listing commands") as connection:
            return await commands.newest(connection, wanted, limit)

    async def commands(self) -> tuple[Command, ...]:
        """Commands that are not answered yet, oldest first; not necessarily all of them."""
        async with self._statement("reading commands") as connection:
            return await commands.unanswered(connection)

    async def commands_waiting(self, *, poll: float = 5.0) -> None:
        """Wait until there is a command that is not answered.

        One is seen at once where LISTEN works, otherwise within ``poll`` seconds.
        """

        async def asked() -> bool | None:
            async with self._statement("looking for commands") as connection:
                return await commands.any_unanswered(connection) or None

        await self._connections.found(asked, self._command_bell, "commands", poll)

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
            async with self._statement("reading the configuration's revision") as connection:
                current = await documents.revision(connection)
            return current if current != since else None

        return await self._connections.found(other, self._bell, "configuration changes", poll)

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
        async with self._statement("reading configuration") as connection:
            return await documents.read(connection, key)

    async def get_configs(self, keys: Collection[DocumentKey]) -> tuple[ConfigDocument, ...]:
        """Those of these documents that exist, in the order of their keys."""
        async with self._statement("reading configuration") as connection:
            return await documents.read_those(connection, keys)

    async def list_config(
        self, kind: str, namespace: str | None = None
    ) -> tuple[ConfigDocument, ...]:
        """All documents of a kind by (namespace, name); ``namespace`` None = of all namespaces."""
        async with self._statement("listing configuration") as connection:
            return await documents.read_kind(connection, kind, namespace)

    # -- the API's reads ----------------------------------------------------------------------------------------------

    async def list_workloads(
        self, wanted: WorkloadFilter, cursor: str | None = None, limit: int = 100
    ) -> WorkloadPage:
        """One page of workloads in (namespace, name, uid) order, at most 500, each as :class:`WorkloadPage` has it."""
        async with self._statement("listing workloads") as connection:
            return await reads.page_of(connection, wanted, cursor, limit)

    async def namespaces(self) -> frozenset[str]:
        """Those that have a LocalQueue or a workload."""
        async with self._statement("listing namespaces") as connection:
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
        async with self._statement("naming workloads") as connection:
            return await reads.names_of(connection, uids)

    async def positions(self, uids: Iterable[str]) -> Mapping[str, Line]:
        """Where these workloads stand in line, by uid; those that are in no line are left out."""
        async with self._statement("counting lines") as connection:
            return await reads.lines_of(connection, uids)

    async def history(
        self, uid: str | None, after: int = 0, limit: int = 100
    ) -> tuple[HistoryLine, ...]:
        """History lines after an id, oldest first, at most 500: of one workload, or of all when ``uid`` is None."""
        async with self._statement("reading history") as connection:
            return await reads.history_lines(connection, uid, after, limit)

    async def newest_line(self) -> int:
        """The id of the last history line of all; 0 when there is none."""
        async with self._statement("reading the end of history") as connection:
            return await reads.newest_line(connection)

    async def history_grown(self, after: int, *, poll: float = 5.0) -> None:
        """Wait until there is a history line with an id above ``after``.

        One is seen at once where LISTEN works, otherwise within ``poll`` seconds.
        """

        async def grown() -> bool | None:
            return await self.newest_line() > after or None

        await self._connections.found(grown, self._history_bell, "history", poll)

    async def tallies(self) -> tuple[QueueCounts, ...]:
        """Counts of workloads that are not Finished, by LocalQueue, ClusterQueue and state."""
        async with self._statement("counting workloads") as connection:
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
        """Pending and Reserved workloads, of one ClusterQueue or of all, in these namespaces or in all; at most 500.

        Each is as :class:`WorkloadPage` has it.
        """
        asked = standings.waiting(
            cluster_queue, namespaces, order, skip, max(1, min(limit, LONGEST_PAGE))
        )
        async with self._statement("reading who waits") as connection:
            return await reads.rows_of(connection, asked)

    async def evictions(
        self,
        namespaces: Collection[str] | None = None,
        *,
        before: int | None = None,
        limit: int = 100,
    ) -> tuple[HistoryLine, ...]:
        """The latest evictions, newest first, with ids below ``before``; at most 500."""
        limit = max(1, min(limit, LONGEST_PAGE))
        async with self._statement("reading evictions") as connection:
            return await standings.evictions(connection, namespaces, before, limit)

    async def decisions(self, before: int | None = None, limit: int = 100) -> tuple[Decided, ...]:
        """Records of planning cycles with ids below one (None = all), the newest first, at most 500."""
        async with self._statement("listing decisions") as connection:
            return await decisions.newest(connection, before, limit)

    async def get_decision(self, number: int) -> Decided | None:
        """The record with this id, or None."""
        async with self._statement("reading a decision") as connection:
            return await decisions.one(connection, number)
