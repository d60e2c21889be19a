"""The pending gangs of a snapshot in queue order, and which of them are equal, carried from one snapshot to the next.

Gangs of one LocalQueue are *equal* when they ask the same in every respect that can change an answer. They differ in name, priority
and age, and in length where there are planned starts: a proof that one would delay a planned start holds for the longer ones. Any
other proof for the first in queue order holds for all, so a cycle considers groups of equal gangs, not gangs. To sort and
compare 50,000 gangs takes longer than most plans. Between two cycles few of them come or go, and the others are the same objects.
The result is the same as without a cache.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter, is_
from typing import Final, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt

from queuectl.domain.plan import Refusal
from queuectl.domain.queues import QueueConfig
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.domain.workload import Workload
from queuectl.planner.cache import PlannerCache
from queuectl.planner.order.queue_order import Lines, Place, lines_of, place
from queuectl.planner.problem.request import admissible

H = TypeVar("H", bound=Hashable)
Floats: TypeAlias = npt.NDArray[np.float64]


class ClassKey:
    """The request of a gang to its ClusterQueue, hashed once; equal keys of one configuration are one object."""

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


def class_key(pending: Pending, queue: str | None, lines: Lines) -> ClassKey:
    """The key of a gang in a ClusterQueue. Gangs with equal keys share refusals, so all that a refusal depends on is part of it, except priority, age and length.

    Args:
        pending: the gang.
        queue: the name of its ClusterQueue, None without one.
        lines: of the configuration. Where there are planned starts, it depends on the kind of its end how an answer depends on its length.
    """
    podsets = pending.workload.podsets
    asks = tuple((p.count, p.shape, p.topology, p.group, admissible(p)) for p in podsets)
    duration = pending.workload.duration if lines else None
    end = None if duration is None else (duration.enforced, duration.longest is None)
    growth, evicts = pending.workload.growth, pending.workload.evicts
    gang = growth.base if growth is not None else None  # pods of one gang wait for its lower ranks
    checks = (
        pending.ready_checks if lines else None
    )  # the end of a gang that is held for checks is unknown
    limits = (pending.excluded, pending.borrows_at, pending.unasked)
    return ClassKey(queue, (asks, limits, end, checks, gang, evicts))


def length_of(workload: Workload) -> float:
    """The seconds for which a gang runs; infinite if unknown."""
    return inf if workload.duration is None else workload.duration.seconds


@dataclass(frozen=True, eq=False, slots=True)
class _Sorted:
    """One gang with its place. It keeps the gang alive, so that its id names the gang for as long as this exists."""

    pending: Pending
    place: Place
    key: ClassKey
    equal: Hashable  # equal for equal gangs, and then the same object


@dataclass(frozen=True, eq=False, slots=True)
class EqualGangs:
    """Gangs that get the same answer.

    Attributes:
        key: what they ask.
        gangs: in queue order; never empty.
    """

    key: ClassKey
    gangs: Sequence[Pending]
    _sorted: Sequence[_Sorted]
    _refused: dict[int, Mapping[str, Refusal]] = field(default_factory=dict)  # of the last call
    _numbers: list[tuple[Floats, Floats, Floats]] = field(default_factory=list)  # at first use

    @property
    def lengths(self) -> Floats:
        """The seconds for which each gang runs; infinite if unknown."""
        return self._properties[0]

    @property
    def queued_at(self) -> Floats:
        """The unix seconds since which each gang has its place in the order."""
        return self._properties[1]

    @property
    def priorities(self) -> Floats:
        """Of each gang."""
        return self._properties[2]

    @property
    def _properties(self) -> tuple[Floats, Floats, Floats]:
        if not self._numbers:
            workloads = [gang.workload for gang in self.gangs]
            lengths = np.array([length_of(w) for w in workloads])
            queued_at = np.array([w.queued_at for w in workloads])
            priorities = np.array([float(w.priority) for w in workloads])
            self._numbers.append((lengths, queued_at, priorities))  # at once: threads share it
        return self._numbers[0]

    def refuse(self, first: int, like: Refusal) -> Mapping[str, Refusal]:
        """The refusals, by uid, of the gangs from number ``first`` on; the same objects as last time where they are equal."""
        last = self._refused.get(first, {})
        known = next(iter(last.values()), None)
        if known is not None and known.proof is like.proof and known.reasons == like.reasons:
            return last
        uids = [gang.workload.uid for gang in self.gangs[first:]]
        refused = {uid: Refusal(uid, like.reasons, None, like.proof) for uid in uids}
        self._refused.clear()
        self._refused[first] = refused
        return refused


@dataclass(frozen=True, eq=False, slots=True)
class PendingGangs:
    """All pending gangs of one snapshot.

    Attributes:
        in_order: over all ClusterQueues: priority, time queued, uid.
        by_queue: ClusterQueue (None: without one) to its equal gangs, in the order of their first gangs.
        blocked: gangs that must not be planned; they are not in ``by_queue``.
        keys: of all gangs, by id.
    """

    in_order: Sequence[Pending]
    by_queue: Mapping[str | None, Sequence[EqualGangs]]
    blocked: Sequence[Pending]
    keys: Mapping[int, ClassKey]
    _pending: tuple[Pending, ...]
    _sorted: Mapping[int, _Sorted]  # by id of the gang
    _places: Sequence[Place]  # of those in order
    _groups: Mapping[int, EqualGangs]  # by id of their common object
    _common: dict[Hashable, Hashable]


_PLACE: Final = attrgetter("place")
_GANG: Final = attrgetter("pending")


def pending_gangs(snapshot: Snapshot, cache: PlannerCache) -> PendingGangs:
    """The pending gangs of a snapshot, starting from those of the last one under the same configuration."""
    last = cache.get(snapshot.config, PendingGangs)
    if last is None or len(last._common) > 4 * len(snapshot.pending):
        last = _none()
    same = len(last._pending) == len(snapshot.pending)
    if same and all(map(is_, last._pending, snapshot.pending)):
        return last
    return cache.keep(snapshot.config, _advance(last, snapshot, lines_of(snapshot.config, cache)))


def _none() -> PendingGangs:
    return PendingGangs((), {}, (), {}, (), {}, (), {}, {})


def _advance(last: PendingGangs, snapshot: Snapshot, lines: Lines) -> PendingGangs:
    """Only the groups that a gang has left or joined are made again."""
    current = dict(zip(map(id, snapshot.pending), snapshot.pending, strict=True))
    gone = last._sorted.keys() - current.keys()
    if gone and len(gone) >= len(current):
        return _advance(_none(), snapshot, lines)
    new = [current[at] for at in current.keys() - last._sorted.keys()]
    joining = sorted(_sort(new, snapshot.config, lines, last._common), key=_PLACE)
    entries, keys = dict(last._sorted), dict(last.keys)
    leaving = [entries.pop(at) for at in gone]
    for at in gone:
        del keys[at]
    for entry in joining:
        entries[id(entry.pending)] = entry
        keys[id(entry.pending)] = entry.key
    in_order, places = _merged(last, leaving, joining)
    groups = _changed(last._groups, leaving, joining)
    by_queue: dict[str | None, list[EqualGangs]] = {}
    for group in sorted(groups.values(), key=lambda group: group._sorted[0].place):
        by_queue.setdefault(group.key.queue, []).append(group)
    blocked = [g for g in last.blocked if id(g) in current]
    blocked += [entry.pending for entry in joining if entry.pending.blocked is not None]
    blocked.sort(key=lambda gang: place(gang.workload))
    return PendingGangs(
        in_order=in_order,
        by_queue=by_queue,
        blocked=blocked,
        keys=keys,
        _pending=snapshot.pending,
        _sorted=entries,
        _places=places,
        _groups=groups,
        _common=last._common,
    )


def _merged(
    last: PendingGangs, leaving: Iterable[_Sorted], joining: Iterable[_Sorted]
) -> tuple[list[Pending], list[Place]]:
    """All gangs in queue order, with their places."""
    in_order, places = list(last.in_order), list(last._places)
    for entry in leaving:
        at = bisect_left(places, entry.place)
        del in_order[at], places[at]
    for entry in joining:
        at = bisect_left(places, entry.place)
        in_order.insert(at, entry.pending)
        places.insert(at, entry.place)
    return in_order, places


def _changed(
    before: Mapping[int, EqualGangs], leaving: Iterable[_Sorted], joining: Iterable[_Sorted]
) -> dict[int, EqualGangs]:
    """The groups of equal gangs; those that no gang left or joined are the same objects."""
    groups = dict(before)
    gone = {id(entry) for entry in leaving}
    came: dict[int, list[_Sorted]] = {id(entry.equal): [] for entry in leaving}
    for entry in joining:
        if entry.pending.blocked is None:
            came.setdefault(id(entry.equal), []).append(entry)
    for name, more in came.items():
        group = groups.pop(name, None)
        stay = [e for e in group._sorted if id(e) not in gone] if group is not None else []
        entries = sorted(stay + more, key=_PLACE)
        if entries:
            groups[name] = EqualGangs(entries[0].key, list(map(_GANG, entries)), entries)
    return groups


def _sort(
    gangs: Iterable[Pending],
    config: QueueConfig,
    lines: Lines,
    common: dict[Hashable, Hashable],
) -> Iterator[_Sorted]:
    for pending in gangs:
        workload = pending.workload
        queue = config.cluster_queue_of(workload.namespace, workload.queue)
        key = _one(common, class_key(pending, queue.name if queue is not None else None, lines))
        yield _Sorted(pending, place(workload), key, _one(common, _equal(pending, key, config)))


def _one(common: dict[Hashable, Hashable], key: H) -> H:
    """The object that is used for all that are equal to ``key``."""
    return cast(H, common.setdefault(key, key))


def _equal(pending: Pending, key: ClassKey, config: QueueConfig) -> Hashable:
    """Equal for equal gangs: of one LocalQueue and user; a gang with a lease has no equal."""
    workload = pending.workload
    if pending.lease is not None:
        return workload.uid
    # ResourceQuotas depend on them.
    limits = tuple((p.limits, p.overhead, p.has_deadline) for p in workload.podsets)
    run = workload.duration if config.budgets else None  # budgets pay for it
    whose = workload.namespace, workload.queue, workload.user, workload.claims
    return key, whose, pending.budget, limits, run
