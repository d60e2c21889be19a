"""The records of shadow mode in Postgres: sums by hour, a record for each gang, the last observation, and the trace.

The last observation advances in the transaction that writes the sums, and only from the observation that the caller compared with. So no time
between two observations is counted twice, whatever the leader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from sqlalchemy import CursorResult, delete, func, select, update
from sqlalchemy.dialects.postgresql import Insert, distinct_on
from sqlalchemy.ext.asyncio import AsyncConnection

from queuectl.db.bulk import any_of, arrays, insert_rows
from queuectl.db.engine import decode_json
from queuectl.db.tables import (
    shadow_gangs,
    shadow_hours,
    shadow_nodes,
    shadow_progress,
    shadow_span,
    shadow_trace,
)
from queuectl.db.usage import Transaction
from queuectl.db.writes import require_epoch
from queuectl.domain.errors import StaleSnapshot
from queuectl.domain.shadow import (
    GangRecord,
    LastObservation,
    ShadowFold,
    ShadowHistory,
    ShadowSums,
)
from queuectl.domain.shadow_trace import (
    NodeVersion,
    ShadowTrace,
    SimulatedReport,
    TraceBook,
    TracedGang,
    TraceProgress,
    TraceSpan,
    TraceStep,
)
from queuectl.domain.usage_reports import Period

BATCH: Final = 2000  # records in one deletion, and in one part of a trace that is read


def _upsert(statement: Insert, columns: Iterable[str], *key: str) -> Insert:
    changed = {name: statement.excluded[name] for name in columns if name not in key}
    return statement.on_conflict_do_update(index_elements=key, set_=changed)


_GANG_COLUMNS: Final = tuple(shadow_gangs.c)
_GANGS: Final = _upsert(insert_rows(shadow_gangs, _GANG_COLUMNS), shadow_gangs.c.keys(), "uid")
_HOUR_COLUMNS: Final = tuple(shadow_hours.c)
_HOURS: Final = _upsert(insert_rows(shadow_hours, _HOUR_COLUMNS), shadow_hours.c.keys(), "hour")
_TRACE_COLUMNS: Final = tuple(shadow_trace.c)
_TRACE: Final = _upsert(insert_rows(shadow_trace, _TRACE_COLUMNS), shadow_trace.c.keys(), "uid")
_NODE_COLUMNS: Final = tuple(shadow_nodes.c)
_NODES: Final = _upsert(
    insert_rows(shadow_nodes, _NODE_COLUMNS), shadow_nodes.c.keys(), "name", "at"
)


class ShadowTables:
    """The records of shadow mode over the connections of a store. Methods can raise StoreUnavailable."""

    def __init__(self, transaction: Transaction, snapshot: Transaction) -> None:
        self._transaction = transaction
        self._snapshot = snapshot

    async def last(self) -> LastObservation | None:
        """See :class:`queuectl.db.ports.ShadowStore`."""
        async with self._snapshot("reading the last observation") as connection:
            return await _last(connection)

    async def records(self, uids: Iterable[str]) -> Mapping[str, GangRecord]:
        """See :class:`queuectl.db.ports.ShadowStore`."""
        c = shadow_gangs.c
        rows = select(c.uid, c.record).where(c.uid == any_of(uids))
        async with self._snapshot("reading gangs of shadow mode") as connection:
            stored = await connection.execute(rows)
            return {uid: decode_json(GangRecord, record) for uid, record in stored}

    async def book(self, since: float) -> TraceBook:
        """See :class:`queuectl.db.ports.ShadowStore`."""
        t, n = shadow_trace.c, shadow_nodes.c
        present = select(t.record).where((t.gone_at.is_(None)) | (t.gone_at >= since))
        latest = select(n.record).ext(distinct_on(n.name)).order_by(n.name, n.at.desc())
        async with self._snapshot("reading the trace of shadow mode") as connection:
            gangs = [decode_json(TracedGang, one) for one in await connection.scalars(present)]
            nodes = [decode_json(NodeVersion, one) for one in await connection.scalars(latest)]
            return TraceBook(
                await _span(connection),
                {one.gang.uid: one for one in gangs},
                {one.name: one for one in nodes},
            )

    async def trace(self, since: float) -> ShadowTrace | None:
        """See :class:`queuectl.db.ports.ShadowStore`."""
        t, n = shadow_trace.c, shadow_nodes.c
        present = select(t.record).where((t.gone_at.is_(None)) | (t.gone_at >= since))
        async with self._snapshot("reading the trace of shadow mode") as connection:
            span = await _span(connection)
            if span is None:
                return None
            # All rows at once would take several times the memory of the gangs.
            gangs = await connection.stream_scalars(present.execution_options(yield_per=BATCH))
            traced = [decode_json(TracedGang, one) async for one in gangs]
            nodes = await connection.scalars(select(n.record))
            versions = tuple(decode_json(NodeVersion, one) for one in nodes)
            return ShadowTrace(span, tuple(traced), versions)

    async def keep_simulated(self, report: SimulatedReport, *, epoch: int) -> None:
        """See :class:`queuectl.db.ports.ShadowStore`."""
        async with self._transaction("writing the simulated report") as connection:
            await require_epoch(connection, epoch)
            await connection.execute(update(shadow_span).values(simulated=report))

    async def simulated(self) -> SimulatedReport | None:
        """See :class:`queuectl.db.ports.ShadowReports`."""
        async with self._snapshot("reading the simulated report") as connection:
            stored = await connection.scalar(select(shadow_span.c.simulated))
            return decode_json(SimulatedReport, stored) if stored is not None else None

    async def progress(self) -> TraceProgress:
        """See :class:`queuectl.db.ports.ShadowReports`."""
        made = select(shadow_span.c.simulated["made_at"].as_float())
        async with self._snapshot("reading the progress of shadow mode") as connection:
            gangs = await connection.scalar(select(func.count()).select_from(shadow_trace))
            return TraceProgress(
                await _span(connection), int(gangs or 0), await connection.scalar(made)
            )

    async def keep(
        self, fold: ShadowFold, step: TraceStep, *, over: float | None, epoch: int
    ) -> None:
        """See :class:`queuectl.db.ports.ShadowStore`."""
        async with self._transaction("writing an observation of shadow mode") as connection:
            await require_epoch(connection, epoch)
            same = shadow_progress.c.at.is_not_distinct_from(over)
            moved = await connection.execute(
                update(shadow_progress).where(same).values(at=fold.last.at, last=fold.last)
            )
            if moved.rowcount != 1:
                raise StaleSnapshot("another process has written an observation in the meantime")
            await _add_hours(connection, fold.hours)
            gangs = [
                {
                    "uid": one.gang.uid,
                    "last_at": one.last_at,
                    "startable": one.startable,
                    "unbound": one.unbound_gpus,
                    "record": one,
                }
                for one in fold.gangs
            ]
            if gangs:
                await connection.execute(_GANGS, arrays(_GANG_COLUMNS, gangs))
            await _keep_trace(connection, step)

    async def prune(self, before: float, *, epoch: int) -> int:
        """See :class:`queuectl.db.ports.ShadowStore`."""
        c, t, n = shadow_gangs.c, shadow_trace.c, shadow_nodes.c
        old = select(c.uid).where(c.last_at < before).limit(BATCH)
        async with self._transaction("deleting old observations of shadow mode") as connection:
            await require_epoch(connection, epoch)
            hours: CursorResult[Any] = await connection.execute(
                delete(shadow_hours).where(shadow_hours.c.hour < before)
            )
            gangs: CursorResult[Any] = await connection.execute(
                delete(shadow_gangs).where(c.uid.in_(old))
            )
            left = select(t.uid).where(t.gone_at < before).limit(BATCH)
            traced: CursorResult[Any] = await connection.execute(
                delete(shadow_trace).where(t.uid.in_(left))
            )
            later = shadow_nodes.alias()
            newer = select(later.c.at).where(
                later.c.name == n.name, later.c.at > n.at, later.c.at <= before
            )
            nodes: CursorResult[Any] = await connection.execute(
                delete(shadow_nodes).where(n.at < before, newer.exists())
            )
            return hours.rowcount + gangs.rowcount + traced.rowcount + nodes.rowcount

    async def history(self, period: Period, most: int) -> ShadowHistory:
        """See :class:`queuectl.db.ports.ShadowReports`."""
        h, g = shadow_hours.c, shadow_gangs.c
        hours = select(h.hour, h.sums).where(h.hour >= period.since, h.hour < period.until)
        seen = g.last_at >= period.since
        gangs = select(g.record).where(seen)
        first = gangs.order_by(g.startable.desc(), g.unbound.desc(), g.uid).limit(most)
        async with self._snapshot("reading the report of shadow mode") as connection:
            sums = await connection.execute(hours.order_by(h.hour))
            records = await connection.scalars(first)
            count = await connection.scalar(
                select(func.count()).select_from(shadow_gangs).where(seen)
            )
            return ShadowHistory(
                {hour: decode_json(ShadowSums, stored) for hour, stored in sums},
                tuple(decode_json(GangRecord, record) for record in records),
                int(count or 0),
                await _last(connection),
            )


async def _last(connection: AsyncConnection) -> LastObservation | None:
    stored = await connection.scalar(select(shadow_progress.c.last))
    return decode_json(LastObservation, stored) if stored is not None else None


async def _add_hours(connection: AsyncConnection, hours: Mapping[int, ShadowSums]) -> None:
    """The row of the last observation is locked, so no other process adds to the same hours."""
    if not hours:
        return
    h = shadow_hours.c
    stored = await connection.execute(select(h.hour, h.sums).where(h.hour.in_(hours)))
    sums = {hour: decode_json(ShadowSums, before) for hour, before in stored}
    rows = [
        {"hour": hour, "sums": sums.get(hour, ShadowSums()) + more}
        for hour, more in sorted(hours.items())
    ]
    await connection.execute(_HOURS, arrays(_HOUR_COLUMNS, rows))


async def _span(connection: AsyncConnection) -> TraceSpan | None:
    stored = await connection.scalar(select(shadow_span.c.span))
    return decode_json(TraceSpan, stored) if stored is not None else None


async def _keep_trace(connection: AsyncConnection, step: TraceStep) -> None:
    await connection.execute(update(shadow_span).values(span=step.span))
    if step.begins:
        await connection.execute(delete(shadow_trace))
        await connection.execute(delete(shadow_nodes))
    gangs = [
        {"uid": one.gang.uid, "gone_at": one.gone.most if one.gone else None, "record": one}
        for one in step.gangs
    ]
    if gangs:
        await connection.execute(_TRACE, arrays(_TRACE_COLUMNS, gangs))
    nodes = [{"name": one.name, "at": one.at, "record": one} for one in step.nodes]
    if nodes:
        await connection.execute(_NODES, arrays(_NODE_COLUMNS, nodes))
