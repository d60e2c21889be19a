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
_POINTS: Final = 120
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
    """One panel: the loss over time, on a logarithmic axis that both panels share."""

    def __init__(self, left: float, begin: float, seconds: float, losses: Iterable[float]) -> None:
        self._left, self._begin, self._seconds = left, begin, seconds
        values = list(losses)
        self._low, self._high = math.log10(min(values)), math.log10(max(values))

    def x(self, at: float) -> float:
        return self._left + _WIDTH * (at - self._begin) / self._seconds

    def y(self, loss: float) -> float:
        share = (math.log10(loss) - self._low) / (self._high - self._low)
        return _TOP + _HEIGHT * (1 - share)

    def draw(self, title: str, done: Sequence[Step], final: float) -> list[str]:
        """The elements of the panel."""
        bottom = _TOP + _HEIGHT
        drawn = [f'<text class="title" x="{self._left}" y="{_TOP - 28}">{title}</text>']
        drawn.append(
            f'<text x="{self._left}" y="{_TOP - 10}">final loss {final:.8f} after {done[-1].number} steps</text>'
        )
        for loss in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0):
            if self._low <= math.log10(loss) <= self._high:
                drawn += self._line_of(loss)
        for number in range(0, int(self._seconds) + 1, _interval(self._seconds)):
            at = self.x(self._begin + number)
            drawn.append(f'<text class="middle" x="{at:.0f}" y="{bottom + 16}">{number} s</text>')
        parts = attempts(done)
        for before, after in pairwise(parts):
            drawn += self._pause(before[-1], after[0])
        for number, part in enumerate(parts):
            drawn.append(self._curve(part, "curve resumed" if number else "curve"))
        right = self._left + _WIDTH
        drawn.append(f'<path class="axis" d="M{self._left} {_TOP}V{bottom}H{right}"/>')
        return drawn

    def _line_of(self, loss: float) -> list[str]:
        at, right = self.y(loss), self._left + _WIDTH
        return [
            f'<path class="grid" d="M{self._left} {at:.1f}H{right}"/>',
            f'<text class="end" x="{self._left - 6}" y="{at + 4:.1f}">{loss:g}</text>',
        ]

    def _pause(self, before: Step, after: Step) -> list[str]:
        start, end = self.x(before.at), self.x(after.at)
        middle = (start + end) / 2
        return [
            f'<rect class="pause" x="{start:.1f}" y="{_TOP}" width="{end - start:.1f}" height="{_HEIGHT}"/>',
            f'<text class="middle" x="{middle:.1f}" y="{_TOP + 16}">preempted after</text>',
            f'<text class="middle" x="{middle:.1f}" y="{_TOP + 32}">step {before.number}</text>',
        ]

    def _curve(self, part: Sequence[Step], name: str) -> str:
        every = max(1, len(part) // _POINTS)
        shown = [*part[::every], part[-1]]
        points = " ".join(f"{self.x(step.at):.1f},{self.y(step.loss):.1f}" for step in shown)
        return f'<polyline class="{name}" points="{points}"/>'


def _interval(seconds: float) -> int:
    return next(length for length in (10, 20, 50, 100, 200, 500) if seconds / length <= 6)


def draw(undisturbed: Sequence[Step], interrupted: Sequence[Step], finals: Sequence[float]) -> str:
    """The picture of both runs, as SVG."""
    losses = [step.loss for run in (undisturbed, interrupted) for step in run]
    seconds = max(run[-1].at - run[0].at for run in (undisturbed, interrupted))
    drawn = []
    runs = (("Without interruption", undisturbed), ("Preempted and resumed", interrupted))
    for number, (title, done) in enumerate(runs):
        chart = Chart(_LEFT + number * (_WIDTH + _GAP), done[0].at, seconds, losses)
        drawn += chart.draw(title, done, finals[number])
    width = 2 * _WIDTH + _GAP + _LEFT + 20
    height = _TOP + _HEIGHT + 30
    label = "The loss of a training over time, without interruption and preempted: both end with the same loss"
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
