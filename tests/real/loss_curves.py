"""Draws docs/images/resumed-training.svg from the last run of tests/real/test_training.py: ``python -m tests.real.loss_curves``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from tests.real.training import Step, steps

ROOT: Final = Path(__file__).parents[2]
RECORD: Final = ROOT / "build" / "training"
PICTURE: Final = ROOT / "docs" / "images" / "resumed-training.svg"

_WIDTH: Final = 330
_HEIGHT: Final = 200
_LEFT: Final = 46
_TOP: Final = 50
_GAP: Final = 60
_BAND: Final = 76
_POINTS: Final = 120
_INTERVAL: Final = 50
"""Steps between two marks of the axis."""
_PAUSE_SECONDS: Final = 5.0
"""A longer time without a step is a time without processes."""

_STYLE: Final = """
    text { font: 12px system-ui, sans-serif; fill: #24292f }
    .title { font-size: 14px; font-weight: 600 } .end { text-anchor: end } .middle { text-anchor: middle }
    .axis { fill: none; stroke: #57606a } .grid { stroke: #d0d7de }
    .curve { fill: none; stroke: #2f6fdf; stroke-width: 1.5 } .resumed { stroke: #c4621a }
    .pause { fill: #8c959f; opacity: 0.18 }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3 } .axis { stroke: #9da7b3 } .grid { stroke: #3d444d }
      .curve { stroke: #6ea8ff } .resumed { stroke: #f0a35e }
    }
"""


def attempts(done: Sequence[Step]) -> list[list[Step]]:
    """The steps of each attempt. Between two attempts is a pause."""
    found = [[done[0]]]
    for before, after in pairwise(done):
        if after.at - before.at > _PAUSE_SECONDS:
            found.append([])
        found[-1].append(after)
    return found


class Chart:
    """One panel: the loss by step, on a logarithmic axis that both panels share. The time depends on the load of the machine."""

    def __init__(self, left: float, count: int, losses: Iterable[float]) -> None:
        self._left, self._count = left, count
        values = list(losses)
        self._low, self._high = math.log10(min(values)), math.log10(max(values))

    def x(self, number: int) -> float:
        return self._left + _WIDTH * number / self._count

    def y(self, loss: float) -> float:
        share = (math.log10(loss) - self._low) / (self._high - self._low)
        return _TOP + _HEIGHT * (1 - share)

    def draw(self, title: str, done: Sequence[Step], final: float) -> list[str]:
        """The elements of the panel. A pause takes a band of the panel."""
        parts = attempts(done)
        right = self._left + _WIDTH + _BAND * (len(parts) - 1)
        drawn = [f'<text class="title" x="{self._left}" y="{_TOP - 28}">{title}</text>']
        drawn.append(
            f'<text x="{self._left}" y="{_TOP - 10}">final loss {final:.8f} after {done[-1].number} steps</text>'
        )
        for loss in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0):
            if self._low <= math.log10(loss) <= self._high:
                drawn += self._line_of(loss, right)
        for before, after in pairwise(parts):
            drawn += self._pause(before[-1], after[0])
        for number, part in enumerate(parts):
            drawn += self._curve(part, number)
        bottom = _TOP + _HEIGHT
        drawn.append(f'<path class="axis" d="M{self._left} {_TOP}V{bottom}H{right}"/>')
        return drawn

    def _line_of(self, loss: float, right: float) -> list[str]:
        at = self.y(loss)
        return [
            f'<path class="grid" d="M{self._left} {at:.1f}H{right}"/>',
            f'<text class="end" x="{self._left - 6}" y="{at + 4:.1f}">{loss:g}</text>',
        ]

    def _pause(self, before: Step, after: Step) -> list[str]:
        start = self.x(before.number)
        lines = (f"step {before.number}:", "preempted", f"for {after.at - before.at:.0f} s")
        return [
            f'<rect class="pause" x="{start:.1f}" y="{_TOP}" width="{_BAND}" height="{_HEIGHT}"/>',
            *(
                f'<text class="middle" x="{start + _BAND / 2:.1f}" y="{_TOP + 16 * (1 + number)}">{line}</text>'
                for number, line in enumerate(lines)
            ),
        ]

    def _curve(self, part: Sequence[Step], earlier: int) -> list[str]:
        """The curve of an attempt after ``earlier`` attempts, and the numbers of steps below it."""
        left = _BAND * earlier
        every = max(1, self._count // _POINTS)
        shown = [one for one in part if one.number % every == 0 or one in (part[0], part[-1])]
        points = " ".join(
            f"{left + self.x(one.number):.1f},{self.y(one.loss):.1f}" for one in shown
        )
        marks = range(0 if not earlier else part[0].number, part[-1].number + 1)
        return [
            f'<polyline class="{"curve resumed" if earlier else "curve"}" points="{points}"/>',
            *(
                f'<text class="middle" x="{left + self.x(number):.0f}" y="{_TOP + _HEIGHT + 16}">{number}</text>'
                for number in marks
                if number % _INTERVAL == 0
            ),
        ]


def draw(undisturbed: Sequence[Step], interrupted: Sequence[Step], finals: Sequence[float]) -> str:
    """The picture of both runs, as SVG."""
    losses = [step.loss for run in (undisturbed, interrupted) for step in run]
    count = undisturbed[-1].number
    drawn = []
    runs = (("Without interruption", undisturbed), ("Preempted and resumed", interrupted))
    for number, (title, done) in enumerate(runs):
        chart = Chart(_LEFT + number * (_WIDTH + _GAP), count, losses)
        drawn += chart.draw(title, done, finals[number])
    width = 2 * _WIDTH + _GAP + _LEFT + 20 + _BAND * (len(attempts(interrupted)) - 1)
    height = _TOP + _HEIGHT + 30
    label = "The loss of a training by step, without interruption and preempted: both end with the same loss"
    return (
        "\n  ".join(
            [
                (
                    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
                    f'width="{width}" height="{height}" role="img" aria-label="{label}">'
                ),
                f"<style>{_STYLE}  </style>",
                *drawn,
            ]
        )
        + "\n</svg>\n"
    )


def main() -> None:
    """Draw the picture of the recorded runs."""
    runs = [steps(RECORD / name) for name in ("undisturbed", "pretrain")]
    finals = json.loads((RECORD / "final.json").read_text())
    PICTURE.write_text(draw(runs[0], runs[1], [finals["undisturbed"], finals["pretrain"]]))
    print(f"wrote {PICTURE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
