"""Reads of past workloads with their hours and lost work, for traces."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from sqlalchemy import Select, bindparam, cast, func, or_, select
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import Text

from queuectl.db.reads import rows_of
from queuectl.db.rows import ENTRY_COLUMNS
from queuectl.db.tables import workloads
from queuectl.db.usagetables import usage_hours, usage_losses, usage_subjects
from queuectl.domain.past_jobs import RecordedWorkload, UsedHour
from queuectl.domain.usage_reports import Period

_TEXTS: Final[ARRAY[str]] = ARRAY(Text())


def started(period: Period, after: str, limit: int) -> Select[Any]:
    """The statement behind :func:`page`: by uid, so that the primary key serves each page."""
    w = workloads.c
    return (
        select(*ENTRY_COLUMNS)
        .where(
            w.uid > after,
            w.attempt > 0,
            w.queued_at < period.until,
            or_(w.finished_at.is_(None), w.finished_at > period.since),
        )
        .order_by(w.uid)
        .limit(limit)
    )


async def page(
    connection: AsyncConnection, period: Period, after: str, limit: int
) -> tuple[RecordedWorkload, ...]:
    """The workloads with larger uids that were started, and were there in the period."""
    entries = await rows_of(connection, started(period, after, limit))
    given = {"uids": [entry.uid for entry in entries]}
    s = usage_subjects.c
    mine = s.uid == func.any(cast(bindparam("uids", type_=_TEXTS), _TEXTS))
    h, lost = usage_hours.c, usage_losses.c
    hourly = (
        select(s.uid, h.hour, *(func.sum(h[name]) for name in ("allocated", "used", "unknown")))
        .join_from(usage_hours, usage_subjects, h.subject == s.id)
        .where(mine)
        .group_by(s.uid, h.hour)
        .order_by(s.uid, h.hour)
    )
    losses = (
        select(s.uid, func.sum(lost.gpu_seconds))
        .join_from(usage_losses, usage_subjects, lost.subject == s.id)
        .where(mine)
        .group_by(s.uid)
    )
    hours: dict[str, list[UsedHour]] = defaultdict(list)
    for uid, *amounts in await connection.execute(hourly, given):
        hours[uid].append(UsedHour(*amounts))
    lost_by: dict[str, float] = {row[0]: row[1] for row in await connection.execute(losses, given)}
    return tuple(
        RecordedWorkload(entry, lost_by.get(entry.uid, 0.0), tuple(hours[entry.uid]))
        for entry in entries
    )
