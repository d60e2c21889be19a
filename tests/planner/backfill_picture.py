"""Draws docs/images/backfill.svg from plans of the planner: ``python -m tests.planner.backfill_picture``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from queuectl.domain.queues import ClusterQueue
from tests.planner.backfill_clock import Arrival, Clock, job, line
from tests.planner.build import NOW, node, queue

ROOT: Final = Path(__file__).parents[2]
PICTURE: Final = ROOT / "docs" / "images" / "backfill.svg"
MINUTE: Final = 60.0

_LEFT: Final = 58
_SCALE: Final = 4.4  # pixels for a minute
_UNTIL: Final = 160  # minutes
_ROW: Final = 26
_PANEL: Final = 178
_STYLE: Final = """
    text { font: 12px system-ui, sans-serif; fill: #24292f }
    .title { font-size: 14px; font-weight: 600 } .middle { text-anchor: middle } .end { text-anchor: end }
    .grid { stroke: #d0d7de } .in { fill: #ffffff; font-weight: 600; text-anchor: middle }
    .large { fill: #2f6fdf } .small { fill: #57862f } .first { fill: #8c959f }
    .planned { stroke: #c4621a; stroke-width: 2; stroke-dasharray: 5 3 } .note { fill: #c4621a }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3 } .grid { stroke: #3d444d } .in { fill: #ffffff } .planned { stroke: #f0a35e } .note { fill: #f0a35e }
    }
"""

_NODES: Final = tuple(node(f"n{number}", gpu=1) for number in range(4))
_LOAD: Final = (
    ("A", 0, 1, 40),
    ("B", 0, 1, 60),
    ("L", 5, 4, 40),
    ("c", 10, 1, 30),
    ("d", 10, 1, 50),
    ("e", 15, 1, 55),
    ("f", 42, 1, 16),
)
"""Gangs: name, arrival, pods (one for each node), minutes, which are the limit too."""


def _run(of: ClusterQueue) -> Clock:
    arrivals = [
        Arrival(
            at * MINUTE, job(name, pods, length * MINUTE, queued_at=at * MINUTE), length * MINUTE
        )
        for name, at, pods, length in _LOAD
    ]
    clock = Clock(_NODES, arrivals, of)
    clock.run(until=_UNTIL * MINUTE)
    return clock


def _x(minutes: float) -> float:
    return _LEFT + minutes * _SCALE


def _panel(top: int, title: str, clock: Clock) -> Iterator[str]:
    """The nodes over time."""
    yield f'<text class="title" x="{_LEFT}" y="{top + 14}">{title}</text>'
    first = top + 26
    bottom = first + _ROW * len(_NODES)
    for minutes in range(0, _UNTIL + 1, 20):
        yield f'<line class="grid" x1="{_x(minutes):.1f}" x2="{_x(minutes):.1f}" y1="{first}" y2="{bottom}"/>'
        yield f'<text class="middle" x="{_x(minutes):.1f}" y="{bottom + 16}">{minutes} min</text>'
    for number in range(len(_NODES)):
        yield f'<text class="end" x="{_LEFT - 8}" y="{first + _ROW * number + 17}">node {number}</text>'
    for arrival in clock.arrivals:
        yield from _bars(first, clock, arrival)
    yield from _planned(first, bottom, clock)


def _bars(first: int, clock: Clock, arrival: Arrival) -> Iterator[str]:
    name = arrival.workload.uid
    kind = "large" if name == "L" else "first" if arrival.at == 0 else "small"
    begin, length = clock.started[name] / MINUTE, arrival.runs / MINUTE
    for podset in clock.placed[name].podsets:
        for at, _ in podset.nodes:
            y = first + _ROW * int(at[1:])
            width = length * _SCALE - 1
            yield f'<rect class="{kind}" x="{_x(begin):.1f}" y="{y + 2}" width="{width:.1f}" height="{_ROW - 4}" rx="4"/>'
            yield f'<text class="in" x="{_x(begin + length / 2):.1f}" y="{y + 17}">{name}</text>'


def _planned(first: int, bottom: int, clock: Clock) -> Iterator[str]:
    starts = [planned.start.at for _, _, made in clock.plans for planned in made.planned]
    for at in starts[:1]:
        x = _x((at - NOW) / MINUTE)
        yield f'<line class="planned" x1="{x:.1f}" x2="{x:.1f}" y1="{first - 8}" y2="{bottom}"/>'
        yield f'<text class="note" x="{x + 5:.1f}" y="{first - 6}">planned start of L, from minute 5 on</text>'


def draw() -> str:
    """The picture of both strategies, as SVG."""
    panels = [
        *_panel(0, "BestEffortFIFO", _run(queue())),
        *_panel(_PANEL, "Backfill", _run(line())),
    ]
    width, height = _x(_UNTIL) + 30, 2 * _PANEL
    label = "Four nodes over time: with BestEffortFIFO a gang of four nodes starts late, with Backfill it starts at its planned start"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
        f'width="{width:.0f}" height="{height}" role="img" aria-label="{label}">'
    )
    return "\n  ".join([head, f"<style>{_STYLE}  </style>", *panels]) + "\n</svg>\n"


def main() -> None:
    """Draw the picture."""
    PICTURE.write_text(draw())
    print(f"wrote {PICTURE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
