"""Events for receivers: written by the leader, delivered by any replica, and the subscriptions to them.

The outbox has one row for each event. Each receiver has a cursor, which a replica claims while it delivers. A claim and all bounds use
the database's clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import (
    Column,
    ColumnElement,
    CursorResult,
    Result,
    Select,
    and_,
    case,
    delete,
    func,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy import Row as Found
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from queuectl.db.bulk import Row, arrays, insert_rows
from queuectl.db.engine import storable
from queuectl.db.tables import (
    NOW,
    addresses,
    announced_budgets,
    leadership,
    notification_progress,
    notifications,
    subscriptions,
)
from queuectl.db.usage import Transaction
from queuectl.db.writes import fence
from queuectl.domain.notifications import (
    KEPT_SECONDS,
    MOST_KEPT,
    MOST_SUBSCRIPTIONS,
    BudgetLimit,
    Event,
    EventType,
    Mode,
    Progress,
    ReceiverStatus,
    Scope,
    Subscription,
)

BATCH: Final = 5000
"""Rows in one deletion. No commit waits for it."""
_n: Final = notifications.c
_p: Final = notification_progress.c
_s: Final = subscriptions.c
_COLUMNS: Final[tuple[Column[Any], ...]] = tuple(c for c in _n if c is not _n.id)
_INSERT: Final = insert_rows(notifications, _COLUMNS)
_END: Final = select(func.coalesce(func.max(_n.id), 0)).scalar_subquery()
_KNOWN_TYPES: Final = {each.value: each for each in EventType}


# ---- The leader


async def add(connection: AsyncConnection, events: Sequence[Event]) -> None:
    """Append events. The caller holds the lock of the fence, so the events become visible in the order of their ids."""
    if events:
        await connection.execute(_INSERT, arrays(_COLUMNS, [_row(event) for event in events]))


async def announce(connection: AsyncConnection, events: Sequence[Event], *, epoch: int) -> None:
    """Append events that belong to no commit.

    Raises:
        Fenced: another leader has taken over.
    """
    await fence(connection, epoch)
    await add(connection, events)


async def announce_budgets(
    connection: AsyncConnection, announcements: Mapping[BudgetLimit, Event], *, epoch: int
) -> None:
    """Append the event of each of these limits that was not written before.

    Raises:
        Fenced: another leader has taken over.
    """
    await fence(connection, epoch)
    for limit, event in announcements.items():
        row = {
            "budget": storable(limit.budget),
            "month": limit.month,
            "percent": limit.percent,
            "at": event.at,
        }
        new = insert(announced_budgets).values(row).on_conflict_do_nothing()
        if (await connection.execute(new.returning(announced_budgets.c.percent))).all():
            await add(connection, [event])


async def prune(connection: AsyncConnection) -> int:
    """Delete at most :data:`BATCH` events that all receivers are past, or that no receiver gets. Returns their number.

    An event that is too old, or that too many newer ones follow, counts as dropped for each receiver that is not past it. The progress
    of a receiver that was removed is deleted.
    """
    await connection.execute(delete(notification_progress).where(_abandoned()))
    limit = await _beyond(connection, 0, KEPT_SECONDS, MOST_KEPT)
    behind = select(notification_progress).where(_p.line < limit).with_for_update()
    for row in (await connection.execute(behind)).all():
        await _drop(connection, row, limit)
    passed = select(func.min(_p.line)).scalar_subquery()
    settled = select(_n.id).where(_n.id <= func.coalesce(passed, limit))
    oldest = settled.order_by(_n.id).limit(BATCH)
    deleted: CursorResult[Any] = await connection.execute(
        delete(notifications).where(_n.id.in_(oldest))
    )
    month = delete(announced_budgets).where(announced_budgets.c.at < NOW - _ANNOUNCED_SECONDS)
    await connection.execute(month)
    return deleted.rowcount


_ANNOUNCED_SECONDS: Final = 70 * 86400.0
"""How long the limits are kept of which events were written: longer than the month that they belong to."""


def _abandoned() -> ColumnElement[bool]:
    """Whether no replica has claimed a receiver since before the time of an event that is too old now."""
    long_ago = NOW - KEPT_SECONDS
    waits = select(_n.id).where(_n.id > _p.line, _n.at < long_ago).exists()
    missed = or_(waits, _p.dropped_since < long_ago)
    return and_(func.greatest(_p.claimed_at, _p.retry_at) < long_ago, missed)


# ---- Delivery


class NotificationTables:
    """:class:`queuectl.domain.notifications.NotificationStore` over the connections of a store. Methods can raise StoreUnavailable."""

    def __init__(self, transaction: Transaction, statement: Transaction) -> None:
        """``statement``: for one that is a transaction by itself."""
        self._transaction = transaction
        self._statement = statement

    async def claim(
        self, receivers: Sequence[tuple[str, Mode]], by: str, seconds: float
    ) -> Progress | None:
        """See the Protocol."""
        if not receivers:
            return None
        names = [(storable(name), mode.value) for name, mode in receivers]
        async with self._transaction("claiming a receiver") as connection:
            await _begin(connection, names)
            due = claimable(names, by)
            row = (await connection.execute(due)).first()
            if row is None:
                return None
            values = {"claimed_by": by, "claimed_until": NOW + seconds, "claimed_at": NOW}
            own = update(notification_progress).where(_is(row.receiver, row.mode)).values(values)
            claimed = await connection.execute(own.returning(notification_progress))
            return _progress(claimed.one())

    async def extend(self, receiver: str, mode: Mode, by: str, seconds: float) -> bool:
        """See the Protocol."""
        return await self._change(receiver, mode, by, claimed_until=NOW + seconds)

    async def events(self, after: int, limit: int) -> Sequence[Event]:
        """See the Protocol."""
        # A newer release can write other types.
        readable = _n.id > after, _n.type.in_(sorted(_KNOWN_TYPES))
        async with self._statement("reading events") as connection:
            selected = select(notifications).where(*readable).order_by(_n.id).limit(limit)
            return tuple(_event(row) for row in await connection.execute(selected))

    async def drop_beyond(
        self, receiver: str, mode: Mode, by: str, *, max_age: float, max_rows: int
    ) -> Progress | None:
        """See the Protocol."""
        own = select(notification_progress).where(_is(receiver, mode), _p.claimed_by == by)
        async with self._transaction("dropping events") as connection:
            row = (await connection.execute(own.with_for_update())).first()
            if row is None:
                return None
            limit = await _beyond(connection, row.line, max_age, max_rows)
            if limit <= row.line:
                return _progress(row)
            return _progress(await _drop(connection, row, limit))

    async def settle(
        self, receiver: str, mode: Mode, by: str, line: int, *, delivered: int, reported: int
    ) -> bool:
        """See the Protocol."""
        none_left = _p.dropped <= reported
        dropped: dict[str, Any] = {
            "dropped": func.greatest(_p.dropped - reported, 0),
            "dropped_since": case((none_left, None), else_=_p.dropped_since),
            "dropped_until": case((none_left, None), else_=_p.dropped_until),
        }
        return await self._change(
            receiver,
            mode,
            by,
            line=func.greatest(_p.line, line),
            delivered=_p.delivered + delivered,
            failures=0,
            error="",
            **(dropped if reported else {}),
        )

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
        """See the Protocol."""
        await self._change(
            receiver,
            mode,
            by,
            claimed_by=by if keep_seconds else None,
            claimed_until=NOW + seconds + keep_seconds if keep_seconds else None,
            retry_at=NOW + seconds,
            failures=_p.failures + (1 if error else 0),
            error=storable(error),
        )

    async def release(self, receiver: str, mode: Mode, by: str) -> None:
        """See the Protocol."""
        await self._change(receiver, mode, by, claimed_by=None, claimed_until=None)

    async def _change(self, receiver: str, mode: Mode, by: str, **columns: Any) -> bool:
        """Write to a cursor while the claim is the caller's. Returns whether it was."""
        own = update(notification_progress).where(_is(receiver, mode), _p.claimed_by == by)
        async with self._statement("writing the progress of a receiver") as connection:
            changed: CursorResult[Any] = await connection.execute(own.values(columns))
            return bool(changed.rowcount)

    async def statuses(self) -> Sequence[ReceiverStatus]:
        """See the Protocol."""
        waiting = select(func.count()).where(_n.id > _p.line).scalar_subquery()
        age = select(NOW - _n.at).where(_n.id > _p.line).order_by(_n.id).limit(1)
        counts = waiting.label("waiting"), age.scalar_subquery().label("oldest_age")
        all_rows = select(notification_progress, *counts)
        async with self._statement("reading the progress of receivers") as connection:
            rows = (await connection.execute(all_rows.order_by(_p.receiver, _p.mode))).all()
        return tuple(
            ReceiverStatus(
                receiver=row.receiver,
                mode=Mode(row.mode),
                waiting=row.waiting,
                oldest_age=row.oldest_age,
                delivered=row.delivered,
                dropped=row.dropped,
                failures=row.failures,
                error=row.error,
                retry_at=row.retry_at or None,
            )
            for row in rows
        )

    # -- Subscriptions and addresses

    async def subscriptions(self, receiver: str) -> Sequence[Subscription]:
        """See the Protocol."""
        return await self._subscriptions(_s.receiver == receiver)

    async def subscriptions_of(self, owner: str) -> Sequence[Subscription]:
        """See the Protocol."""
        return await self._subscriptions(_s.owner == owner)

    async def subscription(self, number: int) -> Subscription | None:
        """See the Protocol."""
        return next(iter(await self._subscriptions(_s.id == number)), None)

    async def all_subscriptions(self, after: int, limit: int) -> Sequence[Subscription]:
        """See the Protocol."""
        return await self._subscriptions(_s.id > after, limit)

    async def subscribe(self, subscription: Subscription) -> Subscription | None:
        """See the Protocol."""
        row = {
            "owner": storable(subscription.owner),
            "scope": subscription.scope.value,
            "target": storable(subscription.target),
            "receiver": storable(subscription.receiver),
            "events": sorted(each.value for each in subscription.events),
            "mode": subscription.mode.value,
        }
        new = insert(subscriptions).values(row)
        replaced = {"events": new.excluded.events, "mode": new.excluded.mode}
        stored = new.on_conflict_do_update(constraint="subscriptions_owner_key", set_=replaced)
        same = and_(*(_s[name] == row[name] for name in ("scope", "target", "receiver")))
        others = select(func.count()).where(_s.owner == row["owner"], ~same)
        one_at_a_time = func.pg_advisory_xact_lock(func.hashtext(f"subscriptions {row['owner']}"))
        async with self._transaction("writing a subscription") as connection:
            await connection.execute(select(one_at_a_time))
            if (await connection.scalars(others)).one() >= MOST_SUBSCRIPTIONS:
                return None
            return _subscription(
                (await connection.execute(stored.returning(*subscriptions.c))).one()
            )

    async def unsubscribe(self, number: int) -> bool:
        """See the Protocol."""
        async with self._statement("deleting a subscription") as connection:
            gone: CursorResult[Any] = await connection.execute(
                delete(subscriptions).where(_s.id == number)
            )
            return bool(gone.rowcount)

    async def _subscriptions(
        self, condition: ColumnElement[bool], limit: int | None = None
    ) -> tuple[Subscription, ...]:
        selected = select(subscriptions).where(condition).order_by(_s.id).limit(limit)
        async with self._statement("reading subscriptions") as connection:
            rows: Result[Any] = await connection.execute(selected)
            # A newer release can write other types; without any, all types would count as selected.
            return tuple(
                _subscription(row)
                for row in rows
                if not row.events or not _KNOWN_TYPES.keys().isdisjoint(row.events)
            )

    async def announce_test(self, event: Event) -> None:
        """See the Protocol."""
        # The lock of the fence, under any epoch: ids become visible in their order.
        fence_row = select(NOW).select_from(leadership).with_for_update(key_share=True)
        async with self._transaction("writing a test event") as connection:
            at = float((await connection.scalars(fence_row)).one())
            await add(connection, [replace(event, at=at)])

    async def addresses(self, users: Sequence[str]) -> Mapping[str, str]:
        """See the Protocol."""
        c = addresses.c
        verified = select(c.user, c.address).where(c.user.in_(sorted(set(users))))
        async with self._statement("reading addresses") as connection:
            return {row.user: row.address for row in await connection.execute(verified)}

    async def keep_address(self, user: str, address: str | None) -> None:
        """See the Protocol."""
        c = addresses.c
        async with self._statement("writing an address") as connection:
            if address is None:
                await connection.execute(delete(addresses).where(c.user == user))
                return
            row = {"user": storable(user), "address": storable(address), "verified_at": NOW}
            new = insert(addresses).values(row)
            changed = {"address": new.excluded.address, "verified_at": new.excluded.verified_at}
            await connection.execute(
                new.on_conflict_do_update(index_elements=[c.user], set_=changed)
            )


def claimable(names: Collection[tuple[str, str]], by: str) -> Select[Any]:
    """The cursor of these that waits longest and that this replica can claim. It locks the row."""
    free = or_(_p.claimed_until.is_(None), _p.claimed_until <= NOW, _p.claimed_by == by)
    work = or_(_p.line < _END, _p.dropped > 0)
    asked = tuple_(_p.receiver, _p.mode).in_(sorted(names))
    due = select(notification_progress).where(asked, free, _p.retry_at <= NOW, work)
    longest = due.order_by(func.coalesce(_p.claimed_at, 0.0), _p.receiver, _p.mode).limit(1)
    return longest.with_for_update(skip_locked=True)


async def _begin(connection: AsyncConnection, names: Iterable[tuple[str, str]]) -> None:
    """Add the cursors that do not exist, at the end of the outbox."""
    keys = select(_p.receiver, _p.mode)
    existing = {(row.receiver, row.mode) for row in await connection.execute(keys)}
    for receiver, mode in sorted({*names} - existing):
        row = {"receiver": receiver, "mode": mode, "line": _END, "retry_at": 0.0, "error": ""}
        row |= dict.fromkeys(("failures", "delivered", "dropped"), 0)
        await connection.execute(insert(notification_progress).values(row).on_conflict_do_nothing())


async def _beyond(connection: AsyncConnection, line: int, max_age: float, max_rows: int) -> int:
    """The id of the last event after ``line`` that is beyond the bounds; ``line`` without one."""
    after = _n.id > line
    too_many = select(_n.id).where(after).order_by(_n.id.desc()).offset(max_rows).limit(1)
    limit = int(await connection.scalar(too_many) or line)
    oldest = select(_n.at < NOW - max_age).where(_n.id > limit).order_by(_n.id).limit(1)
    if await connection.scalar(oldest):
        old = select(func.max(_n.id)).where(_n.id > limit, _n.at < NOW - max_age)
        limit = int(await connection.scalar(old) or limit)
    return limit


async def _drop(connection: AsyncConnection, row: Found[Any], limit: int) -> Found[Any]:
    """Move a cursor past the events up to ``limit``, which count as dropped. Returns its new row."""
    passed = select(func.count(), func.min(_n.at), func.max(_n.at))
    between = passed.where(_n.id > row.line, _n.id <= limit)
    count, since, until = (await connection.execute(between)).one()
    values = {
        "line": limit,
        "dropped": row.dropped + count,
        "dropped_since": func.least(_p.dropped_since, since),
        "dropped_until": func.greatest(_p.dropped_until, until),
    }
    moved = update(notification_progress).where(_is(row.receiver, row.mode)).values(values)
    return (await connection.execute(moved.returning(*notification_progress.c))).one()


# ---- Rows


def _is(receiver: str, mode: Mode | str) -> ColumnElement[bool]:
    return and_(_p.receiver == receiver, _p.mode == str(mode))


def _row(event: Event) -> Row:
    return {
        "at": event.at,
        "type": event.type.value,
        "kind": storable(event.kind),
        "namespace": storable(event.namespace),
        "name": storable(event.name),
        "uid": storable(event.uid),
        "cluster_queue": storable(event.cluster_queue),
        "user": storable(event.user),
        "receivers": list(event.receivers),
        "message": storable(event.message),
        "details": event.details,
    }


def _event(row: Found[Any]) -> Event:
    values = row._asdict() | {"type": _KNOWN_TYPES[row.type], "receivers": tuple(row.receivers)}
    return Event(**values)


def _progress(row: Found[Any]) -> Progress:
    return Progress(
        receiver=row.receiver,
        mode=Mode(row.mode),
        line=row.line,
        failures=row.failures,
        dropped=row.dropped,
        dropped_since=row.dropped_since,
        dropped_until=row.dropped_until,
        claimed_at=row.claimed_at,
    )


def _subscription(row: Found[Any]) -> Subscription:
    return Subscription(
        owner=row.owner,
        scope=Scope(row.scope),
        target=row.target,
        receiver=row.receiver,
        events=frozenset(_KNOWN_TYPES[name] for name in row.events if name in _KNOWN_TYPES),
        mode=Mode(row.mode),
        id=row.id,
    )
