"""Numbers, times and text of users in messages.

Characters that control a terminal, or reorder what it shows, become escapes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from fractions import Fraction
from typing import Final

from queuectl.domain.quantity import format_quantity

# ---- Numbers and times

_LEAST: Final = 0.005
_DIGITS: Final = re.compile("([0-9]+)")
UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")
"""Characters that no text in Postgres can have: NUL, and a half of a surrogate pair."""


def counted(number: int, noun: str) -> str:
    """``1 pod``, ``2 pods``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def some(names: Sequence[str], most: int = 3) -> str:
    """The first ``most`` names and the number of the others: ``a, b, c and 2 more``."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def comma_separated(text: str) -> tuple[str, ...]:
    """The parts of a list by commas, without spaces around them and without empty ones."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def shortened(text: str, most: int = 100) -> str:
    """The text, or its beginning and an ellipsis if it has more characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def by_numbers(text: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key under which ``rack-2`` comes before ``rack-10``. Its cost is linear in the number of digits."""
    return tuple(_by_number(part) for part in _DIGITS.split(text) if part)


def _by_number(part: str) -> tuple[int, int, str]:
    if _DIGITS.match(part) is None:
        return 1, 0, part
    digits = part.lstrip("0")
    return 0, len(digits), digits


def gpu_count(gpus: float | Fraction) -> str:
    """A number of GPUs with at most two digits after the point: ``8``, ``0.14``; ``<0.01`` if it is smaller and not 0."""
    if 0 < gpus < _LEAST:
        return "<0.01"
    return f"{float(gpus):.2f}".rstrip("0").rstrip(".")


def counted_gpus(gpus: float | Fraction) -> str:
    """``1 GPU``, ``0.14 GPUs``."""
    text = gpu_count(gpus)
    return f"{text} GPU" if text == "1" else f"{text} GPUs"


def plain(number: float) -> str:
    """With at most three digits after the point, and without an exponent: ``1200000``, ``12345.678``."""
    return f"{number:.3f}".rstrip("0").rstrip(".")


def gpu_hours_of(gpu_seconds: float) -> str:
    """GPU-seconds as ``1.5 GPU-hours``; ``less than 0.1 GPU-hours`` if they are fewer."""
    hours = gpu_seconds / 3600
    return "less than 0.1 GPU-hours" if hours < 0.05 else f"{hours:.1f} GPU-hours"


def percent(share: float) -> str:
    """A share of 0..1 in whole percent: ``45%``."""
    return f"{100 * share:.0f}%"


def is_or_are(resource: str, amount: int) -> str:
    """The verb for an amount: ``8 nvidia.com/gpu are``, ``1 cpu is``, ``64Gi memory is``."""
    uncountable = any(word in resource for word in ("memory", "storage", "hugepages"))
    return "is" if uncountable or format_quantity(resource, amount) == "1" else "are"


FIRST_TIME: Final = -30_610_224_000
"""The year 1000, in unix seconds: earlier years have fewer digits."""
LAST_TIME: Final = 253_402_300_799
"""The end of the year 9999."""


def utc(at: float) -> datetime:
    """Unix seconds as a time in UTC, or the nearest one that a calendar has: sums of times and durations of users can be any number."""
    return datetime.fromtimestamp(min(max(at, FIRST_TIME), LAST_TIME), UTC)


def format_time(at: float) -> str:
    """Unix seconds as RFC 3339 in UTC, to the second."""
    return utc(at).strftime("%Y-%m-%dT%H:%M:%SZ")


# ---- Text of users

# C0 without tab and line feed, DEL and C1; line and paragraph separators; marks that change the direction of text.
_CONTROLS: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)


def printable(text: str) -> str:
    r"""The text with each control character as ``\uXXXX``, which JSON and quoted YAML read as the character."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str) -> str:
    r"""Printable text without line feeds and tabs, as ``\n`` and ``\t``: for the row of a table and the line of a list."""
    return printable(text).replace("\n", r"\n").replace("\t", r"\t")


# The last four are the wide forms of the first four.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def spreadsheet_text(text: str) -> str:
    """The text as a cell of a CSV file: spreadsheets would run one that begins like a formula, so it gets an apostrophe before it."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def has_controls(text: str) -> bool:
    """Whether :func:`printable` changes the text."""
    return _CONTROLS.search(text) is not None
