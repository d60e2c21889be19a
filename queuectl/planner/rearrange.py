"""Gangs that are kept and gangs that are new, placed together: where each goes once the joint model has said that all fit.

The model chooses the domains and says that all fit. Kept gangs that can do with the spots they have keep them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from queuectl.planner.arena import caps
from queuectl.planner.demand import ANYWHERE, Demand, Shape, Unit
from queuectl.planner.packing import witness
from queuectl.planner.packing.cells import Cells
from queuectl.planner.packing.joint import decide_together
from queuectl.planner.solve import Solver, Status
from queuectl.planner.spots import Kept, Spots, fits, give_back, take
from queuectl.planner.topology import Ints, Mask


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Whether all fit together; when FOUND, the spots of the kept gangs and of the new ones, in order."""

    status: Status
    kept: tuple[Spots, ...] = ()
    new: tuple[Spots, ...] = ()
    alarm: str = ""


def arrange(
    movable: Sequence[Kept],
    new: Sequence[Demand],
    free: Ints,
    solver: Solver,
    budget: int,
    *,
    roughly: bool = False,
) -> Arrangement:
    """Ask CP-SAT for a place for all of them on what is free without any of them, (R, N).

    ``roughly``: who must stand elsewhere stands where the model puts him, not where he is best in the domain chosen for him.
    """
    demands = [*(k.demand for k in movable), *new]
    cells = Cells([unit for d in demands for unit in d.units], free)
    answer = decide_together(cells, solver, budget)
    if answer.status is not Status.FOUND:
        return Arrangement(answer.status, alarm=answer.alarm)
    spots = list(per_demand(demands, answer.spots))
    _stay(movable, demands, free, spots, None if roughly else answer.domains)
    return Arrangement(Status.FOUND, tuple(spots[: len(movable)]), tuple(spots[len(movable) :]))


def per_demand(demands: Sequence[Demand], per_unit: Sequence[Spots]) -> Iterator[Spots]:
    """The spots of all units, gang by gang."""
    ends = list(accumulate(len(d.units) for d in demands))
    for demand, end in zip(demands, ends, strict=True):
        parts = per_unit[end - len(demand.units) : end]
        yield tuple(spot for part in parts for spot in part)


def _stay(
    movable: Sequence[Kept],
    demands: Sequence[Demand],
    free: Ints,
    spots: list[Spots],
    domains: Sequence[int] | None,
) -> None:
    """Change the model's spots: gang by gang, kept ones stay if they can, others are placed best in the domains chosen."""
    left = free.copy()
    for demand, chosen in zip(demands, spots, strict=True):
        take(left, demand.pods, chosen)
    within = None if domains is None else list(_bounds(demands, domains))
    for number, (demand, chosen) in enumerate(zip(demands, spots, strict=True)):
        give_back(left, demand.pods, chosen)
        better = None
        if number < len(movable) and fits(left, demand.pods, movable[number].spots):
            better = movable[number].spots
        elif within is not None:
            better = witness.find_any(demand, left, _caps_on(left), within[number])
        spots[number] = better or chosen
        take(left, demand.pods, spots[number])


def _bounds(demands: Sequence[Demand], domains: Sequence[int]) -> Iterator[tuple[Mask | None, ...]]:
    """Per demand and unit, the nodes of the domain chosen for it; None without a required level."""
    chosen = iter(domains)
    for demand in demands:
        yield tuple(_confined(unit, next(chosen)) for unit in demand.units)


def _confined(unit: Unit, domain: int) -> Mask | None:
    if domain == ANYWHERE:
        return None
    inside: Mask = unit.tree.domain[unit.required] == domain
    return inside


def _caps_on(free: Ints) -> Callable[[Shape], Ints]:
    return lambda shape: caps(free, shape)
