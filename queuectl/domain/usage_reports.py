"""Reports of the usage ledger: sums, averages of each hour, and the parts into which the GPUs of a cluster are divided."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from fractions import Fraction
from typing import Final, Self

from queuectl.domain.accounting import HOUR, Amounts, ClusterAmounts, LostWorkSum
from queuectl.domain.errors import BadInput
from queuectl.domain.gpus import ZERO_GPUS
from queuectl.domain.reasons import BY_POLICY, FAILED_START

# ---- Sums and figures
#
# Efficiency = used / (allocated - unknown): of the measured GPU-seconds, those that computed. Wasted =
# allocated - unknown - used. Both are empty where no sample exists; ``unknown`` is shown alongside them.

MOST_ROWS: Final = 20_000  # of one report: it is made in memory
MOST_COMPARED: Final = 200_000
"""Workloads of which the largest are listed: two seconds of the database."""
DAY: Final = 24 * HOUR
_HOURLY_UNTIL: Final = 49 * HOUR  # two days, and the hour that is not over


class ReportKind(StrEnum):
    """The subjects of reports."""

    @property
    def summed(self) -> bool:
        """Whether it is a sum over hours of the usage ledger."""
        return self not in (ReportKind.EFFICIENCY, ReportKind.BUDGETS, ReportKind.SHADOW)

    USAGE = "usage"
    COST = "cost"
    WASTE = "waste"
    WAITS = "waits"
    EFFICIENCY = "efficiency"  # of the cluster now; the others are sums over the usage ledger
    BUDGETS = "budgets"  # in the current month
    SHADOW = "shadow"  # what shadow mode has observed


class By(StrEnum):
    """The keys by which rows are grouped."""

    QUEUE = "queue"  # LocalQueue, namespace/name
    CLUSTER_QUEUE = "clusterqueue"
    COHORT = "cohort"
    NAMESPACE = "namespace"
    USER = "user"
    FLAVOR = "flavor"
    PRICE = "price"
    HOUR = "hour"
    WORKLOAD = "workload"
    LABEL = "label"


_LABEL: Final = re.compile(r"label:([A-Za-z0-9](?:[-A-Za-z0-9_./]{0,314}[A-Za-z0-9])?)")
_HOURLY: Final = ",hour"
_FOR_OTHERS: Final = frozenset(code.value for code in BY_POLICY)
_FAILED: Final = frozenset(code.value for code in FAILED_START)


@dataclass(frozen=True, slots=True)
class Grouping:
    """``label``: its key, with :attr:`By.LABEL`. ``hourly``: each hour has separate rows."""

    by: By
    label: str = ""
    hourly: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``queue``, ``label:team``, ``workload,hour``...

        Raises:
            BadInput: it is none of them.
        """
        what = text.removesuffix(_HOURLY)
        hourly = what != text
        found = _LABEL.fullmatch(what)
        if found is not None:
            return cls(By.LABEL, found[1], hourly)
        if what in set(By) - {By.LABEL} and not (hourly and what == By.HOUR):
            return cls(By(what), "", hourly)
        known = ", ".join([*(by for by in By if by is not By.LABEL), "label:KEY"])
        raise BadInput(f"by: {text!r} is none of {known}, with or without {_HOURLY!r} behind it")

    @property
    def of_hours(self) -> bool:
        """Whether the groups need the hours of each workload, so that sums of days are not enough."""
        return self.hourly or self.by in (By.HOUR, By.WORKLOAD)

    @property
    def repeats_workloads(self) -> bool:
        """Whether a workload can be in several groups while its names stay, so that their sum does not count workloads."""
        return self.hourly or self.by in (By.HOUR, By.FLAVOR, By.PRICE)

    @property
    def recurs(self) -> bool:
        """Whether the same groups have usage in other periods. Hours have not, and few workloads have."""
        return not self.of_hours

    def __str__(self) -> str:
        what = f"label:{self.label}" if self.by is By.LABEL else self.by.value
        return what + _HOURLY if self.hourly else what


@dataclass(frozen=True, slots=True)
class Period:
    """Whole hours, unix seconds: from the start of the first to the end of the last."""

    since: int
    until: int

    @classmethod
    def around(cls, since: float, until: float) -> Self:
        """The full hours that a span of time touches.

        Raises:
            BadInput: it ends before it begins.
        """
        if until <= since:
            raise BadInput("until: must be later than since")
        return cls(int(since // HOUR) * HOUR, -int(-until // HOUR) * HOUR)

    def before(self, as_of: float | None) -> Period:
        """The period that ends where this one begins, as long as the part of this one up to ``as_of``, rounded to hours."""
        until = self.until if as_of is None else min(as_of, self.until)
        hours = max(1, round((until - self.since) / HOUR))
        return Period(self.since - hours * HOUR, self.since)

    @property
    def step(self) -> int:
        """Length of a point of its course in seconds: an hour in up to two days, otherwise a day."""
        return HOUR if self.until - self.since <= _HOURLY_UNTIL else DAY


@dataclass(frozen=True, slots=True)
class ReportRow:
    """Sums of one group.

    Attributes:
        names: its keys; of a workload, all that is known of it.
        workloads: None = not known, in a sum of groups that repeat workloads.
    """

    names: Mapping[str, str]
    amounts: Amounts
    workloads: int | None = 0
    losses: Mapping[str, LostWorkSum] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def measured(self) -> int:
        """Units that were measured."""
        return self.amounts.allocated - self.amounts.unknown

    @property
    def efficiency(self) -> float | None:
        """0..1; None where nothing was measured."""
        return self.amounts.used / self.measured if self.measured > 0 else None

    @property
    def wasted(self) -> int:
        """Units."""
        return self.measured - self.amounts.used

    @property
    def wasted_cost(self) -> float:
        """The part of the cost that what was wasted has in what was allocated."""
        allocated = self.amounts.allocated
        return self.amounts.cost * self.wasted / allocated if allocated > 0 else 0.0

    @property
    def lost_to_others(self) -> float:
        """GPU-seconds of work lost because others needed the room, or a queue's policy took it back."""
        return self._lost(_FOR_OTHERS)

    @property
    def lost_in_starts(self) -> float:
        """GPU-seconds that starts held that failed."""
        return self._lost(_FAILED)

    @property
    def lost_otherwise(self) -> float:
        """GPU-seconds of work lost in evictions for any other reason."""
        return sum(x.gpu_seconds for x in self.losses.values()) - self._lost(_FOR_OTHERS | _FAILED)

    @property
    def evictions(self) -> int:
        return sum(x.evictions for x in self.losses.values())

    def _lost(self, reasons: frozenset[str]) -> float:
        return sum(x.gpu_seconds for reason, x in self.losses.items() if reason in reasons)


@dataclass(frozen=True, slots=True)
class FleetRow:
    """Free GPUs of one flavor's nodes over a period, in GPU-seconds.

    Attributes:
        seconds: that have samples.
        capacity: of nodes that take pods.
        free: of those, not held by a gang.
        fragmented: of the free, those on nodes too small for a shape, averaged over the shapes by how many pods want them.
        stranded: of the free, those on nodes that no shape fits.
        inside: of the fragmented, those on nodes with enough for the shape, but not of one PCIe root or NUMA node.
    """

    flavor: str
    seconds: float
    capacity: float
    free: float
    fragmented: float
    stranded: float
    inside: float


@dataclass(frozen=True, slots=True)
class UsageScope:
    """Whose usage a report sums: that of workloads that match each field that is set.

    Attributes:
        namespaces: the workload is in one of these; None = in any.
        cluster_queue: its ClusterQueue.
        user: its user; empty = it has none.
    """

    namespaces: frozenset[str] | None = None
    cluster_queue: str | None = None
    user: str | None = None

    @property
    def everything(self) -> bool:
        """Whether it has all workloads, so that the sums of the nodes belong to it."""
        return self == ALL_USAGE


ALL_USAGE: Final = UsageScope()


@dataclass(frozen=True, slots=True)
class Report:
    """Sums of a period by group.

    Attributes:
        as_of: everything before it is in; None = nothing was accounted for yet.
        rows: of all groups, or of the largest.
        unlisted: the sum of the groups that have no row; None where all have one.
        groups: number of all groups.
        cluster: None = not for this caller.
    """

    period: Period
    grouping: Grouping
    as_of: float | None
    rows: tuple[ReportRow, ...]
    fleet: tuple[FleetRow, ...] = ()
    cluster: ClusterAmounts | None = None
    unlisted: ReportRow | None = None
    groups: int = 0


@dataclass(frozen=True, slots=True)
class UsagePoint:
    """The sums of an hour or of a day (UTC). ``at``: its start, in unix seconds."""

    at: int
    amounts: Amounts


@dataclass(frozen=True, slots=True)
class AllocatedBefore:
    """Allocated units in the period before that of a report, as long as the accounted part of that.

    Attributes:
        total: of the whole scope.
        groups: of each group of the report that had any, by its names in their order.
    """

    period: Period
    total: int
    groups: Mapping[tuple[str, ...], int]


@dataclass(frozen=True, slots=True)
class ComparedReport:
    """A report of the largest groups, the period before it, and its course.

    Attributes:
        recorded_since: start of the first hour in which the ledger was written; None = it is empty. It can have earlier hours of
            workloads that were there before.
        before: None if the ledger does not have the whole period before.
        course: of the scope, by time; hours or days without usage are absent.
        step: length of a point of the course in seconds: an hour or a day.
    """

    report: Report
    recorded_since: int | None
    before: AllocatedBefore | None
    course: tuple[UsagePoint, ...]
    step: int


def total_of(report: Report) -> ReportRow:
    """The sum of all groups, without the number of workloads if the groups repeat them.

    A workload that changes its queue, user or labels counts in each of its groups.
    """
    total = _sum((*report.rows, *((report.unlisted,) if report.unlisted is not None else ())))
    return replace(total, workloads=None) if report.grouping.repeats_workloads else total


def _sum(rows: Sequence[ReportRow]) -> ReportRow:
    amounts, losses = Amounts(), dict[str, LostWorkSum]()
    for row in rows:
        amounts.add(row.amounts)
        for reason, lost in row.losses.items():
            known = losses.setdefault(reason, LostWorkSum())
            known.gpu_seconds += lost.gpu_seconds
            known.evictions += lost.evictions
    counts = [row.workloads for row in rows if row.workloads is not None]
    workloads = sum(counts) if len(counts) == len(rows) else None
    return ReportRow({}, amounts, workloads, losses)


def without(total: ReportRow, rows: Sequence[ReportRow]) -> ReportRow:
    """The rest of a sum without some of its rows."""
    part = _sum(rows)
    names = Amounts.__slots__
    amounts = Amounts(
        *(max(0, getattr(total.amounts, x) - getattr(part.amounts, x)) for x in names)
    )
    losses = {}
    for reason, lost in total.losses.items():
        known = part.losses.get(reason, LostWorkSum())
        if lost.evictions > known.evictions:
            seconds = max(0.0, lost.gpu_seconds - known.gpu_seconds)
            losses[reason] = LostWorkSum(seconds, lost.evictions - known.evictions)
    workloads = None if total.workloads is None else total.workloads - (part.workloads or 0)
    return ReportRow({}, amounts, workloads, losses)


def check_size(rows: int, grouping: Grouping, most: int) -> None:
    """Raises BadInput when a report would have, or would select from, more than ``most`` rows."""
    if rows > most:
        raise BadInput(
            f"since: by {grouping} these hours have more than {most:,} rows; ask for fewer hours"
        )


# ---- Averages of each hour


@dataclass(frozen=True, slots=True)
class QueueHour:
    """The GPU-seconds that the gangs of one LocalQueue held and requested in one hour.

    Attributes:
        hour: its start, in unix seconds.
        allocated: held by gangs.
        used: of ``allocated``, what was measured as used.
        unknown: of ``allocated``, what was not measured.
        waited: requested by pending gangs.
    """

    hour: int
    namespace: str
    queue: str
    cluster_queue: str
    allocated: float
    used: float
    unknown: float
    waited: float


@dataclass(frozen=True, slots=True)
class UsageHours:
    """The hours of a period.

    Attributes:
        as_of: everything before this time is in; None = nothing is accounted for yet.
        rows: of all LocalQueues, by hour.
        capacity: hour to the GPU-seconds that were in use or on nodes that take pods; hours in which no node was seen are absent.
    """

    as_of: float | None
    rows: tuple[QueueHour, ...] = ()
    capacity: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """Averages of one hour, in GPUs.

    Attributes:
        since, until: unix seconds; the last hour can be incomplete.
        allocated: held by gangs.
        used: measured as used.
        unmeasured: held, and not measured.
        pending: requested by pending gangs.
        capacity: in use, or on nodes that take pods; None = not known, or not for this caller.
    """

    since: float
    until: float
    allocated: float
    used: float
    unmeasured: float
    pending: float
    capacity: float | None


def points(
    usage: UsageHours,
    hours: Iterable[int],
    counts: Callable[[QueueHour], bool],
    *,
    capacity: bool,
) -> tuple[HistoryPoint, ...]:
    """A point for each of these hours that is accounted for, at least in part.

    Args:
        usage: the ledger's hours.
        hours: their starts, in unix seconds.
        counts: which LocalQueues count.
        capacity: whether the points show the GPUs of the nodes.
    """
    sums: dict[int, list[float]] = {}
    for row in usage.rows:
        if counts(row):
            total = sums.setdefault(row.hour, [0.0] * 4)
            for i, amount in enumerate((row.allocated, row.used, row.unknown, row.waited)):
                total[i] += amount
    as_of = usage.as_of if usage.as_of is not None else 0.0
    made = []
    for hour in hours:
        until = min(float(hour + HOUR), as_of)
        if until > hour:
            allocated, used, unknown, waited = (
                amount / (until - hour) for amount in sums.get(hour, [0.0] * 4)
            )
            gpus = usage.capacity.get(hour) if capacity else None
            known = gpus / (until - hour) if gpus is not None else None
            made.append(HistoryPoint(float(hour), until, allocated, used, unknown, waited, known))
    return tuple(made)


# ---- Parts of all GPUs
#
# total = effective + wasted + unknown, and wasted = idle + fragmented + unhealthy + unallocated. Efficiency = effective / total.


@dataclass(frozen=True, slots=True)
class GpuParts:
    """The GPUs of some nodes, as exact fractions. Each GPU is in one part, or divided between parts.

    Attributes:
        effective: held by gangs, times their measured utilization; 0 while a gang is stuck.
        idle: the rest of the GPUs that measured gangs hold.
        fragmented: free, but the next pod is expected to be unable to use them (fragmentation gradient descent).
        unhealthy: failed, or free on nodes that are not ready or cordoned.
        unallocated: all other free GPUs.
        unknown: held by a gang or another pod without a measurement.
    """

    effective: Fraction = ZERO_GPUS
    idle: Fraction = ZERO_GPUS
    fragmented: Fraction = ZERO_GPUS
    unhealthy: Fraction = ZERO_GPUS
    unallocated: Fraction = ZERO_GPUS
    unknown: Fraction = ZERO_GPUS

    @property
    def total(self) -> Fraction:
        return self.effective + self.wasted + self.unknown

    @property
    def wasted(self) -> Fraction:
        return self.idle + self.fragmented + self.unhealthy + self.unallocated

    @property
    def efficiency(self) -> float | None:
        """0..1; None without GPUs. An unknown GPU counts as not effective."""
        return float(self.effective / self.total) if self.total else None

    @property
    def highest_efficiency(self) -> float | None:
        """The efficiency if all that is unknown were effective; None without GPUs."""
        return float((self.effective + self.unknown) / self.total) if self.total else None

    def __add__(self, other: GpuParts) -> GpuParts:
        return GpuParts(
            _plus(self.effective, other.effective),
            _plus(self.idle, other.idle),
            _plus(self.fragmented, other.fragmented),
            _plus(self.unhealthy, other.unhealthy),
            _plus(self.unallocated, other.unallocated),
            _plus(self.unknown, other.unknown),
        )


def _plus(left: Fraction, right: Fraction) -> Fraction:
    """Most parts of a node are 0, and a sum of fractions is slow."""
    return left + right if right else left


PARTS: Final = tuple(field.name for field in fields(GpuParts))
NO_GPUS: Final = GpuParts()
