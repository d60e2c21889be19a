"""The state from which all draws begin: the gangs that wait, in queue order, and the gangs that hold capacity.

Requests, places, quota and the queue order are those of the planner. A gang that is evicted and queues again at its old place waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

from queuectl.domain.queues import ClusterQueue, QueueingStrategy
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.planner.cache import PlannerCache
from queuectl.planner.order.lines import Lines, lines_of
from queuectl.planner.order.pending_gangs import class_key
from queuectl.planner.order.queue_order import Place as QueuePlace
from queuectl.planner.order.queue_order import inadmissible, place
from queuectl.planner.placement import several
from queuectl.planner.problem.parts import smallest
from queuectl.planner.problem.problem import Problem, caps, survey
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.problem.topology import Ints
from queuectl.planner.problem.usage import Slots
from queuectl.planner.quota.tree import QuotaRow, QuotaUse, use_of
from queuectl.planner.search.gang_classes import GangClasses

Place: TypeAlias = tuple[bool, QueuePlace]
"""False for a gang with a reservation, then the place in queue order: a smaller one is earlier."""


@dataclass(frozen=True, eq=False, slots=True)
class Waiting:
    """A pending gang.

    Attributes:
        kind: number of its class: if a gang of a class does not fit, no gang of it does.
        place: in queue order.
        requests: what it asks under each choice of flavors, most preferred first.
        queue: its ClusterQueue.
        planned_seconds: for which it runs, as planning assumes; infinite = unknown.
    """

    uid: str
    kind: int
    place: Place
    requests: tuple[GangRequest, ...]
    queue: ClusterQueue
    planned_seconds: float

    @property
    def strict(self) -> bool:
        """Whether no gang of its ClusterQueue passes it."""
        return self.queue.strategy is QueueingStrategy.STRICT_FIFO


@dataclass(frozen=True, eq=False, slots=True)
class Holding:
    """A gang that holds capacity.

    Attributes:
        slots: node indexes (K,) and amounts (R, K).
        charges: to quota.
        leaving: it is being evicted, so it ends at once.
    """

    uid: str
    slots: Slots
    charges: tuple[tuple[QuotaRow, int], ...]
    leaving: bool = False


@dataclass(frozen=True, eq=False)
class Scene:
    """One snapshot, for all draws.

    Attributes:
        free: (R, N) now.
        left_out: pending gangs beyond the number that is estimated.
    """

    problem: Problem
    waiting: tuple[Waiting, ...]
    holding: tuple[Holding, ...]
    left_out: int = 0

    @property
    def now(self) -> float:
        """Unix seconds."""
        return self.problem.snapshot.now

    @property
    def uids(self) -> set[str]:
        """Of all its gangs."""
        return {gang.uid for gang in self.waiting} | {gang.uid for gang in self.holding}

    @property
    def free(self) -> Ints:
        return self.problem.now

    @property
    def lines(self) -> Lines:
        """ClusterQueue to its line of planned starts."""
        return lines_of(self.problem.snapshot.config, self.problem.cache)

    def quota(self) -> QuotaUse:
        """The quota in use now; a new object."""
        return use_of(self.problem.pools, self.problem.usage.quota_held)


def scene_of(snapshot: Snapshot, cache: PlannerCache, most: int) -> Scene:
    """The scene of a snapshot with device rows. ``most``: the number of pending gangs that are estimated."""
    problem = survey(snapshot, cache)
    in_order = sorted(_in_order(snapshot), key=_place)
    return Scene(
        problem,
        tuple(_waiting(problem, in_order[:most])),
        tuple(_holding(problem)),
        max(0, len(in_order) - most),
    )


def _in_order(snapshot: Snapshot) -> Iterator[Pending]:
    """The gangs that planning considers, and those that will queue again."""
    for pending in snapshot.pending:
        if inadmissible(snapshot, pending) is None:
            yield pending
    for gang in snapshot.admitted:
        if gang.returns:
            yield Pending(gang.workload)


def _place(pending: Pending) -> Place:
    return pending.lease is None, place(pending.workload)


def _waiting(problem: Problem, in_order: Iterable[Pending]) -> Iterator[Waiting]:
    """Those that fit if all nodes are empty."""
    snapshot = problem.snapshot
    classes, kinds = GangClasses(problem), dict[object, int]()
    lines = lines_of(snapshot.config, problem.cache)
    possible: dict[int, tuple[GangRequest, ...]] = {}
    for pending in in_order:
        queue = snapshot.queue_of(pending.workload)
        if queue is None:
            continue
        part = Pending(smallest(pending.workload), excluded=pending.excluded)
        key = class_key(part, queue.name, lines)
        kind = kinds.setdefault((key, pending.workload.priority if lines else None), len(kinds))
        if kind not in possible:
            asked = (request for _, request in classes.of(part, queue).requests)
            possible[kind] = tuple(r for r in asked if _could_fit(problem, r, queue))
        if possible[kind]:
            duration = pending.workload.duration
            seconds = duration.seconds if duration is not None else inf
            uid = pending.workload.uid
            yield Waiting(uid, kind, _place(pending), possible[kind], queue, seconds)


def _could_fit(problem: Problem, request: GangRequest, queue: ClusterQueue) -> bool:
    """Whether a gang fits if no other gang is there."""
    pool = problem.pools[queue.name]
    if any(amount > pool.most(row) for row, amount in request.charges.items()):
        return False
    empty = problem.index.allocatable
    return several.find(request, empty, lambda shape: caps(empty, shape)) is not None


def _holding(problem: Problem) -> Iterator[Holding]:
    usage = problem.usage
    for gang in problem.snapshot.admitted:
        yield Holding(gang.workload.uid, usage.slots(gang), usage.charges(gang), gang.leaving)
