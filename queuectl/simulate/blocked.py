"""Submissions that no plan can start: a gang that is equal, or is before them in a strict order, was refused, and no gang has ended since.

The planner gives equal gangs of one LocalQueue the same answer, and a StrictFIFO ClusterQueue with one flavor starts no gang behind a
refused one. Without this, each submission to a full cluster would be planned only to be refused.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

from queuectl.domain.ledger import Entry, State
from queuectl.domain.queues import ClusterQueue, QueueingStrategy
from queuectl.domain.reasons import Code
from queuectl.domain.workload import PodSet
from queuectl.state.ledger import Ledger

_REFUSED: Final = frozenset({Code.WAITING_FOR_QUOTA, Code.TOPOLOGY_PLACEMENT_FAILED})
_IN_ORDER: Final = _REFUSED | {Code.WAITING_IN_ORDER}

Place = tuple[int, float, str]
"""Priority with the opposite sign, time queued, uid: a smaller one is earlier."""


class BlockedSubmissions:
    """The gangs of one leader that have not run, by the line in which the first refusal holds for all."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lines: dict[tuple[object, ...], list[tuple[Place, str]]] = {}

    def add(self, entry: Entry, podsets: tuple[PodSet, ...], queue: ClusterQueue) -> bool:
        """Add a gang that was submitted. Returns whether a plan cannot start it."""
        strict = queue.strategy is QueueingStrategy.STRICT_FIFO
        if not strict and queue.strategy is not QueueingStrategy.BEST_EFFORT_FIFO:
            return False
        if strict and any(len(group.flavors) > 1 for group in queue.groups):
            return False
        equal = (entry.queue, entry.namespace, entry.priority, entry.user, podsets)
        line = self._lines.setdefault((queue.name,) if strict else equal, [])
        while line and not self._waits(line[0][1]):
            heappop(line)
        place = (-entry.priority, entry.queue_order_time, entry.uid)
        blocked = bool(line) and line[0][0] < place and self._is_refused(line[0][1], strict=strict)
        heappush(line, (place, entry.uid))
        return blocked

    def _waits(self, uid: str) -> bool:
        entry = self._ledger.get(uid)
        return entry is not None and entry.state is State.PENDING and not entry.evictions

    def _is_refused(self, uid: str, *, strict: bool) -> bool:
        entry = self._ledger.get(uid)
        return entry is not None and entry.reason.code in (_IN_ORDER if strict else _REFUSED)
