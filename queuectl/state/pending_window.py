"""The pending gangs that one plan considers, where too many different shapes wait for all of them.

The work of a plan grows with the different shapes that wait, and a user can submit any number of them. So a plan considers a limited
number, divided among the LocalQueues: one with few shapes is considered whole, however many wait in another. Of the others, the
first half of the part of a LocalQueue is the head of its queue order. The second half rotates: with *S* shapes in a LocalQueue whose
part is *P*, each of them is in at least one of ``4 S / P`` plans in a row.

Of a StrictFIFO ClusterQueue, a part of its order is considered, because no gang passes one before it that needs the same capacity. After
a change, the part begins with the first gang. Gangs that never fit, that are at a limit of their user, or that wait for another flavor do
not hold back all later ones. If the part has only such gangs, it is larger after the next change, up to :data:`MOST` shapes of all such
ClusterQueues. The gangs behind it are considered while nothing changes: each plan has the next part, and the gangs before it that can hold it back.

The number follows the CPU time of the plans, which depends on the cluster: other queues wait while a plan is made. Once each shape has been
considered and nothing has changed since, no further plan is necessary. The same holds for gangs that the limit of a cycle has left out
(:mod:`queuectl.planner.cycle_work`): each needs one answer.

Equal gangs are one shape. A gang that is not considered keeps its reason.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from queuectl.domain.plan import Refusal
from queuectl.domain.queues import ClusterQueue
from queuectl.domain.reasons import AT_A_LIMIT, Code, Reason
from queuectl.domain.snapshot import PastUse, Pending, Snapshot
from queuectl.domain.workload import Workload
from queuectl.planner.order.queue_order import Place, QueueOrder, place

MOST: Final = 1024
"""Different shapes in one plan."""
FIRST: Final = 128
"""In the first plan, whose work is not known yet."""
FEWEST: Final = 24
"""In a plan, however long it takes. With 64, all shapes are considered in three quarters of the time, and gangs of other queues wait twice as long."""
LEAST: Final = 16
"""Of one LocalQueue, however many LocalQueues there are."""
MOST_PINNED: Final = 64
PLAN_SECONDS: Final = 0.08
"""The CPU time of a plan after which the next ones consider fewer shapes. The slowest plans take a quarter longer."""
_GROWTH: Final = 1.25

_Queue = tuple[str, str | None]
_Rank = tuple[Any, ...]
"""Smaller is earlier; compared within one ClusterQueue."""
_RankOf = Callable[[Place], _Rank]


@dataclass(frozen=True, slots=True)
class _Counted:
    """A gang that waits, with its LocalQueue and the number of its shape; ``always``: each plan considers it."""

    pending: Pending
    queue: _Queue
    number: int
    place: Place
    always: bool


@dataclass(frozen=True, slots=True)
class _Ranked:
    """A gang of a StrictFIFO ClusterQueue, in its order. ``number``: of its shape."""

    rank: _Rank
    uid: str
    number: int


@dataclass(frozen=True, slots=True)
class _Progress:
    """How far the plans since the last change have considered a StrictFIFO ClusterQueue.

    Attributes:
        begin: the rank of the first gang that the next plan considers; None = no other gang can start.
        heads: uids of the gangs before it that can hold back others, or keep quota: those that can fit.
        before: the number of shapes before it.
        free: the number of shapes up to the last one that is not held back.
    """

    begin: _Rank | None = ()
    heads: frozenset[str] = frozenset()
    before: int = 0
    free: int = 0


@dataclass(slots=True)
class _Slice:
    """The part of the order of a StrictFIFO ClusterQueue that a plan considers, with the heads before it.

    Attributes:
        since: where it begins.
        end: the rank of the first gang behind it; None = no gang is behind it.
        flavors: whether the ClusterQueue has several, so that a head does not hold back all others.
        gangs: that the plan considers.
    """

    since: _Progress
    end: _Rank | None
    flavors: bool
    gangs: list[_Ranked] = field(default_factory=list)

    def has(self, rank: _Rank, uid: str) -> bool:
        """Whether the plan considers this gang."""
        begin = self.since.begin
        within = begin is not None and begin <= rank and (self.end is None or rank < self.end)
        return within or uid in self.since.heads

    def answered(self, reasons: Mapping[str, Reason], limited: Collection[str]) -> _Progress:
        """The progress after the plan.

        Args:
            reasons: the main reasons of the gangs that wait, by uid.
            limited: ``namespace/name`` of the gangs at a limit, which hold back only those that share the limit.
        """
        begin = self.since.begin
        if begin is None:
            return self.since
        held, heads, put_off = set[str](), list[_Ranked](), list[_Rank]()
        for gang in self.gangs:
            reason = reasons.get(gang.uid)
            if reason is None or reason.never_fits:
                continue
            if reason.code is Code.WAITING_IN_ORDER:
                if reason.details.get("behind") in limited:
                    continue
                held.add(gang.uid)
            heads.append(gang)
            if reason.code is Code.PENDING_EVALUATION and gang.rank >= begin:
                put_off.append(gang.rank)
        shapes, free = set[int](), 0
        for gang in sorted(self.gangs, key=lambda each: each.rank):
            if gang.rank >= begin:
                shapes.add(gang.number)
                free = free if gang.uid in held else len(shapes)
        ends = self.end is None or (bool(held) and not self.flavors)
        ends |= len({gang.number for gang in heads}) > MOST
        return _Progress(
            begin=None if ends and not put_off else min(put_off, default=self.end),
            heads=frozenset(gang.uid for gang in heads),
            before=self.since.before + len(shapes),
            free=self.since.before + free,
        )


_BEGIN: Final = _Progress()


class PendingWindow:
    """The pending gangs that the next plan of one leader considers. Between two plans few gangs come or go, and only these are counted again.

    Attributes:
        partial: some gangs have had no answer since the last change.
    """

    def __init__(self, shapes: int = FIRST) -> None:
        """``shapes``: in the first plan."""
        self._shapes = shapes
        self._ordered = MOST  # of all StrictFIFO ClusterQueues, at most
        self._considered: set[int] = set()  # shapes since the last change
        self._changed = True
        # By uid, since the last change: the gangs with an answer, and those that only the limit of a cycle has left out.
        self._answered: set[str] = set()
        self._left_out: set[str] = set()
        # Of the gangs of the last snapshot: each by its id, which names it while it is kept here.
        self._counted: dict[int, _Counted] = {}
        self._numbers: dict[Hashable, int] = {}  # of the shapes that wait
        self._waiting: dict[int, tuple[Hashable, int]] = {}  # by number: the shape, and its gangs
        self._last_number = 0
        # Of each LocalQueue and shape: the places of its gangs in order.
        self._places: dict[_Queue, dict[int, list[Place]]] = {}
        # Of each LocalQueue: the shape that was considered last, and the last one of its current round.
        self._rounds: dict[_Queue, tuple[int, int]] = {}
        self._pinned: dict[str, None] = {}
        # Of each StrictFIFO ClusterQueue: the number of shapes to consider after a change, the progress since then, and the current part.
        self._needed: dict[str, int] = {}
        self._progress: dict[str, _Progress] = {}
        self._slices: dict[str, _Slice] = {}
        self._pending: Sequence[Pending] = ()  # of the last snapshot
        self._past_use = PastUse()  # of the snapshot after the last change, so that the order stays the same until the next one
        self.partial = False

    def pin(self, uid: str) -> None:
        """Consider this gang in the next plans, because a user asks for it. A StrictFIFO ClusterQueue keeps its order nevertheless."""
        self._pinned.pop(uid, None)
        self._pinned[uid] = None
        if len(self._pinned) > MOST_PINNED:
            del self._pinned[next(iter(self._pinned))]

    def took(self, seconds: float) -> None:
        """Consider more or fewer shapes after the next changes. ``seconds``: the CPU time of the plan that was made."""
        if not self._changed:
            return  # it used what the one before it had proved
        factor = min(_GROWTH, PLAN_SECONDS / max(seconds, 0.001))
        self._shapes = min(MOST, max(FEWEST, round(self._shapes * factor)))
        self._ordered = min(MOST, max(FEWEST, round(self._ordered * factor)))

    def answered(self, refusals: Collection[Refusal], out: Collection[str] = ()) -> None:
        """Take in the answers of a plan for the gangs that it considered. ``out``: uids of gangs that are set aside, and have none."""
        reasons, without = {r.uid: r.reasons[0] for r in refusals}, frozenset(out)
        limited = self._refs(uid for uid, reason in reasons.items() if reason.code in AT_A_LIMIT)
        ordered = set[str]()
        for name, part in self._slices.items():
            uids = {gang.uid for gang in part.gangs}
            ordered |= uids
            # The plan of one cohort has no answers for the others.
            if not uids.isdisjoint(reasons) or uids <= without:
                progress = self._progress[name] = part.answered(reasons, limited)
                self._needed[name] = progress.free if progress.begin is None else progress.before
        self.partial = self.partial or any(
            self._progress.get(name, _BEGIN).begin is not None for name in self._slices
        )
        put_off = {
            uid
            for uid, reason in reasons.items()
            if reason.code is Code.PENDING_EVALUATION and uid not in ordered
        }
        if put_off or self._left_out:
            refs = self._refs(put_off)
            self._answered.update(
                uid
                for uid, reason in reasons.items()
                if uid not in put_off and reason.details.get("behind") not in refs
            )
            self._left_out = (self._left_out | put_off) - self._answered - without
            self.partial = self.partial or bool(self._left_out)

    def _refs(self, uids: Iterable[str]) -> set[str]:
        """``namespace/name`` of these gangs of the last snapshot."""
        sought = set(uids)
        return {
            p.workload.ref for p in (self._pending if sought else ()) if p.workload.uid in sought
        }

    def applied(self, snapshot: Snapshot, *, changed: bool = True) -> Snapshot:
        """The snapshot with the gangs that its plan considers.

        ``changed``: since the last plan. If not, this plan is only for the gangs that the plans before it have left out.
        """
        self._changed = changed
        if changed:
            self._considered.clear()
            self._answered.clear()
            self._left_out.clear()
            self._progress.clear()
            self._past_use = snapshot.past_use
        elif self._left_out:
            self._left_out.intersection_update(p.workload.uid for p in snapshot.pending)
        self.partial = False
        self._slices = {}
        self._pending = snapshot.pending
        if len(snapshot.pending) <= self._shapes:
            return snapshot
        self._count(snapshot.pending)
        if sum(map(len, self._places.values())) <= self._shapes:
            return snapshot
        by_queue = {
            queue: {number: places[0] for number, places in shapes.items()}
            for queue, shapes in self._places.items()
        }
        kept, strict = self._kept(by_queue, snapshot)
        self._considered.update(*kept.values())
        self.partial = any(not shapes.keys() <= self._considered for shapes in by_queue.values())
        counted, pinned = self._counted, self._pinned

        def considered(pending: Pending) -> bool:
            one, workload = counted[id(pending)], pending.workload
            if one.always:
                return True
            if one.queue not in strict:
                return one.number in kept[one.queue] or workload.uid in pinned
            part, rank_of = strict[one.queue]
            rank = rank_of(one.place)
            if not part.has(rank, workload.uid):
                return False
            part.gangs.append(_Ranked(rank, workload.uid, one.number))
            return True

        return replace(snapshot, pending=tuple(filter(considered, snapshot.pending)))

    def _count(self, gangs: Sequence[Pending]) -> None:
        """Count the gangs that have come since the last time, and no longer those that have gone.

        A shape keeps its number while a gang of it waits.
        """
        counted = self._counted
        current = dict(zip(map(id, gangs), gangs, strict=True))
        gone = [counted.pop(at) for at in counted.keys() - current.keys()]
        new = [at for at in current if at not in counted]
        for at in new:
            counted[at] = self._added(current[at])
        for gang in gone:
            self._drop(gang)

    def _added(self, pending: Pending) -> _Counted:
        workload, shape = pending.workload, _shape(pending)
        number = self._numbers.get(shape)
        if number is None:
            number = self._numbers[shape] = self._last_number = self._last_number + 1
        self._waiting[number] = (shape, self._waiting.get(number, (shape, 0))[1] + 1)
        queue = workload.namespace, workload.queue
        one = _Counted(pending, queue, number, place(workload), _always(pending))
        if not one.always:
            insort(self._places.setdefault(queue, {}).setdefault(number, []), one.place)
        return one

    def _drop(self, gang: _Counted) -> None:
        shape, gangs = self._waiting.pop(gang.number)
        if gangs > 1:
            self._waiting[gang.number] = (shape, gangs - 1)
        else:
            del self._numbers[shape]
        if gang.always:
            return
        shapes = self._places[gang.queue]
        places = shapes[gang.number]
        del places[bisect_left(places, gang.place)]
        if not places:
            del shapes[gang.number]
        if not shapes:
            del self._places[gang.queue]

    def _kept(
        self, by_queue: dict[_Queue, dict[int, Place]], snapshot: Snapshot
    ) -> tuple[dict[_Queue, set[int]], dict[_Queue, tuple[_Slice, _RankOf]]]:
        """The shapes of each LocalQueue that this plan considers, and the parts of the StrictFIFO ClusterQueues, by LocalQueue."""
        ranks = _Ranks(replace(snapshot, past_use=self._past_use))
        part = max(LEAST, _part(sorted(map(len, by_queue.values())), self._shapes))
        considered: dict[_Queue, set[int]] = {queue: set() for queue in by_queue}
        self._rounds = {queue: at for queue, at in self._rounds.items() if queue in by_queue}
        strict: dict[str, list[_Queue]] = defaultdict(list)
        for queue, shapes in by_queue.items():
            cluster_queue = snapshot.config.cluster_queue_of(*queue)
            if cluster_queue and cluster_queue.strict:
                strict[cluster_queue.name].append(queue)
                self._considered.update(shapes)  # those behind the head have no turn
            elif len(shapes) <= part:
                considered[queue].update(shapes)
            else:
                rank = ranks.of(cluster_queue)
                ranked = sorted(shapes, key=lambda number: rank(shapes[number]))
                considered[queue].update(self._of_one(queue, ranked, part))
        return considered, self._parts(strict, by_queue, ranks, part)

    def _parts(
        self,
        strict: Mapping[str, Sequence[_Queue]],
        by_queue: Mapping[_Queue, Mapping[int, Place]],
        ranks: _Ranks,
        part: int,
    ) -> dict[_Queue, tuple[_Slice, _RankOf]]:
        """The part of each StrictFIFO ClusterQueue that this plan considers, by LocalQueue, with the order of the ClusterQueue."""
        self._needed = {name: most for name, most in self._needed.items() if name in strict}
        most_of = {}
        for name, queues in strict.items():
            again = 0 if name in self._progress else self._needed.get(name, 0)
            shapes = sum(len(by_queue[queue]) for queue in queues)
            most_of[name] = min(shapes, part * len(queues) + again)
        largest = max(LEAST, _part(sorted(most_of.values()), self._ordered))
        parts: dict[_Queue, tuple[_Slice, _RankOf]] = {}
        for name, queues in strict.items():
            cluster_queue = ranks.snapshot.config.cluster_queues[name]
            most = min(most_of[name], largest)
            since, rank = self._progress.get(name, _BEGIN), ranks.of(cluster_queue)
            firsts = sorted(self._firsts(queues, by_queue, rank, since.begin))
            end = firsts[most] if most < len(firsts) else None
            self._slices[name] = _Slice(since, end, len(cluster_queue.flavors) > 1)
            parts |= dict.fromkeys(queues, (self._slices[name], rank))
        return parts

    def _firsts(
        self,
        queues: Iterable[_Queue],
        by_queue: Mapping[_Queue, Mapping[int, Place]],
        rank: _RankOf,
        begin: _Rank | None,
    ) -> Iterator[_Rank]:
        """The rank of the first gang of each shape from a rank on."""
        if begin is None:
            return
        for queue in queues:
            for number, first in by_queue[queue].items():
                if not begin:
                    yield rank(first)
                    continue
                places = self._places[queue][number]
                at = bisect_left(places, begin, key=rank)
                if at < len(places):
                    yield rank(places[at])

    def _of_one(self, queue: _Queue, ranked: Sequence[int], part: int) -> Iterator[int]:
        """The head of a LocalQueue, and the next ones of its current round. ``ranked``: its shapes, in order.

        A round has the shapes that waited when it began, so that later ones cannot delay its end.
        """
        head = part // 2
        yield from ranked[:head]
        others = sorted(ranked[head:])
        last, end = self._rounds.get(queue, (0, 0))
        turn = [number for number in others if last < number <= end][: part - head]
        if not turn:
            turn, end = others[: part - head], others[-1]
        self._rounds[queue] = (turn[-1], end)
        yield from turn


class _Ranks:
    """The order of the gangs of a ClusterQueue, with past use where it counts. All gangs of a shape have one user."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._order = QueueOrder(snapshot)

    @cached_property
    def workloads(self) -> Mapping[str, Workload]:
        """The gangs that wait, by uid."""
        return {p.workload.uid: p.workload for p in self.snapshot.pending}

    def of(self, queue: ClusterQueue | None) -> _RankOf:
        """The rank of a gang in this ClusterQueue, by its place."""
        if (
            queue is None
            or not queue.usage_fairness
            or not self.snapshot.config.rules.usage_fairness
        ):
            return _as_placed
        return lambda place: self._order.within(self.workloads[place[-1]], queue)


def _as_placed(place: Place) -> _Rank:
    return place


def _always(pending: Pending) -> bool:
    """Whether each plan considers it: it costs no search, or it keeps a place."""
    if pending.blocked is not None or pending.lease is not None:
        return True
    return pending.planned_start is not None or pending.workload.growth is not None


def _shape(pending: Pending) -> Hashable:
    """Equal for gangs that get the same answers in one LocalQueue."""
    one = pending.workload
    podsets = tuple((p.count, p.min_count, p.shape, p.topology, p.group) for p in one.podsets)
    limits = (pending.excluded, pending.borrows_at, pending.unasked, one.duration, one.user)
    return one.namespace, one.queue, podsets, limits


def _part(sizes: Sequence[int], total: int) -> int:
    """The largest part for which all together stay within the total. ``sizes``: of the LocalQueues, the smallest first."""
    left, count = total, len(sizes)
    for size in sizes:
        if size * count > left:
            return left // count
        left -= size
        count -= 1
    return total
