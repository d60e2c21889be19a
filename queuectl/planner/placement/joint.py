"""M1: whether many units fit together, and where; the model every admission passes through.

A solution of the aggregated model is packed node by node; a cell that does not pack gets exact rows
(:mod:`queuectl.planner.placement.pack`) and the model is solved again. So the answer is never wrong: FOUND means placed on real
vectors, REFUTED means that no placement exists.
"""

from __future__ import annotations

from collections.abc import Sequence

from queuectl.planner.capacity.node_counts import NodeCounts
from queuectl.planner.placement.cells import Cells
from queuectl.planner.placement.model import Built
from queuectl.planner.placement.unpack import Answer, hand_out, pack_all
from queuectl.planner.solver.solver import Outcome, Solver, Status


def decide_together(cells: Cells, solver: Solver, budget: int = 0) -> Answer:
    """Whether all units of ``cells`` fit together."""
    refined: set[int] = set()
    while True:
        built = Built(cells, refined)
        outcome = solver.solve(built.model, budget)
        if outcome.status is not Status.FOUND:
            return Answer(outcome.status, alarm=outcome.alarm)
        packing, failed = pack_all(built, outcome.values, solver, budget)
        if isinstance(failed, Outcome):
            return Answer(failed.status, alarm=failed.alarm)
        if not failed:
            return hand_out(built, outcome.values, packing)
        refined |= failed


def certify(
    cells: Cells, node_counts: Sequence[NodeCounts], solver: Solver, budget: int = 0
) -> Answer:
    """Have CP-SAT accept a placement found otherwise: it gets the whole of it as a hint.

    If its solution is another one, a placement is made from the model instead.
    """
    built = Built(cells, set(), tight=False)
    built.model.hint = built.values_of(node_counts)
    outcome = solver.solve(built.model, budget)
    if outcome.status is not Status.FOUND:
        return Answer(outcome.status, alarm=outcome.alarm)
    if list(outcome.values) == built.model.hint:
        return Answer(Status.FOUND, tuple(node_counts))
    return decide_together(cells, solver, budget)
