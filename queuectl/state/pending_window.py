"""The pending gangs that one plan considers, where too many different shapes wait for all of them.

The work of a plan grows with the different shapes that wait, and a user can submit any number of them. So a plan considers a limited
number, divided among the LocalQueues: one with few shapes is considered whole, however many wait in another. Of the others, the
first half of the part of a LocalQueue is the head of its queue order. The second half rotates: with *S* shapes in a LocalQueue whose
part is *P*, each of them is in at least one of ``4 S / P`` plans in a row.

Of a StrictFIFO ClusterQueue, the first shapes in its order are considered, because no gang passes one before it that needs the same
capacity. Their number grows from plan to plan while the last of them is not held back by a head, up to :data:`MOST`: gangs that never
fit, that are at a limit of their user, or that wait for another flavor hold back no later ones.

The number follows the CPU time of the plans, which depends on the cluster: other queues wait while a plan is made. Once each shape has been
considered and nothing has changed since, no further plan is necessary. The same holds for gangs that the limit of a cycle has left out
(:mod:`queuectl.planner.cycle_work`): each needs one answer.

Equal gangs are one shape. A gang that is not considered keeps its reason.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from queuectl.domain.plan import Refusal
from queuectl.domain.queues import ClusterQueue
from queuectl.domain.reasons import AT_A_LIMIT, Code, Reason
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.domain.workload import Workload
from queuectl.planner.order.queue_order import Place, QueueOrder, place

MOST: Final = 1024
"""Different shapes in one plan."""
FIRST: Final = 128
"""In the first plan, whose work is not known yet."""
FEWEST: Final = 64
"""In a plan, however long it takes: with fewer, most of its time is not for them."""
LEAST: Final = 16
"""Of one LocalQueue, however many LocalQueues there are."""
MOST_PINNED: Final = 64
PLAN_SECONDS: Final = 0.1
"""The CPU time of a plan after which the next ones consider fewer shapes."""
_GROWTH: Final = 1.25

_Queue = tuple[str, str | None]
_Rank = tuple[Any, ...]
"""Smaller is earlier; compared within one ClusterQueue."""


@dataclass(frozen=True, slots=True)
class _Counted:
    """A gang that waits, with its LocalQueue and the number of its shape; ``always``: each plan considers it."""

    pending: Pending
    queue: _Queue
    number: int
    place: Place
    always: bool


@dataclass(frozen=True, slots=True)
class _Prefix:
    """The first shapes of a StrictFIFO ClusterQueue that a plan considers, and others wait.

    Attributes:
        firsts: uid and ``namespace/name`` of the first gang of each shape, in the order of the ClusterQueue.
        part: the shapes to consider behind the last one that is not held back.
        flavors: whether the ClusterQueue has several, so that a head does not hold back all others.
    """

    firsts: tuple[tuple[str, str], ...]
    part: int
    flavors: bool

    def needed(self, reasons: Mapping[str, Reason]) -> int:
        """How many shapes the next plan considers. ``reasons``: the main reasons of the gangs that wait, by uid."""
        limited = {
            ref for uid, ref in self.firsts if uid in reasons and reasons[uid].code in AT_A_LIMIT
        }

        def held(uid: str) -> bool:
            reason = reasons.get(uid)
            if reason is None or self.flavors:
                return False
            if reason.code is Code.WAITING_IN_ORDER:
                return reason.details.get("behind") not in limited
            return reason.code is Code.PENDING_EVALUATION

        last = max((n for n, (uid, _) in enumerate(self.firsts, 1) if not held(uid)), default=0)
        most = MOST if last == len(self.firsts) else len(self.firsts)
        return min(most, last + self.part)


class PendingWindow:
    """Of one leader. Between two plans few gangs come or go, and only these are counted again.

    Attributes:
        partial: some gangs have had no answer since the last change.
    """

    def __init__(self, shapes: int = FIRST) -> None:
        """``shapes``: in the first plan."""
        self._shapes = shapes
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
        # Of each StrictFIFO ClusterQueue: the number of shapes to consider, and those of the current plan.
        self._needed: dict[str, int] = {}
        self._prefixes: dict[str, _Prefix] = {}
        self.partial = False

    def pin(self, uid: str) -> None:
        """Consider this gang in the next plans, because a user asks for it."""
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

    def answered(self, refusals: Collection[Refusal]) -> None:
        """Take in the answers of a plan for the gangs that it considered."""
        left_out = {r.uid for r in refusals if r.reasons[0].code is Code.PENDING_EVALUATION}
        if left_out or self._left_out:
            self._answered.update(r.uid for r in refusals if r.uid not in left_out)
            self._left_out = (self._left_out | left_out) - self._answered
            self.partial = self.partial or bool(self._left_out)
        if self._prefixes:
            reasons = {r.uid: r.reasons[0] for r in refusals}
            for name, prefix in self._prefixes.items():
                needed = self._needed[name] = prefix.needed(reasons)
                self.partial = self.partial or needed > len(prefix.firsts)

    def applied(self, snapshot: Snapshot, *, changed: bool = True) -> Snapshot:
        """The snapshot with the gangs that its plan considers.

        ``changed``: since the last plan. If not, this plan is only for the gangs that the plans before it have left out.
        """
        self._changed = changed
        if changed:
            self._considered.clear()
            self._answered.clear()
            self._left_out.clear()
        elif self._left_out:
            self._left_out.intersection_update(p.workload.uid for p in snapshot.pending)
        self.partial = False
        self._prefixes = {}
        if len(snapshot.pending) <= self._shapes:
            return snapshot
        self._count(snapshot.pending)
        if sum(map(len, self._places.values())) <= self._shapes:
            return snapshot
        by_queue = {
            queue: {number: places[0] for number, places in shapes.items()}
            for queue, shapes in self._places.items()
        }
        kept = self._kept(by_queue, snapshot)
        self._considered.update(*kept.values())
        self.partial = any(not shapes.keys() <= self._considered for shapes in by_queue.values())
        counted, pinned = self._counted, self._pinned
        return replace(
            snapshot,
            pending=tuple(
                p
                for p in snapshot.pending
                if (one := counted[id(p)]).always
                or one.number in kept[one.queue]
                or p.workload.uid in pinned
            ),
        )

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
    ) -> dict[_Queue, set[int]]:
        """The shapes of each LocalQueue that this plan considers."""
        ranks = _Ranks(snapshot)
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
                ranked_shapes = ranks.of(cluster_queue, shapes)
                considered[queue].update(self._of_one(queue, ranked_shapes, part))
        self._needed = {name: most for name, most in self._needed.items() if name in strict}
        for name, queues in strict.items():
            cluster_queue = snapshot.config.cluster_queues[name]
            ranked = sorted(
                (rank, number, queue)
                for queue in queues
                for number, rank in ranks.of(cluster_queue, by_queue[queue]).items()
            )
            most = max(part * len(queues), self._needed.get(name, 0))
            if most < len(ranked):
                uids = [by_queue[queue][number][-1] for _, number, queue in ranked[:most]]
                self._prefixes[name] = _Prefix(
                    tuple((uid, ranks.workloads[uid].ref) for uid in uids),
                    part,
                    len(cluster_queue.flavors) > 1,
                )
            for _, number, queue in ranked[:most]:
                considered[queue].add(number)
        return considered

    def _of_one(self, queue: _Queue, shapes: Mapping[int, _Rank], part: int) -> Iterator[int]:
        """The head of a LocalQueue, and the next ones of its current round.

        A round has the shapes that waited when it began, so that later ones cannot delay its end.
        """
        ranked = sorted(shapes, key=shapes.__getitem__)
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
    """The order of the shapes of a ClusterQueue by their first gangs, with past use where it counts. All gangs of a shape have one user."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._order = QueueOrder(snapshot)

    @cached_property
    def workloads(self) -> Mapping[str, Workload]:
        """The gangs that wait, by uid."""
        return {p.workload.uid: p.workload for p in self._snapshot.pending}

    def of(self, queue: ClusterQueue | None, shapes: Mapping[int, Place]) -> Mapping[int, _Rank]:
        """The ranks by number of the shape. ``shapes``: the places of their first gangs."""
        if (
            queue is None
            or not queue.usage_fairness
            or not self._snapshot.config.rules.usage_fairness
        ):
            return shapes
        return {
            number: self._order.within(self.workloads[first[-1]], queue)
            for number, first in shapes.items()
        }


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
