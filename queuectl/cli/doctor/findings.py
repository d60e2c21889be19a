"""What a check found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

NAMED = 3  # of many, so many are named


class Level(StrEnum):
    """How bad it is. UNKNOWN: it could not be looked at."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence, and for what is not well how to mend it."""

    check: str
    level: Level
    message: str
    mend: str = ""


def some(names: Sequence[str], most: int = NAMED) -> str:
    """A few of them, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
