"""When capacity runs out, one search places later gangs as well; the same gangs start."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from queuectl.domain.plan import Plan, Proof
from queuectl.domain.snapshot import Snapshot
from queuectl.planner import plan, plan_cycle
from queuectl.planner.cycle.cycle import AdmissionCycle
from queuectl.planner.cycle.look_ahead import LookAhead, look_ahead
from queuectl.planner.placement import feasible
from queuectl.planner.placement.feasible import Feasibility
from queuectl.planner.problem.problem import survey
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.solver import Status
from queuectl.planner.verify import verify
from tests.bench.clusters import Size, busy, config, fleet, random_gang, snapshot
from tests.planner.build import gang, node, podset, world

SEEDS = range(16)


def nearly_full(seed: int) -> Snapshot:
    """Four racks of sixteen nodes, two thirds of them full, and twenty gangs of which some start only if others move."""
    rng = random.Random(seed)
    nodes = fleet(Size(2, 2, 16), rng)
    waiting = tuple(random_gang(f"g{i}", rng, float(i)) for i in range(20))
    return snapshot(nodes, config(), busy(nodes, 0.6, rng), waiting)


def starters(taken: Snapshot, made: Plan) -> set[str]:
    assert verify(taken, made) == ()
    assert made.proof is not Proof.UNDECIDED
    return {a.uid for a in made.admitted}


def test_looking_ahead_starts_the_same_gangs_by_fewer_solves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    snapshots = [nearly_full(seed) for seed in SEEDS]
    ahead = [plan(taken) for taken in snapshots]
    monkeypatch.setattr(plan_cycle, "look_ahead", lambda *_: None)
    turns = [plan(taken) for taken in snapshots]
    for taken, made, other in zip(snapshots, ahead, turns, strict=True):
        assert starters(taken, made) == starters(taken, other)
    assert sum(p.stats["solves"] for p in ahead) < sum(p.stats["solves"] for p in turns)


def test_a_gang_that_blocks_another_is_placed_again_without_a_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first gang would be on the one large node, which only the second needs."""
    nodes = [
        node("a", "x/r0", gpu=4),
        node("b", "x/r0", gpu=4),
        node("c", "x/r1", gpu=8),
        node("d", "x/r2", gpu=2),
    ]
    beside = gang("beside", podset("w", 1, gpu=2))
    first = gang("first", podset("w", 2, gpu=4, required="rack"))
    second = gang("second", podset("w", 1, gpu=8, required="rack"), queued_at=1.0)
    taken = world(nodes, [beside, first, second])
    models: list[GangRequest] = []
    monkeypatch.setattr(feasible, "_ask_solver", lambda _, request, *__: models.append(request))
    assert starters(taken, plan(taken)) == {"beside", "first", "second"}
    assert not models


def at_its_turn(taken: Snapshot) -> tuple[AdmissionCycle, GangRequest]:
    """A cycle at its only gang, and the request of the gang."""
    prepared = plan_cycle.begin(survey(taken))
    look_ahead(prepared.cycle, prepared.in_order)
    (pending,) = prepared.in_order
    queue = taken.config.cluster_queue_of(pending.workload.namespace, pending.workload.queue)
    ((_, asked),) = prepared.cycle.classes.of(pending, queue).requests
    return prepared.cycle, replace(asked, pending=pending)


def chooser_of(cycle: AdmissionCycle) -> LookAhead:
    chooser = cycle.sizing.chooser
    assert isinstance(chooser, LookAhead)
    return chooser


def on(chooser: LookAhead, decision: Feasibility) -> list[str]:
    assert decision.status is Status.SOLVED
    return [
        chooser.problem.index.nodes[at].name for nodes, _ in decision.node_counts for at in nodes
    ]


ROOMY = world(
    [node("a", "x/r0", gpu=4), node("b", "x/r0", gpu=8)], [gang("g", podset("w", 1, gpu=4))]
)


def foreseen_on_b(chooser: LookAhead, request: GangRequest) -> None:
    """The gang would use the tighter node, but a later gang is expected there."""
    position = chooser.problem.index.position
    ((nodes, counts),) = chooser.decide(request).node_counts
    assert nodes.tolist() == [position["a"]]
    chooser.places["g"] = request, ((nodes * 0 + position["b"], counts),)


def test_a_placement_found_ahead_is_used() -> None:
    cycle, request = at_its_turn(ROOMY)
    chooser = chooser_of(cycle)
    foreseen_on_b(chooser, request)
    assert on(chooser, chooser.decide(request)) == ["b"]


def test_a_placement_found_ahead_that_others_took_meanwhile_is_not_used() -> None:
    cycle, request = at_its_turn(ROOMY)
    chooser = chooser_of(cycle)
    foreseen_on_b(chooser, request)
    chooser.state.now.free[:, chooser.problem.index.position["b"]] = 0
    assert on(chooser, chooser.decide(request)) == ["a"]


def test_a_placement_found_ahead_for_other_pods_is_not_used() -> None:
    cycle, request = at_its_turn(ROOMY)
    chooser = chooser_of(cycle)
    foreseen_on_b(chooser, request)
    other = replace(request, podset_groups=(replace(request.podset_groups[0], preferred=0),))
    assert on(chooser, chooser.decide(other)) == ["a"]
