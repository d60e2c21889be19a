"""The load of :mod:`tests.bench.thrash` in one pool of GPUs, for several orders of the waiting gangs.

The pool has no nodes, racks, quota or evictions, so no GPU is free that a gang cannot use. Whenever a gang arrives or ends, the waiting
gangs that fit start, in this order. The figures show which waits a change of placement or reclaim can save, and which only another
order can save.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final

from tests.bench import thrash
from tests.bench.thrash import Fate, Gang, figures

Key = Callable[[Gang, float], tuple[float, ...]]
LARGE: Final = thrash.SIZES[-1][0]  # pods
ORDERS: Final[dict[str, tuple[Key, int]]] = {
    "time": (lambda gang, _: (gang.at,), 0),
    "time; room is kept for the first gang that waits": (lambda gang, _: (gang.at,), 1),
    "fewest GPUs first": (lambda gang, _: (gang.pods * gang.gpus, gang.at), 0),
    "shortest first, run times known": (lambda gang, _: (gang.runtime, gang.at), 0),
    "largest wait times pods first": (lambda gang, now: ((gang.at - now) * gang.pods, gang.at), 0),
    "17-64 pods first": (lambda gang, _: (gang.pods < LARGE, gang.at), 0),
}
"""By name: the sort key at a time in seconds, and how many waiting gangs have room kept for them, with all ends known."""


@dataclass
class Pool:
    """One run.

    Attributes:
        starts: seconds until a start has taken effect; the GPUs are in use from its beginning.
        waiting: in order of arrival.
        running: ends and GPUs, as a heap.
    """

    order: Key
    kept: int
    starts: float
    now: float = 0.0
    free: int = thrash.GPUS
    waiting: list[Gang] = field(default_factory=list)
    running: list[tuple[float, int]] = field(default_factory=list)

    def run(self, gangs: Sequence[Gang]) -> Iterator[Fate]:
        arriving = sorted(gangs, key=lambda gang: -gang.at)
        while arriving or self.waiting:
            ends = self.running[0][0] if self.running else float("inf")
            self.now = min(ends, arriving[-1].at) if arriving else ends
            while arriving and arriving[-1].at <= self.now:
                self.waiting.append(arriving.pop())
            while self.running and self.running[0][0] <= self.now:
                self.free += heappop(self.running)[1]
            yield from self._starts()

    def _starts(self) -> Iterator[Fate]:
        kept: list[tuple[float, int]] = []  # times and GPUs that can be in use then
        for gang in sorted(self.waiting, key=lambda gang: self.order(gang, self.now)):
            asked, end = gang.pods * gang.gpus, self.now + self.starts + gang.runtime
            late = [i for i, (at, _) in enumerate(kept) if end > at]
            if asked <= self.free and all(asked <= kept[i][1] for i in late):
                kept = [(at, left - asked * (i in late)) for i, (at, left) in enumerate(kept)]
                self.waiting.remove(gang)
                self.free -= asked
                heappush(self.running, (end, asked))
                yield Fate(gang, end - gang.runtime, end)
            elif len(kept) < self.kept:
                kept.append(self._room(asked))

    def _room(self, asked: int) -> tuple[float, int]:
        """When so many GPUs are free, and how many others are then."""
        free = self.free
        for at, gpus in sorted(self.running):
            free += gpus
            if free >= asked:
                return at, free - asked
        raise AssertionError("it is larger than the pool")


def rows(seeds: Sequence[int], starts: float) -> Iterator[tuple[str, ...]]:
    """One line for each order: medians of the seeds."""
    loads = [list(thrash.gangs(seed)) for seed in seeds]
    for name, (order, kept) in ORDERS.items():
        found = [figures(Pool(order, kept, starts).run(gangs)) for gangs in loads]
        yield thrash.row(name, thrash.medians(found))
