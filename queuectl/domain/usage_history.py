"""GPUs over time: averages of each hour of the usage ledger, for a chart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from queuectl.domain.accounting import HOUR


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
        capacity: hour to the GPUs on nodes that take pods, on average; hours in which no node was seen are absent.
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
        capacity: on nodes that take pods; None = not known, or not for this caller.
    """

    since: float
    until: float
    allocated: float
    used: float
    unmeasured: float
    pending: float
    capacity: float | None


def points(
    found: UsageHours,
    hours: Iterable[int],
    wanted: Callable[[QueueHour], bool],
    *,
    capacity: bool,
) -> tuple[HistoryPoint, ...]:
    """A point for each of these hours that is accounted for, at least in part.

    Args:
        found: the ledger's hours.
        hours: their starts, in unix seconds.
        wanted: which LocalQueues count.
        capacity: whether the points show the GPUs of the nodes.
    """
    sums: dict[int, list[float]] = {}
    for row in found.rows:
        if wanted(row):
            total = sums.setdefault(row.hour, [0.0] * 4)
            for i, amount in enumerate((row.allocated, row.used, row.unknown, row.waited)):
                total[i] += amount
    as_of = found.as_of if found.as_of is not None else 0.0
    made = []
    for hour in hours:
        until = min(float(hour + HOUR), as_of)
        if until > hour:
            allocated, used, unknown, waited = (
                amount / (until - hour) for amount in sums.get(hour, [0.0] * 4)
            )
            known = found.capacity.get(hour) if capacity else None
            made.append(HistoryPoint(float(hour), until, allocated, used, unknown, waited, known))
    return tuple(made)
