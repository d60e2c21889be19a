"""Output of answers: tables for people, and JSON, YAML or names for programs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from queuectl.cli import terminal
from queuectl.domain.words import counted, counted_gpus, gpu_hours_of, has_controls, one_line

if TYPE_CHECKING:
    from rich.table import Table

Json = dict[str, Any]

_STYLES: Final = {
    "Running": "green",
    "Starting": "cyan",
    "Reserved": "magenta",
    "Evicting": "yellow",
    "Backoff": "yellow",
    "Held": "dim",
    "Deactivated": "dim",
    "Finished": "dim",
}


_GAP: Final = 3  # spaces between columns
_LEAST: Final = 16  # characters of a shortened text
_READABLE: Final = 40  # characters that a shortened text keeps while other columns can be omitted


class ListFormat(StrEnum):
    """Formats of a list."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class Column:
    """A table column.

    Attributes:
        title: its title.
        cell: the value of an object.
        wide: only a wide table has it.
        spare: above 0, a narrow terminal omits it, those with larger values first.
        long: prose, which is shortened on a narrow terminal.
    """

    title: str
    cell: Callable[[Json], object]
    wide: bool = False
    spare: int = 0
    long: bool = False


_NUMBER_IN_GO: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+|[-+]?0o[0-7]+")
"""Texts that are numbers for the YAML parser of kubectl, and not for that of Python."""


def emit_json(body: object) -> None:
    """Print the answer of the server as JSON."""
    sys.stdout.write(json.dumps(body, indent=2, ensure_ascii=False) + "\n")


def emit_yaml(body: object) -> None:
    """Print the answer of the server as YAML, which ``queuectl apply`` can read."""
    sys.stdout.write(as_yaml(body))


def as_yaml(*documents: object) -> str:
    """YAML documents.

    A text with control characters is quoted, so that it is the same after they are printed as escapes, and so is a text that kubectl
    reads as a number, such as the quantity ``1e3``.
    """
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: Any, scalar: str) -> Any:
        quoted = has_controls(scalar.replace("\n", "")) or _NUMBER_IN_GO.fullmatch(scalar)
        style = '"' if quoted else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", scalar, style)

    Dumper.add_representer(str, text)
    made: str = yaml.dump_all(
        documents,
        Dumper=Dumper,
        sort_keys=False,
        allow_unicode=True,
        explicit_start=len(documents) > 1,
    )
    return made


def emit_table(
    columns: Sequence[Column], rows: Iterable[Json], *, wide: bool, headers: bool = True
) -> None:
    """Print a table. It fits the width of a terminal; a wide one, and one in a pipe, is complete."""
    console = terminal.console()
    if not console.is_terminal:  # there, rich takes most of the time of a long list
        GrowingTable(columns, wide=wide, headers=headers).add(rows)
        return
    shown = [column for column in columns if wide or not column.wide]
    table, omitted = laid_out(shown, rows, None if wide else console.width)
    table.show_header = headers
    terminal.console(width=natural_width(table)).print(table)
    if omitted:
        titles = ", ".join(column.title for column in omitted)
        sys.stderr.write(f"(omitted for lack of width: {titles}; `| less -S` shows all columns)\n")


def laid_out(
    columns: Sequence[Column], rows: Iterable[Json], room: int | None
) -> tuple[Table, list[Column]]:
    """A table, and the columns that were omitted. ``room``: width in characters; None = unlimited."""
    from rich.table import Table
    from rich.text import Text

    cells = [{column.title: cell_text(column.cell(row)) for column in columns} for row in rows]
    kept = list(columns) if room is None else _fitted(columns, cells, room)
    table = Table(*(c.title for c in kept), box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    for column in table.columns:
        column.no_wrap = True
    for row in cells:
        table.add_row(*(Text(row[c.title], style=_STYLES.get(row[c.title], "")) for c in kept))
    return table, [column for column in columns if column not in kept]


def _fitted(columns: Sequence[Column], cells: list[dict[str, str]], room: int) -> list[Column]:
    """The columns that fit, never with shortened names.

    Long texts are shortened to a readable width if that is not enough room for all. Of the spare columns, those with the least value of
    ``spare`` are kept. Long texts get the room that is left, or are shortened further.
    """
    from rich.cells import cell_len

    widths = {
        c.title: max(cell_len(row[c.title]) for row in [_titles(columns), *cells]) for c in columns
    }
    full = {c.title: widths[c.title] for c in columns if c.long}

    def left(shown: Sequence[Column]) -> int:
        return room + _GAP - sum(widths[c.title] + _GAP for c in shown)

    if left(columns) >= 0:
        return list(columns)
    for title, width in full.items():
        widths[title] = min(width, _READABLE)
    kept = [column for column in columns if not column.spare]
    for column in sorted((c for c in columns if c.spare), key=lambda c: c.spare):
        if left([*kept, column]) >= 0:
            kept.append(column)
    for column in kept:
        if column.long:
            title = column.title
            widths[title] = min(max(widths[title] + left(kept), _LEAST), full[title])
            for row in cells:
                row[title] = _cut(row[title], widths[title])
    return [column for column in columns if column in kept]


def _titles(columns: Sequence[Column]) -> dict[str, str]:
    return {column.title: column.title for column in columns}


def _cut(text: str, width: int) -> str:
    from rich.cells import cell_len, set_cell_size

    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"


class GrowingTable:
    """A table to which rows are appended while the user watches: columns become wider, never narrower."""

    def __init__(self, columns: Sequence[Column], *, wide: bool, headers: bool = True) -> None:
        self._columns = [column for column in columns if wide or not column.wide]
        self._widths = [len(column.title) if headers else 0 for column in self._columns]
        self._headed = not headers

    def add(self, rows: Iterable[Json]) -> None:
        """Print more rows."""
        from rich.cells import cell_len, set_cell_size

        cells = [[cell_text(column.cell(row)) for column in self._columns] for row in rows]
        for row in cells:
            self._widths = [max(w, cell_len(t)) for w, t in zip(self._widths, row, strict=True)]
        if not self._headed:
            self._headed = True
            cells.insert(0, [column.title for column in self._columns])
        for row in cells:
            padded = [set_cell_size(t, w) for t, w in zip(row, self._widths, strict=True)]
            sys.stdout.write((" " * _GAP).join(padded).rstrip() + "\n")
        sys.stdout.flush()


def natural_width(table: Table) -> int:
    """Width in characters at which the table is neither shortened nor wrapped."""
    from rich.measure import Measurement

    unlimited = terminal.console(width=100_000)
    return max(Measurement.get(unlimited, unlimited.options, table).maximum, 1)


def cell_text(cell: object) -> str:
    """The text of a cell. It is one line, so that the text of a user adds no row to a table."""
    return one_line("" if cell is None else str(cell)) or "-"


def age(moment: str | None, now: datetime | None = None) -> str:
    """Time since an RFC 3339 time, in a short form: 45s, 12m, 7h, 3d."""
    if moment is None:
        return ""
    return length(((now or datetime.now(UTC)) - datetime.fromisoformat(moment)).total_seconds())


def length(duration: float) -> str:
    """Seconds in the same short form."""
    seconds = int(duration)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{max(seconds, 0)}s"


def until(moment: str | None, now: datetime | None = None) -> str:
    """Time until an RFC 3339 time, in the same form; 0s for a time in the past."""
    if moment is None:
        return ""
    now = now or datetime.now(UTC)
    return age(now.isoformat(), max(now, datetime.fromisoformat(moment)))


def overdue(start: Json, now: datetime | None = None) -> bool:
    """Whether a gang that waits was expected to start before now, with a probability of 90%."""
    last = start["p90"]
    if last is None:
        return False
    return datetime.fromisoformat(last) < (now or datetime.now(UTC))


def expected(start: Json | None, now: datetime | None = None) -> str:
    """The range of an expected start: the times until its median and its 90th percentile; one time if they are the same.

    ``overdue`` if both have passed.
    """
    if start is None:
        return ""
    if overdue(start, now):
        return "overdue"
    median, last = until(start["median"], now), until(start["p90"], now) or "unknown"
    return median if median == last else f"{median}-{last}"


def cost_lines(gpus: float, lost: int) -> list[str]:
    """The GPUs that evictions free, and the GPU-seconds of work that they lose, below a headline."""
    work = f"{counted(lost, 'GPU-second')} of work ({gpu_hours_of(lost)})"
    return [f"  frees   {counted_gpus(gpus)}", f"  loses   {work}"]


def used(use: Json) -> str:
    """The utilization of a workload's GPUs in percent; ``unknown`` without metrics."""
    known = use["utilization"]
    return "unknown" if known is None else f"{known:.0%}"
