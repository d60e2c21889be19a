"""Findings of the leader and ends of processes of queuectl, which the other processes read from the database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from queuectl.domain.estimates import NO_ESTIMATES, ExpectedStarts
from queuectl.domain.utilization import GangUse


@dataclass(frozen=True, slots=True)
class LeaderFindings:
    """As of ``at``, unix seconds of the leader's clock.

    Attributes:
        uses: GPU use of gangs at the last evaluation, by uid.
        starts: expected starts of pending gangs.
        unhealthy: evidence against nodes that are out of placement, by name.
    """

    at: float = 0.0
    uses: Mapping[str, GangUse] = field(default_factory=dict)
    starts: ExpectedStarts = NO_ESTIMATES
    unhealthy: Mapping[str, str] = field(default_factory=dict)


KEPT_RUNS: Final = 100
"""Runs that the database keeps: the newest ones."""


class ProcessEnd(StrEnum):
    """How a process, or its leadership, ended."""

    ORDERLY = "orderly"
    LOST_LEASE = "lost lease"
    DATABASE = "database"
    UNKNOWN = "unknown"  # nothing was written: it runs, or it ended without a chance to write
