"""``make recording``: runs the demo in a terminal, and draws docs/images/demo.svg from what it prints.

The picture is an animation of CSS without a script. It shows the last screen to readers who prefer reduced motion.
"""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import Final

import pyte
from pyte.screens import Char

ROOT: Final = Path(__file__).parents[2]
COLUMNS: Final = 128
ROWS: Final = 34
SAMPLE_SECONDS: Final = 2.0
FRAME_SECONDS: Final = 0.8
LAST_SECONDS: Final = 6.0
_CELL: Final = (7.25, 16)
_COLORS: Final = {
    "default": "#e2e8f0",
    "red": "#f87171",
    "green": "#4ade80",
    "brown": "#fbbf24",
    "yellow": "#fbbf24",
    "blue": "#60a5fa",
    "magenta": "#e879f9",
    "cyan": "#22d3ee",
    "black": "#94a3b8",
    "white": "#f8fafc",
}


@dataclass(frozen=True)
class Span:
    """Characters of one style in a line; ``column`` is that of the first one."""

    column: int
    text: str
    color: str
    bold: bool


Line = tuple[Span, ...]
Frame = tuple[Line, ...]


def spans(row: Sequence[Char]) -> Line:
    """A line of the screen, without the blanks at its end."""
    end = max((at for at, cell in enumerate(row, 1) if cell.data.strip()), default=0)
    found = []
    styled = groupby(enumerate(row[:end]), key=lambda item: (item[1].fg, item[1].bold))
    for (color, bold), cells in styled:
        part = list(cells)
        found.append(Span(part[0][0], "".join(cell.data for _, cell in part), color, bold))
    return tuple(found)


def picture(screen: pyte.Screen) -> Frame:
    """The lines of a screen."""
    return tuple(
        spans([screen.buffer[row][column] for column in range(COLUMNS)]) for row in range(ROWS)
    )


def played(command: Sequence[str]) -> Iterator[Frame]:
    """Run a command in a terminal. Yields its screen whenever it has changed, at most once in SAMPLE_SECONDS, and at the end.

    Raises CalledProcessError if the command fails.
    """
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    ours, theirs = pty.openpty()
    size = {"COLUMNS": str(COLUMNS), "LINES": str(ROWS), "TERM": "xterm-256color"}
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, **size}
    )
    os.close(theirs)
    sampled = time.monotonic()
    while process.poll() is None or select.select([ours], [], [], 0)[0]:
        if select.select([ours], [], [], 0.1)[0]:
            try:
                stream.feed(os.read(ours, 65536))
            except OSError:  # the terminal is closed
                break
        if time.monotonic() - sampled > SAMPLE_SECONDS:
            sampled = time.monotonic()
            yield picture(screen)
    os.close(ours)
    yield picture(screen)
    if process.wait():
        raise subprocess.CalledProcessError(process.returncode, command)


def drawn(frames: Sequence[Frame]) -> str:
    """The animation. Each different line is drawn once and used by all frames that show it."""
    width, height = COLUMNS * _CELL[0] + 24, ROWS * _CELL[1] + 24
    lines = {
        line: f"l{at}"
        for at, line in enumerate(dict.fromkeys(filter(None, chain.from_iterable(frames))))
    }
    total = FRAME_SECONDS * (len(frames) - 1) + LAST_SECONDS
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" aria-labelledby="t">',
        '<title id="t">The demo: gangs start, wait and are evicted, and an audit checks each start</title>',
        "<style>text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre;fill:"
        f"{_COLORS['default']}}}.b{{font-weight:700}}"
        + "".join(
            f".{name}{{fill:{color}}}" for name, color in _COLORS.items() if name != "default"
        )
        + ".f{visibility:hidden}",
    ]
    for at in range(len(frames)):
        start = 100 * at * FRAME_SECONDS / total
        end = 100.0 if at == len(frames) - 1 else 100 * (at + 1) * FRAME_SECONDS / total
        before = "" if at == 0 else "0%{visibility:hidden}"
        after = "" if end == 100.0 else f"{end:.3f}%,100%{{visibility:hidden}}"
        out.append(
            f"@keyframes k{at}{{{before}{start:.3f}%{{visibility:visible}}{after}}}"
            f"#f{at}{{animation:k{at} {total:g}s step-end infinite}}"
        )
    last = len(frames) - 1
    out.append(
        f"@media(prefers-reduced-motion:reduce){{.f{{animation:none!important}}#f{last}{{visibility:visible}}}}</style>"
    )
    out.append(f'<rect width="{width:g}" height="{height:g}" rx="8" fill="#0f172a"/><defs>')
    for line, name in lines.items():
        parts = "".join(_text(span) for span in line)
        out.append(f'<g id="{name}">{parts}</g>')
    out.append("</defs>")
    for at, frame in enumerate(frames):
        uses = "".join(
            f'<use href="#{lines[line]}" y="{(row + 1) * _CELL[1] + 8}"/>'
            for row, line in enumerate(frame)
            if line
        )
        out.append(f'<g id="f{at}" class="f">{uses}</g>')
    return "\n".join([*out, "</svg>", ""])


def _text(span: Span) -> str:
    name = span.color if span.color in _COLORS and span.color != "default" else ""
    classes = " ".join(filter(None, (name, "b" if span.bold else "")))
    style = f' class="{classes}"' if classes else ""
    length = f' textLength="{len(span.text) * _CELL[0]:g}"'
    return f'<text x="{span.column * _CELL[0] + 12:g}"{style}{length} xml:space="preserve">{escape(span.text)}</text>'


def _has_table(frame: Frame) -> bool:
    return any(line and line[0].text.startswith("GANG") for line in frame)


def main() -> None:
    """Record the demo, from the end of its set-up on."""
    frames = list(played([str(Path(sys.executable).with_name("queuectl")), "demo"]))
    start = next(at for at, frame in enumerate(frames) if _has_table(frame)) - 1
    different = [after for before, after in pairwise(frames[start:]) if after != before]
    (ROOT / "docs" / "images" / "demo.svg").write_text(drawn([frames[start], *different]))


if __name__ == "__main__":
    main()
