"""The records of shadow mode in memory. It passes the same conformance tests as the one on Postgres."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field

from queuectl.domain.errors import Fenced, StaleSnapshot
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


@dataclass
class MemoryShadowTables:
    """The tables that all stores of a database share."""

    last: LastObservation | None = None
    hours: dict[int, ShadowSums] = field(default_factory=dict)
    gangs: dict[str, GangRecord] = field(default_factory=dict)
    span: TraceSpan | None = None
    traced: dict[str, TracedGang] = field(default_factory=dict)
    nodes: dict[tuple[str, float], NodeVersion] = field(default_factory=dict)
    simulated: SimulatedReport | None = None

    def present(self, since: float) -> list[TracedGang]:
        """The gangs that have not left before a time."""
        return [one for one in self.traced.values() if not one.gone or one.gone.most >= since]


class MemoryShadow:
    """The methods of the leader's store and of the API's. ``reach`` returns the tables and the epoch."""

    def __init__(self, reach: Callable[[], Awaitable[tuple[MemoryShadowTables, int]]]) -> None:
        self._reach = reach

    async def last(self) -> LastObservation | None:
        return (await self._reach())[0].last

    async def records(self, uids: Iterable[str]) -> Mapping[str, GangRecord]:
        gangs = (await self._reach())[0].gangs
        return {uid: gangs[uid] for uid in uids if uid in gangs}

    async def book(self, since: float) -> TraceBook:
        tables, _ = await self._reach()
        latest = {one.name: one for one in sorted(tables.nodes.values(), key=lambda one: one.at)}
        gangs = {one.gang.uid: one for one in tables.present(since)}
        return TraceBook(tables.span, gangs, latest)

    async def trace(self, since: float) -> ShadowTrace | None:
        tables, _ = await self._reach()
        if tables.span is None:
            return None
        return ShadowTrace(tables.span, tuple(tables.present(since)), tuple(tables.nodes.values()))

    async def keep_simulated(self, report: SimulatedReport, *, epoch: int) -> None:
        tables = await self._fenced(epoch)
        tables.simulated = report

    async def simulated(self) -> SimulatedReport | None:
        return (await self._reach())[0].simulated

    async def progress(self) -> TraceProgress:
        tables, _ = await self._reach()
        report = tables.simulated
        made = report.made_at if report is not None else None
        return TraceProgress(tables.span, len(tables.traced), made)

    async def keep(
        self, fold: ShadowFold, step: TraceStep, *, over: float | None, epoch: int
    ) -> None:
        tables = await self._fenced(epoch)
        if (tables.last.at if tables.last is not None else None) != over:
            raise StaleSnapshot("another process has written an observation in the meantime")
        tables.last = fold.last
        for hour, sums in fold.hours.items():
            tables.hours[hour] = tables.hours.get(hour, ShadowSums()) + sums
        tables.gangs |= {one.gang.uid: one for one in fold.gangs}
        tables.span = step.span
        if step.begins:
            tables.traced, tables.nodes = {}, {}
        tables.traced |= {one.gang.uid: one for one in step.gangs}
        tables.nodes |= {(one.name, one.at): one for one in step.nodes}

    async def prune(self, before: float, *, epoch: int) -> int:
        tables = await self._fenced(epoch)
        hours = [hour for hour in tables.hours if hour < before]
        gangs = [uid for uid, one in tables.gangs.items() if one.last_at < before]
        for hour in hours:
            del tables.hours[hour]
        for uid in gangs:
            del tables.gangs[uid]
        left = [u for u, one in tables.traced.items() if one.gone and one.gone.most < before]
        for uid in left:
            del tables.traced[uid]
        keys = list(tables.nodes)
        ended = [
            (name, at)
            for name, at in keys
            if any(name == other and at < later <= before for other, later in keys)
        ]
        for key in ended:
            del tables.nodes[key]
        return len(hours) + len(gangs) + len(left) + len(ended)

    async def history(self, period: Period, most: int) -> ShadowHistory:
        tables, _ = await self._reach()
        hours = {
            h: tables.hours[h] for h in sorted(tables.hours) if period.since <= h < period.until
        }
        seen = [one for one in tables.gangs.values() if one.last_at >= period.since]
        seen.sort(key=lambda one: (-one.startable, -one.unbound_gpus, one.gang.uid))
        return ShadowHistory(hours, tuple(seen[:most]), len(seen), tables.last)

    async def _fenced(self, epoch: int) -> MemoryShadowTables:
        tables, current = await self._reach()
        if current != epoch:
            raise Fenced(f"epoch {epoch} is over")
        return tables
