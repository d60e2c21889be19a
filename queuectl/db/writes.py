"""The writes of one commit of the leader in its transaction.

1. The fence: the row of ``leadership`` is locked if it still has the caller's epoch. The lock is exclusive among commits
   (FOR NO KEY UPDATE, not FOR SHARE), so that history becomes visible in the order of its ids. The next leader waits for it, and
   after that the row no longer matches.
2. The configuration gets a shared lock. It must have the revision of the plan, or its changes since then must not matter to the plan.
3. Rows are inserted, or updated if they have the version that was read. Each row must be affected.
4. Placements, leases and the outbox follow from the difference between before and after. Lines are appended to history.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import BigInteger, Column, CursorResult, Delete, Insert, Update, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from queuectl.db import documents, rows
from queuectl.db.bulk import Row, arrays, delete_rows, insert_rows, update_rows
from queuectl.db.tables import (
    configuration,
    history,
    leadership,
    leases,
    outbox,
    placements,
    workloads,
)
from queuectl.domain.errors import Fenced, StaleConfiguration, StaleSnapshot
from queuectl.domain.ledger import Entry, EntryChange, Intent, State, check_once
from queuectl.domain.queries import Tolerance

CHANNEL: Final = "queuectl_history"
_WAS: Final = "was"
# A job that was unmanaged for a time, and has a queue label again, starts over with its finished row.
_NEW: Final = insert_rows(workloads, rows.WORKLOAD_COLUMNS)
_INSERT: Final = _NEW.on_conflict_do_update(
    index_elements=[workloads.c.uid],
    set_={column.name: _NEW.excluded[column.name] for column in rows.UPDATED_COLUMNS},
    where=workloads.c.state == State.FINISHED.value,
)
_UPDATE: Final = update_rows(
    workloads, rows.UPDATED_COLUMNS, key=workloads.c.uid, over=workloads.c.version, was=_WAS
)
_UPDATE_PARAMETERS: Final = (*rows.UPDATED_COLUMNS, Column(_WAS, BigInteger))
_PLACE: Final = insert_rows(placements, rows.PLACEMENT_COLUMNS)
_UNPLACE: Final = delete_rows(placements, placements.c.uid)
_LEASE: Final = insert_rows(leases, rows.LEASE_COLUMNS)
_UNLEASE: Final = delete_rows(leases, leases.c.uid)
_INSERT_INTENTS: Final = insert_rows(outbox, rows.OUTBOX_COLUMNS)
_SETTLE: Final = delete_rows(outbox, outbox.c.uid)
_NOTE: Final = insert_rows(history, rows.HISTORY_COLUMNS)


async def fence(connection: AsyncConnection, epoch: int) -> None:
    """Lock the fence for the rest of the transaction.

    Raises:
        Fenced: the epoch is no longer the caller's.
    """
    mine = select(leadership.c.epoch).where(leadership.c.epoch == epoch)
    if (await connection.scalar(mine.with_for_update(key_share=True))) is None:
        raise Fenced(f"epoch {epoch} is over: another leader has taken over")


async def require_epoch(connection: AsyncConnection, epoch: int) -> None:
    """Check the fence without a lock, so no commit waits.

    Raises:
        Fenced: another leader has taken over.
    """
    if await connection.scalar(select(leadership.c.epoch)) != epoch:
        raise Fenced(f"epoch {epoch} is over: another leader has taken over")


async def same_configuration(
    connection: AsyncConnection, revision: int, tolerance: Tolerance | None
) -> None:
    """Keep the configuration as it is for the rest of the transaction.

    Raises:
        StaleConfiguration: its revision is not ``revision``, and its changes are not tolerated.
    """
    present = select(configuration.c.revision).with_for_update(read=True)
    if (await connection.scalars(present)).one() == revision:
        return
    stale = StaleConfiguration(f"the configuration is no longer at revision {revision}")
    if tolerance is None:
        raise stale
    # Writers wait for the lock, so the configuration does not change until the commit.
    changes = await documents.changes(connection, revision, tolerance.documents)
    if not await tolerance.of(changes):
        raise stale


async def write(
    connection: AsyncConnection, changes: Sequence[EntryChange], *, epoch: int, cycle: int
) -> int:
    """Write rows, placements, leases, outbox and history.

    Returns:
        The number of lines that were added to the history.

    Raises:
        StaleSnapshot: a row is not at the version it was read at.
        ValueError: a workload has two changes.
    """
    check_once(changes)
    await _write_workloads(connection, changes)
    await _write_placements(connection, changes)
    await _write_leases(connection, changes)
    await _write_outbox(connection, changes, epoch)
    noted = (rows.history_row(change, epoch=epoch, cycle=cycle) for change in changes)
    lines = [line for line in noted if line is not None]
    if await _bulk(connection, _NOTE, rows.HISTORY_COLUMNS, lines):
        await connection.execute(select(func.pg_notify(CHANNEL, "")))
    return len(lines)


async def _write_workloads(connection: AsyncConnection, changes: Sequence[EntryChange]) -> None:
    new = [rows.workload_row(c.after) for c in changes if c.before is None]
    if await _bulk(connection, _INSERT, rows.WORKLOAD_COLUMNS, new) != len(new):
        raise StaleSnapshot("a workload to be added is in the ledger already")
    changed = [
        {**rows.workload_row(c.after), _WAS: c.before.version}
        for c in changes
        if c.before is not None
    ]
    hit = await _bulk(connection, _UPDATE, _UPDATE_PARAMETERS, changed)
    if hit != len(changed):
        raise StaleSnapshot(
            f"{len(changed) - hit} of {len(changed)} workloads changed in the meantime"
        )


async def _write_placements(connection: AsyncConnection, changes: Sequence[EntryChange]) -> None:
    moved = [c for c in changes if (c.before.placement if c.before else None) != c.after.placement]
    gone = [{"uid": c.after.uid} for c in moved if c.before and c.before.placement]
    await _bulk(connection, _UNPLACE, (placements.c.uid,), gone)
    placed = [row for c in moved for row in rows.placement_rows(c.after)]
    await _bulk(connection, _PLACE, rows.PLACEMENT_COLUMNS, placed)


async def _write_leases(connection: AsyncConnection, changes: Sequence[EntryChange]) -> None:
    changed = [c for c in changes if (c.before.lease if c.before else None) != c.after.lease]
    gone = [{"uid": c.after.uid} for c in changed if c.before and c.before.lease]
    await _bulk(connection, _UNLEASE, (leases.c.uid,), gone)
    held = [rows.lease_row(c.after, c.after.lease) for c in changed if c.after.lease]
    await _bulk(connection, _LEASE, rows.LEASE_COLUMNS, held)


async def _write_outbox(
    connection: AsyncConnection, changes: Sequence[EntryChange], epoch: int
) -> None:
    """An intent belongs to an attempt: the same one for a later attempt is another row."""

    def intent_of(entry: Entry | None) -> tuple[Intent, int] | None:
        return (entry.intent, entry.attempt) if entry and entry.intent else None

    changed = [c for c in changes if intent_of(c.before) != intent_of(c.after)]
    settled = [{"uid": c.after.uid} for c in changed if intent_of(c.before)]
    await _bulk(connection, _SETTLE, (outbox.c.uid,), settled)
    new = [rows.outbox_row(c, epoch) for c in changed if intent_of(c.after)]
    await _bulk(connection, _INSERT_INTENTS, rows.OUTBOX_COLUMNS, new)


async def _bulk(
    connection: AsyncConnection,
    statement: Insert | Update | Delete,
    columns: Sequence[Column[Any]],
    records: Sequence[Row],
) -> int:
    """Run a statement of :mod:`queuectl.db.bulk` for these rows. Returns the number of affected rows. Without rows it does nothing."""
    if not records:
        return 0
    result: CursorResult[Any] = await connection.execute(statement, arrays(columns, records))
    return result.rowcount
