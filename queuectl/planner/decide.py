"""Whether a demand fits, by what is cheapest and still a proof: floor sums, a witness, CP-SAT.

A witness decides "yes". "No" needs a proof: the floor sums of one unit of equal pods, floor sums that exclude every domain,
or an infeasible model. A limit that ends the search is neither.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np

from queuectl.planner.arena import caps
from queuectl.planner.demand import ANYWHERE, Demand, Pods, Shape, Unit
from queuectl.planner.ledger import Kept, Ledger, Spots, give_back, take
from queuectl.planner.packing import witness
from queuectl.planner.packing.bounds import exceeds
from queuectl.planner.packing.cells import Cells, asked_pods
from queuectl.planner.packing.fill import Capacity
from queuectl.planner.packing.joint import certify, decide_together
from queuectl.planner.packing.unpack import Answer
from queuectl.planner.queueing.quota_model import confirm_quota
from queuectl.planner.solve import Solver, Status
from queuectl.planner.topology import Ints, Mask

_MORE: Final = (0, 2)  # domains beside those that hold it by sums
_FEW: Final = 4  # one in so many at most: those alone make a model that is worth its time


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a demand fits.

    Attributes:
        status: FOUND, REFUTED (proved), UNKNOWN or DEFECT.
        spots: where its pods go, when FOUND.
        moved: kept gangs that must be placed anew for it, and where.
        alarm: what broke, when DEFECT.
    """

    status: Status
    spots: Spots = ()
    moved: tuple[tuple[Kept, Spots], ...] = ()
    alarm: str = ""


def place(demand: Demand, free: Ints, solver: Solver) -> Decision:
    """Whether a demand alone fits a free matrix (R, N), and where."""
    found = witness.find(demand, free, lambda shape: caps(free, shape))
    if found is not None:
        return Decision(Status.FOUND, found)
    if witness.exact(demand) or refuted_by_sums(demand, free):
        return Decision(Status.REFUTED)
    return _ask_solver((), demand, free, solver)


def decide(ledger: Ledger, demand: Demand, solver: Solver, *, doubtful: bool = False) -> Decision:
    """Whether a demand fits together with everything kept so far, moving kept gangs if that is what it takes.

    ``doubtful``: that it does not is what to expect, and is looked for first; the answer is the same.
    """
    if doubtful and _refuted_by_counting(_movable(ledger), demand, ledger.free_without_kept()):
        return Decision(Status.REFUTED)
    found = witness.find(demand, ledger.free(), ledger.caps)
    if found is not None:
        return Decision(Status.FOUND, found)
    movable = _movable(ledger)
    if witness.exact(demand) and not movable:
        return Decision(Status.REFUTED)
    free = ledger.free_without_kept()
    if not doubtful and _refuted_by_counting(movable, demand, free):
        return Decision(Status.REFUTED)
    return _search(ledger, movable, demand, free, solver, doubtful=doubtful)


def _movable(ledger: Ledger) -> list[Kept]:
    """Kept gangs that may be placed anew."""
    return [k for k in ledger.kept if not k.fixed and k.demand.units]


def _search(
    ledger: Ledger,
    movable: Sequence[Kept],
    demand: Demand,
    free: Ints,
    solver: Solver,
    *,
    doubtful: bool,
) -> Decision:
    """By models: those in the way move, and nobody else, which mostly finds; nobody else is there, which mostly refutes; all move."""
    in_the_way = list(_in_the_way(movable, demand, free))
    few = in_the_way[-1] if in_the_way else []
    telling = len(few) * _FEW < len(movable)
    if doubtful and telling and _refuted_beside(few, demand, free, solver):
        return Decision(Status.REFUTED)
    for near in in_the_way:
        beside = _free_without(ledger, near)
        if refuted_in_all(near, demand, beside):
            continue
        decision = _ask_solver(near, demand, beside, solver)
        if decision.status is Status.FOUND:
            return decision
    if not doubtful and telling and _refuted_beside(few, demand, free, solver):
        return Decision(Status.REFUTED)
    return _ask_solver(movable, demand, free, solver)


def _refuted_beside(few: Sequence[Kept], demand: Demand, free: Ints, solver: Solver) -> bool:
    """Whether it finds no place even beside these alone, all others left out: a small model that mostly tells."""
    return _ask_solver(few, demand, free, solver).status is Status.REFUTED


def _refuted_by_counting(movable: Sequence[Kept], demand: Demand, free: Ints) -> bool:
    """Whether sums alone refute it beside these, wherever they stand; ``free`` is what none of them takes."""
    return refuted_by_sums(demand, free) or refuted_in_all(movable, demand, free)


def _in_the_way(movable: Sequence[Kept], demand: Demand, free: Ints) -> Iterator[list[Kept]]:
    """Kept gangs on the domains right above nodes that are the roomiest for the demand's first unit: on one, on more.

    All of them are left out: that is another question.
    """
    unit = demand.units[0]
    tree, pods = unit.tree, asked_pods(unit)
    if not tree.depth:
        return
    fine = tree.depth - 1
    room = np.min([_held(unit, p, fine, free) / p.count for p in pods], axis=0)
    if ANYWHERE < unit.required < fine:
        above = tree.domain[unit.required][tree.order[tree.starts[fine]]]
        best = np.argmax(np.bincount(above, weights=room))
        room = np.where(above == best, room, 0)
    roomiest = np.argsort(-room, kind="stable")
    enough = int(np.searchsorted(np.cumsum(room[roomiest]), 1)) + 1
    before = 0
    for more in _MORE:
        inside = np.isin(tree.domain[fine], roomiest[: enough + more])
        near = [k for k in movable if any(inside[nodes].any() for nodes, _ in k.spots)]
        if before < len(near) < len(movable):
            yield near
            before = len(near)


def _free_without(ledger: Ledger, near: Sequence[Kept]) -> Ints:
    free = ledger.free().copy()
    for kept in near:
        give_back(free, kept.demand.pods, kept.spots)
    return free


def refuted_by_sums(demand: Demand, free: Ints) -> bool:
    """Whether floor sums alone exclude every domain for some unit."""
    return any(not _some_domain_holds(unit, free) for unit in demand.units)


def refuted_in_all(movable: Sequence[Kept], demand: Demand, free: Ints) -> bool:
    """Whether all pods together exceed all nodes together, by the rows of one cell as large as the fleet."""
    pods = [
        p for d in (*(k.demand for k in movable), demand) for u in d.units for p in asked_pods(u)
    ]
    counts: dict[Shape, int] = {}
    for p in pods:
        counts[p.shape] = counts.get(p.shape, 0) + p.count
    eligible = np.logical_or.reduce([shape.eligible for shape in counts])
    return exceeds([(s.vector, n) for s, n in counts.items()], np.maximum(free[:, eligible], 0))


def _some_domain_holds(unit: Unit, free: Ints) -> bool:
    level = ANYWHERE if unit.on_one_node else unit.required
    holds: Mask | None = None
    for pods in asked_pods(unit):
        enough = _held(unit, pods, level, free) >= pods.count
        holds = enough if holds is None else holds & enough
    return holds is None or bool(holds.any())


def _held(unit: Unit, pods: Pods, level: int, free: Ints) -> Ints:
    """Pods that fit each domain of a level by themselves, in whole slices; the whole fleet for ANYWHERE."""
    return Capacity(unit.tree, caps(free, pods.shape), pods.slices).holding(level)


def _ask_solver(movable: Sequence[Kept], demand: Demand, free: Ints, solver: Solver) -> Decision:
    """Joint model of the kept gangs and the new one, on what is free without any of them."""
    demands = [*(k.demand for k in movable), demand]
    units = [unit for d in demands for unit in d.units]
    cells = Cells(units, free)
    answer = decide_together(cells, solver, demand.pending.budget)
    if answer.status is not Status.FOUND:
        return Decision(answer.status, alarm=answer.alarm)
    spots = _tidy(movable, demand, free, answer.domains) or list(_per_demand(demands, answer.spots))
    moved = tuple((k, new) for k, new in zip(movable, spots, strict=False) if new is not k.spots)
    left = free.copy()
    for kept, new in zip(movable, spots, strict=False):
        take(left, kept.demand.pods, new)
    return Decision(Status.FOUND, witness.narrow(demand, left, spots[-1]), moved)


def draw_together(ledger: Ledger, moved: Container[str]) -> None:
    """Each of these gangs (uids) that has several units in fewer domains, where that is found beside all others."""
    for kept in ledger.kept:
        if len(kept.demand.units) > 1 and kept.demand.pending.workload.uid in moved:
            free = ledger.free().copy()
            give_back(free, kept.demand.pods, kept.spots)
            spots = witness.narrow(kept.demand, free, kept.spots)
            ledger.move(kept, spots)


def _per_demand(demands: Sequence[Demand], per_unit: Sequence[Spots]) -> Iterator[Spots]:
    ends = list(accumulate(len(d.units) for d in demands))
    for demand, end in zip(demands, ends, strict=True):
        parts = per_unit[end - len(demand.units) : end]
        yield tuple(spot for part in parts for spot in part)


def _tidy(
    movable: Sequence[Kept], demand: Demand, free: Ints, domains: Sequence[int]
) -> list[Spots] | None:
    """Spots for all, each unit in the domain the solver chose, every kept gang whose domains did not change where it is.

    None when that fails; the model's spread stands then.
    """
    within = list(_bounds([*(k.demand for k in movable), demand], domains))
    stays = [_inside(k, w) for k, w in zip(movable, within, strict=False)]
    return _place_in_order(movable, demand, free, within, stays)


def _bounds(demands: Sequence[Demand], domains: Sequence[int]) -> Iterator[tuple[Mask | None, ...]]:
    """Per demand and unit, the nodes of the domain chosen for it; None without a required level."""
    chosen = iter(domains)
    for demand in demands:
        yield tuple(_confined(unit, next(chosen)) for unit in demand.units)


def _inside(kept: Kept, within: Sequence[Mask | None]) -> bool:
    """Whether a kept gang already stands in the domains chosen for it."""
    inside = [w for w, unit in zip(within, kept.demand.units, strict=True) for _ in unit.pods]
    return all(
        w is None or bool(w[nodes].all()) for w, (nodes, _) in zip(inside, kept.spots, strict=True)
    )


def _place_in_order(
    movable: Sequence[Kept],
    demand: Demand,
    free: Ints,
    within: Sequence[Sequence[Mask | None]],
    staying: Sequence[bool],
) -> list[Spots] | None:
    left = free.copy()
    placed = [kept.spots if stays else None for kept, stays in zip(movable, staying, strict=True)]
    for kept, spots in zip(movable, placed, strict=True):
        if spots is not None:
            take(left, kept.demand.pods, spots)
    answer: list[Spots] = []
    for asked, spots, bounds in zip(
        [*(k.demand for k in movable), demand], [*placed, None], within, strict=True
    ):
        found = spots or witness.find_any(asked, left, _caps_on(left), bounds)
        if found is None:
            return None
        if spots is None:
            take(left, asked.pods, found)
        answer.append(found)
    return answer


def _caps_on(free: Ints) -> Callable[[Shape], Ints]:
    return lambda shape: caps(free, shape)


def _confined(unit: Unit, domain: int) -> Mask | None:
    if domain == ANYWHERE:
        return None
    inside: Mask = unit.tree.domain[unit.required] == domain
    return inside


def confirm(ledger: Ledger, solver: Solver) -> Answer:
    """The solve every plan ends with: CP-SAT's own solution that holds every pod of every kept gang.

    It may use the nodes the kept gangs stand on; its hint is the placement found on the way. Where some take no nodes, their
    quota is what it must hold.
    """
    if not all(kept.demand.units for kept in ledger.kept):
        outcome = confirm_quota(ledger, solver)
        if outcome.status is not Status.FOUND:
            return Answer(outcome.status, alarm=outcome.alarm)
    demands = [k.demand for k in ledger.kept]
    units = [unit for d in demands for unit in d.units]
    if not units:
        return Answer(Status.FOUND, tuple(k.spots for k in ledger.kept))
    per_unit = [spots for kept in ledger.kept for _, spots in kept.per_unit()]
    used = np.unique(np.concatenate([nodes for k in ledger.kept for nodes, _ in k.spots]))
    cells = Cells(units, _free_without(ledger, ledger.kept), used)
    answer = certify(cells, per_unit, solver)
    if answer.status is not Status.FOUND:
        return answer
    return Answer(Status.FOUND, tuple(_per_demand(demands, answer.spots)))
