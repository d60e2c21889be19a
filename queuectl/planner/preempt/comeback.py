"""What a victim that comes back finds in its own ClusterQueue: gangs that it may evict do not keep it out.

A victim waits again, and starts at once if it may evict enough of its own queue. Those it evicts then wait, and take from
others what the queue reclaims. If one of these is the gang that the first victim left for, all begins anew, and no end is
ever reached. So whoever is evicted for a gang that borrows is judged as if those who yield to it had left already.

They yield by ``withinClusterQueue``. They count only where their queue reclaims and a circle could close: it needs an eviction
that is not of a lower gang, so where others reclaim from lower ones alone nobody endangers a higher one. Protections that end
one day do not count.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf
from typing import TypeAlias

import numpy as np

from queuectl.domain.queues import ClusterQueue, ReclaimWithinCohort, WithinClusterQueue
from queuectl.domain.snapshot import Admitted
from queuectl.domain.workload import Workload
from queuectl.planner.capacity.state import State
from queuectl.planner.preempt.shield import opts_out
from queuectl.planner.problem.problem import Problem
from queuectl.planner.problem.topology import Ints, Mask
from queuectl.planner.quota.tree import QuotaRow

# Priority, and the time queued, negated: the lowest yields first.
Place: TypeAlias = tuple[int, float]
_Charges: TypeAlias = Iterable[tuple[QuotaRow, int]]


@dataclass(frozen=True, eq=False, slots=True)
class _Line:
    """Gangs of one ClusterQueue that run, stay and may be evicted some day, lowest first.

    Attributes:
        sums: what so many of the lowest are charged, per quota row.
    """

    places: list[Place]
    sums: dict[QuotaRow, list[int]]


@dataclass(eq=False, slots=True)
class Comeback:
    """Who yields to whom in the ClusterQueues of one snapshot, at one point of the walk, should victims of one gang come back.

    Attributes:
        uphill: whether any other queue of the preemptor's tree reclaims whatever the priority.
    """

    state: State
    preemptor: Workload
    uphill: bool
    _bounds: dict[int, Place | None] = field(default_factory=dict)
    _changes: dict[str, list[tuple[Place, int, _Charges]]] | None = None

    def threatens(self, gang: Admitted) -> bool:
        """Whether a gang that comes back, or who then has to leave, may evict the one it left for."""
        queue = self._queue(gang.workload)
        if queue is None or queue.reclaim_within_cohort is ReclaimWithinCohort.NEVER:
            return False
        return self.uphill or gang.workload.priority > self.preemptor.priority

    def dangerous(self, queue: ClusterQueue, priority: Ints) -> Mask:
        """The same for gangs of one ClusterQueue, by their priorities (C,)."""
        if queue.reclaim_within_cohort is ReclaimWithinCohort.NEVER:
            return np.zeros(len(priority), dtype=np.bool_)
        return (priority > self.preemptor.priority) | self.uphill

    def bound(self, gang: Admitted) -> Place | None:
        """All below this place count as yielding to a gang in its ClusterQueue; None = nobody does."""
        if id(gang) not in self._bounds:
            self._bounds[id(gang)] = self._bound(gang.workload) if self.threatens(gang) else None
        return self._bounds[id(gang)]

    def _bound(self, workload: Workload) -> Place | None:
        queue = self._queue(workload)
        if queue is None or queue.within_cluster_queue is WithinClusterQueue.NEVER:
            return None
        if queue.within_cluster_queue is WithinClusterQueue.LOWER_PRIORITY:
            return workload.priority, -inf
        return place_of(workload)

    def gives_way(self, workload: Workload) -> bool:
        """Whether a gang may be evicted for others of its ClusterQueue; only such gangs stand in lines."""
        queue = self._queue(workload)
        return queue is not None and not opts_out(workload, queue)

    def _queue(self, workload: Workload) -> ClusterQueue | None:
        config = self.state.problem.snapshot.config
        return config.cluster_queue_of(workload.namespace, workload.queue)

    def settled_above(self, row: QuotaRow, beyond: int) -> Place | None:
        """Gangs to which all up to this place yield would be back within their ClusterQueue's own; None = no place is known.

        Args:
            row: of the ClusterQueue.
            beyond: how much the queue uses of it beyond its own.
        """
        line = self.state.problem.once(_line_up).get(row[0])
        sums = line.sums.get(row) if line is not None else None
        if line is None or sums is None:
            return None
        changes = (rows for _, sign, rows in self._since(row[0]) if sign < 0)
        gone = sum(amount for rows in changes for at, amount in rows if at == row)
        first = bisect_left(sums, beyond + gone)
        return line.places[first - 1] if 0 < first < len(sums) else None

    def yields(
        self, gang: Admitted, queue: str, gone: Iterable[tuple[Admitted, _Charges]]
    ) -> dict[QuotaRow, int]:
        """What those who yield to a gang are charged.

        Args:
            gang: it runs.
            queue: the name of its ClusterQueue.
            gone: gangs that count as having left, of any queue, with what they are charged.
        """
        bound = self.bound(gang)
        if bound is None:
            return {}
        line = self.state.problem.once(_line_up).get(queue)
        found: dict[QuotaRow, int] = {}
        if line is not None:
            below = bisect_left(line.places, bound)
            found = {row: sums[below] for row, sums in line.sums.items()}
        left = (
            (place_of(other.workload), -1, rows)
            for other, rows in gone
            if other.evictable and self.gives_way(other.workload)
        )
        for at, sign, rows in (*self._since(queue), *left):
            if at < bound:
                for row, amount in rows:
                    if row[0] == queue:
                        found[row] = found.get(row, 0) + sign * amount
        return {row: amount for row, amount in found.items() if amount}

    def _since(self, queue: str) -> list[tuple[Place, int, _Charges]]:
        """Who of a ClusterQueue was started or evicted by this plan."""
        if self._changes is None:
            self._changes = {}
            for workload, sign, rows in self._changed():
                if rows and self.gives_way(workload):
                    change = (place_of(workload), sign, rows)
                    self._changes.setdefault(rows[0][0][0], []).append(change)
        return self._changes.get(queue, [])

    def _changed(self) -> Iterator[tuple[Workload, int, list[tuple[QuotaRow, int]]]]:
        state = self.state
        for kept in state.kept:
            yield kept.request.pending.workload, 1, list(kept.request.rows())
        for uid in sorted(state.gone & state.leaving.keys()):
            gang = state.leaving[uid]
            if gang.evictable:
                yield gang.workload, -1, list(state.problem.usage.charges(gang))


def place_of(workload: Workload) -> Place:
    """Where a gang stands in the line of its ClusterQueue."""
    return workload.priority, -workload.queued_at


def _line_up(problem: Problem) -> dict[str, _Line]:
    """The lines of all ClusterQueues, by name."""
    found: dict[str, list[tuple[Place, _Charges]]] = {}
    known = problem.snapshot.config.cluster_queues
    for gang in problem.snapshot.admitted:
        charges = problem.usage.charges(gang)
        if not charges or gang.leaving or not gang.evictable:
            continue
        if not opts_out(gang.workload, known[charges[0][0][0]]):
            found.setdefault(charges[0][0][0], []).append((place_of(gang.workload), charges))
    return {queue: _line(gangs) for queue, gangs in found.items()}


def _line(gangs: list[tuple[Place, _Charges]]) -> _Line:
    gangs.sort(key=lambda entry: entry[0])
    amounts: dict[QuotaRow, list[int]] = {}
    for at, (_, charges) in enumerate(gangs):
        for row, amount in charges:
            amounts.setdefault(row, [0] * len(gangs))[at] += amount
    sums = {row: list(accumulate(each, initial=0)) for row, each in amounts.items()}
    return _Line([at for at, _ in gangs], sums)
