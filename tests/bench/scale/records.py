"""The results of runs as JSON lines, each with commit, date, load and machine."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

from tests.bench.scale.rows import Figure, RowResult

FILL: Final = "fill"
"""The row of the times of fill and snapshot."""
RUNS: Final = Path(__file__).with_name("runs.jsonl")
"""The recorded runs."""


@dataclass(frozen=True, slots=True)
class RowRecord:
    """One line: one row of one run of one system at one size.

    Attributes:
        nodes: those of the cluster.
        run: number of the run, from 1.
        at: time of the end, UTC, ISO 8601.
        load: load average of the last minute at that time.
        conditions: machine, versions, flags and limits.
    """

    system: str
    nodes: int
    row: str
    run: int
    status: str
    figures: tuple[Figure, ...]
    notes: tuple[str, ...]
    commit: str
    at: str
    load: float
    conditions: Mapping[str, str]

    @classmethod
    def now(
        cls,
        system: str,
        nodes: int,
        run: int,
        measured: RowResult,
        commit: str,
        conditions: Mapping[str, str],
    ) -> Self:
        """Of a row that ends now."""
        return cls(
            system,
            nodes,
            measured.letter,
            run,
            measured.status,
            measured.figures,
            measured.notes,
            commit,
            dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            round(os.getloadavg()[0], 1),
            conditions,
        )

    def line(self) -> str:
        """As JSON, with each figure as its value to five digits and its unit."""
        figures = {one.name: [float(f"{one.value:.5g}"), one.unit] for one in self.figures}
        return json.dumps(asdict(self) | {"figures": figures}, ensure_ascii=False)

    @classmethod
    def read(cls, line: str) -> Self:
        """From JSON."""
        fields: dict[str, Any] = json.loads(line)
        figures = tuple(Figure(name, *measured) for name, measured in fields.pop("figures").items())
        return cls(figures=figures, notes=tuple(fields.pop("notes")), **fields)

    def figure(self, name: str) -> float | None:
        """A figure by its name."""
        return next((figure.value for figure in self.figures if figure.name == name), None)


def append(file: Path, record: RowRecord) -> None:
    """Append a line."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lines:
        lines.write(record.line() + "\n")


def read_all(files: Iterable[Path]) -> list[RowRecord]:
    """The lines of some files, in their order."""
    return [
        RowRecord.read(line) for file in files for line in file.read_text().splitlines() if line
    ]
