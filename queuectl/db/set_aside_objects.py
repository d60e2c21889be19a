"""Objects of units that are set aside: written by the leader, read by the API, deleted when there are too many."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sqlalchemy import Result, delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from queuectl.db.tables import set_aside_objects
from queuectl.db.writes import require_epoch
from queuectl.domain.containment import KEPT_OBJECTS, SetAsideObject

_c = set_aside_objects.c
_ABOUT = [column for column in _c if column is not _c.content]


async def keep(connection: AsyncConnection, unit: SetAsideObject, content: bytes) -> bool:
    """Write one instead of an earlier one of the unit, and delete the oldest beyond the limit.

    Returns whether no other object is stored that failed at the same place, so that one defect is reported once.

    It does not lock the leader's epoch, so no commit waits for it.

    Raises:
        Fenced: another leader has taken over.
    """
    await require_epoch(connection, unit.epoch)
    same_place = select(_c.id).where(_c.boundary == unit.boundary, _c.place == unit.place)
    new = (await connection.execute(same_place.limit(1))).first() is None
    earlier = delete(set_aside_objects).where(_c.boundary == unit.boundary, _c.key == unit.key)
    await connection.execute(earlier)
    row = asdict(unit) | {"content": content}
    del row["id"]
    await connection.execute(insert(set_aside_objects).values(row))
    newest = select(_c.id).order_by(_c.id.desc()).limit(KEPT_OBJECTS)
    await connection.execute(delete(set_aside_objects).where(_c.id.not_in(newest)))
    return new


async def listed(connection: AsyncConnection) -> tuple[SetAsideObject, ...]:
    """All stored objects, the newest first."""
    rows: Result[Any] = await connection.execute(select(*_ABOUT).order_by(_c.id.desc()))
    return tuple(SetAsideObject(**row._mapping) for row in rows)


async def content(connection: AsyncConnection, number: int) -> bytes | None:
    """The file of the one with this id, or None."""
    statement = select(_c.content).where(_c.id == number)
    found: bytes | None = (await connection.execute(statement)).scalar_one_or_none()
    return found
