"""Tables in CSV, plain or gzipped: rows with their line and typed cells. Errors name the file, the line and the column."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from queuectl.domain.errors import BadInput

_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table, with readers for its cells. An absent column is an empty cell.

    Attributes:
        name: of the file.
        line: from 1.
        cells: by column.
    """

    name: str
    line: int
    cells: Mapping[str, str]

    def invalid(self, column: str, what: str) -> BadInput:
        """An error about one cell."""
        return BadInput(f"{self.name}: line {self.line}: {column}: {what}")

    def text(self, column: str) -> str:
        """The cell without spaces around it; empty if there is none."""
        return self.cells.get(column, "").strip()

    def required(self, column: str) -> str:
        """The cell; an empty one is an error."""
        text = self.text(column)
        if not text:
            raise self.invalid(column, "is empty")
        return text

    def number(self, column: str) -> float | None:
        """A finite number of at least 0; None for an empty cell."""
        text = self.text(column)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            raise self.invalid(column, f"{text!r} is not a number") from None
        if not isfinite(value) or value < 0:
            raise self.invalid(column, f"{text!r} is not a number of at least 0")
        return value

    def seconds(self, column: str) -> float:
        """A number that must be there."""
        self.required(column)
        found = self.number(column)
        assert found is not None
        return found

    def integer(self, column: str, least: int) -> int:
        """An integer of at least ``least``; ``8.0`` is one."""
        text = self.required(column)
        value = self.number(column)
        if value is None or value != int(value) or value < least:
            raise self.invalid(column, f"{text!r} is not an integer of at least {least}")
        return int(value)


def read_table(data: bytes, name: str, columns: Iterable[str]) -> Iterator[Row]:
    """The rows after the header line.

    Args:
        data: UTF-8 text, or gzip of it.
        name: of the file, for messages.
        columns: that the header must have.

    Raises:
        BadInput: for the first mistake.
    """
    rows = _cells(data, name)
    _, header = next(rows, (1, []))
    header = [cell.strip() for cell in header]
    _check(header, name, columns)
    yield from _rows(rows, name, header)


def read_columns(data: bytes, name: str, columns: Sequence[str]) -> Iterator[Row]:
    """The rows of a table with these columns, whose first one has numbers. A header line is optional.

    Raises:
        BadInput: for the first mistake.
    """
    rows = list(_cells(data, name))
    if rows and rows[0][1] and not _is_number(rows[0][1][0]):
        del rows[0]
    yield from _rows(rows, name, columns)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _rows(
    rows: Iterable[tuple[int, list[str]]], name: str, columns: Sequence[str]
) -> Iterator[Row]:
    for line, cells in rows:
        if len(cells) != len(columns):
            found = f"{len(cells)} cells instead of {len(columns)} ({', '.join(columns)})"
            raise BadInput(f"{name}: line {line}: {found}")
        yield Row(name, line, dict(zip(columns, cells, strict=True)))


def _cells(data: bytes, name: str) -> Iterator[tuple[int, list[str]]]:
    """Line and cells of each line that is not empty."""
    reader = csv.reader(io.StringIO(_text(data, name)), strict=True)
    try:
        for cells in reader:
            if cells:
                yield reader.line_num, cells
    except csv.Error as error:
        raise BadInput(f"{name}: line {reader.line_num}: {error}") from None


def _check(header: list[str], name: str, columns: Iterable[str]) -> None:
    for column in header:
        if header.count(column) > 1:
            raise BadInput(f"{name}: line 1: {column}: is given twice")
    for column in columns:
        if column not in header:
            raise BadInput(f"{name}: line 1: {column}: the header does not have this column")


def _text(data: bytes, name: str) -> str:
    try:
        plain = gzip.decompress(data) if data.startswith(_GZIP) else data
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{name}: not a complete gzip file: {error}") from None
    try:
        return plain.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"{name}: not UTF-8 text: {error.reason} at byte {error.start}") from None
