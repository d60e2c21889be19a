"""The state from which all draws begin: the gangs that wait, in queue order, and the gangs that hold capacity.

Requests, places, quota and the queue order come from the planner. A gang that is evicted and queues again at its old place waits.
A gang that a Budget holds is left out: no end of another gang starts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import TypeAlias

import numpy as np

from queuectl.domain.quantity import Resources
from queuectl.domain.queues import ClusterQueue
from queuectl.domain.reasons import NOT_IN_LINE
from queuectl.domain.reservations import Occurrence
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.domain.workload import Workload
from queuectl.planner.cache import PlannerCache
from queuectl.planner.order.limits import GangLimits
from queuectl.planner.order.pending_gangs import class_key, length_of
from queuectl.planner.order.queue_order import Lines, inadmissible, lines_of, place
from queuectl.planner.order.queue_order import Place as QueuePlace
from queuectl.planner.placement import greedy
from queuectl.planner.problem.fleet import Ints
from queuectl.planner.problem.limit_rows import asking_beside, beside, fixed, rows_beside
from queuectl.planner.problem.problem import Problem, caps, survey
from queuectl.planner.problem.request import GangRequest, smallest
from queuectl.planner.problem.usage import Slots
from queuectl.planner.quota import QuotaRow, QuotaUse, use_of
from queuectl.planner.search.gang_classes import GangClasses

Place: TypeAlias = tuple[bool, QueuePlace]
"""False for a gang with a reservation, then the place in queue order: a smaller one is earlier."""
_Asks: TypeAlias = tuple[tuple[float, tuple[GangRequest, ...]], ...]
"""Unix seconds after which a start asks for this, in order; the first is before all times."""


@dataclass(frozen=True, eq=False, slots=True)
class Waiting:
    """A pending gang.

    Attributes:
        family: uid of the elastic gang that it extends and with which it ends, or its own.
        kind: number of its class: if a gang of a class does not fit, no gang of it does.
        place: in queue order.
        asks: for starts after each time (unix seconds), what it asks under each choice of flavors, most preferred first.
        queue: its ClusterQueue.
        planned_seconds: for which it runs, as planning assumes; infinite = unknown.
    """

    uid: str
    family: str
    kind: int
    place: Place
    asks: _Asks
    queue: ClusterQueue
    planned_seconds: float

    @property
    def grows(self) -> bool:
        """Whether it is a pod that extends an elastic gang."""
        return self.family != self.uid

    def requests(self, at: float) -> tuple[GangRequest, ...]:
        """Its requests if it starts then: a later start lasts longer into Reservations."""
        return next(asked for after, asked in reversed(self.asks) if after < at)

    @property
    def charges(self) -> Mapping[tuple[str, str], int]:
        """By flavor and resource, under the most preferred flavors that can fit."""
        return next(asked[0].charges for _, asked in self.asks if asked)


@dataclass(frozen=True, eq=False, slots=True)
class Holding:
    """A gang that holds capacity, or a Reservation that keeps it.

    Attributes:
        uid: of the gang that ends then, or the name of the Reservation. A pod that was added to an elastic gang ends with that gang.
        slots: node indexes (K,) and amounts (R, K).
        charges: to quota.
        until: unix seconds at which it ends in each draw; None = the run time of the gang decides.
    """

    uid: str
    slots: Slots
    charges: tuple[tuple[QuotaRow, int], ...]
    until: float | None = None


@dataclass(frozen=True, eq=False)
class Scene:
    """One snapshot, for all draws.

    Attributes:
        free: (R, N) now, alongside what Reservations keep.
        left_out: pending gangs beyond the number that is estimated.
    """

    problem: Problem
    free: Ints
    waiting: tuple[Waiting, ...]
    holding: tuple[Holding, ...]
    left_out: int = 0

    @property
    def now(self) -> float:
        """Unix seconds."""
        return self.problem.snapshot.now

    @property
    def uids(self) -> set[str]:
        """Of the gangs whose run times count."""
        running = {gang.uid for gang in self.holding if gang.until is None}
        return running | {gang.family for gang in self.waiting}

    @property
    def lines(self) -> Lines:
        """ClusterQueue to its line of planned starts."""
        return lines_of(self.problem.snapshot.config, self.problem.cache)

    def quota(self) -> QuotaUse:
        """The quota in use now; a new object."""
        return use_of(self.problem.pools, self.problem.usage.quota_held)


def scene_of(
    snapshot: Snapshot,
    cache: PlannerCache,
    most: int,
    check: Callable[[], None] = lambda: None,
) -> Scene:
    """The scene of a snapshot with device rows.

    Args:
        snapshot: with device rows.
        cache: of the planner.
        most: the number of pending gangs that are estimated.
        check: is called before each search for a place; it can raise to end the preparation.
    """
    problem = survey(snapshot, cache.fork())
    check()
    in_order = sorted(_in_order(problem.snapshot), key=_place)
    check()
    return Scene(
        problem,
        _free(problem),
        tuple(_waiting(problem, in_order[:most], check)),
        (*_holding(problem), *_kept(problem)),
        max(0, len(in_order) - most),
    )


def _in_order(snapshot: Snapshot) -> Iterator[Pending]:
    """The gangs that planning considers, and those that will queue again."""
    limits = GangLimits(snapshot)
    for pending in _queued(snapshot):
        if not any(limit.row.code in NOT_IN_LINE for limit in limits.over(pending.workload)):
            yield pending


def _queued(snapshot: Snapshot) -> Iterator[Pending]:
    for pending in snapshot.pending:
        if inadmissible(snapshot, pending) is None:
            yield pending
    for gang in snapshot.admitted:
        if gang.returns:
            yield Pending(gang.queued_again, excluded=gang.excluded)


def _place(pending: Pending) -> Place:
    return pending.lease is None, place(pending.workload)


def _waiting(
    problem: Problem, in_order: Iterable[Pending], check: Callable[[], None]
) -> Iterator[Waiting]:
    """Those that fit if all nodes are empty."""
    snapshot = problem.snapshot
    classes, kinds = GangClasses(problem), dict[object, int]()
    lines = lines_of(snapshot.config, problem.cache)
    possible: dict[int, _Asks] = {}
    for pending in in_order:
        workload = pending.workload
        queue = snapshot.queue_of(workload)
        if queue is None:
            continue
        seconds = length_of(workload)
        starts = tuple(_starts(snapshot, workload, seconds))
        part = Pending(smallest(workload), excluded=pending.excluded)
        times = tuple((after, tuple(each.name for each in among)) for after, among in starts)
        key = class_key(part, queue.name, lines), times
        kind = kinds.setdefault((key, workload.priority if lines else None), len(kinds))
        if kind not in possible:
            check()
            possible[kind] = tuple(
                (after, _requests(classes, part, queue, among)) for after, among in starts
            )
        if any(asked for _, asked in possible[kind]):
            own, asks = (workload.uid, workload.family), possible[kind]
            yield Waiting(*own, kind, _place(pending), asks, queue, seconds)


def _starts(
    snapshot: Snapshot, workload: Workload, seconds: float
) -> Iterator[tuple[float, tuple[Occurrence, ...]]]:
    """The Reservations alongside which a gang is if it starts after each time. Those that are over by then keep nothing."""
    yield -inf, ()
    among = beside(snapshot, workload, inf)
    for number, each in enumerate(among, 1):
        yield each.begins - seconds, among[:number]


def _requests(
    classes: GangClasses, part: Pending, queue: ClusterQueue, among: tuple[Occurrence, ...]
) -> tuple[GangRequest, ...]:
    """The requests of a gang alongside Reservations, without those that never fit."""
    part = replace(part, workload=asking_beside(part.workload, among))
    asked = (request for _, request in classes.of(part, queue).requests)
    return tuple(request for request in asked if _could_fit(classes.problem, request, queue))


def _could_fit(problem: Problem, request: GangRequest, queue: ClusterQueue) -> bool:
    """Whether a gang fits if no other gang is there."""
    pool = problem.pools[queue.name]
    if any(amount > pool.most(row) for row, amount in request.charges.items()):
        return False
    empty = problem.index.allocatable
    return greedy.find(request, empty, lambda shape: caps(empty, shape)) is not None


def _holding(problem: Problem) -> Iterator[Holding]:
    usage, now = problem.usage, problem.snapshot.now
    for gang in problem.snapshot.admitted:
        until = now if gang.leaving else None
        yield Holding(gang.workload.family, usage.slots(gang), usage.charges(gang), until)


def _free(problem: Problem) -> Ints:
    """Without what Reservations keep that the planner can still move."""
    free, snapshot = problem.now.copy(), problem.snapshot
    for each in snapshot.reservations:
        if not fixed(each, snapshot):
            nodes, amounts = _slots(problem, each, each.held_amounts())
            free[:, nodes] -= amounts
    return free


def _kept(problem: Problem) -> Iterator[Holding]:
    """The capacity that Reservations keep until their ends."""
    snapshot = problem.snapshot
    for each in snapshot.reservations:
        amounts = fixed(each, snapshot) or each.held_amounts()
        yield Holding(each.name, _slots(problem, each, amounts), (), each.ends)


def _slots(
    problem: Problem, occurrence: Occurrence, amounts: Iterable[tuple[str, Resources]]
) -> Slots:
    """Node indexes (K,) and amounts (R, K) of what gangs alongside a Reservation cannot use."""
    index = problem.index
    kept = np.zeros((len(index.resources), index.size), np.int64)
    for node, asked in amounts:
        vector = index.vector(rows_beside(asked, (occurrence,)))
        if vector is not None and node in index.position:
            kept[:, index.position[node]] += vector
    nodes = np.flatnonzero(kept.any(axis=0))
    return nodes, kept[:, nodes]
