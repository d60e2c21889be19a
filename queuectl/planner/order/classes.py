"""The pending gangs of a snapshot in queue order, and the lines they stand in, carried from one snapshot to the next.

A *line* holds the gangs of one LocalQueue that ask the same in every respect that can matter to an answer; they differ in
name, priority and age alone. What is proved of its first gang is proved of all, so that a walk looks at lines, not at
gangs. Sorting and comparing 50,000 gangs takes longer than most plans; between two cycles few of them come or go, and the
same objects stand for the others. What this gives is the same as if it were made afresh.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, is_
from typing import Final, TypeVar, cast

from queuectl.domain.plan import Refusal
from queuectl.domain.queues import QueueConfig
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.planner.cache import PlannerCache
from queuectl.planner.order.order import Place, place
from queuectl.planner.problem.partial import admissible

H = TypeVar("H", bound=Hashable)


class ClassKey:
    """What a gang asks of its ClusterQueue, hashed once; equal kinds of one configuration are one object."""

    __slots__ = ("_hash", "asks", "queue")

    def __init__(self, queue: str | None, asks: Hashable) -> None:
        self.queue = queue
        self.asks = asks
        self._hash = hash((queue, asks))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, ClassKey) and (self.queue, self.asks) == (other.queue, other.asks)


def class_key(pending: Pending, queue: str | None) -> ClassKey:
    """Of a gang in a ClusterQueue, None where it has none."""
    podsets = pending.workload.podsets
    asks = tuple((p.count, p.shape, p.topology, p.group, admissible(p)) for p in podsets)
    return ClassKey(queue, (asks, pending.excluded, pending.borrows_at))


@dataclass(frozen=True, eq=False, slots=True)
class _Entry:
    """One gang as sorted. It keeps the gang alive, so that its id names it for as long as the seat exists."""

    pending: Pending
    place: Place
    kind: ClassKey
    alike: Hashable  # names its line; equal ones are one object


@dataclass(frozen=True, eq=False, slots=True)
class EqualGangs:
    """Gangs that get the same answer.

    Attributes:
        queue: name of their ClusterQueue; None without one.
        gangs: in queue order; never empty.
        told: what they were told last, by the number of the first of them it goes for: one at most.
    """

    queue: str | None
    kind: ClassKey
    gangs: Sequence[Pending]
    _seats: Sequence[_Entry]
    told: dict[int, Mapping[str, Refusal]] = field(default_factory=dict)

    def tell(self, first: int, like: Refusal) -> Mapping[str, Refusal]:
        """The refusals, by uid, of the gangs from the ``first`` on; the same ones as last time where nothing is new."""
        told = self.told.get(first)
        known = next(iter(told.values()), None) if told is not None else None
        if (
            told is None
            or known is None
            or known.proof is not like.proof
            or known.reasons != like.reasons
        ):
            uids = [gang.workload.uid for gang in self.gangs[first:]]
            reasons, proof = like.reasons, like.proof
            told = {uid: Refusal(uid, reasons, None, proof) for uid in uids}
            self.told.clear()
            self.told[first] = told
        return told


@dataclass(frozen=True, eq=False, slots=True)
class PendingGangs:
    """All pending gangs of one snapshot.

    Attributes:
        in_order: priority, time queued, uid; over all ClusterQueues.
        by_queue: ClusterQueue to its lines, the line whose first gang comes first before the others; without queue: None.
        blocked: those that must not be planned; they stand in no line.
        kinds: of all of them, by id.
    """

    in_order: Sequence[Pending]
    by_queue: Mapping[str | None, Sequence[EqualGangs]]
    blocked: Sequence[Pending]
    kinds: Mapping[int, ClassKey]
    _pending: tuple[Pending, ...]
    _seats: Mapping[int, _Entry]  # by id of the gang
    _places: Sequence[Place]  # of those in order
    _lines: Mapping[int, EqualGangs]  # by id of what names them
    _known: dict[Hashable, Hashable]


_PLACE: Final = attrgetter("place")
_GANG: Final = attrgetter("pending")


def pending_gangs(snapshot: Snapshot, cache: PlannerCache) -> PendingGangs:
    """The lines of a snapshot, starting from the last ones made under the same configuration."""
    last = cache.get(snapshot.config, PendingGangs)
    if last is None or len(last._known) > 4 * len(snapshot.pending):
        last = _none()
    if len(last._pending) == len(snapshot.pending) and all(
        map(is_, last._pending, snapshot.pending)
    ):
        return last
    return cache.keep(snapshot.config, _advance(last, snapshot))


def _none() -> PendingGangs:
    return PendingGangs((), {}, (), {}, (), {}, (), {}, {})


def _advance(last: PendingGangs, snapshot: Snapshot) -> PendingGangs:
    """Only what somebody left or joined is made anew."""
    current = dict(zip(map(id, snapshot.pending), snapshot.pending, strict=True))
    gone = last._seats.keys() - current.keys()
    if len(gone) > len(current):
        return _advance(_none(), snapshot)
    new = [current[at] for at in current.keys() - last._seats.keys()]
    joining = sorted(_seated(new, snapshot.config, last._known), key=_PLACE)
    seats, kinds = dict(last._seats), dict(last.kinds)
    leaving = [seats.pop(at) for at in gone]
    for at in gone:
        del kinds[at]
    for seat in joining:
        seats[id(seat.pending)] = seat
        kinds[id(seat.pending)] = seat.kind
    in_order, places = _merged(last, leaving, joining)
    lines = _changed(last._lines, leaving, joining)
    by_queue: dict[str | None, list[EqualGangs]] = {}
    for line in sorted(lines.values(), key=_first):
        by_queue.setdefault(line.queue, []).append(line)
    blocked = [g for g in last.blocked if id(g) in current]
    blocked += [seat.pending for seat in joining if seat.pending.blocked is not None]
    blocked.sort(key=lambda gang: place(gang.workload))
    return PendingGangs(
        in_order=in_order,
        by_queue=by_queue,
        blocked=blocked,
        kinds=kinds,
        _pending=snapshot.pending,
        _seats=seats,
        _places=places,
        _lines=lines,
        _known=last._known,
    )


def _merged(
    last: PendingGangs, leaving: Iterable[_Entry], joining: Iterable[_Entry]
) -> tuple[list[Pending], list[Place]]:
    """All gangs in queue order, with their places."""
    in_order, places = list(last.in_order), list(last._places)
    for seat in leaving:
        at = bisect_left(places, seat.place)
        del in_order[at], places[at]
    for seat in joining:
        at = bisect_left(places, seat.place)
        in_order.insert(at, seat.pending)
        places.insert(at, seat.place)
    return in_order, places


def _first(line: EqualGangs) -> Place:
    return line._seats[0].place


def _changed(
    before: Mapping[int, EqualGangs], leaving: Iterable[_Entry], joining: Iterable[_Entry]
) -> dict[int, EqualGangs]:
    lines = dict(before)
    gone = {id(seat) for seat in leaving}
    came: dict[int, list[_Entry]] = {id(seat.alike): [] for seat in leaving}
    for seat in joining:
        if seat.pending.blocked is None:
            came.setdefault(id(seat.alike), []).append(seat)
    for name, more in came.items():
        line = lines.pop(name, None)
        stay = [seat for seat in line._seats if id(seat) not in gone] if line is not None else []
        seats = sorted(stay + more, key=_PLACE)
        if seats:
            kind = seats[0].kind
            lines[name] = EqualGangs(kind.queue, kind, list(map(_GANG, seats)), seats)
    return lines


def _seated(
    gangs: Iterable[Pending], config: QueueConfig, known: dict[Hashable, Hashable]
) -> Iterator[_Entry]:
    for pending in gangs:
        workload = pending.workload
        queue = config.cluster_queue_of(workload.namespace, workload.queue)
        kind = _one(known, class_key(pending, queue.name if queue is not None else None))
        yield _Entry(pending, place(workload), kind, _one(known, _alike(pending, kind)))


def _one(known: dict[Hashable, Hashable], made: H) -> H:
    """The object that stands for all that are equal to ``made``."""
    return cast(H, known.setdefault(made, made))


def _alike(pending: Pending, kind: ClassKey) -> Hashable:
    """Equal for gangs of one line: of one LocalQueue and user; one that holds a lease stands alone."""
    workload = pending.workload
    if pending.lease is not None:
        return workload.uid
    limits = tuple(podset.limits for podset in workload.podsets)  # ResourceQuotas count them
    return kind, workload.namespace, workload.queue, workload.user, pending.budget, limits
