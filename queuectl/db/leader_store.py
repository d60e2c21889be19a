"""The ledger as the leader uses it: the real adapter of :class:`queuectl.control.ports.Store`."""

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
    reads,
    refused,
    usage,
    writes,
)
from queuectl.db.connections import Connections
from queuectl.db.prune import prune
from queuectl.db.store import Database
from queuectl.db.tables import leadership
from queuectl.domain.broadcast import LeaderFindings
from queuectl.domain.commands import Answer
from queuectl.domain.decisions import Decision
from queuectl.domain.ledger import EntryChange, Loaded
from queuectl.domain.pastuse import Used
from queuectl.domain.queries import (
    Tolerance,
)
from queuectl.domain.refused import RefusedPlan
from queuectl.domain.rules import Retention

_NOW: Final = func.extract("epoch", func.clock_timestamp())


class LeaderStore(Database):
    """What a process needs to lead and to follow a leader. All methods may raise StoreUnavailable."""

    def __init__(self, connections: Connections) -> None:
        super().__init__(connections)
        self._config_written = connections.bell(documents.CHANNEL)
        self._command_added = connections.bell(commands.CHANNEL)

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
        changes: Sequence[EntryChange],
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

    async def keep_findings(self, found: LeaderFindings, *, epoch: int) -> None:
        """Write what the leader found out over what it found before; see the Protocol."""
        async with self._transaction("writing findings") as connection:
            await broadcast.keep(connection, found, epoch=epoch)

    async def findings(self, known: float) -> LeaderFindings | None:
        """What the leader found out last; None where that is of ``known``, unix seconds."""
        async with self._statement("reading findings") as connection:
            return await broadcast.load(connection, known)

    async def keep_refused(self, plan: RefusedPlan, content: bytes) -> None:
        """Keep the file of a plan that the verifier refused; see the Protocol."""
        async with self._transaction("writing a refused plan") as connection:
            await refused.keep(connection, plan, content)

    async def commands_waiting(self, *, poll: float = 5.0) -> None:
        """Wait until there is a command that is not answered.

        One is seen at once where LISTEN works, otherwise within ``poll`` seconds.
        """

        async def asked() -> bool | None:
            async with self._statement("looking for commands") as connection:
                return await commands.any_unanswered(connection) or None

        await self._connections.found(asked, self._command_added, "commands", poll)

    async def config_changed(self, since: int, *, poll: float = 5.0) -> int:
        """Wait until the configuration's revision differs from ``since``; the new one.

        A change is seen at once where LISTEN works, otherwise within ``poll`` seconds.
        """

        async def other() -> int | None:
            async with self._statement("reading the configuration's revision") as connection:
                current = await documents.revision(connection)
            return current if current != since else None

        return await self._connections.found(
            other, self._config_written, "configuration changes", poll
        )
