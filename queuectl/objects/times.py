"""RFC 3339 times and durations in documents.

Durations are as Go writes them, ``1h30m``: what Kueue's Configuration holds.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from fractions import Fraction
from functools import lru_cache
from typing import Final

from queuectl.domain import words
from queuectl.objects.errors import RequestError

# ---- Times

_EARLIEST: Final = datetime.min.replace(tzinfo=UTC).timestamp()
_RFC3339: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)


def parse_time(text: str) -> float:
    """Unix seconds of an RFC 3339 time. In UTC, it is in the years 1 to 9999.

    Raises:
        ValueError: naming the text.
    """
    try:
        moment = datetime.fromisoformat(text) if _RFC3339.fullmatch(text) else None
    except ValueError:
        moment = None
    if moment is None or not _EARLIEST <= moment.timestamp() <= words.LAST_TIME:
        raise ValueError(f"{text!r} is not an RFC 3339 time, e.g. 2026-01-31T12:00:00Z")
    return moment.timestamp()


def time_of(text: str, field: str) -> float:
    """Like :func:`parse_time`, for a field of a document.

    Raises:
        RequestError: naming the field.
    """
    try:
        return parse_time(text)
    except ValueError as error:
        raise RequestError(f"{field}: {error}") from None


def format_time(seconds: float) -> str:
    """Unix seconds as the API server writes them: RFC 3339 in whole seconds."""
    return words.format_time(int(seconds))


def time_or_none(text: str | None) -> float | None:
    """Like :func:`parse_time`; None for absent or unreadable times."""
    if not text:
        return None
    # The pods of a gang start together, and save checkpoints together.
    return _recent(text) if len(text) <= _USUAL_LENGTH else _parsed_or_none(text)


def _parsed_or_none(text: str) -> float | None:
    try:
        return parse_time(text)
    except ValueError:
        return None


_USUAL_LENGTH: Final = 40  # characters; an annotation can have 256 KiB
_recent: Final = lru_cache(maxsize=1 << 12)(_parsed_or_none)


# ---- Durations

_SECONDS: Final = {
    "h": Fraction(3600),
    "m": Fraction(60),
    "s": Fraction(1),
    "ms": Fraction(1, 10**3),
    "us": Fraction(1, 10**6),
    "\u00b5s": Fraction(1, 10**6),  # micro sign
    "\u03bcs": Fraction(1, 10**6),  # Greek mu
    "ns": Fraction(1, 10**9),
}
_PART: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{0,12})?|\.[0-9]{1,12})([a-z\u00b5\u03bc]{1,2})")


def read_duration(text: str, path: str) -> float:
    """Seconds, not negative.

    Raises:
        RequestError: naming path and text.
    """
    if text == "0":
        return 0.0
    at, seconds = 0, Fraction()
    while at < len(text):
        part = _PART.match(text, at)
        if part is None or part[2] not in _SECONDS:
            break
        seconds += Fraction(part[1]) * _SECONDS[part[2]]
        at = part.end()
    if not text or at < len(text):
        if text[:1] == "-":
            raise RequestError(f"{path}: {text!r} is negative")
        raise RequestError(f"{path}: {text!r} is not a duration like 30s, 5m or 1h30m")
    return float(seconds)
