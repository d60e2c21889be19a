"""Results of runs in a file of comma-separated values, and tables of a page between two comments."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import Field, asdict, fields
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from msgspec import convert


class Keyed(Protocol):
    """A dataclass whose fields are texts and numbers."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def key(self) -> tuple[str, ...]:
        """The name of the run. A file has one result for it."""


Result = TypeVar("Result", bound=Keyed)


def read(file: Path, kind: type[Result]) -> dict[tuple[str, ...], Result]:
    """The results of a file by key, in its order."""
    with file.open(newline="") as lines:
        found = [convert(row, kind, strict=False) for row in csv.DictReader(lines)]
    return {each.key: each for each in found}


def write(file: Path, found: Result) -> list[Result]:
    """Put a result into its file, instead of the one with the same key; all results, by key.

    Other processes can write other results in the meantime.
    """
    kind = type(found)
    listed = sorted((read(file, kind) | {found.key: found}).values(), key=lambda each: each.key)
    with file.open("w", newline="") as lines:
        rows = csv.DictWriter(lines, [each.name for each in fields(kind)], lineterminator="\n")
        rows.writeheader()
        rows.writerows(map(asdict, listed))
    return listed


def table(head: str, rows: Iterable[str]) -> str:
    """The text of a table. ``head``: its first two lines."""
    return head + "".join(f"{line}\n" for line in rows)


def with_tables(page: str, command: str, tables: dict[str, str]) -> str:
    """The text of a page with these tables, by the names that its comments have. ``command`` records them."""
    for name, lines in tables.items():
        begin, end = f"<!-- {name}: {command} -->", f"<!-- end of {name} -->"
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}\n\n{lines}\n{end}{rest.partition(end)[2]}"
    return page
