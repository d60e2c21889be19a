"""Gangs that lost nodes: exactly the lost pods are placed anew, beside the healthy ones that stay.

Where no level is required they stay near the healthy ones if they can. If there is no room now, but there will be once
those leaving have left, or once victims have left whom the queue's policy allows, the gang waits: its healthy pods stay, and
the room is held for it as by a lease. Nothing of this is stored. A broken gang is looked at in every cycle before anybody
who starts, and takes the first of: room that is free now; room that leaving gangs make; room that new victims make. So the
room its victims free is its own until it moves there, and a restart of the controller changes nothing.

A gang that provably cannot be repaired is evicted whole; an open question is left for the next cycle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from queuectl.domain.plan import Admission, Eviction, Preemption, Proof, Refusal
from queuectl.domain.queues import ClusterQueue
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Admitted, CapacityLease
from queuectl.domain.workload import Placement
from queuectl.planner import explain, owed
from queuectl.planner.arena import Arena
from queuectl.planner.decide import Decision, decide, place
from queuectl.planner.demand import ANYWHERE, Demand
from queuectl.planner.leases import lease_end
from queuectl.planner.ledger import Ledger
from queuectl.planner.mending.pieces import Broken
from queuectl.planner.packing import witness
from queuectl.planner.placing import placement_of
from queuectl.planner.solve import Solver, Status
from queuectl.planner.spots import Kept, Spots
from queuectl.planner.victims.find import Victims, find_victims

_BUDGETS: Final = (0, 2)  # a running gang has no count of open answers to raise the limit by


@dataclass(frozen=True, slots=True)
class Repaired:
    """A gang whose lost pods found a place: ``kept`` holds those alone."""

    broken: Broken
    kept: Kept

    @property
    def gang(self) -> Admitted:
        return self.broken.gang

    def apply(self, ledger: Ledger) -> None:
        """Take the room for its lost pods."""
        ledger.keep(self.kept)
        ledger.gone.add(self.gang.workload.uid)

    def undo(self, ledger: Ledger) -> None:
        """Give the room back."""
        ledger.drop(self.kept)
        ledger.gone.discard(self.gang.workload.uid)

    def admission(self, arena: Arena) -> Admission:
        """The whole new placement."""
        placement = _whole(arena, self.broken, self.kept.demand, self.kept.spots)
        return Admission(self.broken.gang.workload.uid, placement, repaired=True)


@dataclass(frozen=True, slots=True)
class Awaiting:
    """A gang whose lost pods will have a place once ``victims``, or those leaving already, have left."""

    placement: Placement
    gang: Admitted
    victims: tuple[Preemption, ...]
    proof: Proof
    kept: Kept
    awaited: tuple[str, ...]  # uids of all whose leaving it waits for

    def apply(self, ledger: Ledger) -> None:
        """Count its victims as leaving, and hold the room that there will be."""
        for victim in self._leaving(ledger):
            ledger.evict(victim)
        owed.lease(ledger, self.kept.demand, self.kept.spots, self.awaited)
        ledger.gone.add(self.gang.workload.uid)

    def undo(self, ledger: Ledger) -> None:
        """Let its victims stay, and the room go."""
        owed.release(ledger, self.kept.demand, self.kept.spots)
        for victim in self._leaving(ledger):
            ledger.spare(victim)
        ledger.gone.discard(self.gang.workload.uid)

    def _leaving(self, ledger: Ledger) -> list[Admitted]:
        leaving = {p.victim for p in self.victims}
        return [g for g in ledger.arena.snapshot.admitted if g.workload.uid in leaving]

    def refusal(self, arena: Arena) -> Refusal:
        """It stands among those that wait, with the whole placement it will have."""
        snapshot = arena.snapshot
        until = lease_end(snapshot)
        lease = CapacityLease(self.placement, self.awaited, snapshot.now, until)
        waits = explain.waits_for_victims(self.awaited)
        text = f"{_lost(self.gang)}; the rest of it stays and {waits.message}"
        reason = Reason(waits.code, text, waits.details)
        return Refusal(self.gang.workload.uid, (reason,), lease, self.proof)


def repair_order(gangs: Sequence[Admitted]) -> list[Admitted]:
    """In which order broken gangs are looked at."""
    return sorted(
        gangs,
        key=lambda g: (-g.workload.priority, g.started_at, g.workload.uid),
    )


def repair(
    arena: Arena, ledger: Ledger, gang: Admitted, solver: Solver
) -> Repaired | Awaiting | Eviction | None:
    """Place a gang's lost pods anew, now or later; None when the search ended open."""
    broken = Broken(arena, gang)
    if not broken.known:
        return None
    demand = broken.demand()
    decision = _near(ledger, broken, demand) or _decided(ledger, demand, solver)
    if decision.status is Status.FOUND:
        return _placed(ledger, broken, demand, decision)
    if decision.status is not Status.REFUTED:
        return None
    room = _later(ledger, broken, demand, solver)
    if room is None:
        return _give_up(ledger, gang, explain.placement_failed(ledger, demand).reason.message)
    if room.proof is Proof.UNDECIDED:
        return None
    return _wait(arena, ledger, broken, demand, room)


def _decided(ledger: Ledger, demand: Demand, solver: Solver) -> Decision:
    """Now, beside everything kept so far; asked again with a larger limit before it is left open."""
    decision = Decision(Status.UNKNOWN)
    for budget in _BUDGETS:
        decision = decide(ledger, _with(demand, budget), solver)
        if decision.status is not Status.UNKNOWN:
            break
    return decision


def _with(demand: Demand, budget: int) -> Demand:
    return replace(demand, pending=replace(demand.pending, budget=budget))


def _placed(ledger: Ledger, broken: Broken, demand: Demand, decision: Decision) -> Repaired:
    for kept, spots in decision.moved:
        ledger.move(kept, spots)
    repaired = Repaired(broken, Kept(demand, decision.spots))
    repaired.apply(ledger)
    return repaired


def _later(ledger: Ledger, broken: Broken, demand: Demand, solver: Solver) -> Victims | None:
    """Room once those leaving have left, else once the least victims have; None = proved that there is none."""
    queue = _queue(ledger.arena, broken.gang)
    if queue is None:
        return _left(place(demand, ledger.later_free(), solver))
    room = None
    for budget in _BUDGETS:
        room = find_victims(ledger, _with(demand, budget), queue, solver)
        if room is None or room.proof is not Proof.UNDECIDED:
            break
    return room


def _left(decision: Decision) -> Victims | None:
    """Room that those leaving make for a gang without queue, which may evict nobody."""
    if decision.status is Status.REFUTED:
        return None
    found = decision.status is Status.FOUND
    return Victims((), decision.spots, Proof.OPTIMAL if found else Proof.UNDECIDED)


def _queue(arena: Arena, gang: Admitted) -> ClusterQueue | None:
    workload = gang.workload
    return arena.snapshot.config.cluster_queue_of(workload.namespace, workload.queue)


def _wait(arena: Arena, ledger: Ledger, broken: Broken, demand: Demand, room: Victims) -> Awaiting:
    placement = _whole(arena, broken, demand, room.spots)
    kept = Kept(demand, room.spots)
    leaving = {p.victim for p in room.victims}
    victims = [g for g in arena.snapshot.admitted if g.workload.uid in leaving]
    awaited = owed.awaited(ledger, demand, room.spots, victims)
    awaiting = Awaiting(placement, broken.gang, room.victims, room.proof, kept, awaited)
    awaiting.apply(ledger)
    return awaiting


def _whole(arena: Arena, broken: Broken, demand: Demand, spots: Spots) -> Placement:
    return placement_of(arena, demand, spots, broken.staying, broken.gang.placement)


def _give_up(ledger: Ledger, gang: Admitted, why: str) -> Eviction:
    ledger.evict(gang)
    text = f"{_lost(gang)} and they cannot be placed anew: {why}"
    return Eviction(gang.workload.uid, Code.NODE_FAILURES, text)


def _lost(gang: Admitted) -> str:
    return f"lost pods on {', '.join(sorted({node for _, node, _ in gang.lost}))}"


def _near(ledger: Ledger, broken: Broken, demand: Demand) -> Decision | None:
    """A placement on the healthy pods' own nodes, or in the finest domains they hold, widening level by level.

    Each time on as few nodes as can be that no healthy pod of the gang is on. None when there is none.
    """
    deepest = max((unit.tree.depth for unit in demand.units), default=0)
    near = broken.healthy_nodes
    for level in range(deepest, ANYWHERE - 1, -1):
        within = [broken.bounds(unit, min(level, unit.tree.depth)) for unit in demand.units]
        spots = witness.find_beside(demand, ledger.free(), ledger.caps, within, near)
        if spots is not None:
            return Decision(Status.FOUND, spots)
    return None
