"""Findings of the doctor."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
