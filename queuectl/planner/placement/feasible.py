"""Whether a gang fits, by what is cheapest and still a proof: sums, a greedy placement, CP-SAT.

A greedy placement decides "yes". "No" needs a proof: no greedy placement of one podset group of equal pods; for one of its podset groups
no domain has room even alone; all pods together exceed all nodes together; or an infeasible model. A limit that ends the search is
neither.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from queuectl.planner.capacity.node_counts import (
    NodeCounts,
    PlannedGang,
    TentativeAdmission,
    give_back,
    take,
)
from queuectl.planner.capacity.state import CycleState
from queuectl.planner.model.bounds import GangLoad
from queuectl.planner.model.counts import ShapeCounts
from queuectl.planner.placement import several
from queuectl.planner.placement.joint import Arrangement, arrange
from queuectl.planner.problem.problem import caps
from queuectl.planner.problem.request import ANYWHERE, GangRequest, PodSetGroup, ShapePods
from queuectl.planner.problem.topology import Ints, Mask
from queuectl.planner.solver.solver import Solver, Status

_MORE: Final = (0, 2, 8)
_FEW: Final = 4  # one in so many at most: those alone make a model that is worth its time


@dataclass(frozen=True, slots=True)
class Feasibility:
    """Whether a gang fits.

    Attributes:
        status: FOUND, REFUTED (proved), UNKNOWN or DEFECT.
        node_counts: where its pods go, when FOUND.
        moved: admitted gangs that must be placed elsewhere for it, and where.
        planned: likewise, gangs with a planned start.
        alarm: what broke, when DEFECT.
    """

    status: Status
    node_counts: NodeCounts = ()
    moved: tuple[tuple[TentativeAdmission, NodeCounts], ...] = ()
    alarm: str = ""
    planned: tuple[tuple[PlannedGang, NodeCounts], ...] = ()


Opening: TypeAlias = Callable[[Sequence[TentativeAdmission], GangRequest, Ints], Feasibility | None]
"""A search before the model, on the admitted gangs that can move and on what is free without them; None: it decides nothing."""


def place(request: GangRequest, free: Ints, solver: Solver) -> Feasibility:
    """Whether a gang alone fits a free matrix (R, N), and where."""
    found = several.find(request, free, lambda shape: caps(free, shape))
    if found is not None:
        return Feasibility(Status.FOUND, found)
    if several.exact(request) or refuted_by_sums(request, free):
        return Feasibility(Status.REFUTED)
    return _ask_solver((), request, free, solver)


def fits_apart(request: GangRequest, free: Ints) -> bool:
    """Whether a gang fits with pods of one shape alone on each node: a quick test; False proves nothing."""
    unused = np.ones(free.shape[1], dtype=np.bool_)
    for group in request.podset_groups:
        if group.sliced:
            return False
        fits = np.stack([caps(free, pods.shape) for pods in group.items])
        these = np.flatnonzero((fits > 0).all(axis=0) & unused)
        if not len(these):
            return False
        if not group.on_one_node and group.required != ANYWHERE:
            domain = group.tree.domain[group.required][these]
            these = these[domain == np.bincount(domain).argmax()]
        least = fits[:, these].min(axis=1).tolist()
        needed = sum(-(-p.count // most) for p, most in zip(group.items, least, strict=True))
        if needed > len(these):
            return False
        unused[these[:needed]] = False
    return True


def decide(
    state: CycleState, request: GangRequest, solver: Solver, *, opening: Opening | None = None
) -> Feasibility:
    """Whether a gang fits together with all that is admitted so far, moving admitted gangs if that is what it takes.

    Args:
        state: with them.
        request: of the gang.
        solver: of the plan.
        opening: the first search, where sums and a greedy placement decide nothing.
    """
    solver.placements += 1
    found = several.find(request, state.free(), state.caps)
    if found is not None:
        return Feasibility(Status.FOUND, found)
    movable = [k for k in state.admissions if not k.fixed and k.request.podset_groups]
    if several.exact(request) and not movable:
        return Feasibility(Status.REFUTED)
    free = state.free_without_admissions()
    if refuted_by_sums(request, free):
        return Feasibility(Status.REFUTED)
    if GangLoad.of([*(k.request for k in movable), request], free).exceeds():
        return Feasibility(Status.REFUTED)
    opened = opening(movable, request, free) if opening is not None else None
    return opened or _search(state, movable, request, free, solver)


def _search(
    state: CycleState,
    movable: Sequence[TentativeAdmission],
    request: GangRequest,
    free: Ints,
    solver: Solver,
) -> Feasibility:
    """Greedily, then by models: first only the blocking gangs move; then only these exist, which often refutes; then all move."""
    # On 10,000 nodes, 93 % in use, plans of 50 gangs take 1.3 to 1.8 times the solves and up to 18 times the solver's time if all gangs
    # move at once, and 1.5 to 2.3 times the solves without the greedy placements (tests.bench.ablate).
    in_the_way = list(_in_the_way(movable, request, free))
    few = in_the_way[-1] if in_the_way else []
    much_smaller = len(few) * _FEW < len(movable)
    by_sums = [
        (near, beside)
        for near in in_the_way
        for beside in [_free_without(state, near)]
        if not GangLoad.of([*(k.request for k in near), request], beside).exceeds()
    ]
    for near, beside in by_sums:
        placed = _one_by_one(near, request, beside)
        if placed is not None:
            return placed
    for near, beside in by_sums:
        if solver.ended():
            break
        decision = _ask_solver(near, request, beside, solver)
        if decision.status is Status.FOUND:
            return decision
    if much_smaller and _ask_solver(few, request, free, solver).status is Status.REFUTED:
        return Feasibility(Status.REFUTED)
    return _one_by_one(movable, request, free) or _ask_solver(movable, request, free, solver)


def _in_the_way(
    movable: Sequence[TentativeAdmission], request: GangRequest, free: Ints
) -> Iterator[list[TentativeAdmission]]:
    """Admitted gangs on the domains right above nodes that are the roomiest for the request's first podset group: on one, on more.

    All admitted gangs are not among the answers.
    """
    podset_group = request.podset_groups[0]
    tree, pods = podset_group.tree, podset_group.items
    if not tree.depth:
        return
    fine = tree.depth - 1
    room = np.min([_holding(podset_group, p, fine, free) / p.count for p in pods], axis=0)
    if ANYWHERE < podset_group.required < fine:
        above = tree.domain[podset_group.required][tree.order[tree.starts[fine]]]
        best = np.argmax(np.bincount(above, weights=room))
        room = np.where(above == best, room, 0)
    roomiest = np.argsort(-room, kind="stable")
    enough = int(np.searchsorted(np.cumsum(room[roomiest]), 1)) + 1
    before = 0
    for more in _MORE:
        inside = np.isin(tree.domain[fine], roomiest[: enough + more])
        near = [k for k in movable if any(inside[nodes].any() for nodes, _ in k.node_counts)]
        if before < len(near) < len(movable):
            yield near
            before = len(near)


def _one_by_one(
    near: Sequence[TentativeAdmission], request: GangRequest, free: Ints
) -> Feasibility | None:
    """All of them placed again, one after the other, the hardest first, on what is free without any of them; None proves nothing."""
    requests = [*(k.request for k in near), request]
    left = free.copy()
    found: dict[int, NodeCounts] = {}
    for at in several.hardest_first(requests, free):
        node_counts = several.find(requests[at], left, lambda shape: caps(left, shape))
        if node_counts is None:
            return None
        take(left, requests[at].pods, node_counts)
        found[at] = node_counts
    new = found.pop(len(near))
    others = [(near[at], node_counts) for at, node_counts in sorted(found.items())]
    return Feasibility(Status.FOUND, new, tuple(others))


def _free_without(state: CycleState, near: Sequence[TentativeAdmission]) -> Ints:
    free = state.free().copy()
    for admission in near:
        give_back(free, admission.request.pods, admission.node_counts)
    return free


def refuted_by_sums(request: GangRequest, free: Ints) -> bool:
    """Whether sums over a free matrix (R, N) leave no domain for one of the podset groups."""
    return any(not _some_domain_holds(podset_group, free) for podset_group in request.podset_groups)


def _some_domain_holds(podset_group: PodSetGroup, free: Ints) -> bool:
    level = ANYWHERE if podset_group.on_one_node else podset_group.required
    holds: Mask | None = None
    for pods in podset_group.items:
        enough = _holding(podset_group, pods, level, free) >= pods.count
        holds = enough if holds is None else holds & enough
    return holds is None or bool(holds.any())


def _holding(podset_group: PodSetGroup, pods: ShapePods, level: int, free: Ints) -> Ints:
    """Pods that fit each domain of a level by themselves, in whole slices."""
    return ShapeCounts(podset_group.tree, caps(free, pods.shape), pods.slices).holding(level)


def _ask_solver(
    movable: Sequence[TentativeAdmission], request: GangRequest, free: Ints, solver: Solver
) -> Feasibility:
    """Joint model of the admitted gangs and the new one, on what is free without any of them."""
    if solver.ended():
        return Feasibility(Status.UNKNOWN)
    made = arrange(movable, [request], free, solver, request.pending.budget)
    if made.status is not Status.FOUND:
        return Feasibility(made.status, alarm=made.alarm)
    left = free.copy()
    for admission, node_counts in zip(movable, made.moved, strict=True):
        take(left, admission.request.pods, node_counts)
    return Feasibility(
        Status.FOUND, several.narrowed(request, left, made.new[0]), moved(movable, made)
    )


def moved(
    movable: Sequence[TentativeAdmission], made: Arrangement
) -> tuple[tuple[TentativeAdmission, NodeCounts], ...]:
    """The gangs that are elsewhere now, and where."""
    pairs = zip(movable, made.moved, strict=True)
    return tuple(
        (admission, node_counts)
        for admission, node_counts in pairs
        if node_counts is not admission.node_counts
    )


def narrow(state: CycleState, uids: Container[str]) -> None:
    """Place each of these gangs in fewer domains, where that is found beside all others."""
    # Costs nothing measurable; without it, a quarter of the plans of 50 gangs on 640 nodes use more domains (tests.bench.ablate).
    for admission in state.admissions:
        if admission.request.pending.workload.uid in uids and not admission.fixed:
            state.lift(admission)
            state.put(
                admission, several.narrowed(admission.request, state.free(), admission.node_counts)
            )
