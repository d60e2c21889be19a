"""Invariants of the ledger and the cluster, and the findings of a check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

VIOLATED: Final = "InvariantViolated"
"""Reason of the Event that a violation raises."""


class Invariant(StrEnum):
    """The invariants."""

    ENTRY = "Entry"  # the fields of an entry agree with its state
    DATABASE = "Database"  # the leader works on what the database holds
    WHOLE = "Whole"  # a pod runs only for an attempt that is committed
    ONCE = "Once"  # the pods of one attempt run at a time, and of a rank one
    PLACED = "Placed"  # a pod runs on a node of its gang's placement
    CAPACITY = "Capacity"  # the committed slots on a node are no more than it has


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that does not hold.

    Attributes:
        uid: of the workload, whose namespace decides who can read the sentence.
        message: a sentence; it names no other workload.
    """

    invariant: Invariant
    uid: str
    kind: str
    namespace: str
    name: str
    message: str

    @property
    def key(self) -> tuple[Invariant, str]:
        """The same violation at another look has the same."""
        return self.invariant, self.uid


@dataclass(frozen=True, slots=True)
class Checked:
    """A complete check.

    Attributes:
        at: unix seconds.
        workloads, pods, nodes: how many were checked.
    """

    at: float
    workloads: int
    pods: int
    nodes: int
    violations: tuple[Violation, ...] = ()
