"""Writes a sample to a real database, so that the pages are read as in production."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Table, insert, update
from sqlalchemy.ext.asyncio import AsyncConnection

from queuectl.db import decisions, documents, reservations, rows
from queuectl.db.bulk import Row
from queuectl.db.engine import DatabaseSettings
from queuectl.db.store import PostgresApiStore
from queuectl.db.tables import (
    WHOLE,
    audit,
    history,
    leadership,
    leases,
    placements,
    usage_curves,
    usage_fleet,
    usage_hours,
    usage_losses,
    usage_progress,
    usage_subjects,
    workloads,
)
from queuectl.domain.audit import AuditLine
from queuectl.domain.ledger import EntryChange, Note
from queuectl.domain.queries import HistoryLine
from tests.doubles.store import MemoryDatabase
from tests.doubles.usage import MemoryUsageTables

_AT_ONCE = 1_000


async def stored(database: MemoryDatabase, url: str) -> PostgresApiStore:
    """A store whose database has what ``database`` has. ``url``: of a migrated database without rows."""
    store = await PostgresApiStore.connect(DatabaseSettings(url=url))
    async with store.connections.transaction("writing the sample") as connection:
        await _write(connection, database)
    async with store.connections.statement("analyzing the sample") as connection:
        await connection.exec_driver_sql("VACUUM ANALYZE")
    return store


async def _write(connection: AsyncConnection, database: MemoryDatabase) -> None:
    epoch = {"epoch": database.epoch, "holder": database.holder}
    await connection.execute(update(leadership).values(**epoch))
    for stored_document in database.documents.values():
        await documents.write(connection, stored_document.document)
    entries = database.entries.values()
    await _insert(connection, workloads, map(rows.workload_row, entries))
    await _insert(connection, placements, (row for e in entries for row in rows.placement_rows(e)))
    await _insert(connection, leases, (rows.lease_row(e, e.lease) for e in entries if e.lease))
    await _insert(connection, history, (_history_row(line, database) for line in database.history))
    await reservations.keep(connection, database.reserved)
    for cycle in database.decisions:
        written = {"epoch": cycle.epoch, "cycle": cycle.cycle, "lines": cycle.upto - cycle.after}
        await decisions.add(connection, cycle.decision, **written)
    await _insert(connection, audit, map(_audit_row, database.audit))
    await _write_usage(connection, database.usage)


async def _write_usage(connection: AsyncConnection, usage: MemoryUsageTables) -> None:
    await connection.execute(update(usage_progress).values(until=usage.until))
    subjects = (
        {"id": number, **asdict(one), "labels": dict(one.labels)}
        for number, one in usage.subjects.items()
    )
    await _insert(connection, usage_subjects, subjects)
    hours = (
        {"hour": hour, "subject": subject, "flavor": flavor, "price": price}
        | {name: value / WHOLE.get(name, 1) for name, value in asdict(amounts).items()}
        for (hour, subject, flavor, price), amounts in usage.hours.items()
    )
    await _insert(connection, usage_hours, hours)
    losses = (
        {"hour": hour, "subject": subject, "flavor": flavor, "reason": str(reason), **asdict(lost)}
        for (hour, subject, flavor, reason), lost in usage.losses.items()
    )
    await _insert(connection, usage_losses, losses)
    fleet = ({"hour": hour, **asdict(row)} for (hour, _), row in usage.fleet.items())
    await _insert(connection, usage_fleet, fleet)
    curves = (
        {"uid": uid, "begins": begins, "spacing": spacing, "content": content}
        for uid, (begins, spacing, content) in usage.curves.items()
    )
    await _insert(connection, usage_curves, curves)


async def _insert(connection: AsyncConnection, table: Table, records: Iterable[Row]) -> None:
    found: Sequence[Any] = list(records)
    for low in range(0, len(found), _AT_ONCE):
        await connection.execute(insert(table), found[low : low + _AT_ONCE])


def _history_row(line: HistoryLine, database: MemoryDatabase) -> Row:
    note = Note(line.event, line.from_state, line.to_state, line.reason)
    entry = database.entries[line.uid]
    change = EntryChange(entry, entry, line.at, note)
    row = rows.history_row(change, epoch=line.epoch, cycle=line.cycle)
    assert row is not None
    return {**row, "attempt": line.attempt, "placement": line.placement}


def _audit_row(line: AuditLine) -> Row:
    return {name: value for name, value in asdict(line).items() if name != "id"} | {
        "groups": list(line.groups)
    }
