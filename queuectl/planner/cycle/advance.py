"""Reservations in advance at the beginning of a cycle: where each is kept, and the gangs that are evicted for it.

A Reservation that has not begun is placed like a gang that starts, of resources that only gangs alongside it use
(:mod:`queuectl.planner.problem.limit_rows`). It keeps the placement of the last plan while that is possible, and a later gang can
have it moved within its topology level. Two Reservations that last at one time are on different nodes, and none of them moves.
"""

from __future__ import annotations

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
)
from queuectl.domain.snapshot import Admitted, Pending
from queuectl.domain.words import counted, format_time, some
from queuectl.domain.workload import (
    Duration,
    Placement,
    PodSet,
    PodSetPlacement,
    PodShape,
    Workload,
)
from queuectl.planner.backfill.earliest_start import keeping_levels
from queuectl.planner.backfill.timeline import Timeline, first_fit
from queuectl.planner.capacity.node_counts import (
    NodeCounts,
    TentativeAdmission,
    add_at,
    fits,
    node_counts_of,
    placement_of,
    use_of_counts,
)
from queuectl.planner.capacity.state import CycleState
from queuectl.planner.placement.feasible import Feasibility, place
from queuectl.planner.preempt.candidates import by_priority
from queuectl.planner.preempt.protections import protected_until
from queuectl.planner.problem.fleet import Ints, Mask
from queuectl.planner.problem.limit_rows import (
    begun,
    reservation_of_row,
    rows_beside,
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
        """The placement of each Reservation of capacity, or the reason why it has none, also of one whose nodes do not exist."""
        known = dict(self.settled)
        for each, admission in self.placed:
            known[each.name] = _state(each, self._nodes(admission.request, admission.node_counts))
        snapshot = self.problem.snapshot
        return tuple(known[each.name] for each in snapshot.reservations if each.name in known)

    # Placement.

    def keep(self, each: Occurrence) -> None:
        """Keep the capacity of one Reservation. Nodes that it names are kept already, if they exist."""
        snapshot = self.problem.snapshot
        if each.reservation.capacity is None:
            gone = [n for n in each.reservation.nodes if n not in snapshot.fleet.by_name]
            if gone:
                does = "node {} does" if len(gone) == 1 else "nodes {} do"
                reason = f"{does.format(some(gone))} not exist"
                self.settled[each.name] = _state(each, reason=reason)
            return
        if begun(each, snapshot):
            self.settled[each.name] = _state(each, each.placed)
            return
        if not self.problem.size:
            self.settled[each.name] = _state(each, reason="the cluster has no nodes")
            return
        request = self._request(each)
        placement = Placement((PodSetPlacement(_PODS, each.placed),))
        last = node_counts_of(self.problem, request, placement) if each.placed else None
        decision = self._decide(request, self.state.free(), last)
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
        elif not (each.reservation.evicts and self._over_running(each, request, last)):
            self.settled[each.name] = self._nowhere(each, request, decision.status)

    def _decide(self, request: GangRequest, free: Ints, before: NodeCounts | None) -> Feasibility:
        """The placement that it has, or else another one."""
        if before is not None and fits(free, request.pods, before):
            return Feasibility(Status.SOLVED, before)
        return place(request, free, self.solver)

    def _over_running(
        self, each: Occurrence, request: GangRequest, last: NodeCounts | None
    ) -> bool:
        """Keep capacity that gangs use which are evicted when the Reservation starts; whether there is enough.

        All of them would be enough; then each stays, the last to leave first, without which the rest still is. Before evictions are due, the
        last placement is kept instead, because the gangs there can end. No gang leaves a node on which one alongside the Reservation has a
        lease: that one could not start there, and its victims would leave for nothing.
        """
        rows = self._rows(each)
        leased = np.zeros(self.problem.size, dtype=np.bool_)
        for held in self.state.held.values():
            for nodes, amounts in use_of_counts(held.request.pods, held.node_counts):
                leased[nodes] |= amounts[rows].any(axis=0)
        free = np.where(leased, self.state.free(), self.state.later.free)
        freed = []
        for gang in self._victims(~leased):
            nodes, amounts = self.problem.use_of(gang)
            freed.append((nodes, np.where(leased[nodes], 0, amounts)))
            add_at(free, *freed[-1])
        decision = self._decide(request, free, last)
        if decision.status is not Status.SOLVED:
            return False
        stays = decision.node_counts is last and not self._evicts(each)
        for nodes, amounts in () if stays else reversed(freed):
            add_at(free, nodes, -amounts)
            fewer = self._decide(request, free, decision.node_counts)
            if fewer.status is Status.SOLVED:
                decision = fewer
            else:
                add_at(free, nodes, amounts)
        for nodes, amounts in use_of_counts(request.pods, decision.node_counts):
            self.state.withhold(nodes, amounts)
        self.settled[each.name] = _state(each, self._nodes(request, decision.node_counts))
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
        """The first time after its start at which it fits. Free capacity only grows, so it also fits later."""
        timeline = Timeline(self.state)
        times = [at for at in timeline.times() if at > each.begins]

        def fits_at(at: float) -> float | None:
            found = place(request, timeline.free(at), self.solver)
            return at if found.status is Status.SOLVED else None

        if not times or fits_at(times[-1]) is None:  # the usual case
            return None
        return first_fit(times, fits_at)

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

    def evict(self) -> None:
        """Evict the gangs that hold what is kept for Reservations that start now; none without which all of it is free."""
        index, free = self.problem.index, self.state.later.free.copy()
        kept_rows = np.zeros(free.shape, dtype=np.bool_)
        starting = {
            each.name: each for each in self.problem.snapshot.reservations if self._evicts(each)
        }
        for each in starting.values():
            state = self.settled.get(each.name)
            names = each.reservation.nodes or dict(state.nodes if state is not None else ())
            at = [index.position[name] for name in names if name in index.position]
            kept_rows[np.ix_(self._rows(each), np.array(at, dtype=np.int64))] = True
        held = []
        for gang in self._victims(np.logical_or.reduce(kept_rows)):
            nodes, amounts = self.problem.use_of(gang)
            held.append((gang, nodes, np.where(kept_rows[:, nodes], amounts, 0)))
            add_at(free, *held[-1][1:])
        for gang, nodes, amounts in reversed(held):
            add_at(free, nodes, -amounts)
            short = np.argwhere((amounts > 0) & (free[:, nodes] < 0))
            if len(short):
                add_at(free, nodes, amounts)
                self.state.evict(gang)
                each = starting[reservation_of_row(index.resources[short[0, 0]]) or ""]
                keeps = f"keeps node {index.nodes[nodes[short[0, 1]]].name} until {format_time(each.ends)}"
                text = f"evicted for Reservation {each.name}, which {keeps}"
                self.evicted.append(Eviction(gang.workload.uid, Code.RESERVATION_STARTS, text))

    def _evicts(self, each: Occurrence) -> bool:
        """Whether gangs are evicted for it now."""
        snapshot = self.problem.snapshot
        notice = snapshot.config.rules.eviction_grace
        return each.reservation.evicts and snapshot.now >= each.begins - notice

    def _victims(self, on: Mask) -> list[Admitted]:
        """Gangs that can be evicted and that run on some of these nodes, the first to leave first: protected ones are last."""
        snapshot = self.problem.snapshot

        def order(gang: Admitted) -> tuple[bool, tuple[int, float, str]]:
            queue = snapshot.queue_of(gang.workload)
            until = protected_until(gang, queue, snapshot.now) if queue is not None else None
            return until is not None, by_priority(gang)

        gangs = (each for each in self.state.evictable() if each.evictable and not each.lost)
        here = (gang for gang in gangs if on[self.problem.use_of(gang)[0]].any())
        return sorted(here, key=order)

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
    advance.evict()
    return advance


def _state(
    each: Occurrence, nodes: tuple[tuple[str, int], ...] = (), reason: str = ""
) -> ReservationState:
    return ReservationState(each.name, each.begins, each.ends, nodes, reason)
