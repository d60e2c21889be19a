"""How numbers are said in sentences that people read."""

from __future__ import annotations

from datetime import UTC, datetime


def counted(number: int, thing: str) -> str:
    """``1 pod``, ``2 pods``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def format_time(at: float) -> str:
    """Unix seconds as RFC 3339 in UTC, to the second."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
