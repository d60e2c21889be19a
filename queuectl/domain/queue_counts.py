"""How queues stand at a glance: counts by queue and state, instead of every workload."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from queuectl.domain.ledger import State


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """The workloads of one LocalQueue in one state.

    Attributes:
        cluster_queue: "" where the LocalQueue leads to none.
        workloads, gpus: how many they are, and the GPUs they ask for together.
        oldest: unix seconds at which the one that queues longest first queued.
    """

    namespace: str
    queue: str
    cluster_queue: str
    state: State
    workloads: int
    gpus: int
    oldest: float


class WaitingOrder(StrEnum):
    """In what order those that wait are told."""

    TURN = "turn"  # as their queues take them: priority, then time
    AGE = "age"  # who waits longest comes first
