"""The quick yes to "would it fit the empty fleet": never said of what does not fit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuectl.domain.fleet import Node
from queuectl.domain.snapshot import Pending, SolverLimits
from queuectl.domain.workload import PodSet
from queuectl.planner.placement.feasible import place
from queuectl.planner.placement.witness import fits_apart
from queuectl.planner.problem.problem import Problem, survey
from queuectl.planner.problem.request import GangRequest, request_of
from queuectl.planner.solver.solver import Solver, Status
from tests.planner.build import gang, node, podset, resources, world
from tests.support.examples import examples

RACK = "rack"


def asked(nodes: list[Node], podsets: list[PodSet]) -> tuple[Problem, GangRequest]:
    problem = survey(world(nodes, ()))
    wanted = Pending(gang("g", *podsets))
    return problem, request_of(problem, wanted, None, ({},) * len(podsets))


def quick_yes(nodes: list[Node], *podsets: PodSet) -> bool:
    problem, request = asked(nodes, list(podsets))
    return fits_apart(request, np.asarray(problem.index.allocatable))


TWO_RACKS = [node(f"n{i}", f"b/r{i // 2}", gpu=8) for i in range(4)]


@pytest.mark.parametrize(
    ("podsets", "said"),
    [
        ([podset("a", 2, gpu=8, required=RACK)], True),
        ([podset("a", 3, gpu=8, required=RACK)], False),  # a rack has two nodes
        ([podset("a", 3, gpu=8)], True),
        ([podset("a", 2, gpu=8), podset("b", 4, gpu=4)], True),
        ([podset("a", 3, gpu=8), podset("b", 3, gpu=4)], False),  # not five nodes
        ([podset("a", 3, gpu=6), podset("b", 3, gpu=2)], True),  # though they would share nodes
        ([podset("a", 4, gpu=6), podset("b", 1, gpu=2)], False),  # fits, but only on shared nodes
    ],
)
def test_a_node_for_each_sort_of_pods(podsets: list[PodSet], said: bool) -> None:
    assert quick_yes(TWO_RACKS, *podsets) == said


def test_where_no_node_is_in_any_rack_nothing_fits_one() -> None:
    nowhere = [Node("n0", {}, resources(gpu=8, pods=110))]
    assert not quick_yes(nowhere, podset("a", 1, gpu=8, required=RACK))


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(st.integers(0, 8), min_size=2, max_size=6),
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 8), st.sampled_from([None, RACK])),
        min_size=1,
        max_size=3,
    ),
    st.booleans(),
)
def test_what_it_says_fits_does(
    gpus: list[int], rows: list[tuple[int, int, str | None]], grouped: bool
) -> None:
    nodes = [node(f"n{i}", f"b/r{i % 2}", gpu=free) for i, free in enumerate(gpus)]
    group = "g" if grouped else None
    podsets = [
        podset(f"p{i}", count, gpu=size, required=RACK if grouped else level, group=group)
        for i, (count, size, level) in enumerate(rows)
    ]
    problem, request = asked(nodes, podsets)
    free = np.asarray(problem.index.allocatable)
    if fits_apart(request, free):
        assert place(request, free, Solver(SolverLimits())).status is Status.FOUND
