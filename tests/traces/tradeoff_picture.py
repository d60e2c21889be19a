"""A picture of two waits against each other, for several values of a setting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import dist
from typing import Final

_WIDTH: Final = 640
_HEIGHT: Final = 300
_LEFT: Final = 60
_RIGHT: Final = 30
_ABOVE: Final = 40
_BELOW: Final = 50
_CLOSE: Final = 12  # pixels: points that are closer have one label
_STEPS: Final = (1, 2, 5, 10, 20)  # percent between two lines of the grid
_STYLE: Final = """
    text { font: 12px system-ui, sans-serif; fill: #24292f }
    .title { font-size: 14px; font-weight: 600 } .middle { text-anchor: middle } .end { text-anchor: end }
    .grid { stroke: #d0d7de } .curve { stroke: #2f6fdf; stroke-width: 2; fill: none } .point { fill: #2f6fdf }
    .fifo { stroke: #c4621a; stroke-width: 2; stroke-dasharray: 5 3 } .note { fill: #c4621a }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3 } .grid { stroke: #3d444d } .fifo { stroke: #f0a35e } .note { fill: #f0a35e }
    }
"""

Point = tuple[str, float, float]
"""The value of the setting, the wait of all jobs, and that of gangs of several nodes, both in percent of FIFO."""


class _Axis:
    """One axis: it has all values and 100%."""

    def __init__(self, values: Sequence[float], at: float, pixels: float) -> None:
        least, most = min((*values, 100.0)), max((*values, 100.0))
        self.step = next(step for step in _STEPS if step * 6 >= most - least or step == _STEPS[-1])
        self._least = self.step * int(least // self.step)
        self._most = -self.step * int(-(most + 0.01) // self.step)
        self._at, self._scale = at, pixels / (self._most - self._least)

    def place(self, value: float) -> float:
        return self._at + self._scale * (value - self._least)

    def ticks(self) -> range:
        return range(self._least, self._most + 1, self.step)


def picture(points: Sequence[Point]) -> str:
    """An SVG picture of a curve through the points."""
    x = _Axis([all_jobs for _, all_jobs, _ in points], _LEFT, _WIDTH - _LEFT - _RIGHT)
    y = _Axis([several for *_, several in points], _HEIGHT - _BELOW, _ABOVE + _BELOW - _HEIGHT)
    title = "Mean waits for each factor, in percent of the waits with StrictFIFO"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{title}">',
        f"  <style>{_STYLE}  </style>",
        f'  <text class="title" x="{_LEFT}" y="18">{title}</text>',
        *_grid(x, y),
        *_curve(points, x, y),
    ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _grid(x: _Axis, y: _Axis) -> Iterator[str]:
    below, right = _HEIGHT - _BELOW, _WIDTH - _RIGHT
    for at in x.ticks():
        place = f"{x.place(at):.1f}"
        yield f'  <line class="grid" x1="{place}" x2="{place}" y1="{_ABOVE}" y2="{below}"/>'
        yield f'  <text class="middle" x="{place}" y="{below + 16}">{at}%</text>'
    for at in y.ticks():
        place = f"{y.place(at):.1f}"
        yield f'  <line class="grid" x1="{_LEFT}" x2="{right}" y1="{place}" y2="{place}"/>'
        yield f'  <text class="end" x="{_LEFT - 6}" y="{y.place(at) + 4:.1f}">{at}%</text>'
    fifo = f"{y.place(100):.1f}"
    yield f'  <line class="fifo" x1="{_LEFT}" x2="{right}" y1="{fifo}" y2="{fifo}"/>'
    yield f'  <text class="note end" x="{right}" y="{y.place(100) - 6:.1f}">StrictFIFO</text>'
    middle = (_LEFT + right) / 2
    yield f'  <text class="middle" x="{middle:.1f}" y="{_HEIGHT - 12}">mean wait of all jobs</text>'
    yield f'  <text x="{_LEFT}" y="{_ABOVE - 6}">mean wait of gangs of several nodes</text>'


def _curve(points: Sequence[Point], x: _Axis, y: _Axis) -> Iterator[str]:
    places = {name: (x.place(mean), y.place(several)) for name, mean, several in points}
    path = " ".join(f"{left:.1f},{top:.1f}" for left, top in places.values())
    yield f'  <polyline class="curve" points="{path}"/>'
    named: list[tuple[tuple[float, float], list[str]]] = []
    for name, place in places.items():
        yield f'  <circle class="point" cx="{place[0]:.1f}" cy="{place[1]:.1f}" r="4"/>'
        if named and dist(place, named[-1][0]) < _CLOSE:
            named[-1][1].append(name)
        else:
            named.append((place, [name]))
    for (left, top), names in named:
        yield f'  <text x="{left + 7:.1f}" y="{top - 7:.1f}">{", ".join(names)}</text>'
