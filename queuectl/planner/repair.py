"""Gangs that lost nodes: exactly the lost pods are placed anew, beside the healthy ones that stay.

The lost pods of a unit go into the domain its healthy pods hold at the required level. Where no level is required they stay
near the healthy ones if they can. A gang that provably cannot be repaired is evicted whole; an open question is left for
the next cycle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from queuectl.domain.plan import Admission, Eviction
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Admitted, Pending
from queuectl.planner import explain, witness
from queuectl.planner.arena import Arena
from queuectl.planner.asking import demand_of
from queuectl.planner.decide import Decision, decide
from queuectl.planner.demand import ANYWHERE, Demand, Unit
from queuectl.planner.flavors import Flavors
from queuectl.planner.ledger import Kept, Ledger
from queuectl.planner.placing import placement_of
from queuectl.planner.solve import Solver, Status
from queuectl.planner.topology import Ints, Mask


@dataclass(frozen=True, slots=True)
class Repaired:
    """A gang whose lost pods found a place: ``kept`` holds those alone, ``staying`` the healthy ones by podset."""

    gang: Admitted
    kept: Kept
    staying: Mapping[str, Mapping[str, int]]

    def admission(self, arena: Arena) -> Admission:
        """The whole new placement."""
        placement = placement_of(arena, self.kept.demand, self.kept.spots, self.staying)
        return Admission(self.gang.workload.uid, placement, repaired=True)


def repair_order(gangs: Sequence[Admitted]) -> list[Admitted]:
    """In which order broken gangs are looked at."""
    return sorted(
        gangs,
        key=lambda g: (-g.workload.priority, g.started_at, g.workload.uid),
    )


def repair(
    arena: Arena, ledger: Ledger, gang: Admitted, solver: Solver
) -> Repaired | Eviction | None:
    """Place a gang's lost pods anew; None when the search ended open."""
    staying = _staying(gang)
    if not all(name in arena.index.position for row in staying.values() for name in row):
        return None  # the mirror has not said of all nodes yet what is lost
    demand = _demand(arena, gang, staying)
    decision = _near(arena, ledger, gang, demand, staying) or decide(ledger, demand, solver)
    if decision.status is Status.FOUND:
        for kept, spots in decision.moved:
            ledger.move(kept, spots)
        kept = Kept(demand, decision.spots)
        ledger.keep(kept)
        ledger.gone.add(gang.workload.uid)
        return Repaired(gang, kept, staying)
    if decision.status is not Status.REFUTED:
        return None
    why = explain.placement_failed(ledger, demand).reason.message
    lost = ", ".join(sorted({node for _, node, _ in gang.lost}))
    ledger.evict(gang)
    text = f"lost pods on {lost} and they cannot be placed anew: {why}"
    return Eviction(gang.workload.uid, Code.NODE_FAILURES, text)


def _staying(gang: Admitted) -> dict[str, dict[str, int]]:
    """Podset to node to healthy pods."""
    staying: dict[str, dict[str, int]] = {}
    for placed in gang.placement.podsets:
        row = staying.setdefault(placed.podset, {})
        for name, count in placed.nodes:
            row[name] = row.get(name, 0) + count
    for podset, name, count in gang.lost:
        row = staying.get(podset, {})
        row[name] = row.get(name, 0) - count
    return {p: {n: c for n, c in row.items() if c > 0} for p, row in staying.items()}


def _demand(arena: Arena, gang: Admitted, staying: Mapping[str, Mapping[str, int]]) -> Demand:
    """The lost pods alone, charged to nobody (their quota is), never on a node they were lost on."""
    workload = gang.workload
    lost = {p.name: 0 for p in workload.podsets}
    for podset, _, count in gang.lost:
        lost[podset] = lost.get(podset, 0) + count
    podsets = tuple(replace(p, count=lost[p.name]) for p in workload.podsets)
    pending = Pending(
        replace(workload, podsets=podsets), excluded=frozenset(node for _, node, _ in gang.lost)
    )
    placed = [gang.placement.of(p.name) for p in workload.podsets]
    flavors: Flavors = tuple(dict(p.flavors) if p is not None else {} for p in placed)
    free = demand_of(arena, pending, None, flavors)
    within = {
        pods.podset: mask
        for unit in free.units
        if (mask := _bounds(arena, gang, unit, unit.required, staying)) is not None
        for pods in unit.pods
    }
    return demand_of(arena, pending, None, flavors, within=within) if within else free


def _bounds(
    arena: Arena,
    gang: Admitted,
    unit: Unit,
    level: int,
    staying: Mapping[str, Mapping[str, int]],
) -> Mask | None:
    """Nodes of the domains that the unit's healthy pods hold at a level; None when there are no bounds."""
    nodes = np.array(sorted(_healthy(arena, gang, unit, staying)), dtype=np.int64)
    if level == ANYWHERE or not len(nodes):
        return None
    if level == unit.tree.depth:
        mask = np.zeros(arena.size, dtype=np.bool_)
        mask[nodes] = True
        return mask
    domain: Ints = unit.tree.domain[level]
    inside: Mask = np.isin(domain, np.unique(domain[nodes]))
    return inside


def _healthy(
    arena: Arena, gang: Admitted, unit: Unit, staying: Mapping[str, Mapping[str, int]]
) -> Iterator[int]:
    """Node indexes of the healthy pods of the unit's podsets, those of its group that lost nothing included."""
    podsets = gang.workload.podsets
    mine = {podsets[p.podset].name for p in unit.pods}
    groups = {podsets[p.podset].group for p in unit.pods} - {None}
    for podset in podsets:
        if podset.name in mine or podset.group in groups:
            for name in staying.get(podset.name, {}):
                yield arena.index.position[name]


def _near(
    arena: Arena,
    ledger: Ledger,
    gang: Admitted,
    demand: Demand,
    staying: Mapping[str, Mapping[str, int]],
) -> Decision | None:
    """A placement in the finest domains the healthy pods hold, widening level by level; None when there is none."""
    deepest = max((unit.tree.depth for unit in demand.units), default=0)
    for level in range(deepest - 1, ANYWHERE, -1):
        within = [
            _bounds(arena, gang, unit, min(level, unit.tree.depth - 1), staying)
            for unit in demand.units
        ]
        spots = witness.find(demand, ledger.free(), ledger.caps, within)
        if spots is not None:
            return Decision(Status.FOUND, spots)
    return None
