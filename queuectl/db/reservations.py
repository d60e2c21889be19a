"""The placements of Reservations, as the last plan of the leader has them: one row for each Reservation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from queuectl.db.bulk import arrays, insert_rows
from queuectl.db.engine import storable
from queuectl.db.tables import reservations
from queuectl.domain.reservations import ReservationState

_COLUMNS: Final = tuple(reservations.c)
_INSERT: Final = insert_rows(reservations, _COLUMNS)


async def keep(connection: AsyncConnection, states: Sequence[ReservationState]) -> None:
    """Replace all of them."""
    await connection.execute(delete(reservations))
    rows = [
        {
            "name": storable(state.name),
            "begins": state.begins,
            "ends": state.ends,
            "nodes": [list(pair) for pair in state.nodes],
            "reason": storable(state.reason),
            "earliest": state.earliest,
        }
        for state in states
    ]
    if rows:
        await connection.execute(_INSERT, arrays(_COLUMNS, rows))


async def load(connection: AsyncConnection) -> tuple[ReservationState, ...]:
    """All of them, in the order of their starts."""
    c = reservations.c
    rows = await connection.execute(select(reservations).order_by(c.begins, c.name))
    return tuple(
        ReservationState(
            row.name,
            row.begins,
            row.ends,
            tuple((name, pods) for name, pods in row.nodes),
            row.reason,
            row.earliest,
        )
        for row in rows
    )
