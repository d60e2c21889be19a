"""Deletion of expired rows: finished workloads, executed commands, hours of the usage ledger.

Workloads expire by the retention rules, commands after a day, hours by the accounting rules.

History is never deleted. It describes a workload after its row is deleted. The lines that a workload adds are limited
(:mod:`queuectl.state.ledger`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    CursorResult,
    Delete,
    Select,
    Table,
    and_,
    delete,
    false,
    func,
    literal_column,
    or_,
    select,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from queuectl.db.tables import (
    commands,
    usage_cluster,
    usage_containers,
    usage_curves,
    usage_fleet,
    usage_hours,
    usage_losses,
    usage_marks,
    usage_meters,
    usage_subjects,
    workloads,
)
from queuectl.domain.estimates import DAY
from queuectl.domain.reasons import Code
from queuectl.domain.rules import Retention

BATCH: Final = 500  # rows in one deletion, which is the longest wait of a commit of the leader
USAGE_BATCH: Final = 5000  # no commit waits for these


async def prune(connection: AsyncConnection, retention: Retention, now: float) -> int:
    """Delete at most :data:`BATCH` rows of each table. Returns their number."""
    deleted = 0
    if retention != Retention():
        old = kept_enough(retention, now)
        rows: CursorResult[tuple[()]] = await connection.execute(
            delete(workloads).where(workloads.c.uid.in_(old))
        )
        deleted += rows.rowcount
    c = commands.c
    answered = select(c.id).where(c.outcome.is_not(None), c.at < now - DAY).limit(BATCH)
    gone: CursorResult[tuple[()]] = await connection.execute(
        delete(commands).where(c.id.in_(answered))
    )
    return deleted + gone.rowcount


def kept_enough(retention: Retention, now: float) -> Select[tuple[str]]:
    """Uids of some finished workloads that have expired. The tests pin its query plan.

    A deactivated workload finishes only when its job is deleted. Until then its row prevents another start.
    """
    w, held = workloads.c, Code.HELD.value
    given_up = func.coalesce(w.parked["code"].astext, held) != held
    kept: list[ColumnElement[bool]] = [false()]
    if retention.after_finished is not None:
        kept.append(and_(w.finished_at < now - retention.after_finished, ~given_up))
    if retention.after_deactivated is not None:
        kept.append(and_(w.finished_at < now - retention.after_deactivated, given_up))
    return select(w.uid).where(or_(*kept)).limit(BATCH)


async def prune_usage(connection: AsyncConnection, before: float) -> int:
    """Delete at most :data:`USAGE_BATCH` hours of each kind that begin before ``before`` (unix seconds). Returns their number.

    It also deletes subjects without hours, but not those of live workloads: their next hour needs them. The use of the
    containers of a workload, and its utilization over time, are deleted with its last subject.
    """
    hours = await connection.scalars(older(usage_hours, before).returning(usage_hours.c.subject))
    subjects = list(hours)
    deleted = len(subjects)
    for table in (usage_losses, usage_fleet, usage_cluster):
        rows: CursorResult[Any] = await connection.execute(older(table, before))
        deleted += rows.rowcount
    if subjects:
        await _forget(connection, list(set(subjects)))
    return deleted


async def forget_ended(connection: AsyncConnection, uids: Sequence[str]) -> None:
    """Delete the subjects of workloads that have ended and whose hours were all deleted while they lived."""
    s = usage_subjects.c
    subjects = list(await connection.scalars(select(s.id).where(s.uid.in_(uids))))
    if subjects:
        await _forget(connection, subjects)


async def _forget(connection: AsyncConnection, subjects: Sequence[UUID]) -> None:
    """Delete these subjects, except those that are still needed.

    With the last subject of a workload, its utilization over time and the use of its containers are deleted.
    """
    unused = without_hours(subjects).returning(usage_subjects.c.uid)
    gone = list(await connection.scalars(unused))
    for table in (usage_containers, usage_curves):
        await connection.execute(without_subjects(table, gone))


def older(table: Table, before: float) -> Delete:
    """The oldest rows of a table of hours. The tests pin its query plan.

    Rows are identified by their storage location: to find 5,000 of them by key takes as long as to read all rows.
    """
    place: ColumnElement[Any] = literal_column("ctid")
    found = select(place).select_from(table).where(table.c.hour < before)
    oldest = found.order_by(table.c.hour).limit(USAGE_BATCH).correlate(None).scalar_subquery()
    return delete(table).where(place == func.any(func.array(oldest)))


def without_hours(subjects: Sequence[UUID]) -> Delete:
    """Those of these subjects that are no longer needed. The tests pin its query plan."""
    s = usage_subjects.c
    needed = (
        select(usage_hours.c.subject).where(usage_hours.c.subject == s.id),
        select(usage_meters.c.uid).where(usage_meters.c.uid == s.uid),
        select(usage_marks.c.uid).where(usage_marks.c.uid == s.uid),
    )
    return delete(usage_subjects).where(s.id.in_(subjects), *(~one.exists() for one in needed))


def without_subjects(table: Table, uids: Sequence[str]) -> Delete:
    """The rows of these workloads, where they have no subject. The tests pin its query plan."""
    c = table.c
    subject = select(usage_subjects.c.uid).where(usage_subjects.c.uid == c.uid)
    return delete(table).where(c.uid.in_(uids), ~subject.exists())
