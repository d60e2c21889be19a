"""The run of a workload as its page shows it: progress, remaining time, utilization over time, and its attempts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from queuectl.api.job_efficiency import UtilizationPointView
from queuectl.api.schemas import RunTimeView
from queuectl.domain.ledger import Entry, State
from queuectl.domain.queries import HistoryLine
from queuectl.domain.workload import Placement

# ---- Progress


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far a running workload is, all attempts together. Times are in seconds.

    Attributes:
        elapsed: time in which it held its nodes.
        share: ``elapsed`` of the expected run time, 0 to 1; None = the run time is not known.
        least, most: the range of the remaining time; None = not known.
    """

    elapsed: float
    share: float | None = None
    least: float | None = None
    most: float | None = None

    @property
    def overdue(self) -> bool:
        """Whether it runs longer than expected."""
        return self.most is not None and self.most <= 0


def progress_of(entry: Entry, run_time: RunTimeView | None, now: float) -> RunProgress:
    """The progress of a workload. The estimate is from the median of similar runs to the run time that planning assumes."""
    elapsed = entry.executed(now)
    if run_time is None or not entry.state.live:
        return RunProgress(elapsed)
    likely = run_time.median if run_time.median is not None else run_time.seconds
    middle = min(likely, run_time.seconds) or run_time.seconds
    share = min(elapsed / middle, 1.0) if middle > 0 else None
    left = (max(likely - elapsed, 0.0), max(run_time.seconds - elapsed, 0.0))
    return RunProgress(elapsed, share, min(left), max(left))


# ---- Utilization over time: a curve in a box of 100 by 100, y downwards


@dataclass(frozen=True, slots=True)
class UseChart:
    """The parts that the template draws.

    Attributes:
        line: an SVG path, with a gap where nothing was measured.
        area: the same, closed at the bottom.
        waits: left edge and width of each time in which it held no GPUs, in percent.
        mean, least, most: of the measured points, 0 to 1.
        measured: share of the held GPU time that was measured, 0 to 1.
        points: the same as numbers, oldest first.
    """

    line: str
    area: str
    waits: tuple[tuple[float, float], ...]
    since: float
    until: float
    mean: float
    least: float
    most: float
    measured: float
    points: tuple[UtilizationPointView, ...]

    @property
    def times(self) -> tuple[float, float, float]:
        """The labels of the axis, in unix seconds."""
        return (self.since, (self.since + self.until) / 2, self.until)


def use_chart(points: Sequence[UtilizationPointView]) -> UseChart | None:
    """The curve; None where nothing was measured."""
    shares = [point.utilization for point in points if point.utilization is not None]
    if not shares:
        return None
    since, until = points[0].since.timestamp(), points[-1].until.timestamp()
    held = sum(point.gpus for point in points)
    weights = [point.gpus * point.measured for point in points]
    used = sum(w * (p.utilization or 0.0) for w, p in zip(weights, points, strict=True))
    line, area = _paths(points)
    total = sum(weights)
    return UseChart(
        line=line,
        area=area,
        waits=tuple(_waits(points)),
        since=since,
        until=until,
        mean=used / total if total else 0.0,
        least=min(shares),
        most=max(shares),
        measured=total / held if held else 0.0,
        points=tuple(points),
    )


def _paths(points: Sequence[UtilizationPointView]) -> tuple[str, str]:
    """Steps: each point is a mean, and a line between two means would show values that were not measured."""
    width = 100 / len(points)
    line, area = [], []
    drawn = False
    for number, point in enumerate(points):
        left, right = number * width, (number + 1) * width
        if point.utilization is None:
            if drawn:
                area.append("V100Z")
            drawn = False
            continue
        y = 100 - 100 * point.utilization
        line.append(f"{'L' if drawn else 'M'}{left:g} {y:g}H{right:g}")
        area.append(f"{'L' if drawn else f'M{left:g} 100L'}{left:g} {y:g}H{right:g}")
        drawn = True
    if drawn:
        area.append("V100Z")
    return "".join(line), "".join(area)


def _waits(points: Sequence[UtilizationPointView]) -> Iterable[tuple[float, float]]:
    width = 100 / len(points)
    begun: int | None = None
    for number in range(len(points) + 1):
        waits = number < len(points) and not points[number].gpus
        if waits and begun is None:
            begun = number
        elif not waits and begun is not None:
            yield round(begun * width, 3), round((number - begun) * width, 3)
            begun = None


# ---- Attempts

_NODES: Final = 8
MOST_ATTEMPTS: Final = 10


@dataclass(frozen=True, slots=True)
class RunAttempt:
    """A start of a workload, as its history has it.

    Attributes:
        number: from 1.
        since: unix seconds.
        until: unix seconds; None while it holds its nodes.
        ended: the step that ended it; None while it holds its nodes.
        nodes: the first of them, by name.
        more: number of the others.
    """

    number: int
    since: float
    until: float | None
    ended: HistoryLine | None
    nodes: tuple[str, ...]
    more: int


def attempts_of(steps: Iterable[HistoryLine]) -> tuple[RunAttempt, ...]:
    """The attempts in these steps, newest first, at most :data:`MOST_ATTEMPTS`. ``steps``: newest first."""
    by_number: dict[int, list[HistoryLine]] = {}
    for step in steps:
        if step.attempt:
            by_number.setdefault(step.attempt, []).append(step)
    made = (_attempt(number, lines[::-1]) for number, lines in by_number.items())
    return tuple(attempt for attempt in made if attempt is not None)[:MOST_ATTEMPTS]


def _attempt(number: int, lines: Sequence[HistoryLine]) -> RunAttempt | None:
    """One attempt. ``lines``: its steps, oldest first."""
    begins = next((line for line in lines if line.to_state is State.STARTING), None)
    if begins is None:
        return None
    ended = next(
        (
            line
            for line in lines
            if line.id > begins.id and (line.to_state is State.EVICTING or not line.to_state.live)
        ),
        None,
    )
    left = next((line for line in lines if line.id > begins.id and not line.to_state.live), None)
    nodes = nodes_of(line.placement for line in lines)
    until = left.at if left is not None else None
    return RunAttempt(number, begins.at, until, ended, nodes[:_NODES], len(nodes[_NODES:]))


def nodes_of(placements: Iterable[Placement | None]) -> tuple[str, ...]:
    """The nodes of some placements, by name."""
    podsets = (podset for each in placements if each is not None for podset in each.podsets)
    return tuple(sorted({node for podset in podsets for node, _ in podset.nodes}))


def last_placement(steps: Iterable[HistoryLine]) -> Placement | None:
    """The placement of the last attempt. ``steps``: newest first."""
    return next((line.placement for line in steps if line.placement is not None), None)
