"""One draw: the time from now on with one run time for each gang, until each gang that waits has started.

At each end of a gang, the gangs that wait are considered in queue order. Placement is greedy, without the solver, and what follows from
free capacity and quota at a moment refuses many gangs without a search. New submissions are not in it, and no gang is evicted. Nothing
happens before the first end, because the planner has decided what can start now.

A gang of a line with planned starts leaves these their places, if it starts later than they were planned. It is the rule of the planner with
one placement each: the planned gangs are not placed elsewhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heapreplace
from math import inf
from typing import Final, TypeAlias

import numpy as np

from queuectl.domain.agenda import Agenda
from queuectl.domain.queues import ClusterQueue
from queuectl.estimates.scene import Holding, Place, Scene, Waiting
from queuectl.planner.backfill.timeline import Departures, first_fit
from queuectl.planner.capacity.node_counts import NodeCounts, add_at, take, use_of_counts
from queuectl.planner.order.queue_order import Lines, PlannedStartQueue
from queuectl.planner.placement import greedy
from queuectl.planner.problem.fleet import Ints, Tree
from queuectl.planner.problem.problem import Shape, caps
from queuectl.planner.problem.request import ANYWHERE, GangRequest
from queuectl.planner.problem.usage import Slots
from queuectl.planner.quota import QuotaUse

# ---- The draw

_Head: TypeAlias = tuple[Place, int]
"""The place of the first gang of a class, and the class."""
_SEARCH: Final = 10  # work of one search for nodes; that of one end is 1


@dataclass(eq=False)
class _Queue:
    """The gangs of one ClusterQueue that wait, by class."""

    queue: ClusterQueue
    lines: dict[int, deque[Waiting]] = field(default_factory=dict)

    def heads(self) -> list[_Head]:
        """As a heap."""
        found = [(line[0].place, kind) for kind, line in self.lines.items()]
        heapify(found)
        return found

    def start(self, gang: Waiting, heads: list[_Head]) -> None:
        """The first gang of all starts, and the next of its class is a head."""
        line = self.lines[gang.kind]
        line.popleft()
        if line:
            heapreplace(heads, (line[0].place, gang.kind))
        else:
            heappop(heads)
            del self.lines[gang.kind]


@dataclass(eq=False)
class Forward:
    """One draw.

    Attributes:
        lengths: seconds for which each gang still runs, or runs from its start, by uid; infinite = it never ends. Pods that are added to
            elastic gangs end with them.
        check: is called at each end, for each gang that is tried, and for each planned start; it can wait, or raise to stop the draw.
        starts: unix seconds, by uid.
        work: the cost of the draw; the same for the same input.
    """

    scene: Scene
    lengths: Mapping[str, float]
    check: Callable[[], None]
    starts: dict[str, float] = field(default_factory=dict)
    work: int = 0

    def __post_init__(self) -> None:
        scene = self.scene
        self.free = scene.free.copy()
        self.use = scene.quota()
        self._lines = scene.lines
        self._planned = _PlannedStarts(self._lines)
        self._ends: Agenda[Holding] = Agenda(scene.now)
        self._departures: Departures[Holding] | None = None
        self._queues: dict[str, _Queue] = {}
        self._empty = EmptyNodes(scene.problem.index.allocatable)
        self._freed = 0  # nodes, each counted at each end on it
        self._awaits: dict[int, float] = {}  # class to the number at which it can fit again
        self._changed()
        for holding in scene.holding:
            until = holding.until
            self._hold(holding, self.lengths[holding.uid] if until is None else until - self.now)
        for gang in scene.waiting:
            queue = self._queues.setdefault(gang.queue.name, _Queue(gang.queue))
            queue.lines.setdefault(gang.kind, deque()).append(gang)

    def run(self) -> Mapping[str, float]:
        """The start of each gang that starts."""
        while self._ends and self._queues:
            self.check()
            for holding in self._ends.due():
                self._release(holding)
            self._changed()
            self._start_all()
        self.work += _SEARCH * self._planned.work
        return self.starts

    @property
    def now(self) -> float:
        """Unix seconds."""
        return self._ends.now

    @property
    def departures(self) -> Departures[Holding]:
        """The ends to come."""
        if self._departures is None:
            self._departures = Departures.of(self._ends.in_order(), len(self.free))
        return self._departures

    def _hold(self, holding: Holding, seconds: float) -> None:
        if seconds < inf:
            self._ends.add(self.now + seconds, holding)

    def _release(self, holding: Holding) -> None:
        self.work += 1
        self._freed += len(holding.slots[0])
        add_at(self.free, *holding.slots)
        for row, amount in holding.charges:
            self.use.add(row, -amount)

    def _changed(self) -> None:
        """Capacity, quota and the ends to come are others than before."""
        self._departures = None
        self._rooms: dict[tuple[_PlannedStart, ...], Room] = {}
        self._quota = QuotaLeft(self.use)

    def _start_all(self) -> None:
        """One pass over the gangs that wait, each ClusterQueue in its own order."""
        heads = {name: queue.heads() for name, queue in self._queues.items()}
        turns = [(self._order(name, first[0]), name) for name, first in heads.items()]
        heapify(turns)
        # ClusterQueues in which a gang waits: no pod is added behind it.
        waits: set[str] = set()
        while turns:
            name = turns[0][1]
            queue, first = self._queues[name], heads[name]
            gang = queue.lines[first[0][1]][0]
            if not (gang.grows and name in waits) and self._try(gang):
                queue.start(gang, first)
            elif gang.queue.strict and not gang.grows:
                first.clear()
            else:
                heappop(first)
                if not gang.grows:
                    waits.add(name)
            if first:
                heapreplace(turns, (self._order(name, first[0]), name))
            else:
                heappop(turns)
        self._queues = {name: queue for name, queue in self._queues.items() if queue.lines}

    def _order(self, name: str, head: _Head) -> tuple[bool, Place]:
        """A gang that does not borrow is before one that does."""
        gang = self._queues[name].lines[head[1]][0]
        borrows = gang.queue.cohort is not None and not self._quota.fits(
            name, gang.charges, borrows=False
        )
        return borrows, gang.place

    def _try(self, gang: Waiting) -> bool:
        """Start a gang if it fits."""
        self.work += 1
        if gang.grows and self._seconds(gang) <= 0:
            return False  # its elastic gang has ended
        if self._freed >= self._awaits.get(gang.kind, 0) and self._start_at_once(gang):
            return True
        if gang.queue.name in self._lines and not gang.grows:
            self._planned.wait(gang, self)
        return False

    def _seconds(self, gang: Waiting) -> float:
        """For which it runs if it starts now. A pod ends with the gang that it extends, which runs before it starts."""
        seconds = self.lengths[gang.family]
        if gang.grows:
            seconds += self.starts.get(gang.family, self.scene.now) - self.now
        return seconds

    def _start_at_once(self, gang: Waiting) -> bool:
        """Start a gang if it fits, or note how many nodes its class lacks at least."""
        self.check()  # for each gang: with many different shapes, one pass takes as long as a plan
        least: float = inf
        for request in gang.requests(self.now):
            lacks = self._room(()).lacks(request)
            least = min(least, lacks)
            if lacks or not self._quota.fits(gang.queue.name, request.charges):
                continue
            beside = self._planned.beside(gang, self.now)
            if beside is None:
                break
            room = self._room(beside)
            if beside and room.lacks(request):
                continue
            self.work += _SEARCH
            counts = room.find(request)
            if counts is not None:
                self._start(gang, request, counts)
                return True
        if len(gang.asks) == 1:
            self._awaits[gang.kind] = self._freed + least
        return False

    def _room(self, beside: tuple[_PlannedStart, ...]) -> Room:
        """The capacity alongside planned starts."""
        room = self._rooms.get(beside)
        if room is None:
            free = self.free
            for start in beside:
                free = np.minimum(free, start.free)
            room = self._rooms[beside] = Room(free, self._empty)
        return room

    def _start(self, gang: Waiting, request: GangRequest, counts: NodeCounts) -> None:
        self.starts[gang.uid] = self.now
        take(self.free, request.pods, counts)
        charges = tuple(request.rows())
        for row, amount in charges:
            self.use.add(row, amount)
        seconds = self._seconds(gang)
        self._planned.forget(gang.uid)
        self._planned.started(request, counts, self.now + seconds)
        self._hold(Holding(gang.uid, _slots(request, counts, len(self.free)), charges), seconds)
        self._changed()


def _slots(request: GangRequest, counts: NodeCounts, resources: int) -> Slots:
    """Node indexes (K,) and amounts (R, K) of all pods."""
    uses = list(use_of_counts(request.pods, counts))
    if not uses:
        return np.zeros(0, np.int64), np.zeros((resources, 0), np.int64)
    nodes, amounts = zip(*uses, strict=True)
    return np.concatenate(nodes), np.concatenate(amounts, axis=1)


# ---- Planned starts


@dataclass(eq=False, slots=True)
class _PlannedStart:
    """A planned start of a draw.

    Attributes:
        at: unix seconds.
        free: (R, N) then, alongside the gang and those that were planned before it.
    """

    uid: str
    line: PlannedStartQueue
    at: float
    free: Ints


_Start: TypeAlias = tuple[float, GangRequest, NodeCounts, Ints]
"""Unix seconds, the request, its place, and what is free then."""


@dataclass(eq=False)
class _PlannedStarts:
    """The planned starts of one draw."""

    lines: Lines
    work: int = 0
    _starts: list[_PlannedStart] = field(default_factory=list)

    def beside(self, gang: Waiting, now: float) -> tuple[_PlannedStart, ...] | None:
        """The planned starts alongside which a gang starts now, those before it; None = it would delay one in any case.

        A gang of unknown length starts only if no gang is planned before it.
        """
        if not self._starts or gang.queue.name not in self.lines:
            return ()
        line, until = self.lines[gang.queue.name], now + gang.planned_seconds
        respected: list[_PlannedStart] = []
        for start in self._starts:
            if start.uid == gang.uid:
                break
            if start.line != line or start.at >= until:
                continue
            if until == inf:
                return None
            respected.append(start)
        return tuple(respected)

    def wait(self, gang: Waiting, draw: Forward) -> None:
        """Plan the start of a gang that does not fit now, if its line has fewer planned starts than it can have."""
        line = self.lines.get(gang.queue.name)
        if line is None:
            return
        self._starts = [start for start in self._starts if start.at > draw.now]
        same = [start for start in self._starts if start.line == line]
        if len(same) >= line.rule.planned_starts or any(s.uid == gang.uid for s in same):
            return
        draw.check()
        ends = range(len(draw.departures.times))
        earliest = first_fit(ends, lambda end: self._after(gang, draw, end))
        if earliest is not None:
            at, request, counts, free = earliest
            take(free, request.pods, counts)
            self._starts.append(_PlannedStart(gang.uid, line, at, free))

    def forget(self, uid: str) -> None:
        """A gang has started."""
        self._starts = [start for start in self._starts if start.uid != uid]

    def started(self, request: GangRequest, counts: NodeCounts, until: float) -> None:
        """A gang holds its places until then."""
        for start in self._starts:
            if start.at < until:
                take(start.free, request.pods, counts)

    def _after(self, gang: Waiting, draw: Forward, end: int) -> _Start | None:
        """Its start after an end."""
        self.work += 1
        free = draw.departures.free(draw.free, end + 1)
        use = draw.departures.use(draw.use, end + 1)
        at = draw.departures.times[end]
        room = free
        for start in self._starts:
            if start.line == self.lines[gang.queue.name] and start.at >= at:
                room = np.minimum(room, start.free)
        for request in gang.requests(at):
            if use.fits(gang.queue.name, request.charges):
                counts = greedy.find(request, room, partial(caps, room))
                if counts is not None:
                    return at, request, counts, free
        return None


# ---- Free capacity and quota at one moment

_Row: TypeAlias = tuple[str, str]
"""Flavor and resource."""


@dataclass(eq=False)
class EmptyNodes:
    """Capacity (R, N) of all nodes without gangs."""

    free: Ints
    _most: dict[Shape, int] = field(default_factory=dict)

    def most(self, shape: Shape) -> int:
        """The most pods of a shape that one node holds."""
        found = self._most.get(shape)
        if found is None:
            found = self._most[shape] = int(caps(self.free, shape).max(initial=0))
        return found


@dataclass(eq=False)
class Room:
    """Free capacity (R, N) that does not change.

    Attributes:
        empty: (R, N) if no gang were there.
    """

    free: Ints
    empty: EmptyNodes
    _most: dict[tuple[Shape, Tree, int], int] = field(default_factory=dict)

    def find(self, request: GangRequest) -> NodeCounts | None:
        """Nodes for a gang, as the planner finds them without the solver; None = none found."""
        return greedy.find(request, self.free, partial(caps, self.free))

    def lacks(self, request: GangRequest) -> int:
        """The minimum number of nodes that must be freed before a gang can fit; 0 = perhaps none.

        It is a lower bound: each kind of pods is alone in its domain, and each node that is freed holds as many as it can.
        """
        least = 0
        for group in request.podset_groups:
            for pods in group.to_place:
                missing = pods.count - self._most_in_a_domain(
                    pods.shape, group.tree, group.required
                )
                if missing > 0:
                    least = max(least, -(-missing // max(1, self.empty.most(pods.shape))))
        return least

    def _most_in_a_domain(self, shape: Shape, tree: Tree, level: int) -> int:
        """The most pods of a shape that one domain of a level holds."""
        most = self._most.get((shape, tree, level))
        if most is None:
            fits = caps(self.free, shape)[tree.order]  # not kept: hundreds of shapes wait
            if level == ANYWHERE:
                most = int(fits.sum())
            else:
                sums = fits if level == tree.depth else np.add.reduceat(fits, tree.starts[level])
                most = int(sums.max(initial=0))
            self._most[shape, tree, level] = most
        return most


@dataclass(eq=False)
class QuotaLeft:
    """Use of quota that does not change."""

    use: QuotaUse
    _left: dict[tuple[str, _Row, bool], int] = field(default_factory=dict)

    def fits(self, queue: str, charges: Mapping[_Row, int], *, borrows: bool = True) -> bool:
        """Whether a ClusterQueue may use all of this more."""
        for row, need in charges.items():
            if need and need > self._left_of(queue, row, borrows):
                return False
        return True

    def _left_of(self, queue: str, row: _Row, borrows: bool) -> int:
        key = queue, row, borrows
        left = self._left.get(key)
        if left is None:
            left = self._left[key] = self.use.left(queue, row, borrows=borrows)
        return left
