"""Reads for reports: sums over the hours of the usage ledger by group, and past workloads with their hours and lost work for traces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, TypeAlias

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    Subquery,
    case,
    cast,
    func,
    or_,
    select,
    tuple_,
)
from sqlalchemy import Row as Result
from sqlalchemy.ext.asyncio import AsyncConnection

from queuectl.db.bulk import any_of
from queuectl.db.reads import rows_of
from queuectl.db.rows import ENTRY_COLUMNS
from queuectl.db.tables import (
    WHOLE,
    usage_cluster,
    usage_containers,
    usage_curves,
    usage_fleet,
    usage_hours,
    usage_losses,
    usage_progress,
    usage_subjects,
    workloads,
)
from queuectl.db.usage_days import (
    AMOUNTS,
    OF_HOURS,
    Columns,
    Summed,
    days_for,
    in_scope,
    queue_hours,
    summed_days,
    touched_days,
    units,
    usage_rows,
)
from queuectl.domain.accounting import HOUR, UNITS, Amounts, ClusterAmounts, LostWorkSum
from queuectl.domain.budgets import Budget, BudgetScope, Month, SpentUnits
from queuectl.domain.job_usage import ContainerSums, JobUsage
from queuectl.domain.past_jobs import RecordedWorkload, UsedHour
from queuectl.domain.usage_reports import (
    ALL_USAGE,
    MOST_COMPARED,
    MOST_ROWS,
    AllocatedBefore,
    By,
    ComparedReport,
    FleetRow,
    Grouping,
    Period,
    QueueHour,
    Report,
    ReportRow,
    UsageHours,
    UsagePoint,
    UsageScope,
    check_size,
    without,
)
from queuectl.domain.use_curve import UseCurve

# ---- The usage ledger by group

_OF_WORKLOAD: Final = (
    *("namespace", "kind", "name", "uid"),
    *("queue", "cluster_queue", "cohort", "user"),
)
_LABELS: Final = "labels"


async def make(
    connection: AsyncConnection, period: Period, grouping: Grouping, scope: UsageScope
) -> Report:
    """The report as of one snapshot; the caller's transaction must be REPEATABLE READ.

    Raises:
        BadInput: it has more than :data:`~queuectl.domain.usage_reports.MOST_ROWS` rows.
    """
    as_of = await connection.scalar(select(usage_progress.c.until))
    summed = await _summed(connection, period, grouping, scope)
    await _check_workloads(connection, period, grouping, scope, MOST_ROWS)
    names = _key_names(grouping)
    lost = await _lost(connection, period, grouping, scope)
    limited = hours_by(period, grouping, scope, summed).limit(MOST_ROWS + 1)
    found = (await connection.execute(limited)).all()
    check_size(len(found), grouping, MOST_ROWS)
    rows = tuple(_row(row, names, lost.get(_key(row, names), {})) for row in found)
    return Report(
        period, grouping, as_of, rows, *await _nodes(connection, period, scope), groups=len(rows)
    )


async def _summed(
    connection: AsyncConnection, period: Period, grouping: Grouping, scope: UsageScope
) -> Summed:
    """The days of which a report by these groups can read the sums."""
    if grouping.by is By.WORKLOAD:
        return ()
    return await days_for(connection, period, _columns_of(grouping), scope, HOUR)


async def _check_workloads(
    connection: AsyncConnection, period: Period, grouping: Grouping, scope: UsageScope, most: int
) -> None:
    """Raises BadInput when a report by workload has more than ``most`` of them."""
    if grouping.by is By.WORKLOAD:
        days = await summed_days(connection, period)
        check_size(await connection.scalar(workloads_of(period, scope, days)) or 0, grouping, most)


async def _nodes(
    connection: AsyncConnection, period: Period, scope: UsageScope
) -> tuple[tuple[FleetRow, ...], ClusterAmounts | None]:
    if not scope.everything:
        return (), None
    fleet = (await connection.execute(_fleet(period))).all()
    sums = (await connection.execute(_cluster(period))).one()
    return tuple(FleetRow(*row) for row in fleet), ClusterAmounts(
        *(int(total or 0) for total in sums)
    )


_Lost: TypeAlias = dict[tuple[str, ...], dict[str, LostWorkSum]]


async def _lost(
    connection: AsyncConnection,
    period: Period,
    grouping: Grouping,
    scope: UsageScope,
    groups: Sequence[Result[Any]] | None = None,
) -> _Lost:
    """The lost work by group and reason, of all groups or of these. Lost work has no price."""
    if grouping.by is By.PRICE:
        return {}
    statement = losses_by(period, grouping, scope)
    if groups is not None:
        statement = statement.where(_among(_of_losses(grouping), grouping, groups))
    names = _key_names(grouping)
    return _by_group(await connection.execute(statement), names)


def _by_group(rows: Iterable[Result[Any]], names: tuple[str, ...]) -> _Lost:
    lost: _Lost = {}
    for row in rows:
        of = lost.setdefault(_key(row, names), {})
        of[row.reason] = LostWorkSum(row.gpu_seconds, row.evictions)
    return lost


# ---- The largest groups, and the period before


async def compared(
    connection: AsyncConnection, period: Period, grouping: Grouping, scope: UsageScope, most: int
) -> ComparedReport:
    """The largest groups with the period before and the course, as of one snapshot, like :func:`make`.

    Raises:
        BadInput: it is by workload, and has more than :data:`~queuectl.domain.usage_reports.MOST_COMPARED` of them.
    """
    await _check_workloads(connection, period, grouping, scope, MOST_COMPARED)
    report = await _largest(connection, period, grouping, scope, most)
    since = await connection.scalar(_first_hour())
    before = None
    if since is not None and period.before(report.as_of).since >= since:
        before = await _before(connection, report, scope)
    days = await days_for(connection, period, ("hour",), scope, period.step)
    points = await connection.execute(course_of(period, scope, days))
    course = tuple(UsagePoint(at, _amounts(sums)) for at, *sums in points)
    return ComparedReport(report, since, before, course, period.step)


async def _largest(
    connection: AsyncConnection, period: Period, grouping: Grouping, scope: UsageScope, most: int
) -> Report:
    as_of = await connection.scalar(select(usage_progress.c.until))
    summed = await _summed(connection, period, grouping, scope)
    names = _key_names(grouping)
    listed = (await connection.execute(largest(period, grouping, scope, most, summed))).all()
    groups = listed[0].groups if listed else 0
    lost = await _lost(connection, period, grouping, scope, listed)
    rows = tuple(_row(row, names, lost.get(_key(row, names), {})) for row in listed)
    unlisted = None
    if groups > len(rows):
        whole = listed[0]  # each row has the sums of all groups
        all_lost: _Lost = {}
        if grouping.by is not By.PRICE:
            all_lost = _by_group(await connection.execute(_losses_of_all(period, scope)), ())
        amounts = _amounts(whole[-len(AMOUNTS) :])
        workloads = None if grouping.repeats_workloads else int(whole.all_workloads)
        total = ReportRow({}, amounts, workloads, all_lost.get((), {}))
        unlisted = without(total, rows)
    nodes = await _nodes(connection, period, scope)
    return Report(period, grouping, as_of, rows, *nodes, unlisted=unlisted, groups=groups)


def largest(
    period: Period,
    grouping: Grouping,
    scope: UsageScope,
    most: int,
    summed: Summed = (),
) -> Select[Any]:
    """The statement behind the largest groups: each row has the sums of all groups, so that the hours are read once."""
    rows = hours_by(period, grouping, scope, summed).order_by(None).subquery()
    names = [rows.c[name] for name in _key_names(grouping)]
    sums = [func.sum(rows.c[name]).over().label(f"all_{name}") for name in AMOUNTS]
    return (
        select(
            rows,
            func.count().over().label("groups"),
            func.sum(rows.c.workloads).over().label("all_workloads"),
            *sums,
        )
        .order_by(rows.c.allocated.desc(), rows.c.waited.desc(), *names)
        .limit(most)
    )


def _among(
    columns: Mapping[str, ColumnElement[Any]], grouping: Grouping, rows: Sequence[Result[Any]]
) -> ColumnElement[bool]:
    """Whether a row belongs to one of these groups. The uid identifies a workload; a row for each of its queues is in the report."""
    if grouping.by is By.WORKLOAD:
        return usage_subjects.c.uid.in_({row.uid for row in rows})
    return tuple_(*columns.values()).in_([tuple(row[: len(columns)]) for row in rows])


def _losses_of_all(period: Period, scope: UsageScope) -> Select[Any]:
    reason = usage_losses.c.reason
    return _losses(period, scope, [], of_subjects=False).group_by(reason)


async def _before(
    connection: AsyncConnection, report: Report, scope: UsageScope
) -> AllocatedBefore:
    period, grouping = report.period.before(report.as_of), report.grouping
    summed = await summed_days(connection, period)
    wanted = [tuple(row.names.values()) for row in report.rows] if grouping.recurs else []
    rows = usage_rows(period, _columns_of(grouping) if wanted else (), scope, summed).c
    names: list[ColumnElement[Any]] = []
    if wanted:
        columns = _names(rows, rows, grouping).values()
        names = [case((tuple_(*columns).in_(wanted), column)) for column in columns]
    allocated = func.coalesce(func.sum(rows.allocated), 0)
    found = await connection.execute(select(allocated, *names).group_by(*names))
    groups = {tuple(of): int(amount) for amount, *of in found}
    total = sum(groups.values())
    unlisted = tuple(None for _ in names)  # all groups that the report does not list
    groups.pop(unlisted, None)
    return AllocatedBefore(period, total, groups)


def course_of(period: Period, scope: UsageScope, summed: Summed = ()) -> Select[Any]:
    """The statement behind the course; the tests pin its plan. ``summed``: as of :func:`days_for`."""
    rows = usage_rows(period, ("hour",), scope, summed, period.step)
    at = rows.c.hour
    return select(at, *_sums_of(rows)).group_by(at).order_by(at)


def _first_hour() -> Select[Any]:
    """The first hour in which free GPUs were sampled. Hours of workloads can be earlier: those that were there before the ledger."""
    return select(func.min(usage_fleet.c.hour))


# ---- Hours of the LocalQueues


async def hours(connection: AsyncConnection, period: Period) -> UsageHours:
    """The hours of each LocalQueue as of one snapshot; the caller's transaction must be REPEATABLE READ."""
    as_of = await connection.scalar(select(usage_progress.c.until))
    rows = await connection.execute(queue_hours(period, await touched_days(connection, period)))
    capacity = await connection.execute(_capacities(period))
    return UsageHours(
        as_of,
        tuple(QueueHour(*row) for row in rows),
        {hour: units / UNITS for hour, units in capacity},
    )


def _spent_in(
    scope: BudgetScope, holders: Collection[str], period: Period, summed: Summed
) -> Select[Any]:
    """Units that these spenders used in a period, by name; the tests pin its plan."""
    names = _OF_SPENDERS[scope]
    rows = usage_rows(period, names, summed=summed).c
    spender = func.concat_ws("/", *(rows[name] for name in names))
    return (
        select(spender, func.sum(rows.allocated))
        .where(spender.in_(sorted(holders)))
        .group_by(spender)
    )


_OF_SPENDERS: Final = {
    BudgetScope.CLUSTER_QUEUE: ("cluster_queue",),
    BudgetScope.LOCAL_QUEUE: ("namespace", "queue"),
    BudgetScope.NAMESPACE: ("namespace",),
    BudgetScope.USER: ("user",),
}


async def spent(connection: AsyncConnection, budgets: Iterable[Budget], at: float) -> SpentUnits:
    """The use of budgets in the month of a time; the caller's transaction must be REPEATABLE READ."""
    until = await connection.scalar(select(usage_progress.c.until))
    asked: dict[tuple[BudgetScope, Month], list[Budget]] = {}
    for budget in budgets:
        asked.setdefault((budget.scope, budget.month(at)), []).append(budget)
    units: dict[tuple[str, int], int] = {}
    for (scope, month), those in asked.items():
        period = Period(month.begins, month.ends)
        days = await summed_days(connection, period)
        rows = await connection.execute(_spent_in(scope, {b.holder for b in those}, period, days))
        found = {name: int(total) for name, total in rows}
        units |= {(b.name, month.begins): found.get(b.holder, 0) for b in those}
    return SpentUnits(until, units)


def _capacities(period: Period) -> Select[Any]:
    """Hour to the GPUs that can be in use, in units."""
    c = usage_cluster.c
    of_period = (c.hour >= period.since, c.hour < period.until)
    return select(c.hour, c.physical - c.unhealthy).where(*of_period, c.physical > 0)


# ---- Statements


def hours_by(
    period: Period,
    grouping: Grouping,
    scope: UsageScope = ALL_USAGE,
    summed: Summed = (),
) -> Select[Any]:
    """The statement behind the rows; the tests pin its plan."""
    rows = usage_rows(period, (*_columns_of(grouping), "uid"), scope, summed)
    names = [column.label(name) for name, column in _names(rows.c, rows.c, grouping).items()]
    counts = {By.FLAVOR: rows.c.by_flavor, By.PRICE: rows.c.by_price}
    workloads = _workloads(rows, counts.get(grouping.by, rows.c.workloads))
    return (
        select(*names, *_sums_of(rows), workloads.label("workloads"))
        .group_by(*names)
        .order_by(*names)
    )


def workloads_of(period: Period, scope: UsageScope, summed: Summed) -> Select[Any]:
    """The number of workloads of a period."""
    rows = usage_rows(period, ("uid",), scope, summed)
    return select(_workloads(rows, rows.c.workloads))


def _workloads(rows: Subquery, counts: ColumnElement[int]) -> ColumnElement[int]:
    """The workloads with a uid, and those of the counts. PostgreSQL adds up big integers as numeric values."""
    return func.count(rows.c.uid.distinct()) + func.coalesce(cast(func.sum(counts), BigInteger), 0)


def _sums_of(rows: Subquery) -> list[ColumnElement[Any]]:
    return [func.sum(rows.c[name]).label(name) for name in AMOUNTS]


def losses_by(period: Period, grouping: Grouping, scope: UsageScope = ALL_USAGE) -> Select[Any]:
    """Losses by group and reason."""
    names = list(_of_losses(grouping).values())
    keys = [*names, usage_losses.c.reason]
    rows = _losses(period, scope, names, of_subjects=not {*_columns_of(grouping)} <= {*OF_HOURS})
    return rows.group_by(*keys).order_by(*keys)


def _losses(
    period: Period, scope: UsageScope, names: Sequence[ColumnElement[Any]], *, of_subjects: bool
) -> Select[Any]:
    """Names, reason and sums of losses. Subjects are read if a name or the scope is of them: PostgreSQL reads all of them for many losses."""
    x = usage_losses.c
    rows = select(*names, x.reason, *_loss_sums()).where(
        x.hour >= period.since, x.hour < period.until
    )
    if scope.everything and not of_subjects:
        return rows
    joined = rows.join_from(usage_losses, usage_subjects, usage_subjects.c.id == x.subject)
    return in_scope(scope, joined, usage_subjects.c)


def _loss_sums() -> list[ColumnElement[Any]]:
    x = usage_losses.c
    return [
        func.sum(x.gpu_seconds).label("gpu_seconds"),
        cast(func.sum(x.evictions), x.evictions.type).label("evictions"),
    ]


def _of_losses(grouping: Grouping) -> Mapping[str, ColumnElement[Any]]:
    return _names(usage_subjects.c, usage_losses.c, grouping)


def _columns_of(grouping: Grouping) -> tuple[str, ...]:
    """The columns of a subject or of an hour that distinguish groups."""
    match grouping.by:
        case By.WORKLOAD:
            names: tuple[str, ...] = (*_OF_WORKLOAD, _LABELS)
        case By.QUEUE:
            names = ("namespace", "queue")
        case By.CLUSTER_QUEUE:
            names = ("cluster_queue",)
        case By.LABEL:
            names = (_LABELS,)
        case by:
            names = (by.value,)
    return (By.HOUR.value, *names) if grouping.hourly else names


def _key_names(grouping: Grouping) -> tuple[str, ...]:
    return tuple(_names(usage_subjects.c, usage_hours.c, grouping))


def _names(subject: Columns, row: Columns, grouping: Grouping) -> Mapping[str, ColumnElement[Any]]:
    """Columns that distinguish groups."""
    columns = {name: (row if name in OF_HOURS else subject)[name] for name in _columns_of(grouping)}
    if grouping.by is By.LABEL:
        label = columns.pop(_LABELS)[grouping.label].astext
        columns["label"] = func.coalesce(label, "")
    return columns


def _key(row: Result[Any], names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(str, row[: len(names)]))


def _row(row: Result[Any], names: tuple[str, ...], lost: Mapping[str, LostWorkSum]) -> ReportRow:
    values = dict(zip(names, row, strict=False))
    labels = values.pop(_LABELS, {})
    amounts = _amounts(row[len(names) : len(names) + len(AMOUNTS)])
    named = {name: str(value) for name, value in values.items()}
    return ReportRow(named, amounts, row.workloads, lost, labels)


def _amounts(sums: Sequence[Any]) -> Amounts:
    totals = zip(AMOUNTS, sums, strict=True)
    return Amounts(*(int(total) if name in WHOLE else total for name, total in totals))


def _cluster(period: Period) -> Select[Any]:
    c = usage_cluster.c
    sums = (func.sum(c[name]) for name in ("physical", "unallocated", "unmanaged", "unhealthy"))
    return select(*sums).where(c.hour >= period.since, c.hour < period.until)


def _fleet(period: Period) -> Select[Any]:
    f = usage_fleet.c
    names = ("seconds", "capacity", "free", "fragmented", "stranded", "inside")
    return (
        select(f.flavor, *(func.sum(f[name]) for name in names))
        .where(f.hour >= period.since, f.hour < period.until)
        .group_by(f.flavor)
        .order_by(f.flavor)
    )


# ---- One workload


async def job_usage(connection: AsyncConnection, uid: str) -> JobUsage:
    """The sums of one workload; the caller's transaction must be REPEATABLE READ."""
    s, h, x = usage_subjects.c, usage_hours.c, usage_losses.c
    by_flavor = (
        select(h.flavor, *(func.sum(units(name)) for name in AMOUNTS))
        .join_from(usage_hours, usage_subjects, h.subject == s.id)
        .where(s.uid == uid, h.flavor != "")
        .group_by(h.flavor)
        .order_by(h.flavor)
    )
    lost = (
        select(func.sum(x.gpu_seconds))
        .join_from(usage_losses, usage_subjects, x.subject == s.id)
        .where(s.uid == uid)
    )
    measured = select(*(usage_containers.c[f.name] for f in fields(ContainerSums)))
    row = (await connection.execute(measured.where(usage_containers.c.uid == uid))).first()
    return JobUsage(
        await connection.scalar(select(usage_progress.c.until)),
        {flavor: _amounts(sums) for flavor, *sums in await connection.execute(by_flavor)},
        float(await connection.scalar(lost) or 0.0),
        ContainerSums(*row) if row is not None else None,
        (await curves(connection, [uid])).get(uid),
    )


async def curves(connection: AsyncConnection, uids: Iterable[str]) -> dict[str, UseCurve]:
    """The utilization over time of the workloads among these that have one, by uid."""
    found = select(usage_curves).where(usage_curves.c.uid == any_of(uids))
    rows = await connection.execute(found)
    return {uid: UseCurve.stored(*curve) for uid, *curve in rows}


# ---- Past workloads


def started(period: Period, after: str, limit: int) -> Select[Any]:
    """The statement behind :func:`page`: by uid, so that the primary key serves each page."""
    w = workloads.c
    return (
        select(*ENTRY_COLUMNS)
        .where(
            w.uid > after,
            w.attempt > 0,
            w.queued_at < period.until,
            or_(w.finished_at.is_(None), w.finished_at > period.since),
        )
        .order_by(w.uid)
        .limit(limit)
    )


async def page(
    connection: AsyncConnection, period: Period, after: str, limit: int
) -> tuple[RecordedWorkload, ...]:
    """The workloads with larger uids that were started, and were there in the period."""
    entries = await rows_of(connection, started(period, after, limit))
    parameters = {"uids": [entry.uid for entry in entries]}
    s = usage_subjects.c
    mine = s.uid == any_of()
    h, lost = usage_hours.c, usage_losses.c
    at = func.greatest(h.hour, period.since - HOUR).label("at")
    hourly = (
        select(s.uid, at, *(func.sum(h[name]) for name in ("allocated", "used", "unknown")))
        .join_from(usage_hours, usage_subjects, h.subject == s.id)
        .where(mine, h.hour < period.until)
        .group_by(s.uid, at)
        .order_by(s.uid, at)
    )
    losses = (
        select(s.uid, func.sum(lost.gpu_seconds))
        .join_from(usage_losses, usage_subjects, lost.subject == s.id)
        .where(mine, lost.hour >= period.since, lost.hour < period.until)
        .group_by(s.uid)
    )
    counted = await connection.scalar(select(usage_progress.c.until))
    complete = counted is not None and counted >= period.until
    hours: dict[str, list[UsedHour]] = defaultdict(list)
    for uid, *amounts in await connection.execute(hourly, parameters):
        hours[uid].append(UsedHour(*amounts))
    lost_by: dict[str, float] = {
        row[0]: row[1] for row in await connection.execute(losses, parameters)
    }
    return tuple(
        RecordedWorkload(entry, lost_by.get(entry.uid, 0.0), tuple(hours[entry.uid]), complete)
        for entry in entries
    )
