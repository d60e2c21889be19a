"""Whether a gang fits, by what is cheapest and still a proof: sums, a greedy placement, CP-SAT.

A greedy placement decides "yes". "No" needs a proof: no greedy placement of one podset group of equal pods; for one of its podset groups
no domain has room even alone; all pods together exceed all nodes together; or an infeasible model. A limit that ends the search is
neither.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from queuectl.planner.capacity.node_counts import NodeCounts, TentativeAdmission, take
from queuectl.planner.capacity.state import State
from queuectl.planner.model.bounds import Load
from queuectl.planner.model.counts import Counts
from queuectl.planner.placement import several
from queuectl.planner.placement.joint import Arrangement, arrange
from queuectl.planner.problem.problem import caps
from queuectl.planner.problem.request import ANYWHERE, GangRequest, PodSetGroup
from queuectl.planner.problem.topology import Ints, Mask
from queuectl.planner.solver.solver import Solver, Status


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a gang fits.

    Attributes:
        status: FOUND, REFUTED (proved), UNKNOWN or DEFECT.
        node_counts: where its pods go, when FOUND.
        moved: admitted gangs that must be placed elsewhere for it, and where.
        alarm: what broke, when DEFECT.
    """

    status: Status
    node_counts: NodeCounts = ()
    moved: tuple[tuple[TentativeAdmission, NodeCounts], ...] = ()
    alarm: str = ""


Opening: TypeAlias = Callable[[Sequence[TentativeAdmission], GangRequest, Ints], Decision | None]
"""A search before the model, on the admitted gangs that can move and on what is free without them; None: it decides nothing."""


def place(request: GangRequest, free: Ints, solver: Solver) -> Decision:
    """Whether a gang alone fits a free matrix (R, N), and where."""
    found = several.find(request, free, lambda shape: caps(free, shape))
    if found is not None:
        return Decision(Status.FOUND, found)
    if several.exact(request) or refuted_by_sums(request, free):
        return Decision(Status.REFUTED)
    return _ask_solver((), request, free, solver)


def decide(
    state: State, request: GangRequest, solver: Solver, *, opening: Opening | None = None
) -> Decision:
    """Whether a gang fits together with all that is admitted so far, moving admitted gangs if that is what it takes.

    Args:
        state: with them.
        request: of the gang.
        solver: of the plan.
        opening: the first search, where sums and a greedy placement decide nothing.
    """
    found = several.find(request, state.free(), state.caps)
    if found is not None:
        return Decision(Status.FOUND, found)
    movable = [k for k in state.admissions if not k.fixed and k.request.podset_groups]
    if several.exact(request) and not movable:
        return Decision(Status.REFUTED)
    free = state.free_without_admissions()
    if refuted_by_sums(request, free):
        return Decision(Status.REFUTED)
    if Load.of([*(k.request for k in movable), request], free).exceeds():
        return Decision(Status.REFUTED)
    opened = opening(movable, request, free) if opening is not None else None
    return opened or _ask_solver(movable, request, free, solver)


def refuted_by_sums(request: GangRequest, free: Ints) -> bool:
    """Whether sums over a free matrix (R, N) leave no domain for one of the podset groups."""
    return any(not _some_domain_holds(podset_group, free) for podset_group in request.podset_groups)


def _some_domain_holds(podset_group: PodSetGroup, free: Ints) -> bool:
    level = ANYWHERE if podset_group.on_one_node else podset_group.required
    holds: Mask | None = None
    for pods in podset_group.asked:
        counts = Counts(podset_group.tree, caps(free, pods.shape), pods.slices)
        enough = counts.holding(level) >= pods.count
        holds = enough if holds is None else holds & enough
    return holds is None or bool(holds.any())


def _ask_solver(
    movable: Sequence[TentativeAdmission], request: GangRequest, free: Ints, solver: Solver
) -> Decision:
    """Joint model of the admitted gangs and the new one, on what is free without any of them."""
    if solver.ended():
        return Decision(Status.UNKNOWN)
    made = arrange(movable, [request], free, solver, request.pending.budget)
    if made.status is not Status.FOUND:
        return Decision(made.status, alarm=made.alarm)
    left = free.copy()
    for admission, node_counts in zip(movable, made.moved, strict=True):
        take(left, admission.request.pods, node_counts)
    return Decision(
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


def narrow(state: State, uids: Container[str]) -> None:
    """Place each of these gangs in fewer domains, where that is found beside all others."""
    for admission in state.admissions:
        if admission.request.pending.workload.uid in uids and not admission.fixed:
            state.lift(admission)
            state.put(
                admission, several.narrowed(admission.request, state.free(), admission.node_counts)
            )
