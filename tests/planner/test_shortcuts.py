"""Shortcuts of the search: what is looked at first, or left out, changes no answer."""

from __future__ import annotations

from functools import partial

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queuectl.domain.snapshot import Snapshot
from queuectl.planner.explain.context import context_of
from queuectl.planner.explain.others_leave import table_without
from queuectl.planner.explain.relaxation import as_it_is, requests
from queuectl.planner.placement.several import find
from queuectl.planner.plan_cycle import begin, turns
from queuectl.planner.preempt.legality import EvictionConstraints
from queuectl.planner.preempt.search import WHOLE, Search, stage_of
from queuectl.planner.problem.problem import caps, survey
from queuectl.planner.solver.solver import Solver
from tests.planner.generate import contested, crowded

_SLOW = settings(deadline=None, suppress_health_check=list(HealthCheck))


@_SLOW
@given(st.integers(0, 2**32).map(lambda seed: crowded(seed, mixed=True)) | contested(), st.data())
def test_nodes_of_no_use_to_a_gang_can_be_left_out(snapshot: Snapshot, data: st.DataObject) -> None:
    """It is found to fit the nodes cut out for it after some gangs have left exactly when it is on all nodes."""
    problem = survey(snapshot)
    table = table_without(problem, frozenset())
    prepared = begin(problem)
    pending = next(turns(prepared))
    turn = context_of(prepared.cycle, pending)
    for request in requests(turn, as_it_is(turn)):
        free, solver = prepared.cycle.state.later.free, Solver(snapshot.limits)
        search = Search(request, free, table, EvictionConstraints(table, []), solver)
        gone = (
            data.draw(st.frozensets(st.integers(0, table.size - 1))) if table.size else frozenset()
        )
        after = free + table.freed(free.shape[1], table.mask(gone))
        node_counts = find(request, after, partial(caps, after))
        useful = search.useful(search.deficits, WHOLE)
        stage = stage_of(request, free, table, useful)
        assert stage.fits(table.mask(gone)) is (node_counts is not None)
