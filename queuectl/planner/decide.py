"""Whether a demand fits, by what is cheapest and still a proof: floor sums, a witness, CP-SAT.

A witness decides "yes". "No" needs a proof: the floor sums of one unit of equal pods, floor sums that exclude every domain,
or an infeasible model. A limit that ends the search is neither.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from queuectl.planner.arena import caps
from queuectl.planner.counting import Load, held, refuted_by_sums
from queuectl.planner.demand import ANYWHERE, Demand
from queuectl.planner.ledger import Ledger
from queuectl.planner.packing import witness
from queuectl.planner.packing.cells import Cells, asked_pods
from queuectl.planner.packing.joint import certify
from queuectl.planner.packing.measure import widths
from queuectl.planner.packing.unpack import Answer
from queuectl.planner.queueing.quota_model import confirm_quota
from queuectl.planner.rearrange import Arrangement, arrange, per_demand
from queuectl.planner.solve import Solver, Status
from queuectl.planner.spots import Kept, Spots, give_back, take
from queuectl.planner.topology import Ints

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


Opening: TypeAlias = Callable[[Sequence[Kept], Demand, Ints], Decision | None]
"""A search tried before all others, on the kept gangs that may move and on what is free without them; None: it does not tell."""


def place(demand: Demand, free: Ints, solver: Solver) -> Decision:
    """Whether a demand alone fits a free matrix (R, N), and where."""
    found = witness.find(demand, free, lambda shape: caps(free, shape))
    if found is not None:
        return Decision(Status.FOUND, found)
    if witness.exact(demand) or refuted_by_sums(demand, free):
        return Decision(Status.REFUTED)
    return _ask_solver((), demand, free, solver)


def decide(
    ledger: Ledger,
    demand: Demand,
    solver: Solver,
    *,
    doubtful: bool = False,
    opening: Opening | None = None,
) -> Decision:
    """Whether a demand fits together with everything kept so far, moving kept gangs if that is what it takes.

    Args:
        ledger: with them.
        demand: of the gang.
        solver: of the plan.
        doubtful: that it does not is what to expect, and is looked for first; the answer is the same.
        opening: the first search, where counting and a witness do not tell.
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
    opened = opening(movable, demand, free) if opening is not None else None
    return opened or _search(ledger, movable, demand, free, solver, doubtful=doubtful)


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
        if solver.ended():
            break
        beside = _free_without(ledger, near)
        if Load.of([*(k.demand for k in near), demand], beside).exceeds():
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
    if refuted_by_sums(demand, free):
        return True
    return Load.of([*(k.demand for k in movable), demand], free).exceeds()


def _in_the_way(movable: Sequence[Kept], demand: Demand, free: Ints) -> Iterator[list[Kept]]:
    """Kept gangs on the domains right above nodes that are the roomiest for the demand's first unit: on one, on more.

    All of them are left out: that is another question.
    """
    unit = demand.units[0]
    tree, pods = unit.tree, asked_pods(unit)
    if not tree.depth:
        return
    fine = tree.depth - 1
    room = np.min([held(unit, p, fine, free) / p.count for p in pods], axis=0)
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


def _free_there(ledger: Ledger, nodes: Ints) -> Ints:
    """(R, N) free without any kept gang on these nodes, among which are all they stand on; nothing elsewhere."""
    free = np.zeros(ledger.now.shape, dtype=np.int64)
    free[:, nodes] = ledger.free()[:, nodes]
    for kept in ledger.kept:
        give_back(free, kept.demand.pods, kept.spots)
    return free


def _ask_solver(movable: Sequence[Kept], demand: Demand, free: Ints, solver: Solver) -> Decision:
    """Joint model of the kept gangs and the new one, on what is free without any of them."""
    if solver.ended():
        return Decision(Status.UNKNOWN)
    made = arrange(movable, [demand], free, solver, demand.pending.budget)
    if made.status is not Status.FOUND:
        return Decision(made.status, alarm=made.alarm)
    left = free.copy()
    for kept, spots in zip(movable, made.kept, strict=True):
        take(left, kept.demand.pods, spots)
    return Decision(Status.FOUND, witness.narrow(demand, left, made.new[0]), moved(movable, made))


def moved(movable: Sequence[Kept], made: Arrangement) -> tuple[tuple[Kept, Spots], ...]:
    """Those that stand elsewhere now, and where."""
    pairs = zip(movable, made.kept, strict=True)
    return tuple((kept, spots) for kept, spots in pairs if spots is not kept.spots)


def draw_together(ledger: Ledger, uids: Container[str]) -> None:
    """Each of these gangs in fewer domains, where that is found beside all others."""
    for kept in ledger.kept:
        if kept.demand.pending.workload.uid in uids and not kept.fixed:
            ledger.lift(kept)
            ledger.put(kept, _closer(ledger, kept))


def _closer(ledger: Ledger, kept: Kept) -> Spots:
    """Of a gang that is lifted: where it stood, or a narrower place."""
    demand, spots = kept.demand, kept.spots
    if len(demand.units) > 1:
        return witness.narrow(demand, ledger.free(), spots)
    (unit,) = demand.units
    wide = widths(unit, spots)
    if max(wide[:-1], default=1) == 1 and (wide[-1] == 1 or len(unit.pods) > 1):
        return spots  # several podsets in one rack: the model has packed them
    found = witness.find(demand, ledger.free(), ledger.caps)
    return found if found is not None and widths(unit, found) < wide else spots


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
    cells = Cells(units, _free_there(ledger, used), used)
    answer = certify(cells, per_unit, solver)
    if answer.status is not Status.FOUND:
        return answer
    return Answer(Status.FOUND, tuple(per_demand(demands, answer.spots)))
