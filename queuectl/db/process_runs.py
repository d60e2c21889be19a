"""The runs of processes, and how they ended: written at each start, and at each end that leaves time for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy import delete, exists, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from queuectl.db.engine import decode_json
from queuectl.db.replicas import EXPIRY_SECONDS
from queuectl.db.tables import NOW, leadership, process_runs, replicas
from queuectl.distribution import version
from queuectl.domain.containment import Boundary, Suspect
from queuectl.domain.processes import KEPT_RUNS, ProcessEnd

_c: Final = process_runs.c
_OPEN: Final = _c.ended_at.is_(None)


async def begin(connection: AsyncConnection, holder: str) -> None:
    """Add the run of a process. Earlier runs of its name have ended, and those of processes without a heartbeat."""
    alive = exists(
        select(replicas.c.name).where(
            replicas.c.name == _c.name, replicas.c.seen_at > NOW - EXPIRY_SECONDS
        )
    )
    await _ended(connection, (_c.name == holder) | ~alive)
    await connection.execute(insert(process_runs).values(_row(holder, None)))
    newest = select(_c.id).order_by(_c.id.desc()).limit(KEPT_RUNS)
    await connection.execute(delete(process_runs).where(_c.id.not_in(newest)))


async def lead(connection: AsyncConnection, name: str, epoch: int) -> None:
    """Note the epoch of the process that leads from now on. Each leadership of another process has ended."""
    await _ended(connection, _c.epoch.is_not(None) & (_c.name != name))
    own = update(process_runs).where(_OPEN, _c.name == name).values(epoch=epoch)
    if not (await connection.execute(own.returning(_c.id))).all():
        await connection.execute(insert(process_runs).values(_row(name, epoch)))


async def end(connection: AsyncConnection, holder: str, how: ProcessEnd) -> None:
    """Note how the last run of a process ended."""
    last = select(func.max(_c.id)).where(_c.name == holder).scalar_subquery()
    mine = update(process_runs).where(_c.id == last)
    await connection.execute(mine.values(ended_at=NOW, how=how.value))


async def unknown_ends(connection: AsyncConnection, since: float) -> tuple[float, ...]:
    """When processes of this release ended without a note, after ``since`` (unix seconds) and the last careful start, the oldest first."""
    tried = select(func.coalesce(leadership.c.tried_at, 0.0)).scalar_subquery()
    found = select(_c.ended_at).where(
        _c.how == ProcessEnd.UNKNOWN.value,
        _c.ended_at > func.greatest(tried, since),
        _c.release == version(),
    )
    return tuple((await connection.scalars(found.order_by(_c.ended_at))).all())


async def keep_suspects(connection: AsyncConnection, suspects: Iterable[Suspect]) -> None:
    """Replace the units that ended a process, after a careful start."""
    await connection.execute(update(leadership).values(suspects=list(suspects), tried_at=NOW))


async def suspects(connection: AsyncConnection) -> tuple[Suspect, ...]:
    """The units that ended a process."""
    rows: Any = (await connection.scalars(select(leadership.c.suspects))).one()
    known = {boundary.value for boundary in Boundary}  # another release can know other boundaries
    return tuple(decode_json(Suspect, row) for row in rows if row["boundary"] in known)


async def _ended(connection: AsyncConnection, which: Any) -> None:
    await connection.execute(update(process_runs).where(_OPEN, which).values(ended_at=NOW))


def _row(name: str, epoch: int | None) -> dict[str, Any]:
    return {
        "name": name,
        "release": version(),
        "epoch": epoch,
        "began_at": NOW,
        "how": ProcessEnd.UNKNOWN.value,
    }
