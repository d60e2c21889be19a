"""Planned starts and backfill by trying all placements: for a few nodes and gangs of equal pods. It shares no code with the planner.

A placement is a number of pods on each node, the same for as long as the gang holds its room.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

Counts = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gang:
    """``pods`` pods of ``gpu`` GPUs; ``seconds``: None = of unknown length. ``rack``: all pods are in one rack."""

    uid: str
    pods: int
    gpu: int
    seconds: float | None
    rack: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """The use of a gang from one time to another, where it is placed."""

    gang: Gang
    begins: float
    ends: float


@dataclass(eq=False)
class Cluster:
    """Nodes with GPUs, each in a rack; on each node the GPUs in use, with the time until which (relative to now).

    ``delay``: the part of its run by which a single planned gang can start later than it could at first.
    """

    gpus: Counts
    racks: Counts
    busy: Sequence[tuple[int, int, float]]
    planned_starts: int
    delay: float = 0.0
    starting: list[Gang] = field(default_factory=list)
    planned: list[tuple[Gang, float]] = field(default_factory=list)
    latest: dict[str, float] = field(default_factory=dict)
    waiting: int = 0

    def consider(self, gang: Gang) -> bool:
        """The next gang in queue order: whether it starts."""
        free = self.fits([gang], later=())
        if free and not self.waiting:
            self.starting.append(gang)
            return True
        if free and gang.seconds is not None and self.fits([gang], later=self._delayed()):
            self.starting.append(gang)
            return True
        if self.waiting < self.planned_starts:
            self.settle()
            self.waiting += 1
            self._plan(gang)
        return False

    def settle(self) -> None:
        """Plan all of them again, at the earliest times that are left."""
        planned, self.planned = self.planned, []
        for gang, _ in planned:
            self._plan(gang)

    def _delayed(self) -> list[tuple[Gang, float]]:
        if len(self.planned) != 1:
            return self.planned
        return [(gang, self.latest[gang.uid]) for gang, _ in self.planned]

    def fits(self, more: Sequence[Gang], later: Sequence[tuple[Gang, float]]) -> bool:
        """Whether all that start and these gangs start now, and the others later, in some placement."""
        now = [Held(gang, 0.0, _length(gang)) for gang in (*self.starting, *more)]
        return self._place([*now, *(Held(gang, at, at + _length(gang)) for gang, at in later)])

    def _plan(self, gang: Gang) -> None:
        ends = {until for _, _, until in self.busy if until < inf}
        ends |= {_length(started) for started in self.starting}
        ends |= {at + _length(other) for other, at in self.planned}
        least = 0.0
        if gang.seconds is None:  # it starts before no gang that waits before it
            least = max((at for _, at in self.planned), default=0.0)
            if len(self.planned) < self.waiting - 1:
                return
        for at in sorted(end for end in ends if max(least, 0.1) <= end < inf):
            if self.fits((), later=[*self.planned, (gang, at)]):
                self.planned.append((gang, at))
                late = 0.0 if gang.seconds is None else self.delay * gang.seconds
                self.latest.setdefault(gang.uid, at + late)
                return

    def _place(self, held: Sequence[Held]) -> bool:
        times = sorted({each.begins for each in held})
        free = {
            at: [
                size - sum(used for on, used, until in self.busy if on == node and until > at)
                for node, size in enumerate(self.gpus)
            ]
            for at in times
        }
        return self._search(held, 0, free)

    def _search(self, held: Sequence[Held], number: int, free: dict[float, list[int]]) -> bool:
        if number == len(held):
            return True
        each = held[number]
        times = [at for at in free if each.begins <= at < each.ends]
        room = [min(free[at][n] for at in times) // each.gang.gpu for n in range(len(self.gpus))]
        for counts in self._ways(each.gang, room):
            for at in times:
                for node, count in enumerate(counts):
                    free[at][node] -= count * each.gang.gpu
            found = self._search(held, number + 1, free)
            for at in times:
                for node, count in enumerate(counts):
                    free[at][node] += count * each.gang.gpu
            if found:
                return True
        return False

    def _ways(self, gang: Gang, room: Sequence[int]) -> Iterator[Counts]:
        for rack in sorted({*self.racks}) if gang.rack else [None]:
            there = [r if rack in (None, at) else 0 for r, at in zip(room, self.racks, strict=True)]
            yield from _compositions(gang.pods, there)


def _length(gang: Gang) -> float:
    return inf if gang.seconds is None else gang.seconds


def _compositions(pods: int, room: Sequence[int]) -> Iterator[Counts]:
    if not room:
        if not pods:
            yield ()
        return
    for here in range(min(pods, room[0]), -1, -1):
        for rest in _compositions(pods - here, room[1:]):
            yield here, *rest
