"""Which gang is considered next: the queue order in each ClusterQueue, the order among their heads, and the shared window.

Inside a ClusterQueue the order follows :class:`~queuectl.planner.order.queue_order.QueueOrder`. Among the heads of all
ClusterQueues a :class:`Ranking` decides, by what the cycle has admitted so far. So the next head is chosen after the one before has been
decided.

A proof for the first of some equal gangs holds for all of them that have no more rights to evict, so these are refused together. A
refutation that later evictions can undo sets them apart instead: they are considered again when capacity is reserved or returned.

The window is for all ClusterQueues. While other ClusterQueues have gangs that were not considered, none uses more than its part.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from fractions import Fraction
from heapq import heapify, heappop, heappush
from itertools import chain
from math import inf
from typing import Any, Final, TypeAlias

import numpy as np

from queuectl.domain.plan import Refusal
from queuectl.domain.queues import ClusterQueue, WhenCan
from queuectl.domain.reasons import NEVER_FITS, Code, Reason
from queuectl.domain.snapshot import Pending
from queuectl.planner.cycle.cycle import AdmissionCycle
from queuectl.planner.cycle.refutations import Refutations
from queuectl.planner.order.pending_gangs import EqualGangs, PendingGangs, length_of
from queuectl.planner.order.queue_order import QueueOrder, Rank, place, stretch
from queuectl.planner.preempt.shortage import Heights, borrows
from queuectl.planner.problem.fleet import Ints
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.quota import FlavorResource, QuotaNode, passed_up, share_of


@dataclass(eq=False, slots=True)
class QueueHeads:
    """The pending gangs of one ClusterQueue in one cycle.

    Attributes:
        name: of the ClusterQueue; None for gangs without one.
        waiting: a heap of equal gangs by the rank of their first gang; ranks differ by uid at least.
        deferred: equal gangs whose first gang is refuted for now, and its refusal.
        considered: gangs of it that count in the window.
    """

    name: str | None
    queue: ClusterQueue | None
    order: QueueOrder
    gangs: InitVar[Sequence[EqualGangs]]
    waiting: list[tuple[Rank, UndecidedGangs]] = field(init=False)
    deferred: list[tuple[UndecidedGangs, Refusal]] = field(default_factory=list)
    considered: int = 0

    def __post_init__(self, gangs: Sequence[EqualGangs]) -> None:
        self._rank(UndecidedGangs(equal, range(len(equal.gangs))) for equal in gangs)

    @property
    def head(self) -> Pending | None:
        """The first gang that is neither decided nor set apart as refuted."""
        while self.waiting:
            rank, position = self.waiting[0]
            now = self.order.within(position.first.workload, self.queue)
            if now == rank:
                return position.first
            heappop(self.waiting)  # the use of gangs that start in this plan has changed its rank
            heappush(self.waiting, (now, position))
        return None

    def take(self) -> UndecidedGangs:
        """The equal gangs of the head; they are out of the order until they are put back."""
        return heappop(self.waiting)[1]

    def put(self, position: UndecidedGangs) -> None:
        """Put equal gangs into the order by the first that is not decided, if there is one."""
        if self.name in self.order.shortest:
            position.sort(self.order.snapshot.now)
        if len(position):
            rank = self.order.within(position.first.workload, self.queue)
            heappush(self.waiting, (rank, position))

    def sort(self) -> None:
        """Rank all again, the shortest first."""
        for _, position in self.waiting:
            position.sort(self.order.snapshot.now)
        self._rank([position for _, position in self.waiting])

    def _rank(self, positions: Iterable[UndecidedGangs]) -> None:
        self.waiting = [(self.order.within(p.first.workload, self.queue), p) for p in positions]
        heapify(self.waiting)

    @property
    def strict(self) -> bool:
        """Whether the ClusterQueue is StrictFIFO."""
        return self.queue is not None and self.queue.strict


class HeadScheduler:
    """Yields the gangs of one cycle in queue order."""

    def __init__(self, cycle: AdmissionCycle, gangs: PendingGangs, *, singly: bool = False) -> None:
        """``singly``: give a turn to each gang, and search for it as if nothing were known of equal gangs."""
        snapshot = cycle.problem.snapshot
        self._cycle = cycle
        self._gangs = gangs
        self._singly = singly
        self._lengths = bool(cycle.planned.lines)  # whether answers depend on them
        order, queues = cycle.heads.order, snapshot.config.cluster_queues
        self._queues = [
            QueueHeads(name, queues.get(name or ""), order, of_queue)
            for name, of_queue in gangs.by_queue.items()
        ]
        by_share = bool(snapshot.config.rules.fair_sharing)
        self._ranking: Ranking = ByShare(cycle) if by_share else ByBorrowing(cycle)
        self._refuted = None if singly else Refutations(cycle)
        self._released = 0  # releases of quota that the ranking knows of
        self._reopened = cycle.classes.reopened
        self._at_once: dict[str | None, QueueHeads] = {}  # by name, those whose head never starts
        self._aside: list[Pending] = []  # heads that never start, in the order of all gangs
        self._over_their_part: list[QueueHeads] = []
        window, pending = snapshot.limits.window, len(gangs.in_order)
        scarce = pending > window and len(self._queues) > 1
        self._part = max(1, window // len(self._queues)) if scarce else pending + 1
        self._rounds = 1  # how many parts of the window each ClusterQueue may use

    def __iter__(self) -> Iterator[Pending]:
        """Each gang in queue order; it must be decided before the next one is requested."""
        yield from self._gangs.blocked
        self._follow_changes()  # what was returned until now does not rank a head again later
        for heads in self._queues:
            self._enter(heads)
        while not self._cycle.over and (heads_next := self._next()) is not None:
            assert heads_next.head is not None
            yield from self._aside_before(heads_next.head)
            yield from self._turn(heads_next)
            self._enter(heads_next)
            self._follow_changes()
        yield from self._aside_before(None)
        for heads in self._queues:  # the window is full: no other gang is searched for
            while heads.head is not None:
                yield from self._turn(heads)
        for position, refusal in chain.from_iterable(heads.deferred for heads in self._queues):
            self._cycle.refused.update(position.refuse(refusal))
        if self._refuted is not None:
            self._refuted.keep()

    def _next(self) -> QueueHeads | None:
        """The ClusterQueue whose head is next; None when each gang is decided."""
        if self._at_once:
            return self._at_once.pop(next(iter(self._at_once)))
        heads = self._ranking.take()
        if heads is None and self._over_their_part:
            self._rounds += 1
            again, self._over_their_part = self._over_their_part, []
            for each in again:
                self._enter(each)
            return self._next()
        return heads

    def _enter(self, heads: QueueHeads) -> None:
        """Rank the head of a ClusterQueue, unless it has none or its part of the window is used.

        A head that never starts is not ranked: it is refused at once, so that it does not delay the gangs behind it.
        """
        self._at_once.pop(heads.name, None)
        if heads.head is not None and heads.considered >= self._part * self._rounds:
            self._ranking.drop(heads)
            self._over_their_part.append(heads)
        elif self._never_starts(heads):
            self._ranking.drop(heads)
            if self._singly:
                self._take_aside(heads)
            else:
                self._at_once[heads.name] = heads
        else:
            self._ranking.put(heads)

    def _take_aside(self, heads: QueueHeads) -> None:
        """Let a head that never starts wait until the gangs before it in queue order are decided.

        It has no place in the ranking, and changes that would let it start are tried after the gangs before it.
        """
        position = heads.take()
        insort(self._aside, position.first, key=lambda gang: place(gang.workload))
        position.pass_first()
        heads.put(position)
        self._enter(heads)

    def _aside_before(self, gang: Pending | None) -> Iterator[Pending]:
        """The gangs that were taken aside and come before this one in the order of all gangs; None = all."""
        while self._aside:
            first = self._aside[0]
            if gang is not None and place(first.workload) > place(gang.workload):
                return
            yield self._aside.pop(0)

    def _never_starts(self, heads: QueueHeads) -> bool:
        """Whether the head never starts; not asked where all gangs are in one ClusterQueue."""
        if heads.head is None or len(self._queues) == 1:
            return False
        return self._cycle.never(self._cycle.classes.candidate(heads.head, heads.queue))

    def _turn(self, heads: QueueHeads) -> Iterator[Pending]:
        """Consider the head of a ClusterQueue, and apply its answer to equal gangs."""
        cycle = self._cycle
        position = heads.take()
        pending = position.first
        before = cycle.considered
        if self._refuted is not None:
            self._refuted.recall(pending, heads.queue, position.gangs.key)
        yield pending
        if self._refuted is not None:
            self._refuted.learn(pending, heads.queue)
        heads.considered += cycle.considered - before
        self._sort_the_rest(heads)
        refusal = cycle.refused.get(pending.workload.uid)
        if self._singly or refusal is None or refusal.lease is not None:
            position.pass_first()
        elif cycle.planned.room_for_more(heads.queue) and not refusal.reasons[0].never_fits:
            self._refuse_alone(heads, position, refusal)  # the next one can get a planned start too
        elif heads.strict and refusal.reasons[0].code not in _FOR_ALL:
            position.pass_first()  # it is now the head that holds back the next gang
        elif position.has_waited_longer(refusal):
            position.pass_first()  # the wait of an equal one can be over
        else:
            self._refuse_equal(heads, position, refusal)
        heads.put(position)

    def _refuse_alone(self, heads: QueueHeads, position: UndecidedGangs, refusal: Refusal) -> None:
        """Refuse the first gang, and none of the equal ones."""
        if self._refutation(heads, position.first) is not None:
            heads.deferred.append((position.alone(), refusal))
        position.pass_first()

    def _refuse_equal(self, heads: QueueHeads, position: UndecidedGangs, refusal: Refusal) -> None:
        """Refuse the first gang and all equal ones for which its answer also holds; the others are left."""
        pending = position.first
        known = self._cycle.classes.of(pending, heads.queue)
        whatever_its_length = not self._lengths or known.refused(pending.workload) is not None
        least = 0.0 if whatever_its_length else length_of(pending.workload)
        refused = position.take_like_first(least, by_age=known.evicts)
        if self._refutation(heads, pending) is not None:
            heads.deferred.append((refused, refusal))
        elif refusal.reasons[0].code is Code.PENDING_EVALUATION:
            self._cycle.refused.update(refused.put_off(refusal, self._cycle.not_yet))
        else:
            self._cycle.refused.update(refused.refuse(refusal))

    def _sort_the_rest(self, heads: QueueHeads) -> None:
        """Sort the gangs behind those with planned starts, once the line has all of them."""
        order = self._cycle.heads.order
        queues = self._cycle.planned.shortest_first(heads.queue) - order.shortest
        if not queues:
            return
        order.shortest |= queues
        for each in self._queues:
            if each.name in queues:
                each.sort()
                if each is not heads:
                    self._enter(each)

    def _refutation(self, heads: QueueHeads, pending: Pending) -> tuple[Reason, ...] | None:
        """The refutation of its class that still holds, where a change can undo it."""
        if heads.strict:
            return None
        return self._cycle.classes.of(pending, heads.queue).refuted(pending.workload)

    def _follow_changes(self) -> None:
        """Rank heads again where quota was returned, and consider refuted gangs again where refutations were dropped."""
        released = self._cycle.state.quota.released
        if self._released < len(released):
            if self._refuted is not None:
                self._refuted.note_change(released[self._released :])
            self._ranking.freed(released[self._released :])
            self._released = len(released)
        if self._reopened != self._cycle.classes.reopened:
            self._reopened = self._cycle.classes.reopened
            for heads in self._queues:
                if heads.deferred and self._resume(heads):
                    self._enter(heads)

    def _resume(self, heads: QueueHeads) -> bool:
        """Put refuted gangs back whose refutation was dropped; whether there are any."""
        deferred, heads.deferred = heads.deferred, []
        for position, refusal in deferred:
            why = self._refutation(heads, position.first)
            # A gang that never fits the current nodes can get others, if its refusal states what they wait for.
            if why is None or (why[0].never_fits and not refusal.reasons[0].never_fits):
                heads.put(position)
            else:
                heads.deferred.append((position, refusal))
        return len(heads.deferred) < len(deferred)


_FOR_ALL = NEVER_FITS | {Code.WAITING_IN_ORDER}
"""Refusals of a gang of a StrictFIFO ClusterQueue that also hold for the equal gangs behind it."""


# ---- Equal gangs that are not decided


@dataclass(eq=False, slots=True)
class UndecidedGangs:
    """The gangs of a group that are not decided. They differ in name, age, priority, and in length where there are planned starts.

    Attributes:
        gangs: the group.
        left: numbers of those that are not decided, in queue order.
    """

    gangs: EqualGangs
    left: Sequence[int] | Ints
    _at: int = 0  # of those that are left, the first one to be considered
    _now: float | None = None  # of the order by length; None = queue order
    _earliest: float | None = None  # the start of the longest wait to reclaim quota among them

    def __len__(self) -> int:
        """How many are not decided."""
        return len(self.left)

    @property
    def first(self) -> Pending:
        """The one that is considered next."""
        return self.gangs.gangs[self.left[self._at]]

    def has_waited_longer(self, refusal: Refusal) -> bool:
        """Whether one of them waits to reclaim quota since an earlier time than a gang with this refusal."""
        if refusal.reasons[0].code is not Code.WAITING_TO_RECLAIM:
            return False
        if self._earliest is None:
            self._earliest = min((_since(self.gangs.gangs[n]) for n in self.left), default=inf)
        return self._earliest < float(refusal.reasons[0].details["since"])

    def sort(self, now: float) -> None:
        """From here on the shortest is first, in relation to its wait."""
        if self._now != now:
            self._now = now
            self._find_first()

    def pass_first(self) -> None:
        """The first one is decided."""
        here = self._at
        if self._earliest is not None and _since(self.first) <= self._earliest:
            self._earliest = None
        self.left = np.delete(self.left, here) if here else self.left[1:]
        self._find_first()

    def alone(self) -> UndecidedGangs:
        """The first one."""
        return UndecidedGangs(self.gangs, [self.left[self._at]], _now=self._now)

    def take_like_first(self, seconds: float, *, by_age: bool = False) -> UndecidedGangs:
        """Take out those that run for at least so many seconds, or for an unknown time.

        ``by_age``: but leave those of its priority that are older than the first one. In queue order, the first one is the oldest.
        """
        by_age = by_age and self._now is not None
        if seconds <= 0.0 and not by_age:
            same = UndecidedGangs(self.gangs, self.left, self._at, self._now)
            self.left = ()
            return same
        self._earliest = None
        left = np.asarray(self.left)
        alike = self.gangs.lengths[left] >= seconds
        if by_age:
            level, since = self.gangs.priorities[left], self.gangs.queued_at[left]
            alike &= (level < level[self._at]) | (since >= since[self._at])
        same = UndecidedGangs(self.gangs, self.left if alike.all() else left[alike], _now=self._now)
        same._find_first()
        self.left = left[~alike]
        self._find_first()
        return same

    def refuse(self, like: Refusal) -> Mapping[str, Refusal]:
        """The refusals, by uid, of all that are left."""
        if isinstance(self.left, range):
            return self.gangs.refuse(self.left.start, like)
        gangs = self.gangs.gangs
        uids = [gangs[number].workload.uid for number in self.left]
        return {uid: Refusal(uid, like.reasons, None, like.proof) for uid in uids}

    def put_off(
        self, like: Refusal, reason_of: Callable[[Pending], Reason]
    ) -> Mapping[str, Refusal]:
        """The same, each with the time since which it waits itself."""
        left = map(self.gangs.gangs.__getitem__, self.left)
        refused = (
            Refusal(gang.workload.uid, (reason_of(gang),), None, like.proof) for gang in left
        )
        return {refusal.uid: refusal for refusal in refused}

    def _find_first(self) -> None:
        self._at = 0
        if self._now is None or len(self.left) < 2:
            return
        left, gangs = np.asarray(self.left), self.gangs
        stretched = stretch(self._now, gangs.queued_at[left], gangs.lengths[left])
        level = gangs.priorities[left]
        self._at = int(np.argmax(np.where(level == level.max(), stretched, -np.inf)))


def _since(gang: Pending) -> float:
    """The time since which it waits to reclaim quota, in unix seconds; infinite if it does not."""
    return inf if gang.reclaim_since is None else gang.reclaim_since


# ---- The order among heads
#
# *By borrowing* (Kueue's order): one that does not borrow goes before one that does, and one that borrows from nearer before
# one that borrows from further up its cohorts; then priority, past use of the ClusterQueue, time queued and uid.
#
# *By share* (fair sharing): a tournament in every cohort, from the bottom up. Each member enters its best head. One whose
# flavors and resources the member would not borrow is the first; then the smaller share of the member with the head started;
# then priority, time queued and uid. Cohorts that share no quota compare by whether the head borrows, and by these last three.
#
# Both are one :class:`Ranking`: each cohort keeps its winner, and the first order has one tournament for all ClusterQueues. Only changes are
# computed again: in the first order a head whose key can only have grown, in the second the way from a ClusterQueue up to its root, for what a
# member enters depends on the use of that member alone.


_LEASED: Final = -1  # its quota is taken off already: it borrows nothing more
_NO_CHARGES: Final[Mapping[FlavorResource, int]] = {}
_NO_SHARE: Final = Fraction(0)


_Key: TypeAlias = tuple[Any, ...]
"""The values that a tournament compares, in order; the last one is a rank, which no two heads share."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """The head of a ClusterQueue in the tournaments.

    Attributes:
        head: as it was put.
        height: how far up its cohorts it would borrow.
        rows: flavors and resources that it asks.
        changes: those of the use of quota when it was put.
    """

    queue_heads: QueueHeads
    head: Pending
    height: int
    rows: frozenset[FlavorResource]
    changes: int


@dataclass(eq=False, slots=True)
class _Entrant:
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
    parent: _Entrant | None
    entry: _Entry | None = None
    charges: Mapping[FlavorResource, int] = field(default_factory=dict)
    borrows: bool = False
    number: int = 0
    members: list[tuple[_Key, int, _Entrant]] = field(default_factory=list)

    def winner(self) -> _Entrant | None:
        """The member with the least key."""
        while self.members and self.members[0][1] != self.members[0][2].number:
            heappop(self.members)
        return self.members[0][2] if self.members else None


class Ranking(ABC):
    """The heads of all ClusterQueues in one of the two orders."""

    def __init__(self, cycle: AdmissionCycle) -> None:
        self._classes = cycle.classes
        self._leases = cycle.leases
        self._state = cycle.state
        self._order = cycle.heads.order
        self._use = cycle.state.later.quota
        self._top: _Entrant = _Entrant(None, None)
        self._queues: dict[str | None, _Entrant] = {}
        self._numbers = 0

    def put(self, heads: QueueHeads) -> None:
        """Rank a queue again: its head, or its use, has changed. Without a head, it is not ranked."""
        head = heads.head
        if head is None:
            self.drop(heads)
            return
        entrant = self._queues.get(heads.name)
        if entrant is None:
            pool = self._use.pools[heads.name] if heads.name is not None else None
            entrant = self._queues[heads.name] = _Entrant(pool, self._above(pool))
        request, height = self._asks(heads, head)
        entrant.charges = request.charges if request is not None else _NO_CHARGES
        entrant.borrows = False
        rows = frozenset(row for row, need in entrant.charges.items() if need)
        entrant.entry = _Entry(heads, head, height, rows, self._use.changes)
        self._enter(entrant)

    def drop(self, heads: QueueHeads) -> None:
        """Rank it no longer."""
        entrant = self._queues.get(heads.name)
        if entrant is not None and entrant.entry is not None:
            entrant.entry = None
            self._enter(entrant)

    def take(self) -> QueueHeads | None:
        """The queue whose head is next, or None. It must be put or dropped before the next is taken."""
        while (first := self._top.entry) is not None and self._stale(first):
            self.put(first.queue_heads)
        return first.queue_heads if first is not None else None

    def freed(self, queues: Iterable[str]) -> None:
        """Quota of these ClusterQueues came free: those who share it may borrow less than before."""
        roots = {self._use.pools[name].root for name in set(queues)}
        for entrant in self._queues.values():
            shares = entrant.pool is not None and entrant.pool.root in roots
            if shares and entrant.entry is not None:
                self.put(entrant.entry.queue_heads)

    def _above(self, _pool: QuotaNode | None, /) -> _Entrant:
        """The tournament that a pool enters."""
        return self._top

    @abstractmethod
    def _key(self, entrant: _Entrant, entry: _Entry, /) -> _Key:
        """The key of an entrant with the head that it enters."""

    def _stale(self, _entry: _Entry, /) -> bool:
        """Whether the key of the winner can be larger by now."""
        return False

    def _enter(self, entrant: _Entrant) -> None:
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

    def _asks(self, heads: QueueHeads, head: Pending) -> tuple[GangRequest | None, int]:
        """The flavors its head would get first, and how far up its cohorts it would borrow with them."""
        queue = heads.queue
        if queue is None or queue.cohort is None or head.blocked is not None:
            return None, 0
        if self._leases.holds(head.workload.uid):
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


class ByBorrowing(Ranking):
    """One tournament. Amounts used only grow until quota comes free, so a stale key is never too large."""

    def _key(self, _entrant: _Entrant, entry: _Entry, /) -> _Key:
        return entry.height, self._order.among(entry.head.workload, entry.queue_heads.queue)

    def _stale(self, entry: _Entry, /) -> bool:
        return entry.changes != self._use.changes


class ByShare(Ranking):
    """The tournaments of all cohorts: whether it would borrow, whether its share is endless, its share, its place."""

    def __init__(self, cycle: AdmissionCycle) -> None:
        super().__init__(cycle)
        self._cohorts: dict[QuotaNode, _Entrant] = {}

    def _above(self, pool: QuotaNode | None, /) -> _Entrant:
        if pool is None or pool.parent is None:
            return self._top
        entrant = self._cohorts.get(pool.parent)
        if entrant is None:
            entrant = _Entrant(pool.parent, self._above(pool.parent))
            self._cohorts[pool.parent] = entrant
        return entrant

    def _key(self, entrant: _Entrant, entry: _Entry, /) -> _Key:
        pool, at = entrant.pool, place(entry.head.workload)
        if pool is None or pool.parent is None:
            return entrant.borrows, False, _NO_SHARE, at
        share = share_of(pool, self._use, entrant.charges)
        beyond = share.borrows_any(entry.rows)
        entrant.borrows |= beyond
        return beyond, share.endless, share.ratio, at
