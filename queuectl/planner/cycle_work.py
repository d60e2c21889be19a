"""The limit on the work of one cycle: which gangs are searched for after it is reached.

In a full cluster, a search for gangs that move or leave takes up to half a second, and any number of gangs can need one. So a cycle has a limit,
and gangs that it leaves out wait for a later one. Gangs that fit on free capacity need no search.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from typing import Final

from queuectl.domain.snapshot import SolverLimits

_IN_SHORT: Final = 0.25
"""The part of the ClusterQueues that have short searches in one second."""
_MOST_QUEUES: Final = 64
"""If more ClusterQueues have pending gangs, a second is a search second of several: each has one a minute."""
_MOST_GANGS: Final = 64
"""In a search second, one of so many gangs is searched for after the others of its ClusterQueue have used up the limit."""
_NO_QUEUE: Final = ""  # no ClusterQueue has these names
_REPAIRS: Final = " repairs"
_MOST_OF_ONE: Final = 8.0
"""The work of one search after which it ends, in limits of a cycle: a few seconds."""


class Effort(Enum):
    """How much a gang is searched for."""

    FULL = "full"
    SHORT = "short"  # each model has one short try
    NONE = "none"


@dataclass(slots=True)
class CycleWork:
    """The work of one cycle so far, and what it leaves for the next gang.

    Gangs are considered in queue order, and each is searched for until the work reaches the limit. Then:

    - Each ClusterQueue has search seconds, in which it is searched for as if it were alone. Each second is that of about one ClusterQueue. So each is
      searched for again and again, however much the searches for the others cost.
    - Gangs at the head of a ClusterQueue that are refused again in each cycle do not keep the gangs behind them from a search: as much work again is
      left in a search second for gangs that change with the second.
    - As much work again is left for short searches, one for each ClusterQueue without a search in this cycle. A quarter of them can have one in
      a second.

    The effort for a gang is decided before its search, so that the limit cuts no search in its middle. One gang counts for at most the
    whole limit. One search ends after several limits, a short one after one.

    Running gangs that lost nodes are placed again before. All of them together count for at most the whole limit.

    Attributes:
        limits: of the snapshot.
        second: of the snapshot, unix time. It decides whose search second it is.
        queues: how many ClusterQueues have pending gangs.
        effort: for the gang that is considered.
    """

    limits: SolverLimits
    second: int
    queues: int
    effort: Effort = Effort.FULL
    _queue: str | None = _NO_QUEUE  # whose gang is considered
    _of_queues: dict[str | None, float] = field(default_factory=dict)
    _of_gangs: float = 0.0
    _of_repairs: float = 0.0
    _before: tuple[float, int] = (0.0, 0)  # deterministic time and steps before this gang

    @property
    def worked(self) -> float:
        """The work until the gang that is considered; 1 = the limit."""
        return self._of_gangs + min(1.0, self._of_repairs)

    def consider(self, queue: str | None, uid: str, deterministic_time: float, steps: int) -> None:
        """The next work is for a pending gang of this ClusterQueue. The last two are the sums of the work until now."""
        self._count(deterministic_time, steps)
        self._queue, self.effort = queue, self._left_for(queue, uid)

    def repair(self, deterministic_time: float, steps: int) -> None:
        """The next work is for a running gang that lost nodes."""
        self._count(deterministic_time, steps)
        self._queue = _REPAIRS
        self.effort = Effort.FULL if self._of_repairs < _MOST_OF_ONE else Effort.SHORT

    def finish(self, deterministic_time: float, steps: int, *, fully: bool) -> None:
        """The next work is for no gang of the queues; ``fully``: it is done even if the limit is reached.

        Otherwise, it has search seconds like a ClusterQueue.
        """
        self._count(deterministic_time, steps)
        self._queue = _NO_QUEUE
        done = fully or self.worked < 1.0 or self._is_search_second(_NO_QUEUE)
        self.effort = Effort.FULL if done else Effort.NONE

    def ends(self, deterministic_time: float, steps: int) -> bool:
        """Whether no more work is done for the gang that is considered."""
        if self.effort is Effort.NONE:
            return True
        most = _MOST_OF_ONE if self.effort is Effort.FULL else 1.0
        return self._part(deterministic_time, steps) >= most

    def time_of_gang(self, deterministic_time: float) -> float:
        """The deterministic time of the search for this gang."""
        return deterministic_time - self._before[0]

    def _part(self, deterministic_time: float, steps: int) -> float:
        """The work for this gang; 1 = the limit."""
        limits = self.limits
        return max(
            (deterministic_time - self._before[0]) / limits.cycle_time,
            (steps - self._before[1]) / limits.search_steps,
        )

    def _count(self, deterministic_time: float, steps: int) -> None:
        part = self._part(deterministic_time, steps)
        self._before = (deterministic_time, steps)
        if part <= 0.0:
            return
        part = min(part, 1.0)
        if self._queue == _REPAIRS:
            self._of_repairs += part
            return
        self._of_gangs += part
        self._of_queues[self._queue] = self._of_queues.get(self._queue, 0.0) + part

    def _left_for(self, queue: str | None, uid: str) -> Effort:
        if self.worked < 1.0:
            return Effort.FULL
        own = self._of_queues.get(queue, 0.0)
        its_turn = own < 2.0 and self._place(uid) * _MOST_GANGS < 1.0
        if self._is_search_second(queue) and (own < 1.0 or its_turn):
            return Effort.FULL
        if self._place(queue) < _IN_SHORT and not own and self.worked < 2.0:
            return Effort.SHORT
        return Effort.NONE

    def _is_search_second(self, queue: str | None) -> bool:
        return self._place(queue) * min(self.queues, _MOST_QUEUES) < 1.0

    def _place(self, name: str | None) -> float:
        """A number from 0 to 1 that is another one for each ClusterQueue or gang and each second."""
        digest = blake2b(f"{self.second} {name}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") / 2**64
