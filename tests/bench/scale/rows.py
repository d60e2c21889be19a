"""A row of the benchmark: its load, its figures and its time limit; and all rows by letter."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tests.bench.scale.processes import Usage
from tests.bench.scale.stage import RowCutError, ScaleStage
from tests.bench.scale.times import EVENTS, LEASES

ROW_SECONDS: Final = 900.0

DONE, CUT, FAILED, NOT_OFFERED = "done", "cut", "failed", "not offered"


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured number."""

    name: str
    value: float
    unit: str = ""


@dataclass
class RowFigures:
    """The figures of a row, filled in while it runs, so that a cut row has those that it reached.

    Attributes:
        notes: what a reader of the figures must know, such as a scaled load.
    """

    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, value: float, unit: str = "") -> None:
        """Append a figure."""
        self.figures.append(Figure(name, value, unit))

    def note(self, text: str) -> None:
        """Append a note, once."""
        if text not in self.notes:
            self.notes.append(text)


@dataclass(frozen=True, slots=True)
class RowResult:
    """How a row ended. ``status``: DONE, CUT, FAILED or NOT_OFFERED."""

    letter: str
    status: str
    figures: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """A row.

    Attributes:
        letter: of the issue and the tables.
        title: of the tables.
        play: submits the load, waits, and adds figures. It raises RowCutError when the time is over.
        fill: the name of the fill that occupies the cluster before.
        standby: a second replica runs.
        lists_pods: the row reads ``ScaleStage.pods``. They are listed before the measurement.
        limit: seconds.
    """

    letter: str
    title: str
    play: Callable[[ScaleStage, RowFigures], None]
    fill: str = "mix"
    standby: bool = False
    lists_pods: bool = False
    limit: float = ROW_SECONDS


ROWS: Final[dict[str, Row]] = {}
"""By letter. The modules of rows register theirs by :func:`register`."""


def register(*rows: Row) -> None:
    """Add rows."""
    ROWS.update({row.letter: row for row in rows})


def measure(row: Row, stage: ScaleStage) -> RowResult:
    """Measure a row on a restored stage. It does not raise: a failed row is a result."""
    reached = RowFigures()
    if row.standby:
        stage.system.add_standby()
    if row.lists_pods:
        stage.pods = stage.list_pods()
    settled = stage.settle()
    before = stage.usage()
    stage.begin(row.limit)
    began = time.monotonic()
    status = DONE
    try:
        row.play(stage, reached)
    except RowCutError as error:
        status = CUT
        reached.note(f"cut after {time.monotonic() - began:.0f} s: {error}")
    except Exception as error:  # noqa: BLE001  the next row is measured anyway
        status = FAILED
        reached.note(f"{type(error).__name__}: {error}")
        traceback.print_exc()
    try:
        _common(stage, reached, before, time.monotonic() - began)
        reached.add("API server at rest after", settled, "s")
        for remark in stage.system.remarks():
            reached.note(remark)
        for problem in stage.system.problems():
            status = FAILED
            reached.note(problem)
    except Exception as error:  # noqa: BLE001  also of a control plane that has ended
        status = FAILED
        reached.note(f"{type(error).__name__}: {error}")
        traceback.print_exc()
    return RowResult(row.letter, status, tuple(reached.figures), tuple(reached.notes))


def _common(stage: ScaleStage, reached: RowFigures, before: Usage, seconds: float) -> None:
    """Figures of each row: writes by program, CPU seconds, memory and restarts of each program."""
    timeline, after = stage.follow(), stage.usage()
    reached.add("the row took", seconds, "s")
    if stage.repeated:
        reached.add("repeated creations of Jobs and edits", stage.repeated)
    writes = timeline.by_writer()
    reached.add(
        "writes without node leases and Events", timeline.all_writes(without=(LEASES, EVENTS))
    )
    reached.add("writes of node leases per second", writes.get(LEASES, 0) / max(seconds, 1e-9))
    for writer, number in writes.items():
        reached.add(f"writes: {writer}", number)
    for (writer, code), number in sorted(timeline.refused.items()):
        reached.add(f"refused writes: {writer}, {code}", number)
    for name, cpu in after.cpu_since(before).items():
        reached.add(f"CPU: {name}", cpu, "s")
    for name, memory in after.peak.items():
        reached.add(f"peak memory: {name}", memory, "MiB")
    for name, restarts in after.restarts.items():
        reached.add(f"restarts: {name}", restarts)


def selected(letters: str) -> list[Row]:
    """Rows by their letters, such as ``a,b``; "" = all.

    Raises:
        ValueError: a letter has no row.
    """
    chosen = [letter.strip() for letter in letters.split(",") if letter.strip()] or sorted(ROWS)
    if unknown := [letter for letter in chosen if letter not in ROWS]:
        raise ValueError(f"no row {', '.join(unknown)}; there are {', '.join(sorted(ROWS))}")
    return [ROWS[letter] for letter in chosen]
