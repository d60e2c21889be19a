"""One draw: the time from now on with one run time for each gang, until each gang that waits has started.

At each end of a gang, the gangs that wait are considered in queue order. Placement is greedy, without the solver. New submissions are not
in it, and no gang is evicted. Nothing happens before the first end, because the planner has decided what can start now.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from math import inf
from typing import Final, TypeAlias

import numpy as np

from queuectl.domain.queues import ClusterQueue
from queuectl.estimates.room import EmptyNodes, QuotaLeft, Room
from queuectl.estimates.scene import Holding, Place, Scene, Waiting
from queuectl.estimates.shadows import End, Moment, Shadow, Shadows
from queuectl.planner.capacity.node_counts import NodeCounts, add_at, take, use_of_counts
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.problem.usage import Slots

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
        lengths: seconds for which each gang still runs, or runs from its start, by uid; infinite = it never ends.
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
        self.now = scene.now
        self.free = scene.free.copy()
        self.use = scene.quota()
        self._lines = scene.lines
        self.shadows = Shadows(self._lines)
        self._ends: list[End] = []
        self._number = 0
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
            self.now = max(self.now, self._ends[0][0])
            while self._ends and self._ends[0][0] <= self.now:
                self._release(heappop(self._ends)[2])
            self._changed()
            self._start_all()
        self.work += _SEARCH * self.shadows.work
        return self.starts

    def _hold(self, holding: Holding, seconds: float) -> None:
        if seconds < inf:
            self._number += 1
            heappush(self._ends, (self.now + seconds, self._number, holding))

    def _release(self, holding: Holding) -> None:
        self.work += 1
        self._freed += len(holding.slots[0])
        add_at(self.free, *holding.slots)
        for row, amount in holding.charges:
            self.use.add(row, -amount)

    def _changed(self) -> None:
        """Capacity and quota are others than before."""
        self._rooms: dict[tuple[Shadow, ...], Room] = {}
        self._quota = QuotaLeft(self.use)

    def _start_all(self) -> None:
        """One pass over the gangs that wait, each ClusterQueue in its own order."""
        heads = {name: queue.heads() for name, queue in self._queues.items()}
        turns = [(self._order(name, first[0]), name) for name, first in heads.items()]
        heapify(turns)
        while turns:
            name = turns[0][1]
            queue, first = self._queues[name], heads[name]
            gang = queue.lines[first[0][1]][0]
            if self._try(gang):
                queue.start(gang, first)
            elif gang.strict:
                first.clear()
            else:
                heappop(first)
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
        if self._freed >= self._awaits.get(gang.kind, 0) and self._start_at_once(gang):
            return True
        if gang.queue.name in self._lines:
            self.shadows.wait(gang, self.now, self._moment)
        return False

    def _start_at_once(self, gang: Waiting) -> bool:
        """Start a gang if it fits, or note how many nodes its class lacks at least."""
        self.check()  # for each gang: with many different shapes, one pass takes as long as a plan
        least: float = inf
        for request in gang.requests(self.now):
            lacks = self._room(()).lacks(request)
            least = min(least, lacks)
            if lacks or not self._quota.fits(gang.queue.name, request.charges):
                continue
            beside = self.shadows.beside(gang, self.now)
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

    def _room(self, beside: tuple[Shadow, ...]) -> Room:
        """The capacity beside planned starts."""
        room = self._rooms.get(beside)
        if room is None:
            free = self.free
            for shadow in beside:
                free = np.minimum(free, shadow.free)
            room = self._rooms[beside] = Room(free, self._empty)
        return room

    def _moment(self) -> Moment:
        self.check()
        return Moment(self.now, self.free, self.use, sorted(self._ends))

    def _start(self, gang: Waiting, request: GangRequest, counts: NodeCounts) -> None:
        self.starts[gang.uid] = self.now
        take(self.free, request.pods, counts)
        charges = tuple(request.rows())
        for row, amount in charges:
            self.use.add(row, amount)
        seconds = self.lengths[gang.uid]
        self.shadows.forget(gang.uid)
        self.shadows.started(request, counts, self.now + seconds)
        self._changed()
        self._hold(Holding(gang.uid, _slots(request, counts, len(self.free)), charges), seconds)


def _slots(request: GangRequest, counts: NodeCounts, resources: int) -> Slots:
    """Node indexes (K,) and amounts (R, K) of all pods."""
    uses = list(use_of_counts(request.pods, counts))
    if not uses:
        return np.zeros(0, np.int64), np.zeros((resources, 0), np.int64)
    nodes, amounts = zip(*uses, strict=True)
    return np.concatenate(nodes), np.concatenate(amounts, axis=1)
