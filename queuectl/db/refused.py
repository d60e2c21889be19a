"""Plans that the verifier refused: written by the leader, read by the API, deleted when there are too many."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Result, delete, func, insert, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from queuectl.db.tables import refused_plans
from queuectl.db.writes import require_epoch
from queuectl.domain.ledger import KEPT_BYTES, KEPT_DECISIONS, RefusedPlan

_ABOUT = [column for column in refused_plans.c if column is not refused_plans.c.content]


async def keep(connection: AsyncConnection, plan: RefusedPlan, content: bytes) -> None:
    """Write one, and delete the oldest beyond the limit. It does not lock the leader's epoch, so no commit waits for it.

    Raises:
        Fenced: another leader has taken over.
    """
    await require_epoch(connection, plan.epoch)
    row = {
        "at": plan.at,
        "epoch": plan.epoch,
        "cycle": plan.cycle,
        "rules": list(plan.rules),
        "size": plan.size,
        "content": content,
    }
    await connection.execute(insert(refused_plans).values(row))
    newest_first = refused_plans.c.id.desc()
    ranked = select(
        refused_plans.c.id,
        func.row_number().over(order_by=newest_first).label("number"),
        func.sum(refused_plans.c.size).over(order_by=newest_first).label("together"),
    ).subquery()
    beyond = or_(ranked.c.number > KEPT_DECISIONS, ranked.c.together > KEPT_BYTES)
    old = select(ranked.c.id).where(beyond)
    await connection.execute(delete(refused_plans).where(refused_plans.c.id.in_(old)))


async def listed(connection: AsyncConnection) -> tuple[RefusedPlan, ...]:
    """All stored plans, the newest first."""
    statement = select(*_ABOUT).order_by(refused_plans.c.id.desc())
    rows: Result[Any] = await connection.execute(statement)
    return tuple(
        RefusedPlan(row.id, row.at, row.epoch, row.cycle, tuple(row.rules), row.size)
        for row in rows
    )


async def content(connection: AsyncConnection, number: int) -> bytes | None:
    """The file of the one with this id, or None."""
    statement = select(refused_plans.c.content).where(refused_plans.c.id == number)
    found: bytes | None = (await connection.execute(statement)).scalar_one_or_none()
    return found
