"""The stages that lines of history ended, and the line up to which the leader has exported them."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Select, and_, func, or_, select, true, update
from sqlalchemy.ext.asyncio import AsyncConnection

from queuectl.db.tables import history, trace_progress, workloads
from queuectl.db.writes import require_epoch
from queuectl.domain.ledger import State
from queuectl.domain.stages import EndedStage, EndedStages

_LINE: Final = history.alias("line")
_EARLIER: Final = history.alias("earlier")
_MOVED: Final = _EARLIER.c.from_state.is_distinct_from(_EARLIER.c.to_state)
_OF_THE_SAME: Final = and_(_EARLIER.c.uid == _LINE.c.uid, _EARLIER.c.id < _LINE.c.id)
_LAST_MOVE: Final = (
    select(_EARLIER.c.at)
    .where(_OF_THE_SAME, _MOVED)
    .order_by(_EARLIER.c.id.desc())
    .limit(1)
    .lateral("last_move")
)
_BEGIN: Final = (
    select(_EARLIER.c.at)
    .where(
        _OF_THE_SAME,
        or_(
            _EARLIER.c.from_state.is_(None),
            and_(_EARLIER.c.from_state == State.EVICTING, _EARLIER.c.to_state != State.EVICTING),
        ),
    )
    .order_by(_EARLIER.c.id.desc())
    .limit(1)
    .lateral("begin")
)


async def ended_stages(connection: AsyncConnection, after: int, limit: int) -> EndedStages:
    """The stages that some lines of history ended; see the Protocol."""
    window = select(history.c.id).where(history.c.id > after).order_by(history.c.id).limit(limit)
    upto = await connection.scalar(select(func.max(window.subquery().c.id)))
    if upto is None:
        return EndedStages(after, ())
    rows = await connection.execute(_stages(after, int(upto)))
    return EndedStages(
        int(upto),
        tuple(
            EndedStage(
                line=row.id,
                uid=row.uid,
                kind=row.kind,
                namespace=row.namespace,
                name=row.name,
                cluster_queue=row.cluster_queue or "",
                attempts=row.attempt,
                state=State(row.from_state),
                following=State(row.to_state),
                code=row.code,
                since=row.at if row.since is None else row.since,
                until=row.at,
                begun=row.at if row.begun is None else row.begun,
            )
            for row in rows
        ),
    )


def _stages(after: int, upto: int) -> Select[tuple[object, ...]]:
    line = _LINE.c
    return (
        select(
            *(line.id, line.uid, line.kind, line.namespace, line.name, line.attempt),
            *(line.from_state, line.to_state, line.code, line.at),
            workloads.c.cluster_queue,
            _LAST_MOVE.c.at.label("since"),
            _BEGIN.c.at.label("begun"),
        )
        .select_from(_LINE)
        .outerjoin(workloads, workloads.c.uid == line.uid)
        .outerjoin(_LAST_MOVE, true())
        .outerjoin(_BEGIN, true())
        .where(line.id > after, line.id <= upto)
        .where(line.from_state.is_not(None), line.from_state != line.to_state)
        .order_by(line.id)
    )


async def exported_upto(connection: AsyncConnection, *, epoch: int) -> int:
    """The line up to which stages are exported; the first call begins with the current end of history."""
    await require_epoch(connection, epoch)
    end = select(func.coalesce(func.max(history.c.id), 0)).scalar_subquery()
    begun = update(trace_progress).values(line=func.coalesce(trace_progress.c.line, end))
    return int(await connection.scalar(begun.returning(trace_progress.c.line)) or 0)


async def keep_exported(connection: AsyncConnection, line: int, *, epoch: int) -> None:
    """Replace that line."""
    await require_epoch(connection, epoch)
    await connection.execute(update(trace_progress).values(line=line))
