"""Whether a blocked gang and a given set of moved ones all find a place together: the exact half of defragmentation.

A greedy witness first, gang by gang; the joint model decides otherwise, and its solution is tidied where that is possible.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

from queuectl.planner.arena import caps
from queuectl.planner.demand import ANYWHERE, Demand
from queuectl.planner.packing.cells import Cells
from queuectl.planner.packing.joint import decide_together
from queuectl.planner.packing.witness import find
from queuectl.planner.solve import Solver, Status
from queuectl.planner.spots import Spots, take
from queuectl.planner.topology import Ints, Mask

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Settled:
    """The answer: FOUND with spots per demand in the order given, REFUTED (proved), or neither."""

    status: Status
    spots: tuple[Spots, ...] = ()


def quick(demands: Sequence[Demand], free: Ints) -> Settled | None:
    """A witness that all demands fit a free matrix (R, N) together; None proves nothing."""
    spots = _one_after_the_other(demands, free)
    return Settled(Status.FOUND, spots) if spots is not None else None


def settle(demands: Sequence[Demand], free: Ints, solver: Solver, budget: int) -> Settled:
    """Whether all demands fit a free matrix (R, N) together, and where."""
    known = quick(demands, free)
    if known is not None:
        return known
    units = [unit for demand in demands for unit in demand.units]
    answer = decide_together(Cells(units, free), solver, budget)
    if answer.status is not Status.FOUND:
        return Settled(answer.status)
    within = list(_per_demand(demands, answer.domains))
    bounds = [_bounds(demand, domains) for demand, domains in zip(demands, within, strict=True)]
    tidy = _one_after_the_other(demands, free, bounds)
    raw = tuple(
        tuple(spot for part in parts for spot in part)
        for parts in _per_demand(demands, answer.spots)
    )
    return Settled(Status.FOUND, tidy or raw)


def _one_after_the_other(
    demands: Sequence[Demand],
    free: Ints,
    within: Sequence[Sequence[Mask | None]] | None = None,
) -> tuple[Spots, ...] | None:
    """The first demand first, the others by size, each on what those before it leave."""
    left = free.copy()
    spots: dict[int, Spots] = {}
    for at in sorted(range(len(demands)), key=lambda i: (i > 0, -_size(demands[i]), i)):
        demand = demands[at]
        bounds = within[at] if within is not None else None
        found = find(demand, left, lambda shape: caps(left, shape), bounds)
        if found is None:
            return None
        take(left, demand.pods, found)
        spots[at] = found
    return tuple(spots[at] for at in range(len(demands)))


def _size(demand: Demand) -> int:
    """What its largest pod takes of a device: what is hard to place goes first."""
    return max(
        (int(p.shape.vector[p.shape.columns[0]]) for p in demand.pods if p.shape.columns),
        default=0,
    )


def _per_demand(demands: Sequence[Demand], per_unit: Sequence[T]) -> Iterator[Sequence[T]]:
    ends = accumulate(len(demand.units) for demand in demands)
    for demand, end in zip(demands, ends, strict=True):
        yield per_unit[end - len(demand.units) : end]


def _bounds(demand: Demand, domains: Sequence[int]) -> list[Mask | None]:
    """Per unit, the nodes of the domain chosen for it; None without a required level."""
    bounds: list[Mask | None] = []
    for unit, domain in zip(demand.units, domains, strict=True):
        inside = None if domain == ANYWHERE else unit.tree.domain[unit.required] == domain
        bounds.append(inside)
    return bounds
