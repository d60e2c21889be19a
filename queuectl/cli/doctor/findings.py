"""Findings of the doctor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

NAMED = 3  # names in one message


class Level(StrEnum):
    """Severity. UNKNOWN: the check could not be made."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        check: name of the check.
        level: severity.
        message: one sentence.
        fix: what the user can do; empty where nothing is wrong.
    """

    check: str
    level: Level
    message: str
    fix: str = ""


def some(names: Sequence[str], most: int = NAMED) -> str:
    """The first names, and the number of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
