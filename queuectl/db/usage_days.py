"""Sums of days of the usage ledger, so that a report of a month and a chart of a week read few rows.

``usage_summed`` lists the days that have sums, and the time up to which they have them: the end of the day, or of a part of the current day.
A trigger deletes a day from it, and with it the sums, in the transaction that changes one of its hours before that time, whichever process writes.
Reports read all other hours. A sum is exact or absent.

A report counts each workload once, however many days it has. ``usage_days`` therefore counts a workload only if all its rows are in the hours
of one sum and of one subject, and if it has ended. Rows of all other workloads are in ``usage_spanning``, by which a report counts them. A
workload that was counted and gets a row of other hours takes its day from ``usage_summed``.

``usage_queue_days`` has the sums of ``usage_days`` over all users and labels, which most reports do not name.

``usage_queues`` has the sums of each LocalQueue for each of the same hours. It counts a workload once in each hour, and only if it has one
subject. Rows of the others are in ``usage_spanning``, where they are ``moved``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    CompoundSelect,
    Double,
    Insert,
    Select,
    Subquery,
    Table,
    and_,
    bindparam,
    case,
    cast,
    delete,
    exists,
    false,
    func,
    insert,
    literal,
    literal_column,
    null,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from queuectl.db.tables import (
    COUNTS,
    WHOLE,
    usage_days,
    usage_hours,
    usage_meters,
    usage_progress,
    usage_queue_days,
    usage_queues,
    usage_spanning,
    usage_subjects,
    usage_summed,
)
from queuectl.domain.accounting import HOUR, UNITS, Amounts
from queuectl.domain.estimates import DAY
from queuectl.domain.usage_reports import ALL_USAGE, Period, UsageScope

AMOUNTS: Final = tuple(Amounts.__slots__)
_SETTLED_SECONDS: Final = 3600
"""After the end of a part of a day: marks that come later are few."""
_WORK_MEMORY: Final = "64MB"  # to join and sort the hours of a day of 100,000 gangs without files
_LENGTH: Final = int(DAY)
_PART: Final = _LENGTH // 8  # to add up the current day eight times takes 4.5 times as long as once
_NAMES: Final = ("namespace", "queue", "cluster_queue", "cohort", "user", "labels")
_UID, _HOUR = "uid", "hour"
_OWN: Final = ("kind", "name", _UID)  # columns of a subject that its day does not have
_NOTHING: Final = (null(),) * len((*AMOUNTS, *COUNTS))
OF_HOURS: Final = (_HOUR, "flavor", "price")
_QUEUE: Final = ("namespace", "queue", "cluster_queue")
_OF_QUEUE: Final = (*_QUEUE, "cohort")
_WITHOUT_USERS: Final = {*_OF_QUEUE, *OF_HOURS, _UID}
Columns: TypeAlias = ReadOnlyColumnCollection[str, Any]


class SummedDay(NamedTuple):
    """A day that has sums. ``until``: of the hours before this time."""

    day: int
    until: int


Summed: TypeAlias = Sequence[SummedDay]
"""Days in their order."""
_OF_QUEUES: Final = ("allocated", "used", "unknown", "waited")


def units(name: str) -> ColumnElement[Any]:
    """An amount of an hour as whole units, or as money."""
    column = usage_hours.c[name]
    return cast(func.round(column * WHOLE[name]), BigInteger) if name in WHOLE else column


# ---- Reading


async def allow_memory(connection: AsyncConnection) -> None:
    """Let the rest of the transaction sum up many hours in memory."""
    await connection.execute(select(func.set_config("work_mem", _WORK_MEMORY, True)))


async def days_for(
    connection: AsyncConnection, period: Period, names: Sequence[str], scope: UsageScope, step: int
) -> Summed:
    """The days of whose sums :func:`usage_rows` can make rows by these columns, in the caller's snapshot."""
    if not _hourly(names, step):
        return await summed_days(connection, period)
    return await touched_days(connection, period) if _without_users(names, scope) else ()


def _without_users(names: Sequence[str], scope: UsageScope) -> bool:
    """Whether sums over all users and labels are enough for rows by these columns."""
    return set(names) <= _WITHOUT_USERS and scope.user is None


def _hourly(names: Sequence[str], step: int) -> bool:
    return _HOUR in names and step == HOUR


async def summed_days(connection: AsyncConnection, period: Period) -> Summed:
    """The days whose sums are of hours inside a period, in the caller's snapshot."""
    sums = usage_summed.c
    return await _days(connection, sums.day >= period.since, sums.until <= period.until)


async def touched_days(connection: AsyncConnection, period: Period) -> Summed:
    """The days whose sums have at least an hour of a period, in the caller's snapshot."""
    sums = usage_summed.c
    return await _days(connection, sums.until > period.since, sums.day < period.until)


async def _days(connection: AsyncConnection, *where: ColumnElement[bool]) -> Summed:
    sums = usage_summed.c
    rows = await connection.execute(select(sums.day, sums.until).where(*where).order_by(sums.day))
    return tuple(SummedDay(*row) for row in rows)


def usage_rows(
    period: Period,
    names: Sequence[str],
    scope: UsageScope = ALL_USAGE,
    summed: Summed = (),
    step: int = HOUR,
) -> Subquery:
    """The amounts of a period in units by some columns: of these days their sums, of all other hours the hours.

    ``names``: columns of a subject, ``flavor``, ``price``, or ``hour``, the start of ``step`` seconds. The same names can have several
    rows. With ``uid``, the rows also have :data:`COUNTS`, and ``uid`` is null where the workloads are in the counts. The hours of a subject
    are added up before its names are read, because most subjects have several rows.
    """
    parts = [_hours(period, names, scope, summed, step)]
    if summed and _hourly(names, step):
        q = usage_queues.c
        parts.append(_sums(q, q.hour, names, scope, _in_days(q, period, summed)))
        if _UID in names:
            parts.append(_moved(period, names, scope, summed))
    elif summed:
        d = (usage_queue_days if _without_users(names, scope) else usage_days).c
        parts.append(_sums(d, d.day, names, scope, _of_days(d, summed)))
        if _UID in names:
            parts.append(_spanning(names, scope, summed))
    return union_all(*parts).subquery("usage")


def in_scope(scope: UsageScope, statement: Select[Any], subject: Columns) -> Select[Any]:
    """Only rows of a scope. ``subject``: their columns of subjects."""
    if scope.namespaces is not None:
        statement = statement.where(subject.namespace.in_(sorted(scope.namespaces)))
    if scope.cluster_queue is not None:
        statement = statement.where(subject.cluster_queue == scope.cluster_queue)
    if scope.user is not None:
        statement = statement.where(subject.user == scope.user)
    return statement


def queue_hours(period: Period, touched: Summed = ()) -> CompoundSelect[Any]:
    """GPU-seconds of each LocalQueue in each hour, by hour and name: of these days from ``usage_queues``; the tests pin its plan.

    A sum of whole units is divided last, so that both parts state the same number.
    """
    q = usage_queues.c
    of_days = (q.hour, *(q[name] for name in _QUEUE))
    in_days = (
        select(*of_days, *(_gpu_seconds(func.sum(q[name])).label(name) for name in _OF_QUEUES))
        .where(_in_days(q, period, touched))
        .group_by(*of_days)
    )
    h, s = usage_hours.c, usage_subjects.c
    keys = (h.hour, *(s[name] for name in _QUEUE))
    others = (
        select(*keys, *(_gpu_seconds(func.sum(units(name))).label(name) for name in _OF_QUEUES))
        .join_from(usage_hours, usage_subjects, s.id == h.subject)
        .where(_outside(period, touched))
        .group_by(*keys)
    )
    return union_all(in_days, others).order_by("hour", *_QUEUE)


def _in_days(rows: Columns, period: Period, touched: Summed) -> ColumnElement[bool]:
    return and_(_of_days(rows, touched), rows.hour >= period.since, rows.hour < period.until)


def _of_days(rows: Columns, summed: Summed) -> ColumnElement[bool]:
    among: ColumnElement[bool] = rows.day.in_([one.day for one in summed])
    return among


def _gpu_seconds(whole: ColumnElement[Any]) -> ColumnElement[Any]:
    return cast(whole, Double) / float(UNITS)


def _outside(period: Period, summed: Summed) -> ColumnElement[bool]:
    """Whether an hour is in the period and in none of these sums."""
    hour = usage_hours.c.hour
    begins = [period.since, *(one.until for one in summed)]
    ends = [*(one.day for one in summed), period.until]
    spans = [(b, e) for b, e in zip(begins, ends, strict=True) if b < e]
    return or_(false(), *(and_(hour >= begin, hour < end) for begin, end in spans))


def _hours(
    period: Period, names: Sequence[str], scope: UsageScope, summed: Summed, step: int
) -> Select[Any]:
    h, s = usage_hours.c, usage_subjects.c
    hour = h.hour if step == HOUR else h.hour - h.hour % literal_column(str(step))
    own: dict[str, ColumnElement[Any]] = {
        name: hour if name == _HOUR else h[name] for name in names if name in OF_HOURS
    }
    of_subjects = len(own) < len(names)
    counts = [literal(0, BigInteger).label(name) for name in COUNTS if _UID in names]
    sums = [func.sum(units(name)).label(name) for name in AMOUNTS]
    columns: list[ColumnElement[Any]]
    if not scope.everything:  # its subjects are few
        columns = [own[name].label(name) if name in own else s[name] for name in names]
        rows = select(*columns, *sums, *counts).join_from(
            usage_hours, usage_subjects, s.id == h.subject
        )
        keys = [*([s.id] if of_subjects else []), *own.values()]
        return in_scope(scope, rows, s).where(_outside(period, summed)).group_by(*keys)
    by = {"subject": h.subject, **own} if of_subjects else own
    each = (
        select(*(key.label(name) for name, key in by.items()), *sums)
        .where(_outside(period, summed))
        .group_by(*by.values())
        .subquery("each")
    )
    columns = [each.c[name] if name in own else s[name] for name in names]
    rows = select(*columns, *(each.c[name] for name in AMOUNTS), *counts)
    return rows.join_from(each, usage_subjects, s.id == each.c.subject) if of_subjects else rows


def _sums(
    table: Columns,
    begin: ColumnElement[int],
    names: Sequence[str],
    scope: UsageScope,
    inside: ColumnElement[bool],
) -> Select[Any]:
    """Rows of a table of sums.

    Args:
        table: its columns.
        begin: the one for the hour.
        names: as of :func:`usage_rows`.
        scope: of the rows.
        inside: which rows are in the period.
    """
    keys = {name: begin if name == _HOUR else table[name] for name in names if name not in _OWN}
    summed_up = [*AMOUNTS, *(COUNTS if _UID in names else ())]
    rows = select(
        *(keys.get(name, null()) for name in names), *(func.sum(table[name]) for name in summed_up)
    )
    return in_scope(scope, rows, table).where(inside).group_by(*keys.values())


def _spanning(names: Sequence[str], scope: UsageScope, summed: Summed) -> Select[Any]:
    """Rows without amounts, which are in the sums. They have the names of their subjects, of which there are many."""
    x = usage_spanning.c
    columns = (x.day if name == _HOUR else x[name] for name in names)
    return in_scope(scope, select(*columns, *_NOTHING), x).where(_of_days(x, summed))


def _moved(period: Period, names: Sequence[str], scope: UsageScope, touched: Summed) -> Select[Any]:
    """Rows without amounts of the workloads that the sums of hours do not count."""
    h, x = usage_hours.c, usage_spanning.c
    columns = (h.hour if name == _HOUR else x[name] for name in names)
    same = and_(*(h[name] == x[name] for name in ("subject", "flavor", "price")))
    of_day = and_(h.hour >= x.day, h.hour < x.day + _LENGTH)
    rows = select(*columns, *_NOTHING).join_from(usage_spanning, usage_hours, and_(same, of_day))
    inside = and_(_of_days(x, touched), h.hour >= period.since, h.hour < period.until)
    return in_scope(scope, rows, x).where(x.moved, inside)


# ---- Adding up a day


async def add_up(connection: AsyncConnection, now: float, since: float) -> bool:
    """Add up the newest day without sums, or without those of a complete part, that begins at ``since`` or later (unix seconds).

    Foldings wait until it has ended, because a change that this transaction does not see would otherwise leave wrong sums. One that waits
    longer than the lock timeout fails and is repeated. Commits of the leader do not wait.

    Returns:
        Whether there was one.
    """
    until = await _exclude_changes(connection)
    settled = min(now, until or 0.0) - _SETTLED_SECONDS
    due = (await connection.execute(_next_day(settled, since))).first()
    if due is None:
        return False
    day = SummedDay(*due)
    await allow_memory(connection)
    await connection.execute(delete(usage_summed).where(usage_summed.c.day == day.day))
    for statement in (
        insert(usage_summed),
        _INSERT_SPANNING,
        _INSERT_SUMS,
        _INSERT_QUEUE_DAYS,
        _INSERT_QUEUES,
    ):
        await connection.execute(statement, day._asdict())
    return True


async def _exclude_changes(connection: AsyncConnection) -> float | None:
    """Let the other writers of hours wait until the end of the transaction. Returns the time up to which hours are complete."""
    locked = update(usage_progress).values(until=usage_progress.c.until)
    until: float | None = await connection.scalar(locked.returning(usage_progress.c.until))
    return until


async def forget(connection: AsyncConnection, before: float) -> float:
    """Delete the sums of the oldest day that began before ``before``, before its hours are deleted in this transaction.

    A day can have a row for each workload, so one statement cannot delete all days of a year. The deletion and the adding up of a day wait
    for each other, because two leaders can do both at once.

    Returns:
        The time, at most ``before``, before which no hour is in a sum.
    """
    await _exclude_changes(connection)
    first = select(func.min(usage_summed.c.day)).scalar_subquery()
    c = usage_summed.c
    await connection.execute(delete(usage_summed).where(c.day == first, c.day < before))
    kept: float | None = await connection.scalar(select(func.min(c.day)))
    return before if kept is None else min(before, kept)


def _next_day(settled: float, since: float) -> Select[Any]:
    """The hours are looked up one day at a time, because there are many."""
    until = int(settled) // _PART * _PART
    first = func.greatest(
        select(func.min(usage_hours.c.hour)).scalar_subquery(), int(since + _LENGTH - 1)
    )
    first_day = first - first % _LENGTH
    days = func.generate_series(until // _LENGTH * _LENGTH, first_day, -_LENGTH)
    begin = days.column_valued("begins")
    end = func.least(begin + _LENGTH, until)
    summed = exists().where(usage_summed.c.day == begin, usage_summed.c.until >= end)
    return select(begin, end).where(begin < until, ~summed).order_by(begin.desc()).limit(1)


_DAY: Final = bindparam("day", type_=BigInteger)
_UNTIL: Final = bindparam("until", type_=BigInteger)


def _summed(hour: ColumnElement[int]) -> ColumnElement[bool]:
    return and_(hour >= _DAY, hour < _UNTIL)


def _insert_spanning() -> Insert:
    h, s = usage_hours.c, usage_subjects.c
    present = select(h.subject, h.flavor, h.price).where(_summed(h.hour)).distinct().cte("present")
    other, elsewhere = usage_subjects.alias("other"), usage_hours.alias("elsewhere")
    # With EXISTS, PostgreSQL reads whole tables and not the rows of each workload.
    runs, moved, other_days = (
        rows.limit(1).scalar_subquery().is_not(None)
        for rows in (
            select(usage_meters.c.uid).where(usage_meters.c.uid == s.uid),
            select(other.c.id).where(other.c.uid == s.uid, other.c.id != s.id),
            select(elsewhere.c.subject).where(
                elsewhere.c.subject == s.id, ~_summed(elsewhere.c.hour)
            ),
        )
    )
    rows = (
        select(
            *(_DAY, present.c.subject, present.c.flavor, present.c.price),
            *(s[name] for name in ("uid", *_NAMES)),
            moved,
        )
        .join_from(present, usage_subjects, s.id == present.c.subject)
        .where(or_(runs, moved, other_days))
    )
    return insert(usage_spanning).from_select(list(usage_spanning.c), rows)


def _insert_sums() -> Insert:
    h, x = usage_hours.c, usage_spanning.c
    place = (h.subject, h.flavor, h.price)
    sums = [func.sum(units(name)).label(name) for name in AMOUNTS]
    each = select(*place, *sums).where(_summed(h.hour)).group_by(*place).subquery("each")
    spans = exists().where(x.day == _DAY, x.subject == each.c.subject)
    return _insert_counted(usage_days, each, spans, _NAMES, ("flavor", "price"))


def _insert_queue_days() -> Insert:
    d = usage_days.c
    keys = [d[name] for name in ("day", *_OF_QUEUE, "flavor", "price")]
    sums = (func.sum(d[name]) for name in (*AMOUNTS, *COUNTS))
    rows = select(*keys, *sums).where(d.day == _DAY).group_by(*keys)
    columns = [*(key.name for key in keys), *AMOUNTS, *COUNTS]
    return insert(usage_queue_days).from_select(columns, rows)


def _insert_queues() -> Insert:
    h, x = usage_hours.c, usage_spanning.c
    amounts = [units(name).label(name) for name in AMOUNTS]
    each = (
        select(h.subject, h.hour, h.flavor, h.price, *amounts)
        .where(_summed(h.hour))
        .subquery("each")
    )
    moved = exists().where(x.day == _DAY, x.subject == each.c.subject, x.moved)
    return _insert_counted(usage_queues, each, moved, _OF_QUEUE, OF_HOURS)


def _insert_counted(
    into: Table,
    each: Subquery,
    left_out: ColumnElement[bool],
    names: Sequence[str],
    own: Sequence[str],
) -> Insert:
    """Sums of a day by some columns.

    Args:
        into: the table.
        each: amounts of workloads: one row for each subject and for each value of ``own``.
        left_out: rows of workloads that are not counted.
        names: columns of subjects.
        own: columns of ``each``. The last two are the flavor and the price. Workloads are counted for each value of the others.
    """
    s, e, before = usage_subjects.c, each.c, [each.c[name] for name in own[:-2]]

    def first(*among: ColumnElement[Any]) -> ColumnElement[int]:
        """1 for one of the rows of a workload, among those with the same flavor or price; 0 for the others."""
        number = func.row_number().over(
            partition_by=(*before, e.subject, *among), order_by=(e.flavor, e.price)
        )
        return case((number == 1, 1), else_=0)

    firsts = zip(COUNTS, (first(), first(e.flavor), first(e.price)), strict=True)
    numbered = (number.label(name) for name, number in firsts)
    counted = select(each, left_out.label("left_out"), *numbered).subquery("counted")
    keys = {name: s[name] for name in names} | {name: counted.c[name] for name in own}
    counts = {
        name: func.coalesce(func.sum(counted.c[name]).filter(~counted.c.left_out), 0)
        for name in COUNTS
    }
    columns: dict[str, ColumnElement[Any]] = {
        "day": _DAY,
        **keys,
        **{name: func.sum(counted.c[name]) for name in AMOUNTS},
        **counts,
    }
    rows = (
        select(*columns.values())
        .join_from(counted, usage_subjects, s.id == counted.c.subject)
        .group_by(*keys.values())
    )
    return insert(into).from_select(list(columns), rows)


_INSERT_SPANNING: Final = _insert_spanning()
_INSERT_SUMS: Final = _insert_sums()
_INSERT_QUEUE_DAYS: Final = _insert_queue_days()
_INSERT_QUEUES: Final = _insert_queues()
