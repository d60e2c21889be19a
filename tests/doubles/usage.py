"""The usage ledger in memory: the methods of :class:`queuectl.db.usage.UsageLedger` without a database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from uuid import UUID

from queuectl.domain.accounting import (
    HOUR,
    MILLISECONDS,
    UNITS,
    Amounts,
    ClusterAmounts,
    Free,
    HourKey,
    LossKey,
    LostWorkSum,
    Mark,
    Meter,
    Subject,
    UsageProgress,
    by_hour,
)
from queuectl.domain.budgets import Budget, Spender, SpentUnits
from queuectl.domain.errors import Fenced, StaleSnapshot
from queuectl.domain.folding import Fold
from queuectl.domain.job_usage import ContainerSums, JobUsage
from queuectl.domain.ledger import Entry
from queuectl.domain.past_jobs import FinishedRun, RecordedWorkload, UsedHour
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
    total_of,
)
from queuectl.domain.use_curve import UseCurve
from queuectl.state.durations import work_of

AMOUNTS = tuple(f.name for f in fields(Amounts))


@dataclass
class MemoryUsageTables:
    until: float | None = None
    number: int = 0
    begins: float | None = None
    marks: list[tuple[int, Mark]] = field(default_factory=list)
    meters: dict[str, Meter] = field(default_factory=dict)
    subjects: dict[UUID, Subject] = field(default_factory=dict)
    hours: dict[HourKey, Amounts] = field(default_factory=dict)
    losses: dict[LossKey, LostWorkSum] = field(default_factory=dict)
    fleet: dict[tuple[int, str], FleetRow] = field(default_factory=dict)
    cluster: dict[int, ClusterAmounts] = field(default_factory=dict)
    containers: dict[str, ContainerSums] = field(default_factory=dict)
    curves: dict[str, tuple[float, float, bytes]] = field(default_factory=dict)

    def note(self, mark: Mark) -> None:
        self.number += 1
        self.marks.append((self.number, mark))

    def skip(self, at: float) -> None:
        if self.until is not None:
            self.until = max(self.until, at)
        self.marks = [(number, replace(mark, at=at)) for number, mark in self.marks]


class MemoryUsage:
    """Same methods, errors and meanings as UsageLedger."""

    def __init__(
        self,
        reach: Callable[[], Awaitable[tuple[MemoryUsageTables, int]]],
        entries: Callable[[], Iterable[Entry]],
    ) -> None:
        """``reach``: the tables, and the epoch of the leader; ``entries``: all workloads."""
        self._reach = reach
        self._entries = entries

    async def progress(self) -> UsageProgress:
        tables, _ = await self._reach()
        return UsageProgress(tables.begins, tables.until, dict(tables.meters))

    async def marks(self, limit: int) -> tuple[tuple[int, Mark], ...]:
        tables, _ = await self._reach()
        return tuple(tables.marks[:limit])

    async def accounted(self, uids: Iterable[str]) -> frozenset[str]:
        tables, _ = await self._reach()
        return frozenset(uids) & {s.uid for s in tables.subjects.values()}

    async def curves(self, uids: Iterable[str]) -> Mapping[str, UseCurve]:
        tables, _ = await self._reach()
        return {uid: UseCurve.stored(*tables.curves[uid]) for uid in uids if uid in tables.curves}

    async def keep(
        self,
        fold: Fold,
        *,
        over: float | None,
        until: float,
        marks: Collection[int],
        epoch: int,
        free: Mapping[str, Free],
    ) -> None:
        tables, current = await self._reach()
        if epoch != current:
            raise Fenced(f"epoch {epoch} is over")
        if tables.until != over:
            raise StaleSnapshot("the usage ledger has been written in the meantime")
        last = max(marks, default=0)
        if sum(number <= last for number, _ in tables.marks) != len(marks):
            raise StaleSnapshot("marks of the usage ledger have been folded in the meantime")
        tables.begins = until if tables.begins is None else tables.begins
        tables.until = until
        tables.marks = [(number, mark) for number, mark in tables.marks if number > last]
        changed = {**tables.meters, **fold.meters}
        tables.meters = {uid: meter for uid, meter in changed.items() if meter is not None}
        tables.subjects |= fold.accounts.new
        for key, row in fold.hours.items():
            tables.hours[key] = added(tables.hours.get(key, Amounts()), row)
        for hour, part in fold.cluster.items():
            total = tables.cluster.setdefault(hour, ClusterAmounts())
            for f in fields(ClusterAmounts):
                setattr(total, f.name, getattr(total, f.name) + getattr(part, f.name))
        for uid, curve in fold.curves.items():
            tables.curves[uid] = (curve.begins, curve.spacing, curve.content)
        for key, lost in fold.losses.items():
            known = tables.losses.get(key, LostWorkSum())
            tables.losses[key] = LostWorkSum(
                known.gpu_seconds + lost.gpu_seconds, known.evictions + lost.evictions
            )
        for hour, span in by_hour(until if over is None else over, until):
            seconds = span / MILLISECONDS
            for flavor, one in free.items():
                was = tables.fleet.get((hour, flavor)) or FleetRow(flavor, 0, 0, 0, 0, 0, 0)
                tables.fleet[hour, flavor] = FleetRow(
                    flavor,
                    was.seconds + seconds,
                    was.capacity + seconds * one.capacity,
                    was.free + seconds * one.free,
                    was.fragmented + seconds * one.fragmented,
                    was.stranded + seconds * one.stranded,
                    was.inside + seconds * one.inside,
                )

    async def measured(
        self, sums: Mapping[str, ContainerSums], window: float, *, epoch: int
    ) -> None:
        tables, current = await self._reach()
        if epoch != current:
            raise Fenced(f"epoch {epoch} is over")
        for uid, new in sums.items():
            old = tables.containers.get(uid, ContainerSums(new.until - window))
            part = min(max((new.until - old.until) / window, 0.0), 1.0)
            grown = {
                f.name: getattr(old, f.name) + getattr(new, f.name) * part
                for f in fields(ContainerSums)
            }
            grown["until"] = max(old.until, new.until)
            grown["memory_peak"] = max(old.memory_peak, new.memory_peak)
            tables.containers[uid] = ContainerSums(**grown)

    async def job(self, uid: str) -> JobUsage:
        tables, _ = await self._reach()
        mine = {number for number, who in tables.subjects.items() if who.uid == uid}
        flavors: dict[str, Amounts] = {}
        for (_, who, flavor, _), amounts in sorted(tables.hours.items(), key=lambda row: row[0][2]):
            if who in mine and flavor:
                flavors[flavor] = added(flavors.get(flavor, Amounts()), amounts)
        lost = sum(one.gpu_seconds for (_, who, _, _), one in tables.losses.items() if who in mine)
        curve = (await self.curves([uid])).get(uid)
        return JobUsage(tables.until, flavors, float(lost), tables.containers.get(uid), curve)

    async def spent(self, budgets: Iterable[Budget], at: float) -> SpentUnits:
        tables, _ = await self._reach()
        units: dict[tuple[str, int], int] = {}
        for budget in budgets:
            month = budget.month(at)
            key = (budget.name, month.begins)
            units[key] = 0
            for (hour, number, _, _), amounts in tables.hours.items():
                who = tables.subjects[number]
                spender = Spender(who.cluster_queue, who.namespace, who.queue, who.user)
                if month.begins <= hour < month.ends and spender.of(budget.scope) == budget.holder:
                    units[key] += amounts.allocated
        return SpentUnits(tables.until, units)

    async def past_runs(self, most: int) -> tuple[FinishedRun, ...]:
        await self._reach()
        done = [(e.finished_at, e) for e in self._entries() if e.finished_at is not None]
        done = sorted((one for one in done if one[1].attempt), key=lambda one: one[0])
        return tuple(
            FinishedRun(work_of(e), e.past_seconds) for _, e in done[max(len(done) - most, 0) :]
        )

    async def prune(self, before: float, *, epoch: int) -> int:
        tables, current = await self._reach()
        if epoch != current:
            raise Fenced(f"epoch {epoch} is over")
        before_all = len(tables.hours) + len(tables.losses) + len(tables.fleet)
        tables.hours = {key: row for key, row in tables.hours.items() if key[0] >= before}
        tables.losses = {key: row for key, row in tables.losses.items() if key[0] >= before}
        tables.fleet = {key: row for key, row in tables.fleet.items() if key[0] >= before}
        live = tables.meters.keys() | {mark.uid for _, mark in tables.marks}
        needed = {subject for _, subject, _, _ in tables.hours}
        tables.subjects = {
            number: who
            for number, who in tables.subjects.items()
            if number in needed or who.uid in live
        }
        there = {who.uid for who in tables.subjects.values()}
        tables.containers = {uid: s for uid, s in tables.containers.items() if uid in there}
        tables.curves = {uid: c for uid, c in tables.curves.items() if uid in there}
        return before_all - len(tables.hours) - len(tables.losses) - len(tables.fleet)

    async def add_up(self, now: float, since: float, *, epoch: int) -> bool:
        """Reports of the double always add up the hours."""
        _, current = await self._reach()
        if epoch != current:
            raise Fenced(f"epoch {epoch} is over")
        return False

    async def recorded(
        self, period: Period, after: str, limit: int
    ) -> tuple[RecordedWorkload, ...]:
        tables, _ = await self._reach()
        found = [
            entry
            for entry in sorted(self._entries(), key=lambda entry: entry.uid)
            if entry.uid > after
            and entry.attempt
            and entry.queued_at < period.until
            and (entry.finished_at is None or entry.finished_at > period.since)
        ]
        return tuple(_recorded(entry, tables, period) for entry in found[:limit])

    async def hours(self, period: Period) -> UsageHours:
        tables, _ = await self._reach()
        sums: dict[tuple[int, str, str, str], Amounts] = {}
        for (hour, subject, _, _), amounts in tables.hours.items():
            if period.since <= hour < period.until:
                who = tables.subjects[subject]
                key = (hour, who.namespace, who.queue, who.cluster_queue)
                sums[key] = added(sums.get(key, Amounts()), amounts)
        rows = (
            QueueHour(
                *key, *(n / UNITS for n in (one.allocated, one.used, one.unknown, one.waited))
            )
            for key, one in sorted(sums.items())
        )
        return UsageHours(tables.until, tuple(rows), _capacities(tables, period))

    async def report(
        self, period: Period, grouping: Grouping, scope: UsageScope = ALL_USAGE
    ) -> Report:
        tables, _ = await self._reach()
        report = _report(tables, period, grouping, scope)
        check_size(len(report.rows), grouping, MOST_ROWS)
        return report

    async def compared(
        self, period: Period, grouping: Grouping, scope: UsageScope, most: int
    ) -> ComparedReport:
        tables, _ = await self._reach()
        report = _report(tables, period, grouping, scope)
        if grouping.by is By.WORKLOAD:
            check_size(len(report.rows), grouping, MOST_COMPARED)
        rows = sorted(
            report.rows,
            key=lambda row: (-row.amounts.allocated, -row.amounts.waited, *row.names.values()),
        )
        shown, others = tuple(rows[:most]), tuple(rows[most:])
        left = total_of(replace(report, rows=others)) if others else None
        first = min((hour for hour, _ in tables.fleet), default=None)
        before = None
        preceding = period.before(tables.until)
        if first is not None and preceding.since >= first:
            earlier = _report(tables, preceding, grouping, scope)
            known = {tuple(row.names.values()) for row in shown} if grouping.recurs else set()
            groups = {tuple(row.names.values()): row.amounts.allocated for row in earlier.rows}
            before = AllocatedBefore(
                preceding,
                total_of(earlier).amounts.allocated,
                {names: units for names, units in groups.items() if names in known},
            )
        hourly = _report(tables, period, Grouping(By.HOUR), scope)
        course: dict[int, Amounts] = {}
        for row in hourly.rows:
            hour = int(row.names["hour"])
            course.setdefault(hour - hour % period.step, Amounts()).add(row.amounts)
        points = tuple(UsagePoint(at, course[at]) for at in sorted(course))
        return ComparedReport(
            replace(report, rows=shown, unlisted=left), first, before, points, period.step
        )


def _report(
    tables: MemoryUsageTables, period: Period, grouping: Grouping, scope: UsageScope
) -> Report:
    rows: dict[tuple[str, ...], ReportRow] = {}
    workloads: dict[tuple[str, ...], set[str]] = {}
    for (hour, subject, flavor, price), amounts in tables.hours.items():
        who = tables.subjects[subject]
        if not period.since <= hour < period.until or not _inside(who, scope):
            continue
        names = _names(who, hour, flavor, price, grouping)
        labels = dict(who.labels) if grouping.by is By.WORKLOAD else {}
        key = (*names.values(), str(labels))
        row = rows.get(key) or ReportRow(names, Amounts(), labels=labels)
        workloads.setdefault(key, set()).add(who.uid)
        rows[key] = replace(row, amounts=added(row.amounts, amounts), workloads=len(workloads[key]))
    for (hour, subject, flavor, reason), lost in tables.losses.items():
        who = tables.subjects[subject]
        if not period.since <= hour < period.until or not _inside(who, scope):
            continue
        if grouping.by is By.PRICE:
            continue
        labels = dict(who.labels) if grouping.by is By.WORKLOAD else {}
        key = (*_names(who, hour, flavor, "", grouping).values(), str(labels))
        known = rows[key].losses.get(reason, LostWorkSum())
        total = LostWorkSum(known.gpu_seconds + lost.gpu_seconds, known.evictions + lost.evictions)
        rows[key] = replace(rows[key], losses={**rows[key].losses, reason: total})
    fleet: dict[str, FleetRow] = {}
    for (hour, flavor), one in tables.fleet.items():
        if period.since <= hour < period.until and scope.everything:
            was = fleet.get(flavor) or FleetRow(flavor, 0, 0, 0, 0, 0, 0)
            sums = (getattr(was, f.name) + getattr(one, f.name) for f in fields(FleetRow)[1:])
            fleet[flavor] = FleetRow(flavor, *sums)
    return Report(
        period,
        grouping,
        tables.until,
        tuple(rows[key] for key in sorted(rows)),
        tuple(fleet[name] for name in sorted(fleet)),
        _cluster(tables, period) if scope.everything else None,
        groups=len(rows),
    )


def _inside(who: Subject, scope: UsageScope) -> bool:
    return (
        (scope.namespaces is None or who.namespace in scope.namespaces)
        and scope.cluster_queue in (None, who.cluster_queue)
        and scope.user in (None, who.user)
    )


def _cluster(tables: MemoryUsageTables, period: Period) -> ClusterAmounts:
    total = ClusterAmounts()
    for hour, one in tables.cluster.items():
        if period.since <= hour < period.until:
            for f in fields(ClusterAmounts):
                setattr(total, f.name, getattr(total, f.name) + getattr(one, f.name))
    return total


def _capacities(tables: MemoryUsageTables, period: Period) -> dict[int, float]:
    return {
        hour: (one.physical - one.unhealthy) / UNITS
        for hour, one in tables.cluster.items()
        if period.since <= hour < period.until and one.physical
    }


def added(one: Amounts, other: Amounts) -> Amounts:
    return Amounts(*(getattr(one, name) + getattr(other, name) for name in AMOUNTS))


def _names(who: Subject, hour: int, flavor: str, price: str, grouping: Grouping) -> dict[str, str]:
    names = _group_of(who, hour, flavor, price, grouping)
    return {"hour": str(hour), **names} if grouping.hourly else names


def _group_of(
    who: Subject, hour: int, flavor: str, price: str, grouping: Grouping
) -> dict[str, str]:
    match grouping.by:
        case By.WORKLOAD:
            keys = ["namespace", "kind", "name", "uid", "queue", "cluster_queue", "cohort", "user"]
            return {key: getattr(who, key) for key in keys}
        case By.QUEUE:
            return {"namespace": who.namespace, "queue": who.queue}
        case By.CLUSTER_QUEUE:
            return {"cluster_queue": who.cluster_queue}
        case By.COHORT | By.NAMESPACE | By.USER:
            return {grouping.by.value: getattr(who, grouping.by.value)}
        case By.LABEL:
            return {"label": dict(who.labels).get(grouping.label, "")}
        case By.FLAVOR:
            return {"flavor": flavor}
        case By.PRICE:
            return {"price": price}
        case By.HOUR:
            return {"hour": str(hour)}


def _recorded(entry: Entry, tables: MemoryUsageTables, period: Period) -> RecordedWorkload:
    mine = {number for number, who in tables.subjects.items() if who.uid == entry.uid}
    lost = sum(
        one.gpu_seconds
        for (hour, who, _, _), one in tables.losses.items()
        if who in mine and period.since <= hour < period.until
    )
    hours: dict[int, Amounts] = {}
    for (hour, who, _, _), amounts in tables.hours.items():
        if who in mine and hour < period.until:
            at = max(hour, period.since - HOUR)
            hours[at] = added(hours.get(at, Amounts()), amounts)
    used = (
        UsedHour(hour, *(n / UNITS for n in (one.allocated, one.used, one.unknown)))
        for hour, one in sorted(hours.items())
    )
    complete = tables.until is not None and tables.until >= period.until
    return RecordedWorkload(entry, float(lost), tuple(used), complete)
