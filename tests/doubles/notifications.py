"""The outbox of events, the progress of receivers and the subscriptions in memory, instead of in the database."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from queuectl.db.engine import storable
from queuectl.domain.notifications import (
    KEPT_SECONDS,
    MOST_KEPT,
    MOST_SUBSCRIPTIONS,
    BudgetLimit,
    Event,
    Mode,
    Progress,
    ReceiverStatus,
    Subscription,
)

Key = tuple[str, Mode]


@dataclass
class MemoryCursor:
    """The cursor of a receiver."""

    progress: Progress
    claimed_by: str | None = None
    claimed_until: float = 0.0
    retry_at: float = 0.0
    error: str = ""
    delivered: int = 0


@dataclass
class MemoryNotificationTables:
    """The rows that all stores of a database share."""

    events: list[Event] = field(default_factory=list)
    cursors: dict[Key, MemoryCursor] = field(default_factory=dict)
    announced: set[BudgetLimit] = field(default_factory=set)
    subscriptions: dict[int, Subscription] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    last: int = 0

    def add(self, events: Sequence[Event]) -> None:
        """Append events."""
        for event in events:
            self.last += 1
            self.events.append(replace(event, id=self.last, message=storable(event.message)))

    def announce_budgets(self, announcements: Mapping[BudgetLimit, Event]) -> None:
        """Append those of limits without an event."""
        self.add([event for limit, event in announcements.items() if limit not in self.announced])
        self.announced |= announcements.keys()

    def prune(self) -> int:
        """Delete events that all receivers are past, or that are beyond all bounds."""
        old = time.time() - KEPT_SECONDS
        for key, cursor in list(self.cursors.items()):
            missed = any(e.id > cursor.progress.line and e.at < old for e in self.events)
            missed |= (cursor.progress.dropped_since or old) < old
            if missed and max(cursor.progress.claimed_at, cursor.retry_at) < old:
                del self.cursors[key]
        limit = self.beyond(0, KEPT_SECONDS, MOST_KEPT)
        for cursor in self.cursors.values():
            self.drop(cursor, limit)
        passed = min((c.progress.line for c in self.cursors.values()), default=limit)
        kept = [event for event in self.events if event.id > passed]
        deleted, self.events = len(self.events) - len(kept), kept
        return deleted

    def beyond(self, line: int, max_age: float, max_rows: int) -> int:
        """The id of the last event after ``line`` that is beyond the bounds."""
        after = [event for event in self.events if event.id > line]
        old = time.time() - max_age
        beyond = [e.id for n, e in enumerate(after) if n < len(after) - max_rows or e.at < old]
        return max(beyond, default=line)

    def drop(self, cursor: MemoryCursor, limit: int) -> None:
        """Move a cursor past events, which count as dropped."""
        progress = cursor.progress
        dropped = [event.at for event in self.events if progress.line < event.id <= limit]
        if limit <= progress.line:
            return
        since = [at for at in (progress.dropped_since, *dropped) if at is not None]
        until = [at for at in (progress.dropped_until, *dropped) if at is not None]
        cursor.progress = replace(
            progress,
            line=limit,
            dropped=progress.dropped + len(dropped),
            dropped_since=min(since, default=None),
            dropped_until=max(until, default=None),
        )


class MemoryNotifications:
    """Same methods and meanings as NotificationTables."""

    def __init__(self, tables: MemoryNotificationTables, reach: Callable[[], Awaitable[object]]):
        self._tables = tables
        self._reach = reach

    async def claim(
        self, receivers: Sequence[tuple[str, Mode]], by: str, seconds: float
    ) -> Progress | None:
        await self._reach()
        tables, now = self._tables, time.time()
        end = max((event.id for event in tables.events), default=0)
        for key in receivers:
            tables.cursors.setdefault(key, MemoryCursor(Progress(*key, end)))
        due = [
            cursor
            for key, cursor in sorted(tables.cursors.items())
            if key in receivers
            and (cursor.claimed_by in (None, by) or cursor.claimed_until <= now)
            and cursor.retry_at <= now
            and (cursor.progress.line < end or cursor.progress.dropped)
        ]
        if not due:
            return None
        cursor = min(due, key=lambda one: one.progress.claimed_at)
        cursor.claimed_by, cursor.claimed_until = by, now + seconds
        cursor.progress = replace(cursor.progress, claimed_at=now)
        return cursor.progress

    async def extend(self, receiver: str, mode: Mode, by: str, seconds: float) -> bool:
        cursor = await self._own(receiver, mode, by)
        if cursor is not None:
            cursor.claimed_until = time.time() + seconds
        return cursor is not None

    async def events(self, after: int, limit: int) -> Sequence[Event]:
        await self._reach()
        return tuple(event for event in self._tables.events if event.id > after)[:limit]

    async def drop_beyond(
        self, receiver: str, mode: Mode, by: str, *, max_age: float, max_rows: int
    ) -> Progress | None:
        cursor = await self._own(receiver, mode, by)
        if cursor is None:
            return None
        limit = self._tables.beyond(cursor.progress.line, max_age, max_rows)
        self._tables.drop(cursor, limit)
        return cursor.progress

    async def settle(
        self, receiver: str, mode: Mode, by: str, line: int, *, delivered: int, reported: int
    ) -> bool:
        cursor = await self._own(receiver, mode, by)
        if cursor is None:
            return False
        progress = replace(cursor.progress, line=max(line, cursor.progress.line), failures=0)
        if reported and progress.dropped <= reported:
            progress = replace(progress, dropped=0, dropped_since=None, dropped_until=None)
        elif reported:
            progress = replace(progress, dropped=progress.dropped - reported)
        cursor.progress, cursor.error = progress, ""
        cursor.delivered += delivered
        return True

    async def postpone(
        self,
        receiver: str,
        mode: Mode,
        by: str,
        seconds: float,
        error: str,
        *,
        keep_seconds: float = 0.0,
    ) -> None:
        cursor = await self._own(receiver, mode, by)
        if cursor is None:
            return
        cursor.retry_at = time.time() + seconds
        cursor.claimed_by = by if keep_seconds else None
        cursor.claimed_until = cursor.retry_at + keep_seconds
        cursor.error = storable(error)
        failures = cursor.progress.failures + bool(error)
        cursor.progress = replace(cursor.progress, failures=failures)

    async def release(self, receiver: str, mode: Mode, by: str) -> None:
        cursor = await self._own(receiver, mode, by)
        if cursor is not None:
            cursor.claimed_by = None

    async def statuses(self) -> Sequence[ReceiverStatus]:
        await self._reach()
        now = time.time()
        return tuple(
            ReceiverStatus(
                receiver=cursor.progress.receiver,
                mode=cursor.progress.mode,
                waiting=sum(event.id > cursor.progress.line for event in self._tables.events),
                oldest_age=next(
                    (now - e.at for e in self._tables.events if e.id > cursor.progress.line), None
                ),
                delivered=cursor.delivered,
                dropped=cursor.progress.dropped,
                failures=cursor.progress.failures,
                error=cursor.error,
                retry_at=cursor.retry_at or None,
            )
            for _, cursor in sorted(self._tables.cursors.items())
        )

    async def subscriptions(self, receiver: str) -> Sequence[Subscription]:
        await self._reach()
        return tuple(s for s in self._tables.subscriptions.values() if s.receiver == receiver)

    async def subscriptions_of(self, owner: str) -> Sequence[Subscription]:
        await self._reach()
        return tuple(s for s in self._tables.subscriptions.values() if s.owner == owner)

    async def subscription(self, number: int) -> Subscription | None:
        await self._reach()
        return self._tables.subscriptions.get(number)

    async def all_subscriptions(self, after: int, limit: int) -> Sequence[Subscription]:
        await self._reach()
        return tuple(s for s in self._tables.subscriptions.values() if s.id > after)[:limit]

    async def subscribe(self, subscription: Subscription) -> Subscription | None:
        await self._reach()
        rows = self._tables.subscriptions
        same = (
            number
            for number, row in rows.items()
            if replace(row, id=0, events=subscription.events, mode=subscription.mode)
            == replace(subscription, id=0)
        )
        number = next(same, max(rows, default=0) + 1)
        others = sum(row.owner == subscription.owner and row.id != number for row in rows.values())
        if others >= MOST_SUBSCRIPTIONS:
            return None
        rows[number] = replace(subscription, id=number)
        return rows[number]

    async def unsubscribe(self, number: int) -> bool:
        await self._reach()
        return self._tables.subscriptions.pop(number, None) is not None

    async def announce_test(self, event: Event) -> None:
        await self._reach()
        self._tables.add([replace(event, at=time.time())])

    async def addresses(self, users: Sequence[str]) -> Mapping[str, str]:
        await self._reach()
        stored = self._tables.addresses
        return {user: stored[user] for user in users if user in stored}

    async def keep_address(self, user: str, address: str | None) -> None:
        await self._reach()
        if address is None:
            self._tables.addresses.pop(user, None)
        else:
            self._tables.addresses[user] = address

    async def _own(self, receiver: str, mode: Mode, by: str) -> MemoryCursor | None:
        await self._reach()
        cursor = self._tables.cursors.get((receiver, mode))
        return cursor if cursor is not None and cursor.claimed_by == by else None
