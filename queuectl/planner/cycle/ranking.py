"""Which ClusterQueue's head is next, given what is admitted so far.

*By borrowing* (Kueue's order): one that does not borrow goes before one that does, and one that borrows from nearer before
one that borrows from further up its cohorts; then priority, past use of the ClusterQueue, time queued and uid.

*By share* (fair sharing): a tournament in every cohort, from the bottom up. Each member enters its best head. One whose
flavors and resources the member would not borrow is the first; then the smaller share of the member with the head started;
then priority, time queued and uid. Cohorts that share no quota compare by whether the head borrows, and by these last three.

Only changes are computed again: in the first order a head whose key can only have grown, in the second the way from a
ClusterQueue up to its root, for what a member enters depends on the use of that member alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from heapq import heappop, heappush
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from queuectl.domain.queues import ClusterQueue, WhenCan
from queuectl.domain.snapshot import Pending
from queuectl.planner.cycle.cycle import AdmissionCycle
from queuectl.planner.order.queue_order import Rank, place
from queuectl.planner.preempt.shortage import Heights, borrows
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.quota.shares import passed_up, share_of
from queuectl.planner.quota.tree import FlavorResource, QuotaNode

_LEASED: Final = -1  # its quota is taken off already: it borrows nothing more
_NO_CHARGES: Final[Mapping[FlavorResource, int]] = {}


class RankedQueue(Protocol):
    """The ranked item: the pending gangs of one ClusterQueue, None for those without one."""

    @property
    def name(self) -> str | None: ...

    @property
    def queue(self) -> ClusterQueue | None: ...

    @property
    def head(self) -> Pending | None: ...


R = TypeVar("R", bound=RankedQueue)


class Ranking(Protocol[R]):
    """One of the two orders."""

    def put(self, ranked: R) -> None:
        """Rank a queue again: its head, or its use, has changed. Without a head it is not ranked."""

    def drop(self, ranked: R) -> None:
        """Rank it no longer."""

    def take(self) -> R | None:
        """The queue whose head is next, None when there is none. It must be put or dropped before the next is taken."""

    def freed(self, queues: Iterable[str]) -> None:
        """Quota of these ClusterQueues came free: those who share it may borrow less than before."""


class _Heads:
    """The request of a head, and its quota. Shared by both orders."""

    def __init__(self, cycle: AdmissionCycle) -> None:
        self._classes = cycle.classes
        self._state = cycle.state
        self.order = cycle.heads.order
        self.use = cycle.state.later.quota

    def asks(self, ranked: RankedQueue) -> tuple[GangRequest | None, int]:
        """The flavors its head would get first, and how far up its cohorts it would borrow with them."""
        queue, head = ranked.queue, ranked.head
        if queue is None or queue.cohort is None or head is None or head.blocked is not None:
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

    def sharing(self, queues: Iterable[str], ranked: Iterable[R]) -> list[R]:
        """Those of ``ranked`` that share quota with one of these ClusterQueues."""
        pools = self.use.pools
        roots = {pools[name].root for name in set(queues)}
        return [r for r in ranked if r.name is not None and pools[r.name].root in roots]


_Key: TypeAlias = tuple[int, Rank]


class ByBorrowing(Generic[R]):
    """Amounts used only grow until quota comes free, so a stale key is never too large."""

    def __init__(self, cycle: AdmissionCycle) -> None:
        self._heads = _Heads(cycle)
        self._heap: list[tuple[_Key, int, R, int]] = []  # last, the changes of use its key is from
        self._ranked: dict[str | None, tuple[int, R]] = {}  # with the number of its valid key
        self._puts = 0

    def put(self, ranked: R) -> None:
        if ranked.head is None:
            self.drop(ranked)
            return
        self._push(self._key(ranked), ranked)

    def drop(self, ranked: R) -> None:
        self._ranked.pop(ranked.name, None)

    def take(self) -> R | None:
        while self._heap:
            known, number, ranked, changes = heappop(self._heap)
            if self._ranked.get(ranked.name, (0, None))[0] != number:
                continue
            if changes != self._heads.use.changes:
                key = self._key(ranked)
                if key != known and self._heap and self._heap[0][0] < key:
                    self._push(key, ranked)
                    continue
            self.drop(ranked)
            return ranked
        return None

    def freed(self, queues: Iterable[str]) -> None:
        for ranked in self._heads.sharing(queues, [r for _, r in self._ranked.values()]):
            self.put(ranked)

    def _push(self, key: _Key, ranked: R) -> None:
        self._puts += 1
        self._ranked[ranked.name] = self._puts, ranked
        heappush(self._heap, (key, self._puts, ranked, self._heads.use.changes))

    def _key(self, ranked: R) -> _Key:
        assert ranked.head is not None
        _, height = self._heads.asks(ranked)
        return height, self._heads.order.among(ranked.head.workload, ranked.queue)


_Entry: TypeAlias = tuple[
    bool, bool, Fraction, Rank
]  # would borrow, share is endless, share, place


@dataclass(eq=False, slots=True)
class _Entrant(Generic[R]):
    """A ClusterQueue or a Cohort in the tournament of its parent.

    Attributes:
        pool: None at the top, where those without a parent meet, and for gangs without a ClusterQueue.
        ranked: whose head it enters; None = of no ClusterQueue.
        place: of that head in the queue order, as it was put.
        rows: flavors and resources that head asks.
        charges: by how much the use of this pool grows when that head starts.
        borrows: whether the head borrows, here or further down.
        number: of its valid entry in the parent's tournament.
        entries: those of its members; some are out of date.
    """

    pool: QuotaNode | None
    parent: _Entrant[R] | None
    ranked: R | None = None
    place: Rank = ()
    rows: frozenset[FlavorResource] = frozenset()
    charges: Mapping[FlavorResource, int] = field(default_factory=dict)
    borrows: bool = False
    number: int = 0
    entries: list[tuple[_Entry, int, _Entrant[R]]] = field(default_factory=list)


class ByShare(Generic[R]):
    """The tournaments of all cohorts, each with the entries of its members in a heap."""

    def __init__(self, cycle: AdmissionCycle) -> None:
        self._heads = _Heads(cycle)
        self._top: _Entrant[R] = _Entrant(None, None)
        self._cohorts: dict[QuotaNode, _Entrant[R]] = {}
        self._queues: dict[str | None, _Entrant[R]] = {}
        self._numbers = 0

    def put(self, ranked: R) -> None:
        if ranked.head is None:
            self.drop(ranked)
            return
        entrant = self._queues.get(ranked.name)
        if entrant is None:
            pool = self._heads.use.pools[ranked.name] if ranked.name is not None else None
            entrant = self._queues[ranked.name] = _Entrant(pool, self._above(pool))
        request, _ = self._heads.asks(ranked)
        entrant.ranked, entrant.place = ranked, place(ranked.head.workload)
        entrant.borrows = False
        entrant.charges = request.charges if request is not None else _NO_CHARGES
        entrant.rows = frozenset(row for row, need in entrant.charges.items() if need)
        self._enter(entrant)

    def drop(self, ranked: R) -> None:
        entrant = self._queues.get(ranked.name)
        if entrant is not None and entrant.ranked is not None:
            entrant.ranked = None
            self._enter(entrant)

    def take(self) -> R | None:
        return self._top.ranked

    def freed(self, queues: Iterable[str]) -> None:
        ranked = [entrant.ranked for entrant in self._queues.values()]
        for each in self._heads.sharing(queues, [r for r in ranked if r is not None]):
            self.put(each)

    def _above(self, pool: QuotaNode | None) -> _Entrant[R]:
        """The tournament that a pool enters."""
        if pool is None or pool.parent is None:
            return self._top
        known = self._cohorts.get(pool.parent)
        if known is None:
            known = _Entrant(pool.parent, self._above(pool.parent))
            self._cohorts[pool.parent] = known
        return known

    def _enter(self, entrant: _Entrant[R]) -> None:
        """Enter it again, and the winner one level up, to the top."""
        while (parent := entrant.parent) is not None:
            self._numbers += 1
            entrant.number = self._numbers
            if entrant.ranked is not None:
                heappush(parent.entries, (self._key(entrant), entrant.number, entrant))
            while parent.entries and parent.entries[0][1] != parent.entries[0][2].number:
                heappop(parent.entries)
            winner = parent.entries[0][2] if parent.entries else None
            parent.ranked = winner.ranked if winner is not None else None
            if winner is not None:
                parent.place = winner.place
                parent.rows, parent.borrows = winner.rows, winner.borrows
                if winner.pool is not None:
                    parent.charges = passed_up(winner.pool, self._heads.use, winner.charges)
            entrant = parent

    def _key(self, entrant: _Entrant[R]) -> _Entry:
        pool = entrant.pool
        if pool is None or pool.parent is None:
            return entrant.borrows, False, _NO_SHARE, entrant.place
        share = share_of(pool, self._heads.use, entrant.charges)
        beyond = share.borrows_any(entrant.rows)
        entrant.borrows |= beyond
        return beyond, share.endless, share.ratio, entrant.place


_NO_SHARE: Final = Fraction(0)
