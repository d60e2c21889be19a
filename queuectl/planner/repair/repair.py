"""Gangs that lost nodes: exactly the lost pods are placed again, beside the healthy ones that stay.

Where no level is required they stay near the healthy ones if they can. If there is no room now, but there will be once
those leaving have left, or once victims have left that the queue's policy allows, the gang waits: its healthy pods stay, and
the room is held for it as by a lease. Nothing of this is stored. A broken gang is considered in every cycle before any gang
that starts, and takes the first of: room that is free now; room that leaving gangs make; room that new victims make. So the
room its victims free is its own until it moves there, and a restart of the controller changes nothing.

A gang that provably cannot be repaired is evicted whole; an open question is left for the next cycle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from queuectl.domain.plan import Admission, Eviction, Preemption, Proof, Refusal
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Admitted, CapacityLease
from queuectl.domain.workload import Placement
from queuectl.planner.capacity import reservations
from queuectl.planner.capacity.node_counts import NodeCounts, TentativeAdmission
from queuectl.planner.capacity.placements import placement_of
from queuectl.planner.capacity.reservations import lease_end, waits_for_victims
from queuectl.planner.capacity.state import CycleState, Undo
from queuectl.planner.placement import several
from queuectl.planner.placement.feasible import Feasibility, decide, place
from queuectl.planner.preempt.find import Victims, find_victims
from queuectl.planner.problem.problem import Problem
from queuectl.planner.problem.request import ANYWHERE, GangRequest
from queuectl.planner.reasons import refusals
from queuectl.planner.repair.lost_pods import Broken
from queuectl.planner.solver.solver import Solver, Status

_BUDGETS: Final = (0, 2)  # a running gang has no count of open answers to raise the limit by


@dataclass(frozen=True, slots=True)
class Repaired:
    """A gang whose lost pods found a place: ``replacement`` holds those alone."""

    broken: Broken
    replacement: TentativeAdmission

    @property
    def gang(self) -> Admitted:
        return self.broken.gang

    @property
    def evicts(self) -> frozenset[str]:
        """Uids of the gangs that are evicted for it."""
        return frozenset()

    def changes(self, state: CycleState) -> Iterator[Undo]:
        """Take the room for its lost pods."""
        yield state.admit(self.replacement)
        yield state.repair(self.gang)

    def admission(self, problem: Problem) -> Admission:
        """The whole new placement."""
        placement = _whole(
            problem, self.broken, self.replacement.request, self.replacement.node_counts
        )
        return Admission(self.broken.gang.workload.uid, placement, repaired=True)


@dataclass(frozen=True, slots=True)
class AwaitingRepair:
    """A gang whose lost pods will have a place once ``victims``, or those leaving already, have left."""

    placement: Placement
    gang: Admitted
    victims: tuple[Preemption, ...]
    proof: Proof
    replacement: TentativeAdmission
    awaited: tuple[str, ...]  # uids of all whose leaving it waits for

    @property
    def evicts(self) -> frozenset[str]:
        """Uids of the gangs that are evicted for it."""
        return frozenset(p.victim for p in self.victims)

    def changes(self, state: CycleState) -> Iterator[Undo]:
        """Count its victims as leaving, and hold the room that there will be."""
        yield from map(state.evict, state.problem.snapshot.admitted_of(self.evicts))
        request, node_counts = self.replacement.request, self.replacement.node_counts
        yield reservations.reserve(state, request, node_counts, self.awaited)
        yield state.repair(self.gang)

    def refusal(self, problem: Problem) -> Refusal:
        """It is among the gangs that wait, with the whole placement that it will have."""
        snapshot = problem.snapshot
        until = lease_end(snapshot)
        lease = CapacityLease(self.placement, self.awaited, snapshot.now, until)
        waits = waits_for_victims(self.awaited)
        text = f"{_lost(self.gang)} are lost, its other pods keep running; {waits.message}"
        reason = Reason(waits.code, text, waits.details)
        return Refusal(self.gang.workload.uid, (reason,), lease, self.proof)


def repair_order(gangs: Sequence[Admitted]) -> list[Admitted]:
    """In which order broken gangs are considered."""
    return sorted(
        gangs,
        key=lambda g: (-g.workload.priority, g.started_at, g.workload.uid),
    )


def repair(
    problem: Problem, state: CycleState, gang: Admitted, solver: Solver
) -> Repaired | AwaitingRepair | Eviction | None:
    """Where a gang's lost pods go, now or later; None when the search ended open. Only an eviction changes the state."""
    broken = Broken(problem, gang)
    if not broken.known:
        return None
    request = broken.request()
    decision = _near(state, broken, request) or _decided(state, request, solver)
    if decision.status is Status.FOUND:
        return _placed(state, broken, request, decision)
    if decision.status is not Status.REFUTED:
        return None
    room = _later(state, broken, request, solver)
    if room is None:
        return _give_up(state, gang, refusals.placement_failed(state, request).message)
    if room.proof is Proof.UNDECIDED:
        return None
    return _wait(problem, state, broken, request, room)


def _decided(state: CycleState, request: GangRequest, solver: Solver) -> Feasibility:
    """Now, beside all that starts so far; asked again with a larger limit before it is left open."""
    decision = Feasibility(Status.UNKNOWN)
    for budget in _BUDGETS:
        decision = decide(state, _with(request, budget), solver)
        if decision.status is not Status.UNKNOWN:
            break
    return decision


def _with(request: GangRequest, budget: int) -> GangRequest:
    return replace(request, pending=replace(request.pending, budget=budget))


def _placed(
    state: CycleState, broken: Broken, request: GangRequest, decision: Feasibility
) -> Repaired:
    for admission, node_counts in decision.moved:
        state.move(admission, node_counts)
    return Repaired(broken, TentativeAdmission(request, decision.node_counts))


def _later(
    state: CycleState, broken: Broken, request: GangRequest, solver: Solver
) -> Victims | None:
    """Room once those leaving have left, else once the least victims have; None = proved that there is none."""
    queue = state.problem.snapshot.queue_of(broken.gang.workload)
    if queue is None:
        return _left(place(request, state.later.free, solver))
    room = None
    for budget in _BUDGETS:
        room = find_victims(state, _with(request, budget), queue, solver)
        if room is None or room.proof is not Proof.UNDECIDED:
            break
    return room


def _left(decision: Feasibility) -> Victims | None:
    """Room that those leaving make for a gang without a queue, which may evict no other."""
    if decision.status is Status.REFUTED:
        return None
    found = decision.status is Status.FOUND
    return Victims((), decision.node_counts, Proof.OPTIMAL if found else Proof.UNDECIDED)


def _wait(
    problem: Problem, state: CycleState, broken: Broken, request: GangRequest, room: Victims
) -> AwaitingRepair:
    placement = _whole(problem, broken, request, room.node_counts)
    admission = TentativeAdmission(request, room.node_counts)
    victims = problem.snapshot.admitted_of({p.victim for p in room.victims})
    awaited = reservations.awaited(state, request, room.node_counts, victims)
    return AwaitingRepair(placement, broken.gang, room.victims, room.proof, admission, awaited)


def _whole(
    problem: Problem, broken: Broken, request: GangRequest, node_counts: NodeCounts
) -> Placement:
    return placement_of(problem, request, node_counts, broken.staying, broken.gang.placement)


def _give_up(state: CycleState, gang: Admitted, why: str) -> Eviction:
    state.evict(gang)
    text = f"{_lost(gang)} are lost and cannot be placed again: {why}"
    return Eviction(gang.workload.uid, Code.NODE_FAILURES, text)


def _lost(gang: Admitted) -> str:
    return f"its pods on {', '.join(sorted({node for _, node, _ in gang.lost}))}"


def _near(state: CycleState, broken: Broken, request: GangRequest) -> Feasibility | None:
    """A placement on the healthy pods' own nodes, or in the finest domains they hold, widening level by level.

    Each time on as few nodes as can be that no healthy pod of the gang is on. None when there is none.
    """
    deepest = max((podset_group.tree.depth for podset_group in request.podset_groups), default=0)
    near = broken.healthy_nodes
    for level in range(deepest, ANYWHERE - 1, -1):
        within = [
            broken.bounds(podset_group, min(level, podset_group.tree.depth))
            for podset_group in request.podset_groups
        ]
        node_counts = several.find_near(request, state.free(), state.caps, within, near)
        if node_counts is not None:
            return Feasibility(Status.FOUND, node_counts)
    return None
