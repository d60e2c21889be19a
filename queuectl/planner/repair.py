"""Gangs that lost nodes: exactly the lost pods are placed again, alongside the healthy ones that stay.

Where no level is required they stay near the healthy ones if they can. If no room exists now, but will once
those leaving have left, or once victims have left that the queue's policy allows, the gang waits: its healthy pods stay, and
the room is held for it as by a lease. Nothing of this is stored. A broken gang is considered in every cycle before any gang
that starts, and takes the first of: room that is free now; room that leaving gangs make; room that new victims make. So the
room its victims free is its own until it moves there, and a restart of the controller changes nothing.

A gang that provably cannot be repaired is evicted whole; an open question is left for the next cycle.

A lost pod is placed in the domain that the healthy pods of its podset group hold at the required level. With slices, the
pods that a slice lost go into the domain its healthy pods are in, so that every domain again holds whole slices; slices
that lost every pod go wherever the coarser layers let them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from queuectl.domain.plan import Admission, Eviction, Preemption, Proof, Refusal
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Admitted, CapacityLease, Pending, nodes_of_added
from queuectl.domain.workload import Placement, PodSet, Slice, TopologyRequest
from queuectl.planner.capacity import reservations
from queuectl.planner.capacity.node_counts import NodeCounts, TentativeAdmission, placement_of
from queuectl.planner.capacity.reservations import lease_end, waits_for_victims
from queuectl.planner.capacity.state import CycleState, Undo
from queuectl.planner.placement import greedy
from queuectl.planner.placement.feasible import Feasibility, decide, place
from queuectl.planner.placement.greedy import both
from queuectl.planner.preempt.find import Victims, find_victims
from queuectl.planner.problem.flavors import flavors_of
from queuectl.planner.problem.fleet import Ints, Mask, Tree
from queuectl.planner.problem.problem import Problem
from queuectl.planner.problem.request import (
    ANYWHERE,
    GangRequest,
    PodSetGroup,
    SplitGang,
    cut_running,
    request_of,
)
from queuectl.planner.reasons import refusals
from queuectl.planner.solver import Solver, Status

# ---- The request for the lost pods


@dataclass(eq=False)
class Broken:
    """A gang that lost slots.

    Attributes:
        gang: in parts where podsets of it are split: each lost pod keeps the flavor of its share.
        cut: how the gang was cut into these parts, None where it was not.
        staying: podset to node to healthy pods.
        lost: the same of the lost ones.
        added: podset to the nodes of the healthy pods that were added to the gang.
    """

    problem: Problem
    gang: Admitted
    staying: dict[str, dict[str, int]] = field(default_factory=dict)
    lost: dict[str, dict[str, int]] = field(default_factory=dict)
    added: dict[str, list[str]] = field(init=False)
    cut: SplitGang | None = field(init=False)

    def __post_init__(self) -> None:
        self.gang, self.cut = cut_running(self.gang, self.problem.snapshot.config)
        for name, node, count in self.gang.lost:
            row = self.lost.setdefault(name, {})
            row[node] = row.get(node, 0) + count
        for placed in self.gang.placement.podsets:
            row = self.staying.setdefault(placed.podset, {})
            for node, count in placed.nodes:
                row[node] = row.get(node, 0) + count
            for node, count in self.lost.get(placed.podset, {}).items():
                row[node] = row.get(node, 0) - count
            self.staying[placed.podset] = {n: c for n, c in row.items() if c > 0}
        self.added = nodes_of_added(self.problem.added_pods.get(self.gang.workload.uid, ()))

    @property
    def on_known_nodes(self) -> bool:
        """Whether every node of a healthy pod is known; if not, the mirror has not reported all lost nodes yet."""
        return all(
            node in self.problem.index.position
            for row in (*self.staying.values(), *self.added.values())
            for node in row
        )

    @property
    def healthy_nodes(self) -> Mask:
        """Nodes that hold healthy pods of the gang."""
        position = self.problem.index.position
        return self.problem.mask_of([position[n] for row in self.staying.values() for n in row])

    def request(self) -> GangRequest:
        """The lost pods alone, charged nothing (their quota still is), never on a node they were lost on or that the gang avoids."""
        podsets = self.gang.workload.podsets
        whole = self._asked([(i, p, None) for i, p in enumerate(podsets)])
        groups = {pods.podset: group for group in whole.podset_groups for pods in group.pods}
        pieces: list[tuple[int, PodSet, Mask | None]] = []
        for number, podset in enumerate(podsets):
            group = groups.get(number)
            if group is None or not self.lost.get(podset.name):
                continue
            bounds = self.bounds(group, group.required)
            parts = _Split(self, podset, group.tree).pieces()
            pieces += [(number, part, both(mask, bounds)) for part, mask in parts]
        return self._asked(pieces)

    def _asked(self, pieces: list[tuple[int, PodSet, Mask | None]]) -> GangRequest:
        """A request for pieces of podsets; its pods name the podsets of the gang itself."""
        workload = self.gang.workload
        excluded = self.gang.excluded.union(node for _, node, _ in self.gang.lost)
        split = replace(workload, podsets=tuple(podset for _, podset, _ in pieces))
        flavors = flavors_of(workload, self.gang.placement)
        request = request_of(
            self.problem,
            Pending(split, excluded=excluded),
            None,
            tuple(flavors[number] for number, _, _ in pieces),
            within={i: mask for i, (_, _, mask) in enumerate(pieces) if mask is not None},
            placed=True,
        )
        podset_groups = tuple(
            replace(
                podset_group,
                pods=tuple(replace(p, podset=pieces[p.podset][0]) for p in podset_group.pods),
            )
            for podset_group in request.podset_groups
        )
        pending = Pending(workload, excluded=excluded)
        return replace(
            request, pending=pending, podset_groups=podset_groups, flavors=flavors, cut=self.cut
        )

    def bounds(self, podset_group: PodSetGroup, level: int) -> Mask | None:
        """Nodes of the domains that the podset group's healthy pods hold at a level; None without bounds."""
        nodes = np.array(sorted(self._healthy(podset_group)), dtype=np.int64)
        if level == ANYWHERE or not len(nodes):
            return None
        if level == podset_group.tree.depth:
            return self.problem.mask_of(nodes)
        domain: Ints = podset_group.tree.domain[level]
        inside: Mask = np.isin(domain, np.unique(domain[nodes]))
        return inside

    def _healthy(self, podset_group: PodSetGroup) -> Iterator[int]:
        """Node indexes of the healthy pods of the podset group's podsets, those of its group that lost nothing included."""
        podsets = self.gang.workload.podsets
        mine = {podsets[p.podset].name for p in podset_group.pods}
        groups = {podsets[p.podset].group for p in podset_group.pods} - {None}
        for podset in podsets:
            if podset.name in mine or podset.group in groups:
                for name in (*self.staying.get(podset.name, {}), *self.added.get(podset.name, ())):
                    yield self.problem.index.position[name]


class _Split:
    """The lost pods of one podset, slice by slice: ranks are handed out in the order of its nodes."""

    def __init__(self, broken: Broken, podset: PodSet, tree: Tree) -> None:
        self.podset = podset
        self.tree = tree
        self.at = list(_ranks(broken, podset.name))
        self.found: list[tuple[PodSet, Mask | None]] = []

    def pieces(self) -> list[tuple[PodSet, Mask | None]]:
        """Pods to place, and the nodes they are confined to."""
        request = self.podset.topology
        layers = [
            (level, layer)
            for layer in (request.slices if request is not None else ())
            if (level := self.tree.level_of(layer.level)) is not None
        ]
        finer: tuple[Slice, ...] = ()
        for level, layer in reversed(layers):
            for domain, count in sorted(self._returning(level, layer.size).items()):
                self._add(count, finer, self._domain(level) == domain)
            finer = (layer, *finer)
        self._add(self.at.count(None), finer, None)
        return self.found

    def _returning(self, level: int, size: int) -> dict[int, int]:
        """Domain to the pods lost by slices that still have pods in it; from here on they count as there."""
        returning: dict[int, int] = {}
        for start in range(0, len(self.at), size):
            ranks = range(start, min(start + size, len(self.at)))
            lost = [rank for rank in ranks if self.at[rank] is None]
            there = next((node for rank in ranks if (node := self.at[rank]) is not None), None)
            if lost and there is not None:
                domain = int(self._domain(level)[there])
                returning[domain] = returning.get(domain, 0) + len(lost)
                for rank in lost:
                    self.at[rank] = there
        return returning

    def _domain(self, level: int) -> Ints:
        if level < self.tree.depth:
            return self.tree.domain[level]
        return np.arange(len(self.tree.position), dtype=np.int64)

    def _add(self, count: int, slices: tuple[Slice, ...], inside: Mask | None) -> None:
        if not count:
            return
        request = self.podset.topology
        if request is not None:
            request = TopologyRequest(request.mode, request.level, slices)
        self.found.append((replace(self.podset, count=count, topology=request), inside))


def _ranks(broken: Broken, podset: str) -> Iterator[int | None]:
    """The node index of each rank, None where it was lost; of a node that lost only some, the last."""
    placed = broken.gang.placement.of(podset)
    lost = dict(broken.lost.get(podset, {}))
    for node, count in placed.nodes if placed is not None else ():
        gone = min(lost.get(node, 0), count)
        lost[node] = lost.get(node, 0) - gone
        if count > gone:
            yield from [broken.problem.index.position[node]] * (count - gone)
        yield from [None] * gone


# ---- Where they go

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

    def admission(self) -> Admission:
        """The whole new placement."""
        placement = _whole(self.broken, self.replacement.request, self.replacement.node_counts)
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
    state: CycleState, gang: Admitted, solver: Solver
) -> Repaired | AwaitingRepair | Eviction | None:
    """Where a gang's lost pods go, now or later; None when the search ended open. Only an eviction changes the state."""
    broken = Broken(state.problem, gang)
    if not broken.on_known_nodes:
        return None
    request = broken.request()
    decision = _near(state, broken, request) or _decided(state, request, solver)
    if decision.status is Status.SOLVED:
        return _placed(state, broken, request, decision)
    if decision.status is not Status.REFUTED:
        return None
    room = _later(state, broken, request, solver)
    if room is None:
        return _give_up(state, gang, refusals.placement_failed(state, request).message)
    if room.proof is Proof.UNDECIDED:
        return None
    return _wait(state, broken, request, room)


def _decided(state: CycleState, request: GangRequest, solver: Solver) -> Feasibility:
    """Now, alongside all that starts so far; asked again with a larger limit before it is left open."""
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
    """Room once those leaving have left, otherwise once the least victims have; None = proved that none exists."""
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
    found = decision.status is Status.SOLVED
    return Victims((), decision.node_counts, Proof.OPTIMAL if found else Proof.UNDECIDED)


def _wait(state: CycleState, broken: Broken, request: GangRequest, room: Victims) -> AwaitingRepair:
    placement = _whole(broken, request, room.node_counts)
    admission = TentativeAdmission(request, room.node_counts)
    victims = state.problem.snapshot.admitted_of({p.victim for p in room.victims})
    awaited = reservations.awaited(state, request, room.node_counts, victims)
    return AwaitingRepair(placement, broken.gang, room.victims, room.proof, admission, awaited)


def _whole(broken: Broken, request: GangRequest, node_counts: NodeCounts) -> Placement:
    before = broken.gang.placement
    return placement_of(broken.problem, request, node_counts, broken.staying, before)


def _give_up(state: CycleState, gang: Admitted, why: str) -> Eviction:
    state.evict(gang)
    text = f"{_lost(gang)} are lost and cannot be placed again: {why}"
    return Eviction(gang.workload.uid, Code.NODE_FAILURES, text)


def _lost(gang: Admitted) -> str:
    return f"its pods on {', '.join(sorted({node for _, node, _ in gang.lost}))}"


def _near(state: CycleState, broken: Broken, request: GangRequest) -> Feasibility | None:
    """A placement on the healthy pods' own nodes, or in the finest domains they hold, widening level by level.

    Each time on as few nodes as can be that no healthy pod of the gang is on. None if impossible.
    """
    deepest = max((podset_group.tree.depth for podset_group in request.podset_groups), default=0)
    near = broken.healthy_nodes
    for level in range(deepest, ANYWHERE - 1, -1):
        within = [
            broken.bounds(podset_group, min(level, podset_group.tree.depth))
            for podset_group in request.podset_groups
        ]
        node_counts = greedy.find_near(request, state.free(), state.caps, within, near)
        if node_counts is not None:
            return Feasibility(Status.SOLVED, node_counts)
    return None
