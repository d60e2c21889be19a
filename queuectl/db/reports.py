"""Reads for reports: sums over the hours of the usage ledger by group, and past workloads with their hours and lost work for traces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, TypeAlias

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    Select,
    bindparam,
    cast,
    func,
    literal_column,
    or_,
    select,
    tuple_,
)
from sqlalchemy import Row as Result
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import Text

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
from queuectl.domain.accounting import Amounts, ClusterAmounts, LostWorkSum
from queuectl.domain.budgets import Budget, BudgetScope, Month, SpentUnits
from queuectl.domain.job_usage import ContainerSums, JobUsage
from queuectl.domain.past_jobs import RecordedWorkload, UsedHour
from queuectl.domain.usage_reports import (
    ALL_USAGE,
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

_AMOUNTS: Final = tuple(Amounts.__slots__)
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
    names = tuple(_names(usage_hours, grouping))
    lost = await _lost(connection, period, grouping, scope)
    limited = hours_by(period, grouping, scope).limit(MOST_ROWS + 1)
    found = (await connection.execute(limited)).all()
    check_size(len(found), grouping)
    rows = tuple(_row(row, names, lost.get(_key(row, names), {})) for row in found)
    return Report(
        period, grouping, as_of, rows, *await _nodes(connection, period, scope), groups=len(rows)
    )


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
        statement = statement.where(_among(usage_losses, grouping, groups))
    names = tuple(_names(usage_losses, grouping))
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
    """The largest groups with the period before and the course, as of one snapshot, like :func:`make`."""
    report = await _largest(connection, period, grouping, scope, most)
    since = await connection.scalar(_first_hour())
    before = None
    if since is not None and period.before(report.as_of).since >= since:
        before = await _before(connection, report, scope)
    points = await connection.execute(course_of(period, scope))
    course = tuple(UsagePoint(at, _amounts(sums)) for at, *sums in points)
    return ComparedReport(report, since, before, course, period.step)


async def _largest(
    connection: AsyncConnection, period: Period, grouping: Grouping, scope: UsageScope, most: int
) -> Report:
    as_of = await connection.scalar(select(usage_progress.c.until))
    names = tuple(_names(usage_hours, grouping))
    listed = (await connection.execute(largest(period, grouping, scope, most))).all()
    groups = listed[0].groups if listed else 0
    lost = await _lost(connection, period, grouping, scope, listed)
    rows = tuple(_row(row, names, lost.get(_key(row, names), {})) for row in listed)
    unlisted = None
    if groups > len(rows):
        whole = listed[0]  # each row has the sums of all groups
        all_lost: _Lost = {}
        if grouping.by is not By.PRICE:
            all_lost = _by_group(await connection.execute(_losses_of_all(period, scope)), ())
        amounts = _amounts(whole[-len(_AMOUNTS) :])
        total = ReportRow({}, amounts, int(whole.all_workloads), all_lost.get((), {}))
        unlisted = without(total, rows)
    nodes = await _nodes(connection, period, scope)
    return Report(period, grouping, as_of, rows, *nodes, unlisted=unlisted, groups=groups)


def largest(period: Period, grouping: Grouping, scope: UsageScope, most: int) -> Select[Any]:
    """The statement behind the largest groups: each row has the sums of all groups, so that the hours are read once."""
    rows = hours_by(period, grouping, scope).order_by(None).subquery()
    names = [rows.c[name] for name in _names(usage_hours, grouping)]
    sums = [func.sum(rows.c[name]).over().label(f"all_{name}") for name in _AMOUNTS]
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
    table: FromClause, grouping: Grouping, rows: Sequence[Result[Any]]
) -> ColumnElement[bool]:
    """Whether a row belongs to one of these groups. The uid identifies a workload; a row for each of its queues is in the report."""
    if grouping.by is By.WORKLOAD:
        return usage_subjects.c.uid.in_({row.uid for row in rows})
    columns = _names(table, grouping)
    return tuple_(*columns.values()).in_([tuple(row[: len(columns)]) for row in rows])


def _losses_of_all(period: Period, scope: UsageScope) -> Select[Any]:
    x = usage_losses.c
    return _of(
        scope,
        select(x.reason, *_loss_sums())
        .select_from(usage_losses.join(usage_subjects, usage_subjects.c.id == x.subject))
        .where(x.hour >= period.since, x.hour < period.until)
        .group_by(x.reason),
    )


async def _before(
    connection: AsyncConnection, report: Report, scope: UsageScope
) -> AllocatedBefore:
    period, grouping = report.period.before(report.as_of), report.grouping
    h = usage_hours.c
    units = func.coalesce(_total("allocated"), 0)
    inside = select(units).select_from(_HELD).where(h.hour >= period.since, h.hour < period.until)
    total = await connection.scalar(_of(scope, inside))
    columns = _names(usage_hours, grouping)
    groups: dict[tuple[str, ...], int] = {}
    if report.rows and grouping.recurs:
        wanted = [tuple(row.names.values()) for row in report.rows]
        of_groups = inside.add_columns(*columns.values()).group_by(*columns.values())
        among = tuple_(*columns.values()).in_(wanted)
        for amount, *names in await connection.execute(_of(scope, of_groups.where(among))):
            groups[tuple(map(str, names))] = int(amount)
    return AllocatedBefore(period, int(total or 0), groups)


def course_of(period: Period, scope: UsageScope) -> Select[Any]:
    """The statement behind the course; the tests pin its plan."""
    h = usage_hours.c
    at = (h.hour - h.hour % literal_column(str(period.step))).label("at")
    return _of(
        scope,
        select(at, *map(_total, _AMOUNTS))
        .select_from(_HELD)
        .where(h.hour >= period.since, h.hour < period.until)
        .group_by(at)
        .order_by(at),
    )


def _first_hour() -> Select[Any]:
    """Each is the first entry of an index."""
    first = (select(func.min(t.c.hour)).scalar_subquery() for t in (usage_hours, usage_fleet))
    return select(func.least(*first))


# ---- Hours of the LocalQueues


async def hours(connection: AsyncConnection, period: Period) -> UsageHours:
    """The hours of each LocalQueue as of one snapshot; the caller's transaction must be REPEATABLE READ."""
    as_of = await connection.scalar(select(usage_progress.c.until))
    rows = await connection.execute(hours_of_queues(period))
    capacity = await connection.execute(_capacities(period))
    return UsageHours(
        as_of,
        tuple(QueueHour(*row) for row in rows),
        {hour: gpus for hour, gpus in capacity if gpus is not None},
    )


def hours_of_queues(period: Period) -> Select[Any]:
    """The statement behind :func:`hours`; the tests pin its plan."""
    h, s = usage_hours.c, usage_subjects.c
    keys = (h.hour, s.namespace, s.queue, s.cluster_queue)
    sums = (func.sum(h[name]) for name in ("allocated", "used", "unknown", "waited"))
    return (
        select(*keys, *sums)
        .select_from(usage_hours.join(usage_subjects, s.id == h.subject))
        .where(h.hour >= period.since, h.hour < period.until)
        .group_by(*keys)
        .order_by(*keys)
    )


def _spent_in(scope: BudgetScope, holders: Collection[str], period: Period) -> Select[Any]:
    """Units that these spenders used in a period, by name; the tests pin its plan."""
    s, h = usage_subjects.c, usage_hours.c
    names = {
        BudgetScope.CLUSTER_QUEUE: s.cluster_queue,
        BudgetScope.LOCAL_QUEUE: s.namespace + "/" + s.queue,
        BudgetScope.NAMESPACE: s.namespace,
        BudgetScope.USER: s.user,
    }
    return (
        select(names[scope], _total("allocated"))
        .select_from(usage_hours.join(usage_subjects, s.id == h.subject))
        .where(h.hour >= period.since, h.hour < period.until, names[scope].in_(sorted(holders)))
        .group_by(names[scope])
    )


async def spent(connection: AsyncConnection, budgets: Iterable[Budget], at: float) -> SpentUnits:
    """The use of budgets in the month of a time; the caller's transaction must be REPEATABLE READ."""
    until = await connection.scalar(select(usage_progress.c.until))
    asked: dict[tuple[BudgetScope, Month], list[Budget]] = {}
    for budget in budgets:
        asked.setdefault((budget.scope, budget.month(at)), []).append(budget)
    units: dict[tuple[str, int], int] = {}
    for (scope, month), those in asked.items():
        period = Period(month.begins, month.ends)
        rows = await connection.execute(_spent_in(scope, {b.holder for b in those}, period))
        found = {name: int(total) for name, total in rows}
        units |= {(b.name, month.begins): found.get(b.holder, 0) for b in those}
    return SpentUnits(until, units)


def _capacities(period: Period) -> Select[Any]:
    """Hour to the GPUs of nodes that take pods, over all flavors."""
    f = usage_fleet.c
    average = func.sum(f.capacity / func.nullif(f.seconds, 0))
    return (
        select(f.hour, average)
        .where(f.hour >= period.since, f.hour < period.until)
        .group_by(f.hour)
    )


# ---- Statements


_HELD: Final = usage_hours.join(usage_subjects, usage_subjects.c.id == usage_hours.c.subject)


def hours_by(period: Period, grouping: Grouping, scope: UsageScope = ALL_USAGE) -> Select[Any]:
    """The statement behind the rows; the tests pin its plan."""
    sums = [_total(name).label(name) for name in _AMOUNTS]
    workloads = func.count(usage_subjects.c.uid.distinct()).label("workloads")
    return _of(scope, _grouped(usage_hours, [*sums, workloads], (), period, grouping))


def _total(name: str) -> ColumnElement[Any]:
    """The exact sum of whole units, or of money."""
    column = usage_hours.c[name]
    if name not in WHOLE:
        return func.sum(column)
    return func.sum(cast(func.round(column * WHOLE[name]), BigInteger))


def losses_by(period: Period, grouping: Grouping, scope: UsageScope = ALL_USAGE) -> Select[Any]:
    """Losses by group and reason."""
    reason = usage_losses.c.reason
    return _of(scope, _grouped(usage_losses, _loss_sums(), (reason,), period, grouping))


def _loss_sums() -> list[ColumnElement[Any]]:
    x = usage_losses.c
    return [
        func.sum(x.gpu_seconds).label("gpu_seconds"),
        cast(func.sum(x.evictions), x.evictions.type).label("evictions"),
    ]


def _of(scope: UsageScope, statement: Select[Any]) -> Select[Any]:
    s = usage_subjects.c
    if scope.namespaces is not None:
        statement = statement.where(s.namespace.in_(sorted(scope.namespaces)))
    if scope.cluster_queue is not None:
        statement = statement.where(s.cluster_queue == scope.cluster_queue)
    if scope.user is not None:
        statement = statement.where(s.user == scope.user)
    return statement


def _grouped(
    table: FromClause,
    sums: Iterable[ColumnElement[Any]],
    more: Iterable[ColumnElement[Any]],
    period: Period,
    grouping: Grouping,
) -> Select[Any]:
    names = list(_names(table, grouping).values())
    keys = [*names, *more]
    return (
        select(*keys, *sums)
        .select_from(table.join(usage_subjects, usage_subjects.c.id == table.c.subject))
        .where(table.c.hour >= period.since, table.c.hour < period.until)
        .group_by(*keys)
        .order_by(*keys)
    )


def _names(table: FromClause, grouping: Grouping) -> Mapping[str, ColumnElement[Any]]:
    """Columns that distinguish groups."""
    names = _group_columns(table, grouping)
    return {By.HOUR.value: table.c.hour, **names} if grouping.hourly else names


def _group_columns(table: FromClause, grouping: Grouping) -> Mapping[str, ColumnElement[Any]]:
    s = usage_subjects.c
    match grouping.by:
        case By.WORKLOAD:
            return {name: s[name] for name in (*_OF_WORKLOAD, _LABELS)}
        case By.QUEUE:
            return {"namespace": s.namespace, "queue": s.queue}
        case By.CLUSTER_QUEUE:
            return {"cluster_queue": s.cluster_queue}
        case By.COHORT | By.NAMESPACE | By.USER:
            return {grouping.by.value: s[grouping.by.value]}
        case By.LABEL:
            value = func.coalesce(s.labels[grouping.label].astext, "")
            return {"label": value.label("label")}
        case By.FLAVOR | By.PRICE | By.HOUR:
            return {grouping.by.value: table.c[grouping.by.value]}


def _key(row: Result[Any], names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(str, row[: len(names)]))


def _row(row: Result[Any], names: tuple[str, ...], lost: Mapping[str, LostWorkSum]) -> ReportRow:
    values = dict(zip(names, row, strict=False))
    labels = values.pop(_LABELS, {})
    amounts = _amounts(row[len(names) : len(names) + len(_AMOUNTS)])
    named = {name: str(value) for name, value in values.items()}
    return ReportRow(named, amounts, row.workloads, lost, labels)


def _amounts(sums: Sequence[Any]) -> Amounts:
    totals = zip(_AMOUNTS, sums, strict=True)
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
        select(h.flavor, *map(_total, _AMOUNTS))
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
    wanted = cast(bindparam("uids", list(uids), type_=_TEXTS), _TEXTS)
    rows = await connection.execute(
        select(usage_curves).where(usage_curves.c.uid == func.any(wanted))
    )
    return {uid: UseCurve.stored(*curve) for uid, *curve in rows}


# ---- Past workloads

_TEXTS: Final[ARRAY[str]] = ARRAY(Text())


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
    mine = s.uid == func.any(cast(bindparam("uids", type_=_TEXTS), _TEXTS))
    h, lost = usage_hours.c, usage_losses.c
    hourly = (
        select(s.uid, h.hour, *(func.sum(h[name]) for name in ("allocated", "used", "unknown")))
        .join_from(usage_hours, usage_subjects, h.subject == s.id)
        .where(mine)
        .group_by(s.uid, h.hour)
        .order_by(s.uid, h.hour)
    )
    losses = (
        select(s.uid, func.sum(lost.gpu_seconds))
        .join_from(usage_losses, usage_subjects, lost.subject == s.id)
        .where(mine)
        .group_by(s.uid)
    )
    hours: dict[str, list[UsedHour]] = defaultdict(list)
    for uid, *amounts in await connection.execute(hourly, parameters):
        hours[uid].append(UsedHour(*amounts))
    lost_by: dict[str, float] = {
        row[0]: row[1] for row in await connection.execute(losses, parameters)
    }
    return tuple(
        RecordedWorkload(entry, lost_by.get(entry.uid, 0.0), tuple(hours[entry.uid]))
        for entry in entries
    )
