"""Whose turn it is among the ClusterQueues, given what was kept so far.

Inside a ClusterQueue the order is fixed: priority, time queued, uid. Among the heads of all ClusterQueues one that does not
borrow goes before one that does, and one that borrows from nearer before one that borrows from further up its cohorts
(Kueue's order); then priority, time queued and uid again. Who borrows depends on what was kept, so the next head is looked
for when the one before has been decided. Without cohorts nobody borrows, and this is the plain queue order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from queuectl.domain.queues import WhenCan
from queuectl.domain.snapshot import Pending
from queuectl.planner.classes import Classes
from queuectl.planner.demand import Demand
from queuectl.planner.ledger import Ledger
from queuectl.planner.order import Place, place

_LEASED = -1  # its quota is taken off already: it borrows nothing more


@dataclass(slots=True)
class Turns:
    """The heads, by how far they borrow. Amounts kept only grow between two releases, so a stale key is never too large."""

    classes: Classes
    ledger: Ledger
    _lines: dict[str, deque[Pending]] = field(default_factory=dict)
    _heads: list[tuple[int, Place, str]] = field(default_factory=list)
    _releases: int = 0

    def of(self, in_order: Iterable[Pending]) -> Iterator[Pending]:
        """Every gang at its turn; the one before must have been decided when the next is asked for."""
        snapshot = self.classes.arena.snapshot
        if all(queue.cohort is None for queue in snapshot.config.cluster_queues.values()):
            yield from in_order
            return
        for pending in in_order:
            workload = pending.workload
            queue = snapshot.config.cluster_queue_of(workload.namespace, workload.queue)
            self._lines.setdefault(queue.name if queue is not None else "", deque()).append(pending)
        self._rank()
        while self._lines:
            yield self._next()

    def _rank(self) -> None:
        self._releases = self.ledger.releases
        self._heads = [self._key(name) for name in self._lines]
        heapify(self._heads)

    def _next(self) -> Pending:
        if self._releases != self.ledger.releases:
            self._rank()
        while True:
            known = heappop(self._heads)
            name = known[2]
            key = self._key(name)
            if key == known or not self._heads or key < self._heads[0]:
                break
            heappush(self._heads, key)
        line = self._lines[name]
        head = line.popleft()
        if line:
            heappush(self._heads, self._key(name))
        else:
            del self._lines[name]
        return head

    def _key(self, name: str) -> tuple[int, Place, str]:
        head = self._lines[name][0]
        return self._height(name, head), place(head.workload), name

    def _height(self, name: str, head: Pending) -> int:
        """How far up its cohorts a head would borrow, under the flavors it would get first."""
        queue = self.classes.arena.snapshot.config.cluster_queues.get(name)
        if queue is None or queue.cohort is None or head.blocked is not None:
            return 0
        if head.lease is not None:
            return _LEASED
        demands = [demand for _, demand in self.classes.of(head, queue).demands]
        fitting = [demand for demand in demands if self.ledger.quota_fits(demand)]
        if not fitting:
            return min(map(self._alone, demands), default=0)
        if queue.fungibility.when_can_borrow is WhenCan.MAY_STOP_SEARCH:
            return max(self.ledger.borrows(fitting[0]), default=0)
        return max(min(map(self.ledger.borrows, fitting)), default=0)

    def _alone(self, demand: Demand) -> int:
        """Of a head that does not fit now: whether it would borrow even if its queue used nothing."""
        assert demand.queue is not None
        nominal = self.ledger.nominal(demand.queue)
        within = all(need <= nominal.get(row, 0) for row, need in demand.charges.items())
        return 0 if within else max(self.ledger.borrows(demand), default=0)
