"""Look-ahead: on a nearly full cluster, one model places the gang at hand together with later gangs.

There, every second gang starts only if gangs admitted before it move, and each would need its own search over the same
gangs. The first of these searches therefore also asks for a place for the later gangs that sums do not refute. The cycle
still considers each of them in queue order; a place that is found here is used if it is then free. No gang is refused because
it has none, so the same gangs start, after fewer searches.

Without it, plans of 50 gangs on 640 nodes, three quarters in use, take 1.2 to 1.7 times the solves and up to 1.4 times the CPU time,
and every second of them uses more domains. On 10,000 nodes, where there is room, it neither helps nor costs (``python -m tests.bench.ablate``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final
from weakref import proxy

from queuectl.domain.snapshot import Pending
from queuectl.planner.capacity.node_counts import NodeCounts, TentativeAdmission, fits
from queuectl.planner.cycle.cycle import AdmissionCycle
from queuectl.planner.model.counts import GangLoad
from queuectl.planner.order.queue_order import inadmissible
from queuectl.planner.placement.feasible import Feasibility, arrange, decide, moved, refuted_by_sums
from queuectl.planner.problem.fleet import Ints, NodeRoom
from queuectl.planner.problem.request import GangRequest, shrinks
from queuectl.planner.search.flavor_choice import FlavorChooser
from queuectl.planner.solver import Solver, Status

_MOST: Final = 48  # gangs in one model, admitted ones included
_LEAST: Final = (
    2  # of those behind: for one alone a model of all that are admitted takes longer than it saves
)
_MOST_CONSIDERED: Final = 64  # gangs that wait, to find those to place
_FULL: Final = 4  # counting must refuse one in so many of them; where it refuses fewer there is room enough for all
_FEWER: Final = (
    4,
    2,
)  # the next model is for so many times fewer: after a limit ended one, after one was refuted


def look_ahead(cycle: AdmissionCycle, in_order: Sequence[Pending]) -> None:
    """Let a cycle that has not begun look ahead."""
    cycle.sizing.chooser = LookAhead(
        cycle.problem,
        cycle.state,
        cycle.solver,
        planned=cycle.planned,
        cycle=cycle,
        in_order=in_order,
    )


@dataclass(eq=False)
class LookAhead(FlavorChooser):
    """A chooser that places gangs before the cycle considers them.

    Attributes:
        cycle: whose chooser it is; a weak proxy of it from the start, so that no reference cycle keeps the arrays of a plan in memory.
        in_order: all pending gangs.
        places: by uid, what a gang will ask and where there is a place for it.
        reach: how many of those behind are placed at most; less after a model that did not hold all of them.
    """

    cycle: AdmissionCycle = field(kw_only=True)
    in_order: Sequence[Pending] = field(kw_only=True)
    places: dict[str, tuple[GangRequest, NodeCounts]] = field(default_factory=dict)
    reach: int = _MOST
    _passed: int = 0  # of those in order, how many were considered

    def __post_init__(self) -> None:
        self.cycle = proxy(self.cycle)

    def decide(self, request: GangRequest) -> Feasibility:
        uid = request.pending.workload.uid
        foreseen, node_counts = self.places.pop(uid, (None, ()))
        known = foreseen is not None and foreseen.podset_groups is request.podset_groups
        if known and fits(self.state.free(), request.pods, node_counts):
            self.cycle.moved.add(uid)
            return Feasibility(Status.SOLVED, node_counts)
        return decide(self.state, request, self.solver, opening=self._with_later)

    def _with_later(
        self, movable: Sequence[TentativeAdmission], request: GangRequest, free: Ints
    ) -> Feasibility | None:
        """One search for this gang and those behind it."""
        most = min(self.reach, _MOST - len(movable) - 1)
        if most < _LEAST or shrinks(request.pending.workload):
            return None
        later = self._later(movable, request, free, most)
        if len(later) < _LEAST:
            return None
        own_solver = Solver(self.solver.limits, self.solver.stop, brief=True)
        made = arrange(
            movable, [request, *later], free, own_solver, request.pending.budget, roughly=True
        )
        self.solver.count(own_solver)
        if made.status is not Status.SOLVED:
            self.reach = len(later) // _FEWER[made.status is Status.REFUTED]
            return None
        for each, node_counts in zip(later, made.new[1:], strict=True):
            self.places[each.pending.workload.uid] = each, node_counts
        self.cycle.moved.add(request.pending.workload.uid)
        return Feasibility(Status.SOLVED, made.new[0], moved(movable, made))

    def _later(
        self, movable: Sequence[TentativeAdmission], request: GangRequest, free: Ints, most: int
    ) -> list[GangRequest]:
        """Those behind whom counting does not refuse alongside the ones before; none where there is room enough."""
        load = GangLoad.of([*(admission.request for admission in movable), request], free)
        later: list[GangRequest] = []
        refused = 0
        for each in islice(self._waiting(request), _MOST_CONSIDERED):
            more = load.copy()
            more.add(each)
            if refuted_by_sums(each, free) or more.exceeds():
                refused += 1
            elif len(later) < most:
                later.append(each)
                load = more
        return later if refused * _FULL >= len(later) else []

    def _waiting(self, request: GangRequest) -> Iterator[GangRequest]:
        """The first requests of the gangs that were not considered yet and can ever start, if only room can block them."""
        cycle = self.cycle
        done = {*cycle.starting, *cycle.refused, *cycle.holds, request.pending.workload.uid}
        while self._passed < len(self.in_order) and (
            self.in_order[self._passed].workload.uid in done
        ):
            self._passed += 1
        for pending in self.in_order[self._passed :]:
            workload = pending.workload
            if workload.uid in done or shrinks(workload) or cycle.leases.holds(workload.uid):
                continue
            if inadmissible(self.problem.snapshot, pending) or cycle.limits.short(workload):
                continue
            queue = self.problem.snapshot.queue_of(workload)
            kind = cycle.classes.of(pending, queue)
            if kind.refuted(workload) is None and kind.requests:
                choice, template = kind.requests[0]
                asked = replace(template, pending=pending)
                if not self.state.quota.ever(asked) or self.room(asked, queue) is NodeRoom.NEVER:
                    continue
                if asked.podset_groups and cycle.heads.ahead(queue, choice.values()) is None:
                    yield asked
