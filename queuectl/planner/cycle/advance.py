"""Reservations in advance at the beginning of a cycle: where each is kept, and the gangs that are evicted for it.

A Reservation that has not begun is placed like a gang that starts, of resources that only gangs alongside it use
(:mod:`queuectl.planner.problem.limit_rows`). It keeps the placement of the last plan while that is possible, and a later gang can
have it moved within its topology level. Two Reservations that last at one time are on different nodes, and none of them moves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from queuectl.domain.fleet import NodeRules
from queuectl.domain.plan import Eviction
from queuectl.domain.reasons import Code
from queuectl.domain.reservations import (
    REQUESTS,
    Occurrence,
    ReservationState,
    ReservedCapacity,
    no_amount,
    with_placement,
)
from queuectl.domain.snapshot import Admitted, Pending
from queuectl.domain.words import counted, format_time
from queuectl.domain.workload import (
    Duration,
    Placement,
    PodSet,
    PodSetPlacement,
    PodShape,
    Workload,
)
from queuectl.planner.backfill.earliest_start import keeping_levels
from queuectl.planner.backfill.timeline import Timeline
from queuectl.planner.capacity.node_counts import (
    NodeCounts,
    TentativeAdmission,
    fits,
    node_counts_of,
    placement_of,
    use_of_counts,
)
from queuectl.planner.capacity.state import CycleState
from queuectl.planner.placement.feasible import Feasibility, place
from queuectl.planner.preempt.candidates import by_priority
from queuectl.planner.problem.fleet import Ints, Mask
from queuectl.planner.problem.limit_rows import (
    beside,
    end_of,
    fixed,
    reservation_of_row,
    rows_beside,
    stays,
)
from queuectl.planner.problem.problem import Problem, caps
from queuectl.planner.problem.request import GangRequest, request_of
from queuectl.planner.solver import Solver, Status

_PODS: Final = "pods"  # the name of the only podset


@dataclass(eq=False)
class Advance:
    """The Reservations of one cycle.

    Attributes:
        placed: those that are placed like gangs.
        settled: by name, what is known of the others.
        evicted: the gangs that are evicted for them.
    """

    problem: Problem
    state: CycleState
    solver: Solver
    placed: list[tuple[Occurrence, TentativeAdmission]] = field(default_factory=list)
    settled: dict[str, ReservationState] = field(default_factory=dict)
    evicted: list[Eviction] = field(default_factory=list)

    def states(self) -> tuple[ReservationState, ...]:
        """The placement of each Reservation of capacity, or the reason why it has none."""
        known = dict(self.settled)
        for each, admission in self.placed:
            known[each.name] = _state(each, self._nodes(admission.request, admission.node_counts))
        snapshot = self.problem.snapshot
        return tuple(known[each.name] for each in snapshot.reservations if each.name in known)

    # Placement.

    def keep(self, each: Occurrence) -> None:
        """Keep the capacity of one Reservation."""
        snapshot = self.problem.snapshot
        if each.reservation.capacity is None:
            return
        if stays(each, snapshot):
            self.settled[each.name] = _state(each, each.placed)
            return
        if not self.problem.size:
            self.settled[each.name] = _state(each, reason="the cluster has no nodes")
            return
        request = self._request(each)
        decision = self._decide(each, request)
        if decision.status is Status.SOLVED:
            together = any(
                other.overlaps(each) for other in snapshot.reservations if other.name != each.name
            )
            held = TentativeAdmission(
                keeping_levels(request, decision.node_counts),
                decision.node_counts,
                fixed=together or each.active(snapshot.now),
            )
            self.state.admit(held)
            self.placed.append((each, held))
        elif not (each.reservation.evicts and self._over_running(each, request)):
            self.settled[each.name] = self._nowhere(each, request, decision.status)

    def _decide(self, each: Occurrence, request: GangRequest) -> Feasibility:
        """The placement of the last plan, or else another one."""
        last = Placement((PodSetPlacement(_PODS, each.placed),))
        before = node_counts_of(self.problem, request, last) if each.placed else None
        if before is not None and fits(self.state.free(), request.pods, before):
            return Feasibility(Status.SOLVED, before)
        return place(request, self.state.free(), self.solver)

    def _over_running(self, each: Occurrence, request: GangRequest) -> bool:
        """Keep capacity that gangs use which are evicted when the Reservation starts; whether there is enough.

        Not on nodes on which a gang alongside it has a lease: it could not start there, and its victims would leave for nothing.
        """
        free, rows = self.state.free().copy(), self._rows(each)
        leased = np.zeros(self.problem.size, dtype=np.bool_)
        for held in self.state.held.values():
            for nodes, amounts in use_of_counts(held.request.pods, held.node_counts):
                leased[nodes] |= amounts[rows].any(axis=0)
        for gang in self._running_beside(each):
            nodes, amounts = self.problem.use_of(gang)
            amounts = np.where(leased[nodes], 0, amounts[rows])
            np.add.at(free, np.ix_(rows, nodes), amounts)
        made = place(request, free, self.solver)
        if made.status is not Status.SOLVED:
            return False
        for nodes, amounts in use_of_counts(request.pods, made.node_counts):
            self.state.withhold(nodes, amounts)
        self.settled[each.name] = _state(each, self._nodes(request, made.node_counts))
        return True

    def _nowhere(self, each: Occurrence, request: GangRequest, status: Status) -> ReservationState:
        """Why it has no placement now, and the first later time with one."""
        if status is not Status.REFUTED:
            return _state(each, reason="the solver reached its limit; the next plan tries again")
        pods = request.pods[0]
        holds = int(caps(self.state.free(), pods.shape).sum()) * pods.size
        capacity = each.reservation.capacity
        assert capacity is not None
        if (
            place(request, self.problem.index.recovered.allocatable, self.solver).status
            is Status.REFUTED
        ):
            return _state(each, reason=self._never(each, capacity))
        among = "alongside the gangs that still run then, or whose end is unknown"
        if holds < capacity.pods:
            text = f"at most {holds} of {counted(capacity.pods, 'pod')} fit {among}"
        else:
            text = f"{counted(capacity.pods, 'pod')} fit in no domain of the topology {among}"
        return replace(_state(each, reason=text), earliest=self._earliest(each, request))

    def _never(self, each: Occurrence, capacity: ReservedCapacity) -> str:
        """Why it has no placement on empty nodes."""
        index = self.problem.index.recovered
        for name in sorted(capacity.requests):
            if name not in index.column or not index.allocatable[index.column[name]].any():
                return f"{REQUESTS}: {no_amount(name)}"
        others = ", because of Reservations at the same time" if self._elsewhere(each).any() else ""
        return f"no placement exists, even if all nodes were empty{others}"

    def _earliest(self, each: Occurrence, request: GangRequest) -> float | None:
        timeline = Timeline(self.state)
        for at in timeline.times():
            if at > each.begins:
                found = place(request, timeline.free(at), self.solver)
                if found.status is Status.SOLVED:
                    return at
        return None

    def _request(self, each: Occurrence) -> GangRequest:
        """Its request of the nodes."""
        capacity = each.reservation.capacity
        assert capacity is not None
        config = self.problem.snapshot.config
        flavor = config.flavors.get(capacity.flavor or "")
        labels, tolerations = set(capacity.node_labels), flavor.tolerations if flavor else ()
        labels |= set(flavor.node_labels) if flavor is not None else set()
        rules = NodeRules(tuple(sorted(labels)), None, tolerations)
        row = rows_beside(capacity.requests, (each,))
        workload = Workload(
            uid=f"Reservation/{each.name}",
            kind="Reservation",
            namespace="Reservation",
            name=each.name,
            podsets=(PodSet(_PODS, capacity.pods, PodShape(row, rules), capacity.topology),),
            duration=Duration(each.ends - self.problem.snapshot.now, enforced=True),
        )
        placed = flavor is not None and flavor.topology is not None
        flavors = dict.fromkeys(row, flavor.name) if flavor is not None and placed else {}
        within = {0: ~self._elsewhere(each)}
        return request_of(self.problem, Pending(workload), None, (flavors,), within=within)

    def _elsewhere(self, each: Occurrence) -> Mask:
        """The nodes of other Reservations that last at the same time."""
        index = self.problem.index
        occupied = np.zeros(index.size, dtype=np.bool_)
        for other in self.problem.snapshot.reservations:
            if other.name == each.name or not other.overlaps(each):
                continue
            state = self.settled.get(other.name)
            names = [*other.reservation.nodes, *(name for name, _ in other.placed)]
            names += [name for name, _ in state.nodes] if state is not None else []
            occupied[[index.position[name] for name in names if name in index.position]] = True
        for other, admission in self.placed:
            if other.overlaps(each):
                for nodes, _ in admission.node_counts:
                    occupied[nodes] = True
        return occupied

    def _nodes(self, request: GangRequest, counts: NodeCounts) -> tuple[tuple[str, int], ...]:
        placed = placement_of(self.problem, request, counts).of(_PODS)
        return tuple(placed.nodes) if placed is not None else ()

    # Evictions.

    def evict(self, each: Occurrence) -> None:
        """Evict the gangs that hold what is kept for a Reservation that starts now."""
        snapshot = self.problem.snapshot
        notice = snapshot.config.rules.eviction_grace
        if not each.reservation.evicts or snapshot.now < each.begins - notice:
            return
        state = self.settled.get(each.name)
        kept = with_placement(each, state.nodes) if state is not None else each
        rows = self._rows(each)
        for name, _ in fixed(kept, snapshot) or kept.held_amounts():
            at = self.problem.index.position.get(name)
            if at is not None:
                self._evict_from(each, name, at, rows)

    def _evict_from(self, each: Occurrence, name: str, at: int, rows: Ints) -> None:
        running = self._running_beside(each)
        gangs = (gang for gang in running if at in self.problem.use_of(gang)[0])
        for gang in sorted(gangs, key=by_priority):
            if (self.state.later.free[rows, at] >= 0).all():
                return
            self.state.evict(gang)
            until = format_time(each.ends)
            text = f"evicted for Reservation {each.name}, which keeps node {name} until {until}"
            self.evicted.append(Eviction(gang.workload.uid, Code.RESERVATION_STARTS, text))

    def _running_beside(self, each: Occurrence) -> Iterator[Admitted]:
        """Gangs that run, that can be evicted, and that the Reservation does not admit."""
        snapshot = self.problem.snapshot
        for gang in self.state.evictable():
            if not gang.evictable or gang.lost:
                continue
            if each in beside(snapshot, gang.workload, end_of(snapshot, gang)):
                yield gang

    def _rows(self, each: Occurrence) -> Ints:
        index = self.problem.index
        found = [
            i for i, name in enumerate(index.resources) if reservation_of_row(name) == each.name
        ]
        return np.array(found, dtype=np.int64)


def reserve_in_advance(problem: Problem, state: CycleState, solver: Solver) -> Advance:
    """Keep the capacity of all Reservations of the snapshot, and evict gangs for those that start."""
    advance = Advance(problem, state, solver)
    for each in problem.snapshot.reservations:
        advance.keep(each)
    for each in problem.snapshot.reservations:
        advance.evict(each)
    return advance


def _state(
    each: Occurrence, nodes: tuple[tuple[str, int], ...] = (), reason: str = ""
) -> ReservationState:
    return ReservationState(each.name, each.begins, each.ends, nodes, reason)
