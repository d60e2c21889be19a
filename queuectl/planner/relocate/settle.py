"""Whether a blocked gang and a given set of moved ones all find a place together: the exact half of defragmentation.

A greedy witness first, gang by gang; the joint model decides otherwise, and its solution is tidied where that is possible.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

from queuectl.planner.capacity.node_counts import NodeCounts, take
from queuectl.planner.placement.cells import Cells
from queuectl.planner.placement.joint import decide_together
from queuectl.planner.placement.several import find
from queuectl.planner.problem.problem import caps
from queuectl.planner.problem.request import ANYWHERE, GangRequest
from queuectl.planner.problem.topology import Ints, Mask
from queuectl.planner.solver.solver import Solver, Status

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Settled:
    """The answer: FOUND with spots per demand in the order given, REFUTED (proved), or neither."""

    status: Status
    node_counts: tuple[NodeCounts, ...] = ()


def quick(requests: Sequence[GangRequest], free: Ints) -> Settled | None:
    """A witness that all demands fit a free matrix (R, N) together; None proves nothing."""
    node_counts = _one_after_the_other(requests, free)
    return Settled(Status.FOUND, node_counts) if node_counts is not None else None


def settle(requests: Sequence[GangRequest], free: Ints, solver: Solver, budget: int) -> Settled:
    """Whether all demands fit a free matrix (R, N) together, and where."""
    known = quick(requests, free)
    if known is not None:
        return known
    units = [unit for request in requests for unit in request.units]
    answer = decide_together(Cells(units, free), solver, budget)
    if answer.status is not Status.FOUND:
        return Settled(answer.status)
    within = list(_per_demand(requests, answer.domains))
    bounds = [_bounds(request, domains) for request, domains in zip(requests, within, strict=True)]
    tidy = _one_after_the_other(requests, free, bounds)
    raw = tuple(
        tuple(spot for part in parts for spot in part)
        for parts in _per_demand(requests, answer.node_counts)
    )
    return Settled(Status.FOUND, tidy or raw)


def _one_after_the_other(
    requests: Sequence[GangRequest],
    free: Ints,
    within: Sequence[Sequence[Mask | None]] | None = None,
) -> tuple[NodeCounts, ...] | None:
    """The first demand first, the others by size, each on what those before it leave."""
    left = free.copy()
    node_counts: dict[int, NodeCounts] = {}
    for at in sorted(range(len(requests)), key=lambda i: (i > 0, -_size(requests[i]), i)):
        request = requests[at]
        bounds = within[at] if within is not None else None
        found = find(request, left, lambda shape: caps(left, shape), bounds)
        if found is None:
            return None
        take(left, request.pods, found)
        node_counts[at] = found
    return tuple(node_counts[at] for at in range(len(requests)))


def _size(request: GangRequest) -> int:
    """What its largest pod takes of a device: what is hard to place goes first."""
    return max(
        (int(p.shape.vector[p.shape.columns[0]]) for p in request.pods if p.shape.columns),
        default=0,
    )


def _per_demand(requests: Sequence[GangRequest], per_unit: Sequence[T]) -> Iterator[Sequence[T]]:
    ends = accumulate(len(request.units) for request in requests)
    for request, end in zip(requests, ends, strict=True):
        yield per_unit[end - len(request.units) : end]


def _bounds(request: GangRequest, domains: Sequence[int]) -> list[Mask | None]:
    """Per unit, the nodes of the domain chosen for it; None without a required level."""
    bounds: list[Mask | None] = []
    for unit, domain in zip(request.units, domains, strict=True):
        inside = None if domain == ANYWHERE else unit.tree.domain[unit.required] == domain
        bounds.append(inside)
    return bounds
