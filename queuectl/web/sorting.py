"""Sortable columns: the link and the ``aria-sort`` of each heading. The server sorts; the order is in the address."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from queuectl.domain.workload_order import SortKey, WorkloadOrder


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        title: its heading.
        key: what the column is sorted by; None = it cannot be sorted.
        numeric: values are aligned right.
        elapsed: the column shows the time since the value, so the smallest value shows the longest time.
    """

    title: str
    key: SortKey | None = None
    numeric: bool = False
    elapsed: bool = False


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading as the page shows it.

    Attributes:
        title: its text.
        address: query of the link that sorts by this column, or that reverses the order; None = no link.
        aria_sort: ``ascending`` or ``descending`` where the table is sorted by this column; else None.
        numeric: as in :class:`Column`.
    """

    title: str
    address: str | None
    aria_sort: str | None
    numeric: bool


def headings(
    columns: Iterable[Column], order: WorkloadOrder, query: Mapping[str, str]
) -> list[Heading]:
    """The headings of a table that is sorted in this order; ``query``: the other parameters of the page."""
    return [_heading(column, order, query) for column in columns]


def _heading(column: Column, order: WorkloadOrder, query: Mapping[str, str]) -> Heading:
    if column.key is None:
        return Heading(column.title, None, None, column.numeric)
    sorted_by = column.key is order.key
    first = column.numeric and not column.elapsed  # the largest numbers first
    reverse = WorkloadOrder(column.key, not order.descending if sorted_by else first)
    shown = None
    if sorted_by:
        shown = "descending" if order.descending != column.elapsed else "ascending"
    return Heading(column.title, address(query, reverse), shown, column.numeric)


def address(query: Mapping[str, str], order: WorkloadOrder, **more: str) -> str:
    """The query of a link to the same page in another order; parameters without a value are left out."""
    given = {**query, "sort": str(order), **more}
    return "?" + urlencode({name: value for name, value in given.items() if value})
