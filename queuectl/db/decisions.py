"""The records of planning cycles: written with their commits, read by the API, deleted after a week."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import CursorResult, Result, Row, Select, delete, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from queuectl.db.tables import decisions, history
from queuectl.domain.gpus import as_number, in_parts, of_parts
from queuectl.domain.ledger import KEPT_SECONDS, CycleDecision, StoredDecision
from queuectl.domain.plan import Proof
from queuectl.domain.queries import LONGEST_PAGE

_BATCH: Final = 500
_COUNTS: Final = ("nodes", "pending", "running", "started", "gpus", "evicted", "moved", "waiting")


async def add(
    connection: AsyncConnection, decision: CycleDecision, *, epoch: int, cycle: int, lines: int
) -> None:
    """Write a record. The last lines of history belong to it, because commits are serial."""
    newest = select(history.c.id).order_by(history.c.id.desc()).limit(lines + 1).subquery()
    ends = select(func.min(newest.c.id), func.max(newest.c.id), func.count()).select_from(newest)
    first, last, length = (await connection.execute(ends)).one()
    after = first if length > lines else 0
    counts = {name: getattr(decision, name) for name in _COUNTS}
    counts["gpus"] = as_number(decision.gpus)
    await connection.execute(
        insert(decisions).values(
            at=decision.at,
            epoch=epoch,
            cycle=cycle,
            revision=decision.revision,
            history_after=after or 0,
            history_upto=last or 0,
            counts=counts,
            reasons=dict(decision.reasons),
            proof=decision.proof.value,
            seconds=decision.seconds,
            stats=dict(decision.stats),
        )
    )


def page(before: int | None, limit: int) -> Select[Any]:
    """The statement behind :func:`newest`; the tests pin its plan."""
    statement = select(decisions).order_by(decisions.c.id.desc()).limit(limit)
    return statement if before is None else statement.where(decisions.c.id < before)


async def newest(
    connection: AsyncConnection, before: int | None = None, limit: int = 100
) -> tuple[StoredDecision, ...]:
    """Records with smaller ids than ``before`` (None = all), the newest first."""
    rows: Result[Any] = await connection.execute(page(before, max(1, min(limit, LONGEST_PAGE))))
    return tuple(map(_decided, rows))


async def numbered(connection: AsyncConnection, number: int) -> StoredDecision | None:
    """The record with this id, or None."""
    found = await connection.execute(select(decisions).where(decisions.c.id == number))
    row = found.one_or_none()
    return _decided(row) if row is not None else None


async def prune(connection: AsyncConnection, now: float) -> int:
    """Delete some records that have expired; returns their number."""
    d = decisions.c
    oldest = select(d.id, d.at).order_by(d.id).limit(_BATCH).subquery()
    old = select(oldest.c.id).where(oldest.c.at < now - KEPT_SECONDS)
    gone: CursorResult[tuple[()]] = await connection.execute(delete(decisions).where(d.id.in_(old)))
    return gone.rowcount


def _decided(row: Row[Any]) -> StoredDecision:
    return StoredDecision(
        id=row.id,
        epoch=row.epoch,
        cycle=row.cycle,
        after=row.history_after,
        upto=row.history_upto,
        decision=CycleDecision(
            at=row.at,
            revision=row.revision,
            reasons=row.reasons,
            proof=Proof(row.proof),
            seconds=row.seconds,
            stats=row.stats,
            **row.counts | {"gpus": of_parts(in_parts(row.counts["gpus"]))},
        ),
    )
