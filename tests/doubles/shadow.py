"""The records of shadow mode in memory. It passes the same conformance tests as the one on Postgres."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field

from queuectl.domain.errors import Fenced, StaleSnapshot
from queuectl.domain.shadow import GangRecord, LastMoment, ShadowFold, ShadowHistory, ShadowSums
from queuectl.domain.usage_reports import Period


@dataclass
class MemoryShadowTables:
    """The tables that all stores of a database share."""

    last: LastMoment | None = None
    hours: dict[int, ShadowSums] = field(default_factory=dict)
    gangs: dict[str, GangRecord] = field(default_factory=dict)


class MemoryShadow:
    """The methods of the leader's store and of the API's. ``reach`` returns the tables and the epoch."""

    def __init__(self, reach: Callable[[], Awaitable[tuple[MemoryShadowTables, int]]]) -> None:
        self._reach = reach

    async def last(self) -> LastMoment | None:
        return (await self._reach())[0].last

    async def records(self, uids: Iterable[str]) -> Mapping[str, GangRecord]:
        gangs = (await self._reach())[0].gangs
        return {uid: gangs[uid] for uid in uids if uid in gangs}

    async def keep(self, fold: ShadowFold, *, over: float | None, epoch: int) -> None:
        tables = await self._fenced(epoch)
        if (tables.last.at if tables.last is not None else None) != over:
            raise StaleSnapshot("another process has written a moment meanwhile")
        tables.last = fold.last
        for hour, sums in fold.hours.items():
            tables.hours[hour] = tables.hours.get(hour, ShadowSums()) + sums
        tables.gangs |= {one.gang.uid: one for one in fold.gangs}

    async def prune(self, before: float, *, epoch: int) -> int:
        tables = await self._fenced(epoch)
        hours = [hour for hour in tables.hours if hour < before]
        gangs = [uid for uid, one in tables.gangs.items() if one.last_at < before]
        for hour in hours:
            del tables.hours[hour]
        for uid in gangs:
            del tables.gangs[uid]
        return len(hours) + len(gangs)

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
