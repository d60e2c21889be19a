"""The last hours of the usage ledger for charts.

An hour that is over and accounted for changes only by corrections, so it is seldom read again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Final, TypeVar

from pydantic import Field

from queuectl.api.schemas import View, maybe
from queuectl.db.ports import ApiStore
from queuectl.domain.accounting import HOUR
from queuectl.domain.estimates import DAY
from queuectl.domain.usage_reports import HistoryPoint, Period, QueueHour, UsageHours, points
from queuectl.domain.words import utc

LONGEST: Final = 168  # hours
_FRESH_SECONDS: Final = 30.0  # for this long the hour that is not over is not read again
_CORRECTED_SECONDS: Final = 600.0
"""The same for other hours, which change when jobs are seen late. It is longer for older hours: a week is expensive."""

_Kept = TypeVar("_Kept")


class UsageHistory:
    """The hours in one process. With 11,000 workloads, it takes about 20 ms to read an hour, and 200 ms to read a day."""

    def __init__(self, store: ApiStore) -> None:
        self._store = store
        self._lock = asyncio.Lock()
        self._as_of: float | None = None
        self._rows: dict[int, tuple[QueueHour, ...]] = {}
        self._capacity: dict[int, float] = {}
        self._read: dict[int, tuple[float, bool]] = {}  # when, and whether it was complete then

    async def points(
        self, now: float, hours: int, counts: Callable[[QueueHour], bool], *, capacity: bool
    ) -> tuple[HistoryPoint, ...]:
        """Averages of each of the last hours, the current one included. May raise StoreUnavailable.

        Args:
            now: unix seconds.
            hours: how many, at most :data:`LONGEST`.
            counts: which LocalQueues count.
            capacity: whether the points show the GPUs of the nodes.
        """
        period = Period.around(now - (hours - 1) * HOUR, now + 1)
        starts = range(period.since, period.until, HOUR)
        async with self._lock:
            due = [hour for hour in starts if self._is_due(hour, now)]
            if due:
                # The time of the read ends all incomplete hours, so they are read together.
                incomplete = (hour for hour, (_, complete) in self._read.items() if not complete)
                read = Period(min([due[0], *incomplete]), period.until)
                self._keep(await self._store.usage.hours(read), read, now)
            rows = [row for hour in starts for row in self._rows.get(hour, ())]
            known = UsageHours(self._as_of, tuple(rows), self._capacity)
        return points(known, starts, counts, capacity=capacity)

    def _is_due(self, hour: int, now: float) -> bool:
        """Whether an hour is to be read: it never was, or some time has passed."""
        if hour not in self._read:
            return True
        read_at, complete = self._read[hour]
        days = max(1.0, (now - hour) / DAY)
        return now - read_at >= (days * _CORRECTED_SECONDS if complete else _FRESH_SECONDS)

    def _keep(self, usage: UsageHours, period: Period, now: float) -> None:
        if (usage.as_of or 0.0) < (self._as_of or 0.0):  # the database was restored from a backup
            self._rows, self._capacity, self._read = {}, {}, {}
        self._as_of = usage.as_of
        until = usage.as_of or 0.0
        read = range(period.since, period.until, HOUR)
        rows: dict[int, list[QueueHour]] = {hour: [] for hour in read}
        for row in usage.rows:
            rows[row.hour].append(row)
        oldest = read[-1] - LONGEST * HOUR
        self._rows = _since(oldest, self._rows | {hour: tuple(of) for hour, of in rows.items()})
        self._capacity = _since(oldest, self._capacity | dict(usage.capacity))
        states = {hour: (now, hour + HOUR <= until) for hour in read}
        self._read = _since(oldest, self._read | states)


def _since(oldest: int, by_hour: dict[int, _Kept]) -> dict[int, _Kept]:
    return {hour: one for hour, one in by_hour.items() if hour >= oldest}


class HistoryItem(View):
    """Averages of one hour, in GPUs."""

    since: datetime
    until: datetime = Field(
        description="End of the hour; for the current hour, the time of the response."
    )
    allocated_gpus: float = Field(description="GPUs that gangs hold.")
    used_gpus: float = Field(description="GPUs that gangs hold and use, as measured.")
    unmeasured_gpus: float = Field(description="GPUs that gangs hold, without a measurement.")
    pending_gpus: float = Field(description="GPUs that pending gangs request.")
    capacity_gpus: float | None = Field(
        description="GPUs of schedulable nodes, and GPUs in use on others; null = unknown, or the history is of some queues only."
    )


class UsageHistoryView(View):
    as_of: datetime | None = Field(
        description="Usage up to this time is included; null = none yet."
    )
    items: list[HistoryItem] = Field(description="The points, oldest first.")


def history_view(points: tuple[HistoryPoint, ...]) -> UsageHistoryView:
    """The points as the API answers them."""
    return UsageHistoryView(
        as_of=maybe(points[-1].until if points else None),
        items=[
            HistoryItem(
                since=utc(point.since),
                until=utc(point.until),
                allocated_gpus=round(point.allocated, 3),
                used_gpus=round(point.used, 3),
                unmeasured_gpus=round(point.unmeasured, 3),
                pending_gpus=round(point.pending, 3),
                capacity_gpus=round(point.capacity, 3) if point.capacity is not None else None,
            )
            for point in points
        ],
    )
