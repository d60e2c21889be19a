"""RFC 3339 times as unix seconds."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from queuectl.domain.words import format_time

__all__ = ["format_time", "parse_time", "time_or_none"]

_RFC3339: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)


def parse_time(text: str) -> float:
    """Unix seconds of an RFC 3339 time.

    Raises:
        ValueError: naming the text.
    """
    try:
        moment = datetime.fromisoformat(text) if _RFC3339.fullmatch(text) else None
    except ValueError:
        moment = None
    if moment is None:
        raise ValueError(f"{text!r} is not an RFC 3339 time, e.g. 2026-01-31T12:00:00Z")
    return moment.timestamp()


def time_or_none(text: str | None) -> float | None:
    """Like :func:`parse_time`; None for absent or unreadable times."""
    try:
        return parse_time(text) if text else None
    except ValueError:
        return None
