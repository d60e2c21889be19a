"""The ledger for the API, with the writes of users: the real adapter of :class:`queuectl.api.ports.ApiStore`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from queuectl.db import (
    commands,
    decisions,
    documents,
    pastuse,
    queue_counts,
    reads,
    refused,
    reservations,
    set_aside_objects,
    writes,
)
from queuectl.db.audit import AuditLog
from queuectl.db.connections import Connections
from queuectl.db.sessions import SessionStore
from queuectl.db.store import Database
from queuectl.domain.commands import Command, CommandFilter
from queuectl.domain.decisions import RefusedPlan, StoredDecision
from queuectl.domain.ledger import Entry
from queuectl.domain.pastuse import Used
from queuectl.domain.queries import (
    BY_NAME,
    LONGEST_PAGE,
    ConfigDocument,
    DocumentKey,
    HistoryLine,
    QueueCounts,
    QueuePosition,
    WaitingOrder,
    WorkloadFilter,
    WorkloadOrder,
    WorkloadPage,
)
from queuectl.domain.reservations import ReservationState
from queuectl.domain.set_aside_objects import SetAsideObject


class ApiStore(Database):
    """The reads and writes of REST, the dashboard and sessions. All methods can raise StoreUnavailable."""

    def __init__(self, connections: Connections) -> None:
        super().__init__(connections)
        self._history_written = connections.listener(writes.CHANNEL)
        self.audit: Final = AuditLog(connections.statement)
        self.sessions: Final = SessionStore(connections.transaction, connections.statement)

    async def start_use(self, used: Sequence[Used]) -> None:
        """Import the past use of accounts without any. Other accounts do not change."""
        async with self._transaction("taking over past use") as connection:
            await pastuse.start(connection, used)

    async def refused_plans(self) -> tuple[RefusedPlan, ...]:
        """Plans that the verifier refused, the newest first."""
        async with self._statement("listing refused plans") as connection:
            return await refused.listed(connection)

    async def refused_plan(self, number: int) -> bytes | None:
        """The file of the refused plan with this id, or None."""
        async with self._statement("reading a refused plan") as connection:
            return await refused.content(connection, number)

    async def set_aside_objects(self) -> tuple[SetAsideObject, ...]:
        """Objects of units that were set aside, the newest first."""
        async with self._statement("listing objects that were set aside") as connection:
            return await set_aside_objects.listed(connection)

    async def set_aside_object(self, number: int) -> bytes | None:
        """The file of the object with this id, or None."""
        async with self._statement("reading an object that was set aside") as connection:
            return await set_aside_objects.content(connection, number)

    async def reservations(self) -> tuple[ReservationState, ...]:
        """The placements of Reservations by the last plan of the leader."""
        async with self._statement("reading Reservations") as connection:
            return await reservations.load(connection)

    async def add_command(self, command: Command) -> Command:
        """Add a command for the leader; see :func:`queuectl.db.commands.add`."""
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

    async def delete_config(self, key: DocumentKey, if_match: int | None = None) -> None:
        """Delete a document; see :func:`queuectl.db.documents.remove`."""
        async with self._transaction("deleting configuration") as connection:
            await documents.remove(connection, key, if_match)

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

    async def list_workloads(
        self,
        wanted: WorkloadFilter,
        cursor: str | None = None,
        limit: int = 100,
        order: WorkloadOrder = BY_NAME,
    ) -> WorkloadPage:
        """One page of workloads in this order, at most 500, each as :class:`WorkloadPage` has it."""
        async with self._statement("listing workloads") as connection:
            return await reads.page_of(connection, wanted, cursor, limit, order)

    async def namespaces(self) -> frozenset[str]:
        """The namespaces with a LocalQueue or a workload."""
        async with self._statement("listing namespaces") as connection:
            return await reads.namespaces(connection)

    async def find_workload(self, kind: str, namespace: str, name: str) -> Entry | None:
        """The workload of this name: the live one, else the newest finished one, else None."""
        async with self._snapshot("finding a workload") as connection:
            return await reads.entry_named(connection, kind, namespace, name)

    async def find_workloads(self, namespace: str, name: str) -> tuple[Entry, ...]:
        """The workload of this name of each kind, by kind: the live one, else the newest finished one."""
        async with self._snapshot("finding workloads") as connection:
            return await reads.entries_named(connection, namespace, name)

    async def workload_names(self, uids: Iterable[str]) -> Mapping[str, str]:
        """``namespace/name`` by uid, of those that exist."""
        async with self._statement("naming workloads") as connection:
            return await reads.names_of(connection, uids)

    async def positions(self, uids: Iterable[str]) -> Mapping[str, QueuePosition]:
        """The positions of these workloads in queue order, by uid. Workloads that are not pending are left out."""
        async with self._statement("counting lines") as connection:
            return await reads.lines_of(connection, uids)

    async def history(
        self, uid: str | None, after: int = 0, limit: int = 100
    ) -> tuple[HistoryLine, ...]:
        """History lines after an id, oldest first, at most 500: of one workload, or of all when ``uid`` is None."""
        async with self._statement("reading history") as connection:
            return await reads.history_lines(connection, uid, after, limit)

    async def newest_line(self) -> int:
        """The id of the last history line; 0 without any."""
        async with self._statement("reading the end of history") as connection:
            return await reads.newest_line(connection)

    async def history_grown(self, after: int, *, poll: float = 5.0) -> None:
        """Wait until there is a history line with an id above ``after``.

        LISTEN reports it at once; without LISTEN it takes up to ``poll`` seconds.
        """

        async def grown() -> bool | None:
            return await self.newest_line() > after or None

        await self._connections.found(grown, self._history_written, "history", poll)

    async def tallies(self) -> tuple[QueueCounts, ...]:
        """Counts of workloads that are not Finished, by LocalQueue, ClusterQueue and state."""
        async with self._statement("counting workloads") as connection:
            return await queue_counts.tallies(connection)

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
        """Pending and Reserved workloads, of one ClusterQueue and LocalQueue or of all, in these namespaces or in all; at most 500.

        Each is as :class:`WorkloadPage` has it.
        """
        asked = queue_counts.waiting(
            cluster_queue, namespaces, queue, order, skip, max(1, min(limit, LONGEST_PAGE))
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
            return await queue_counts.evictions(connection, namespaces, before, limit)

    async def decisions(
        self, before: int | None = None, limit: int = 100
    ) -> tuple[StoredDecision, ...]:
        """Records of planning cycles with ids below one (None = all), the newest first, at most 500."""
        async with self._statement("listing decisions") as connection:
            return await decisions.newest(connection, before, limit)

    async def get_decision(self, number: int) -> StoredDecision | None:
        """The record with this id, or None."""
        async with self._statement("reading a decision") as connection:
            return await decisions.one(connection, number)
