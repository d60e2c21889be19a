"""The usage ledger in Postgres: marks written by commits, and hours computed from them.

Folding does not lock the leader's epoch, so no commit waits for it. The row of ``usage_progress`` prevents that a span of time is
accounted for twice: it advances only from the start of the folding, in the transaction that writes the hours. Marks become visible in
the order of their ids, because commits do (see :mod:`queuectl.db.writes`). Thus the marks up to the last one that was read are
exactly those that were folded. If one of them is missing, this folding, or another one with the same marks, has been done.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Final
from uuid import UUID

from sqlalchemy import ColumnElement, Select, Table, bindparam, cast, delete, func, select, update
from sqlalchemy.dialects.postgresql import Insert
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import Double

from queuectl.db import reports, usage_days
from queuectl.db.bulk import TEXTS, Row, any_of, arrays, delete_rows, insert_rows
from queuectl.db.prune import forget_ended, prune_usage
from queuectl.db.tables import (
    WHOLE,
    usage_cluster,
    usage_containers,
    usage_curves,
    usage_fleet,
    usage_hours,
    usage_losses,
    usage_marks,
    usage_meters,
    usage_progress,
    usage_subjects,
    workloads,
)
from queuectl.db.writes import require_epoch
from queuectl.domain.accounting import (
    MILLISECONDS,
    FlavorGpus,
    Free,
    LostWork,
    Mark,
    Meter,
    Subject,
    UsagePhase,
    UsageProgress,
    by_hour,
)
from queuectl.domain.budgets import Budget, SpentUnits
from queuectl.domain.errors import StaleSnapshot
from queuectl.domain.folding import Fold
from queuectl.domain.gpus import PARTS, in_parts, of_parts
from queuectl.domain.job_usage import ContainerSums, JobUsage
from queuectl.domain.past_jobs import FinishedRun, GangProfile, RecordedWorkload
from queuectl.domain.usage_reports import (
    ALL_USAGE,
    ComparedReport,
    Grouping,
    Period,
    Report,
    UsageHours,
    UsageScope,
)
from queuectl.domain.use_curve import UseCurve

_DAY_SECONDS: Final = 120.0  # to add up a day of 100,000 gangs on a busy server: 8 s of one core
_AT_ONCE: Final = 1000  # rows of one statement: their preparation blocks the event loop
_MARK_COLUMNS: Final = tuple(c for c in usage_marks.c if c.name != "id")
_AT: Final = cast(["0"], TEXTS)  # of the document of a mark
_NOTE: Final = insert_rows(usage_marks, _MARK_COLUMNS)

Transaction = Callable[..., AbstractAsyncContextManager[AsyncConnection]]


async def note(connection: AsyncConnection, marks: Sequence[Mark]) -> None:
    """Write marks, in their order, in the transaction of the commit that they belong to."""
    if marks:
        await connection.execute(_NOTE, arrays(_MARK_COLUMNS, [_mark_row(m) for m in marks]))


async def is_behind(connection: AsyncConnection, accounted: int) -> bool:
    """Whether the usage ledger was complete until ``accounted`` (unix seconds) before, and no longer is."""
    return bool(await connection.scalar(select(usage_progress.c.until < accounted)))


async def skip(connection: AsyncConnection, at: float) -> None:
    """Account for nothing before ``at`` (unix seconds) that is not accounted for: no leader knows what ran in that time."""
    until = usage_progress.c.until
    begun = update(usage_progress).where(until.is_not(None))
    await connection.execute(begun.values(until=func.greatest(until, at)))
    later = func.jsonb_set(usage_marks.c.mark, _AT, func.to_jsonb(cast(at, Double())))
    await connection.execute(update(usage_marks).values(mark=later))


class UsageLedger:
    """The usage ledger over the connections of a store. Methods can raise StoreUnavailable."""

    def __init__(self, transaction: Transaction, snapshot: Transaction) -> None:
        self._transaction = transaction
        self._snapshot = snapshot

    @asynccontextmanager
    async def _sums(self, doing: str) -> AsyncIterator[AsyncConnection]:
        """A snapshot of which many hours are summed up."""
        async with self._snapshot(doing) as connection:
            await usage_days.allow_memory(connection)
            yield connection

    async def progress(self) -> UsageProgress:
        """The time up to which everything is accounted for, and the next mark."""
        async with self._snapshot("reading the usage ledger") as connection:
            times = select(usage_progress.c.begins, usage_progress.c.until)
            begins, until = (await connection.execute(times)).one()
            rows = await connection.execute(select(usage_meters))
            return UsageProgress(begins, until, {uid: _meter(uid, meter) for uid, meter in rows})

    async def marks(self, limit: int) -> tuple[tuple[int, Mark], ...]:
        """Marks that are not folded yet, with their ids, oldest first."""
        found = select(usage_marks).order_by(usage_marks.c.id).limit(limit)
        async with self._transaction("reading marks of the usage ledger") as connection:
            rows = await connection.execute(found)
            return tuple((number, _mark(uid, mark)) for number, uid, mark in rows)

    async def accounted(self, uids: Iterable[str]) -> frozenset[str]:
        """The workloads among these that have hours."""
        uid = usage_subjects.c.uid
        found = select(uid).where(uid == any_of(uids)).distinct()
        async with self._transaction("reading earlier usage") as connection:
            return frozenset(await connection.scalars(found))

    async def curves(self, uids: Iterable[str]) -> Mapping[str, UseCurve]:
        """The utilization over time of the workloads among these that have one, by uid."""
        async with self._transaction("reading utilization over time") as connection:
            return await reports.curves(connection, uids)

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
        """Add the hours of one folding and advance to ``until``; see the Protocol for the rest and the errors."""
        async with self._transaction("writing the usage ledger") as connection:
            await _move_on(connection, over, until, epoch)
            await _drop(connection, marks)
            await _keep_meters(connection, fold.meters)
            await _merge(
                connection,
                _SUBJECTS,
                [_subject_row(number, who) for number, who in fold.accounts.new.items()],
            )
            hours = (
                {"hour": hour, "subject": subject, "flavor": flavor, "price": price}
                | {name: getattr(row, name) / WHOLE.get(name, 1) for name in _HOURS.added}
                for (hour, subject, flavor, price), row in fold.hours.items()
            )
            await _merge(connection, _HOURS, hours)
            losses = [
                {"hour": hour, "subject": subject, "flavor": flavor, "reason": reason}
                | {"gpu_seconds": row.gpu_seconds, "evictions": row.evictions}
                for (hour, subject, flavor, reason), row in fold.losses.items()
            ]
            await _merge(connection, _LOSSES, losses)
            await _merge(connection, _FLEET, _fleet_rows(free, over, until))
            cluster = [{"hour": hour, **asdict(row)} for hour, row in fold.cluster.items()]
            await _merge(connection, _CLUSTER, cluster)
            await _keep_curves(connection, fold.curves)
            if ended := [uid for uid, meter in fold.meters.items() if meter is None]:
                await forget_ended(connection, ended)

    async def measured(
        self, sums: Mapping[str, ContainerSums], window: float, *, epoch: int
    ) -> None:
        """Add what containers used; see the Protocol."""
        rows = [{"uid": uid, **asdict(each)} for uid, each in sums.items()]
        async with self._transaction("writing the use of containers") as connection:
            await require_epoch(connection, epoch)
            for low in range(0, len(rows), _AT_ONCE):
                columns = arrays(usage_containers.c, rows[low : low + _AT_ONCE])
                await connection.execute(_ADD_CONTAINERS, {**columns, "window": window})

    async def past_runs(self, most: int) -> tuple[FinishedRun, ...]:
        """The run times of the workloads that have finished last, oldest first."""
        async with self._snapshot("reading past run times") as connection:
            rows = (await connection.execute(runs_before(most))).all()
            return tuple(
                FinishedRun(GangProfile(*work), seconds) for *work, seconds in reversed(rows)
            )

    async def prune(self, before: float, *, epoch: int) -> int:
        """Delete a batch of hours that began before ``before``; see the Protocol."""
        async with self._transaction("deleting old usage") as connection:
            await require_epoch(connection, epoch)
            forgotten = await usage_days.forget(connection, before)
            deleted = await prune_usage(connection, forgotten)
            return deleted + (forgotten < before)  # other days are left

    async def add_up(self, now: float, since: float, *, epoch: int) -> bool:
        """Add up a day, for reports; see the Protocol."""
        async with self._transaction("adding up a day of usage", _DAY_SECONDS) as connection:
            await require_epoch(connection, epoch)
            return await usage_days.add_up(connection, now, since)

    async def report(
        self, period: Period, grouping: Grouping, scope: UsageScope = ALL_USAGE
    ) -> Report:
        """Sums of a period by group, in the order of the groups' names; see the Protocol."""
        async with self._sums("making a report") as connection:
            return await reports.make(connection, period, grouping, scope)

    async def compared(
        self, period: Period, grouping: Grouping, scope: UsageScope, most: int
    ) -> ComparedReport:
        """The largest groups, the period before, and the course; see the Protocol."""
        async with self._sums("making a report") as connection:
            return await reports.compared(connection, period, grouping, scope, most)

    async def spent(self, budgets: Iterable[Budget], at: float) -> SpentUnits:
        """The use of budgets in the month of ``at`` (unix seconds)."""
        async with self._sums("reading sums of the usage ledger") as connection:
            return await reports.spent(connection, budgets, at)

    async def recorded(
        self, period: Period, after: str, limit: int
    ) -> tuple[RecordedWorkload, ...]:
        """Past workloads by uid; see the Protocol."""
        async with self._snapshot("reading past workloads") as connection:
            return await reports.page(connection, period, after, limit)

    async def hours(self, period: Period) -> UsageHours:
        """The use and the requests of each LocalQueue in each hour of a period, by hour and name."""
        async with self._sums("reading hours of the usage ledger") as connection:
            return await reports.hours(connection, period)

    async def job(self, uid: str) -> JobUsage:
        """The sums of one workload."""
        async with self._snapshot("reading the usage of a workload") as connection:
            return await reports.job_usage(connection, uid)


def runs_before(most: int) -> Select[Any]:
    """The statement behind ``past_runs``, newest first; the tests pin its plan."""
    w = workloads.c
    return (
        select(
            *(w.cluster_queue, w.namespace, w.queue, w.user, w.name, w.pods),
            (w.gpu_parts + PARTS - 1) // PARTS,  # rounded up
            w.past_seconds,
        )
        .where(w.finished_at.is_not(None), w.attempt > 0)
        .order_by(w.finished_at.desc())
        .limit(most)
    )


async def _move_on(
    connection: AsyncConnection, over: float | None, until: float, epoch: int
) -> None:
    await require_epoch(connection, epoch)
    there = usage_progress.c.until.is_not_distinct_from(over)
    times = {"begins": func.coalesce(usage_progress.c.begins, until), "until": until}
    moved = await connection.execute(update(usage_progress).where(there).values(times))
    if moved.rowcount != 1:
        raise StaleSnapshot("the usage ledger has been written in the meantime")


async def _drop(connection: AsyncConnection, marks: Collection[int]) -> None:
    """Whether a folding that advances to no later time has been done: only its marks show it."""
    folded = usage_marks.c.id <= max(marks, default=0)
    if (await connection.execute(delete(usage_marks).where(folded))).rowcount != len(marks):
        raise StaleSnapshot("marks of the usage ledger have been folded in the meantime")


# -- statements -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Merge:
    """Rows to insert, or to add to existing rows."""

    table: Table
    added: tuple[str, ...]

    @property
    def statement(self) -> Insert:
        new = insert_rows(self.table, tuple(self.table.c))
        if not self.added:
            return new.on_conflict_do_nothing()
        sums = {name: _sum(name, self.table.c[name], new.excluded[name]) for name in self.added}
        return new.on_conflict_do_update(constraint=self.table.primary_key, set_=sums)


def _sum(name: str, old: ColumnElement[Any], more: ColumnElement[Any]) -> ColumnElement[Any]:
    """The sum of whole units is the number next to a whole unit."""
    scale = WHOLE.get(name)
    if scale is None:
        return old + more
    return (func.round(old * scale) + func.round(more * scale)) / scale


def _merge_into(table: Table, *, keys: int) -> _Merge:
    return _Merge(table, tuple(column.name for column in list(table.c)[keys:]))


_HOURS: Final = _merge_into(usage_hours, keys=4)
_LOSSES: Final = _merge_into(usage_losses, keys=4)
_FLEET: Final = _merge_into(usage_fleet, keys=2)
_CLUSTER: Final = _merge_into(usage_cluster, keys=1)
_SUBJECTS: Final = _Merge(usage_subjects, ())
_STATEMENTS: Final = {
    merge.table: merge.statement for merge in (_HOURS, _LOSSES, _FLEET, _CLUSTER, _SUBJECTS)
}


async def _merge(connection: AsyncConnection, merge: _Merge, rows: Iterable[Row]) -> None:
    left = iter(rows)
    while part := list(islice(left, _AT_ONCE)):
        await connection.execute(_STATEMENTS[merge.table], arrays(merge.table.c, part))


_GONE: Final = delete_rows(usage_meters, usage_meters.c.uid)
_METER: Final = insert_rows(usage_meters, tuple(usage_meters.c))
_SET_METER: Final = _METER.on_conflict_do_update(
    constraint=usage_meters.primary_key,
    set_={c.name: _METER.excluded[c.name] for c in usage_meters.c if c.name != "uid"},
)


async def _keep_meters(connection: AsyncConnection, meters: Mapping[str, Meter | None]) -> None:
    gone = [{"uid": uid} for uid, meter in meters.items() if meter is None]
    if gone:
        await connection.execute(_GONE, arrays((usage_meters.c.uid,), gone))
    rows = [_meter_row(uid, meter) for uid, meter in meters.items() if meter is not None]
    if rows:
        await connection.execute(_SET_METER, arrays(usage_meters.c, rows))


_CURVE: Final = insert_rows(usage_curves, tuple(usage_curves.c))
_SET_CURVE: Final = _CURVE.on_conflict_do_update(
    constraint=usage_curves.primary_key,
    set_={c.name: _CURVE.excluded[c.name] for c in usage_curves.c if c.name != "uid"},
)


async def _keep_curves(connection: AsyncConnection, curves: Mapping[str, UseCurve]) -> None:
    rows = [
        {"uid": uid, "begins": one.begins, "spacing": one.spacing, "content": one.content}
        for uid, one in curves.items()
    ]
    for low in range(0, len(rows), _AT_ONCE):
        await connection.execute(_SET_CURVE, arrays(usage_curves.c, rows[low : low + _AT_ONCE]))


def _fleet_rows(free: Mapping[str, Free], over: float | None, until: float) -> list[Row]:
    """The GPUs that are free now represent those since the last sample."""
    return [
        {
            "hour": hour,
            "flavor": flavor,
            "seconds": span / MILLISECONDS,
            "capacity": span * one.capacity / MILLISECONDS,
            "free": span * one.free / MILLISECONDS,
            "fragmented": span * one.fragmented / MILLISECONDS,
            "stranded": span * one.stranded / MILLISECONDS,
            "inside": span * one.inside / MILLISECONDS,
        }
        for hour, span in by_hour(until if over is None else over, until)
        for flavor, one in free.items()
    ]


def _add_containers() -> Insert:
    """The part of a window after the time up to which the row is measured."""
    new, old = insert_rows(usage_containers, tuple(usage_containers.c)), usage_containers.c
    later = (new.excluded.until - old.until) / bindparam("window", type_=Double())
    part = func.greatest(0.0, func.least(1.0, later))
    largest = {name: func.greatest(old[name], new.excluded[name]) for name in _LARGEST}
    sums = {
        c.name: c + new.excluded[c.name] * part for c in old if c.name not in (*_LARGEST, "uid")
    }
    return new.on_conflict_do_update(
        constraint=usage_containers.primary_key, set_={**sums, **largest}
    )


_LARGEST: Final = ("until", "memory_peak")
_ADD_CONTAINERS: Final = _add_containers()


# -- values and rows --------------------------------------------------------------------------------------------------


def _mark_row(mark: Mark) -> Row:
    """One document for all fields: the cost of a commit grows with the number of columns."""
    held = _held_document(mark.held) if mark.held is not None else None
    subject = _subject_document(mark.subject) if mark.subject is not None else None
    loss = [mark.loss.reason, mark.loss.gpu_seconds] if mark.loss is not None else None
    doing = (mark.phase.value, mark.attempt, in_parts(mark.gpus))
    return {"uid": mark.uid, "mark": [mark.at, mark.written_at, *doing, held, subject, loss]}


def _mark(uid: str, document: Sequence[Any]) -> Mark:
    at, seen, phase, attempt, parts, held, subject, loss = document
    return Mark(
        uid,
        at,
        seen,
        UsagePhase(phase),
        attempt,
        of_parts(parts),
        _held(held) if held is not None else None,
        _subject(uid, subject) if subject is not None else None,
        LostWork(*loss) if loss is not None else None,
    )


def _meter_row(uid: str, meter: Meter) -> Row:
    doing = (meter.phase.value, meter.attempt, in_parts(meter.gpus))
    held, subject = _held_document(meter.held), _subject_document(meter.subject)
    return {"uid": uid, "meter": [*doing, held, subject]}


def _meter(uid: str, document: Sequence[Any]) -> Meter:
    phase, attempt, parts, held, subject = document
    return Meter(UsagePhase(phase), attempt, of_parts(parts), _held(held), _subject(uid, subject))


def _held_document(held: Iterable[FlavorGpus]) -> list[Any]:
    return [[one.flavor, one.price, in_parts(one.gpus)] for one in held]


def _held(document: Iterable[Sequence[Any]]) -> tuple[FlavorGpus, ...]:
    return tuple(FlavorGpus(flavor, price, of_parts(parts)) for flavor, price, parts in document)


def _subject_document(subject: Subject) -> list[Any]:
    who = (subject.kind, subject.namespace, subject.name)
    return [*who, subject.queue, subject.cluster_queue, subject.user, subject.labels]


def _subject(uid: str, document: Sequence[Any]) -> Subject:
    kind, namespace, name, queue, cluster_queue, user, labels = document
    pairs = tuple((key, value) for key, value in labels)
    return Subject(uid, kind, namespace, name, queue, cluster_queue, user=user, labels=pairs)


def _subject_row(number: UUID, subject: Subject) -> Row:
    return {
        "id": number,
        "labels": dict(subject.labels),
        **{name: getattr(subject, name) for name in _SUBJECT_COLUMNS},
    }


_SUBJECT_COLUMNS: Final = (
    *("uid", "kind", "namespace", "name"),
    *("queue", "cluster_queue", "cohort", "user"),
)
