"""The ledger for the leader: the real adapter of :class:`queuectl.control.ports.Store`."""

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
from queuectl.db.prune import prune
from queuectl.db.store import Database
from queuectl.db.tables import leadership
from queuectl.domain.broadcast import LeaderFindings
from queuectl.domain.commands import Answer
from queuectl.domain.containment import Suspect
from queuectl.domain.decisions import CycleDecision, RefusedPlan
from queuectl.domain.ledger import EntryChange, Loaded
from queuectl.domain.pastuse import Used
from queuectl.domain.process_runs import ProcessEnd
from queuectl.domain.queries import (
    Tolerance,
)
from queuectl.domain.reservations import ReservationState
from queuectl.domain.rules import Retention
from queuectl.domain.set_aside_objects import SetAsideObject

_NOW: Final = func.extract("epoch", func.clock_timestamp())


class LeaderStore(Database):
    """The reads and writes of a leader and of a standby. All methods can raise StoreUnavailable."""

    def __init__(self, connections: Connections) -> None:
        super().__init__(connections)
        self._config_written = connections.listener(documents.CHANNEL)
        self._command_added = connections.listener(commands.CHANNEL)

    async def now(self) -> float:
        """The database's time, unix seconds."""
        async with self._statement("reading the time") as connection:
            return float(await connection.scalar(select(_NOW)) or 0.0)

    async def take_over(self, holder: str, floor: int) -> int:
        """Become the leader that can commit: set the epoch to ``max(stored, floor) + 1`` and return it."""
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
            epoch = int((await connection.scalars(raised)).one())
            await process_runs.lead(connection, holder, epoch)
            return epoch

    async def begin_run(self, holder: str) -> None:
        """Add the run of a process; see the Protocol."""
        async with self._transaction("noting the start of a process") as connection:
            await process_runs.begin(connection, holder)

    async def end_run(self, holder: str, how: ProcessEnd) -> None:
        """Note how the last run of a process ended."""
        async with self._transaction("noting the end of a process") as connection:
            await process_runs.end(connection, holder, how)

    async def unknown_ends(self, since: float) -> tuple[float, ...]:
        """When processes of this release ended for an unknown reason; see the Protocol."""
        async with self._statement("reading the ends of processes") as connection:
            return await process_runs.unknown_ends(connection, since)

    async def suspects(self) -> tuple[Suspect, ...]:
        """The units of input that ended a process."""
        async with self._statement("reading suspects") as connection:
            return await process_runs.suspects(connection)

    async def keep_suspects(self, suspects: Sequence[Suspect]) -> None:
        """Replace the units of input that ended a process; see the Protocol."""
        async with self._transaction("writing suspects") as connection:
            await process_runs.keep_suspects(connection, suspects)

    async def commits_ended(self, *, epoch: int) -> None:
        """Wait until no commit under this epoch is in progress; see the Protocol.

        A commit holds the lock on the epoch until it has ended. If the client of a commit without the lock has timed out, it never
        commits, because the client sends COMMIT only after the lock.
        """
        async with self._transaction("waiting for earlier commits") as connection:
            await writes.fence(connection, epoch)

    async def load(self) -> Loaded:
        """Read all data of the leader in one consistent snapshot."""
        async with self._snapshot("loading the ledger") as connection:
            revision, found = await documents.revision_and_documents(connection)
            spent = await reads.spent_on_moves(connection)
            used = await pastuse.load(connection)
            entries = await reads.live_entries(connection)
            reserved = await reservations.load(connection)
            return Loaded(entries, found, revision, spent, used, reserved)

    async def follow(self, before: Loaded) -> Loaded:
        """The same after an earlier read: an entry without a change is the same object."""
        async with self._snapshot("following the ledger") as connection:
            revision, found = before.revision, before.documents
            if await documents.revision(connection) != revision:
                revision, found = await documents.revision_and_documents(connection)
            spent = await reads.spent_on_moves(connection)
            used = await pastuse.load(connection)
            entries = await reads.live_entries_since(connection, before.entries)
            reserved = await reservations.load(connection)
            return Loaded(entries, found, revision, spent, used, reserved)

    async def commit(
        self,
        changes: Sequence[EntryChange],
        *,
        epoch: int,
        revision: int | None,
        cycle: int,
        answers: Sequence[Answer] = (),
        decision: CycleDecision | None = None,
        tolerance: Tolerance | None = None,
        reserved: Sequence[ReservationState] | None = None,
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
            if reserved is not None:
                await reservations.keep(connection, reserved)
            await usage.note(connection, [mark for change in changes for mark in change.marks])

    async def prune(self, retention: Retention, now: float, *, epoch: int) -> int:
        """Delete some rows that have expired; see the Protocol."""
        async with self._transaction("deleting old rows") as connection:
            await writes.fence(connection, epoch)
            return await prune(connection, retention, now) + await decisions.prune(connection, now)

    async def keep_use(self, used: Sequence[Used], forget: float, *, epoch: int) -> None:
        """Write a sample of past use; see the Protocol."""
        async with self._transaction("writing past use") as connection:
            await writes.fence(connection, epoch)
            await pastuse.keep(connection, used, forget)

    async def keep_findings(self, found: LeaderFindings, *, epoch: int) -> None:
        """Replace the results of the leader that are not in the ledger; see the Protocol."""
        async with self._transaction("writing findings") as connection:
            await broadcast.keep(connection, found, epoch=epoch)

    async def findings(self, known: float) -> LeaderFindings | None:
        """The last results of the leader; None if they are of the time ``known``, unix seconds."""
        async with self._statement("reading findings") as connection:
            return await broadcast.load(connection, known)

    async def keep_refused(self, plan: RefusedPlan, content: bytes) -> None:
        """Store the file of a plan that the verifier refused; see the Protocol."""
        async with self._transaction("writing a refused plan") as connection:
            await refused.keep(connection, plan, content)

    async def keep_set_aside(self, one: SetAsideObject, content: bytes) -> None:
        """Store the file of a unit that is set aside; see the Protocol."""
        async with self._transaction("writing an object that is set aside") as connection:
            await set_aside_objects.keep(connection, one, content)

    async def commands_waiting(self, *, poll: float = 5.0) -> None:
        """Wait until there is a command without a result.

        LISTEN reports it at once; without LISTEN it takes up to ``poll`` seconds.
        """

        async def asked() -> bool | None:
            async with self._statement("reading commands") as connection:
                return await commands.any_unanswered(connection) or None

        await self._connections.found(asked, self._command_added, "commands", poll)

    async def config_changed(self, since: int, *, poll: float = 5.0) -> int:
        """Wait until the revision of the configuration differs from ``since``, and return it.

        LISTEN reports a change at once; without LISTEN it takes up to ``poll`` seconds.
        """

        async def other() -> int | None:
            async with self._statement("reading the configuration's revision") as connection:
                current = await documents.revision(connection)
            return current if current != since else None

        return await self._connections.found(
            other, self._config_written, "configuration changes", poll
        )
