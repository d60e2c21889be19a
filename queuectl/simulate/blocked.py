"""Submissions that no plan can start: a gang that is equal, or is before them in a strict order, was refused, and no gang has ended since.

The planner gives equal gangs of one LocalQueue the same answer. Where there are planned starts, a gang that would delay one is no shorter
than an equal one that would. A StrictFIFO ClusterQueue with one flavor starts no gang behind a refused one. Without this, each submission to
a full cluster would be planned only to be refused.

A Reservation can let a shorter gang start and not an equal one, so with Reservations each submission is planned.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import islice
from math import inf
from typing import Final

from queuectl.domain.ledger import Entry, State
from queuectl.domain.queues import ClusterQueue, QueueConfig, QueueingStrategy
from queuectl.domain.reasons import Code
from queuectl.domain.workload import PodSet
from queuectl.state.ledger import Ledger

_REFUSED: Final = frozenset({Code.WAITING_FOR_QUOTA, Code.TOPOLOGY_PLACEMENT_FAILED})
_IN_ORDER: Final = _REFUSED | {Code.WAITING_IN_ORDER}

Place = tuple[int, float, str]
"""Priority with the opposite sign, time queued, uid: a smaller one is earlier."""


class BlockedSubmissions:
    """The gangs of one leader that have not run, by the line in which the first refusal holds for all."""

    def __init__(self, config: QueueConfig, ledger: Ledger) -> None:
        self._config = config
        self._ledger = ledger
        self._lines: dict[tuple[object, ...], list[tuple[Place, str]]] = {}
        self._limits: dict[str, float] = {}

    def add(
        self,
        entry: Entry,
        podsets: tuple[PodSet, ...],
        queue: ClusterQueue,
        limit: float | None,
    ) -> bool:
        """Add a gang that was submitted. Returns whether a plan cannot start it.

        ``limit``: of its execution time in seconds; None = it states none.
        """
        if self._config.reservations:
            return False
        if queue.strict and any(len(group.flavors) > 1 for group in queue.groups):
            return False
        equal = (entry.queue, entry.namespace, entry.priority, entry.user, podsets, limit is None)
        line = self._lines.setdefault((queue.name,) if queue.strict else equal, [])
        while line and not self._waits(line[0][1]):
            heappop(line)
        place = (-entry.priority, entry.queue_order_time, entry.uid)
        if limit is not None:
            self._limits[entry.uid] = limit
        blocked = bool(line) and line[0][0] < place and self._is_blocked(line, queue, limit)
        heappush(line, (place, entry.uid))
        return blocked

    def forget(self, uid: str) -> None:
        """Forget a gang that has ended."""
        self._limits.pop(uid, None)

    def _is_blocked(
        self, line: list[tuple[Place, str]], queue: ClusterQueue, limit: float | None
    ) -> bool:
        """Whether a gang behind the first of these is refused."""
        first = line[0][1]
        cohort = self._config.backfill_cohort(queue)
        backfill = queue.backfill if cohort is None else cohort.backfill
        match queue.strategy:
            case QueueingStrategy.STRICT_FIFO:
                # A gang that a Budget holds lets gangs of other Budgets pass.
                return self._has_reason(first, _REFUSED if self._config.budgets else _IN_ORDER)
            case QueueingStrategy.BACKFILL if backfill is not None:
                before = islice(
                    (uid for _, uid in line if self._waits(uid)), backfill.planned_starts
                )
                if len(list(before)) < backfill.planned_starts:
                    return False  # it gets a planned start
                return self._has_reason(first, _REFUSED) or self._delays(line, limit)
            case _:
                return self._has_reason(first, _REFUSED)

    def _delays(self, line: list[tuple[Place, str]], limit: float | None) -> bool:
        """Whether an equal gang with no longer limit would delay a planned start."""
        return limit is not None and any(
            self._limits.get(uid, inf) <= limit and self._has_reason(uid, {Code.WOULD_DELAY})
            for _, uid in line
        )

    def _waits(self, uid: str) -> bool:
        entry = self._ledger.get(uid)
        return entry is not None and entry.state is State.PENDING and not entry.evictions

    def _has_reason(self, uid: str, codes: frozenset[Code] | set[Code]) -> bool:
        entry = self._ledger.get(uid)
        return self._waits(uid) and entry is not None and entry.reason.code in codes
