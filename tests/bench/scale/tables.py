"""Markdown tables of recorded runs, for each size: the figures of the page of benchmarks with all runs, or all figures with their medians."""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from tests.bench.scale.records import FILL, RowRecord
from tests.bench.scale.rows import CUT, DONE, FAILED, ROWS
from tests.bench.scale.rows_queues import NEXT_TO

RESOURCES: Final = re.compile(r"(CPU|peak memory|private memory|restarts|writes|refused writes): ")
"""Figures of the second table: of each program."""

# ---- The page of benchmarks


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a table of the page.

    Attributes:
        figure: the name of the figure; ``{}`` is the controller of the system.
    """

    row: str
    title: str
    figure: str


SYSTEMS: Final = {
    "floor": "no controller",
    "kueue-tuned": "Kueue, tuned",
    "kueue-default": "Kueue, default",
    "queuectl": "queuectl",
}
"""The columns, by system."""
_MIX, _ONES = f"{FILL} mix", f"{FILL} ones"
_NEXT_TO: Final = tuple(
    line
    for pending in ("0", "2,000", "20,000")
    for line in (
        Line("g", f"wait next to {pending} pending gangs, median", NEXT_TO.format(pending)),
        Line("g", "slowest", f"wait next to {pending} pending, slowest"),
    )
)
LINES: Final = (
    Line(_MIX, "all gangs of the fill run after", "filled after"),
    Line(_MIX, "CPU time of the API server", "CPU: kube-apiserver"),
    Line(_MIX, "CPU time of the controller", "CPU: {}"),
    Line("a", "submission to all pods bound, mean", "submitted to all pods bound, mean"),
    Line("a", "p50", "submitted to all pods bound, p50"),
    Line("a", "p99", "submitted to all pods bound, p99"),
    Line("a", "the last gang is bound after", "the last pod is bound after"),
    Line("a", "submission to all pods running, mean", "submitted to all pods running, mean"),
    Line("a", "writes without node leases and Events", "writes without node leases and Events"),
    Line("a", "writes by the controller", "writes: {}"),
    Line("a", "CPU time of the API server", "CPU: kube-apiserver"),
    Line("a", "of kube-scheduler", "CPU: kube-scheduler"),
    Line("a", "of the controller", "CPU: {}"),
    Line("a", "peak memory of the API server, MiB", "peak memory: kube-apiserver"),
    Line("a", "of the controller, MiB", "peak memory: {}"),
    Line("b", "one gang: submission to all pods bound", "submitted to all pods bound"),
    Line("c", "submission to the reason, median", "submitted to a reason, median"),
    Line("c", "slowest", "submitted to a reason, slowest"),
    Line("d", "the last gang is bound after", "the last pod is bound after"),
    Line("d", "evicted gangs", "evicted gangs"),
    Line("d", "CPU time of the controller", "CPU: {}"),
    Line("e", "loss to all pods bound again, median", "lost to all pods bound again, p50"),
    Line("e", "last", "lost to all pods bound again, last"),
    Line(
        "e",
        "removal of the lost pods to all pods bound again, median",
        "lost pods removed to all pods bound again, p50",
    ),
    Line(
        "f",
        "leader killed: expiry of its lease to the first admission",
        "first admission after the expiry of the lease",
    ),
    Line("f", "kill to the first admission", "first admission after the kill"),
    Line(
        "f",
        "API server killed: its `/readyz` to the first admission",
        "first admission after /readyz of the API server",
    ),
    Line("f", "to the first binding", "first binding after /readyz of the API server"),
    *_NEXT_TO,
    Line(
        "g", "while 18,000 gangs arrive, median", "wait of another gang while 18,000 arrive, median"
    ),
    Line("g", "slowest", "wait of another gang while 18,000 arrive, slowest"),
    Line("g", "peak memory of the controller, MiB", "peak memory: {}"),
    Line("h", "wait during the edits, median", "wait of another gang during the edits, median"),
    Line("h", "slowest", "wait of another gang during the edits, slowest"),
    Line("h", "the last edit to its effect", "the last edit has effect after its acceptance"),
    Line("h", "1,000 edits accepted after", "1,000 edits accepted after"),
    Line("h", "CPU time of the controller for each edit, ms", "CPU for each edit: {}"),
    Line(_ONES, "60,000 pods run after", "filled after"),
    Line("i", "start of the process to ready", "ready after the start of the process"),
    Line("i", "to the first admission", "first admission after the start of the process"),
    Line(
        "i",
        "leader killed: expiry of its lease to the first admission",
        "first admission after the expiry of the lease",
    ),
    Line("i", "kill to the first admission", "first admission after the kill"),
    Line("i", "peak memory of the leader, MiB", "peak memory: {}"),
    Line("i", "of the standby, MiB", "peak memory: {} standby"),
)


def page(records: Iterable[RowRecord]) -> str:
    """For each size the figures, in seconds unless stated, and the runs."""
    recorded = sorted(records, key=lambda record: record.at)
    parts = []
    for nodes in sorted({record.nodes for record in recorded}):
        of_size = [record for record in recorded if record.nodes == nodes]
        parts += [_figures(of_size), _times(of_size)]
    return "\n\n".join(parts) + "\n"


def _figures(records: Sequence[RowRecord]) -> str:
    """One table: a column for each system that was measured."""
    measured = {record.system for record in records}
    systems = [system for system in SYSTEMS if system in measured]
    nodes = f"{records[0].nodes:,} nodes"
    head = [nodes, "", *(SYSTEMS[system] for system in systems)]
    lines = [_line(head), _line(["---", "---", *["---:"] * len(systems)])]
    before = ""
    for line in LINES:
        of_row = [record for record in records if record.row == line.row]
        cells = [_run_cell([r for r in of_row if r.system == s], line) for s in systems]
        if any(cells):
            row = "fill" if line.row.startswith(FILL) else line.row
            shown = [cell or "-" for cell in cells]
            lines.append(_line([row if line.row != before else "", line.title, *shown]))
            before = line.row
    return "\n".join(lines)


def _run_cell(records: Sequence[RowRecord], line: Line) -> str:
    """The figure of each run, in the order of time. A run that did not reach it has its status. Empty without a run."""
    cells = []
    for record in records:
        found = record.figure(line.figure.format(record.system.partition("-")[0]))
        if found is not None and not math.isnan(found):
            cells.append(number(found) + (" (cut)" if record.status == CUT else ""))
        elif record.status in (CUT, FAILED):
            cells.append(record.status)
    return "; ".join(cells)


def _times(records: Sequence[RowRecord]) -> str:
    """One table: consecutive rows of a system at a commit, with the time at which they ended."""
    head = ["system", "first and last row ended, UTC", "commit", "rows", "load"]
    lines = [_line(head), _line(["---"] * len(head))]
    for (system, commit), group in groupby(records, lambda one: (one.system, one.commit)):
        rows = list(group)
        times = dict.fromkeys(_minute(row.at) for row in (rows[0], rows[-1]))
        loads = sorted(row.load for row in rows)
        load = " to ".join(f"{one:.0f}" for one in dict.fromkeys((loads[0], loads[-1])))
        shown = ", ".join(row.row for row in rows)
        lines.append(_line([SYSTEMS[system], ", ".join(times), commit[:8], shown, load]))
    return "\n".join(lines)


def _minute(at: str) -> str:
    """ISO 8601 without the seconds."""
    return at[:16].replace("T", " ")


# ---- All figures


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
