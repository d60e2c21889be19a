"""Weights distributed over the slots that exits free: always a lower bound, and tighter than the one by gang."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given

from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.planner.capacity.state import open_state
from queuectl.planner.preempt.find import find_victims
from queuectl.planner.preempt.model import Deficit, deficit_of, parts_of
from queuectl.planner.preempt.rules import candidate_sets
from queuectl.planner.problem.fleet import Ints
from queuectl.planner.problem.problem import survey
from queuectl.planner.problem.request import request_of
from queuectl.planner.solver import Solver
from tests.planner.build import FLAVOR, NOW, gang, node, podset, world
from tests.planner.test_preempt import CLUSTERS, SOME, agrees_with_brute_force, low


@SOME
@given(CLUSTERS)
def test_slots_are_a_bound_and_leave_out_no_node_that_is_needed(
    monkeypatch: pytest.MonkeyPatch, snapshot: Snapshot
) -> None:
    """With a bound by gang of zero, each domain is judged by its slots, and by the model on the nodes that they leave."""
    monkeypatch.setattr(Deficit, "lower_bounds", lambda d, _: np.where(d.viable, 0.0, np.inf))
    agrees_with_brute_force(snapshot)


@pytest.mark.parametrize("seed", range(25))
def test_the_bound_by_slot_is_nearer_to_the_optimum_than_the_one_by_gang(seed: int) -> None:
    """Gangs over several nodes, nodes with several tenants: neither a price by gang nor one by node captures both."""
    rng = random.Random(seed)
    nodes = [node(f"n{i:02}", "a", gpu=8) for i in range(12)]
    slots = [n.name for n in nodes for _ in range(4)]
    rng.shuffle(slots)
    running: list[Admitted] = []
    while slots:
        where = dict.fromkeys(slots[: rng.choice((1, 2, 3))], 1)
        slots = slots[len(where) :] if len(where) > 1 else slots[1:]
        age = rng.randint(60, 90_000)
        running.append(low(f"g{len(running)}", where, gpu=2, started_at=NOW - age))
    blocked = gang("high", podset(count=4, gpu=8), priority=9)
    deficit, weight, least = _judged(world(nodes, [blocked], running))
    places = deficit.places(0, weight, int(weight.sum()))
    assert places is not None
    assert deficit.lower_bounds(weight)[0] < places.lower_bound <= least


def _judged(snapshot: Snapshot) -> tuple[Deficit, Ints, int]:
    """The deficit of a gang that can use any node, the loss of each candidate, and the loss of the least victims."""
    problem = survey(snapshot)
    main = snapshot.config.cluster_queues["main"]
    flavors = (dict.fromkeys(snapshot.pending[0].workload.podsets[0].shape.requests, FLAVOR),)
    request = request_of(problem, snapshot.pending[0], main, flavors)
    state = open_state(problem)
    table = candidate_sets(state, request, main)[0][0].table
    (part,) = parts_of(request)
    deficit = deficit_of(part, part.counts[0][0], state.later.free, table)
    answer = find_victims(state, request, main, Solver(snapshot.limits))
    assert answer is not None
    return deficit, table.lost, sum(victim.cost.lost_work for victim in answer.victims)
