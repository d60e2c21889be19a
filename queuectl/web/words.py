"""The notation of numbers, times and states on the pages, and sortable columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
from queuectl.domain.words import utc
from queuectl.objects.times import parse_time

_LEAST_GPUS: Final = 0.005
_LEAST_HOURS: Final = 0.05
_LEAST_PERCENT: Final = 0.5
_MANY_TIMES: Final = 10

# ---- Numbers, times and states
#
# On all pages: a thin space between thousands, no space before a percent sign, a minus sign, and at most two digits after the point. Times are
# relative, with the exact time in UTC in their tooltip (the macros of _parts.html); calendar hours and days have UTC times.

_THIN: Final = "\u202f"  # a space that does not break
_MINUS: Final = "\u2212"
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


def relative(seconds: float) -> str:
    """A time so many seconds ahead, or back if they are negative: ``in 6 min``, ``5 min ago``, ``now``."""
    if abs(seconds) < 1:
        return "now"
    return f"in {duration(seconds)}" if seconds > 0 else f"{duration(-seconds)} ago"


def moment(seconds: float) -> str:
    """The exact time, for tooltips: ``2026-11-20 21:15:04 UTC``."""
    return f"{utc(seconds):%Y-%m-%d %H:%M:%S} UTC"


def calendar(seconds: float) -> str:
    """A time of the calendar, such as the end of a period: ``2026-11-20 21:00 UTC``."""
    return f"{utc(seconds):%Y-%m-%d %H:%M} UTC"


def day(seconds: float) -> str:
    """A day of the calendar: ``2026-11-20``, of UTC."""
    return f"{utc(seconds):%Y-%m-%d}"


def seconds_of(text: str | None) -> float | None:
    """Unix seconds of an RFC 3339 time in a document of a user; None for any other text."""
    try:
        return parse_time(text or "")
    except ValueError:
        return None


def clock(seconds: float) -> str:
    """``21:15``, of UTC."""
    return f"{utc(seconds):%H:%M}"


def iso(seconds: float) -> str:
    """RFC 3339, for ``<time datetime>``."""
    return utc(seconds).isoformat(timespec="seconds")


def fixed(amount: float | Fraction, digits: int) -> str:
    """With so many digits after the point: ``2 176.0``."""
    text = f"{float(amount):,.{digits}f}".replace(",", _THIN)
    return text.replace("-", _MINUS) if text.strip(f"-0.{_THIN}") else text.lstrip("-")


def number(amount: float | Fraction) -> str:
    """With at most one digit after the point."""
    return fixed(amount, 1).removesuffix(".0")


def gpus(amount: float | Fraction) -> str:
    """GPUs: whole, or with at most two digits after the point; ``<0.01`` if smaller and not 0."""
    if 0 < amount < _LEAST_GPUS:
        return "<0.01"
    return fixed(amount, 2).rstrip("0").rstrip(".")


def counted(amount: int, noun: str) -> str:
    """``1 pod``, ``2 000 pods``."""
    return f"{number(amount)} {noun}{'' if amount == 1 else 's'}"


def counted_gpus(amount: float | Fraction) -> str:
    """``1 GPU``, ``0.14 GPUs``."""
    text = gpus(amount)
    return f"{text} {'GPU' if text == '1' else 'GPUs'}"


def money(amount: float) -> str:
    """With two digits after the point, in any currency."""
    return fixed(amount, 2)


def percent(part: float | Fraction, whole: float | Fraction = 1.0) -> str:
    """``part`` of ``whole``, as ``45%``; a dash where ``whole`` is 0."""
    if not whole:
        return "-"
    share = 100 * float(part / whole)
    return "<1%" if 0 < share < _LEAST_PERCENT else f"{fixed(share, 0)}%"


def change(now: float, before: float) -> str:
    """How ``now`` differs from ``before``, with a sign: ``▲ 12% more``, ``▼ 8% less``, ``= the same``, ``new``; a dash if both are 0."""
    if not before:
        return "new" if now else "-"
    ratio = now / before
    if ratio >= _MANY_TIMES:
        return f"▲ {number(round(ratio))} times as much"
    if abs(ratio - 1) < _LEAST_PERCENT / 100:
        return "= the same"
    return f"▲ {percent(ratio - 1)} more" if ratio > 1 else f"▼ {percent(1 - ratio)} less"


def gpu_hours(units: float) -> str:
    """Units of the usage ledger as GPU-hours, with one digit after the point; ``<0.1`` if smaller and not 0."""
    return as_hours(units / UNITS)


def as_hours(seconds: float) -> str:
    """Seconds as hours, or GPU-seconds as GPU-hours, in the same form."""
    amount = seconds / HOUR
    return "<0.1" if 0 < amount < _LEAST_HOURS else fixed(amount, 1)


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
    Proof.OPTIMAL: "the best possible",
    Proof.FEASIBLE: "valid; a better plan can exist",
    Proof.UNDECIDED: "some gangs are left for the next cycle",
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
    """The query of a link to the same page in another order. Empty parameters stay: a page can have a default for those that it is not given."""
    return "?" + urlencode({**query, "sort": str(order), **more}, doseq=True)
