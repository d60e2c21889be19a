"""The chart of the last 24 hours, of what the caller may see: step lines of hourly averages, drawn in a box of 100 by 100."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import Final

from starlette.requests import Request

from queuectl.domain.accounting import HOUR
from queuectl.domain.usage_reports import HistoryPoint, QueueHour
from queuectl.web.site import AccessScope, Site

HOURS: Final = 24
_TICK_HOURS: Final = 6
_TICK_PIXELS: Final = 40  # from one tick of the vertical axis to the next, about
_STEPS: Final = (1, 2, 2.5, 5, 10)  # of a tick, in powers of ten


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One quantity over time.

    Attributes:
        style: its class in the style sheet.
        name: in the legend.
        path: of an SVG path in a box of 100 by 100, y downwards.
        last, least, most: averages of an hour, in GPUs.
    """

    style: str
    name: str
    path: str
    last: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis: a distance in percent of the box, from its left or its top, and what it stands for."""

    at: float
    quantity: float


@dataclass(frozen=True, slots=True)
class Panel:
    """A plot with its own vertical axis; all plots of a chart share the horizontal one.

    Attributes:
        top, height: in pixels.
        lines: drawn in this order.
        amounts: ticks of the vertical axis, in GPUs.
    """

    top: int
    height: int
    lines: tuple[ChartLine, ...]
    amounts: tuple[Tick, ...]

    def y(self, tick: Tick) -> float:
        """The height of a tick, in pixels from the top of the chart."""
        return round(self.top + self.height * tick.at / 100, 1)


@dataclass(frozen=True, slots=True)
class Chart:
    """The parts that the template draws.

    Attributes:
        panels: from top to bottom.
        times: ticks of the horizontal axis, in unix seconds.
        since, until: unix seconds.
        points: the same as numbers, the oldest first.
    """

    panels: tuple[Panel, ...]
    times: tuple[Tick, ...]
    since: float
    until: float
    points: tuple[HistoryPoint, ...]

    @property
    def unfinished(self) -> float | None:
        """Where the last hour begins, in percent from the left, if it is not over; its averages are of the part that has passed."""
        last = self.points[-1]
        whole = last.until - last.since >= HOUR
        return None if whole else _share(last.since, self.since, self.until)

    @property
    def lines(self) -> tuple[ChartLine, ...]:
        """Of all panels."""
        return tuple(line for panel in self.panels for line in panel.lines)


def chart_of(points: Sequence[HistoryPoint]) -> Chart | None:
    """The chart of these hours, one after the other; None where there is nothing to draw.

    The GPUs that pending gangs request have their own panel: they can be many times those of the cluster.
    """
    if not points:
        return None
    since, until = points[0].since, points[-1].until
    spans = [(_share(p.since, since, until), _share(p.until, since, until)) for p in points]
    held = [
        ("allocated", "allocated", [p.allocated for p in points]),
        ("used", "measured as used", [p.used for p in points]),
    ]
    if points[-1].capacity is not None:
        capacity = [p.capacity if p.capacity is not None else 0.0 for p in points]
        held.insert(0, ("capacity", "in use, or on nodes in service", capacity))
    pending = [("pending", "requested by pending gangs", [p.pending for p in points])]
    panels = (_panel(spans, held, 14, 120), _panel(spans, pending, 164, 60))
    return Chart(panels, tuple(_times(since, until)), since, until, tuple(points))


def _panel(
    spans: Sequence[tuple[float, float]],
    series: Sequence[tuple[str, str, Sequence[float]]],
    top: int,
    height: int,
) -> Panel:
    highest, step = scale_of(max(max(values) for _, _, values in series), height // _TICK_PIXELS)
    lines = (
        ChartLine(style, name, _path(spans, values, highest), values[-1], min(values), max(values))
        for style, name, values in series
    )
    ticks = (
        Tick(100 * (1 - n * step / highest), n * step) for n in range(1, round(highest / step) + 1)
    )
    return Panel(top, height, tuple(lines), tuple(ticks))


def _share(at: float, since: float, until: float) -> float:
    return round(100 * (at - since) / (until - since), 2)


def _path(spans: Sequence[tuple[float, float]], amounts: Sequence[float], top: float) -> str:
    """A horizontal stroke for each hour, joined by vertical ones."""
    heights = [round(100 * (1 - value / top), 2) for value in amounts]
    parts = [f"M{spans[0][0]:g} {heights[0]:g}"]
    for (begin, end), height in zip(spans, heights, strict=True):
        parts += [f"L{begin:g} {height:g}", f"L{end:g} {height:g}"]
    return " ".join(parts)


def scale_of(most: float, ticks: int) -> tuple[float, float]:
    """The top of the vertical axis and the distance of its ticks, about as many as are given."""
    rough = max(most, 1.0) / max(1, ticks)
    power = 10.0 ** floor(log10(rough))
    step = max(1.0, next(power * one for one in _STEPS if power * one >= rough))
    return step * max(1, -int(-most // step)), step


def _times(since: float, until: float) -> list[Tick]:
    """Full hours of UTC that are multiples of six, away from both ends of the axis."""
    size = _TICK_HOURS * HOUR
    first = int(since // size + 1) * size
    found = [Tick(_share(at, since, until), float(at)) for at in range(first, int(until) + 1, size)]
    return [tick for tick in found if 5 <= tick.at <= 95]


async def usage_chart(
    site: Site, request: Request, access: AccessScope, cluster_queue: str = "", queue: str = ""
) -> Chart | None:
    """The chart of all queues, of a ClusterQueue, or of a LocalQueue. May raise StoreUnavailable and ClusterUnavailable.

    Args:
        site: where the pages read.
        request: of the caller.
        access: of the caller.
        cluster_queue: its name; empty = all.
        queue: namespace and name of a LocalQueue, as ``namespace/name``; empty = all.

    Returns:
        None where the caller may not get reports, or no hour is accounted for.
    """
    if not access.usage:
        return None
    seen = await site.guard.visible(request, "get", "reports", site.store.namespaces)

    def wanted(row: QueueHour) -> bool:
        return (
            (seen is None or row.namespace in seen)
            and cluster_queue in ("", row.cluster_queue)
            and queue in ("", f"{row.namespace}/{row.queue}")
        )

    everything = seen is None and not cluster_queue and not queue and access.nodes
    return chart_of(await site.history.points(site.clock(), HOURS + 1, wanted, capacity=everything))
