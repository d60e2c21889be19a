"""The ledger for the leader: :class:`queuectl.db.ports.LeaderStore` on Postgres."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import func, select, update

from queuectl.db import (
    broadcast,
    commands,
    decisions,
    documents,
    pastuse,
    process_runs,
    reads,
    refused,
    reservations,
    set_aside_objects,
    usage,
    writes,
)
from queuectl.db.connections import Connections
from queuectl.db.ports import Commit
from queuectl.db.prune import prune
from queuectl.db.store import Database, statement, transaction
from queuectl.db.tables import leadership
from queuectl.domain.ledger import Loaded
from queuectl.domain.pastuse import Used
from queuectl.domain.rules import Retention

_NOW: Final = func.extract("epoch", func.clock_timestamp())


class PostgresLeaderStore(Database):
    """The reads and writes of a leader and of a standby. All methods can raise StoreUnavailable."""

    def __init__(self, connections: Connections) -> None:
        super().__init__(connections)
        self._config_written = connections.listener(documents.CHANNEL)
        self._command_added = connections.listener(commands.CHANNEL)

    begin_run = transaction("noting the start of a process", process_runs.begin)
    end_run = transaction("noting the end of a process", process_runs.end)
    unknown_ends = statement("reading the ends of processes", process_runs.unknown_ends)
    suspects = statement("reading suspects", process_runs.suspects)
    keep_suspects = transaction("writing suspects", process_runs.keep_suspects)
    keep_findings = transaction("writing findings", broadcast.keep)
    findings = statement("reading findings", broadcast.load)
    keep_refused = transaction("writing a refused plan", refused.keep)
    keep_set_aside = transaction("writing an object that is set aside", set_aside_objects.keep)

    async def now(self) -> float:
        async with self.connections.statement("reading the time") as connection:
            return float(await connection.scalar(select(_NOW)) or 0.0)

    async def take_over(self, holder: str, floor: int) -> int:
        raised = (
            update(leadership)
            .values(
                epoch=func.greatest(leadership.c.epoch, floor) + 1,
                holder=holder,
                taken_at=func.now(),
            )
            .returning(leadership.c.epoch)
        )
        async with self.connections.transaction("taking over") as connection:
            epoch = int((await connection.scalars(raised)).one())
            await process_runs.lead(connection, holder, epoch)
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
            reserved = await reservations.load(connection)
            return Loaded(entries, found, revision, spent, used, reserved)

    async def follow(self, before: Loaded) -> Loaded:
        async with self.connections.snapshot("following the ledger") as connection:
            revision, found = before.revision, before.documents
            if await documents.revision(connection) != revision:
                revision, found = await documents.revision_and_documents(connection)
            spent = await reads.spent_on_moves(connection)
            used = await pastuse.load(connection)
            entries = await reads.live_entries_since(connection, before.entries)
            reserved = await reservations.load(connection)
            return Loaded(entries, found, revision, spent, used, reserved)

    async def commit(self, commit: Commit, *, epoch: int, cycle: int) -> None:
        async with self.connections.transaction("committing") as connection:
            await writes.fence(connection, epoch)
            if commit.revision is not None:
                await writes.same_configuration(connection, commit.revision, commit.tolerance)
            await commands.answer(connection, commit.answers)
            lines = await writes.write(connection, commit.changes, epoch=epoch, cycle=cycle)
            if commit.decision is not None:
                await decisions.add(
                    connection, commit.decision, epoch=epoch, cycle=cycle, lines=lines
                )
            if commit.reserved is not None:
                await reservations.keep(connection, commit.reserved)
            await usage.note(
                connection, [mark for change in commit.changes for mark in change.marks]
            )

    async def prune(self, retention: Retention, now: float, *, epoch: int) -> int:
        async with self.connections.transaction("deleting old rows") as connection:
            await writes.fence(connection, epoch)
            return await prune(connection, retention, now) + await decisions.prune(connection, now)

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
                return await commands.any_unanswered(connection) or None

        await self.connections.found(asked, self._command_added, "commands", poll)

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

        return await self.connections.found(
            other, self._config_written, "configuration changes", poll
        )
