"""Markdown tables of recorded runs: a table for each size, with all runs and their medians."""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tests.bench.scale.records import FILL, RowRecord
from tests.bench.scale.rows import CUT, DONE, ROWS

RESOURCES: Final = re.compile(r"(CPU|peak memory|private memory|restarts|writes|refused writes): ")
"""Figures of the second table: of each program."""

Cell = tuple[int, str, str, str]
"""Nodes, letter of the row, name and unit of the figure."""


def tables(records: Iterable[RowRecord]) -> str:
    """All tables: for each size the times, then the use of resources; at the end the notes and conditions."""
    recorded = list(records)
    parts = []
    for nodes in sorted({record.nodes for record in recorded}):
        of_size = [record for record in recorded if record.nodes == nodes]
        for title, resources in (("measured", False), ("use of resources", True)):
            parts.append(f"{nodes:,} nodes, {title}:\n\n" + _table(of_size, resources=resources))
    notes = "\n".join(f"- {line}" for line in _notes(recorded))
    return "\n\n".join([*parts, notes]) + "\n"


def _table(records: Sequence[RowRecord], *, resources: bool) -> str:
    systems = list(dict.fromkeys(record.system for record in records))
    lines = [_line(["row", "figure", *systems]), _line(["---", "---", *["---:"] * len(systems)])]
    for letter in _letters(records):
        of_row = [record for record in records if record.row == letter]
        cells = {system: _runs([r for r in of_row if r.system == system]) for system in systems}
        names = dict.fromkeys(
            (figure.name, figure.unit)
            for record in of_row
            for figure in record.figures
            if bool(RESOURCES.match(figure.name)) == resources
        )
        missing = {
            system: status for system in systems if (status := _status(of_row, system)) != DONE
        }
        if missing and not resources:
            lines.append(_line([_title(letter), "", *(missing.get(s, "") for s in systems)]))
        for name, unit in names:
            label = f"{name}, {unit}" if unit else name
            shown = [_cell(cells[system].get(name, [])) for system in systems]
            lines.append(_line([_title(letter), label, *shown]))
    return "\n".join(lines)


def _letters(records: Iterable[RowRecord]) -> list[str]:
    rows = {record.row for record in records}
    return sorted(rows, key=lambda row: (not row.startswith(FILL), row))


def _title(letter: str) -> str:
    return f"({letter})" if letter in ROWS else letter


def _status(records: Sequence[RowRecord], system: str) -> str:
    """How the runs of a system ended, if not all are done."""
    statuses = [record.status for record in records if record.system == system]
    return DONE if set(statuses) <= {DONE} else ", ".join(statuses)


def _runs(records: Iterable[RowRecord]) -> dict[str, list[float]]:
    """The values of each figure in the order of the runs."""
    runs: dict[str, list[float]] = defaultdict(list)
    for record in sorted(records, key=lambda record: record.at):
        for figure in record.figures:
            runs[figure.name].append(figure.value)
    return runs


def _cell(runs: Sequence[float]) -> str:
    """The median, and all runs if there are several."""
    if not runs:
        return ""
    measured = [run for run in runs if not math.isnan(run)]
    middle = number(statistics.median(measured)) if measured else "-"
    return middle if len(runs) == 1 else f"{middle} ({', '.join(map(number, runs))})"


def number(measured: float) -> str:
    """With three significant digits, and whole above 100."""
    if math.isnan(measured):
        return "-"
    if abs(measured) >= 100 or measured == int(measured):
        return f"{measured:,.0f}"
    return f"{measured:.{max(0, 2 - math.floor(math.log10(abs(measured))))}f}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _notes(records: Sequence[RowRecord]) -> Iterator[str]:
    """Once each: rows, notes, runs that were cut, and the conditions."""
    for letter in _letters(records):
        if letter in ROWS:
            yield f"({letter}): {ROWS[letter].title}"
    for record in records:
        where = f"{record.system}, {record.nodes:,} nodes, {_title(record.row)}, run {record.run}"
        cut = f" {CUT}" if record.status == CUT else ""
        for text in record.notes:
            yield f"{where}{cut}: {text}"
    for record in records:
        yield f"{record.system}, {record.nodes:,} nodes, {_title(record.row)}, run {record.run}: {record.at}, commit {record.commit}, load {record.load:g}"
    for system in dict.fromkeys(record.system for record in records):
        last = [record for record in records if record.system == system][-1]
        for name, text in last.conditions.items():
            yield f"{system}: {name}: {text}"
