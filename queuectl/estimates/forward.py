"""One draw: the time from now on with one run time for each gang, until each gang that waits has started.

At each end of a gang, the gangs that wait are considered in queue order. Placement is greedy, without the solver. New submissions are not
in it, and no gang is evicted. Nothing happens before the first end, because the planner has decided what can start now.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush, heapreplace
from math import inf
from typing import Final, TypeAlias

import numpy as np

from queuectl.domain.queues import ClusterQueue
from queuectl.estimates.scene import Holding, Place, Scene, Waiting
from queuectl.estimates.shadows import End, Moment, Shadows
from queuectl.planner.capacity.node_counts import NodeCounts, add_at, take, use_of_counts
from queuectl.planner.placement import several
from queuectl.planner.problem.problem import caps
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
        check: is called at each end; it can raise to stop the draw.
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
        self.shadows = Shadows(scene.lines)
        self._ends: list[End] = []
        self._number = 0
        self._queues: dict[str, _Queue] = {}
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
            self._start_all()
        self.work += _SEARCH * self.shadows.work
        return self.starts

    def _hold(self, holding: Holding, seconds: float) -> None:
        if seconds < inf:
            self._number += 1
            heappush(self._ends, (self.now + seconds, self._number, holding))

    def _release(self, holding: Holding) -> None:
        self.work += 1
        add_at(self.free, *holding.slots)
        for row, amount in holding.charges:
            self.use.add(row, -amount)

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
        borrows = gang.queue.cohort is not None and not self.use.fits(
            name, gang.charges, borrows=False
        )
        return borrows, gang.place

    def _try(self, gang: Waiting) -> bool:
        """Start a gang if it fits."""
        for request in self._affordable(gang):
            room = self.free
            if self.shadows.limits(gang):
                beside = self.shadows.room(gang, room, self.now)
                if beside is None:
                    break
                room = beside
            self.work += _SEARCH
            counts = several.find(request, room, partial(caps, room))
            if counts is not None:
                self._start(gang, request, counts)
                return True
        if gang.queue.name in self.scene.lines:
            self.shadows.wait(gang, Moment(self.now, self.free, self.use, sorted(self._ends)))
        return False

    def _affordable(self, gang: Waiting) -> Iterator[GangRequest]:
        """The requests for which there is quota."""
        for request in gang.requests(self.now):
            if self.use.fits(gang.queue.name, request.charges):
                yield request

    def _start(self, gang: Waiting, request: GangRequest, counts: NodeCounts) -> None:
        self.starts[gang.uid] = self.now
        take(self.free, request.pods, counts)
        charges = tuple(request.rows())
        for row, amount in charges:
            self.use.add(row, amount)
        seconds = self.lengths[gang.uid]
        self.shadows.forget(gang.uid)
        self.shadows.started(request, counts, self.now + seconds)
        self._hold(Holding(gang.uid, _slots(request, counts, len(self.free)), charges), seconds)


def _slots(request: GangRequest, counts: NodeCounts, resources: int) -> Slots:
    """Node indexes (K,) and amounts (R, K) of all pods."""
    uses = list(use_of_counts(request.pods, counts))
    if not uses:
        return np.zeros(0, np.int64), np.zeros((resources, 0), np.int64)
    nodes, amounts = zip(*uses, strict=True)
    return np.concatenate(nodes), np.concatenate(amounts, axis=1)
