"""When a job can start again whose controller counts failed pods of an earlier start as failures of the job."""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from typing import Final

from queuectl.domain.jobs import JobRecord, PodRecord

SEEN_WITHIN: Final = 2.0
"""The seconds in which the controller of a job sees that the pods of the job are deleted. It has its own watch, so this is not observed."""


def counted_pods(job: JobRecord, pods: Collection[PodRecord]) -> int:
    """The number of pods for which its controller would let the job fail if it started now. ``pods``: all pods of the suspended job."""
    return len(pods) if job.counts_old_pods else 0


class OldPods:
    """The times from which the controllers of suspended jobs no longer count the pods of earlier starts.

    A new leader knows only the pods that exist. It begins later than a controller sees deletions.
    """

    def __init__(self) -> None:
        """Know no pods."""
        self._start_at: dict[str, float] = {}  # inf while pods exist

    def start_at(self, job: JobRecord, pods: Collection[PodRecord], now: float) -> float:
        """The time from which the job can start (unix seconds): 0 = at once, inf while its pods exist. To be asked after each change of them.

        Args:
            job: a suspended job, or one that runs.
            pods: all pods that it controls.
            now: unix seconds.
        """
        if counted_pods(job, pods):
            self._start_at[job.uid] = inf
        elif self._start_at.get(job.uid) == inf:
            self._start_at[job.uid] = now + SEEN_WITHIN
        return self._start_at.get(job.uid, 0.0)

    def forget(self, uid: str) -> None:
        """Forget a job that has left the ledger."""
        self._start_at.pop(uid, None)
