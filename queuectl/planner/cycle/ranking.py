"""Which ClusterQueue's head is next, given what is admitted so far.

*By borrowing* (Kueue's order): one that does not borrow goes before one that does, and one that borrows from nearer before
one that borrows from further up its cohorts; then priority, past use of the ClusterQueue, time queued and uid.

*By share* (fair sharing): a tournament in every cohort, from the bottom up. Each member enters its best head. One whose
flavors and resources the member would not borrow is the first; then the smaller share of the member with the head started;
then priority, time queued and uid. Cohorts that share no quota compare by whether the head borrows, and by these last three.

Both are one :class:`Ranking`: each cohort keeps its winner, and the first order has one tournament for all ClusterQueues. Only changes are
computed again: in the first order a head whose key can only have grown, in the second the way from a ClusterQueue up to its root, for what a
member enters depends on the use of that member alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from heapq import heappop, heappush
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from queuectl.domain.queues import ClusterQueue, WhenCan
from queuectl.domain.snapshot import Pending
from queuectl.planner.cycle.cycle import AdmissionCycle
from queuectl.planner.order.queue_order import place
from queuectl.planner.preempt.shortage import Heights, borrows
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.quota import FlavorResource, QuotaNode, passed_up, share_of

_LEASED: Final = -1  # its quota is taken off already: it borrows nothing more
_NO_CHARGES: Final[Mapping[FlavorResource, int]] = {}
_NO_SHARE: Final = Fraction(0)


class RankedQueue(Protocol):
    """The ranked item: the pending gangs of one ClusterQueue, None for those without one."""

    @property
    def name(self) -> str | None: ...

    @property
    def queue(self) -> ClusterQueue | None: ...

    @property
    def head(self) -> Pending | None: ...


R = TypeVar("R", bound=RankedQueue)

_Key: TypeAlias = tuple[Any, ...]
"""The values that a tournament compares, in order; the last one is a rank, which no two heads share."""


@dataclass(frozen=True, slots=True)
class _Entry(Generic[R]):
    """The head of a ClusterQueue in the tournaments.

    Attributes:
        head: as it was put.
        height: how far up its cohorts it would borrow.
        rows: flavors and resources that it asks.
        changes: those of the use of quota when it was put.
    """

    ranked: R
    head: Pending
    height: int
    rows: frozenset[FlavorResource]
    changes: int


@dataclass(eq=False, slots=True)
class _Entrant(Generic[R]):
    """A ClusterQueue or a Cohort in the tournament of its parent.

    Attributes:
        pool: None at the top, where those without a parent meet, and for gangs without a ClusterQueue.
        entry: the head that it enters: its own, or that of the winner of its members. None = it enters none.
        charges: by how much the use of this pool grows when that head starts.
        borrows: whether that head borrows, here or further down.
        number: of its valid place in the parent's tournament.
        members: by their keys; some places are out of date.
    """

    pool: QuotaNode | None
    parent: _Entrant[R] | None
    entry: _Entry[R] | None = None
    charges: Mapping[FlavorResource, int] = field(default_factory=dict)
    borrows: bool = False
    number: int = 0
    members: list[tuple[_Key, int, _Entrant[R]]] = field(default_factory=list)

    def winner(self) -> _Entrant[R] | None:
        """The member with the least key."""
        while self.members and self.members[0][1] != self.members[0][2].number:
            heappop(self.members)
        return self.members[0][2] if self.members else None


class Ranking(ABC, Generic[R]):
    """The heads of all ClusterQueues in one of the two orders."""

    def __init__(self, cycle: AdmissionCycle) -> None:
        self._classes = cycle.classes
        self._state = cycle.state
        self._order = cycle.heads.order
        self._use = cycle.state.later.quota
        self._top: _Entrant[R] = _Entrant(None, None)
        self._queues: dict[str | None, _Entrant[R]] = {}
        self._numbers = 0

    def put(self, ranked: R) -> None:
        """Rank a queue again: its head, or its use, has changed. Without a head it is not ranked."""
        head = ranked.head
        if head is None:
            self.drop(ranked)
            return
        entrant = self._queues.get(ranked.name)
        if entrant is None:
            pool = self._use.pools[ranked.name] if ranked.name is not None else None
            entrant = self._queues[ranked.name] = _Entrant(pool, self._above(pool))
        request, height = self._asks(ranked, head)
        entrant.charges = request.charges if request is not None else _NO_CHARGES
        entrant.borrows = False
        rows = frozenset(row for row, need in entrant.charges.items() if need)
        entrant.entry = _Entry(ranked, head, height, rows, self._use.changes)
        self._enter(entrant)

    def drop(self, ranked: R) -> None:
        """Rank it no longer."""
        entrant = self._queues.get(ranked.name)
        if entrant is not None and entrant.entry is not None:
            entrant.entry = None
            self._enter(entrant)

    def take(self) -> R | None:
        """The queue whose head is next, None when there is none. It must be put or dropped before the next is taken."""
        while (first := self._top.entry) is not None and self._stale(first):
            self.put(first.ranked)
        return first.ranked if first is not None else None

    def freed(self, queues: Iterable[str]) -> None:
        """Quota of these ClusterQueues came free: those who share it may borrow less than before."""
        roots = {self._use.pools[name].root for name in set(queues)}
        for entrant in self._queues.values():
            shares = entrant.pool is not None and entrant.pool.root in roots
            if shares and entrant.entry is not None:
                self.put(entrant.entry.ranked)

    def _above(self, _pool: QuotaNode | None, /) -> _Entrant[R]:
        """The tournament that a pool enters."""
        return self._top

    @abstractmethod
    def _key(self, entrant: _Entrant[R], entry: _Entry[R], /) -> _Key:
        """The key of an entrant with the head that it enters."""

    def _stale(self, _entry: _Entry[R], /) -> bool:
        """Whether the key of the winner can be larger by now."""
        return False

    def _enter(self, entrant: _Entrant[R]) -> None:
        """Enter it again, and the winner one level up, to the top."""
        while (parent := entrant.parent) is not None:
            self._numbers += 1
            entrant.number = self._numbers
            if entrant.entry is not None:
                key = self._key(entrant, entrant.entry)
                heappush(parent.members, (key, entrant.number, entrant))
            winner = parent.winner()
            parent.entry = winner.entry if winner is not None else None
            if winner is not None and winner.pool is not None and parent.pool is not None:
                parent.borrows = winner.borrows
                parent.charges = passed_up(winner.pool, self._use, winner.charges)
            entrant = parent

    # The request of a head, and its quota.

    def _asks(self, ranked: RankedQueue, head: Pending) -> tuple[GangRequest | None, int]:
        """The flavors its head would get first, and how far up its cohorts it would borrow with them."""
        queue = ranked.queue
        if queue is None or queue.cohort is None or head.blocked is not None:
            return None, 0
        if head.lease is not None:
            return None, _LEASED
        requests = [request for _, request in self._classes.of(head, queue).requests]
        stops = queue.fungibility.when_can_borrow is WhenCan.MAY_STOP_SEARCH
        best: GangRequest | None = None
        lowest: Heights = ()
        for request in requests:
            if self._state.quota.fits(request):
                heights = borrows(self._state, request)
                if best is None or heights < lowest:
                    best, lowest = request, heights
                if stops:
                    break
        if best is not None:
            return best, max(lowest, default=0)
        if not requests:
            return None, 0
        return requests[0], min(map(self._alone, requests))

    def _alone(self, request: GangRequest) -> int:
        """Of a head that does not fit now: whether it would borrow even if its queue used nothing."""
        assert request.queue is not None
        nominal = self._state.quota.nominal(request.queue)
        within = all(need <= nominal.get(row, 0) for row, need in request.charges.items())
        return 0 if within else max(borrows(self._state, request), default=0)


class ByBorrowing(Ranking[R]):
    """One tournament. Amounts used only grow until quota comes free, so a stale key is never too large."""

    def _key(self, _entrant: _Entrant[R], entry: _Entry[R], /) -> _Key:
        return entry.height, self._order.among(entry.head.workload, entry.ranked.queue)

    def _stale(self, entry: _Entry[R], /) -> bool:
        return entry.changes != self._use.changes


class ByShare(Ranking[R]):
    """The tournaments of all cohorts: whether it would borrow, whether its share is endless, its share, its place."""

    def __init__(self, cycle: AdmissionCycle) -> None:
        super().__init__(cycle)
        self._cohorts: dict[QuotaNode, _Entrant[R]] = {}

    def _above(self, pool: QuotaNode | None, /) -> _Entrant[R]:
        if pool is None or pool.parent is None:
            return self._top
        entrant = self._cohorts.get(pool.parent)
        if entrant is None:
            entrant = _Entrant(pool.parent, self._above(pool.parent))
            self._cohorts[pool.parent] = entrant
        return entrant

    def _key(self, entrant: _Entrant[R], entry: _Entry[R], /) -> _Key:
        pool, at = entrant.pool, place(entry.head.workload)
        if pool is None or pool.parent is None:
            return entrant.borrows, False, _NO_SHARE, at
        share = share_of(pool, self._use, entrant.charges)
        beyond = share.borrows_any(entry.rows)
        entrant.borrows |= beyond
        return beyond, share.endless, share.ratio, at
