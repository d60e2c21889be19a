"""Searches that look ahead: where room runs out, those who come later are placed with the gang at hand by one model.

On a fleet that is nearly full every other gang starts only if some kept before it move, and each would be a search of its
own over the same gangs. So the first of these searches asks for a place for those behind it as well: all of whom counting
does not say that they will find none. Each still gets its turn; what is found here is a place that is waiting for it, believed
if it is free when its turn comes. Nobody is refused for want of one, so who starts is the same, found by fewer searches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from queuectl.domain.snapshot import Pending
from queuectl.planner.batch import Walk
from queuectl.planner.choose import Chooser
from queuectl.planner.counting import Load, refuted_by_sums
from queuectl.planner.decide import Decision, decide, moved
from queuectl.planner.demand import Demand
from queuectl.planner.partial import shrinks
from queuectl.planner.queueing.order import barred
from queuectl.planner.rearrange import arrange
from queuectl.planner.solve import Solver, Status
from queuectl.planner.spots import Kept, Spots, fits
from queuectl.planner.topology import Ints

_MOST: Final = 48  # gangs in one model, kept ones included
_LEAST: Final = (
    2  # of those behind: for one alone a model of all that are kept takes longer than it saves
)
_LOOKED_AT: Final = 64  # gangs that wait, to find those to place
_FULL: Final = 4  # counting must refuse one in so many of them; where it refuses fewer there is room enough for all
_FEWER: Final = (
    4,
    2,
)  # the next model is for so many times fewer: after a limit ended one, after one was refuted


def look_ahead(walk: Walk, in_order: Sequence[Pending]) -> None:
    """Let a walk that has not begun do so."""
    walk.sizing.chooser = Foreseeing(
        walk.arena, walk.ledger, walk.solver, walk=walk, in_order=in_order
    )


@dataclass(eq=False)
class Foreseeing(Chooser):
    """A chooser that places gangs before their turn.

    Attributes:
        walk: whose chooser it is.
        in_order: all pending gangs.
        places: by uid, what a gang will ask and where there is a place for it.
        reach: how many of those behind are placed at most; less after a model that did not hold all of them.
    """

    walk: Walk = field(kw_only=True)
    in_order: Sequence[Pending] = field(kw_only=True)
    places: dict[str, tuple[Demand, Spots]] = field(default_factory=dict)
    reach: int = _MOST
    _passed: int = 0  # of those in order, how many have had their turn

    def decide(self, demand: Demand) -> Decision:
        uid = demand.pending.workload.uid
        foreseen, spots = self.places.pop(uid, (None, ()))
        known = foreseen is not None and foreseen.units is demand.units
        if known and fits(self.ledger.free(), demand.pods, spots):
            self.walk.moved.add(uid)
            return Decision(Status.FOUND, spots)
        return decide(self.ledger, demand, self.solver, opening=self._with_later)

    def _with_later(self, movable: Sequence[Kept], demand: Demand, free: Ints) -> Decision | None:
        """One search for this gang and those behind it."""
        most = min(self.reach, _MOST - len(movable) - 1)
        if most < _LEAST or shrinks(demand.pending.workload):
            return None
        later = self._later(movable, demand, free, most)
        if len(later) < _LEAST:
            return None
        aside = Solver(self.solver.limits, self.solver.stop, brief=True)
        made = arrange(movable, [demand, *later], free, aside, demand.pending.budget, roughly=True)
        self.solver.count(aside)
        if made.status is not Status.FOUND:
            self.reach = len(later) // _FEWER[made.status is Status.REFUTED]
            return None
        for each, spots in zip(later, made.new[1:], strict=True):
            self.places[each.pending.workload.uid] = each, spots
        self.walk.moved.add(demand.pending.workload.uid)
        return Decision(Status.FOUND, made.new[0], moved(movable, made))

    def _later(
        self, movable: Sequence[Kept], demand: Demand, free: Ints, most: int
    ) -> list[Demand]:
        """Those behind whom counting does not refuse beside the ones before; none where there is room enough."""
        load = Load.of([*(kept.demand for kept in movable), demand], free)
        later: list[Demand] = []
        refused = 0
        for each in islice(self._waiting(demand), _LOOKED_AT):
            more = load.copy()
            more.add(each)
            if refuted_by_sums(each, free) or more.exceeds():
                refused += 1
            elif len(later) < most:
                later.append(each)
                load = more
        return later if refused * _FULL >= len(later) else []

    def _waiting(self, demand: Demand) -> Iterator[Demand]:
        """What those who have not had their turn will ask for first, as far as nothing but room is in their way."""
        walk, config = self.walk, self.arena.snapshot.config
        done = {*walk.starting, *walk.refused, demand.pending.workload.uid}
        while self._passed < len(self.in_order) and (
            self.in_order[self._passed].workload.uid in done
        ):
            self._passed += 1
        for pending in self.in_order[self._passed :]:
            workload = pending.workload
            if workload.uid in done or shrinks(workload) or walk.leases.holds(workload.uid):
                continue
            if barred(self.arena.snapshot, pending) or walk.limits.short(workload):
                continue
            queue = config.cluster_queue_of(workload.namespace, workload.queue)
            kind = walk.classes.of(pending, queue)
            if kind.refusal is None and kind.demands:
                choice, asked = kind.demands[0]
                if asked.units and walk.strict.ahead(queue, choice) is None:
                    yield Demand(pending, asked.units, asked.charges, asked.flavors, asked.queue)
