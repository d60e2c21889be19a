"""Gangs that lost nodes: only the lost pods move, inside the domain, or the gang is evicted whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

from queuectl.domain.plan import Plan
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.planner import plan
from queuectl.planner.verify import PlanRule, verify
from tests.planner.build import gang, holding, node, podset, queue, world


def planned(snapshot: Snapshot) -> Plan:
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    return made


def broken(pods, where, lost, uid: str = "g", **kwargs) -> Admitted:
    return holding(gang(uid, *pods, **kwargs), *where, lost=lost)


RACKS = [node(f"{r}{i}", r, gpu=8) for r in "ab" for i in range(3)]


def out(*names: str):
    """The racks with some nodes not ready."""
    return [node(n.name, n.labels["rack"], gpu=8, ready=n.name not in names) for n in RACKS]


def test_only_the_lost_pods_move_and_they_stay_in_the_rack() -> None:
    running = broken(
        [podset(count=2, gpu=8, required="rack")], [{"a0": 1, "a1": 1}], (("w", "a1", 1),)
    )
    made = planned(world(out("a1"), [], [running]))
    (admission,) = made.admitted
    assert admission.repaired
    assert admission.placement.podsets[0].nodes == (("a0", 1), ("a2", 1))
    assert made.evicted == ()
    assert made.stats["solves"] == 1


def test_lost_pods_move_to_no_node_that_the_gang_avoids() -> None:
    nodes, lost = out("a1"), (("w", "a1", 1),)
    pods = [podset(count=2, gpu=8, required="rack")]
    free = broken(pods, [{"a0": 1, "a1": 1}], lost)
    avoiding = replace(free, excluded=frozenset({"a2"}))
    assert planned(world(nodes, [], [avoiding])).evicted
    made = planned(world(nodes, [], [free]))
    assert {v.rule for v in verify(world(nodes, [], [avoiding]), made)} == {PlanRule.ELIGIBLE}
    waits = planned(
        world(nodes, [], [free, holding(gang("r", podset(gpu=8)), {"a2": 1}, leaving=True)])
    )
    assert waits.pending[0].lease is not None
    unable = world(
        nodes, [], [avoiding, holding(gang("r", podset(gpu=8)), {"a2": 1}, leaving=True)]
    )
    assert PlanRule.ELIGIBLE in {v.rule for v in verify(unable, waits)}


def test_several_lost_nodes_are_replaced_at_once() -> None:
    running = broken(
        [podset(count=3, gpu=4, required="rack")],
        [{"a0": 1, "a1": 1, "a2": 1}],
        (("w", "a1", 1), ("w", "a2", 1)),
    )
    nodes = [node("a0", "a", gpu=4), node("a3", "a", gpu=8), node("b0", "b", gpu=8)]
    made = planned(world(nodes, [], [running]))
    assert made.admitted[0].placement.podsets[0].nodes == (("a0", 1), ("a3", 2))


def test_without_capacity_in_the_domain_the_gang_is_evicted_whole() -> None:
    running = broken(
        [podset(count=3, gpu=8, required="rack")],
        [{"a0": 1, "a1": 1, "a2": 1}],
        (("w", "a1", 1),),
    )
    made = planned(world(out("a1"), [], [running]))
    (eviction,) = made.evicted
    assert (eviction.uid, eviction.code) == ("g", Code.NODE_FAILURES)
    assert "a1" in eviction.message
    assert made.admitted == ()


def test_a_gang_that_lost_everything_can_use_another_domain() -> None:
    running = broken([podset(count=1, gpu=8, required="rack")], [{"a0": 1}], (("w", "a0", 1),))
    nodes = [node("b0", "b", gpu=8)]
    made = planned(world(nodes, [], [running]))
    assert made.admitted[0].placement.podsets[0].nodes == (("b0", 1),)


def test_unconstrained_pods_are_repaired_near_the_healthy_ones_if_possible() -> None:
    running = broken([podset(count=2, gpu=8)], [{"b0": 1, "b1": 1}], (("w", "b1", 1),))
    made = planned(world(out("b1"), [], [running]))
    assert made.admitted[0].placement.podsets[0].nodes == (("b0", 1), ("b2", 1))
    busy = holding(gang("r", podset(gpu=8)), {"b2": 1})
    made = planned(world(out("b1"), [], [running, busy]))
    assert made.admitted[0].placement.podsets[0].nodes == (("b0", 1), ("a0", 1))


def test_a_node_of_the_gang_with_free_capacity_comes_before_a_new_one() -> None:
    nodes = [node("a0", "a", gpu=8), node("a2", "a", gpu=4)]
    running = broken([podset(count=2, gpu=4)], [{"a0": 1, "a1": 1}], (("w", "a1", 1),))
    made = planned(world(nodes, [], [running]))
    assert made.admitted[0].placement.podsets[0].nodes == (("a0", 2),)


def test_its_nodes_are_filled_up_before_a_new_one_is_used() -> None:
    nodes = [node("a0", "a", gpu=8), node("a2", "a", gpu=6), node("a3", "a", gpu=6)]
    running = broken([podset(count=5, gpu=2)], [{"a0": 1, "a1": 4}], (("w", "a1", 4),))
    made = planned(world(nodes, [], [running]))
    used = made.admitted[0].placement.podsets[0].by_node
    assert used.keys() == {"a0", "a2"}
    assert used["a0"] > 1


def test_a_node_of_another_podset_of_the_gang_comes_before_a_new_one() -> None:
    pods = [podset("leader", 1, gpu=1), podset("worker", 2, gpu=4)]
    nodes = [node("a0", "a", gpu=8), node("b0", "a", gpu=4), node("c0", "a", gpu=1)]
    running = broken(pods, [{"x": 1}, {"a0": 1, "b0": 1}], (("leader", "x", 1),))
    made = planned(world(nodes, [], [running]))
    assert made.admitted[0].placement.podsets[0].nodes == (("a0", 1),)


def test_podsets_of_a_group_keep_their_common_domain() -> None:
    """The master lost its node; its workers hold rack b."""
    pods = [
        podset("master", 1, gpu=1, required="rack", group="job"),
        podset("worker", 2, gpu=8, required="rack", group="job"),
    ]
    running = broken(pods, [{"b2": 1}, {"b0": 1, "b1": 1}], (("master", "b2", 1),))
    assert planned(world(out("b2"), [], [running])).evicted
    roomy = [*out("b2"), node("b3", "b", gpu=8)]
    (admission,) = planned(world(roomy, [], [running])).admitted
    master, worker = admission.placement.podsets
    assert master.nodes == (("b3", 1),)
    assert worker.nodes == (("b0", 1), ("b1", 1))


def test_repairs_come_before_new_gangs_and_are_charged_once() -> None:
    running = broken(
        [podset(count=2, gpu=8, required="rack")], [{"a0": 1, "a1": 1}], (("w", "a1", 1),)
    )
    eager = gang("eager", podset(gpu=8, required="rack", select={"rack": "a"}))
    made = planned(world(out("a1"), [eager], [running], queue(gpu=24)))
    assert [a.uid for a in made.admitted] == ["g"]
    assert [r.uid for r in made.pending] == ["eager"]
    (reason,) = made.pending[0].reasons
    assert reason.code is Code.TOPOLOGY_PLACEMENT_FAILED


def test_a_repaired_gang_is_moved_again_rather_than_a_later_one_refused() -> None:
    """The lost pod could use a1 or a2; only a2 is left for the later gang then."""
    running = broken(
        [podset(count=2, gpu=8, required="rack")], [{"a0": 1, "x": 1}], (("w", "x", 1),)
    )
    nodes = [node("a0", "a", gpu=8), node("a1", "a", gpu=8, cpu=1), node("a2", "a", gpu=8, cpu=9)]
    picky = gang("picky", podset(gpu=8, cpu=9))
    made = planned(world(nodes, [picky], [running]))
    placements = {a.uid: a.placement.podsets[0].nodes for a in made.admitted}
    assert placements == {"g": (("a0", 1), ("a1", 1)), "picky": (("a2", 1),)}


@pytest.mark.parametrize("leaving", [True, False])
def test_leaving_gangs_are_not_repaired(leaving: bool) -> None:
    workload = gang("g", podset(count=2, gpu=8))
    running = holding(workload, {"a0": 1, "a1": 1}, leaving=leaving, lost=(("w", "a1", 1),))
    made = planned(world(out("a1"), [], [running]))
    assert bool(made.admitted) == (not leaving)
