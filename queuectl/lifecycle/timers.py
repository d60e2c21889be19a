"""When to observe a workload again without a change in the cluster, because time changes its state."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import Entry, State
from queuectl.domain.reasons import Code
from queuectl.domain.rules import PodsReadyRules
from queuectl.lifecycle.failures import ready_by

REPLACED_WITHIN: Final = 3600.0
"""Seconds in which the maker of an evicted group must create its pods again."""


def awaits_replacements(entry: Entry, now: float) -> bool:
    """Whether a group without pods stays in its queue: queuectl deleted its pods, and their maker can create them again.

    A group whose pods others deleted has ended. It can be evicted first if its pods end before they are deleted.
    """
    if entry.evicted_for is Code.SUSPENDED_OUTSIDE:
        return False
    if entry.state is State.EVICTING:
        return True
    return entry.evicted_for is not None and now < entry.since + REPLACED_WITHIN


def alarm_of(entry: Entry, job: JobRecord | None, rules: PodsReadyRules) -> float | None:
    """The first moment (unix seconds) at which time alone changes its state, or None."""
    requeue_at = entry.requeue_at if entry.state is State.BACKOFF else None
    due = entry.checks.due if entry.awaits_checks else None
    moments = [requeue_at, entry.stop_at, entry.priority_until, ready_by(entry, rules), due]
    if entry.state.waiting:
        moments += entry.checks.unasked.values()
    if job is not None and job.absent:
        moments.append(entry.since + REPLACED_WITHIN)
    limit = entry.execution_limit(job.max_execution) if job is not None else None
    if entry.state.live and limit is not None:
        moments.append((entry.started_at or entry.since) + limit - entry.past_seconds)
    return min((at for at in moments if at is not None), default=None)


class Timers:
    """The next time of each workload. A timer that has expired is removed; the observation that follows sets the next one."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def put(self, uid: str, at: float | None) -> None:
        """Set the timer of this workload to unix seconds ``at``; None removes it."""
        if at is None:
            self._at.pop(uid, None)
        elif self._at.get(uid) != at:
            self._at[uid] = at
            heappush(self._heap, (at, uid))
            if len(self._heap) > 64 + 2 * len(self._at):
                self._heap = [(at, uid) for uid, at in self._at.items()]
                heapify(self._heap)

    def due(self, now: float) -> set[str]:
        """The workloads to observe now."""
        found = set()
        while self._heap and self._heap[0][0] <= now:
            at, uid = heappop(self._heap)
            if self._at.get(uid) == at:
                del self._at[uid]
                found.add(uid)
        return found
