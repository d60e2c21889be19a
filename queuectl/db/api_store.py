"""The ledger for the API, with the writes of users: :class:`queuectl.db.ports.ApiStore` on Postgres."""

from __future__ import annotations

from typing import Final

from queuectl.db import commands as command_rows
from queuectl.db import decisions as decision_rows
from queuectl.db import documents, pastuse, queue_counts, reads, refused, writes
from queuectl.db import reservations as reservation_rows
from queuectl.db import set_aside_objects as set_aside_rows
from queuectl.db.audit import AuditLog
from queuectl.db.connections import Connections
from queuectl.db.sessions import SessionStore
from queuectl.db.store import Database, snapshot, statement, transaction


class PostgresApiStore(Database):
    """The reads and writes of REST, the dashboard and sessions. All methods can raise StoreUnavailable."""

    def __init__(self, connections: Connections) -> None:
        super().__init__(connections)
        self._history_written = connections.listener(writes.CHANNEL)
        self.audit: Final = AuditLog(connections.statement)
        self.sessions: Final = SessionStore(connections.transaction, connections.statement)

    start_use = transaction("taking over past use", pastuse.start)
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
    list_workloads = statement("listing workloads", reads.page_of)
    namespaces = statement("listing namespaces", reads.namespaces)
    find_workload = snapshot("finding a workload", reads.entry_named)
    find_workloads = snapshot("finding workloads", reads.entries_named)
    workload_names = statement("naming workloads", reads.names_of)
    positions = statement("counting lines", reads.lines_of)
    waiting = statement("reading who waits", queue_counts.waiting)
    tallies = statement("counting workloads", queue_counts.tallies)
    history = statement("reading history", reads.history_lines)
    newest_line = statement("reading the end of history", reads.newest_line)
    evictions = statement("reading evictions", queue_counts.evictions)
    decisions = statement("listing decisions", decision_rows.newest)
    get_decision = statement("reading a decision", decision_rows.one)

    async def history_grown(self, after: int, *, poll: float = 5.0) -> None:
        """See the Protocol. LISTEN reports a line at once; without LISTEN it takes up to ``poll`` seconds."""

        async def grown() -> bool | None:
            return await self.newest_line() > after or None

        await self.connections.found(grown, self._history_written, "history", poll)
