"""Deleting what was kept long enough: finished workloads by the rules of retention, answered commands after a day.

History is never deleted: it says what became of a workload long after its row is gone.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    ColumnElement,
    CursorResult,
    Select,
    and_,
    delete,
    false,
    func,
    or_,
    select,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from queuectl.db.tables import commands, workloads
from queuectl.domain.reasons import Code
from queuectl.domain.rules import Retention
from queuectl.domain.steps import DAY

BATCH: Final = 500  # rows deleted at once: a commit of the leader waits no longer than that takes


async def prune(connection: AsyncConnection, retention: Retention, now: float) -> int:
    """Delete at most :data:`BATCH` rows of each table; how many in all."""
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
    """Uids of some finished workloads that are kept long enough; the tests pin its plan.

    A deactivated workload is finished only by the deletion of its job: while that is there, its row says not to start it.
    """
    w, held = workloads.c, Code.HELD.value
    given_up = func.coalesce(w.parked["code"].astext, held) != held
    kept: list[ColumnElement[bool]] = [false()]
    if retention.after_finished is not None:
        kept.append(and_(w.finished_at < now - retention.after_finished, ~given_up))
    if retention.after_deactivated is not None:
        kept.append(and_(w.finished_at < now - retention.after_deactivated, given_up))
    return select(w.uid).where(or_(*kept)).limit(BATCH)
