"""Planned starts and backfill by trying all placements: for a few nodes and gangs of equal pods. It shares no code with the planner.

A placement is a number of pods on each node, the same for as long as the gang holds its room.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    queue: str = "main"

    @property
    def gpus(self) -> int:
        return self.pods * self.gpu


@dataclass(frozen=True, slots=True)
class Quota:
    """GPUs of one ClusterQueue or Cohort; ``borrows`` and ``lends``: at most, None = unlimited. ``parent``: of a tree, "" = its root."""

    nominal: int
    borrows: int | None = None
    lends: int | None = None
    parent: str = ""

    def shared(self, whole: int) -> int:
        """The part of ``whole``, its own quota and what its members share with it, that its parent can use."""
        return whole if self.lends is None else min(self.lends, whole)

    def taken(self, used: int, whole: int) -> int:
        """The part of its use that counts in its parent."""
        return max(0, used - (whole - self.shared(whole)))


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
    ``quotas``: of the ClusterQueues in one tree of cohorts, each with its own planned starts; empty = the quota suffices. All
    that is in use belongs to the first of them. ``cohorts``: of the Cohorts directly below the root.
    """

    gpus: Counts
    racks: Counts
    busy: Sequence[tuple[int, int, float]]
    planned_starts: int
    delay: float = 0.0
    quotas: Mapping[str, Quota] = field(default_factory=dict)
    cohorts: Mapping[str, Quota] = field(default_factory=dict)
    starting: list[Gang] = field(default_factory=list)
    planned: list[tuple[Gang, float]] = field(default_factory=list)
    latest: dict[str, float] = field(default_factory=dict)
    waiting: list[Gang] = field(default_factory=list)

    def starts(self, gangs: Sequence[Gang]) -> list[str]:
        """Consider all gangs: of the first ones of each ClusterQueue, those first that borrow from the lowest Cohort. Returns the uids of those that start.

        A gang that would not start alone changes nothing.
        """
        place = {gang.uid: number for number, gang in enumerate(gangs)}
        left, started = [gang for gang in gangs if self._ever(gang)], []
        while left:
            heads = {gang.queue: gang for gang in reversed(left)}.values()
            gang = min(heads, key=lambda head: (self._height(head), place[head.uid]))
            left.remove(gang)
            if self.consider(gang):
                started.append(gang.uid)
        self._settle()
        return sorted(started, key=place.__getitem__)

    def _ever(self, gang: Gang) -> bool:
        """Whether it would start if it were alone."""
        return replace(self, busy=(), starting=[]).fits([gang], later=())

    def _borrows(self, gang: Gang) -> bool:
        if not self.quotas:
            return False
        return self._used(gang.queue, 0.0) + gang.gpus > self.quotas[gang.queue].nominal

    def _height(self, gang: Gang) -> int:
        """How far up the tree it borrows: 0 = not at all; of a Cohort, the levels below it.

        A gang whose quota is not free now does not borrow if its ClusterQueue has enough for it alone.
        """
        if not self._borrows(gang):
            return 0
        held = [Held(each, 0.0, _length(each)) for each in (*self.starting, gang)]
        alone = gang.gpus <= self.quotas[gang.queue].nominal
        if alone and not self._within_quota(held, 0.0):
            return 0
        used = {name: self._used(name, 0.0) for name in self.quotas}
        used[gang.queue] += gang.gpus
        at = self.quotas[gang.queue].parent
        if at:
            below = self._below(at, used)
            if below[0] <= self.cohorts[at].nominal + below[1]:
                return 1
        return 2 if self.cohorts else 1

    def consider(self, gang: Gang) -> bool:
        """The next gang in queue order: whether it starts."""
        line = [other for other in self.waiting if other.queue == gang.queue]
        if self.fits([gang], later=()) and (gang.seconds is not None or not line):
            ahead = [p for p in self.planned if self._counts_for(gang, *p)]
            if len(ahead) == 1:
                ahead = [(other, self.latest[other.uid]) for other, _ in ahead]
            if self.fits([gang], later=ahead):
                self.starting.append(gang)
                if len(ahead) < len(self.planned):
                    self._settle()
                return True
        if len(line) < self.planned_starts:
            self._settle()
            self.waiting.append(gang)
            self._plan(gang)
        return False

    def _counts_for(self, gang: Gang, planned: Gang, at: float) -> bool:
        """Whether a gang must not delay a planned one: always, except that it uses its own quota that the other borrows."""
        if planned.queue == gang.queue or not self.quotas:
            return True
        used = self._used(planned.queue, at) + planned.gpus
        return self._borrows(gang) or used <= self.quotas[planned.queue].nominal

    def _used(self, queue: str, at: float) -> int:
        """GPUs of a ClusterQueue that what is in use and what starts uses at a time."""
        started = sum(g.gpus for g in self.starting if g.queue == queue and _length(g) > at)
        owner = next(iter(self.quotas))
        return started + sum(used for _, used, until in self.busy if queue == owner and until > at)

    def _settle(self) -> None:
        """Plan all of them again, at the earliest times that are left."""
        gangs, self.planned = [gang for gang, _ in self.planned], []
        for gang in gangs:
            self._plan(gang)

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
            line = [at for other, at in self.planned if other.queue == gang.queue]
            least = max(line, default=0.0)
            before = self.waiting[: self.waiting.index(gang)]
            if len(line) < sum(other.queue == gang.queue for other in before):
                return
        for at in sorted(end for end in ends if max(least, 0.1) <= end < inf):
            if self.fits((), later=[*self.planned, (gang, at)]):
                self.planned.append((gang, at))
                late = 0.0 if gang.seconds is None else self.delay * gang.seconds
                self.latest.setdefault(gang.uid, at + late)
                return

    def _place(self, held: Sequence[Held]) -> bool:
        times = sorted({each.begins for each in held})
        if not all(self._within_quota(held, at) for at in times):
            return False
        free = {
            at: [
                size - sum(used for on, used, until in self.busy if on == node and until > at)
                for node, size in enumerate(self.gpus)
            ]
            for at in times
        }
        return self._search(held, 0, free)

    def _within_quota(self, held: Sequence[Held], at: float) -> bool:
        """Whether no ClusterQueue uses more at a time than it can, with what it borrows."""
        if not self.quotas:
            return True
        used = dict.fromkeys(self.quotas, 0)
        used[next(iter(self.quotas))] = sum(n for _, n, until in self.busy if until > at)
        for each in held:
            if each.begins <= at < each.ends:
                used[each.gang.queue] += each.gang.gpus
        taken, shared, within = self._below("", used)
        return within and taken <= shared

    def _below(self, parent: str, used: Mapping[str, int]) -> tuple[int, int, bool]:
        """The amounts that the members of a cohort take from it and share with it, and whether all stay within their borrowing limits."""
        taken = shared = 0
        within = True
        members = [(q, used[n], q.nominal) for n, q in self.quotas.items() if q.parent == parent]
        for name, quota in self.cohorts.items() if not parent else ():
            below = self._below(name, used)
            within &= below[2]
            members.append((quota, below[0], quota.nominal + below[1]))
        for quota, use, whole in members:
            within &= quota.borrows is None or use <= whole + quota.borrows
            taken += quota.taken(use, whole)
            shared += quota.shared(whole)
        return taken, shared, within

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
