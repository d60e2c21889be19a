"""Free capacity and quota at later times, from the known ends of the gangs that run or start in this plan.

While no gang starts, free capacity only grows. A gang that holds room from one time to another fits if it fits at the first of these times
and at each start in between. An unknown end never comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final, TypeAlias

import numpy as np

from queuectl.domain.plan import Plan
from queuectl.domain.queues import WithinClusterQueue
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.domain.workload import Workload
from queuectl.planner.capacity.node_counts import TentativeAdmission, add_at, give_back
from queuectl.planner.capacity.state import CycleState
from queuectl.planner.problem.problem import Shape
from queuectl.planner.problem.request import GangRequest, PodSetGroup, ShapePods
from queuectl.planner.problem.topology import Ints
from queuectl.planner.quota.tree import QuotaRow, QuotaUse

# ---- Later times

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


@dataclass(eq=False, slots=True)
class _Ends:
    """Running gangs with known ends, in the order of these."""

    times: Ints
    gangs: Sequence[Admitted]
    nodes: Ints
    amounts: Ints
    upto: Ints  # slots of the first so many gangs
    charges: dict[QuotaRow, Ints]  # of the first so many gangs


@dataclass(eq=False)
class Timeline:
    """The later times of a state.

    Attributes:
        guarded: times at which a gang starts that waited long for gangs that ran longer than expected. Gangs with an
            expected end count as if they were still there, unless that gang can evict them.
    """

    state: CycleState
    guarded: dict[float, list[Workload]] = field(default_factory=dict)
    _ends: _Ends | None = None
    _of: int = -1  # departures of the state

    @property
    def now(self) -> float:
        """The time of the snapshot."""
        return self.state.problem.snapshot.now

    def until(self, request: GangRequest) -> float:
        """The end of a gang that starts now, or that is repaired now."""
        repaired = self._repaired(request.pending.workload)
        if repaired is not None:
            return inf if repaired.ends_at is None else max(repaired.ends_at, self.now + SOON)
        return self.now + length(request)

    def holds(self, request: GangRequest, at: float) -> bool:
        """Whether a gang that starts now must count at a later time."""
        if self.until(request) > at:
            return True
        workload = request.pending.workload
        repaired = self._repaired(workload)
        sure = workload.duration is not None and workload.duration.enforced
        if repaired is not None:
            sure = repaired.end_enforced
        return not sure and any(
            not self._yields(workload, first) for first in self.guarded.get(at, ())
        )

    def times(self) -> list[float]:
        """The times at which some gang leaves, in order."""
        starting = (self.until(admission.request) for admission in self.state.admissions)
        known = {*self._sorted().times.tolist(), *(end for end in starting if end < inf)}
        return sorted(known)

    def ended(self, at: float) -> list[Admitted]:
        """Running gangs that have left by then."""
        ends = self._sorted()
        return list(ends.gangs[: int(np.searchsorted(ends.times, at, side="right"))])

    def free(self, at: float) -> Ints:
        """(R, N) free at a time beside what runs and starts in this plan; read-only."""
        if at == NOW:
            return self.state.open_now(slice(None))
        ends = self._sorted()
        gone = int(np.searchsorted(ends.times, at, side="right"))
        free = self.state.later.free.copy()
        slots = int(ends.upto[gone])
        add_at(free, ends.nodes[:slots], ends.amounts[:, :slots])
        for admission in self._left(at):
            give_back(free, admission.request.pods, admission.node_counts)
        return free

    def use(self, at: float) -> QuotaUse:
        """The use of quota at a time; a copy, except now."""
        if at == NOW:
            return self.state.quota.open
        use = self.state.later.quota.copy()
        ends = self._sorted()
        gone = int(np.searchsorted(ends.times, at, side="right"))
        for charged, sums in ends.charges.items():
            use.add(charged, -int(sums[gone]))
        for admission in self._left(at):
            for row, amount in admission.request.rows():
                use.add(row, -amount)
        return use

    def _left(self, at: float) -> list[TentativeAdmission]:
        """Gangs that start in this plan and have left by then."""
        return [a for a in self.state.admissions if not self.holds(a.request, at)]

    def _sorted(self) -> _Ends:
        if self._ends is None or self._of != self.state.departures:
            self._ends, self._of = self._sort(), self.state.departures
        return self._ends

    def _sort(self) -> _Ends:
        known = [
            (max(gang.ends_at, self.now + SOON), gang.workload.uid, gang)
            for gang in self.state.evictable()
            if gang.ends_at is not None
        ]
        known.sort(key=lambda end: end[:2])
        usage = self.state.problem.usage
        slots = [usage.slots(gang) for _, _, gang in known]
        empty = (np.zeros(0, np.int64), np.zeros((len(self.state.problem.resources), 0), np.int64))
        return _Ends(
            np.array([end for end, _, _ in known], dtype=np.float64),
            [gang for _, _, gang in known],
            np.concatenate([nodes for nodes, _ in slots]) if slots else empty[0],
            np.concatenate([amounts for _, amounts in slots], axis=1) if slots else empty[1],
            np.cumsum([0, *(len(nodes) for nodes, _ in slots)]),
            _summed([usage.charges(gang) for _, _, gang in known]),
        )

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


def _summed(charges: Sequence[Sequence[tuple[QuotaRow, int]]]) -> dict[QuotaRow, Ints]:
    """Of each row, the sum over the first so many of these."""
    each: dict[QuotaRow, Ints] = {}
    for number, charged in enumerate(charges):
        for row, amount in charged:
            if row not in each:
                each[row] = np.zeros(len(charges) + 1, dtype=np.int64)
            each[row][number + 1] += amount
    return {row: np.cumsum(amounts) for row, amounts in each.items()}


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
        groups = tuple(self._group(group, present) for group in request.podset_groups)
        return replace(request, podset_groups=groups)

    def _group(self, group: PodSetGroup, present: Present) -> PodSetGroup:
        pods = tuple(self._pods(p, present) for p in group.pods)
        bundle = self._pods(group.bundle, present) if group.bundle is not None else None
        return replace(group, pods=pods, bundle=bundle)

    def _pods(self, pods: ShapePods, present: Present) -> ShapePods:
        return replace(pods, shape=self._shape(pods.shape, present))

    def _shape(self, shape: Shape, present: Present) -> Shape:
        known = self._shapes.get((shape.key, present))
        if known is None:
            size = len(shape.vector)
            vector = np.concatenate([shape.vector * there for there in present])
            columns = tuple(
                size * at + column
                for column in shape.columns
                for at, there in enumerate(present)
                if there
            )
            known = replace(shape, key=len(self._shapes), vector=vector, columns=columns)
            self._shapes[shape.key, present] = known
        return known


# ---- Expected ends that pass


def next_expected_end(snapshot: Snapshot, plan: Plan) -> float | None:
    """When the next expected end passes on which a planned start depends (unix seconds); None = there is none.

    The controller ends a gang at its limit, so limits do not count.
    """
    last = max((each.start.at for each in plan.planned if each.known), default=None)
    if last is None:
        return None
    ends = (
        gang.ends_at
        for gang in snapshot.admitted
        if gang.ends_at is not None and not gang.end_enforced and not gang.leaving
    )
    return min((end for end in ends if snapshot.now < end <= last), default=None)
