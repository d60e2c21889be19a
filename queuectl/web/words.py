"""The notation of numbers, times and states on the pages, and sortable columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from typing import Final
from urllib.parse import urlencode

from queuectl.domain.accounting import HOUR, UNITS
from queuectl.domain.ledger import State
from queuectl.domain.plan import Proof
from queuectl.domain.quantity import format_quantity
from queuectl.domain.queries import SortKey, WorkloadOrder
from queuectl.domain.reasons import Code
from queuectl.domain.utilization import UseState
from queuectl.domain.words import gpu_count

# ---- Numbers, times and states

_UNITS: Final = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))

GLYPHS: Final = {
    State.PENDING: "○",
    State.HELD: "‖",
    State.RESERVED: "◔",
    State.STARTING: "◑",
    State.RUNNING: "●",
    State.EVICTING: "◌",
    State.BACKOFF: "↻",
    State.DEACTIVATED: "×",
    State.FINISHED: "✓",
}
"""Each state has a word and a sign; color only repeats them."""
ENDS: Final = {Code.SUCCEEDED: "✓", Code.FAILED: "✗", Code.DELETED: "⊘"}
"""The signs of the ends of finished workloads, whose word is the code."""


def duration(seconds: float) -> str:
    """In at most two units: ``3 d 4 h``, ``12 min``, ``40 s``."""
    left = int(max(seconds, 0.0))
    parts: list[str] = []
    for unit, size in _UNITS:
        amount, rest = divmod(left, size)
        if amount or (unit == "s" and not parts):
            parts.append(f"{amount} {unit}")
        elif parts:
            break
        left = rest
        if len(parts) == 2 or (parts and unit == "min"):
            break
    return " ".join(parts)


def moment(seconds: float) -> str:
    """``2026-11-20 21:15:04 UTC``."""
    return f"{_utc(seconds):%Y-%m-%d %H:%M:%S} UTC"


def clock(seconds: float) -> str:
    """``21:15``, of UTC."""
    return f"{_utc(seconds):%H:%M}"


def iso(seconds: float) -> str:
    """RFC 3339, for ``<time datetime>``."""
    return _utc(seconds).isoformat(timespec="seconds")


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def number(amount: float | Fraction) -> str:
    """With a thin space between thousands, and at most one digit after the point."""
    text = f"{float(amount):,.1f}".removesuffix(".0")
    return text.replace(",", "\u202f")


def gpus(amount: float | Fraction) -> str:
    """As in messages, with a thin space between thousands."""
    whole, point, digits = gpu_count(amount).partition(".")
    return (
        (f"{int(whole):,}".replace(",", "\u202f") if whole.isdecimal() else whole) + point + digits
    )


def decimals(share: float) -> str:
    """With three digits after the point, as a share has."""
    return f"{share:.3f}"


def money(amount: float) -> str:
    """With two digits after the point, in any currency."""
    return f"{amount:,.2f}".replace(",", "\u202f")


def percent(part: float | Fraction, whole: float | Fraction = 1.0) -> str:
    """``part`` of ``whole``; a dash where ``whole`` is 0."""
    return f"{float(part / whole):.0%}" if whole else "-"


def gpu_hours(units: int) -> str:
    """Units of the usage ledger as GPU-hours: one digit after the point below 1,000, and ``< 0.1`` where the amount is small but not 0."""
    hours = units / (HOUR * UNITS)
    if hours >= 999.95:
        return number(round(hours))
    return "< 0.1" if 0 < hours < 0.05 else f"{hours:.1f}" if hours else "0"


def hours(amount: float) -> str:
    """GPU-hours, as :func:`gpu_hours`."""
    return gpu_hours(round(amount * HOUR * UNITS))


def quantity(amount: int, resource: str) -> str:
    """An amount of quota in its usual notation."""
    text = format_quantity(resource, amount)
    return number(int(text)) if text.isdecimal() else text


def article(noun: str) -> str:
    """``a rack``, ``an island``."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def glyph(state: State) -> str:
    """The sign of a state."""
    return GLYPHS[state]


def spaced(word: str) -> str:
    """``WaitingForQuota`` as ``Waiting for quota``; runs of capitals stay."""
    out: list[str] = []
    for i, letter in enumerate(word):
        starts = letter.isupper() and i > 0 and not word[i - 1].isupper()
        followed = i + 1 < len(word) and word[i + 1].islower()
        if starts:
            out.append(" ")
        out.append(letter.lower() if letter.isupper() and i > 0 and followed else letter)
    return "".join(out)


_LONGEST_TEXT: Final = 800  # letters of a reason


def clipped(text: str, most: int = _LONGEST_TEXT) -> str:
    """A text of any length as a page shows it."""
    left_out = len(text) - most
    return text if left_out <= 0 else f"{text[:most]}… ({number(left_out)} more letters)"


PROOF_WORDS: Final = {
    Proof.OPTIMAL: "optimal (proved)",
    Proof.FEASIBLE: "feasible (optimality not proved)",
    Proof.UNDECIDED: "partly undecided",
}

USE_WORDS: Final = {
    UseState.UNKNOWN: "unknown",
    UseState.WARMUP: "warming up",
    UseState.ACTIVE: "active",
    UseState.LOW: "low utilization",
    UseState.IDLE: "idle",
    UseState.STUCK: "stuck",
}


# ---- Sortable columns


@dataclass(frozen=True, slots=True)
class TableColumn:
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
        aria_sort: ``ascending`` or ``descending`` where the table is sorted by this column; otherwise None.
        numeric: as in :class:`TableColumn`.
    """

    title: str
    address: str | None
    aria_sort: str | None
    numeric: bool


Query = Mapping[str, str | Sequence[str]]
"""Parameters of an address; a list repeats its parameter."""


def headings(columns: Iterable[TableColumn], order: WorkloadOrder, query: Query) -> list[Heading]:
    """The headings of a table that is sorted in this order; ``query``: the other parameters of the page."""
    return [_heading(column, order, query) for column in columns]


def _heading(column: TableColumn, order: WorkloadOrder, query: Query) -> Heading:
    if column.key is None:
        return Heading(column.title, None, None, column.numeric)
    sorted_by = column.key is order.key
    first = column.numeric and not column.elapsed  # the largest numbers first
    reverse = WorkloadOrder(column.key, not order.descending if sorted_by else first)
    shown = None
    if sorted_by:
        shown = "descending" if order.descending != column.elapsed else "ascending"
    return Heading(column.title, address(query, reverse), shown, column.numeric)


def address(query: Query, order: WorkloadOrder, **more: str) -> str:
    """The query of a link to the same page in another order; parameters without a value are left out."""
    given = {**query, "sort": str(order), **more}
    return "?" + urlencode({name: value for name, value in given.items() if value}, doseq=True)
