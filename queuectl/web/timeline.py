"""The geometry of the timeline: gangs that run until their ends, and gangs that wait until their planned and expected starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, inf
from typing import Final

from queuectl.domain.estimates import DAY, ExpectedStart
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import Workload

HOUR: Final = 3600.0
SPANS: Final = {
    "1h": HOUR,
    "6h": 6 * HOUR,
    "1d": DAY,
    "3d": 3 * DAY,
    "7d": 7 * DAY,
    "30d": 30 * DAY,
}
"""The lengths of the axis that a user can choose, in seconds."""
_MARKS: Final = 4  # parts of the axis
_STEPS: Final = tuple(
    HOUR * hours for hours in (0.25, 0.5, 1, 2, 3, 6, 12, 24, 48, 72, 168, 336, 720)
)
"""The lengths of an axis that depends on its rows, in seconds."""
_HELD: Final = 0.8  # the part of the rows whose times such an axis holds at least


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """One gang.

    Attributes:
        queue: its ClusterQueue; empty without one.
        queued_at: unix seconds.
        start: since when it runs, in unix seconds; None = it waits.
        ends: of a gang that runs; None = unknown.
        enforced: the controller ends it then.
        planned: planned start of a gang that waits; None = it has none.
        expected: estimate of its start; None = unknown.
    """

    uid: str
    ref: str
    queue: str
    gpus: Fraction
    queued_at: float
    start: float | None = None
    ends: float | None = None
    enforced: bool = False
    planned: float | None = None
    expected: ExpectedStart | None = None


@dataclass(frozen=True, slots=True)
class Bar:
    """A part of the axis, in percent of its length. ``cut``: its end is beyond the axis."""

    at: float
    width: float
    cut: bool


@dataclass(frozen=True, slots=True)
class Axis:
    """Time from ``now`` (unix seconds), for ``seconds``."""

    now: float
    seconds: float

    @property
    def marks(self) -> tuple[float, ...]:
        """Seconds from now, at equal distances from the begin to the end."""
        return tuple(self.seconds * number / _MARKS for number in range(_MARKS + 1))

    def place(self, at: float) -> float | None:
        """Percent of the axis; None if it is beyond its end. A time in the past is now."""
        share = max(0.0, at - self.now) / self.seconds
        return round(100 * share, 2) if share <= 1.0 else None

    def bar(self, since: float, until: float | None) -> Bar | None:
        """From one time to another; None as the end = it is unknown. None if it begins beyond the axis."""
        begin = self.place(since)
        if begin is None:
            return None
        end = self.place(until) if until is not None else None
        width = max((100.0 if end is None else end) - begin, 0.6)
        return Bar(min(begin, 99.4), round(width, 2), end is None)


@dataclass(frozen=True, slots=True)
class TimelineRows:
    """The rows of the page.

    Attributes:
        waiting: in queue order.
        running: the gang that ends first is the first; unknown ends are last.
        more_waiting, more_running: number of gangs that are left out.
    """

    axis: Axis
    waiting: tuple[TimelineRow, ...]
    running: tuple[TimelineRow, ...]
    more_waiting: int
    more_running: int


def timeline_of(
    snapshot: Snapshot,
    expected: Mapping[str, ExpectedStart],
    sees: Callable[[str], bool],
    *,
    queue: str = "",
    span: str = "",
    most: int,
) -> TimelineRows:
    """The timeline of the gangs of some namespaces.

    Args:
        snapshot: the current state.
        expected: by uid.
        sees: whether the caller may see a namespace.
        queue: only gangs of this ClusterQueue; empty = of all.
        span: of the axis; empty = the shortest that holds the times of most rows.
        most: rows of each kind.
    """

    def shown(workload: Workload) -> bool:
        return sees(workload.namespace) and (not queue or _queue(snapshot, workload) == queue)

    pending = sorted((p for p in snapshot.pending if shown(p.workload)), key=_place)
    waiting = [_waiting(snapshot, gang, expected) for gang in pending]
    admitted = [g for g in snapshot.admitted if shown(g.workload) and not g.leaving]
    running = sorted((_running(snapshot, gang) for gang in admitted), key=_end)
    rows = (*waiting[:most], *running[:most])
    return TimelineRows(
        Axis(snapshot.now, SPANS.get(span) or _span(rows, snapshot.now)),
        tuple(waiting[:most]),
        tuple(running[:most]),
        max(0, len(waiting) - most),
        max(0, len(running) - most),
    )


def _place(pending: Pending) -> tuple[int, float, str]:
    workload = pending.workload
    return -workload.priority, workload.queued_at, workload.uid


def _queue(snapshot: Snapshot, workload: Workload) -> str:
    found = snapshot.queue_of(workload)
    return found.name if found is not None else ""


def _waiting(
    snapshot: Snapshot, gang: Pending, expected: Mapping[str, ExpectedStart]
) -> TimelineRow:
    workload, planned = gang.workload, gang.planned_start
    return TimelineRow(
        workload.uid,
        workload.ref,
        _queue(snapshot, workload),
        workload.gpus,
        workload.queued_at,
        planned=planned.at if planned is not None else None,
        expected=expected.get(workload.uid),
    )


def _running(snapshot: Snapshot, gang: Admitted) -> TimelineRow:
    workload = gang.workload
    return TimelineRow(
        workload.uid,
        workload.ref,
        _queue(snapshot, workload),
        gang.gpus,
        workload.queued_at,
        start=gang.started_at,
        ends=gang.ends_at,
        enforced=gang.end_enforced,
    )


def _end(row: TimelineRow) -> tuple[float, str]:
    return row.ends if row.ends is not None else inf, row.uid


def _span(rows: Iterable[TimelineRow], now: float) -> float:
    """The shortest span that holds the known times of four in five rows: a few late ones do not make all other bars short.

    It holds all times if that at most doubles it.
    """
    lasts = sorted(max(times) - now for row in rows if (times := _times(row)))
    if not lasts:
        return HOUR
    most, last = (_step(lasts[rank]) for rank in (ceil(_HELD * len(lasts)) - 1, -1))
    return last if last <= 2 * most else most


def _step(seconds: float) -> float:
    return next((step for step in _STEPS if step >= seconds), _STEPS[-1])


def _times(row: TimelineRow) -> list[float]:
    start = row.expected
    known = (row.ends, row.planned, start.median if start else None, start.p90 if start else None)
    return [at for at in known if at is not None]
