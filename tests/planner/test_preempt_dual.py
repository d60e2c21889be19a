"""Weights shared out over what exits gain: always a floor, and tighter than any price by gang or by node."""

from __future__ import annotations

import random

import pytest
from hypothesis import given

from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.planner.capacity.state import open_state
from queuectl.planner.preempt import search as preempt_search
from queuectl.planner.preempt.dual import places_of, share_out
from queuectl.planner.preempt.ground import Ground, greedy, ground_of
from queuectl.planner.preempt.parts import parts_of
from queuectl.planner.preempt.policy import schemes
from queuectl.planner.preempt.price import floor_of, prices
from queuectl.planner.preempt.scene import scene_of
from queuectl.planner.preempt.terms import Terms
from queuectl.planner.problem.problem import survey
from queuectl.planner.problem.request import request_of
from queuectl.planner.problem.topology import Ints
from tests.planner.build import FLAVOR, NOW, gang, node, podset, world
from tests.planner.test_preempt import CLUSTERS, SOME, agrees_with_brute_force, low


@SOME
@given(CLUSTERS)
def test_shared_out_weights_are_a_floor_and_leave_out_no_node_that_is_needed(
    monkeypatch: pytest.MonkeyPatch, snapshot: Snapshot
) -> None:
    """With every other floor at nothing, each domain is judged by the shares, and by the model on the nodes they leave."""
    monkeypatch.setattr(preempt_search, "_GREEDY_DOMAINS", 0)
    monkeypatch.setattr(preempt_search, "floor_of", lambda *_: 0)
    monkeypatch.setattr(preempt_search, "worth_a_look", lambda g, _: set(range(len(g.nodes))))
    agrees_with_brute_force(snapshot)


@pytest.mark.parametrize("seed", range(25))
def test_the_best_shares_are_nearer_to_the_optimum_than_prices_by_node(seed: int) -> None:
    """Gangs over several nodes, nodes with several tenants: what neither a price by gang nor one by node sees."""
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
    ground, weight = ground_and_weight(world(nodes, [blocked], running))
    by_node = floor_of(ground, prices(ground, weight))
    places = places_of(ground)
    assert places is not None
    shares = share_out(places, ground.need, weight, int(weight.sum()))
    assert shares is not None
    found = greedy(ground, weight, [shares.order(weight)])
    assert found is not None
    best = int(weight[list(found)].sum())
    assert by_node is not None
    assert by_node <= shares.floor <= best
    assert shares.floor > by_node


def ground_and_weight(snapshot: Snapshot) -> tuple[Ground, Ints]:
    """The one domain of a snapshot whose gang may go anywhere, and what each candidate loses."""
    problem = survey(snapshot)
    main = snapshot.config.cluster_queues["main"]
    flavors = (dict.fromkeys(snapshot.pending[0].workload.podsets[0].shape.requests, FLAVOR),)
    request = request_of(problem, snapshot.pending[0], main, flavors)
    state = open_state(problem)
    bench = schemes(state, request, main)[0][0].bench
    (part,) = parts_of(request)
    scene = scene_of(part, part.counts[0][0], state.later.free, bench)
    return ground_of(scene, 0, Terms(bench, [])), bench.lost
