"""Candidates that may be evicted on the same terms, each with the rule that allows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import numpy as np

from queuectl.domain.plan import PreemptionReason
from queuectl.domain.rules import FairStrategy
from queuectl.planner.preempt.comeback import Comeback
from queuectl.planner.preempt.contest import Contest, Deficits
from queuectl.planner.preempt.fair import Fair
from queuectl.planner.preempt.order import Foreign, Order
from queuectl.planner.preempt.reclaim import Reclaim
from queuectl.planner.preempt.roster import Bench
from queuectl.planner.preempt.terms import Terms, charges_of
from queuectl.planner.problem.topology import Ints


class Kind(IntEnum):
    """By which rule a candidate may be evicted."""

    NEVER = 0
    WITHIN = 1
    BY_PLACE = 2
    WHILE_BORROWING = 3
    WITHOUT_BORROWING = 4
    BY_SHARE = 5
    FOR_ROOM = 6
    IDLE = 7


_REASONS: Final = {
    Kind.WITHIN: PreemptionReason.IN_CLUSTER_QUEUE,
    Kind.BY_PLACE: PreemptionReason.IN_COHORT_RECLAMATION,
    Kind.WHILE_BORROWING: PreemptionReason.IN_COHORT_RECLAIM_WHILE_BORROWING,
    Kind.WITHOUT_BORROWING: PreemptionReason.IN_COHORT_RECLAMATION,
    Kind.BY_SHARE: PreemptionReason.IN_COHORT_FAIR_SHARING,
    Kind.FOR_ROOM: PreemptionReason.IN_COHORT_ROOM,
    Kind.IDLE: PreemptionReason.IDLE,
}


@dataclass(frozen=True, eq=False, slots=True)
class Scheme:
    """Candidates that may be evicted on the same terms.

    Attributes:
        kinds: by which rule each gang of the bench may be evicted. Shape (C,).
        comeback: who of a candidate's own ClusterQueue yields to it.
        borrows: whether the preemptor's queue may use more than its nominal quota then.
        strategies: of fair sharing; empty where shares do not count.
    """

    contest: Contest
    bench: Bench
    kinds: Ints
    comeback: Comeback
    borrows: bool = True
    strategies: tuple[FairStrategy, ...] = ()
    _orders: list[Order] = field(default_factory=list)

    def reason(self, gang: int) -> PreemptionReason:
        return _REASONS[Kind(int(self.kinds[gang]))]

    def deficits(self, bench: Bench) -> Deficits:
        """What must come free of quota, of the gangs of the scheme up to some priority."""
        deficits = self.contest.deficits(bench)
        return deficits if self.borrows else [*deficits, *self._own_only(bench)]

    def terms(self, bench: Bench) -> Terms:
        """The terms for the gangs of the scheme up to some priority."""
        deficits = self.deficits(bench)
        if not (self.kinds[: bench.size] > Kind.WITHIN).any():
            return Terms(bench, deficits, self.contest)
        order = self._order()
        if not order.foreign.owner:
            return Terms(bench, deficits, self.contest)
        return Terms(bench, deficits, self.contest, order, order.foreign.charges, plain=False)

    def _order(self) -> Order:
        """The rule about all the scheme's candidates; it holds for those up to some priority as well."""
        if not self._orders:
            foreign = Foreign(self.contest, self.bench, charges_of(self.bench), self.comeback)
            self._orders.append(self._order_of(foreign))
        return self._orders[0]

    def _order_of(self, foreign: Foreign) -> Order:
        exempt = self._of(Kind.FOR_ROOM, Kind.IDLE)
        if self.strategies:
            return Fair(foreign, self.strategies, exempt)
        wary = self._of(Kind.WHILE_BORROWING) if self.borrows else frozenset()
        dangerous = (g for g in foreign.owner if self.comeback.threatens(self.bench.gangs[g]))
        return Reclaim(foreign, exempt, (wary | frozenset(dangerous)) - exempt)

    def _of(self, *kinds: Kind) -> frozenset[int]:
        """The gangs that may be evicted by one of these rules."""
        return frozenset(np.flatnonzero(np.isin(self.kinds, kinds)).tolist())

    def _own_only(self, bench: Bench) -> Iterator[tuple[int, Ints]]:
        """What must leave the preemptor's own queue for it to stay within its nominal quota."""
        pool, nothing = self.contest.path[0], np.zeros(bench.size, dtype=np.int64)
        for row, need in self.contest.needs.items():
            amount = need + self.contest.beyond(pool, row)
            if need and amount > 0:
                yield amount, bench.quota.get((pool.name, *row), nothing)
