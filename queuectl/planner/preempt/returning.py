"""Victims that return to their own ClusterQueue: gangs that a victim has a right to evict there do not keep it out.

A victim waits again, and starts at once if it may evict enough of its own queue. Those it evicts then wait, and take from
others what the queue reclaims. If one of these is the gang that the first victim left for, all begins again, and no end is
ever reached. Therefore every gang that is evicted for one that borrows is judged as if those that yield to it had left already.

They yield by ``withinClusterQueue``. They count only where their queue reclaims and a circle could close: it needs an eviction
that is not of a lower gang, so where others reclaim from lower ones alone no gang endangers a higher one. Protections that end
one day do not count.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from queuectl.domain.queues import ClusterQueue, ReclaimWithinCohort, WithinClusterQueue
from queuectl.domain.snapshot import Admitted
from queuectl.domain.workload import Workload
from queuectl.planner.capacity.state import CycleState
from queuectl.planner.preempt.protections import opts_out
from queuectl.planner.problem.fleet import Ints, Mask
from queuectl.planner.problem.problem import Problem
from queuectl.planner.quota import QuotaRow

# Priority, and the time queued, negated: the lowest yields first.
Place: TypeAlias = tuple[int, float]
P = TypeVar("P")
Q = TypeVar("Q", float, NDArray[np.float64])
_Charges: TypeAlias = Iterable[tuple[QuotaRow, int]]


@dataclass(frozen=True, eq=False, slots=True)
class _Line:
    """Gangs of one ClusterQueue that run, stay and can be evicted later, lowest first.

    Attributes:
        sums: what so many of the lowest are charged, per quota row.
    """

    places: list[Place]
    sums: dict[QuotaRow, list[int]]


@dataclass(eq=False, slots=True)
class Returning:
    """Which gangs yield to which in the ClusterQueues of one snapshot, at one point of the cycle, if victims of one gang return.

    Attributes:
        uphill: whether any other queue of the preemptor's tree reclaims whatever the priority.
    """

    state: CycleState
    preemptor: Workload
    uphill: bool
    _bounds: dict[int, Place | None] = field(default_factory=dict)
    _changes: dict[str, list[tuple[Place, int, _Charges]]] | None = None

    def threatens(self, gang: Admitted) -> bool:
        """Whether a gang that returns, or one that then has to leave, may evict the gang that it left for."""
        queue = self.state.problem.snapshot.queue_of(gang.workload)
        if queue is None or queue.reclaim_within_cohort is ReclaimWithinCohort.NEVER:
            return False
        return self.uphill or gang.workload.priority > self.preemptor.priority

    def dangerous(self, queue: ClusterQueue, priority: Ints) -> Mask:
        """The same for gangs of one ClusterQueue, by their priorities (C,)."""
        reclaims = queue.reclaim_within_cohort is not ReclaimWithinCohort.NEVER
        return reclaims & ((priority > self.preemptor.priority) | self.uphill)

    def bound(self, gang: Admitted) -> Place | None:
        """All below this place count as yielding to a gang in its ClusterQueue; None = no gang does."""
        if id(gang) not in self._bounds:
            workload = gang.workload
            queue = self.state.problem.snapshot.queue_of(workload)
            policy = queue.within_cluster_queue if queue is not None else WithinClusterQueue.NEVER
            place = evicts_below(policy, workload.priority, workload.queued_at)
            self._bounds[id(gang)] = place if self.threatens(gang) else None
        return self._bounds[id(gang)]

    def gives_way(self, workload: Workload) -> bool:
        """Whether a gang can be evicted for others of its ClusterQueue; only such gangs count as yielding."""
        queue = self.state.problem.snapshot.queue_of(workload)
        return queue is not None and not opts_out(workload, queue)

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
        """The charges of the gangs that yield to a gang.

        Args:
            gang: it runs.
            queue: the name of its ClusterQueue.
            gone: gangs that count as having left, of any queue, with what they are charged.
        """
        bound = self.bound(gang)
        if bound is None:
            return {}
        line = self.state.problem.once(_line_up).get(queue)
        amounts: dict[QuotaRow, int] = {}
        if line is not None:
            below = bisect_left(line.places, bound)
            amounts = {row: sums[below] for row, sums in line.sums.items()}
        left = (
            (place_of(other.workload), -1, rows)
            for other, rows in gone
            if other.evictable and self.gives_way(other.workload)
        )
        for at, sign, rows in (*self._since(queue), *left):
            if at < bound:
                for row, amount in rows:
                    if row[0] == queue:
                        amounts[row] = amounts.get(row, 0) + sign * amount
        return {row: amount for row, amount in amounts.items() if amount}

    def _since(self, queue: str) -> list[tuple[Place, int, _Charges]]:
        """The gangs of a ClusterQueue that this plan starts, keeps capacity for, or evicts."""
        if self._changes is None:
            self._changes = {}
            for workload, sign, rows in self._changed():
                if rows and self.gives_way(workload):
                    change = (place_of(workload), sign, rows)
                    self._changes.setdefault(rows[0][0][0], []).append(change)
        return self._changes.get(queue, [])

    def _changed(self) -> Iterator[tuple[Workload, int, list[tuple[QuotaRow, int]]]]:
        state = self.state
        starting = (admission.request for admission in state.admissions)
        # A gang with a reservation starts soon.
        waiting = (held.request for held in state.held.values())
        for request in (*starting, *waiting):
            yield request.pending.workload, 1, list(request.rows())
        for uid in sorted(state.evicted & state.leaving.keys()):
            gang = state.leaving[uid]
            if gang.evictable:
                yield gang.workload, -1, list(state.problem.usage.charges(gang))


def evicts_below(
    policy: WithinClusterQueue, priority: P, queued_at: Q
) -> tuple[P, Q | float] | None:
    """``withinClusterQueue``: the place below which a gang may evict the gangs of its ClusterQueue; None = it may evict none.

    Args:
        policy: of the ClusterQueue.
        priority: of the gang, or of each of several gangs.
        queued_at: of the same, unix seconds.
    """
    match policy:
        case WithinClusterQueue.NEVER:
            return None
        case WithinClusterQueue.LOWER_PRIORITY:
            return priority, -inf
        case WithinClusterQueue.LOWER_OR_NEWER_EQUAL_PRIORITY:
            return priority, -queued_at


def place_of(workload: Workload) -> Place:
    """The place of a gang in the order in which its ClusterQueue evicts."""
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
