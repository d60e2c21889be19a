"""Whose turn it is: the lines of every ClusterQueue, the order among their heads, and the window shared between them.

Inside a ClusterQueue the order is that of :class:`~queuectl.planner.order.order.QueueOrder`. Among the heads of all ClusterQueues
:mod:`queuectl.planner.cycle.ranking` decides, by what was kept so far; so the next head is looked for when the one before has been
decided.

What is proved of the first gang of a line holds for the rest of it, so the whole line is refused with it. A refutation that
victims of others may undo *parks* the line instead: it comes back, first gang first, when capacity was promised anew.

What the last plan refuted is not searched for again while nothing relevant has changed (:mod:`queuectl.planner.cycle.refuted`).

The window is for all queues. No queue takes more than its part of it while others have gangs that nobody has looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import chain

from queuectl.domain.plan import Refusal
from queuectl.domain.queues import ClusterQueue, QueueingStrategy
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Pending
from queuectl.planner.cycle.cycle import AdmissionCycle
from queuectl.planner.cycle.ranking import ByBorrowing, ByShare, Ranking
from queuectl.planner.cycle.refuted import Refutations
from queuectl.planner.order.classes import EqualGangs, PendingGangs
from queuectl.planner.order.order import NEVER, QueueOrder, Rank


@dataclass(eq=False, slots=True)
class Position:
    """A line in one walk; gangs before ``at`` have been decided."""

    line: EqualGangs
    at: int = 0

    @property
    def first(self) -> Pending:
        return self.line.gangs[self.at]


@dataclass(eq=False, slots=True)
class QueueHeads:
    """The lines of one ClusterQueue in one walk.

    Attributes:
        parked: lines whose first gang is refuted for now, with what it was told.
        opened: gangs of it that count against the window.
    """

    name: str | None
    queue: ClusterQueue | None
    order: QueueOrder
    lines: list[tuple[Rank, Position]]  # a heap; places differ by uid at least
    parked: list[tuple[Position, Refusal]] = field(default_factory=list)
    opened: int = 0

    @property
    def head(self) -> Pending | None:
        """Who is first in it, of those not decided or parked."""
        while self.lines:
            rank, standing = self.lines[0]
            now = self.order.within(standing.first.workload, self.queue)
            if now == rank:
                return standing.first
            heappop(self.lines)  # what this plan started has moved it back
            heappush(self.lines, (now, standing))
        return None

    def take(self) -> Position:
        """Its first line, out of the order until it is put back."""
        return heappop(self.lines)[1]

    def put(self, standing: Position) -> None:
        """A line by the gang that is its first now, if there is one."""
        if standing.at < len(standing.line.gangs):
            rank = self.order.within(standing.first.workload, self.queue)
            heappush(self.lines, (rank, standing))

    @property
    def strict(self) -> bool:
        return self.queue is not None and self.queue.strategy is QueueingStrategy.STRICT_FIFO


def queue_heads(
    name: str | None, queue: ClusterQueue | None, order: QueueOrder, lines: Sequence[EqualGangs]
) -> QueueHeads:
    """All lines of a queue, nobody decided."""
    ranked = [(order.within(line.gangs[0].workload, queue), Position(line)) for line in lines]
    heapify(ranked)
    return QueueHeads(name, queue, order, ranked)


class HeadScheduler:
    """The turns of one walk."""

    def __init__(self, cycle: AdmissionCycle, lines: PendingGangs, *, singly: bool = False) -> None:
        """``singly``: give a turn to every gang, and search for it as if nothing were known of it."""
        snapshot = cycle.problem.snapshot
        self._walk = cycle
        self._lines = lines
        self._singly = singly
        self._queues = [
            queue_heads(
                name,
                snapshot.config.cluster_queues.get(name or ""),
                cycle.heads.order,
                of_queue,
            )
            for name, of_queue in lines.by_queue.items()
        ]
        by_share = bool(snapshot.config.rules.fair_sharing)
        self._ranking: Ranking[QueueHeads] = ByShare(cycle) if by_share else ByBorrowing(cycle)
        self._refuted = None if singly else Refutations(cycle)
        self._seen = 0  # releases of quota the ranking knows of
        self._reopened = cycle.classes.reopened
        self._resting: list[QueueHeads] = []
        window = snapshot.limits.window
        scarce = len(lines.in_order) > window and len(self._queues) > 1
        self._part = max(1, window // len(self._queues)) if scarce else len(lines.in_order) + 1
        self._laps = 1

    def __iter__(self) -> Iterator[Pending]:
        """Every gang that needs one at its turn; each must have been decided when the next is asked for."""
        yield from self._lines.blocked
        for waiting in self._queues:
            self._enter(waiting)
        while not self._walk.over and (following := self._next()) is not None:
            yield from self._turn(following)
            self._enter(following)
            self._catch_up()
        for waiting in self._queues:  # the window is full: nobody else is searched for
            while waiting.head is not None:
                yield from self._turn(waiting)
        for standing, refusal in chain.from_iterable(w.parked for w in self._queues):
            self._walk.refused.update(standing.line.tell(standing.at, refusal))
        if self._refuted is not None:
            self._refuted.keep()

    def _next(self) -> QueueHeads | None:
        waiting = self._ranking.take()
        if waiting is None and self._resting:
            self._laps += 1
            resting, self._resting = self._resting, []
            for rested in resting:
                self._enter(rested)
            return self._next()
        return waiting

    def _enter(self, waiting: QueueHeads) -> None:
        """Rank the head of a queue, unless it has none or has had its part."""
        if waiting.head is not None and waiting.opened >= self._part * self._laps:
            self._ranking.drop(waiting)
            self._resting.append(waiting)
        else:
            self._ranking.put(waiting)

    def _turn(self, waiting: QueueHeads) -> Iterator[Pending]:
        """The turn of the head of a queue, and what it means to the rest of its line."""
        cycle = self._walk
        standing = waiting.take()
        pending = standing.first
        before = cycle.considered
        if self._refuted is not None:
            self._refuted.recall(pending, waiting.queue, standing.line.kind)
        yield pending
        if self._refuted is not None:
            self._refuted.learn(pending, waiting.queue)
        waiting.opened += cycle.considered - before
        refusal = cycle.refused.get(pending.workload.uid)
        standing.at += 1
        if self._singly or refusal is None or refusal.lease is not None:
            waiting.put(standing)
        elif self._may_reopen(waiting, pending):
            standing.at -= 1  # the first again, should it come back
            waiting.parked.append((standing, refusal))
        elif waiting.strict and refusal.reasons[0].code not in _FOR_ALL:
            waiting.put(standing)  # it is the head now that the next waits behind
        else:
            cycle.refused.update(standing.line.tell(standing.at, refusal))

    def _may_reopen(self, waiting: QueueHeads, pending: Pending) -> bool:
        if waiting.strict:
            return False
        return self._walk.classes.of(pending, waiting.queue).refusal is not None

    def _catch_up(self) -> None:
        """After quota came free, or refutations were dropped: rank anew whom it concerns."""
        released = self._walk.state.released
        if self._seen < len(released):
            if self._refuted is not None:
                self._refuted.stir(released[self._seen :])
            self._ranking.freed(released[self._seen :])
            self._seen = len(released)
        if self._reopened != self._walk.classes.reopened:
            self._reopened = self._walk.classes.reopened
            for waiting in self._queues:
                if waiting.parked and self._unpark(waiting):
                    self._enter(waiting)

    def _unpark(self, waiting: QueueHeads) -> bool:
        parked, waiting.parked = waiting.parked, []
        for standing, refusal in parked:
            if self._may_reopen(waiting, standing.first):
                waiting.parked.append((standing, refusal))
            else:
                waiting.put(standing)
        return len(waiting.parked) < len(parked)


_FOR_ALL = NEVER | {Code.WAITING_IN_ORDER}
"""What a gang of a StrictFIFO queue is told that goes for those behind it as well."""
