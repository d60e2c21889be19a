"""Gangs that are kept and gangs that are new, placed together: where each goes once the joint model has said that all fit.

The model chooses the domains and says that all fit. Kept gangs that can do with the spots they have keep them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from queuectl.planner.capacity.node_counts import (
    NodeCounts,
    TentativeAdmission,
    fits,
    give_back,
    take,
)
from queuectl.planner.placement import several
from queuectl.planner.placement.cells import Cells
from queuectl.planner.placement.joint import decide_together
from queuectl.planner.problem.problem import Shape, caps
from queuectl.planner.problem.request import ANYWHERE, GangRequest, Unit
from queuectl.planner.problem.topology import Ints, Mask
from queuectl.planner.solver.solver import Solver, Status


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Whether all fit together; when FOUND, the spots of the kept gangs and of the new ones, in order."""

    status: Status
    kept: tuple[NodeCounts, ...] = ()
    new: tuple[NodeCounts, ...] = ()
    alarm: str = ""


def arrange(
    movable: Sequence[TentativeAdmission],
    new: Sequence[GangRequest],
    free: Ints,
    solver: Solver,
    budget: int,
    *,
    roughly: bool = False,
) -> Arrangement:
    """Ask CP-SAT for a place for all of them on what is free without any of them, (R, N).

    ``roughly``: who must stand elsewhere stands where the model puts him, not where he is best in the domain chosen for him.
    """
    requests = [*(k.request for k in movable), *new]
    cells = Cells([unit for d in requests for unit in d.units], free)
    answer = decide_together(cells, solver, budget)
    if answer.status is not Status.FOUND:
        return Arrangement(answer.status, alarm=answer.alarm)
    node_counts = list(per_request(requests, answer.node_counts))
    _stay(movable, requests, free, node_counts, None if roughly else answer.domains)
    return Arrangement(
        Status.FOUND, tuple(node_counts[: len(movable)]), tuple(node_counts[len(movable) :])
    )


def per_request(
    requests: Sequence[GangRequest], per_unit: Sequence[NodeCounts]
) -> Iterator[NodeCounts]:
    """The spots of all units, gang by gang."""
    ends = list(accumulate(len(d.units) for d in requests))
    for request, end in zip(requests, ends, strict=True):
        parts = per_unit[end - len(request.units) : end]
        yield tuple(spot for part in parts for spot in part)


def _stay(
    movable: Sequence[TentativeAdmission],
    requests: Sequence[GangRequest],
    free: Ints,
    node_counts: list[NodeCounts],
    domains: Sequence[int] | None,
) -> None:
    """Change the model's spots: gang by gang, kept ones stay if they can, others are placed best in the domains chosen."""
    left = free.copy()
    for request, chosen in zip(requests, node_counts, strict=True):
        take(left, request.pods, chosen)
    within = None if domains is None else list(_bounds(requests, domains))
    for number, (request, chosen) in enumerate(zip(requests, node_counts, strict=True)):
        give_back(left, request.pods, chosen)
        better = None
        if number < len(movable) and fits(left, request.pods, movable[number].node_counts):
            better = movable[number].node_counts
        elif within is not None:
            better = several.find(request, left, _caps_on(left), within[number], narrow=False)
        node_counts[number] = better or chosen
        take(left, request.pods, node_counts[number])


def _bounds(
    requests: Sequence[GangRequest], domains: Sequence[int]
) -> Iterator[tuple[Mask | None, ...]]:
    """Per demand and unit, the nodes of the domain chosen for it; None without a required level."""
    chosen = iter(domains)
    for request in requests:
        yield tuple(_confined(unit, next(chosen)) for unit in request.units)


def _confined(unit: Unit, domain: int) -> Mask | None:
    if domain == ANYWHERE:
        return None
    inside: Mask = unit.tree.domain[unit.required] == domain
    return inside


def _caps_on(free: Ints) -> Callable[[Shape], Ints]:
    return lambda shape: caps(free, shape)
