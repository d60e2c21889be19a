"""Counts of workloads by queue, state and reason, for pages and reports that do not list every workload."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from queuectl.domain.gpus import Gpus
from queuectl.domain.ledger import State
from queuectl.domain.reasons import Code


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """The workloads of one LocalQueue in one state and for one reason.

    Attributes:
        cluster_queue: "" where the LocalQueue leads to none.
        code: why they are in this state.
        workloads, gpus: how many they are, and the GPUs they request together.
        oldest: unix seconds at which the first of them was queued.
    """

    namespace: str
    queue: str
    cluster_queue: str
    state: State
    code: Code
    workloads: int
    gpus: Gpus
    oldest: float


class WaitingOrder(StrEnum):
    """The order in which pending workloads are listed."""

    TURN = "turn"  # queue order: priority, then time
    AGE = "age"  # the oldest first
