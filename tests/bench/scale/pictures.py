"""Pictures of recorded runs as SVG: time against nodes, and time against pending gangs; light and dark."""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.bench.scale.records import RowRecord
from tests.bench.scale.rows import DONE
from tests.bench.scale.rows_queues import NEXT_TO
from tests.bench.scale.tables import SYSTEMS

IMAGES: Final = Path(__file__).parents[3] / "docs" / "images"

Points = dict[str, list[tuple[float, float]]]
"""By system: x and seconds, by x."""


@dataclass(frozen=True, slots=True)
class Plot:
    """A panel: the medians of a figure of a row.

    Attributes:
        figure: its name as a pattern. A group in it is the number of the x axis; without a group, x is the number of nodes.
        axis: what x is.
    """

    title: str
    row: str
    figure: str
    axis: str = "nodes"


NODES: Final = (
    Plot("1,000 small gangs: submission to bound, mean", "a", "submitted to all pods bound, mean"),
    Plot("one gang of 4,096 pods: to all bound", "b", "submitted to all pods bound"),
    Plot("quota taken back: to all bound", "d", "the last pod is bound after"),
    Plot("64 nodes lost: to all gangs whole", "e", "lost to all pods bound again, last"),
)
PENDING: Final = (
    Plot(
        "a neighbor's wait, behind pending gangs of another queue",
        "g",
        NEXT_TO.format(r"([\d,]+)"),
        "pending gangs",
    ),
)

_WIDTH: Final = 330
_HEIGHT: Final = 180
_LEFT: Final = 56
_TOP: Final = 46
_COLUMN: Final = _LEFT + _WIDTH + 24
_ROW: Final = _TOP + _HEIGHT + 50
_COLORS: Final = ("floor", "queuectl", "kueue-tuned", "kueue-default")
"""The systems, each by the number of its color."""
_STYLE: Final = """
    text { font: 12px system-ui, sans-serif; fill: #24292f }
    .title { font-size: 13px; font-weight: 600 } .end { text-anchor: end } .middle { text-anchor: middle }
    .axis { fill: none; stroke: #57606a } .grid { stroke: #d0d7de }
    .line { fill: none; stroke-width: 2 }
    .s0 { stroke: #57606a } .s1 { stroke: #2f6fdf } .s2 { stroke: #c4621a } .s3 { stroke: #2e7d32 }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3 } .axis { stroke: #9da7b3 } .grid { stroke: #3d444d }
      .s0 { stroke: #9da7b3 } .s1 { stroke: #6ea8ff } .s2 { stroke: #f0a35e } .s3 { stroke: #7ccf82 }
    }
"""


def points(records: Iterable[RowRecord], plot: Plot) -> Points:
    """The medians of a plot, by system and x. A run that was cut has no point: what it did not reach is missing from its figures."""
    runs: dict[tuple[str, float], list[float]] = defaultdict(list)
    pattern = re.compile(plot.figure)
    for record in records:
        counts = record.row == plot.row and record.status == DONE
        for figure in record.figures if counts else ():
            match = pattern.fullmatch(figure.name)
            if match and not math.isnan(figure.value):
                x = float(match[1].replace(",", "")) if match.groups() else record.nodes
                runs[record.system, x].append(figure.value)
    by_system: Points = defaultdict(list)
    for (system, x), measured in sorted(runs.items()):
        by_system[system].append((x, statistics.median(measured)))
    return dict(by_system)


def draw(plots: Sequence[tuple[Plot, Points]], systems: Sequence[str], label: str) -> str:
    """The panels in two columns, as SVG."""
    rows = math.ceil(len(plots) / 2)
    width, height = 2 * _COLUMN + 10, rows * _ROW + 40
    drawn = [f"<style>{_STYLE}  </style>", *_legend(systems)]
    for number, (plot, curves) in enumerate(plots):
        left, top = _LEFT + number % 2 * _COLUMN, 40 + _TOP + number // 2 * _ROW
        drawn += _panel(plot, curves, systems, left, top)
    body = "\n  ".join(drawn)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" role="img" aria-label="{label}">\n  {body}\n</svg>\n'
    )


def _legend(systems: Sequence[str]) -> list[str]:
    drawn = []
    for number, system in enumerate(systems):
        x = _LEFT + number * 150
        drawn.append(f'<path class="{_line(system)}" d="M{x} 20h24"/>')
        drawn.append(f'<text x="{x + 30}" y="24">{SYSTEMS[system]}</text>')
    return drawn


def _line(system: str) -> str:
    """The classes of a line."""
    return f"line s{_COLORS.index(system)}"


def _panel(
    plot: Plot,
    curves: Mapping[str, Sequence[tuple[float, float]]],
    systems: Sequence[str],
    left: int,
    top: int,
) -> list[str]:
    """One panel. Time is logarithmic, because systems differ by factors; a point has its seconds as a tooltip."""
    every = [point for curve in curves.values() for point in curve]
    most_x = max(x for x, _ in every)
    low = math.floor(math.log10(min(max(y, 0.01) for _, y in every)))
    high = max(low + 1, math.ceil(math.log10(max(max(y, 0.01) for _, y in every))))

    def place(x: float, y: float) -> str:
        share = (math.log10(max(y, 0.01)) - low) / (high - low)
        return f"{left + _WIDTH * x / most_x:.1f} {top + _HEIGHT * (1 - share):.1f}"

    drawn = [f'<text class="title" x="{left}" y="{top - 14}">{plot.title}</text>']
    for power in range(low, high + 1):
        y = top + _HEIGHT * (1 - (power - low) / (high - low))
        drawn.append(f'<path class="grid" d="M{left} {y:.1f}h{_WIDTH}"/>')
        drawn.append(f'<text class="end" x="{left - 6}" y="{y + 4:.1f}">{10.0**power:g} s</text>')
    for system in systems:
        curve, css = curves.get(system, ()), _line(system)
        if len(curve) > 1:
            drawn.append(f'<path class="{css}" d="M{" L".join(place(x, y) for x, y in curve)}"/>')
        for x, y in curve:
            cx, cy = place(x, y).split()
            drawn.append(
                f'<circle class="{css}" cx="{cx}" cy="{cy}" r="3"><title>{SYSTEMS[system]}: {y:.3g} s</title></circle>'
            )
    for x in sorted({x for x, _ in every}):
        at = left + _WIDTH * x / most_x
        drawn.append(f'<text class="middle" x="{at:.0f}" y="{top + _HEIGHT + 16}">{x:,.0f}</text>')
    drawn.append(
        f'<text class="end" x="{left + _WIDTH}" y="{top + _HEIGHT + 32}">{plot.axis}</text>'
    )
    drawn.append(f'<path class="axis" d="M{left} {top}v{_HEIGHT}h{_WIDTH}"/>')
    return drawn


def draw_all(records: Iterable[RowRecord], folder: Path = IMAGES) -> list[Path]:
    """Write each picture for which there are figures. Returns the files."""
    recorded = list(records)
    written = []
    for name, plots, label in (
        ("scale-nodes.svg", NODES, "Times of each system against the number of nodes"),
        ("scale-pending.svg", PENDING, "Times of each system against the number of pending gangs"),
    ):
        shown = [(plot, curves) for plot in plots if (curves := points(recorded, plot))]
        if shown:
            systems = [one for one in _COLORS if any(one in curves for _, curves in shown)]
            file = folder / name
            file.write_text(draw(shown, systems, label))
            written.append(file)
            print(f"wrote {file}")
    return written
