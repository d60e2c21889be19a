"""How the processes of queuectl have ended."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

KEPT_RUNS: Final = 100
"""Runs that the database keeps: the newest ones."""


class ProcessEnd(StrEnum):
    """How a process, or its leadership, ended."""

    ORDERLY = "orderly"
    LOST_LEASE = "lost lease"
    DATABASE = "database"
    UNKNOWN = "unknown"  # nothing was written: it runs, or it ended without a chance to write
