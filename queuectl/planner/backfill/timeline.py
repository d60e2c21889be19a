"""Later times: the capacity and quota that are free after known ends.

Planned starts and expected starts use it:

- :class:`Departures` has the known ends of gangs, and adds up the capacity and quota that are free after each of them. While no gang starts,
  free capacity only grows.
- :class:`Timeline` has the later times of one plan. A gang that holds room from one time to another fits if it fits at the first of these
  times and at each start in between. An unknown end never comes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from math import inf
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

import numpy as np

from queuectl.domain.plan import Plan
from queuectl.domain.queues import WithinClusterQueue
from queuectl.domain.snapshot import NO_END, Admitted, Snapshot
from queuectl.domain.workload import Workload
from queuectl.planner.capacity.node_counts import (
    PlannedGang,
    TentativeAdmission,
    add_at,
    give_back,
    take,
)
from queuectl.planner.capacity.state import CycleState, HeldCapacity
from queuectl.planner.problem.fleet import Ints
from queuectl.planner.problem.problem import Shape
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.problem.usage import CountedGang, Slots
from queuectl.planner.quota import QuotaRow, QuotaUse

# ---- Free capacity and quota after ends


class Occupant(Protocol):
    """A gang or a Reservation that holds capacity and quota until its end: ``slots`` on nodes, and ``charges`` to quota."""

    @property
    def slots(self) -> Slots: ...

    @property
    def charges(self) -> tuple[tuple[QuotaRow, int], ...]: ...


AnyOccupant = TypeVar("AnyOccupant", bound=Occupant)
AnyTime = TypeVar("AnyTime", float, int)
AnyFit = TypeVar("AnyFit")


@dataclass(frozen=True, eq=False, slots=True)
class Departures(Generic[AnyOccupant]):
    """Known ends, in their order.

    Attributes:
        times: unix seconds of the ends.
        occupants: the gangs and Reservations that end then.
    """

    times: Sequence[float]
    occupants: Sequence[AnyOccupant]
    _nodes: Ints
    _amounts: Ints
    _upto: Sequence[int]  # slots of the first so many
    _charges: Mapping[
        QuotaRow, tuple[list[int], list[int]]
    ]  # numbers of ends, and sums before each

    @classmethod
    def of(
        cls, ends: Sequence[tuple[float, AnyOccupant]], resources: int
    ) -> Departures[AnyOccupant]:
        """``ends``: in order; ``resources``: number of rows of the free capacity."""
        occupants = [occupant for _, occupant in ends]
        slots = [occupant.slots for occupant in occupants]
        nodes = [np.zeros(0, np.int64), *[at for at, _ in slots]]
        amounts = [np.zeros((resources, 0), np.int64), *[amounts for _, amounts in slots]]
        charges: dict[QuotaRow, tuple[list[int], list[int]]] = {}
        for number, occupant in enumerate(occupants):
            for row, amount in occupant.charges:
                numbers, sums = charges.setdefault(row, ([], [0]))
                numbers.append(number)
                sums.append(sums[-1] + amount)
        return cls(
            [at for at, _ in ends],
            occupants,
            np.concatenate(nodes),
            np.concatenate(amounts, axis=1),
            list(accumulate(map(len, nodes))),
            charges,
        )

    def number(self, at: float) -> int:
        """How many have left by a time."""
        return bisect_right(self.times, at)

    def free(self, free: Ints, number: int) -> Ints:
        """A copy of free capacity (R, N), once the first so many have left."""
        freed, slots = free.copy(), self._upto[number]
        add_at(freed, self._nodes[:slots], self._amounts[:, :slots])
        return freed

    def use(self, use: QuotaUse, number: int) -> QuotaUse:
        """A copy of the use of quota, once the first so many have left."""
        left = use.copy()
        for row, (numbers, sums) in self._charges.items():
            left.add(row, -sums[bisect_left(numbers, number)])
        return left


def first_fit(times: Sequence[AnyTime], fit: Callable[[AnyTime], AnyFit | None]) -> AnyFit | None:
    """How it fits at the first time at which it fits, by bisection; None = at no time.

    Args:
        times: in order.
        fit: how it fits at a time; None = it does not. If it fits at one time, it fits at each later time.
    """
    low, high, earliest = 0, len(times) - 1, None
    while low <= high:
        middle = (low + high) // 2
        fits = fit(times[middle])
        if fits is None:
            low = middle + 1
        else:
            earliest, high = fits, middle - 1
    return earliest


# ---- The later times of a plan

NOW: Final = -inf
"""The instant of the state that is called *now*; its *later* is the time of the snapshot: the gangs that leave have left."""
SOON: Final = 1.0
"""Seconds until a gang leaves that is past its end, and of the shortest run that is planned."""


def length(request: GangRequest) -> float:
    """Seconds for which a gang holds its room, as far as planning knows. A gang that is held for its checks has no known end."""
    duration = request.pending.workload.duration
    return inf if duration is None or request.awaited_checks else max(duration.seconds, SOON)


def end_of(request: GangRequest, at: float) -> float:
    """The unix seconds at which a gang has left that starts at ``at``."""
    return at + length(request)


@dataclass(eq=False)
class Timeline:
    """The later times of a state.

    Attributes:
        guarded: times at which a gang starts that waited long for gangs that ran longer than expected. Gangs with an
            expected end count as if they were still there, unless that gang can evict them.
    """

    state: CycleState
    guarded: dict[float, list[Workload]] = field(default_factory=dict)
    _running: Departures[CountedGang] | None = None
    _of: int = -1  # departures of the state

    @property
    def now(self) -> float:
        """The time of the snapshot."""
        return self.state.problem.snapshot.now

    def until(self, request: GangRequest) -> float:
        """The end of a gang that starts now, that is repaired now, or that starts while its lease lasts."""
        workload = request.pending.workload
        repaired = self._repaired(workload)
        if repaired is not None:
            return inf if repaired.ends_at is None else max(repaired.ends_at, self.now + SOON)
        held = self.state.held.get(workload.uid)
        start = self.now if held is None else held.until
        return start + length(request) if start < NO_END else inf

    def holds(self, request: GangRequest, at: float) -> bool:
        """Whether a gang that starts now must count at a time."""
        if self.until(request) > at:
            return True
        workload = request.pending.workload
        return not self._is_enforced(workload) and any(
            not self._yields(workload, first) for first in self.guarded.get(at, ())
        )

    def _is_enforced(self, workload: Workload) -> bool:
        """Whether the end of a gang of this plan is certain."""
        repaired = self._repaired(workload)
        if repaired is not None:
            return repaired.end_enforced
        return workload.duration is not None and workload.duration.enforced

    def times(self) -> list[float]:
        """The times at which some gang leaves, in order."""
        starting = map(self.until, self.requests)
        return sorted({*self._ends.times, *(end for end in starting if end < inf)})

    @property
    def requests(self) -> list[GangRequest]:
        """Of the gangs that start in this plan, or wait on a lease."""
        starting = [admission.request for admission in self.state.admissions]
        return starting + [held.request for held in self.state.held.values()]

    def ended(self, at: float) -> list[Admitted]:
        """Running gangs that have left by then."""
        return [entry.gang for entry in self._ends.occupants[: self._ends.number(at)]]

    def are_enforced(self, at: float) -> bool:
        """Whether all ends until a time are certain."""
        workloads = (r.pending.workload for r in self.requests if self.until(r) <= at)
        running = all(gang.end_enforced for gang in self.ended(at))
        return running and all(map(self._is_enforced, workloads))

    def free(
        self,
        at: float,
        planned: Iterable[PlannedGang] = (),
        without: Collection[TentativeAdmission] = frozenset(),
    ) -> Ints:
        """(R, N) free at a time alongside what runs and starts in this plan; a copy.

        Args:
            at: unix seconds, or ``NOW``.
            planned: planned gangs that count too.
            without: gangs that start in this plan and do not count, as a set or the keys of a mapping.
        """
        if at == NOW:
            free = self.state.open_now(slice(None)).copy()
        else:
            free = self._ends.free(self.state.later.free, self._ends.number(at))
        for admission in self.state.admissions:
            if admission in without or not self.holds(admission.request, at):
                give_back(free, admission.request.pods, admission.node_counts)
        for held in self._released(at):
            give_back(free, held.request.pods, held.node_counts)
        for gang in planned:
            if gang.holds(at):
                take(free, gang.request.pods, gang.node_counts)
        return free

    def use(self, at: float, planned: Iterable[PlannedGang] = ()) -> QuotaUse:
        """The use of quota at a time, with that of planned gangs; a copy, except ``NOW``."""
        if at == NOW:
            return self.state.quota.open
        use = self._ends.use(self.state.later.quota, self._ends.number(at))
        for admission in self.state.admissions:
            if not self.holds(admission.request, at):
                for row, amount in admission.request.rows():
                    use.add(row, -amount)
        for held in self._released(at):
            for row, amount in held.request.rows():
                use.add(row, -amount)
        for gang in planned:
            if gang.holds(at):
                for row, amount in gang.request.rows():
                    use.add(row, amount)
        return use

    def _released(self, at: float) -> list[HeldCapacity]:
        """The reservations whose gangs have left by a time. Now, all of them last."""
        held = self.state.held.values()
        return [] if at == NOW else [one for one in held if not self.holds(one.request, at)]

    @property
    def _ends(self) -> Departures[CountedGang]:
        """Of the running gangs that stay."""
        if self._running is None or self._of != self.state.departures:
            self._running, self._of = self._sorted(), self.state.departures
        return self._running

    def _sorted(self) -> Departures[CountedGang]:
        problem = self.state.problem
        ends = [
            (max(gang.ends_at, self.now + SOON), problem.usage.entries[id(gang)])
            for gang in problem.snapshot.admitted
            if gang.ends_at is not None and not self.state.leaves(gang)
        ]
        ends.sort(key=lambda end: (end[0], end[1].gang.workload.uid))
        return Departures.of(ends, len(problem.resources))

    def _repaired(self, workload: Workload) -> Admitted | None:
        """The gang that runs and is repaired: its attempt ends when it would have ended."""
        if workload.uid not in self.state.repairing:
            return None
        broken = self.state.problem.usage.broken
        return next((gang for gang in broken if gang.workload.uid == workload.uid), None)

    def _yields(self, workload: Workload, first: Workload) -> bool:
        """Whether ``first`` can evict it by the rules inside their ClusterQueue."""
        snapshot = self.state.problem.snapshot
        queue = snapshot.queue_of(first)
        if queue is None or snapshot.queue_of(workload) is not queue or not workload.preemptible:
            return False
        allowed = queue.within_cluster_queue is not WithinClusterQueue.NEVER
        return allowed and workload.priority < first.priority


# ---- Several times as one question
#
# A gang asks for its resources at each time at which it holds them, and for nothing at the others. So the searches that place gangs at one
# time answer for all of these times at once, with the same proofs.

Present: TypeAlias = tuple[bool, ...]
"""At each of the times, whether a gang holds its room."""


@dataclass(eq=False)
class Moments:
    """Requests over several times.

    Attributes:
        free: (R, N) for each time, without the gangs of the question.
    """

    free: Sequence[Ints]
    _shapes: dict[tuple[int, Present], Shape] = field(default_factory=dict)

    @property
    def stacked(self) -> Ints:
        """(R times the number of times, N)."""
        return np.concatenate(self.free)

    def request(self, request: GangRequest, present: Present) -> GangRequest:
        """The request of a gang over all the times."""
        return request.with_pods(lambda p: replace(p, shape=self._shape(p.shape, present)))

    def _shape(self, shape: Shape, present: Present) -> Shape:
        stacked = self._shapes.get((shape.key, present))
        if stacked is None:
            size = len(shape.vector)
            vector = np.concatenate([shape.vector * there for there in present])
            columns = tuple(
                size * at + column
                for column in shape.columns
                for at, there in enumerate(present)
                if there
            )
            stacked = replace(shape, key=len(self._shapes), vector=vector, columns=columns)
            self._shapes[shape.key, present] = stacked
        return stacked


# ---- Expected ends that pass


def next_expected_end(snapshot: Snapshot, plan: Plan) -> float | None:
    """When the next expected end passes on which a planned start or a coming Reservation depends (unix seconds); None = no end.

    The controller ends a gang at its limit, so limits do not count.
    """
    starts = [each.start.at for each in plan.planned if each.is_current]
    last = max((*starts, *(each.begins for each in plan.reserved)), default=None)
    if last is None:
        return None
    running = (
        gang.ends_at
        for gang in snapshot.admitted
        if gang.ends_at is not None and not gang.end_enforced and not gang.leaving
    )
    started = {admission.uid for admission in plan.admitted}
    starting = (
        snapshot.now + duration.seconds
        for pending in (snapshot.pending if started else ())
        if pending.workload.uid in started
        and (duration := pending.workload.duration) is not None
        and not duration.enforced
    )
    ends = chain(running, starting)
    return min((end for end in ends if snapshot.now < end <= last), default=None)
