"""Planned starts within one draw: a gang that starts later than they were planned leaves them their places.

It is the rule of the planner with one placement each: the planned gangs are not placed elsewhere. The ends to come are those of the draw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import TypeAlias

import numpy as np

from queuectl.estimates.scene import Holding, Waiting
from queuectl.planner.capacity.node_counts import NodeCounts, add_at, take
from queuectl.planner.order.lines import Lines, PlannedStartQueue
from queuectl.planner.placement import several
from queuectl.planner.problem.problem import caps
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.problem.topology import Ints
from queuectl.planner.quota.tree import QuotaUse

End: TypeAlias = tuple[float, int, Holding]
"""Unix seconds, a number that makes the order certain, and what ends."""


@dataclass(eq=False)
class Moment:
    """One time of a draw.

    Attributes:
        now: unix seconds.
        free: (R, N).
        use: of quota.
        ends: to come, in order.
    """

    now: float
    free: Ints
    use: QuotaUse
    ends: Sequence[End]


@dataclass(eq=False, slots=True)
class Shadow:
    """A planned start.

    Attributes:
        at: unix seconds.
        free: (R, N) then, beside the gang and those that were planned before it.
    """

    uid: str
    line: PlannedStartQueue
    at: float
    free: Ints


@dataclass(eq=False)
class Shadows:
    """The planned starts of one draw."""

    lines: Lines
    work: int = 0
    _planned: list[Shadow] = field(default_factory=list)

    def beside(self, gang: Waiting, now: float) -> tuple[Shadow, ...] | None:
        """The planned starts beside which a gang starts now, those before it; None = it would delay one in any case.

        A gang of unknown length starts only if no gang is planned before it.
        """
        if not self._planned or gang.queue.name not in self.lines:
            return ()
        line, until = self.lines[gang.queue.name], now + gang.planned_seconds
        found: list[Shadow] = []
        for shadow in self._planned:
            if shadow.uid == gang.uid:
                break
            if shadow.line != line or shadow.at >= until:
                continue
            if until == inf:
                return None
            found.append(shadow)
        return tuple(found)

    def wait(self, gang: Waiting, now: float, moment: Callable[[], Moment]) -> None:
        """Plan the start of a gang that does not fit now, if its line has fewer planned starts than it can have."""
        line = self.lines.get(gang.queue.name)
        if line is None:
            return
        self._planned = [one for one in self._planned if one.at > now]
        same = [one for one in self._planned if one.line == line]
        if len(same) >= line.rule.planned_starts or any(one.uid == gang.uid for one in same):
            return
        found = self._earliest(gang, moment())
        if found is not None:
            at, request, counts, free = found
            take(free, request.pods, counts)
            self._planned.append(Shadow(gang.uid, line, at, free))

    def forget(self, uid: str) -> None:
        """A gang has started."""
        self._planned = [one for one in self._planned if one.uid != uid]

    def started(self, request: GangRequest, counts: NodeCounts, until: float) -> None:
        """A gang holds its places until then."""
        for shadow in self._planned:
            if shadow.at < until:
                take(shadow.free, request.pods, counts)

    def _earliest(
        self, gang: Waiting, moment: Moment
    ) -> tuple[float, GangRequest, NodeCounts, Ints] | None:
        """The earliest end after which a gang fits, its place, and what is free then. Capacity only grows until then."""
        low, high, best = 1, len(moment.ends), None
        while low <= high:
            middle = (low + high) // 2
            found = self._after(gang, moment, middle)
            if found is None:
                low = middle + 1
            else:
                best, high = found, middle - 1
        return best

    def _after(
        self, gang: Waiting, moment: Moment, number: int
    ) -> tuple[float, GangRequest, NodeCounts, Ints] | None:
        """Its place after the next ``number`` ends."""
        self.work += 1
        free, use = moment.free.copy(), moment.use.copy()
        for _, _, holding in moment.ends[:number]:
            add_at(free, *holding.slots)
            for row, amount in holding.charges:
                use.add(row, -amount)
        at = moment.ends[number - 1][0]
        room = free
        for shadow in self._planned:
            if shadow.line == self.lines[gang.queue.name]:
                room = np.minimum(room, shadow.free) if shadow.at >= at else room
        for request in gang.requests(at):
            if use.fits(gang.queue.name, request.charges):
                counts = several.find(request, room, partial(caps, room))
                if counts is not None:
                    return at, request, counts, free
        return None
