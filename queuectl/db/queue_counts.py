"""Sums over live workloads by queue, pending workloads in order, and the latest evictions."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from sqlalchemy import Select, func, literal_column, select
from sqlalchemy.ext.asyncio import AsyncConnection

from queuectl.db.reads import TURN, rows_of
from queuectl.db.rows import ENTRY_COLUMNS, history_line_from
from queuectl.db.tables import history, workloads
from queuectl.domain.gpus import of_parts
from queuectl.domain.ledger import Entry, State
from queuectl.domain.queries import (
    IN_QUEUE_ORDER,
    LONGEST_PAGE,
    HistoryLine,
    QueueCounts,
    WaitingOrder,
)
from queuectl.domain.reasons import Code

_W: Final = workloads.c
_KEY: Final = (_W.namespace, _W.queue, _W.cluster_queue, _W.state, _W.reason_code)
_ORDERS: Final = {
    WaitingOrder.TURN: TURN,
    WaitingOrder.AGE: (_W.queued_at, _W.uid),
}


def tallying() -> Select[Any]:
    """The statement behind :func:`tallies`."""
    return (
        select(
            *_KEY,
            func.count().label("workloads"),
            func.sum(_W.gpu_parts).label("parts"),
            func.min(_W.queued_at).label("oldest"),
        )
        .where(_W.finished_at.is_(None))
        .group_by(*_KEY)
        .order_by(*_KEY)
    )


async def tallies(connection: AsyncConnection) -> tuple[QueueCounts, ...]:
    """Counts of all workloads that are not Finished."""
    rows = await connection.execute(tallying())
    return tuple(
        QueueCounts(
            row.namespace,
            row.queue,
            row.cluster_queue,
            State(row.state),
            Code(row.reason_code),
            row.workloads,
            of_parts(int(row.parts)),
            row.oldest,
        )
        for row in rows
    )


async def waiting(
    connection: AsyncConnection,
    cluster_queue: str | None = None,
    namespaces: Collection[str] | None = None,
    *,
    queue: str | None = None,
    order: WaitingOrder = WaitingOrder.TURN,
    skip: int = 0,
    limit: int = 100,
) -> tuple[Entry, ...]:
    """Pending and Reserved workloads; see :meth:`queuectl.db.ports.ApiStore.waiting`."""
    statement = select(*ENTRY_COLUMNS).where(
        _W.finished_at.is_(None), _W.state.in_([state.value for state in IN_QUEUE_ORDER])
    )
    if cluster_queue is not None:
        statement = statement.where(_W.cluster_queue == cluster_queue)
    if queue is not None:
        statement = statement.where(_W.queue == queue)
    if namespaces is not None:
        statement = statement.where(_W.namespace.in_(sorted(namespaces)))
    limit = max(1, min(limit, LONGEST_PAGE))
    return await rows_of(connection, statement.order_by(*_ORDERS[order]).offset(skip).limit(limit))


def evicting(namespaces: Collection[str] | None, before: int | None, limit: int) -> Select[Any]:
    """The statement behind :func:`evictions`; the tests pin its plan."""
    h = history.c
    evicting = h.to_state == literal_column(f"'{State.EVICTING.value}'")  # as in the index
    statement = select(history).where(evicting)
    if before is not None:
        statement = statement.where(h.id < before)
    if namespaces is not None:
        statement = statement.where(h.namespace.in_(sorted(namespaces)))
    return statement.order_by(h.id.desc()).limit(limit)


async def evictions(
    connection: AsyncConnection,
    namespaces: Collection[str] | None = None,
    *,
    before: int | None = None,
    limit: int = 100,
) -> tuple[HistoryLine, ...]:
    """The latest evictions, newest first, at most 500."""
    limit = max(1, min(limit, LONGEST_PAGE))
    rows = await connection.execute(evicting(namespaces, before, limit))
    return tuple(history_line_from(row) for row in rows)
