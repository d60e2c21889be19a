"""Shortcuts of the search change no answer."""

from __future__ import annotations

import random
from functools import partial
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.planner.explain.others_leave import table_without
from queuectl.planner.placement import feasible as deciding
from queuectl.planner.placement.feasible import decide, fits_apart, place
from queuectl.planner.placement.greedy import find
from queuectl.planner.plan_cycle import Prepared, begin, one_by_one
from queuectl.planner.preempt.model import stage_of
from queuectl.planner.preempt.search import WHOLE, EvictionConstraints, Search
from queuectl.planner.problem.problem import caps, survey
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.solver import Solver, Status
from tests.planner.build import gang, node, podset, world
from tests.planner.generate import contested, crowded

_SLOW = settings(deadline=None, suppress_health_check=list(HealthCheck))


def _tight(seed: int) -> Snapshot:
    """Racks of two nodes, and a dozen gangs of uneven pods that request more than the capacity: some fit only if others move."""
    rng = random.Random(seed)
    racks = [f"r{i}" for i in range(rng.choice((3, 5)))]
    nodes = [node(f"{rack}-{i}", rack, gpu=8) for rack in racks for i in range(2)]
    gangs = []
    for i in range(12):
        level: dict[str, Any] = {"required": "rack"} if rng.random() < 0.8 else {}
        sets = [
            podset(f"p{j}", rng.choice((1, 1, 2)), group="g", gpu=rng.choice((2, 3, 5)), **level)
            for j in range(rng.choice((1, 2, 2)))
        ]
        gangs.append(gang(f"w{i}", *sets, queued_at=float(i)))
    return world(nodes, gangs)


def _requests(prepared: Prepared, pending: Pending) -> list[GangRequest]:
    """The requests of a gang under each choice of flavors."""
    cycle = prepared.cycle
    known = cycle.classes.of(pending, cycle.problem.snapshot.queue_of(pending.workload))
    return [request for _, request in known.requests]


@pytest.mark.parametrize("few", [0, 4])
@_SLOW
@given(st.integers(0, 2**32).map(_tight) | contested())
def test_a_small_model_without_most_gangs_gives_the_same_answer(
    few: int, snapshot: Snapshot
) -> None:
    """However few are left in it (0 = it is always asked)."""
    prepared = begin(survey(snapshot))
    for pending in one_by_one(prepared):
        for request in _requests(prepared, pending):
            state, solver = prepared.cycle.state, Solver(snapshot.limits)
            answers = []
            for share in (10**9, few):
                with mock.patch.object(deciding, "_FEW", share):
                    answers.append(decide(state, request, solver).status)
            assert answers in ([Status.SOLVED] * 2, [Status.REFUTED] * 2)


@_SLOW
@given(st.integers(0, 2**32).map(lambda seed: crowded(seed, mixed=True)) | contested(), st.data())
def test_nodes_that_a_gang_cannot_use_can_be_left_out(
    snapshot: Snapshot, data: st.DataObject
) -> None:
    """It fits the nodes cut out for it after some gangs have left exactly when it fits on all nodes."""
    problem = survey(snapshot)
    table = table_without(problem, frozenset())
    prepared = begin(problem)
    for request in _requests(prepared, next(one_by_one(prepared))):
        free, solver = prepared.cycle.state.later.free, Solver(snapshot.limits)
        search = Search(request, free, table, EvictionConstraints(table, []), solver)
        gone = (
            data.draw(st.frozensets(st.integers(0, table.size - 1))) if table.size else frozenset()
        )
        after = free + table.freed(free.shape[1], table.mask(gone))
        node_counts = find(request, after, partial(caps, after))
        useful = search.useful(search.deficits, WHOLE)
        stage = stage_of(request, free, table, useful)
        assert stage.holds(stage.after(table.mask(gone))) is (node_counts is not None)


@_SLOW
@given(st.integers(0, 2**32).map(lambda seed: crowded(seed, mixed=True)) | contested())
def test_a_quick_yes_to_a_gang_alone_is_true(snapshot: Snapshot) -> None:
    """On the empty fleet, on free capacity, and on capacity that others free: the solver confirms each quick yes."""
    problem = survey(snapshot)
    prepared = begin(problem)
    state = prepared.cycle.state
    for pending in one_by_one(prepared):
        for request in _requests(prepared, pending):
            for free in (problem.index.allocatable, state.free(), state.later.free):
                if fits_apart(request, free):
                    solver = Solver(snapshot.limits)
                    assert place(request, free, solver).status is Status.SOLVED


@pytest.mark.parametrize(
    ("racks", "said"),
    [
        pytest.param((3,), True, id="each shape has its own nodes"),
        pytest.param((2,), False, id="they would have to share a node"),
        pytest.param((2, 2), False, id="the rack would have to be left"),
        pytest.param((2, 3), True, id="the larger rack has room"),
    ],
)
def test_the_quick_yes_needs_nodes_for_each_shape_in_one_domain(
    racks: tuple[int, ...], said: bool
) -> None:
    fleet = [
        node(f"r{rack}-{i}", f"r{rack}", gpu=8)
        for rack, nodes in enumerate(racks)
        for i in range(nodes)
    ]
    pods = (podset("a", 2, group="g", gpu=8, required="rack"), podset("b", 1, group="g", gpu=4))
    prepared = begin(survey(world(fleet, [gang("w", *pods)])))
    (request,) = _requests(prepared, next(one_by_one(prepared)))
    assert fits_apart(request, prepared.cycle.state.free()) is said
